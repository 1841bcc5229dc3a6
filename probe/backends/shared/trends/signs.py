"""Contents of a gradient in few numbers, for the probe of gradients: intervals, statistics, checksum, packed signs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from probe.backends.protocol import Signature
from probe.backends.shared.trends.arrays import statistics

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
        hashlib.md5(array.tobytes(), usedforsecurity=False).hexdigest() if checksum else "",
        np.packbits(array.reshape(-1) > 0).tobytes() if bits else b"",
    )


def interval_shares(below: Sequence[int], total: int, nans: int, zeros: int) -> list[float]:
    """The shares of the elements of a gradient in intervals, and that of zeros at the end.

    Args:
        below: The number of elements up to each bound, elements that are equal to it included.
        total: The number of all elements.
        nans, zeros: The numbers of NaN and of zeros.
    """
    counts = [after - before for before, after in zip([0, *below], [*below, total - nans])]
    return [count / total if total else np.nan for count in (*counts, zeros)]
