"""Operations moved by roundings inside: a function of several operations rounds more than its inputs."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from probe.backends.torch.execution.values import dtype_name
from probe.backends.torch.guards import skipped, with_mode
from probe.backends.torch.internals import TorchDispatchMode
from probe.common.containers import found_in
from probe.common.numerics.formats import unit_roundoff
from probe.common.numerics.rounding import lost_in_sum
from probe.common.operations.function import COMPUTING_NOTHING, DOT_PRODUCT, EXACT, ROUNDED_ONCE
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


# --- raised


_CASTS = ("_to_copy", "copy_", "to")
"""Operators that are not counted: in float64 there are others of them, and each says what it rounds to."""
SUMMED_IN = unit_roundoff("float32")
"""Sums of products are accumulated in float32 where the numbers are shorter."""
_RAISED = {torch.complex32: torch.complex128, torch.complex64: torch.complex128}


def raised(dtype: torch.dtype) -> torch.dtype:
    """The widest dtype of the same kind; other dtypes stay."""
    return torch.float64 if dtype.is_floating_point else _RAISED.get(dtype, dtype)


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """The answer of this name in `probe.backends.torch.execution.rounding`."""
        return False


class Recorded(_Mode):  # type: ignore[no-untyped-call]
    """Writes down each operation that computes, and the unit roundoff of what it returned."""

    def __init__(self) -> None:
        super().__init__()
        self.units: list[tuple[str, float]] = []

    @skipped
    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if computes(function) and name not in _CASTS:
            self.units.append((name, max((unit_roundoff(dtype_name(each)) for each in floats_of(output)), default=0.0)))
        return output


class Raised(_Mode):  # type: ignore[no-untyped-call]
    """Computes in float64: a cast to a shorter dtype keeps all digits, and a constant takes part as it is.

    Args:
        units: What `Recorded` wrote of the same call; without it nothing is moved.
        seed: What the moves are drawn from.
        least: The unit by which every operation is moved at least.
    """

    def __init__(self, units: Sequence[tuple[str, float]] | None = None, seed: int = 0, least: float = 0.0) -> None:
        super().__init__()
        self._units, self._least = units, least
        self._coarsest = max((unit for _, unit in units or ()), default=0.0)
        self._next = 0
        self._generator = torch.Generator().manual_seed(seed)

    @skipped
    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        wanted = given.get("dtype")
        if isinstance(wanted, torch.dtype):
            given["dtype"] = raised(wanted)
        name = function.overloadpacket.__name__
        if name == "_softmax" or name == "_log_softmax":
            # With True the result has another dtype than the argument, which it has already.
            args = (*args[:2], False)
        if not function._schema.is_mutable:
            args, given = _as_wide(args), _as_wide(given)
        output = function(*args, **given)
        if self._units is None:
            return output
        unit = self._unit(function, name, wanted)
        if unit:
            terms = 1.0 if function._schema.is_mutable else _terms(name, args, output)
            if terms > 1:
                lost = lost_in_sum(terms, min(unit, SUMMED_IN))
                output = function(*_each(args, lambda tensor: self._moved_copy(tensor, lost.of_terms)), **given)
                unit += lost.of_sum
            if name in _CASTS or known_function(name).rounding == ROUNDED_ONCE:
                for tensor in floats_of(output):
                    self._move_what_is_rounded(tensor, unit)
            else:
                move(output, unit, self._generator)
        return output

    def _move_what_is_rounded(self, tensor: torch.Tensor, unit: float) -> None:
        """Move the elements that the dtype cannot hold; the others are exact, as counts and the numbers of masks are.

        A mask compares such numbers: two that are equal must stay so.
        """
        if tensor.is_complex():
            move(tensor, unit, self._generator)
            return
        before = tensor.clone()
        move(tensor, unit, self._generator)
        tensor.copy_(torch.where(_is_held(before, max(unit, SUMMED_IN)), before, tensor))

    def _moved_copy(self, tensor: torch.Tensor, unit: float) -> torch.Tensor:
        copied = tensor.clone()
        move(copied, unit, self._generator)
        return copied

    def _unit(self, function: Any, name: str, wanted: Any) -> float:
        if name in _CASTS:
            # The one operation that says itself what it rounds to.
            return unit_roundoff(plain_name(wanted)) if isinstance(wanted, torch.dtype) else 0.0
        if not computes(function):
            return 0.0
        assert self._units is not None
        index, self._next = self._next, self._next + 1
        known = self._units[index] if index < len(self._units) else None
        # If float64 takes another way than the call did, nothing is known about the dtype.
        return max(self._least, known[1] if known is not None and known[0] == name else self._coarsest)


def _terms(name: str, args: Any, output: Any) -> float:
    """About how many numbers are added for one element of the smallest result; 1 where nothing is summed."""
    given = sorted(
        (each.numel() for each in found_in(args, torch.Tensor) if each.dtype.is_floating_point), reverse=True
    )
    made = min((each.numel() for each in floats_of(output)), default=0)
    if not given or not made:
        return 1.0
    if known_function(name).rounding == DOT_PRODUCT and len(given) > 1:
        # Of m x k by k x n elements to m x n of them: the root of mk * kn / mn is k.
        return max(math.sqrt(given[0] * given[1] / made), 1.0)
    return max(given[0] / made, 1.0)


def _is_held(values: torch.Tensor, unit: float) -> torch.Tensor:
    """True for each element that a format with this unit roundoff has."""
    digits = torch.frexp(values).mantissa / unit
    return digits == digits.round()


def plain_name(dtype: torch.dtype) -> str:
    """``bfloat16`` for ``torch.bfloat16``."""
    return str(dtype).partition(".")[2]


def _as_wide(value: Any) -> Any:
    """The value with every tensor of short floats in float64, if there is one of float64 next to it."""
    floats = {each.dtype for each in found_in(value, torch.Tensor) if each.dtype.is_floating_point}
    if torch.float64 not in floats or len(floats) < 2:
        return value
    return _each(value, lambda tensor: tensor.to(torch.float64))


def _each(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The value with every tensor of floats changed."""
    if isinstance(value, torch.Tensor):
        return change(value) if value.dtype.is_floating_point else value
    if isinstance(value, (list, tuple)):
        return type(value)(_each(each, change) for each in value)
    return {key: _each(each, change) for key, each in value.items()} if isinstance(value, dict) else value
