"""Max, Min, Mean, Norm and the sketch of a tensor in one pass over its memory, by a compiled function.

It is built where a C compiler is at hand when the package is installed; without it frameworks reduce with functions of
their own, in a pass for each statistic, and the sketch is made by numpy. Both give the same up to rounding.

`reduce` takes the address of the first element, the shape and the strides in elements, a kind of `KINDS`, whether Mean
and Norm of 16-bit numbers are wanted in float32, and whether a sketch is wanted. The memory must be there until it
returns, sizes must be positive and strides not negative. Mean and Norm are rounded to the type of the elements, and
those of integers are float64. A NaN among the elements makes all four NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from typing_extensions import TypeAlias

Reduced: TypeAlias = tuple[float, float, float, float, Optional[bytes]]
reduce: Callable[[int, tuple[int, ...], tuple[int, ...], int, bool, bool], Reduced] | None
"""Greatest, least, mean, norm, and the packed sketch or ``None``; the first two of integers are integers."""
KINDS: dict[str, int]
"""The kinds of elements, by the names that numpy and torch have for them."""

try:
    from probe.backends.shared import _reduction
except ImportError:
    reduce, KINDS = None, {}
else:
    reduce, KINDS = _reduction.reduce, _reduction.KINDS
