"""Floating-point formats: what a dtype can hold, and rounding to it.

Precisions and exponents are those of IEEE 754-2019 (table 3.5), of the OCP 8-bit formats (OFP8, revision 1.0) and of
the formats that devices added: bfloat16 and tfloat32 have the exponents of float32 with 8 and 11 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from probe.common.numerics.dtypes import plain_name
from probe.precheck.verdict.subject import Array


@dataclass(frozen=True)
class Format:
    """A binary floating-point format."""

    name: str
    digits: int
    """Bits of the significand, the hidden one included."""
    least_exponent: int
    """The smallest normal number is two to this power."""
    largest: float
    native: type[np.floating] | None = None
    """The type of numpy that is this format, where casting rounds to it."""
    has_infinity: bool = True
    is_complex: bool = False

    @property
    def unit(self) -> float:
        """The unit roundoff: one rounding to nearest changes a number at most by this part of it."""
        return math.ldexp(1.0, -self.digits)

    @property
    def smallest_normal(self) -> float:
        return math.ldexp(1.0, self.least_exponent)

    @property
    def overflow(self) -> float:
        """The smallest number that rounds to infinity."""
        return self.largest * (1 + self.unit / 2)

    @property
    def may_flush(self) -> bool:
        """Whether devices give zero for its subnormal numbers.

        They lie below 1e-37 for formats with the exponents of float32, and many kernels set them to zero there. Those
        of float16 begin at 6e-5, where gradients are: a kernel that drops them loses what the user has.
        """
        return self.least_exponent <= -126


def _ieee(name: str, digits: int, least_exponent: int, native: type[np.floating] | None = None) -> Format:
    largest = (2.0 - 2.0 ** (1 - digits)) * 2.0 ** (1 - least_exponent)
    return Format(name, digits, least_exponent, largest, native)


_FLOAT32, _FLOAT64 = _ieee("float32", 24, -126, np.float32), _ieee("float64", 53, -1022, np.float64)
_FORMATS = {
    "float64": _FLOAT64,
    "float32": _FLOAT32,
    "float16": _ieee("float16", 11, -14, np.float16),
    "bfloat16": _ieee("bfloat16", 8, -126),
    "tfloat32": _ieee("tfloat32", 11, -126),
    "float8e5m2": _ieee("float8e5m2", 3, -14),
    "float8e4m3fn": Format("float8e4m3fn", 4, -6, 448.0, has_infinity=False),
    "complex64": Format("complex64", 24, -126, _FLOAT32.largest, is_complex=True),
    "complex128": Format("complex128", 53, -1022, _FLOAT64.largest, is_complex=True),
}


def format_of(dtype: str) -> Format | None:
    """The format of a dtype by its name; ``None`` of one that holds whole numbers, or that is not known."""
    return _FORMATS.get(plain_name(dtype))


_EXPONENT_BITS = np.int64(0x7FF << 52)


def spacing(values: Array, of: Format) -> Array:
    """The distance between neighbours of the format at each of `values`, which are finite, real and float64."""
    # What is left of a number of float64 without its significand is the power of two below it.
    powers = (np.asarray(values, np.float64, order="C").view(np.int64) & _EXPONENT_BITS).view(np.float64)
    return np.asarray(np.maximum(powers, of.smallest_normal) * (2 * of.unit))


def rounded_to(values: Array, to: Format) -> Array:
    """`values` (real, float64) rounded to the nearest numbers of the format, ties to even, held in float64."""
    with np.errstate(all="ignore"):
        if to.native is not None:
            return values.astype(to.native).astype(np.float64)
        if to.is_complex:
            parts = np.ascontiguousarray(values, np.complex128).view(np.float64)
            inner = _FLOAT32 if to.digits == _FLOAT32.digits else _FLOAT64
            return rounded_to(parts, inner).view(np.complex128).reshape(values.shape)
        nearest = _by_bits(values, to)
        size = np.abs(values)
        small = size < to.smallest_normal
        if small.any():
            # Subnormal numbers are multiples of the smallest one.
            step = 2 * to.unit * to.smallest_normal
            nearest = np.where(small, np.rint(values / step) * step, nearest)
        if not size.max(initial=0.0) < to.largest:
            over = np.copysign(np.inf, values) if to.has_infinity else np.nan
            nearest = np.where(np.abs(nearest) > to.largest, over, nearest)
            nearest = np.where(np.isnan(values), values, nearest)
        return nearest


def _by_bits(values: Array, to: Format) -> Array:
    """Normal numbers rounded by adding half a unit to their bits, and cutting off what is too much."""
    surplus = 53 - to.digits
    bits = np.asarray(values, np.float64, order="C").view(np.int64)
    bits = bits + ((bits >> surplus) & 1) + ((1 << (surplus - 1)) - 1)
    return np.asarray(bits & (-1 << surplus)).view(np.float64)
