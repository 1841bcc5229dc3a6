"""The faults. Each calls the function at fault through `planted`, which then stands in the call stack of its record.

A fault takes a healthy tensor that gradients go through, and returns one of the same shape that depends on what went
wrong. What it gives to the function at fault is finite where the fault is that function's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Fault = Callable[[Tensor], Tensor]


def planted(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call what is at fault; the only function of this name."""
    return function(*args, **kwargs)


def _joined(h: Tensor, value: Tensor) -> Tensor:
    """`h` with something of `value` in every element."""
    return h + value.to(h.dtype).sum()


def _ramp(h: Tensor, low: float, high: float) -> Tensor:
    """Numbers from `low` to `high`, one for each of the last dimension, through which gradients go."""
    return h * 0 + torch.linspace(low, high, h.shape[-1], dtype=h.dtype)


def _maximum(h: Tensor) -> float:
    return torch.finfo(h.dtype).max


# --- forward


def _log_of_negatives(h: Tensor) -> Tensor:
    return _joined(h, planted(torch.log, -(h.abs() + 1)))


def _log_of_one_zero(h: Tensor) -> Tensor:
    return _joined(h, planted(torch.log, _ramp(h, 0.0, 1.0)))


def _log_in_place(h: Tensor) -> Tensor:
    return _joined(h, planted((h.abs() - 100).log_))


def _root_of_negatives(h: Tensor) -> Tensor:
    return _joined(h, planted(torch.sqrt, _ramp(h, -1.0, 1.0)))


def _reciprocal_root_of_zero(h: Tensor) -> Tensor:
    return _joined(h, planted(torch.rsqrt, h * 0))


def _division_by_zero(h: Tensor) -> Tensor:
    return planted(torch.div, h, h * 0)


def _zero_by_zero(h: Tensor) -> Tensor:
    return _joined(h, planted(torch.div, h * 0, torch.zeros_like(h)))


def _division_operator(h: Tensor) -> Tensor:
    return planted(lambda value: value / 0, h)


def _division_in_place(h: Tensor) -> Tensor:
    return planted(h.clone().div_, torch.zeros_like(h))


def _exponential(h: Tensor) -> Tensor:
    return _joined(h, planted(torch.exp, h * 0 + 800))


def _exponential_in_float16(h: Tensor) -> Tensor:
    return _joined(h, planted(torch.exp, (h * 0 + 12).half()))


def _product_in_float16(h: Tensor) -> Tensor:
    rows = (h * 0 + 300).half()
    return _joined(h, planted(torch.matmul, rows, rows.transpose(-1, -2)))


def _linear_in_float16(h: Tensor) -> Tensor:
    return _joined(h, planted(F.linear, (h * 0 + 200).half(), torch.full((3, h.shape[-1]), 200.0).half()))


def _cast_to_float16(h: Tensor) -> Tensor:
    # The cast is not recorded.
    return _joined(h, planted(torch.mul, (h * 0 + 1e6).half(), 1.0))


def _sum_in_float16(h: Tensor) -> Tensor:
    return _joined(h, planted((h * 0 + 60000).half().sum))


def _softmax_of_masked_row(h: Tensor) -> Tensor:
    masked = (h * 1.0).masked_fill(torch.ones(h.shape[-1], dtype=torch.bool), -math.inf)
    return _joined(h, planted(F.softmax, masked, dim=-1))


def _power_of_large(h: Tensor) -> Tensor:
    return _joined(h, planted(torch.pow, h.abs() + 1e10, 60))


def _root_as_power(h: Tensor) -> Tensor:
    return _joined(h, planted(torch.pow, -(h.abs() + 1), 0.5))


def _power_operator(h: Tensor) -> Tensor:
    return _joined(h, planted(lambda value: value**0.3, -(h.abs() + 1)))


def _arc_cosine(h: Tensor) -> Tensor:
    return _joined(h, planted(torch.acos, _ramp(h, 0.0, 2.0)))


def _product_beyond_range(h: Tensor) -> Tensor:
    return _joined(h, planted(torch.mul, h * 0 + _maximum(h) / 4, 100.0))


def _sum_beyond_range(h: Tensor) -> Tensor:
    return _joined(h, planted(torch.sum, h * 0 + _maximum(h) / 2))


def _variance_of_one(h: Tensor) -> Tensor:
    # The warning about degrees of freedom is what a training would print too.
    return _joined(h, planted(torch.var, h[..., :1], dim=-1))


def _mean_of_nothing(h: Tensor) -> Tensor:
    return _joined(h, planted(torch.mean, h[:, :0]))


def _spread_of_one(h: Tensor) -> Tensor:
    spread, _ = planted(torch.std_mean, h[..., :1], dim=-1)
    return _joined(h, spread)


def _determinant(h: Tensor) -> Tensor:
    square = torch.zeros(4, 4, dtype=torch.float64) + h.sum().double() * 0
    _, logarithm = planted(torch.linalg.slogdet, square)
    return _joined(h, logarithm)


def _ignored_labels(h: Tensor) -> Tensor:
    scores = h.reshape(-1, h.shape[-1]).float()
    labels = torch.full((scores.shape[0],), -100)
    return _joined(h, planted(F.cross_entropy, scores, labels))


def _constant_of_nan(h: Tensor) -> Tensor:
    # What makes constants is not recorded.
    return planted(torch.mul, h, torch.tensor(math.nan, dtype=h.dtype))


FORWARD: dict[str, Fault] = {
    fault.__name__[1:]: fault
    for fault in (
        _log_of_negatives, _log_of_one_zero, _log_in_place, _root_of_negatives, _reciprocal_root_of_zero,
        _division_by_zero, _zero_by_zero, _division_operator, _division_in_place, _exponential,
        _exponential_in_float16, _product_in_float16, _linear_in_float16, _cast_to_float16, _sum_in_float16,
        _softmax_of_masked_row, _power_of_large, _root_as_power, _power_operator, _arc_cosine, _product_beyond_range,
        _sum_beyond_range, _variance_of_one, _mean_of_nothing, _spread_of_one, _determinant, _ignored_labels,
        _constant_of_nan,
    )
}  # fmt: skip


# --- backward only


def _root_of_zero(h: Tensor) -> Tensor:
    return h + planted(torch.sqrt, h * 0)


def _root_of_one_zero(h: Tensor) -> Tensor:
    return h + planted(torch.sqrt, _ramp(h, 0.0, 1.0))


def _norm_of_zero(h: Tensor) -> Tensor:
    zero = h * 0
    return h + planted(torch.sqrt, (zero * zero).sum(-1, keepdim=True))


def _power_of_zero(h: Tensor) -> Tensor:
    return h + planted(torch.pow, h * 0, 0.5)


def _distance_of_zero(h: Tensor) -> Tensor:
    return h + planted(torch.hypot, h * 0, h * 0)


def _arc_sine_of_one(h: Tensor) -> Tensor:
    return h + planted(torch.asin, h * 0 + 1)


def _division_by_little(h: Tensor) -> Tensor:
    # The smallest number that float32 has: a gradient divided by it is beyond the type.
    zero = (h * 0).float()
    return h + planted(torch.div, zero, torch.full_like(zero, 1.5e-45)).to(h.dtype)


def _root_behind_where(h: Tensor) -> Tensor:
    # Nothing of the root is used, and still its gradient is 0 times infinity.
    zero = h * 0
    return h + torch.where(zero > 0, planted(torch.sqrt, zero), zero)


class _LogarithmInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient + planted(torch.log, -(gradient.abs() + 1))


def _function_that_computes(h: Tensor) -> Tensor:
    applied: Tensor = _LogarithmInBackward.apply(h)
    return applied


BACKWARD: dict[str, Fault] = {
    fault.__name__[1:]: fault
    for fault in (
        _root_of_zero, _root_of_one_zero, _norm_of_zero, _power_of_zero, _distance_of_zero, _arc_sine_of_one,
        _division_by_little, _root_behind_where, _function_that_computes,
    )
}  # fmt: skip
UNRECORDED = frozenset({"cast_to_float16", "constant_of_nan"})
"""What is made by something that is not recorded, so that the mark is on the call that takes it."""
RECORDED_FORWARD = frozenset({"function_that_computes"})
"""What goes wrong in the backward and is recorded as a call of its own."""


# --- of which nothing is left


def _kept_by_where(h: Tensor) -> Tensor:
    return torch.where(h > _maximum(h), planted(torch.log, -(h.abs() + 1)), h)


def _replaced_by_number(h: Tensor) -> Tensor:
    return h + torch.nan_to_num(planted(torch.sqrt, -(h.detach().abs() + 1)))


def _filled(h: Tensor) -> Tensor:
    value = planted(torch.log, -(h.detach().abs() + 1))
    return h + value.masked_fill(torch.isnan(value), 0.0)


MASKED: dict[str, Fault] = {
    "kept_by_where": _kept_by_where, "replaced_by_number": _replaced_by_number, "filled": _filled,
}  # fmt: skip


# --- memory that nothing was written to


def _empty_like(h: Tensor) -> Tensor:
    return h + planted(torch.mul, planted(torch.empty_like, h.detach()), 1.0)


def _empty(h: Tensor) -> Tensor:
    return planted(torch.add, h, planted(torch.empty, h.shape, dtype=h.dtype))


def _half_written(h: Tensor) -> Tensor:
    buffer = planted(torch.empty, (*h.shape[:-1], 2 * h.shape[-1]), dtype=h.dtype)
    buffer[..., : h.shape[-1]] = h.detach()
    return h + planted(torch.sum, buffer)


UNINITIALISED: dict[str, Fault] = {"empty_like": _empty_like, "empty": _empty, "half_written": _half_written}

FAULTS: dict[str, dict[str, Fault]] = {
    "forward": FORWARD, "backward": BACKWARD, "masked": MASKED, "uninitialised": UNINITIALISED,
}  # fmt: skip
"""The faults at a site, by kind."""
