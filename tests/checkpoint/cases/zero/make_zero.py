"""Makes the recorded checkpoints beside it, with DeepSpeed 0.19.8 on the CPU, two ranks: ZeRO stages 1, 2 and 3.

    python make_zero.py

The model is trained for two steps; `weights.npz` has what `deepspeed.utils.zero_to_fp32` makes of each.
"""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as mp

HERE = Path(__file__).parent
STAGES = (1, 2, 3)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(7, 5)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(5, 5) for _ in range(2))
        self.norm = torch.nn.LayerNorm(5)
        self.head = torch.nn.Linear(5, 7, bias=False)
        self.frozen = torch.nn.Parameter(torch.arange(3.0), requires_grad=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(self.norm(x)).float().sum() + self.frozen.sum()


def train(rank, stage, port):
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        DS_ACCELERATOR="cpu",
    )
    import deepspeed

    # It would be compiled, for a minute. The package has torch itself under the name of its module.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    torch.manual_seed(3)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_allow_untested_optimizer": True,
    }
    deepspeed.init_distributed("gloo")
    net = Net()
    engine, *_ = deepspeed.initialize(
        model=net, model_parameters=[each for each in net.parameters() if each.requires_grad], config=config
    )
    for step in range(2):
        engine.backward(engine(torch.tensor([[step, rank, 3]])))
        engine.step()
    engine.save_checkpoint(str(HERE / f"stage{stage}"), tag="step2")


def main():
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    for stage in STAGES:
        folder = HERE / f"stage{stage}"
        shutil.rmtree(folder, ignore_errors=True)
        mp.spawn(train, (stage, 29500 + stage), 2)
        for script in folder.glob("zero_to_*.py"):
            script.unlink()
        state = get_fp32_state_dict_from_zero_checkpoint(str(folder))
        np.savez(HERE / f"stage{stage}.npz", **{name: each.detach().float().numpy() for name, each in state.items()})


if __name__ == "__main__":
    sys.exit(main())
