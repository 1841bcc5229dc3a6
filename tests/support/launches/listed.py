"""Pairs of launch settings that the table of settings was made with."""

# A pair is a line.
# ruff: noqa: E501

from __future__ import annotations

from launches.pair import Family, Pair

_ACCELERATE = "accelerate launch --mixed_precision bf16 --num_processes 4 run.py --learning_rate 1e-5\n"
_DEEPSPEED_JSON = """{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 4,
  "gradient_clipping": 1.0,
  "bf16": {"enabled": true},
  "fp16": {"enabled": false, "loss_scale": 0},
  "zero_optimization": {"stage": 2, "overlap_comm": true},
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 500}},
  "steps_per_print": 10,
  "wall_clock_breakdown": false
}
"""
FAMILIES = (
    Family("accelerate", {"run.sh": _ACCELERATE}, (
        ("bf16", "fp16", "precision"), ("bf16", "no", "precision"), ("bf16", "fp8", "precision"),
        ("num_processes 4", "num_processes 8", "world size"), ("num_processes 4", "num-processes=4", ""),
        ("--mixed_precision bf16", "--mixed-precision=bf16", ""), ("--mixed_precision bf16 ", "", "precision"),
        ("1e-5", "0.00001", ""), ("1e-5", "2e-5", "learning rate"),
        ("accelerate launch --mixed_precision bf16 --num_processes 4 run.py",
         "torchrun --nproc-per-node 4 run.py --bf16", ""),
        ("accelerate launch --mixed_precision bf16 --num_processes 4 run.py",
         "torchrun --nproc_per_node=2 --nnodes=2 run.py --bf16 True", ""),
        ("accelerate launch --mixed_precision bf16 --num_processes 4 run.py",
         "deepspeed --num_gpus=8 run.py --bf16", "world size"),
        ("launch", "launch --main_process_port 29501", ""), ("launch", "launch --debug --quiet", ""),
        ("launch", "launch --gradient_accumulation_steps 2", "accumulation"),
        ("launch", "launch --gradient_accumulation_steps 1", ""),
        ("launch", "launch --use_deepspeed --zero_stage 3", "zero"), ("launch", "launch --dynamo_backend inductor", "compilation"),
        ("accelerate launch", "python -m accelerate.commands.launch", ""),
        ("run.py", "run.py --report_to wandb --logging_dir logs", ""), ("run.py", "run.py --use_flash_attn", "attention"),
    )),
    Family("torchrun", {"run.sh": """export OMP_NUM_THREADS=4
BATCH=8
torchrun \\
  --nnodes 2 \\
  --nproc_per_node ${GPUS:-8} \\
  --rdzv_id 7 --rdzv_backend c10d --rdzv_endpoint $HOST:29400 \\
  run_clm.py \\
  --model_name_or_path gpt2 --dataset_name wikitext \\
  --per_device_train_batch_size $BATCH \\
  --gradient_accumulation_steps 4 --bf16 True --fp16 False \\
  --learning_rate 5e-5 --lr_scheduler_type cosine --warmup_steps 100 --weight_decay 0.01 \\
  --adam_beta1 0.9 --adam_beta2 0.98 --max_grad_norm 1.0 --seed 42 --block_size 1024 \\
  --num_train_epochs 3 --output_dir /tmp/out --overwrite_output_dir --logging_steps 10 --save_total_limit 2
"""}, (
        ("GPUS:-8", "GPUS:-4", "world size"), ("--nnodes 2", "--nnodes 1", "world size"),
        ("--nnodes 2 \\\n  --nproc_per_node ${GPUS:-8}", "--nnodes=1 \\\n  --nproc-per-node=16", ""),
        ("--rdzv_id 7", "--rdzv-id 9 --max-restarts 3", ""), ("29400", "29411", ""), ("BATCH=8", "BATCH=4", "batch"),
        ("steps 4", "steps 8", "accumulation"), ("--bf16 True --fp16 False", "--bf16 False --fp16 True", "precision"),
        ("--bf16 True --fp16 False", "--bf16", ""), ("cosine", "linear", "schedule"), ("warmup_steps 100", "warmup_steps 200", "warmup"),
        ("--weight_decay 0.01", "--weight-decay 1e-2", ""), ("--weight_decay 0.01", "--weight_decay 0.1", "weight decay"),
        ("beta2 0.98", "beta2 0.999", "beta"), ("--max_grad_norm 1.0", "--max_grad_norm 0.5", "clip"),
        ("--seed 42", "--seed 43", "seed"), ("--block_size 1024", "--block_size 2048", "sequence length"),
        ("gpt2", "gpt2-medium", "model"), ("epochs 3", "epochs 4", "epochs"), ("/tmp/out", "/tmp/other", ""),
        ("--save_total_limit 2", "--save_total_limit 5 --save_strategy steps", ""),
        ("--logging_steps 10", "--logging_steps 1 --run_name a", ""),
        ("OMP_NUM_THREADS=4", "OMP_NUM_THREADS=8", "threads"), ("export OMP", "export NCCL_DEBUG=INFO OMP", ""),
        ("torchrun", "python3 -m torch.distributed.run", ""), ("wikitext", "c4", "data"),
    )),
    Family("deepspeed", {"run.sh": "deepspeed --num_gpus 4 train.py --deepspeed --deepspeed_config ds.json\n",
                         "ds.json": _DEEPSPEED_JSON}, (
        ('"stage": 2', '"stage": 3', "zero"), ("--num_gpus 4", "--include localhost:4,5,6,7", ""),
        ("--num_gpus 4", "--num-gpus=2", "world size"), ('"bf16": {"enabled": true}', '"bf16": {"enabled": false}', "precision"),
        ('"train_micro_batch_size_per_gpu": 2', '"train_micro_batch_size_per_gpu": 4', "batch"),
        ('steps": 4', 'steps": 8', "accumulation"), ('clipping": 1.0', 'clipping": 0.3', "clip"), ("3e-5", "0.00003", ""),
        ("3e-5", "1e-5", "learning rate"), ("0.999", "0.95", "beta"), ("3e-7", "0.1", "weight decay"),
        ('"steps_per_print": 10', '"steps_per_print": 1', ""), ("breakdown\": false", "breakdown\": true", ""),
        ("AdamW", "Lamb", "optimizer"), ("500", "50", "warmup"),
    )),
    Family("megatron", {"run.sh": """#!/bin/bash
export NCCL_ALGO=Ring NVTE_FLASH_ATTN=1
GPUS_PER_NODE=8
NUM_NODES=1
TP_SIZE=2
MBS=1; GBS=32
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE   # per node
    --nnodes $NUM_NODES
    --master_addr localhost --master_port 6000
)
MODEL_PARALLEL_ARGS=(--tensor-model-parallel-size $TP_SIZE --pipeline-model-parallel-size 2)
TRAINING_ARGS=(
    --micro-batch-size $MBS
    --global-batch-size $GBS
    --train-iters $((1024 / GBS))
    --lr 6.0e-5 --min-lr 6.0e-6 --lr-decay-style cosine
    --clip-grad 1.0 --bf16 --seed 1234
)
if [ $NUM_NODES -gt 1 ]; then
    TRAINING_ARGS+=(--overlap-grad-reduce)
fi
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py "${MODEL_PARALLEL_ARGS[@]}" ${TRAINING_ARGS[@]} \\
    --tensorboard-dir tb --save ckpt --log-interval 100
"""}, (
        ("TP_SIZE=2", "TP_SIZE=1", "tensor parallel"), ("size 2)", "size 4)", "pipeline"), ("GBS=32", "GBS=64", "global batch"),
        ("MBS=1", "MBS=2", "batch"), ("1024 / GBS", "512 / (GBS / 2)", ""), ("1024 / GBS", "2048 / GBS", "steps"),
        ("--bf16", "--fp16", "precision"), ("--bf16 ", "", "precision"), ("PER_NODE=8", "PER_NODE=16", "world size"),
        ("NUM_NODES=1", "NUM_NODES=2", "world size"), ("--seed 1234", "--seed 1", "seed"), ("--save ckpt", "--save other", ""),
        ("--log-interval 100", "--log-interval 1", ""), ("port 6000", "port 6007", ""), ("NCCL_ALGO=Ring", "NCCL_ALGO=Tree", "NCCL_ALGO"),
        ("NVTE_FLASH_ATTN=1", "NVTE_FLASH_ATTN=0", "NVTE_FLASH_ATTN"), ("--min-lr 6.0e-6", "--min-lr 0", "learning rate"),
        ("--clip-grad 1.0", "--clip-grad 1.0 --sequence-parallel", "sequence parallel"),
        ("--clip-grad 1.0", "--clip-grad 1.0 --context-parallel-size 1 --expert-model-parallel-size 1", ""),
        ("--clip-grad 1.0", "--clip-grad 1.0 --recompute-activations", ""), ("# per node", "# every node", ""),
    )),
    Family("llamafactory", {"run.sh": "FORCE_TORCHRUN=1 NPROC_PER_NODE=4 llamafactory-cli train sft.yaml\n", "sft.yaml": """
### model
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
### method
stage: sft
finetuning_type: lora
lora_rank: 8
### dataset
dataset: identity,alpaca_en_demo
cutoff_len: 2048
preprocessing_num_workers: 16
### output
output_dir: saves/llama3
logging_steps: 10
plot_loss: true
overwrite_output_dir: true
### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
"""}, (
        ("NPROC_PER_NODE=4", "NPROC_PER_NODE=8", "world size"), ("lora_rank: 8", "lora_rank: 64", "lora_rank"),
        ("cutoff_len: 2048", "cutoff_len: 1024", "sequence length"), ("saves/llama3", "saves/b", ""), ("bf16: true", "fp16: true", "precision"),
        ("bf16: true", "pure_bf16: true", "precision"), ("steps: 8", "steps: 4", "accumulation"), ("1.0e-4", "1e-4", ""),
        ("plot_loss: true", "plot_loss: false", ""), ("ddp_timeout: 180000000", "ddp_timeout: 180", ""),
        ("train sft.yaml", "train sft.yaml learning_rate=1e-5", "learning rate"), ("identity,", "", "data"),
        ("warmup_ratio: 0.1", "warmup_ratio: 0.03", "warmup"), ("### train", "deepspeed: ds_z3.json", "deepspeed"),
    )),
    Family("accelerate YAML", {"run.sh": "accelerate launch --config_file acc.yaml train.py --lr 1e-4", "acc.yaml": """
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 2, gradient_accumulation_steps: 1, offload_optimizer_device: none}
machine_rank: 0
main_process_port: 29500
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""}, (
        ("zero_stage: 2", "zero_stage: 3", "zero"), ("steps: 1", "steps: 2", "accumulation"), ("num_processes: 8", "num_processes: 4", "world size"),
        ("mixed_precision: bf16", "mixed_precision: fp16", "precision"), ("29500", "29999", ""), ("rank: 0", "rank: 1", ""),
        ("--config_file acc.yaml", "--config_file acc.yaml --num_processes 4", "world size"),
        ("num_machines: 1", "num_machines: 2", ""), ("type: DEEPSPEED", "type: FSDP", "distributed"),
    )),
    Family("shell", {"run.sh": """GPU=8
case "$GPU" in
  8) LR=1e-4 ;;
  *) LR=2e-4 ;;
esac
[ -n "$EXTRA" ] || SEED=7
: "${WD:=0.1}"
cat > ds.json <<EOT
{"zero_optimization": {"stage": 1}, "gradient_accumulation_steps": $GPU}
EOT
CMD="deepspeed --num_gpus ${GPU} train.py --lr $LR --seed $SEED --wd $WD --deepspeed_config ds.json"
echo $CMD
eval $CMD
"""}, (
        ("8) LR=1e-4", "8) LR=3e-4", "learning rate"), ("2e-4 ;;", "5e-4 ;;", ""), ("SEED=7", "SEED=8", "seed"), ("WD:=0.1", "WD:=0.2", "weight decay"),
        ('"stage": 1', '"stage": 2', "zero"), ("steps\": $GPU", "steps\": 2", "accumulation"), ("GPU=8", "GPU=8  # all", ""),
        ("echo $CMD", "echo $CMD; mkdir -p out --mode 700", ""), ("eval $CMD", "$CMD", ""), ("eval $CMD", "for s in 1 2; do eval $CMD; done", ""),
    )),
)  # fmt: skip
PAIRS = (
    Pair("one key in two files", {"a.yaml": "lr: 1e-4\n", "train.sh": "export LR=1\npython p.py --lr 1e-4 --tensor-model-parallel-size 2"},
         {"a.yaml": "lr: 1e-4\n", "train.sh": "export LR=1\npython p.py --lr 1e-5 --tensor-model-parallel-size 2"}, "learning rate"),
    Pair("exchanged", {"a.yaml": "lr: 1e-4\n", "train.sh": "python p.py --lr 1e-5"},
         {"a.yaml": "lr: 1e-5\n", "train.sh": "python p.py --lr 1e-4"}, "learning rate"),
    Pair("one process", {"a.sh": "python t.py --lr 1"}, {"a.sh": "torchrun --nproc_per_node 1 t.py --lr 1"}, ""),
    Pair("one process and two", {"a.sh": "python t.py --lr 1"}, {"a.sh": "torchrun --nproc_per_node 2 t.py --lr 1"}, "world size"),
    Pair("micro batches of Megatron and accumulation", {"a.sh": "torchrun --nproc_per_node 4 t.py --global-batch-size 32 --micro-batch-size 2 --bf16"},
         {"a.sh": "torchrun --nproc_per_node 4 t.py --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16"}, ""),
    Pair("a loop of seeds", {"a.sh": "for s in 1 2; do python t.py --seed $s; done"}, {"a.sh": "for s in 1 3; do python t.py --seed $s; done"}, "seed"),
    Pair("a branch that nobody knows", {"a.sh": "if [ -n \"$1\" ]; then L=1; else L=2; fi\npython t.py --lr $L"},
         {"a.sh": "if [ -n \"$1\" ]; then L=3; else L=2; fi\npython t.py --lr $L"}, "learning rate"),
)  # fmt: skip
