"""Max, Min, Mean and Norm of a tensor in one pass over its memory, by a compiled function that need not be there.

It is built where a C compiler is at hand when the package is installed; without it frameworks reduce with functions of
their own, in a pass for each statistic. Both give the same up to rounding.

`reduce` takes the address of the first element, the shape and the strides in elements, a kind of `KINDS` and whether
Mean and Norm of 16-bit numbers are wanted in float32. The memory must be there until it returns, sizes must be positive
and strides not negative. Mean and Norm are rounded to the type of the elements, those of integers are float64. A NaN
among the elements makes all four NaN.
"""

from __future__ import annotations

from collections.abc import Callable

reduce: Callable[[int, tuple[int, ...], tuple[int, ...], int, bool], tuple[float, float, float, float]] | None
"""Greatest, least, mean, norm; the first two of integers are integers."""
KINDS: dict[str, int]
"""The kinds of elements, by the names that numpy and torch have for them."""

try:
    from probe.backends.shared import _reduction
except ImportError:
    reduce, KINDS = None, {}
else:
    reduce, KINDS = _reduction.reduce, _reduction.KINDS
