"""A digest of the elements of an array that does not depend on their order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_PART = 1 << 18
"""Elements that are in memory at a time. Their hashes take 2 MiB, which fits into the cache of a core."""


class Digest(NamedTuple):
    """Equal for two arrays if and, but for a chance of 2**-64, only if their elements are equal in some order."""

    dtype: str
    size: int
    total: int
    """The sum of the hashes of the elements, modulo 2**64."""


def digest(values: NDArray[Any]) -> Digest:
    """Digest of the elements. A large array that is mapped from a file is read in parts.

    0.0 and -0.0 are equal, and so are two NaN of the same bits.
    """
    total = 0
    if values.size:
        flags = ["external_loop", "buffered", "zerosize_ok"]
        for part in np.nditer(values, flags=flags, op_flags=[["readonly"]], order="K", buffersize=_PART):  # type: ignore[call-overload]
            for start in range(0, part.size, _PART):
                total += int(_hashes(part[start : start + _PART]).sum(dtype=np.uint64))
    return Digest(str(values.dtype), values.size, total % (1 << 64))


def _hashes(part: NDArray[Any]) -> NDArray[np.uint64]:
    if part.dtype.kind in "fc":
        part = part + part.dtype.type(0)  # -0.0 becomes 0.0
    data = np.ascontiguousarray(part).view(np.uint8).reshape(part.size, part.dtype.itemsize)
    width = min(part.dtype.itemsize, 8)
    words = data.view(f"u{width}") if width in (1, 2, 4, 8) else data
    found = np.zeros(part.size, np.uint64)
    for column in range(words.shape[1]):
        found = _mixed(found + words[:, column].astype(np.uint64))
    return found


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The mixing of SplitMix64, after which each bit of a value depends on all of them."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
