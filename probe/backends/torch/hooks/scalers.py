"""Gradient scalers of PyTorch, and a word among the ranks, for watching a training."""

from __future__ import annotations

import datetime
import weakref
from collections.abc import Sequence
from types import FunctionType
from typing import Any, Callable, cast

import torch
import torch.distributed as dist

from probe.backends.shared import scalers, training
from probe.backends.shared.patching import Handles
from probe.backends.torch.guards import passed_over, unobserved
from probe.backends.torch.hooks.torch_compile import readable_swap
from probe.common.interfaces import Handle


def scaler_step() -> FunctionType | None:
    """The method by which a gradient scaler lets an optimizer make its step."""
    # torch.amp has it from 2.3 on; the one for CUDA inherits it.
    step = getattr(torch.cuda.amp.GradScaler, "step", None)
    return step if isinstance(step, FunctionType) else None


def attach_scalers(note: scalers.Note) -> Handle:
    """Tell `note` of every optimizer's step that goes through a gradient scaler."""
    function = scaler_step()
    if function is None:
        return Handles([])

    @passed_over
    def step(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = body(*args, **kwargs)
        scalers.tell_of(note, lambda: scalers.of_step(args, kwargs))
        return result

    return training.OutermostCalls(function, readable_swap, step)


_MOST_SECONDS = 600
"""For a rank that does not answer."""


class _Group:
    """The process group of the question, with its own connections: none of its calls can meet one of the training.

    Made where all ranks come by, and in the host's memory: of a device, a call that is not answered ends the program.
    """

    def __init__(self) -> None:
        self._of: weakref.ref[Any] | None = None
        self._group: weakref.ref[Any] | None = None
        self._flags = torch.zeros(0, dtype=torch.int32)

    def largest(self, numbers: Sequence[int]) -> list[int]:
        group = self._made()
        if len(self._flags) != len(numbers):
            self._flags = torch.zeros(len(numbers), dtype=torch.int32)
        for at, number in enumerate(numbers):
            self._flags[at] = number
        dist.all_reduce(self._flags, op=dist.ReduceOp.MAX, group=group)
        return [int(flag) for flag in self._flags.tolist()]

    def leave(self) -> None:
        """Close the connections, so that the other ranks do not wait for this one."""
        group = None if self._group is None else self._group()
        self._group = None
        if group is not None:
            dist.destroy_process_group(group)

    def _made(self) -> Any:
        world = dist.group.WORLD
        # Not held: a group that its program has destroyed must be able to go.
        group = None if self._group is None else self._group()
        if group is None or self._of is None or self._of() is not world:
            group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=_patience(world)))
            self._of, self._group = weakref.ref(world), weakref.ref(group)
        return group


_group = _Group()


def largest_over_ranks(numbers: Sequence[int]) -> list[int]:
    """See `probe.backends.protocol.Training`."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return list(numbers)
    try:
        return cast("list[int]", unobserved(_group.largest, numbers))
    except Exception:
        _group.leave()
        raise


def _patience(world: Any) -> float:
    """Seconds: so few that the training does not lose its own patience with the ranks that wait here."""
    found = [float(_MOST_SECONDS)]
    for device in world._device_types:
        options = getattr(world._get_backend(device), "options", None)
        timeout = getattr(options, "_timeout", None)
        if isinstance(timeout, datetime.timedelta):
            found.append(timeout.total_seconds() / 2)
    return min(found)
