"""Pairs of launch settings that no rule was made with: results are counted by them, and nothing is tuned on them."""

from __future__ import annotations

from launches.pair import Family, Pair

FAMILIES = (
    Family(
        "swift",
        {
            "run.sh": """#!/usr/bin/env bash
set -x
NNODES=${NNODES:-1}
NPROC_PER_NODE=8 \\
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \\
swift sft \\
    --model Qwen/Qwen2.5-7B-Instruct \\
    --train_type lora \\
    --dataset 'AI-ModelScope/alpaca-gpt4-data-zh#500' \\
    --torch_dtype bfloat16 \\
    --num_train_epochs 1 \\
    --per_device_train_batch_size 1 \\
    --learning_rate 1e-4 \\
    --lora_rank 8 --lora_alpha 32 \\
    --gradient_accumulation_steps 16 \\
    --max_length 2048 \\
    --save_steps 50 \\
    --output_dir output \\
    --warmup_ratio 0.05 \\
    --deepspeed zero2 \\
    --logging_steps 5
"""
        },
        (
            ("--torch_dtype bfloat16", "--torch_dtype float16", "precision"),
            ("--torch_dtype bfloat16", "--bf16 true", ""),
            ("NPROC_PER_NODE=8", "NPROC_PER_NODE=4", "world size"),
            ("--deepspeed zero2", "--deepspeed zero3", "zero"),
            ("--gradient_accumulation_steps 16", "--gradient_accumulation_steps=8", "accumulation"),
            ("--output_dir output", "--output_dir /data/exp7", ""),
            ("--save_steps 50", "--save_steps 100", ""),
            ("--lora_rank 8", "--lora_rank 16", "lora_rank"),
            ("--max_length 2048", "--max_length 4096", "sequence length"),
            ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B", "model"),
        ),
    ),
    Family(
        "verl",
        {
            "run.sh": """set -x
export VLLM_ATTENTION_BACKEND=XFORMERS
gsm8k_train_path=$HOME/data/gsm8k/train.parquet
train_files="['$gsm8k_train_path']"
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files="$train_files" \\
    data.train_batch_size=1024 \\
    data.max_prompt_length=512 \\
    actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \\
    actor_rollout_ref.actor.kl_loss_coef=0.001 \\
    actor_rollout_ref.actor.fsdp_config.param_offload=False \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=5 \\
    critic.optim.lr=1e-5 \\
    trainer.logger=['console','wandb'] \\
    trainer.project_name='verl_grpo' \\
    trainer.experiment_name='qwen2_7b' \\
    trainer.n_gpus_per_node=8 \\
    trainer.nnodes=1 \\
    trainer.save_freq=20 \\
    trainer.test_freq=5 \\
    trainer.total_epochs=15 $@
"""
        },
        (
            ("trainer.n_gpus_per_node=8", "trainer.n_gpus_per_node=4", "world size"),
            ("trainer.nnodes=1", "trainer.nnodes=2", "world size"),
            ("actor.optim.lr=1e-6", "actor.optim.lr=2e-6", "learning rate"),
            ("actor.optim.lr=1e-6", "actor.optim.lr=0.000001", ""),
            ("critic.optim.lr=1e-5", "critic.optim.lr=1e-6", "learning rate"),
            ("rollout.tensor_model_parallel_size=2", "rollout.tensor_model_parallel_size=4", "tensor parallel"),
            ("trainer.experiment_name='qwen2_7b'", "trainer.experiment_name='second'", ""),
            ("trainer.logger=['console','wandb']", "trainer.logger=['console']", ""),
            ("rollout.n=5", "rollout.n=8", "rollout.n"),
            ("ppo_mini_batch_size=256", "ppo_mini_batch_size=128", "batch"),
            ("trainer.save_freq=20", "trainer.save_freq=-1", ""),
        ),
    ),
    Family(
        "mindspeed",
        {
            "run.sh": """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
export HCCL_CONNECT_TIMEOUT=1200
NPUS_PER_NODE=8
MASTER_ADDR=localhost
MASTER_PORT=6000
NNODES=1
NODE_RANK=0
WORLD_SIZE=$(($NPUS_PER_NODE*$NNODES))
CKPT_SAVE_DIR="./ckpt"
TP=2
PP=2
CP=1
DISTRIBUTED_ARGS="
    --nproc_per_node $NPUS_PER_NODE \\
    --nnodes $NNODES \\
    --node_rank $NODE_RANK \\
    --master_addr $MASTER_ADDR \\
    --master_port $MASTER_PORT
"
GPT_ARGS="
    --use-mcore-models \\
    --tensor-model-parallel-size ${TP} \\
    --pipeline-model-parallel-size ${PP} \\
    --context-parallel-size ${CP} \\
    --sequence-parallel \\
    --num-layers 32 \\
    --hidden-size 4096 \\
    --seq-length 4096 \\
    --micro-batch-size 1 \\
    --global-batch-size 128 \\
    --lr 1.25e-6 \\
    --train-iters 5000 \\
    --lr-decay-style cosine \\
    --weight-decay 1e-1 \\
    --adam-beta1 0.9 \\
    --adam-beta2 0.95 \\
    --use-distributed-optimizer \\
    --bf16
"
OUTPUT_ARGS="
    --log-interval 1 \\
    --save-interval 1000 \\
    --eval-iters 10
"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \\
    $GPT_ARGS \\
    $OUTPUT_ARGS \\
    --distributed-backend nccl \\
    --save $CKPT_SAVE_DIR \\
    | tee logs/train.log
"""
        },
        (
            ("TP=2", "TP=4", "tensor parallel"),
            ("PP=2", "PP=1", "pipeline parallel"),
            ("CP=1", "CP=2", "context parallel"),
            ("NPUS_PER_NODE=8", "NPUS_PER_NODE=16", "world size"),
            ("NPUS_PER_NODE=8\nMASTER", "NPUS_PER_NODE=4\nMASTER", "world size"),
            ("    --sequence-parallel \\\n", "", "sequence parallel"),
            ("MASTER_PORT=6000", "MASTER_PORT=6001", ""),
            ('CKPT_SAVE_DIR="./ckpt"', 'CKPT_SAVE_DIR="./other"', ""),
            ("--bf16", "--fp16", "precision"),
            ("    --bf16\n", "", "precision"),
            ("--adam-beta2 0.95", "--adam-beta2 0.999", "beta"),
            ("--weight-decay 1e-1", "--weight-decay 0.1", ""),
            ("tee logs/train.log", "tee logs/b.log", ""),
            ("--lr-decay-style cosine", "--lr-decay-style linear", "schedule"),
            ("    --context-parallel-size ${CP} \\\n", "", ""),
            ("HCCL_CONNECT_TIMEOUT=1200", "HCCL_CONNECT_TIMEOUT=3600", ""),
        ),
    ),
    Family(
        "msrun",
        {
            "run.sh": "export HCCL_DETERMINISTIC=true\n"
            "msrun --bind_core=True --worker_num=8 --local_worker_num=8 --master_port=8118 --log_dir=msrun_log "
            "--join=True --cluster_time_out=300 run_mindformer.py --config finetune.yaml --run_mode finetune\n",
            "finetune.yaml": """seed: 42
output_dir: './output'
train_precision_sync: True
optimizer:
  type: AdamW
  betas: [0.9, 0.95]
  eps: 1.e-8
  weight_decay: 0.1
lr_schedule:
  type: CosineWithWarmUpLR
  learning_rate: 1.e-5
  warmup_ratio: 0.01
runner_config:
  epochs: 2
  batch_size: 4
parallel_config:
  data_parallel: 2
  model_parallel: 4
  pipeline_stage: 1
model:
  model_config:
    compute_dtype: "bfloat16"
    softmax_compute_dtype: "float32"
    seq_length: 4096
""",
        },
        (
            ("--worker_num=8 --local_worker_num=8", "--worker_num=16 --local_worker_num=8", "world size"),
            ("--master_port=8118", "--master_port=8119", ""),
            ("--log_dir=msrun_log", "--log_dir=log2", ""),
            ("HCCL_DETERMINISTIC=true", "HCCL_DETERMINISTIC=false", "HCCL_DETERMINISTIC"),
            ("model_parallel: 4", "model_parallel: 2", "tensor parallel"),
            ("data_parallel: 2", "data_parallel: 1", "data parallel"),
            ("pipeline_stage: 1", "pipeline_stage: 2", "pipeline"),
            ('    compute_dtype: "bfloat16"', '    compute_dtype: "float16"', "precision"),
            ('softmax_compute_dtype: "float32"', 'softmax_compute_dtype: "bfloat16"', "softmax"),
            ("seed: 42", "seed: 43", "seed"),
            ("betas: [0.9, 0.95]", "betas: [0.9, 0.999]", "beta"),
            ("learning_rate: 1.e-5", "learning_rate: 0.00001", ""),
            ("output_dir: './output'", "output_dir: './b'", ""),
            (
                "msrun --bind_core=True --worker_num=8 --local_worker_num=8",
                "msrun --worker_num 8 --local_worker_num 4",
                "",
            ),
        ),
    ),
    Family(
        "deepspeed chat",
        {
            "run.sh": """OUTPUT=$1
ZERO_STAGE=$2
if [ "$OUTPUT" == "" ]; then
    OUTPUT=./output
fi
if [ "$ZERO_STAGE" == "" ]; then
    ZERO_STAGE=3
fi
mkdir -p $OUTPUT
NCCL_ALGO=Ring deepspeed --num_nodes=1 --num_gpus 8 --master_port 29600 main.py \\
   --model_name_or_path facebook/opt-1.3b \\
   --per_device_train_batch_size 8 \\
   --max_seq_len 512 \\
   --learning_rate 9.65e-6 \\
   --weight_decay 0. \\
   --num_train_epochs 16 \\
   --gradient_accumulation_steps 1 \\
   --lr_scheduler_type cosine \\
   --num_warmup_steps 0 \\
   --seed 1234 \\
   --dtype bf16 \\
   --zero_stage $ZERO_STAGE \\
   --deepspeed \\
   --output_dir $OUTPUT \\
   &> $OUTPUT/training.log
"""
        },
        (
            ("ZERO_STAGE=3", "ZERO_STAGE=2", "zero"),
            ("--num_gpus 8", "--num_gpus 4", "world size"),
            ("--num_gpus 8", "--include localhost:0,1,2,3,4,5,6,7", ""),
            ("--dtype bf16", "--dtype fp16", "precision"),
            ("--master_port 29600", "--master_port 29601", ""),
            ("OUTPUT=./output", "OUTPUT=./second", ""),
            ("   --gradient_accumulation_steps 1 \\\n", "", ""),
            ("NCCL_ALGO=Ring ", "NCCL_ALGO=Tree ", "NCCL_ALGO"),
            ("--weight_decay 0. ", "--weight_decay 0.0 ", ""),
            ("--num_warmup_steps 0", "--num_warmup_steps 100", "warmup"),
        ),
    ),
    Family(
        "mpi",
        {
            "run.sh": "mpirun --allow-run-as-root -np 8 -H localhost:8 -x NCCL_DEBUG=INFO -x NVIDIA_TF32_OVERRIDE=0 "
            "--bind-to none python3 train.py --precision bf16-mixed --batch-size 32 --lr=3e-4 --log-dir ./logs\n"
        },
        (
            ("-np 8 -H localhost:8", "-n 8 -H a:4,b:4", ""),
            ("-np 8", "-np 4", "world size"),
            ("NVIDIA_TF32_OVERRIDE=0", "NVIDIA_TF32_OVERRIDE=1", "TF32"),
            ("NCCL_DEBUG=INFO", "NCCL_DEBUG=WARN", ""),
            ("--precision bf16-mixed", "--precision 16-mixed", "precision"),
            (
                "mpirun --allow-run-as-root -np 8 -H localhost:8 -x NCCL_DEBUG=INFO -x NVIDIA_TF32_OVERRIDE=0 "
                "--bind-to none python3",
                "NVIDIA_TF32_OVERRIDE=0 torchrun --nnodes 2 --nproc-per-node 4",
                "",
            ),
            ("--log-dir ./logs", "--log-dir ./l2", ""),
        ),
    ),
    Family(
        "slurm and fsdp",
        {
            "run.slurm": """#!/bin/bash
#SBATCH --job-name=fsdp
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
#SBATCH --time=01:00:00
export OMP_NUM_THREADS=8
export CUBLAS_WORKSPACE_CONFIG=:4096:8
srun --jobid $SLURM_JOBID bash -c "accelerate launch --config_file fsdp.yaml \\
  --machine_rank \\$SLURM_PROCID --main_process_port 29500 train.py --lr 2e-5 --seed 7"
""",
            "fsdp.yaml": """compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_offload_params: false
machine_rank: 0
mixed_precision: bf16
num_machines: 2
num_processes: 8
use_cpu: false
""",
        },
        (
            ("OMP_NUM_THREADS=8", "OMP_NUM_THREADS=4", "threads"),
            ("CUBLAS_WORKSPACE_CONFIG=:4096:8", "CUBLAS_WORKSPACE_CONFIG=:16:8", "CUBLAS"),
            ("mixed_precision: bf16", "mixed_precision: fp16", "precision"),
            ("mixed_precision: bf16", "mixed_precision: 'no'", "precision"),
            ("num_processes: 8", "num_processes: 16", "world size"),
            ("FULL_SHARD", "SHARD_GRAD_OP", "shard"),
            ("machine_rank: 0", "machine_rank: 1", ""),
            ("--main_process_port 29500", "--main_process_port 29501", ""),
            ("--time=01:00:00", "--time=02:00:00", ""),
            ("--lr 2e-5", "--lr 5e-5", "learning rate"),
            ("--seed 7", "--seed 8", "seed"),
            ("job-name=fsdp", "job-name=other", ""),
        ),
    ),
    Family(
        "loops",
        {
            "run.sh": """#!/bin/bash
declare -a SEEDS=(1 2)
EPOCHS=${EPOCHS:-3}
for seed in "${SEEDS[@]}"; do
  for lr in 1e-4 5e-5; do
    # torchrun old.py --lr 7
    torchrun --standalone --nproc_per_node=2 run_glue.py --seed "$seed" --learning_rate $lr --fp16 \\
      --num_train_epochs $EPOCHS --output_dir "out/$seed-$lr" --run_name r1
  done
done
"""
        },
        (
            ("5e-5", "3e-5", "learning rate"),
            ("SEEDS=(1 2)", "SEEDS=(1 3)", "seed"),
            ("1e-4 5e-5", "2e-4 5e-5", "learning rate"),
            ("EPOCHS:-3", "EPOCHS:-4", "epochs"),
            ("run_name r1", "run_name r2", ""),
            ("old.py --lr 7", "old.py --lr 8", ""),
            ("1e-4 5e-5", "0.0001 0.00005", ""),
            ("--nproc_per_node=2", "--nproc-per-node 2", ""),
        ),
    ),
)

PAIRS = (
    Pair(
        "two files",
        {"base.yaml": "lr: 1e-4\nbf16: true\n", "run.sh": "python pretrain.py --lr 1e-5"},
        {"base.yaml": "lr: 1e-4\nbf16: true\n", "run.sh": "python pretrain.py --lr 1e-4"},
        "learning rate",
    ),
    Pair(
        "two YAML files",
        {"a.yaml": "training: {seed: 1, lr: 0.1}", "b.yaml": "training: {seed: 2}"},
        {"a.yaml": "training: {seed: 1, lr: 0.1}", "b.yaml": "training: {seed: 1}"},
        "seed",
    ),
    Pair(
        "moved to another file",
        {"run.sh": "torchrun --nproc_per_node 4 t.py --lr 1e-4 --seed 3 --bf16"},
        {"run.sh": "torchrun --nproc_per_node 4 t.py --bf16",
         "c.yaml": "training:\n  learning_rate: 0.0001\n  seed: 3\n"},
        "",
    ),
    Pair(
        "a variable instead of an option",
        {"run.sh": "accelerate launch --mixed_precision bf16 --num_processes 2 t.py"},
        {"run.sh": "export ACCELERATE_MIXED_PRECISION=bf16\naccelerate launch --num_processes 2 t.py"},
        "",
    ),
    Pair(
        "another value in a variable",
        {"run.sh": "accelerate launch --mixed_precision bf16 --num_processes 2 t.py"},
        {"run.sh": "export ACCELERATE_MIXED_PRECISION=fp16\naccelerate launch --num_processes 2 t.py"},
        "precision",
    ),
    Pair(
        "json of deepspeed instead of options",
        {"run.sh": "deepspeed --num_gpus 2 t.py --deepspeed ds.json",
         "ds.json": '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 4}'},
        {"run.sh": "accelerate launch --num_processes 2 --use_deepspeed --zero_stage 2 --mixed_precision bf16 "
         "--gradient_accumulation_steps 4 t.py"},
        "",
    ),
    Pair(
        "json of deepspeed with another accumulation",
        {"run.sh": "deepspeed --num_gpus 2 t.py --deepspeed ds.json",
         "ds.json": '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 4}'},
        {"run.sh": "accelerate launch --num_processes 2 --use_deepspeed --zero_stage 2 --mixed_precision bf16 "
         "--gradient_accumulation_steps 2 t.py"},
        "accumulation",
    ),
    Pair("world size in the environment", {"run.sh": "export WORLD_SIZE=8\npython t.py"},
         {"run.sh": "export WORLD_SIZE=16\npython t.py"}, "world size"),
    Pair("a branch that is taken", {"run.sh": "AMP=1\nif [ $AMP -eq 1 ]; then X='--bf16'; fi\npython t.py $X"},
         {"run.sh": "AMP=0\nif [ $AMP -eq 1 ]; then X='--bf16'; fi\npython t.py $X"}, "precision"),
    Pair("a function that launches",
         {"run.sh": 'go() {\n  torchrun --nproc_per_node 4 t.py --lr "$1"\n}\ngo 1e-3\n'},
         {"run.sh": 'go() {\n  torchrun --nproc_per_node 4 t.py --lr "$1"\n}\ngo 1e-4\n'}, "learning rate"),
)  # fmt: skip
