"""Values rounded to the precision of a lower dtype, and what is known of dtypes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Precision(NamedTuple):
    """A format of binary numbers."""

    digits: int
    """Binary digits of the significand, the leading one that is not stored included."""
    smallest_exponent: int
    """Exponent of the smallest normal number."""
    largest: float
    """The largest finite number."""

    @property
    def unit(self) -> float:
        """The unit roundoff: half the distance from 1 to the next number."""
        return float(2.0**-self.digits)

    @property
    def smallest(self) -> float:
        """The smallest number above 0."""
        return float(2.0 ** (self.smallest_exponent - self.digits + 1))

    @property
    def smallest_normal(self) -> float:
        """The smallest number of full precision."""
        return float(2.0**self.smallest_exponent)


PRECISIONS = {
    "float64": Precision(53, -1022, 1.7976931348623157e308),
    "float32": Precision(24, -126, 3.4028234663852886e38),
    "tfloat32": Precision(11, -126, 3.4011621342146535e38),
    "bfloat16": Precision(8, -126, 3.3895313892515355e38),
    "float16": Precision(11, -14, 65504.0),
    "float8e4m3fn": Precision(4, -6, 448.0),
    "float8e5m2": Precision(3, -14, 57344.0),
}
"""By the plain name of the dtype; ``tfloat32`` is what matrix units make of float32."""


def rounded(values: Array, precision: str) -> Array:
    """`values` rounded to nearest, ties to even, in float64; what is too large becomes an infinity.

    Args:
        values: Floating-point numbers of any dtype.
        precision: A name of `PRECISIONS`.
    """
    form = PRECISIONS[precision]
    wide = np.asarray(values, np.float64)
    with np.errstate(all="ignore"):
        _, exponents = np.frexp(wide)
        # The distance between neighbours at each number; below the normal ones it is that of the smallest.
        spacing = np.ldexp(1.0, np.maximum(exponents - 1, form.smallest_exponent) - form.digits + 1)
        result: Array = np.rint(wide / spacing) * spacing
    result = np.where(np.isfinite(wide), result, wide)
    too_large = np.abs(result) > form.largest
    return np.where(too_large & np.isfinite(wide), np.copysign(np.inf, wide), result)
