"""All that the ranks of a generated training do together, and the marks where a fault can go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from generated.cases import Case
from generated.planting import FAULTS, planted

Event = tuple[Any, ...]
"""What a rank did, in order: ``("site", number, is of a module, has a backward)``, ``("use", number)``,
``("begin", key)``, ``("end", key)``, ``("put", key)`` or ``("take", key)``; calls with the same key belong together."""


@dataclass(frozen=True)
class Plant:
    """What goes wrong on one rank in one step; numbers count what the rank comes by in a step."""

    sites: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Kind and name of the fault at a site, by the number of the site."""
    used: frozenset[int] = frozenset()
    """The uses of the module whose weight is bad."""
    overflow: tuple[Any, ...] | None = None
    """The key of the communication whose sum is beyond the type."""
    is_in_data: bool = False
    """Whether the batch is bad."""


NOTHING = Plant()


class Run:
    """What one rank does in one step: every communication and every place for a fault passes through here."""

    def __init__(self, case: Case, rank: int, groups: Mapping[tuple[int, ...], Any], plant: Plant = NOTHING) -> None:
        self.case, self.rank, self.plant = case, rank, plant
        self._groups = groups
        self.events: list[Event] = []
        self.used: list[nn.Module] = []
        """The modules that were called, in order."""
        self._sites = 0
        self._keys: Counter[tuple[Any, ...]] = Counter()

    # --- where faults go

    def site(self, h: Tensor, has_backward: bool = True) -> Tensor:
        """A place for a fault in a function."""
        return self._at_site(h, False, has_backward)

    def module_site(self, module: nn.Module, h: Tensor) -> Tensor:
        """A place for a fault in a module, which asks `inside` of the run."""
        number = self._sites
        if number in self.plant.sites:
            found: Tensor = planted(module, h)
            return found
        return module(h)  # type: ignore[no-any-return]

    def inside(self, h: Tensor) -> Tensor:
        return self._at_site(h, True, True)

    def _at_site(self, h: Tensor, is_module: bool, has_backward: bool) -> Tensor:
        number = self._sites
        self._sites += 1
        self.events.append(("site", number, is_module, has_backward))
        if number not in self.plant.sites:
            return h
        kind, name = self.plant.sites[number]
        return FAULTS[kind][name](h)

    def use(self, module: nn.Module, *args: Any) -> Any:
        """Call a module with weights."""
        number = len(self.used)
        self.used.append(module)
        self.events.append(("use", number))
        return planted(module, *args) if number in self.plant.used else module(*args)

    def first(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the first function that the batch goes into."""
        return planted(function, *args, **kwargs) if self.plant.is_in_data else function(*args, **kwargs)

    # --- communication

    def all_reduce(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        with self._together("all_reduce", ranks, True) as call:
            call(dist.all_reduce, tensor)

    def begin_all_reduce(self, tensor: Tensor, ranks: tuple[int, ...]) -> Callable[[], None]:
        """Begin to add up; what is returned waits for the sum."""
        together = self._together("all_reduce", ranks, True)
        work = together(dist.all_reduce, tensor, async_op=True)
        return lambda: together.end(work)

    def add_unseen(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        """Add up as DistributedDataParallel does, of which nothing is recorded."""
        key = self._key("unseen", ranks, False)
        self.events.append(("begin", key))
        self._groups[ranks].allreduce([tensor]).wait()
        self.events.append(("end", key))

    def reduce(self, tensor: Tensor, destination: int, ranks: tuple[int, ...]) -> None:
        with self._together("reduce", ranks, True) as call:
            call(dist.reduce, tensor, dst=destination)

    def reduce_scatter(self, tensor: Tensor, ranks: tuple[int, ...]) -> Tensor:
        own = torch.empty(tensor.numel() // len(ranks), dtype=tensor.dtype)
        with self._together("reduce_scatter", ranks, True) as call:
            call(dist.reduce_scatter, own, list(tensor.chunk(len(ranks))), inputs=1)
        return own

    def all_gather(self, tensor: Tensor, ranks: tuple[int, ...]) -> list[Tensor]:
        if self.case.is_tagged:
            parts = [torch.empty_like(tensor) for _ in ranks]
            with self._together("all_gather", ranks) as call:
                call(dist.all_gather, parts, tensor)
            return parts
        whole = torch.empty((len(ranks) * tensor.shape[0], *tensor.shape[1:]), dtype=tensor.dtype)
        with self._together("all_gather", ranks) as call:
            call(dist.all_gather_into_tensor, whole, tensor)
        return list(whole.chunk(len(ranks)))

    def all_to_all(self, tensor: Tensor, ranks: tuple[int, ...]) -> Tensor:
        received = torch.empty_like(tensor)
        with self._together("all_to_all", ranks) as call:
            call(dist.all_to_all_single, received, tensor)
        return received

    def broadcast(self, tensor: Tensor, source: int, ranks: tuple[int, ...]) -> None:
        """Send to all of a group; for the source it is the first that its batch goes into."""
        with self._together("broadcast", ranks) as call:
            call(dist.broadcast, tensor, is_first=self.rank == source, src=source)

    def send_to_shards(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        """Send what is no batch."""
        with self._together("broadcast", ranks) as call:
            call(dist.broadcast, tensor, src=ranks[0])

    def send(self, tensor: Tensor, to: int, what: str) -> Callable[[], None]:
        """Send; what is returned waits until it has gone."""
        self.events.append(("put", self._key("transfer", (self.rank, to), what)))
        tag = self._tag(what)
        if self.case.transfer == "blocking":
            dist.send(tensor, to, tag=tag)
            return lambda: None
        if self.case.transfer == "later":
            work = dist.isend(tensor, to, tag=tag)
            return lambda: work.wait()
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, to, tag=tag)])
        return lambda: [work.wait() for work in works] and None

    def receive(self, shape: tuple[int, ...], source: int, what: str, meanwhile: Callable[[], Any]) -> Tensor:
        """Receive; `meanwhile` is done while an asynchronous receive is under way."""
        received = torch.empty(shape, dtype=getattr(torch, self.case.dtype))
        tag = self._tag(what)
        if self.case.transfer == "blocking":
            dist.recv(received, source, tag=tag)
        elif self.case.transfer == "later":
            work = dist.irecv(received, source, tag=tag)
            meanwhile()
            work.wait()
        else:
            for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, received, source, tag=tag)]):
                work.wait()
        self.events.append(("take", self._key("transfer", (source, self.rank), what)))
        return received

    def _tag(self, what: str) -> int:
        return ("forward", "backward").index(what) if self.case.is_tagged else 0

    def _together(self, kind: str, ranks: tuple[int, ...], adds: bool = False) -> _Together:
        return _Together(self, self._key(kind, ranks, adds), self._groups[ranks])

    def _key(self, *what: Any) -> tuple[Any, ...]:
        number = self._keys[what]
        self._keys[what] += 1
        return (*what, number)


class _Together:
    """One collective call: makes it, and writes down when it began and when its result was there."""

    def __init__(self, run: Run, key: tuple[Any, ...], group: Any) -> None:
        self._run, self._key, self._group = run, key, group

    def __enter__(self) -> _Together:
        return self

    def __exit__(self, *error: object) -> None:
        self._run.events.append(("end", self._key))

    def __call__(
        self, function: Callable[..., Any], *tensors: Any, inputs: int = 0, is_first: bool = False, **kwargs: Any
    ) -> Any:
        """Call `function`: the position of its input in `tensors`, and whether a batch goes into it first."""
        self._run.events.append(("begin", self._key))
        kwargs["group"] = self._group
        if self._key != self._run.plant.overflow:
            return self._run.first(function, *tensors, **kwargs) if is_first else function(*tensors, **kwargs)
        given = tensors[inputs]
        for tensor in given if isinstance(given, list) else [given]:
            tensor.copy_(torch.full_like(tensor, torch.finfo(tensor.dtype).max * 0.6))
        return planted(function, *tensors, **kwargs)

    def end(self, work: Any) -> None:
        work.wait()
        self._run.events.append(("end", self._key))


# --- communication that gradients go through


class _Copied(torch.autograd.Function):
    """The same on every shard; gradients of all shards are added up."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, run: Run, ranks: tuple[int, ...]) -> Tensor:
        ctx.run, ctx.ranks = run, ranks
        return h.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        whole = gradient.clone()
        ctx.run.all_reduce(whole, ctx.ranks)
        return whole, None, None


class _Summed(torch.autograd.Function):
    """What the shards computed, added up."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, run: Run, ranks: tuple[int, ...]) -> Tensor:
        whole = h.clone()
        run.all_reduce(whole, ranks)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None, None


class _Gathered(torch.autograd.Function):
    """What the shards computed, side by side in the last dimension."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, run: Run, ranks: tuple[int, ...]) -> Tensor:
        ctx.own, ctx.parts = ranks.index(run.rank), len(ranks)
        return torch.cat(run.all_gather(h.contiguous(), ranks), dim=-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient.chunk(ctx.parts, dim=-1)[ctx.own].contiguous(), None, None


class _Exchanged(torch.autograd.Function):
    """A part for each rank of the group, and one from each."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, run: Run, ranks: tuple[int, ...]) -> Tensor:
        ctx.run, ctx.ranks = run, ranks
        return run.all_to_all(h.contiguous(), ranks)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.run.all_to_all(gradient.contiguous(), ctx.ranks), None, None


def copied(h: Tensor, run: Run, ranks: tuple[int, ...]) -> Tensor:
    return _applied(_Copied, h, run, ranks)


def summed(h: Tensor, run: Run, ranks: tuple[int, ...]) -> Tensor:
    return _applied(_Summed, h, run, ranks)


def gathered(h: Tensor, run: Run, ranks: tuple[int, ...]) -> Tensor:
    return _applied(_Gathered, h, run, ranks)


def exchanged(h: Tensor, run: Run, ranks: tuple[int, ...]) -> Tensor:
    return _applied(_Exchanged, h, run, ranks)


def _applied(function: Any, h: Tensor, run: Run, ranks: tuple[int, ...]) -> Tensor:
    result: Tensor = h if len(ranks) == 1 else function.apply(h, run, ranks)
    return result
