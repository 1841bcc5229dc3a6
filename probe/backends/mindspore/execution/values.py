"""Tensors and other values of MindSpore from what a dump says, and numpy arrays from tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor
from numpy.typing import NDArray

from probe.backends.mindspore.execution.devices import devices
from probe.backends.mindspore.guards import unobserved
from probe.backends.mindspore.tensors import dtypes, statistics
from probe.backends.protocol import UnknownValue
from probe.backends.shared.rounding import rounded_to_odd
from probe.common.numerics.formats import Format, Kind


def tensor(values: NDArray[Any], dtype: str, device: str) -> Tensor:
    """A new tensor of the shape of `values`, rounded to `dtype`.

    Raises:
        UnknownValue: there is no such dtype, or the process computes on another device.
    """
    if device not in devices():
        raise UnknownValue(f"{device} is not available, because this process computes on {', '.join(devices())}")
    kind = dtypes.plain_dtype(dtype)
    if kind is None or not _has_conversion(dtypes.FORMATS[kind]):
        raise UnknownValue(f"no tensor of dtype {dtype} can be made with MindSpore {ms.__version__}")
    values = np.asarray(values)
    # An overflow, or a number that is not an integer, would be a warning of the user's program.
    with np.errstate(all="ignore"):
        if dtype == "bfloat16":
            # MindSpore rounds float32 to it, to nearest and ties to even.
            exact = np.can_cast(values.dtype, np.float32)
            return Tensor(values.astype(np.float32) if exact else rounded_to_odd(values.astype(np.float64)), kind)
        # By numpy: MindSpore rounds float64 to float16 by way of float32, which is another number now and then.
        return Tensor(values.astype(dtype), kind)


def _has_conversion(form: Format) -> bool:
    """Not float8 on the CPU, of whose rounding nothing could be said, and nothing shorter than 8 bits."""
    return form.bits > 8 or (form.bits == 8 and form.kind is not Kind.FLOAT)


def values(tensor: Tensor) -> NDArray[Any]:
    """A copy of the values, bfloat16 in float32."""
    return np.array(statistics.as_saved(tensor), copy=True)


def copied(tensor: Tensor) -> Tensor:
    """A tensor of its own with the same values, contiguous, which takes no gradient."""
    found: Tensor = unobserved(lambda: Tensor(tensor.copy()))
    return found


def dtype_name(tensor: Tensor) -> str:
    return dtypes.plain_name(tensor.dtype)


def plain_value(entry: Mapping[str, Any], device: str) -> Any:
    """The value of an entry that `probe.backends.mindspore.tensors.describe.describe_value` wrote.

    Raises:
        UnknownValue: it cannot be made from what the dump says.
    """
    kind, name = entry.get("type"), entry.get("value")
    if kind != "mindspore.dtype":
        raise UnknownValue(f'a value of type "{kind}" cannot be made; allowed: mindspore.dtype')
    found = dtypes.dumped_dtype(name) if isinstance(name, str) else None
    if found is None:
        raise UnknownValue(f"MindSpore {ms.__version__} has no such value: {dict(entry)!r}")
    return found
