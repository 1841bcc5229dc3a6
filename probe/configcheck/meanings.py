"""One table of settings: what they mean, their names wherever they are written, and why a difference matters.

A Python literal, because YAML of this size loads slowly. Which settings change numbers is a judgement by what the
documentation of the programs says of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from probe.configcheck.tables import ORDER

VALUE, FLAG, DTYPE, NAME, PATH, BETAS, STAGE, COUNT = (
    "value",
    "flag",
    "dtype",
    "name",
    "path",
    "betas",
    "stage",
    "count",
)
"""Kinds of values: numbers and texts as they are; on or off; a number format; texts whose case and dashes do not count;
paths, of which the last part counts; the pair of Adam; a stage of ZeRO, or a name with it; a part of the world size."""


class Setting(NamedTuple):
    """One setting that changes numbers."""

    title: str
    names: str
    """Names without regard to case, ``-`` and ``_``. A dot stands for the section above it, ``$`` for a variable of the
    environment, and ``name=value`` for a flag that asks for this value."""
    why: str
    kind: str = VALUE
    default: Any = None
    """The value where the setting is not mentioned, as the programs agree; ``None`` if they do not."""
    is_optional: bool = False
    """True if a run that does not mention it may well have the same."""
    group: str = ""
    """The title of a setting whose values stand for this one as well."""
    is_family: bool = False
    """True if the names are settings of their own, which have the reason in common."""

    @property
    def reason(self) -> str:
        """The title and the reason why it matters."""
        return f"{self.title}: {self.why}"


_SPLIT = "batches and sums are split in another way"
_KERNEL = "another kernel rounds differently"
_UPDATE = "weights differ after the first update"
_DATA = "the runs are trained on different data"
_MODEL = "the model is another one"
_POLICY = "updates of the policy differ"

TABLE = (
    # --- processes
    Setting("world size", "num_processes worker_num np launcher.n ntasks world_size total_gpus num_gpus_total "
            "$WORLD_SIZE $RANK_SIZE $DEVICE_NUM", _SPLIT, COUNT),
    Setting("processes per node", "nproc_per_node num_gpus local_worker_num ntasks_per_node n_gpus_per_node "
            "gpus_per_node devices num_gpus_per_node nproc npus_per_node gpus_per_task $NPROC_PER_NODE "
            "$LOCAL_WORLD_SIZE $GPUS_PER_NODE", _SPLIT, COUNT),
    Setting("nodes", "nnodes num_nodes num_machines launcher.N nodes $NNODES $NUM_NODES", _SPLIT, COUNT),
    Setting("devices of DeepSpeed", "launcher.include launcher.exclude", _SPLIT, COUNT),
    Setting("tensor parallel size", "tensor_model_parallel_size tensor_parallel_size tp tp_size model_parallel "
            "model_parallel_size tensor_parallel megatron_lm_tp_degree tensor_parallel_degree tp_degree "
            "autotp_size tensor_parallel.autotp_size parallelism_config_tp_size tensor_parallel.tp_size", ORDER,
            default=1),
    Setting("pipeline parallel size", "pipeline_model_parallel_size pipeline_parallel_size pp pp_size pipeline_stage "
            "pipeline_stages pipeline_parallel megatron_lm_pp_degree pipeline_parallel_degree pp_degree", _SPLIT,
            default=1),
    Setting("virtual pipeline stages", "virtual_pipeline_model_parallel_size num_layers_per_virtual_pipeline_stage "
            "vpp vpp_size pp_interleave_num", _SPLIT),
    Setting("context parallel size", "context_parallel_size cp cp_size context_parallel context_parallel_degree "
            "ulysses_sequence_parallel_size sequence_parallel_size ulysses_degree sp_size ring_attention_size "
            "parallelism_config_cp_size parallelism_config_sp_size", ORDER, default=1),
    Setting("context parallel algorithm", "context_parallel_algo cp_comm_type", ORDER, NAME),
    Setting("sequence parallel", "sequence_parallel use_seq_parallel megatron_lm_sequence_parallelism "
            "enable_sequence_parallel", ORDER, FLAG, False),
    Setting("expert parallel size", "expert_model_parallel_size expert_parallel_size ep ep_size expert_parallel "
            "expert_parallel_degree", ORDER, default=1),
    Setting("expert tensor parallel size", "expert_tensor_parallel_size etp etp_size", ORDER),
    Setting("data parallel size", "data_parallel_size data_parallel dp dp_size data_parallel_degree "
            "data_parallel_replicate_degree data_parallel_shard_degree dp_replicate_size dp_shard_size "
            "parallelism_config_dp_replicate_size parallelism_config_dp_shard_size fsdp_size", _SPLIT),
    Setting("ZeRO stage", "zero_stage zero_optimization.stage deepspeed ds_stage zero.stage "
            "$ACCELERATE_DEEPSPEED_ZERO_STAGE", _SPLIT, STAGE, 0),
    Setting("sharding of FSDP", "fsdp_sharding_strategy sharding_strategy fsdp fsdp_reshard_after_forward "
            "reshard_after_forward $FSDP_SHARDING_STRATEGY", _SPLIT, NAME),
    Setting("sharding of FSDP: version", "fsdp_version", _SPLIT, default=1),
    Setting("distributed optimizer", "use_distributed_optimizer megatron_lm_use_distributed_optimizer "
            "optimizer_parallel enable_parallel_optimizer use_torch_fsdp2", ORDER, FLAG, False),
    Setting("distributed engine", "distributed_type strategy distributed_engine", ORDER, NAME, is_optional=True),
    Setting("offloading", "offload_optimizer_device zero_optimization.offload_optimizer.device "
            "offload_optimizer.device", "the optimizer computes on another device", NAME),
    Setting("offloading of parameters", "fsdp_offload_params offload_param_device cpu_offload optimizer_cpu_offload "
            "param_offload optimizer_offload offload_param.device optimizer_offload_fraction",
            "parts of the step are computed on another device", NAME, "false", is_family=True),
    Setting("device", "use_cpu cpu device_type", "kernels of another device add in another order", NAME, "false"),
    # --- number formats
    Setting("precision", "mixed_precision precision amp_dtype compute_dtype autocast_dtype dtype data_type "
            "bf16=bfloat16 fp16=float16 fp32=float32 bf16.enabled=bfloat16 fp16.enabled=float16 bfloat16=bfloat16 "
            "float16=float16 half=float16 bfloat16.enabled=bfloat16 use_bf16=bfloat16 use_fp16=float16 "
            "enable_bf16=bfloat16 enable_fp16=float16 mixed_precision_dtype mixed_precision.param_dtype "
            "mixed_precision_param training_dtype $ACCELERATE_MIXED_PRECISION", "another dtype rounds differently",
            DTYPE, "float32"),
    Setting("precision of parameters", "torch_dtype params_dtype param_dtype param_init_type model_dtype "
            "weight_dtype parameter_dtype master_dtype", "another dtype rounds differently", DTYPE,
            group="precision"),
    Setting("precision of softmax", "softmax_compute_dtype attention_softmax_in_fp32=float32 softmax_compute_type",
            "another dtype rounds differently", DTYPE),
    Setting("precision of residuals", "residual_dtype fp32_residual_connection=float32",
            "another dtype rounds differently", DTYPE),
    Setting("precision of norms", "layernorm_compute_dtype layernorm_compute_type norm_dtype",
            "another dtype rounds differently", DTYPE),
    Setting("precision of rotary embeddings", "rotary_dtype rope_dtype", "another dtype rounds differently", DTYPE),
    Setting("precision of reductions", "accumulate_allreduce_grads_in_fp32=float32 grad_reduce_in_fp32=float32 "
            "grad_reduce_dtype communication_data_type data_types.grad_accum_dtype reduce_dtype grad_accum_dtype "
            "main_grads_dtype grad_reduce_in_bf16=bfloat16 mixed_precision.reduce_dtype",
            "gradients are summed in another dtype", DTYPE, is_family=True),
    Setting("FP8", "fp8 fp8_format fp8_recipe fp8_backend fp8_margin transformer_engine fp8_hybrid fp8_e4m3",
            "FP8 rounds to 3 or 4 bits", NAME, "false", is_family=True),
    Setting("automatic mixed precision", "amp use_amp autocast amp_level opt_level fp16_opt_level enable_amp",
            "another dtype rounds differently", NAME, "false", is_family=True),
    Setting("precision of the whole model", "pure_bf16 pure_fp16 full_bf16 full_fp16",
            "another dtype rounds differently", FLAG, False, is_family=True),
    Setting("upcasting", "upcast_layernorm fp16_lm_cross_entropy upcast_lmhead_output fp32_lm_head",
            "another dtype rounds differently", FLAG, False, is_family=True),
    Setting("loss scale", "loss_scale initial_scale_power fp16.loss_scale init_loss_scale initial_loss_scale "
            "loss_scale_window", "gradients under- or overflow at another size", is_optional=True, is_family=True),
    Setting("quantization", "load_in_4bit load_in_8bit quantization_bit quantization_method quant_method "
            "bnb_4bit_compute_dtype bnb_4bit_quant_type double_quantization quant_bits",
            "weights are rounded to few bits", NAME, "false", is_family=True),
    Setting("TF32", "tf32 allow_tf32 $NVIDIA_TF32_OVERRIDE", "TF32 rounds inputs of matrix products to 10 bits",
            FLAG),
    Setting("TF32 of cuBLAS", "$TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TF32 rounds inputs of matrix products to 10 bits",
            FLAG, False),
    Setting("precision of float32 products", "float32_matmul_precision matmul_precision",
            "TF32 rounds inputs of matrix products to 10 bits", NAME),
    # --- batches
    Setting("batch size", "batch_size batch bs micro_batch_size per_device_train_batch_size batch_size_per_gpu mbs "
            "train_micro_batch_size_per_gpu per_device_batch_size micro_train_batch_size "
            "micro_batch_num_per_device batch_size_per_device micro_batch per_gpu_train_batch_size "
            "local_batch_size runner_config.batch_size",
            "another batch size gives other gradients, starting at the first step"),
    Setting("global batch size", "global_batch_size train_batch_size gbs total_batch_size total_train_batch_size "
            "effective_batch_size", "another batch size gives other gradients, starting at the first step"),
    Setting("batch of policy updates", "ppo_mini_batch_size mini_batch_size num_mini_batches "
            "ppo_micro_batch_size_per_gpu ppo_micro_batch_size rollout_batch_size ppo_max_token_len_per_gpu",
            "another batch size gives other gradients", is_family=True),
    Setting("accumulation", "gradient_accumulation_steps accumulation_steps grad_accum_steps accumulate_grad_batches "
            "gradient_accumulation grad_accumulation_steps gradient_accumulation_step accumulate_steps gas "
            "grad_accum accumulate_grad_steps $ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
            "gradients are summed over another number of micro batches", default=1),
    Setting("pipeline micro batches", "micro_batch_num num_microbatches", _SPLIT),
    Setting("rampup of batches", "rampup_batch_size", _UPDATE),
    Setting("sequence length", "seq_length max_seq_len sequence_length sequence_len seq_len max_length "
            "max_seq_length block_size cutoff_len model_max_length max_sequence_length max_prompt_length "
            "max_response_length context_length max_position_embeddings encoder_seq_length",
            "the model gets other data"),
    Setting("packing", "packing pack sample_packing neat_packing use_remove_padding group_by_length padding_free "
            "reset_position_ids reset_attention_mask variable_seq_lengths", "samples are put together in another way",
            FLAG, False, is_family=True),
    # --- optimizer
    Setting("learning rate", "lr learning_rate base_lr max_lr init_lr base_learning_rate peak_lr", _UPDATE),
    Setting("least learning rate", "min_lr lr_min min_lr_ratio eta_min lr_end min_learning_rate lr_end_ratio "
            "warmup_min_lr cos_min_lr", "the learning rate falls to another value", default=0),
    Setting("learning rate of experts and encoders", "embedding_learning_rate encoder_lr vit_lr aligner_lr lr_mult "
            "loraplus_lr_ratio", _UPDATE, is_family=True),
    Setting("schedule", "lr_scheduler_type lr_scheduler scheduler lr_decay_style lr_schedule scheduler_type "
            "scheduler.type lr_schedule.type lr_scheduler.type lr_scheduler_name warmup_style",
            "the schedule of the learning rate is another one", NAME),
    Setting("length of the schedule", "lr_decay_iters decay_steps lr_decay_steps lr_decay_samples "
            "lr_scheduler_kwargs lr_wsd_decay_style lr_wsd_decay_iters",
            "the schedule of the learning rate is another one", NAME, is_family=True),
    Setting("warmup", "warmup_steps lr_warmup_iters lr_warmup_iterations warmup_iters num_warmup_steps "
            "warmup_num_steps lr_warmup_steps lr_warmup_samples warmup_epochs",
            "the learning rate rises in another way", default=0),
    Setting("warmup ratio", "warmup_ratio lr_warmup_fraction warmup_fraction lr_warmup_ratio lr_warmup_steps_ratio",
            "the learning rate rises in another way", default=0),
    Setting("start of warmup", "lr_warmup_init warmup_lr_init", "the learning rate rises in another way",
            default=0),
    Setting("optimizer", "optim optimizer optimizer_type optimizer.type optimizer.name optim_name optimizer_name "
            "optimizer_class", _UPDATE, NAME),
    Setting("weight decay", "weight_decay wd start_weight_decay end_weight_decay adam_weight_decay", _UPDATE),
    Setting("schedule of weight decay", "weight_decay_incr_style", _UPDATE, NAME, "constant"),
    Setting("betas", "betas adam_betas adam_beta", "moments decay in another way", BETAS),
    Setting("beta1", "adam_beta1 beta1 optim_beta1", "moments decay in another way", default=0.9),
    Setting("beta2", "adam_beta2 beta2 optim_beta2", "moments decay in another way", default=0.999),
    Setting("epsilon of Adam", "adam_eps adam_epsilon eps epsilon optim_eps", _UPDATE, default=1e-08),
    Setting("momentum", "momentum sgd_momentum", _UPDATE),
    Setting("clipping", "clip_grad max_grad_norm gradient_clipping gradient_clip_val grad_clip clip_grad_norm "
            "max_norm clip_norm grad_clip_norm $ACCELERATE_GRADIENT_CLIPPING",
            "large gradients are scaled in another way"),
    Setting("clipping algorithm", "gradient_clip_algorithm", "large gradients are scaled in another way", NAME),
    Setting("steps", "max_steps train_iters max_train_steps total_steps total_iters num_training_steps "
            "training_steps iterations total_training_steps train_samples max_iters",
            "the runs end, and their schedules, at another step"),
    Setting("epochs", "epochs num_train_epochs num_epochs max_epochs epoch total_epochs",
            "the runs end, and their schedules, at another step"),
    Setting("average of weights", "ema_decay use_ema ema swa", _UPDATE, NAME, "false"),
    # --- randomness and data
    Setting("seed", "seed random_seed manual_seed data_seed torch_seed global_seed set_seed seed_everything "
            "sample_seed $PL_GLOBAL_SEED $ACCELERATE_SEED",
            "another seed gives other weights, dropout masks and data order"),
    Setting("determinism", "deterministic_mode deterministic full_determinism use_deterministic use_deter_comp "
            "npu_deterministic train_precision_sync infer_precision_sync use_deterministic_algorithms "
            "cudnn_deterministic", ORDER, FLAG, False, is_family=True),
    Setting("benchmark of cuDNN", "cudnn_benchmark benchmark", "other algorithms of convolutions may be chosen",
            FLAG, False),
    Setting("data order", "shuffle data_shuffle shuffle_dataset train_shuffle dataloader_type data_sharding sampler "
            "disable_shuffling dataset_shuffle train_dataloader_shuffle",
            "the runs get the same data in another order", NAME, is_optional=False),
    Setting("last batch", "drop_last dataloader_drop_last drop_remainder", _DATA, FLAG, False),
    Setting("distribution of batches", "split_batches dispatch_batches even_batches use_seedable_sampler", _DATA,
            NAME, is_family=True),
    Setting("data", "dataset dataset_name data_path data dataset_dir train_file train_files train_data "
            "train_data_path data_dir data_prefix dataset_config_name dataset_path train_dataset dataset_config "
            "train_dir custom_dataset_path data_files prompt_data train_dataset.data_loader.dataset_dir",
            _DATA, PATH),
    Setting("split of data", "split train_split data_split max_samples max_train_samples val_set_size "
            "split_dataset_ratio validation_split_percentage", _DATA, NAME, is_family=True),
    Setting("template", "template chat_template prompt_template system_prompt", _DATA, PATH),
    Setting("masking of labels", "train_on_prompt mask_history train_on_inputs completion_only_loss",
            "the loss counts other tokens", FLAG, False, is_family=True),
    # --- model
    Setting("model", "model model_name_or_path model_name model_path pretrained_model_name_or_path model.path "
            "model_id base_model pretrain_model hf_checkpoint model_type model.model_path pretrained_model_path "
            "adapter_name_or_path ref_model reward_model.path", _MODEL, PATH),
    Setting("checkpoint", "load resume resume_from_checkpoint load_checkpoint load_ckpt_path ckpt_path finetune "
            "pretrained_checkpoint resume_from resume_path ckpt_load_dir resume_training no_load_optim no_load_rng",
            "the runs begin with other weights", PATH, is_family=True),
    Setting("tokenizer", "tokenizer tokenizer_name_or_path tokenizer_model tokenizer_path tokenizer_type "
            "tokenizer_name", _DATA, PATH, is_optional=True),
    Setting("hidden size", "hidden_size hidden_dim d_model n_embd", _MODEL),
    Setting("number of layers", "num_layers num_hidden_layers n_layer n_layers", _MODEL),
    Setting("attention heads", "num_attention_heads n_head n_heads num_heads", _MODEL),
    Setting("vocabulary", "vocab_size padded_vocab_size make_vocab_size_divisible_by", _MODEL),
    Setting("dropout", "dropout dropout_rate drop_rate hidden_dropout hidden_dropout_prob",
            "activations differ in training, starting at the first forward"),
    Setting("dropout of attention", "attention_dropout attn_dropout attn_pdrop attention_dropout_rate",
            "activations differ in training, starting at the first forward"),
    Setting("dropout of LoRA", "lora_dropout",
            "activations differ in training, starting at the first forward"),
    Setting("label smoothing", "label_smoothing label_smoothing_factor", "the loss is another one", default=0),
    Setting("epsilon of norms", "norm_epsilon layernorm_epsilon rms_norm_eps layer_norm_eps norm_eps", _MODEL),
    Setting("base of rotary embeddings", "rotary_base rope_theta rope_base", _MODEL),
    Setting("attention", "attn_implementation use_flash_attn=flash flash_attn use_flash_attention=flash "
            "attention_backend attn_impl flash_attention use_flash_attention_2=flash enable_flash_attention=flash "
            "attn_backend _attn_implementation", _KERNEL, NAME),
    Setting("fused kernels", "use_liger_kernel enable_liger_kernel use_fused_rmsnorm use_fused_swiglu "
            "use_fused_rotary_pos_emb liger_kernel use_fused_kernels use_liger no_masked_softmax_fusion "
            "no_bias_gelu_fusion no_bias_swiglu_fusion no_rope_fusion use_fused_ring_attention_update "
            "gradient_accumulation_fusion no_gradient_accumulation_fusion use_unsloth moe_grouped_gemm "
            "bias_dropout_fusion", _KERNEL, FLAG, False, is_family=True),
    Setting("compilation", "torch_compile compile dynamo_backend use_torch_compile torch_compile_backend "
            "torch_compile_mode dynamo_mode jit_level jit_config.jit_level $ACCELERATE_DYNAMO_BACKEND",
            _KERNEL, NAME, "false", is_family=True),
    Setting("freezing", "freeze_vit freeze_llm freeze_aligner freeze_trainable_layers freeze_vision_tower "
            "train_mm_proj_only freeze_layers", _UPDATE, NAME, is_family=True),
    Setting("method", "finetuning_type train_type tuner_type use_peft use_lora lora_rank lora_alpha lora_target "
            "target_modules lora_r lora_target_modules rlhf_type pref_loss adv_estimator",
            "other weights are trained", NAME, is_family=True),
    Setting("sampling", "temperature top_p top_k num_generations rollout.n n_samples_per_prompt do_sample",
            "other tokens are generated", is_family=True),
    Setting("policy", "kl_coef kl_loss_coef clip_ratio entropy_coeff beta gamma lam use_kl_loss cliprange "
            "init_kl_coef epsilon_high kl_loss_type kl_ctrl.kl_coef loss_agg_mode clip_ratio_low clip_ratio_high",
            _POLICY, NAME, is_family=True),
    Setting("routing of experts", "moe_aux_loss_coeff moe_router_topk moe_router_load_balancing_type num_experts "
            "moe_token_dispatcher_type moe_expert_capacity_factor capacity_factor moe_router_dtype", _MODEL, NAME,
            is_family=True),
    # --- the environment
    Setting("determinism of communication", "$HCCL_DETERMINISTIC $NCCL_DETERMINISTIC",
            f"one run has it only; {ORDER}", FLAG, False),
    Setting("algorithm of collectives", "$HCCL_ALGO $NCCL_ALGO", ORDER),
    Setting("protocol of collectives", "$NCCL_PROTO", ORDER),
    Setting("channels of collectives", "$NCCL_MIN_NCHANNELS $NCCL_MAX_NCHANNELS $NCCL_NVLS_ENABLE "
            "$NCCL_COLLNET_ENABLE $HCCL_OP_EXPANSION_MODE", f"collectives are split in another way; {ORDER}",
            is_family=True),
    Setting("link of RoCE", "$HCCL_INTRA_ROCE_ENABLE", "another link between devices may choose another algorithm",
            default=0),
    Setting("link of PCIe", "$HCCL_INTRA_PCIE_ENABLE", "another link between devices may choose another algorithm",
            default=1),
    Setting("launches that block", "$ASCEND_LAUNCH_BLOCKING $CUDA_LAUNCH_BLOCKING $HIP_LAUNCH_BLOCKING",
            "kernels run one by one in one run only; it hides races", default=0),
    Setting("visible devices", "$ASCEND_RT_VISIBLE_DEVICES $CUDA_VISIBLE_DEVICES $HIP_VISIBLE_DEVICES "
            "$ROCR_VISIBLE_DEVICES", "another number of devices splits batches differently"),
    Setting("workspace of cuBLAS", "$CUBLAS_WORKSPACE_CONFIG",
            f"matrix products may not be deterministic; {ORDER}"),
    Setting("workspace of cuBLASLt", "$CUBLASLT_WORKSPACE_SIZE",
            f"another algorithm of matrix products may be chosen; {ORDER}"),
    Setting("version of the cuDNN API", "$TORCH_CUDNN_V8_API_DISABLED $TORCH_CUDNN_V8_API_ENABLED "
            "$TORCH_BLAS_PREFER_CUBLASLT", _KERNEL, default=0, is_family=True),
    Setting("start of matrix products", "$CLOSE_MATMUL_K_SHIFT",
            ORDER, default=0),
    Setting("shuffling of matrix products", "$ATB_MATMUL_SHUFFLE_K_ENABLE", ORDER,
            default=1),
    Setting("determinism of LCCL", "$LCCL_DETERMINISTIC", ORDER, default=0),
    Setting("determinism of ATB", "$ATB_LLM_LCOC_ENABLE $MS_DETERMINISTIC $ATB_DETERMINISTIC $TORCH_DETERMINISTIC",
            ORDER, default=0, is_family=True),
    Setting("overflows", "$INF_NAN_MODE_ENABLE", "overflows saturate in one run and are infinite in the other",
            default=1),
    Setting("saturation", "$INF_NAN_MODE_FORCE_DISABLE",
            "overflows saturate in one run and are infinite in the other", default=0),
    Setting("hash seed", "$PYTHONHASHSEED", "sets and dictionaries with hashed keys may have another order"),
    Setting("CPU threads", "num_cpu_threads_per_process $OMP_NUM_THREADS", ORDER),
    Setting("CPU threads of MKL", "$MKL_NUM_THREADS $OPENBLAS_NUM_THREADS", ORDER,
            is_family=True),
    Setting("instructions of the CPU", "$MKL_CBWR $MKL_ENABLE_INSTRUCTIONS $ATEN_CPU_CAPABILITY $ONEDNN_MAX_CPU_ISA "
            "$DNNL_MAX_CPU_ISA", _KERNEL, is_family=True),
    Setting("determinism of flash attention", "$FLASH_ATTENTION_DETERMINISTIC", ORDER, default=0),
    Setting("flash attention of Transformer Engine", "$NVTE_FLASH_ATTN", "another kernel computes attention"),
    Setting("fused attention of Transformer Engine", "$NVTE_FUSED_ATTN $NVTE_UNFUSED_ATTN",
            "another kernel computes attention", is_family=True),
    Setting("determinism of Transformer Engine", "$NVTE_ALLOW_NONDETERMINISTIC_ALGO", ORDER, default=1),
    Setting("attention of vLLM", "$VLLM_ATTENTION_BACKEND $VLLM_USE_V1 $VLLM_BATCH_INVARIANT",
            "another kernel computes attention", is_family=True),
    Setting("compilation of PyTorch", "$TORCH_COMPILE_DISABLE $TORCHDYNAMO_DISABLE $TORCHINDUCTOR_MAX_AUTOTUNE",
            _KERNEL, default=0, is_family=True),
    Setting("kernels of XLA", "$XLA_FLAGS", _KERNEL),
    Setting("kernels of MIOpen", "$MIOPEN_FIND_MODE $MIOPEN_DEBUG_CONV_IMPLICIT_GEMM $ROCBLAS_DEFAULT_ATOMICS_MODE",
            _KERNEL, is_family=True),
)  # fmt: skip

_NO_EFFECT = re.compile(
    r"(?x)(^|[._])("  # anywhere in a name
    r"logs?|logging|loggers?|logdir|wandb|tensorboard|swanlab|mlflow|profile[rd]?|profiling|tqdm|verbose|verbosity|ports?|addr|"
    r"timeout|rdzv|eval|evaluation|hub|saves?|saving|debug|hostfile|overwrite|num_workers|val|validation|test|ckpt_dir|checkpoint_dir|"
    r"memory|monitor|exp_manager|hydra|profilers?|tracker|tracking|recompute\w*|gradient_checkpointing\w*|activation_checkpointing|activations_checkpoint\w*|enable_gradient_checkpointing"
    r")($|[._])"
    r"|(^|\.)(report|plot|print|dump|output_dir|output_path|out_dir|run|exp|experiment|job|project|timing|monitor|trace|visuali[sz]\w*|"
    r"metric|exit|tmp|work|default|results?|tracker|wandb|ckpt|checkpoints|async|dist_ckpt)_\w+$"  # at the beginning
    r"|(^|\.)(outputs?|outdir|output_dir|output_path|out_dir|out|workdir|work_dir|address|host|ip|endpoint|project|entity|tags|notes|"
    r"description|quiet|progress|report_to|disable_tqdm|steps_per_print|wall_clock_breakdown|memory_breakdown|cache_dir|prefetch_factor|"
    r"pin_memory|persistent_workers|node_rank|machine_rank|local_rank|rank|local_dir|logdir|results?|experiment|run|job|dataset_num_proc|num_proc|do_eval|do_train|do_predict|"
    r"compute_environment|load_best_model_at_end|greater_is_better|use_deepspeed|use_fsdp|multi_gpu|use_megatron_lm|"
    r"deepspeed_multinode_launcher|distributed_backend|same_network|main_training_function|use_mcore_models|dump|plot_loss|"
    r"free_cache_engine|distributed_timeout_minutes|ddp_timeout|time_out|cluster_time_out|deepspeed_config_file|tensorboard_dir|steps_per_epoch_print)$"
)
"""Names that say that a setting decides no value of the training; a judgement."""
REFERENCES = frozenset((
    "config_file", "config", "deepspeed_config", "deepspeed", "ds_config", "deepspeed_config_file", "fsdp_config",
    "config_path", "accelerate_config", "train_config",
))  # fmt: skip
"""Options whose value is the path of a settings file."""
ROLES = frozenset((
    "actor", "critic", "ref", "reference", "rollout", "reward", "reward_model", "teacher", "student", "draft",
    "generator", "discriminator", "eval", "val", "validation", "test", "text", "text_config", "vision",
    "vision_config", "audio", "encoder", "decoder", "policy", "value", "vllm", "sglang", "infer", "inference",
    "generation", "engine_kwargs", "rm", "talker", "projector",
))  # fmt: skip
"""Sections of one program that have settings of the same meaning and are different things."""


def plain_name(name: str) -> str:
    """A name in lower case, with ``_`` for ``-``."""
    return name.lower().replace("-", "_")


def _key(name: str) -> str:
    return plain_name(name).replace("_", "")


def _names() -> Iterator[tuple[str, tuple[Setting, str]]]:
    for setting in TABLE:
        for name in setting.names.split():
            name, _, value = name.partition("=")
            # -n and -N are different options of srun.
            yield (name if name[0] == "$" or name == "launcher.N" else _key(name)), (setting, value)


_BY_NAME = dict(_names())
BY_TITLE = {setting.title: setting for setting in TABLE}


def meaning(name: str) -> tuple[Setting | None, str]:
    """The setting that a name stands for, if it is known, and the value that a flag of this name asks for."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    parts = name.split(".")
    for count in (3, 2, 1):
        if len(parts) >= count and (found := _BY_NAME.get(_key(".".join(parts[-count:])))):
            return found
    return None, ""


def variables_of(setting: Setting) -> list[str]:
    """The variables of the environment that mean this setting."""
    return [name[1:] for name in setting.names.split() if name[0] == "$"]


def has_no_effect(name: str) -> bool:
    """True if the name says that the setting decides no value of the training."""
    return _NO_EFFECT.search(plain_name(name)) is not None


def scope(name: str) -> tuple[str, ...]:
    """The sections of a name that tell settings of one meaning apart: ``("critic",)`` of ``critic.optim.lr``."""
    return tuple(part for part in plain_name(name).split(".")[:-1] if part in ROLES or part.isdigit())
