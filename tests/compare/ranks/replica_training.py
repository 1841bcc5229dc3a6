"""Small trainings of several ranks, one after the other, each with a fault in what ranks have in common.

Usage: replica_training.py FOLDER RANK PORT WORLD NAME...; each training is dumped into FOLDER/NAME.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from msprobe.pytorch import PrecisionDebugger

REAL_ALL_REDUCE, REAL_BROADCAST = dist.all_reduce, dist.broadcast
REAL_SCATTER, REAL_GATHER = dist.reduce_scatter_tensor, dist.all_gather_into_tensor
DistributedDataParallel = nn.parallel.DistributedDataParallel


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.first, self.last = nn.Embedding(12, 16), nn.Linear(16, 24), nn.Linear(24, 5)

    def forward(self, tokens: Any) -> Any:
        return self.last(torch.tanh(self.first(self.embed(tokens)))).float()


def no_reduction(tensor: Any, *args: Any, **kwargs: Any) -> None:
    """A communication library that hands back what went in."""


def mean(tensor: Any, *args: Any, **kwargs: Any) -> None:
    REAL_ALL_REDUCE(tensor)
    tensor /= dist.get_world_size()


def twice(tensor: Any, *args: Any, **kwargs: Any) -> None:
    REAL_ALL_REDUCE(tensor)
    REAL_ALL_REDUCE(tensor)


def group_of_two(tensor: Any, *args: Any, **kwargs: Any) -> None:
    REAL_ALL_REDUCE(tensor, group=PAIR)


def scattered_mean(output: Any, tensor: Any, *args: Any, **kwargs: Any) -> None:
    REAL_SCATTER(output, tensor)
    output /= dist.get_world_size()


def own_only(output: Any, tensor: Any, *args: Any, **kwargs: Any) -> None:
    output.copy_(tensor.repeat(dist.get_world_size(), 1))


LIBRARY: dict[str, Callable[..., None]] = {
    "library without a reduction": no_reduction,
    "library with a mean": mean,
    "library that sums twice": twice,
    "library with another group": group_of_two,
}
PARTS = ("library that scatters a mean", "library that gathers nothing")
OF_DDP = (
    "ddp", "clipped", "clipped in parts", "micro-batches", "accumulated", "one is a sum", "bfloat16", "no_sync",
    "ignored", "reduced twice", "divided twice", "same data",
)  # fmt: skip
PAIR: Any = None


def reduce_gradients(name: str, net: nn.Module, world: int) -> None:
    """What a program does by itself between its backward and the step of its optimizer."""
    for key, parameter in net.named_parameters():
        gradient = parameter.grad
        if gradient is None:
            continue
        if name in ("by hand", "scattered", "another seed", "one is forgotten", *LIBRARY, *PARTS):
            if name == "one is forgotten" and key == "first.weight":
                continue
            dist.all_reduce(gradient)
            gradient /= world
        elif name in ("sum", "reduced twice"):
            dist.all_reduce(gradient)
        elif name == "one is a sum" and key == "first.weight":
            gradient *= world
        elif name in ("divided twice", "accumulated"):
            gradient /= world
        elif name == "another group" and dist.get_rank() < 2:
            dist.all_reduce(gradient, group=PAIR)
    if name == "clipped":
        nn.utils.clip_grad_norm_(net.parameters(), 0.01)
    if name == "clipped in parts":
        for part in net.children():
            nn.utils.clip_grad_norm_(part.parameters(), 0.001)


def train(name: str, folder: Path, rank: int, world: int) -> None:
    torch.manual_seed(7 + rank * (name == "another seed"))
    net: nn.Module = Net().to(torch.bfloat16 if name == "bfloat16" else torch.float32)
    if name == "split":
        parts = torch.Generator().manual_seed(rank)
        net.embed.requires_grad_(False)
        for layer in (net.first, net.last):
            nn.init.normal_(layer.weight, generator=parts)
            nn.init.zeros_(layer.bias)
    if name == "ignored":
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["first.weight"])
    model = DistributedDataParallel(net) if name in OF_DDP else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(100 + rank * (name != "same data"))
    dist.all_reduce = LIBRARY.get(name, REAL_ALL_REDUCE)
    dist.broadcast = no_reduction if name == "library without a broadcast" else REAL_BROADCAST
    dist.reduce_scatter_tensor = scattered_mean if name == "library that scatters a mean" else REAL_SCATTER
    dist.all_gather_into_tensor = own_only if name == "library that gathers nothing" else REAL_GATHER
    debugger = PrecisionDebugger(dump_path=str(folder / name), task="statistics", level="mix")
    for _ in range(2):
        debugger.start(model)
        parts = {"micro-batches": 2, "accumulated": world}.get(name, 1)
        for part in range(parts):
            tokens = torch.randint(12, (6, 4), generator=generator)
            loss_parts = 1 if name == "accumulated" else parts
            if name == "no_sync" or part + 1 < parts:
                with model.no_sync():
                    (model(tokens).square().mean() / loss_parts).backward()
            else:
                (model(tokens).square().mean() / loss_parts).backward()
        reduce_gradients(name, net, world)
        optimizer.step()
        gathered = [torch.zeros(5) for _ in range(world)]
        own = model(tokens).detach().float().mean((0, 1))
        dist.all_gather(gathered, own)
        dist.broadcast(own, 0)
        optimizer.zero_grad()
        if "scatter" in name or "gathers" in name:
            part, whole = torch.zeros(4, 16), torch.zeros(4 * world, 16)
            dist.reduce_scatter_tensor(part, torch.randn(4 * world, 16, generator=generator))
            dist.all_gather_into_tensor(whole, part)
        debugger.stop()
        debugger.step()
    PrecisionDebugger.reset()
    dist.all_reduce, dist.broadcast = REAL_ALL_REDUCE, REAL_BROADCAST
    dist.reduce_scatter_tensor, dist.all_gather_into_tensor = REAL_SCATTER, REAL_GATHER


def main() -> None:
    global PAIR
    folder, rank, port, world = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    PAIR = dist.new_group([0, 1])
    for name in sys.argv[5:]:
        train(name, folder, rank, world)
    dist.barrier()
    dist.destroy_process_group()
    print("> trained")


if __name__ == "__main__":
    main()
