"""Operations moved by roundings inside: a function of several operations rounds more than its inputs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from probe.backends.torch.guards import skipped, with_mode
from probe.backends.torch.internals import TorchDispatchMode
from probe.common.operations.function import COMPUTING_NOTHING, EXACT
from probe.common.operations.lookup import function as known_function


@cache
def _computes(name: str) -> bool:
    known = known_function(name)
    return known.rounding != EXACT and not known.has(*COMPUTING_NOTHING)


class _Moved(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Multiplies every float that an operation of ATen returns by 1 + `unit` or 1 - `unit`, drawn from `seed`.

    It works below the gradient graph, so that what is saved for the backward is moved as well: of a softmax the
    backward sees the result that was rounded.
    """

    def __init__(self, unit: float, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._unit, self._generator = unit, torch.Generator().manual_seed(seed)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would import the compiler, which takes seconds, to keep it away; `skipped` does."""
        return False

    @skipped
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        if computes(function):
            move(output, self._unit, self._generator)
        return output


def computes(function: Any) -> bool:
    """True if an operation of ATen computes new numbers, and so rounds."""
    return not function.is_view and function.namespace == "aten" and _computes(function.overloadpacket.__name__)


def floats_of(output: Any) -> Iterator[torch.Tensor]:
    """The tensors of floating-point numbers that an operation returned."""
    for tensor in output if isinstance(output, (tuple, list)) else (output,):
        if isinstance(tensor, torch.Tensor) and (tensor.is_floating_point() or tensor.is_complex()):
            yield tensor


def move(output: Any, unit: float, generator: torch.Generator) -> None:
    """Multiply every float that an operation returned by 1 + `unit` or 1 - `unit`, drawn on the CPU."""
    for tensor in floats_of(output):
        parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        signs = torch.randint(0, 2, parts.shape, generator=generator, dtype=parts.dtype)
        parts.mul_(1 + unit * (2 * signs.to(parts.device) - 1))


class _Inside(threading.local):
    """The moves that are made on this thread."""

    moved: _Moved | None = None


_inside = _Inside()


@contextlib.contextmanager
def rounding_inside(unit: float, seed: int) -> Iterator[None]:
    """Calls and gradients that are evaluated inside are moved."""
    before, _inside.moved = _inside.moved, _Moved(unit, seed)
    try:
        yield
    finally:
        _inside.moved = before


def moving() -> contextlib.AbstractContextManager[Any]:
    """The moves asked for by `rounding_inside`, around one call: no mode of the caller acts there otherwise."""
    return contextlib.nullcontext() if _inside.moved is None else with_mode(_inside.moved)
