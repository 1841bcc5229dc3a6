"""Further pairs of launch settings, written after the first table of settings and judged once before it was changed."""

# A pair is a line.
# ruff: noqa: E501

from __future__ import annotations

from typing import Union

from launches.pair import Family, Pair

_DS = '{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "fp16": {"enabled": true, "initial_scale_power": 16}, ' \
      '"zero_optimization": {"stage": 1}, "flops_profiler": {"enabled": false}, "wandb": {"project": "a"}}'  # fmt: skip
_T = "torchrun --nproc_per_node 8 t.py"
_SIDE = Union[str, dict[str, str]]
ROWS: tuple[tuple[_SIDE, _SIDE, str], ...] = (
    # One setting under several names and launchers.
    ("accelerate launch --num_processes=8 --num_machines 2 t.py --lr 1", "torchrun --nnodes 2 --nproc_per_node 4 t.py --lr 1", ""),
    ("deepspeed --num_nodes 2 --num_gpus 4 t.py --lr 1", "deepspeed --num_nodes 1 --num_gpus 8 t.py --lr 1", ""),
    ("python -m torch.distributed.launch --use_env --nproc_per_node=8 t.py --lr 1", f"{_T} --lr 1", ""),
    ("mpirun -np 8 python t.py --lr 1", "srun -N2 -n8 python t.py --lr 1", ""),
    ("mpiexec -n 8 python t.py --lr 1", "srun --ntasks=16 python t.py --lr 1", "world size"),
    ("srun --nodes=2 --ntasks-per-node=4 python t.py --lr 1", "horovodrun -np 8 python t.py --lr 1", ""),
    ("CUDA_VISIBLE_DEVICES=0,1,2,3 deepspeed t.py --lr 1", "deepspeed --num_gpus 4 t.py --lr 1", ""),
    ("CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun --nproc_per_node 4 t.py", "torchrun --nproc_per_node 4 t.py", ""),
    ("CUDA_VISIBLE_DEVICES=0,1 python t.py --lr 1", "CUDA_VISIBLE_DEVICES=0 python t.py --lr 1", "CUDA_VISIBLE_DEVICES"),
    ("deepspeed --include localhost:0,1 t.py", "deepspeed --include localhost:0,1,2 t.py", "world size"),
    ("docker run --gpus all -e NCCL_ALGO=Ring img torchrun --nproc_per_node 8 t.py", "NCCL_ALGO=Ring torchrun --nproc_per_node 8 t.py", ""),
    ("msrun --worker_num=8 --local_worker_num=8 t.py --lr 1", "mpirun -n 8 python t.py --lr 1", ""),
    ("composer -n 4 t.py --lr 1", "composer -n 2 t.py --lr 1", "world size"),
    ("export NNODES=2\ntorchrun --nnodes $NNODES --nproc_per_node 8 t.py", "torchrun --nnodes 1 --nproc_per_node 8 t.py", "world size"),
    ("export WORLD_SIZE=2\ntorchrun --nnodes $WORLD_SIZE --nproc_per_node 4 t.py", _T, ""),
    ("ray job submit --address http://x:8265 -- python3 -m verl.trainer.main_ppo trainer.nnodes=1 trainer.n_gpus_per_node=8",
     "python3 -m verl.trainer.main_ppo trainer.nnodes=2 trainer.n_gpus_per_node=4", ""),
    ("uv run accelerate launch --num_processes 2 t.py", "accelerate launch --num_processes 4 t.py", "world size"),
    ("tune run --nproc_per_node 4 full_finetune_distributed --config x.yaml optimizer.lr=2e-5",
     "tune run --nproc_per_node 2 full_finetune_distributed --config x.yaml optimizer.lr=2e-5", "world size"),
    ("numactl --cpunodebind=0 torchrun --nproc_per_node 8 t.py", _T, ""),
    ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\nsrun python t.py --lr 1",
     "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\nsrun python t.py --lr 1", "world size"),
    # Precision.
    ("python t.py --fp16", "python t.py --precision 16", ""), ("python t.py --precision bf16-mixed", "python t.py --bf16", ""),
    ("python t.py --precision bf16-mixed", "python t.py --precision bf16-true", "precision"),
    ("accelerate launch --mixed_precision no t.py", "accelerate launch t.py", ""), ("python t.py --bf16 false", "python t.py", ""),
    ("python t.py --dtype float32", "python t.py --dtype=fp32", ""), ("python t.py --dtype float32", "python t.py --dtype half", "precision"),
    ("composer -n 8 t.py precision=amp_bf16", "composer -n 8 t.py precision=amp_fp16", "precision"),
    ("python t.py --fp8-format hybrid --bf16", "python t.py --bf16", "FP8"), ("python t.py --tf32 true", "python t.py --tf32 false", "TF32"),
    ("python t.py --torch_dtype auto", "python t.py", ""), ("python t.py --load_in_4bit", "python t.py", "quant"),
    ("python t.py --bf16 --attention-softmax-in-fp32", "python t.py --bf16", "softmax"), ("python t.py --amp", "python t.py", "mixed precision"),
    ("python t.py --bf16 --accumulate-allreduce-grads-in-fp32", "python t.py --bf16", "reduc"),
    # Parallel sizes and sharding.
    (f"{_T} --tensor-model-parallel-size 1", _T, ""), (f"{_T} --tp 2", f"{_T} --tensor-parallel-size 2", ""),
    (f"{_T} --expert-model-parallel-size 4", f"{_T} --expert-model-parallel-size 2", "expert"),
    (f"{_T} --context-parallel-size 2", f"{_T} --ulysses-sequence-parallel-size 4", "context"),
    (f"{_T} --deepspeed examples/ds_z3_config.json", f"{_T} --deepspeed examples/ds_z2_config.json", "zero"),
    (f"{_T} --zero_stage 0", _T, ""), (f"{_T} --fsdp 'full_shard auto_wrap'", f"{_T} --fsdp 'shard_grad_op auto_wrap'", "shard"),
    ("accelerate launch --use_fsdp --fsdp_sharding_strategy 1 t.py", "accelerate launch --use_fsdp --fsdp_sharding_strategy FULL_SHARD t.py", ""),
    (f"{_T} --use-distributed-optimizer", _T, "distributed optimizer"), (f"{_T} --num-layers-per-virtual-pipeline-stage 2", _T, "virtual"),
    # Environment.
    ("export NVIDIA_TF32_OVERRIDE=0\npython t.py", "python t.py", "TF32"), ("export HCCL_DETERMINISTIC=true\npython t.py", "python t.py", "determin"),
    ("export NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=eth0\npython t.py", "python t.py", ""), ("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\npython t.py", "python t.py", ""),
    ("export ACCELERATE_MIXED_PRECISION=bf16\naccelerate launch t.py", "export ACCELERATE_MIXED_PRECISION=no\naccelerate launch t.py", "precision"),
    ("export ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4\naccelerate launch t.py", "accelerate launch --gradient_accumulation_steps 4 t.py", ""),
    ("export FSDP_SHARDING_STRATEGY=FULL_SHARD\naccelerate launch t.py", "export FSDP_SHARDING_STRATEGY=NO_SHARD\naccelerate launch t.py", "shard"),
    ("export PYTHONHASHSEED=0\npython t.py", "export PYTHONHASHSEED=1\npython t.py", "PYTHONHASHSEED"),
    ("export LR=1e-4 SEED=1\npython t.py", "export LR=1e-4 SEED=2\npython t.py", "seed"), ("env OMP_NUM_THREADS=2 python t.py", "env OMP_NUM_THREADS=4 python t.py", "thread"),
    ("export HCCL_BUFFSIZE=200\npython t.py", "export HCCL_BUFFSIZE=400\npython t.py", ""), ("export CUBLAS_WORKSPACE_CONFIG=:4096:8\npython t.py", "python t.py", "cuBLAS"),
    ("export NCCL_PROTO=Simple\npython t.py", "export NCCL_PROTO=LL\npython t.py", "protocol"), ("export LCCL_DETERMINISTIC=1\npython t.py", "python t.py", "LCCL"),
    ("export WANDB_PROJECT=a TOKENIZERS_PARALLELISM=false\npython t.py", "export WANDB_PROJECT=b\npython t.py", ""),
    # Shell.
    ("LR=$(echo 1e-4)\npython t.py --lr $LR", "python t.py --lr 0.0001", ""), ("N=$(expr 2 \\* 4)\npython t.py --batch-size $N", "python t.py --batch-size 8", ""),
    ("python t.py \\\r\n  --lr 1e-4 \\\r\n  --seed 1\r\n", "python t.py --lr 1e-4 --seed 1", ""), ("python t.py --lr '1e-4' \"--seed\" 1", "python t.py --lr=1e-4 --seed=1", ""),
    ("set -euo pipefail\nreadonly LR=1e-4\nlocal_lr=\"${LR}\"\npython t.py --lr \"${local_lr}\"", "python t.py --lr 1e-4", ""),
    ("if [[ \"$(hostname)\" == a* ]]; then P=1; fi\npython t.py --lr 1", "python t.py --lr 1", ""),
    ("OPTS=\"\"\nOPTS+=\" --bf16\"\nOPTS+=\" --lr 3\"\npython t.py $OPTS", "python t.py --lr 3 --bf16", ""),
    ("declare -A X\nfor m in a b; do\n  python t.py --model $m\ndone", "for m in a c; do python t.py --model $m; done", "model"),
    ("for i in 1 2 3\ndo\npython t.py --seed $((i * 10))\ndone", "for i in 10 20 30\ndo\npython t.py --seed $i\ndone", ""),
    ("BF16=true\nif [ \"$BF16\" = true ]; then A=(--bf16); else A=(--fp16); fi\npython t.py \"${A[@]}\"", "python t.py --bf16", ""),
    ("BF16=false\n[[ $BF16 == true ]] && A=--bf16 || A=--fp16\npython t.py $A", "python t.py --bf16", "precision"),
    ("run() { torchrun --nproc_per_node 2 \"$@\"; }\nrun t.py --lr 1", "torchrun --nproc_per_node 2 t.py --lr 2", "learning rate"),
    ("# python t.py --lr 5\npython t.py --lr 1 # --lr 3", "python t.py --lr 1", ""), ("cat <<EOF\npython t.py --lr 5\nEOF\npython t.py --lr 1", "python t.py --lr 1", ""),
    ("python t.py --lr 1 2>&1 | tee log.txt", "nohup python t.py --lr 1 > x.log 2>&1 &", ""), ("python a.py --lr 1\npython b.py --lr 2", "python a.py --lr 1\npython b.py --lr 3", "learning rate"),
    ("N=8\nwhile true; do python t.py --lr 1 --n $N; break; done", "N=9\nwhile true; do python t.py --lr 1 --n $N; break; done", "asked for"),
    ("yolo train data=coco.yaml lr0=0.01 --a 1 --b 2", "yolo train data=coco.yaml lr0=0.02 --a 1 --b 2", "asked for"),
    # Files.
    ({"run.sh": _T, "ds.json": _DS}, {"run.sh": _T, "ds.json": _DS.replace('"stage": 1', '"stage": 2')}, "zero"),
    ({"run.sh": _T, "ds.json": _DS}, {"run.sh": _T, "ds.json": _DS.replace('"a"', '"b"')}, ""),
    ({"run.sh": _T, "ds.json": _DS}, {"run.sh": f"{_T} --fp16 --per_device_train_batch_size 4 --gradient_accumulation_steps 1 --zero_stage 1"}, ""),
    ({"run.sh": f"{_T} --config c.yaml", "c.yaml": "trainer: {devices: 4, num_nodes: 2, precision: bf16-mixed, default_root_dir: a}"},
     {"run.sh": f"{_T} --config c.yaml", "c.yaml": "trainer: {devices: 8, num_nodes: 1, precision: bf16-mixed, default_root_dir: b}"}, ""),
    ({"c.yaml": "trainer: {devices: 4, accumulate_grad_batches: 2}"}, {"c.yaml": "trainer: {devices: 4, accumulate_grad_batches: 4}"}, "accumulation"),
    ({"c.yaml": "train:\n  lr: 1e-4\n  batch_size: 8\n"}, {"c.json": '{"learning_rate": 0.0001, "bs": 8}'}, ""),
    ({"c.yaml": "train:\n  lr: 1e-4\n"}, {"c.toml": "[train]\nlr = 0.0002\n"}, "learning rate"),
    ({"a.yaml": "seed: 1\nlr: 2\n", "b.yaml": "lr: 3\n"}, {"a.yaml": "seed: 1\nlr: 2\n", "b.yaml": "lr: 4\n"}, "learning rate"),
    ({"a.yaml": "lr: 2\n", "b.yaml": "lr: 3\n"}, {"a.yaml": "lr: 3\n", "b.yaml": "lr: 3\n"}, "learning rate"),
    ({"a.yaml": "lr: 2\n", "b.yaml": "lr: 3\n"}, {"a.yaml": "lr: 2\n", "b.yaml": "lr: 3\n"}, ""),
    ({"a.yaml": "optimizer: {type: AdamW, lr: 1}\nscheduler: {type: cosine}\n"}, {"a.yaml": "optimizer: {type: SGD, lr: 1}\nscheduler: {type: cosine}\n"}, "optimizer"),
    ({"a.yaml": "actor: {lr: 1}\ncritic: {lr: 2}\n"}, {"a.yaml": "actor: {lr: 2}\ncritic: {lr: 1}\n"}, "learning rate"),
    ({"a.yaml": "base_model: a/b\ndatasets:\n  - path: x/y\n    type: alpaca\nwandb_project: p\n"}, {"a.yaml": "base_model: a/b\ndatasets:\n  - path: x/z\n    type: alpaca\nwandb_project: q\n"}, "datasets"),
    ({"a.yaml": "context: {mode: 0, max_device_memory: 58GB}\nparallel: {full_batch: true}\n"}, {"a.yaml": "context: {mode: 0, max_device_memory: 30GB}\nparallel: {full_batch: true}\n"}, ""),
    ({"a.yaml": "context: {mode: 0, deterministic: 'ON'}\n"}, {"a.yaml": "context: {mode: 0, deterministic: 'OFF'}\n"}, "determin"),
    ({"a.yaml": "exp_manager: {exp_dir: a, name: x}\nmodel: {micro_batch_size: 2, optim: {lr: 1}}\n"}, {"a.yaml": "exp_manager: {exp_dir: b, name: y}\nmodel: {micro_batch_size: 2, optim: {lr: 1}}\n"}, ""),
    ({"a.yaml": "lr: 1\nbf16: true\nlogging: {level: info}\ncheckpoint: {save_interval: 3}\n"}, {"a.yaml": "lr: 1.0\nbf16: yes\nlogging: {level: debug}\ncheckpoint: {save_interval: 4}\n"}, ""),
    ({"r.sh": "llamafactory-cli train a.yaml", "a.yaml": "learning_rate: 1.0e-4\n"}, {"r.sh": "llamafactory-cli train a.yaml learning_rate=1e-4", "a.yaml": "learning_rate: 1.0e-4\n"}, ""),
    # The script's own arguments.
    ("python t.py --dropout 0.1", "python t.py --dropout 0.0", "dropout"), ("python t.py --train-iters 10", "python t.py --max_steps 10", ""),
    ("python t.py --lr 1 --num_workers 4 --pin_memory", "python t.py --lr 1 --num_workers 8", ""), ("python t.py --data-path /a/x", "python t.py --data-path /b/c/x", ""),
    ("python t.py --shuffle true", "python t.py --shuffle false", "data order"), ("python t.py --exp_name a --save_dir b --tb_log_dir c", "python t.py --exp_name d --save_dir e --tb_log_dir f", ""),
    ("python t.py --optim adamw_torch", "python t.py --optim adafactor", "optimizer"), ("python t.py --eps 1e-8", "python t.py", ""), ("python t.py --betas 0.9 0.999", "python t.py --beta1 0.9 --beta2 0.999", ""),
    ("python t.py --no-masked-softmax-fusion", "python t.py", "kernel"), ("python t.py --resume_from_checkpoint a/ckpt-10", "python t.py", "checkpoint"),
    ("python t.py --attn_implementation sdpa", "python t.py --attn_implementation eager", "attention"), ("python t.py --gradient_checkpointing true --lr 1", "python t.py --lr 1", ""),
    ("python t.py --hidden-size 64 --ffn-hidden-size 256", "python t.py --hidden-size 64 --ffn-hidden-size 128", "asked for"), ("python t.py --label_smoothing 0.1", "python t.py", "loss"),
    ("python t.py --local_rank 0 --master_port 1", "python t.py --local_rank 1 --master_port 2", ""), ("python t.py --eval_steps 5 --per_device_eval_batch_size 4", "python t.py --eval_steps 6", ""),
    ("python t.py --log_level info --tracker_project_name a --with_tracking", "python t.py", ""), ("python t.py --lr_scheduler_type cosine", "python t.py --lr-decay-style cosine", ""),
    ("python t.py --max_grad_norm 1.0", "python t.py --clip-grad 1", ""), ("python t.py --min_lr 0", "python t.py", ""), ("python t.py --seed 42 --data_seed 1", "python t.py --seed 42 --data_seed 2", "seed"),
)  # fmt: skip


def _pair(number: int, row: tuple[_SIDE, _SIDE, str]) -> Pair:
    one, other = ({"run.sh": side} if isinstance(side, str) else side for side in row[:2])
    return Pair(f"{number}", one, other, row[2])


FAMILIES: tuple[Family, ...] = ()
PAIRS = tuple(_pair(number, row) for number, row in enumerate(ROWS))
