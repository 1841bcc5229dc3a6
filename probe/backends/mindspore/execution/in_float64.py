"""Functions for which MindSpore has no float64 kernel on the CPU, made of functions for which it has.

Measured with 2.10: of the 601 functions of the list that take tensors of float32 on the CPU, 28 refuse float64. Those
of them that networks are made of are here; their formulas are the definitions in the documentation of MindSpore.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Union

import numpy as np
from mindspore import Tensor, ops

Function = Callable[..., Any]
_Lengths = Union[int, Sequence[int]]
_Pairs = Sequence[tuple[int, int]]


# --- convolutions


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: _Lengths, padding: _Pairs, dilation: _Lengths, groups: int
) -> Tensor:
    """The convolution over any number of axes, as one product of matrices for each group.

    Args:
        x: Of shape ``(N, C, *lengths)``.
        weight: Of shape ``(C_out, C / groups, *kernel)``.
        bias: Of shape ``(C_out,)``.
        padding: Zeros before and after each axis.
    """
    lengths, kernel = x.shape[2:], weight.shape[2:]
    places, out = _places(lengths, kernel, each(stride, len(kernel)), padding, each(dilation, len(kernel)))
    batch, channels = x.shape[:2]
    # The zeros around it are one further element, to which every place outside of it points.
    zero = Tensor(np.zeros((batch, channels, 1)), x.dtype)
    flat = ops.concat((ops.reshape(x, (batch, channels, math.prod(lengths))), zero), 2)
    taken = ops.gather(flat, Tensor(places.reshape(-1)), 2)
    columns = ops.reshape(taken, (batch, groups, channels // groups * math.prod(kernel), math.prod(out)))
    rows = ops.reshape(weight, (1, groups, weight.shape[0] // groups, -1))
    result = ops.reshape(ops.matmul(rows, columns), (batch, weight.shape[0], *out))
    return result if bias is None else ops.add(result, ops.reshape(bias, (1, -1) + (1,) * len(out)))


def _places(
    lengths: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: _Pairs, dilation: Sequence[int]
) -> tuple[np.ndarray[Any, Any], list[int]]:
    """For each element of the kernel and of the output the index of its input, and the lengths of the output."""
    axes = len(lengths)
    index, outside, out = np.zeros((1,) * (2 * axes), np.int64), np.zeros((1,) * (2 * axes), bool), []
    for axis, (length, size, step, pads, apart) in enumerate(zip(lengths, kernel, stride, padding, dilation)):
        out.append((length + sum(pads) - (size - 1) * apart - 1) // step + 1)
        own = np.arange(size)[:, None] * apart + np.arange(out[-1]) * step - pads[0]
        shape = [1] * (2 * axes)
        shape[axis], shape[axes + axis] = own.shape
        own = own.reshape(shape)
        index, outside = index * length + own, outside | (own < 0) | (own >= length)
    return np.where(outside, math.prod(lengths), index), out


def each(value: _Lengths, axes: int) -> Sequence[int]:
    """One number for each axis, from one for all or from a list that may begin with those of batch and channels."""
    values = [value] if isinstance(value, int) else list(value)
    return values * axes if len(values) == 1 else values[-axes:]


def pairs(padding: _Lengths, axes: int) -> _Pairs:
    """Before and after each axis, from one number, one for each axis, or one for each end."""
    values = [padding] if isinstance(padding, int) else list(padding)
    if len(values) == 2 * axes:
        return list(zip(values[::2], values[1::2]))
    return [(one, one) for one in each(values, axes)]


def same(x: Tensor, weight: Tensor, stride: _Lengths, dilation: _Lengths) -> _Pairs:
    """The padding that makes an output of ``ceil(length / stride)``; of an odd number one more stands at the end."""
    axes = len(weight.shape) - 2
    found = []
    for length, size, step, apart in zip(x.shape[2:], weight.shape[2:], each(stride, axes), each(dilation, axes)):
        total = max((math.ceil(length / step) - 1) * step + (size - 1) * apart + 1 - length, 0)
        found.append((total // 2, total - total // 2))
    return found


def _conv(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: _Lengths = 1, pad_mode: str = "valid",
    padding: _Lengths = 0, dilation: _Lengths = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    around = pairs(padding if pad_mode == "pad" else 0, len(weight.shape) - 2)
    if pad_mode == "same":
        around = same(input, weight, stride, dilation)
    return convolution(input, weight, bias, stride, around, dilation, groups)


def _conv_primitive(settings: Mapping[str, Any]) -> Function | None:
    if settings.get("mode", 1) != 1 or settings.get("data_format", "NCHW") not in ("NCHW", "NCDHW"):
        return None
    defaults = {"stride": 1, "pad_mode": "valid", "pad": 0, "dilation": 1, "group": 1}
    chosen = [settings.get(name, default) for name, default in defaults.items()]

    def call(x: Tensor, weight: Tensor) -> Tensor:
        return _conv(x, weight, None, *chosen)

    return call


# --- normalisation


def batch_norm(
    x: Tensor, mean: Tensor | None, variance: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    training: bool, eps: float,
) -> Tensor:  # fmt: skip
    """``(x - mean) / sqrt(variance + eps) * weight + bias``, of the batch where `training`, for each channel."""
    across = (1, -1) + (1,) * (len(x.shape) - 2)
    if training or mean is None or variance is None:
        axes = (0, *range(2, len(x.shape)))
        mean = ops.mean(x, axes, True)
        variance = ops.mean(ops.square(ops.sub(x, mean)), axes, True)
    mean, variance = ops.reshape(mean, across), ops.reshape(variance, across)
    result = ops.div(ops.sub(x, mean), ops.sqrt(ops.add(variance, eps)))
    result = result if weight is None else ops.mul(result, ops.reshape(weight, across))
    return result if bias is None else ops.add(result, ops.reshape(bias, across))


def _batch_norm(
    input_x: Tensor, running_mean: Tensor, running_var: Tensor, weight: Tensor, bias: Tensor, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    return batch_norm(input_x, running_mean, running_var, weight, bias, training, eps)


def _batch_norm_primitive(settings: Mapping[str, Any]) -> Function | None:
    if settings.get("data_format", "NCHW") != "NCHW":
        return None
    training, eps = settings.get("is_training", False), settings.get("epsilon", 1e-5)

    def call(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> tuple[Any, ...]:
        return batch_norm(x, mean, variance, scale, bias, training, eps), None, None, None, None

    return call


# --- one element from one element


def relu6(x: Tensor) -> Tensor:
    return ops.clamp(x, 0, 6)


def _hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    return ops.where(ops.gt(ops.abs(input), lambd), input, ops.zeros_like(input))


def _softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    beyond = ops.sub(ops.abs(input), lambd)
    return ops.where(ops.gt(beyond, 0.0), ops.mul(ops.sign(input), beyond), ops.zeros_like(input))


def _lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    return ops.add(input, ops.mul(weight, ops.sub(end, input)))


_FUNCTIONS: dict[str, Function] = {
    "Functional.conv1d": _conv, "Functional.conv2d": _conv, "Functional.conv3d": _conv,
    "Functional.batch_norm": _batch_norm, "Functional.relu6": relu6,
}  # fmt: skip
for _prefix in ("Functional", "Tensor", "MintFunctional"):
    _FUNCTIONS.update({f"{_prefix}.hardshrink": _hardshrink, f"{_prefix}.softshrink": _softshrink})
    _FUNCTIONS[f"{_prefix}.lerp"] = _lerp
_PRIMITIVES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "Conv2D": _conv_primitive,
    "Conv3D": _conv_primitive,
    "BatchNorm": _batch_norm_primitive,
    "ReLU6": lambda settings: relu6,
}


def function(base: str, attributes: Mapping[str, Any] | None = None, called: str = "") -> Function | None:
    """A function that computes this function or primitive in float64; ``None`` if it is not known here."""
    if called:
        return None
    prefix, _, name = base.partition(".")
    if prefix != "Primitive":
        return _FUNCTIONS.get(base)
    make = _PRIMITIVES.get(name.rpartition(".")[2])
    return None if make is None or attributes is None else make(attributes)
