"""Tables of the checks: which differences matter, and why. A Python literal, because YAML of this size loads slowly."""

from __future__ import annotations

from typing import NamedTuple, Optional

ORDER = "sums are added in another order, so that results differ by rounding"


class Variable(NamedTuple):
    """A variable that both platforms have under names of their own; a name is empty on a platform without it."""

    npu: str
    gpu: str
    default: Optional[str]  # noqa: UP045 (evaluated, on Python 3.9 too)
    why: str
    level: str = "error"


VARIABLES = (
    Variable("HCCL_DETERMINISTIC", "NCCL_DETERMINISTIC", "false",
             f"communication is deterministic in one run only: {ORDER}"),
    Variable("HCCL_ALGO", "NCCL_ALGO", None, f"another algorithm of collectives: {ORDER}"),
    Variable("", "NCCL_PROTO", None, f"another protocol of collectives: {ORDER}"),
    Variable("HCCL_INTRA_ROCE_ENABLE", "", "0", "another link between devices may choose another algorithm", "warning"),
    Variable("HCCL_INTRA_PCIE_ENABLE", "", "1", "another link between devices may choose another algorithm", "warning"),
    Variable("ASCEND_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING", "0",
             "kernels run one by one in one run only: it hides races"),
    Variable("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", None,
             "another number of devices splits batches differently"),
    Variable("", "CUBLAS_WORKSPACE_CONFIG", None, f"matrix products of cuBLAS may not be deterministic: {ORDER}"),
    Variable("", "NVIDIA_TF32_OVERRIDE", None, "TF32 rounds inputs of matrix products to 10 bits"),
    Variable("CLOSE_MATMUL_K_SHIFT", "", "0", f"matrix products begin at another position: {ORDER}"),
    Variable("ATB_MATMUL_SHUFFLE_K_ENABLE", "", "1", f"matrix products are shuffled: {ORDER}"),
    Variable("LCCL_DETERMINISTIC", "", "0", ORDER),
    Variable("INF_NAN_MODE_ENABLE", "", "1", "overflows saturate in one run and are infinite in the other"),
    Variable("INF_NAN_MODE_FORCE_DISABLE", "", "0", "overflows saturate in one run and are infinite in the other"),
    Variable("PYTHONHASHSEED", "PYTHONHASHSEED", None,
             "sets and dictionaries with hashed keys may have another order", "warning"),
    Variable("OMP_NUM_THREADS", "OMP_NUM_THREADS", None, f"another number of CPU threads: {ORDER}", "warning"),
    Variable("", "FLASH_ATTENTION_DETERMINISTIC", "0", ORDER),
    Variable("", "NVTE_FLASH_ATTN", None, "another kernel computes attention"),
    Variable("", "NVTE_FUSED_ATTN", None, "another kernel computes attention"),
    Variable("WORLD_SIZE", "WORLD_SIZE", None, "another number of processes splits batches and sums differently"),
)  # fmt: skip
"""The variables that are known to change numbers, with the values that they have if unset. Defaults of msProbe's list
are those of its documentation."""
VISIBLE_DEVICES = ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
UNLISTED = "not known to change numbers"

KERNELS = "another release has other kernels and defaults"
PACKAGES = {
    **dict.fromkeys(
        ("torch", "torch-npu", "mindspore", "mindnlp", "deepspeed", "megatron", "megatron-core", "megatron-lm",
         "mindspeed", "mindspeed-llm", "flash-attn", "transformer-engine", "apex",
         "triton", "xformers",
         "bitsandbytes", "vllm"),
        ("error", KERNELS)),
    **dict.fromkeys(
        ("transformers", "accelerate", "peft", "trl", "lightning", "pytorch-lightning", "verl", "diffusers", "timm"),
        ("error", "another release may build the model or the training step differently")),
    **dict.fromkeys(("datasets", "tokenizers", "sentencepiece", "tiktoken", "torchvision", "torchaudio", "webdataset"),
                    ("error", "another release may prepare data differently")),
    "numpy": ("error", "numpy's generators and data preparation may differ"),
    **dict.fromkeys(("scipy", "einops", "safetensors", "ml-dtypes", "pandas", "pyarrow", "pillow", "opencv-python"),
                    ("warning", "it may take part in preparing data or loading weights")),
}  # fmt: skip
"""Level and reason by the name of a package, as PyPI normalises it. Which package matters is a judgement."""
OTHER_PACKAGE = ("info", "not known to change numbers")
SAME_BASE = "the same release, built for another device"

ALIASES = (
    ("learning_rate", ("lr", "learningrate")),
    ("batch_size", ("batch", "bs", "batch_size_per_gpu", "micro_batch_size", "per_device_train_batch_size")),
    ("epochs", ("num_epochs", "max_epochs", "epoch", "num_train_epochs")),
    ("weight_decay", ("wd", "weightdecay")),
    ("dropout_rate", ("dropout", "drop_rate", "hidden_dropout")),
    ("compute_dtype", ("bf16", "fp16", "fp32", "dtype", "torch_dtype", "params_dtype", "mixed_precision", "precision")),
    ("residual_dtype", ("fp32_residual_connection",)),
    ("softmax_compute_dtype", ("attention_softmax_in_fp32",)),
    ("seed", ("random_seed", "manual_seed")),
    ("lr_warmup_iters", ("warmup_steps", "lr_warmup_iterations", "warmup_iters", "num_warmup_steps")),
    ("adam_eps", ("adam_epsilon", "eps", "epsilon")),
    ("clip_grad", ("max_grad_norm", "gradient_clipping", "gradient_clip_val")),
    ("hidden_size", ("hidden_dim", "d_model", "n_embd")),
    ("num_layers", ("num_hidden_layers", "n_layer", "n_layers")),
    ("num_attention_heads", ("n_head", "n_heads", "num_heads")),
    ("seq_length", ("max_seq_len", "sequence_length", "seq_len", "max_length")),
)
"""Names of one hyper-parameter in different programs; the first is the name of the group."""
DTYPE_FLAGS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "bfloat16": "bfloat16", "half": "float16"}
DTYPES = {**DTYPE_FLAGS, "float16": "float16", "float32": "float32", "float": "float32", "bf16true": "bfloat16",
          "bf16mixed": "bfloat16", "16mixed": "float16", "32true": "float32"}  # fmt: skip
WITHOUT_EFFECT = (
    "log", "logging", "save", "output", "wandb", "tensorboard", "eval", "timing", "profile", "report", "nproc_per_node",
    "master_port", "master_addr", "node_rank", "nnodes", "rdzv", "monitor", "trace",
)  # fmt: skip
"""Words at the beginning of the last part of a name that say that it decides no value of the training; a guess."""
HYPERPARAMETER_WHY = {
    "seed": "another seed gives other weights, dropout masks and data order",
    "compute_dtype": "another dtype rounds differently: compare with tolerance, or run both in one dtype",
    "batch_size": "another batch size gives other gradients, starting at the first step",
    "learning_rate": "weights differ after the first update",
    "dropout_rate": "activations differ in training, starting at the first forward",
}
OTHER_HYPERPARAMETER = "the two runs were asked for different things"

SWITCH_WHY = {
    "seeds": "another seed gives other weights, dropout masks and data order",
    "switches": "other kernels run, or they round differently",
    "versions": KERNELS,
    "devices": "kernels of another device add in another order",
    "layout": "another number of processes splits batches and sums differently",
    "random_states": "one run has drawn more random numbers than the other",
    "optimizers": "weights differ after the first update",
    "data": "the runs are trained on different data",
}
DATASET_WHY = "the model gets other data: outputs differ, starting at this step"
WEIGHTS_WHY = "the model has other weights: all outputs differ"
MISSING_WEIGHT = "a weight is missing on one side: the model is another one, or a checkpoint was not loaded completely"
RANDOM_WHY = "one run draws other random numbers, and all later draws are shifted"
