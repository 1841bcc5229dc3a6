"""Statistics of arrays for a monitor, for backends whose tensors numpy reads without a copy."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from probe.backends.protocol import Signature
from probe.backends.shared import tensors

NAN = math.nan
LIKE_ITSELF = frozenset(("min", "max", "mean", "norm", "id", "absmax", "l1"))
_KINDS = {np.dtype(name): kind for name, kind in tensors.KINDS.items() if name != "bfloat16"}
_FLOATS = "f"


def statistics(ops: Sequence[str], array: np.ndarray[Any, Any], eps: float, exact: bool) -> list[float]:
    """The value of each op of one array of numbers or booleans."""
    if array.dtype.kind == "c":
        array = np.abs(array)
    if array.dtype.kind not in "biuf":
        array = array.astype(np.float32)
    if array.size == 0:
        return [0.0 if op in ("norm", "nans", "infs", "l1") else NAN for op in ops]
    known: dict[str, float] = {}
    kind = _KINDS.get(array.dtype)
    if kind is not None and tensors.reduce is not None and array.flags.c_contiguous and array.ndim and not exact:
        address = array.__array_interface__["data"][0]
        largest, smallest, mean, norm, _ = tensors.reduce(address, (array.size,), (1,), kind, True, False)
        known = {"max": largest, "min": smallest, "mean": mean, "norm": norm}
        if mean != mean and array.dtype.kind == _FLOATS:
            known = {}
    with np.errstate(all="ignore"):
        return [known[op] if op in known else _op(op, array, eps) for op in ops]


def _op(op: str, array: np.ndarray[Any, Any], eps: float) -> float:
    is_flag = array.dtype.kind == "b"
    if op in ("min", "max"):
        value: float = (array.min() if op == "min" else array.max()).item()
        return int(value) if is_flag else value
    if op == "id":
        return NAN if array.ndim else float(array.item())
    if op == "zeros":
        return NAN if is_flag else float(np.float32(np.mean(np.abs(array.astype(np.float32)) < np.float32(eps))))
    if op in ("nans", "infs"):
        if array.dtype.kind != _FLOATS:
            return 0
        return int(np.count_nonzero(np.isnan(array) if op == "nans" else np.isinf(array)))
    wide = array.astype(np.float64).reshape(-1)
    if op == "mean":
        return float(wide.mean())
    if op == "norm":
        return math.sqrt(float(np.dot(wide, wide)))
    if op == "absmax":
        return float(np.abs(wide).max())
    if op == "l1":
        return float(np.abs(wide).sum())
    if op == "std":
        return float(wide.std())
    square = np.square(wide - wide.mean())
    return float(np.mean(np.square(square)) / np.square(square.mean()))


def of_number(op: str, value: float) -> float:
    """One op of a number as if it were a tensor of no dimension."""
    if op in LIKE_ITSELF:
        return value if op in ("min", "max", "mean", "id") else abs(value)
    if op == "zeros":
        return float(value == 0)
    if op == "nans":
        return int(value != value)
    return int(math.isinf(value)) if op == "infs" else NAN if op == "kurtosis" else 0.0


# --- signs


OPS = ("max", "min", "norm")
"""The statistics of a signature, the last of its values."""


def signature(array: np.ndarray[Any, Any], bounds: Sequence[float], checksum: bool, bits: bool) -> Signature:
    """See `probe.backends.protocol.Measurer.signature`; of a gradient that numpy reads."""
    array = np.ascontiguousarray(array)
    shares: list[float] = []
    if bounds:
        below = [int(np.count_nonzero(array <= bound)) for bound in bounds]
        nans, zeros = int(np.count_nonzero(np.isnan(array))), int(np.count_nonzero(array == 0))
        shares = interval_shares(below, array.size, nans, zeros)
    return Signature(
        [*shares, *map(float, statistics(OPS, array, 0.0, False))],
        md5(array.reshape(-1).view(np.uint8)) if checksum else "",
        np.packbits(array.reshape(-1) > 0).tobytes() if bits else b"",
    )


def md5(data: np.ndarray[Any, Any]) -> str:
    """The MD5 of bytes."""
    return hashlib.md5(data.data, usedforsecurity=False).hexdigest()


def interval_shares(below: Sequence[int], total: int, nans: int, zeros: int) -> list[float]:
    """The shares of the elements of a gradient in intervals, and that of zeros at the end.

    Args:
        below: The number of elements up to each bound, elements that are equal to it included.
        total: The number of all elements.
        nans, zeros: The numbers of NaN and of zeros.
    """
    counts = [after - before for before, after in zip([0, *below], [*below, total - nans])]
    return [count / total if total else np.nan for count in (*counts, zeros)]
