"""Rounding to types that numpy lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def rounded_to_odd(values: NDArray[Any]) -> NDArray[Any]:
    """`values`, float64, in a float32 that rounds to a shorter type as they do themselves.

    What is between two float32 becomes the one whose last bit is set: no tie of the second rounding, and on the right
    side of each (S. Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using
    rounding to odd", IEEE Transactions on Computers 57, 2008).
    """
    with np.errstate(all="ignore"):
        single = values.astype(np.float32)
        bits = single.view(np.int32)
        between = (single != values) & (bits & 1 == 0) & ~np.isnan(values)
        bits[between] += np.where(np.abs(single) < np.abs(values), 1, -1).astype(np.int32)[between]
    return single
