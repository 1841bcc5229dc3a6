"""Save a model in several formats, break copies of it, and let ``msprobe ckpt_compare`` say what differs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import demo_summary
import torch
import torch.distributed.checkpoint as dcp
from demo import ByteModel

State = dict[str, torch.Tensor]
OUTPUT = os.path.join(demo_summary.OUTPUT, "checkpoints")


def exchanged(state: State) -> None:
    """Put the first block where the second is."""
    for name in [each for each in state if each.startswith("blocks.0.")]:
        other = name.replace("blocks.0.", "blocks.1.")
        state[name], state[other] = state[other], state[name]


def flipped(state: State) -> None:
    """Flip one bit of one number."""
    name = next(each for each in state if each.endswith(".weight") and state[each].ndim == 2)
    state[name].view(torch.int32)[1, 2] ^= 1 << 22


def lost(state: State) -> None:
    """Leave out one parameter."""
    del state[list(state)[-1]]


FAULTS: dict[str, Callable[[State], None]] = {"exchanged": exchanged, "flipped": flipped, "lost": lost}


def main() -> None:
    """Save everything, and compare it with the file of the model."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    os.makedirs(OUTPUT)
    torch.manual_seed(0)
    state = {name: each.detach() for name, each in ByteModel().state_dict().items()}
    first = os.path.join(OUTPUT, "model.pt")
    torch.save(state, first)
    dcp.save({"model": state}, checkpoint_id=os.path.join(OUTPUT, "distributed"), no_dist=True)
    torch.save({name: each.bfloat16() for name, each in state.items()}, os.path.join(OUTPUT, "bfloat16.pt"))
    for name, change in FAULTS.items():
        changed = {each: tensor.clone() for each, tensor in state.items()}
        change(changed)
        torch.save(changed, os.path.join(OUTPUT, f"{name}.pt"))
    for other in ("distributed", "bfloat16.pt", *(f"{name}.pt" for name in FAULTS)):
        arguments = ["ckpt_compare", first, os.path.join(OUTPUT, other)]
        print("\nmsprobe", *arguments, "\n", flush=True)
        subprocess.run([sys.executable, "-m", "probe.api.cli", *arguments], check=False)


if __name__ == "__main__":
    main()
