"""Train a small transformer, whole or split over ranks as Megatron splits it, and record its first step.

``split_training.py FOLDER RANK PORT TP PP VPP DP ORDER CHANGE DTYPE`` is one rank; what it records goes to FOLDER.
Every way of splitting computes the same, from the same weights and the same data, so that what is recorded can be held
against the run of one process. CHANGE is ``none``, ``sequence`` for sequence parallelism, or the name of a parameter of
which the last of its pieces is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

HIDDEN, HEADS, WORDS, LENGTH, SAMPLES, LAYERS, MICRO_BATCHES = 8, 4, 12, 5, 2, 4, 2
CHANGE, DTYPE = sys.argv[9], getattr(torch, sys.argv[10])


class Parallel:
    """The groups of this rank, and its place in them."""

    def __init__(self, rank: int, tp: int, pp: int, vpp: int, dp: int, order: str) -> None:
        self.rank, self.tp, self.pp, self.vpp, self.dp = rank, tp, pp, vpp, dp
        sizes, rest = {"tp": tp, "pp": pp, "dp": dp}, rank
        self.index: dict[str, int] = {}
        strides, stride = {}, 1
        for name in order.split("-"):
            if name in sizes:
                self.index[name], rest = rest % sizes[name], rest // sizes[name]
                strides[name] = stride
                stride *= sizes[name]
        self.groups: dict[str, Any] = {}
        self.members: dict[str, list[int]] = {}
        if stride == 1:
            return
        # Every rank makes all groups, in the same order.
        for name in ("tp", "dp", "pp"):
            for other in range(stride):
                members = [other + index * strides[name] for index in range(sizes[name])]
                if (other // strides[name]) % sizes[name] == 0 and sizes[name] > 1:
                    group = dist.new_group(members)
                    if rank in members:
                        self.groups[name], self.members[name] = group, members

    def neighbour(self, step: int) -> int:
        """The rank that many stages further on."""
        return self.members["pp"][(self.index["pp"] + step) % self.pp]


class Copied(torch.autograd.Function):
    """Nothing in the forward pass; the sum of gradients in the backward pass."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Summed(torch.autograd.Function):
    """The sum over ranks in the forward pass; nothing in the backward pass."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        value = value.clone()
        dist.all_reduce(value, group=group)
        return value

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class Gathered(torch.autograd.Function):
    """The pieces of all ranks side by side along the last dimension."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any, index: int) -> torch.Tensor:
        ctx.place = (index * value.shape[-1], value.shape[-1])
        pieces = [torch.empty_like(value) for _ in range(dist.get_world_size(group))]
        dist.all_gather(pieces, value.contiguous(), group=group)
        return torch.cat(pieces, dim=-1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return grad.narrow(-1, *ctx.place).contiguous(), None, None


class Scattered(torch.autograd.Function):
    """The rows of the sum over ranks that this one keeps."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return kept_of_sum(value, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return rows_of_all(grad, ctx.group), None


class Collected(torch.autograd.Function):
    """The rows of all ranks."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return rows_of_all(value, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return kept_of_sum(grad, ctx.group), None


def kept_of_sum(value: torch.Tensor, group: Any) -> torch.Tensor:
    kept = value.new_zeros(value.shape[0] // dist.get_world_size(group), *value.shape[1:])
    dist.reduce_scatter_tensor(kept, value.contiguous(), group=group)
    return kept


def rows_of_all(value: torch.Tensor, group: Any) -> torch.Tensor:
    whole = value.new_zeros(value.shape[0] * dist.get_world_size(group), *value.shape[1:])
    dist.all_gather_into_tensor(whole, value.contiguous(), group=group)
    return whole


IS_SEQUENCE = CHANGE == "sequence"
"""Whether ranks that share a layer keep some rows each of what is between its linear functions."""


def weights_of(name: str, *shape: int) -> torch.Tensor:
    """The whole of a parameter, the same however it is split."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)) * 7919 + len(name))
    return torch.randn(*shape, generator=generator) * 0.3


class Split(nn.Module):
    """A module with parts of the parameters that the whole model has."""

    def __init__(self, name: str, parallel: Parallel) -> None:
        super().__init__()
        self.full_name, self.parallel = name, parallel

    def part(self, name: str, dim: int | None, *shape: int) -> nn.Parameter:
        whole = weights_of(f"{self.full_name}.{name}", *shape)
        index = self.parallel.index["tp"]
        piece = whole if dim is None else whole.chunk(self.parallel.tp, dim)[index]
        if f"{self.full_name}.{name}" == CHANGE and index == self.parallel.tp - 1:
            piece = piece * 1.1
        return nn.Parameter(piece.contiguous())

    @property
    def group(self) -> Any:
        return self.parallel.groups.get("tp")


class ColumnParallelLinear(Split):
    def __init__(self, name: str, parallel: Parallel, inputs: int, outputs: int) -> None:
        super().__init__(name, parallel)
        self.weight = self.part("weight", 0, outputs, inputs)
        self.bias = self.part("bias", 0, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.group is not None:
            x = (Collected if IS_SEQUENCE else Copied).apply(x, self.group)
        return F.linear(x, self.weight, self.bias)


class RowParallelLinear(Split):
    def __init__(self, name: str, parallel: Parallel, inputs: int, outputs: int) -> None:
        super().__init__(name, parallel)
        self.weight = self.part("weight", 1, outputs, inputs)
        self.bias = self.part("bias", None, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, self.weight)
        if self.group is not None:
            y = (Scattered if IS_SEQUENCE else Summed).apply(y, self.group)
        return y + self.bias


class VocabParallelEmbedding(Split):
    def __init__(self, name: str, parallel: Parallel) -> None:
        super().__init__(name, parallel)
        self.weight = self.part("weight", 0, WORDS, HIDDEN)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        if self.group is None:
            return F.embedding(words, self.weight)
        count = self.weight.shape[0]
        inside = words - self.parallel.index["tp"] * count
        is_other = (inside < 0) | (inside >= count)
        found = F.embedding(inside.masked_fill(is_other, 0), self.weight)
        return (Scattered if IS_SEQUENCE else Summed).apply(found.masked_fill(is_other.unsqueeze(-1), 0.0), self.group)


class Attention(Split):
    def __init__(self, name: str, parallel: Parallel) -> None:
        super().__init__(name, parallel)
        self.qkv = ColumnParallelLinear(f"{name}.qkv", parallel, HIDDEN, 3 * HIDDEN)
        self.proj = RowParallelLinear(f"{name}.proj", parallel, HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        projected = self.qkv(x)
        samples, length, _ = projected.shape
        heads = HEADS // self.parallel.tp
        query, key, value = projected.view(samples, length, heads, -1).transpose(1, 2).chunk(3, dim=-1)
        scores = torch.softmax(query @ key.transpose(-2, -1), dim=-1)
        return self.proj((scores @ value).transpose(1, 2).reshape(samples, length, -1))


class Mlp(Split):
    def __init__(self, name: str, parallel: Parallel) -> None:
        super().__init__(name, parallel)
        self.fc1 = ColumnParallelLinear(f"{name}.fc1", parallel, HIDDEN, 2 * HIDDEN)
        self.fc2 = RowParallelLinear(f"{name}.fc2", parallel, 2 * HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Layer(Split):
    def __init__(self, name: str, parallel: Parallel) -> None:
        super().__init__(name, parallel)
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.attention, self.mlp = Attention(f"{name}.attention", parallel), Mlp(f"{name}.mlp", parallel)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(Split):
    def __init__(self, name: str, parallel: Parallel, layers: range) -> None:
        super().__init__(name, parallel)
        self.layers = nn.ModuleList(Layer(f"{name}.layers.{number}", parallel) for number in layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Model(Split):
    """What one chunk of layers is: the first embeds words, the last says how probable each is."""

    def __init__(self, parallel: Parallel, place: int) -> None:
        super().__init__("model", parallel)
        places = parallel.pp * parallel.vpp
        count = LAYERS // places
        self.is_first, self.is_last = place == 0, place == places - 1
        if self.is_first:
            self.embedding = VocabParallelEmbedding("embedding", parallel)
        self.decoder = Decoder("decoder", parallel, range(place * count, (place + 1) * count))
        if self.is_last:
            self.norm = nn.LayerNorm(HIDDEN)
            self.output = ColumnParallelLinear("output", parallel, HIDDEN, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.decoder(self.embedding(x) if self.is_first else x)
        if not self.is_last:
            return x
        logits = self.output(self.norm(x))
        if self.group is not None:
            logits = Gathered.apply(logits, self.group, self.parallel.index["tp"])
        return logits


class Training:
    """The schedules of Megatron: one forward and one backward pass in turn, interleaved where stages have chunks."""

    def __init__(self, parallel: Parallel) -> None:
        self.parallel = parallel
        self.stage = parallel.index["pp"]
        places = [chunk * parallel.pp + self.stage for chunk in range(parallel.vpp)]
        self.chunks = [Model(parallel, place).to(DTYPE) for place in places]
        self.taken: dict[tuple[int, int], torch.Tensor] = {}
        self.returned: dict[tuple[int, int], torch.Tensor] = {}
        self.sent: list[Any] = []

    def schedule(self) -> Iterator[tuple[str, int, int]]:
        """Pass, chunk and micro batch, in the order in which this stage computes them."""
        forward = [("forward", chunk, batch) for chunk in range(self.parallel.vpp) for batch in range(MICRO_BATCHES)]
        backward = [("backward", chunk, batch) for chunk in reversed(range(self.parallel.vpp))
                    for batch in range(MICRO_BATCHES)]  # fmt: skip
        warm_up = min(len(forward), self.parallel.pp - self.stage - 1 + (self.parallel.vpp - 1) * self.parallel.pp)
        yield from forward[:warm_up]
        for one, other in zip(forward[warm_up:], backward):
            yield from (one, other)
        yield from backward[len(forward) - warm_up :]

    def run(self) -> None:
        passes: dict[str, Callable[[int, int], None]] = {"forward": self.forward, "backward": self.backward}
        for kind, chunk, batch in self.schedule():
            passes[kind](chunk, batch)
        for request in self.sent:
            request.wait()

    def place(self, chunk: int) -> int:
        return chunk * self.parallel.pp + self.stage

    def is_last(self, chunk: int) -> bool:
        return self.place(chunk) == self.parallel.pp * self.parallel.vpp - 1

    def forward(self, chunk: int, batch: int) -> None:
        if self.place(chunk) == 0:
            taken = words(self.parallel.index["dp"], batch)
        else:
            taken = torch.zeros(SAMPLES, LENGTH, HIDDEN)
            self.receive(taken, -1)
            taken.requires_grad_()
        returned = self.chunks[chunk](taken)
        self.taken[chunk, batch] = taken
        if self.is_last(chunk):
            logits = returned if DTYPE is torch.float32 else returned.float()
            returned = F.cross_entropy(logits.flatten(0, 1), words(self.parallel.index["dp"], batch + 10).flatten())
        else:
            self.send(returned.detach(), 1)
        self.returned[chunk, batch] = returned

    def backward(self, chunk: int, batch: int) -> None:
        grad = None
        if not self.is_last(chunk):
            grad = torch.zeros(SAMPLES, LENGTH, HIDDEN)
            self.receive(grad, 1)
        torch.autograd.backward(self.returned.pop((chunk, batch)), grad)
        given = self.taken.pop((chunk, batch)).grad
        if given is not None:
            self.send(given, -1)

    @property
    def in_batches(self) -> bool:
        """Whether sends and receives are in batches, as they are by default in Megatron; in one of the runs."""
        return self.parallel.tp > 1

    def receive(self, into: torch.Tensor, step: int) -> None:
        peer, group = self.parallel.neighbour(step), self.parallel.groups["pp"]
        if not self.in_batches:
            dist.recv(into, src=peer, group=group)
            return
        for request in dist.batch_isend_irecv([dist.P2POp(dist.irecv, into, peer, group)]):
            request.wait()

    def send(self, value: torch.Tensor, step: int) -> None:
        peer, group = self.parallel.neighbour(step), self.parallel.groups["pp"]
        if self.in_batches:
            self.sent += dist.batch_isend_irecv([dist.P2POp(dist.isend, value.contiguous(), peer, group)])
        elif self.parallel.vpp == 1 and self.stage == 1:
            # The stage before waits for it.
            dist.send(value, dst=peer, group=group)
        else:
            self.sent.append(dist.isend(value.contiguous(), dst=peer, group=group))


def words(copy: int, batch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * copy + batch)
    return torch.randint(WORDS, (SAMPLES, LENGTH), generator=generator)


def main() -> None:
    folder, rank, port, tp, pp, vpp, dp, order = Path(sys.argv[1]), *map(int, sys.argv[2:8]), sys.argv[8]
    torch.set_num_threads(1)
    size = tp * pp * dp
    if size > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    parallel = Parallel(rank, tp, pp, vpp, dp, order)
    training = Training(parallel)
    debugger = PrecisionDebugger(dump_path=str(folder), task="statistics", level="mix")
    debugger.start(training.chunks)
    training.run()
    for name, parameter in (named for chunk in training.chunks for named in chunk.named_parameters()):
        if dp > 1:
            dist.all_reduce(parameter.grad, group=parallel.groups["dp"])
        if IS_SEQUENCE and ("norm" in name or name.endswith(("fc2.bias", "proj.bias"))):
            dist.all_reduce(parameter.grad, group=parallel.groups["tp"])
    debugger.stop()
    debugger.step()
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()
    print("> trained")


main()
