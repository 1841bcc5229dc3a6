"""Wrong kernels, each in the place of a right one: what a device would compute in the dtypes of a training.

The reference is computed in float64 by the same function, and there each of them is right.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

Kernel = Callable[..., Any]


@contextlib.contextmanager
def planted(owner: Any, name: str, fault: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """`fault` of the first result of a function, for all dtypes but float64."""
    right: Kernel = getattr(owner, name)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        result = right(*args, **kwargs)
        if isinstance(result, tuple):
            return (changed(result[0]), *result[1:])
        return changed(result)

    def changed(result: torch.Tensor) -> torch.Tensor:
        return result if result.dtype in (torch.float64, torch.complex128) else fault(result)

    setattr(owner, name, wrong)
    try:
        yield
    finally:
        setattr(owner, name, right)


@contextlib.contextmanager
def accumulating_in_half(owner: Any, name: str) -> Iterator[None]:
    """A product of two matrices of half precision, rounded to it after each term."""
    right: Kernel = getattr(owner, name)

    def wrong(left: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if left.dtype not in (torch.bfloat16, torch.float16):
            result: torch.Tensor = right(left, other)
            return result
        total = left[:, :1] * other[:1]
        for term in range(1, left.shape[-1]):
            total = total + left[:, term : term + 1] * other[term : term + 1]
        return total

    setattr(owner, name, wrong)
    try:
        yield
    finally:
        setattr(owner, name, right)


def one_element(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Only the largest element is wrong."""

    def fault(result: torch.Tensor) -> torch.Tensor:
        place = int(result.detach().abs().argmax())
        mask = torch.zeros_like(result, dtype=torch.bool).view(-1)
        mask[place] = True
        return torch.where(mask.view(result.shape), change(result), result)

    return fault


def through(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """The result has the digits of a lower dtype."""
    return lambda result: result.to(dtype).to(result.dtype)


def tail_dropped(result: torch.Tensor) -> torch.Tensor:
    """The last eighth of the last dimension is not written."""
    kept = torch.ones(result.shape[-1], dtype=torch.bool)
    kept[-max(1, result.shape[-1] // 8) :] = False
    return result * kept


FAULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NaN in one element": one_element(lambda result: result * float("nan")),
    "one element 10 % off": one_element(lambda result: result * 1.1),
    "sign of one element": one_element(lambda result: -result),
    "every element 5 % high": lambda result: result * 1.05,
    "tail dropped": tail_dropped,
    "shifted by one": lambda result: result.roll(1, -1),
    "first row for all": lambda result: result[:1].expand(result.shape) + 0 * result,
    "zeros": lambda result: result * 0,
    "twice as large": lambda result: result * 2,
}
"""What is wrong whatever the dtype."""
IN_FLOAT32: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "digits of bfloat16": through(torch.bfloat16),
    "digits of float16": through(torch.float16),
    "every element 0.2 % high": lambda result: result * 1.002,
    "every element 1e-5 high": lambda result: result * (1 + 1e-5),
}
"""What half precision would hide or does by itself."""
PLACES: dict[str, tuple[Any, str]] = {
    "Functional.silu": (F, "silu"),
    "Functional.linear": (F, "linear"),
    "Functional.layer_norm": (F, "layer_norm"),
    "Torch.matmul": (torch, "matmul"),
    "Tensor.mul": (torch.Tensor, "mul"),
    "Functional.softmax": (F, "softmax"),
}
