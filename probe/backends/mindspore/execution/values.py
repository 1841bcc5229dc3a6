"""Tensors and other values of MindSpore from what a dump says, and numpy arrays from tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor
from numpy.typing import NDArray

from probe.backends.mindspore.execution.devices import devices
from probe.backends.mindspore.tensors import dtypes, statistics
from probe.backends.protocol import UnknownValue


def tensor(values: NDArray[Any], dtype: str, device: str) -> Tensor:
    """A new tensor of the shape of `values`, rounded to `dtype`.

    Raises:
        UnknownValue: there is no such dtype, or the process computes on another device.
    """
    if device not in devices():
        raise UnknownValue(f"this process computes on {', '.join(devices())} and not on {device}")
    kind = dtypes.plain_dtype(dtype)
    if kind is None or "float8" in dtype:
        # MindSpore has no conversion to or from float8 on the CPU, so that nothing could be said of its rounding.
        raise UnknownValue(f"MindSpore {ms.__version__} makes no tensors of dtype {dtype} from numbers")
    if dtype == "bfloat16":
        # numpy has no such type; MindSpore rounds float32 to it, to nearest and ties to even.
        return Tensor(np.asarray(values, np.float32), kind)
    with np.errstate(over="ignore"):
        # By numpy: MindSpore rounds float64 to float16 by way of float32, which is another number now and then.
        return Tensor(np.asarray(values, np.dtype(dtype)), kind)


def values(tensor: Tensor) -> NDArray[Any]:
    """A copy of the values, bfloat16 in float32."""
    return np.array(statistics.as_saved(tensor), copy=True)


def copied(tensor: Tensor) -> Tensor:
    """A tensor of its own with the same values, contiguous, which takes no gradient."""
    return Tensor(tensor.copy())


def dtype_name(tensor: Tensor) -> str:
    return dtypes.plain_name(tensor.dtype)


def plain_value(entry: Mapping[str, Any], device: str) -> Any:
    """The value of an entry that `probe.backends.mindspore.tensors.describe.describe_value` wrote.

    Raises:
        UnknownValue: it cannot be made from what the dump says.
    """
    kind, name = entry.get("type"), entry.get("value")
    found = dtypes.dumped_dtype(str(name)) if kind == "mindspore.dtype" else None
    if found is None:
        raise UnknownValue(f"MindSpore has nothing that type {kind!r} with value {name!r} stands for")
    return found
