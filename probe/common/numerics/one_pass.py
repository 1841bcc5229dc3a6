"""Differences of two vectors of float32 in one pass over both, by a compiled function that need not be there.

It is built where a C compiler is at hand when the package is installed. Without it the sums of `values.Totals` and the
spacing of `rounding` give the same up to the rounding of sums, in a pass for each number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probe.common.numerics.formats import Format

_compiled: Callable[[int, int, int, float, float], tuple[float, ...]] | None
try:
    from probe.common.numerics import _differences
except ImportError:
    _compiled = None
else:
    _compiled = _differences.differences


class Sums(NamedTuple):
    """Numbers of a block of both vectors; squares that are not finite say that a value is not."""

    squares_one: float
    squares_other: float
    products: float
    squares: float
    """Sum of the squares of the differences."""
    largest: float
    largest_relative: float
    """Relative to the second vector, in float32."""
    most_units: float
    """The largest difference in units in the last place of the format."""
    units: float
    """The sum of these."""


def differences(one: NDArray[Any], other: NDArray[Any], of: Format | None) -> Sums | None:
    """The numbers of two vectors of one length; ``None`` if there is no compiled function for them.

    Args:
        one: The first vector, in float32; there is no compiled function for another dtype.
        other: The second vector, in float32.
        of: The format whose units in the last place count; ``None`` counts none.
    """
    if _compiled is None or not one.dtype == other.dtype == np.float32 or (of is not None and of.tapers):
        return None
    one, other = np.ascontiguousarray(one), np.ascontiguousarray(other)
    smallest, unit = (1.0, 1.0) if of is None else (float(of.smallest_normal), 2.0 * of.unit)
    return Sums(*_compiled(one.ctypes.data, other.ctypes.data, one.size, smallest, unit))
