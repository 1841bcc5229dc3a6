"""Numbers made of the bits in which files store them, also of formats that numpy lacks."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.common.numerics.formats import FORMATS, Format, Kind, format_of

Array = NDArray[Any]
_OWN = {
    **{name: np.dtype(name) for name in ("float64", "float32", "float16", "complex128", "complex64", "bool")},
    **{f"{sign}int{bits}": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""The formats that are types of numpy."""


@cache
def word_type(dtype: str) -> np.dtype[Any] | None:
    """The type of numpy that holds the bits of one element; ``None`` for a dtype that is not known.

    Example:
        >>> word_type("bfloat16"), word_type("float32")
        (dtype('uint16'), dtype('float32'))
    """
    if dtype in _OWN:
        return _OWN[dtype]
    found = format_of(dtype)
    if found is None or found.kind is Kind.TEXT:
        return None
    bits = found.bits * found.packed
    if found.kind is Kind.QUANTISED:
        return np.dtype(f"int{bits}") if found.name.startswith("qint") else np.dtype("uint8")
    return np.dtype(f"uint{bits}") if bits in (8, 16, 32, 64) else None


def decoded(words: Array, dtype: str) -> Array:
    """The numbers that the bits stand for: in float32 or wider, complex ones as pairs in a last axis.

    Integers and truth values become float64. Formats of several numbers in an element stay integers.

    Args:
        words: bits of elements, of the type that `word_type` gives.
        dtype: the plain name of their format.
    """
    found = format_of(dtype)
    if dtype in ("float32", "float64"):
        return words
    if dtype == "float16":
        return words.astype(np.float32)
    if dtype == "bfloat16":
        # The upper half of a float32.
        return (words.astype(np.uint32) << 16).view(np.float32)
    if dtype in ("complex64", "complex128"):
        return (
            np.ascontiguousarray(words)
            .view(np.float32 if dtype == "complex64" else np.float64)
            .reshape(*words.shape, 2)
        )
    if found is not None and found.kind is Kind.FLOAT and found.bits == 8 and not found.tapers:
        return _eight_bits(found.name)[words]
    return words.astype(np.float64)


@cache
def _eight_bits(name: str) -> Array:
    """The number that each of the 256 words of a format stands for.

    The significand takes the last ``digits - 1`` bits and the exponent those before it. A format without infinities has
    NaN in the words that would be larger than its largest number, or, without negative zero, in that word alone.
    """
    of = FORMATS[name.lower().replace("_", "")]
    words = np.arange(256)
    signed = of.lowest < 0
    fraction_bits = of.digits - 1
    exponent = (words & (0x7F if signed else 0xFF)) >> fraction_bits
    fraction = words & ((1 << fraction_bits) - 1)
    if not signed:
        return _scales(of, words)
    normal = np.ldexp(1 + fraction / (1 << fraction_bits), exponent - 1 + of.least_exponent)
    subnormal = np.ldexp(fraction / (1 << fraction_bits), of.least_exponent)
    values = np.where(exponent == 0, subnormal, normal)
    if of.name.endswith("fnuz"):
        values[0x80] = math.nan
    elif of.has_infinity:
        highest = exponent == exponent.max()
        values[highest & (fraction == 0)] = math.inf
        values[highest & (fraction != 0)] = math.nan
    else:
        values[values > of.largest] = math.nan
    result: Array = np.where(words & 0x80, -values, values).astype(np.float32)
    return result


def _scales(of: Format, words: Array) -> Array:
    """Powers of two; the last word is NaN."""
    values = np.ldexp(1.0, words + of.least_exponent)
    values[0xFF] = math.nan
    result: Array = values.astype(np.float32)
    return result
