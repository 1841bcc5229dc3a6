"""A program that shards a model with FSDP; two of it, with a folder and their rank, talk through gloo."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def shard(rank: int, folder: str) -> None:
    """Save a model whole, as a distributed checkpoint, and as a file for each of two ranks."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=2)
    torch.manual_seed(0)
    # Seven rows do not split into two equal parts.
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))
    torch.save(model.state_dict(), f"{folder}/whole{rank}.pt")
    mesh = init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    state = get_model_state_dict(model)
    dcp.save({"model": state}, checkpoint_id=f"{folder}/dcp")
    torch.save(state, f"{folder}/ranks/model_world_size_2_rank_{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    shard(int(sys.argv[2]), sys.argv[1])
