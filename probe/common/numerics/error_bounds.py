"""The relative difference of two tensors of a call, and how large it may be, given what went into the call.

The bound is a first-order one. The relative error of a result is at most the condition number of the call times the
relative error of what goes in, plus what rounding adds, which for sums of k terms is about ``sqrt(k) * u`` with the
unit roundoff u (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., sections 1.6 and 3.1; N. J.
Higham and T. Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41 (2019), A2815).
The condition number is not known; it is bounded by how much smaller the result is than the terms it is made of, which
is how cancellation loses digits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from probe.common.dump.reading.items import Shape
from probe.common.dump.reading.records import Item
from probe.common.numerics.formats import unit_roundoff
from probe.common.operations.function import DOT_PRODUCT, Trait
from probe.common.operations.lookup import function

SAFETY = 8.0
"""Stands for the constants that a first-order bound leaves out."""
CONFIDENCE = 4.0
"""Higham and Mary's lambda: rounding exceeds the bound once in 1500 times at most."""

ALTOGETHER = 1e30
"""The relative difference where there is no being near: whole numbers, shapes. Other than infinity it makes no NaN."""

_FLOAT32 = unit_roundoff("float32")
# Numbers beyond this are not the model's: masks are made of large negative ones.
_MASK = 1e4
# A fill value of 1e4, with what it was added to.
_FILL = 0.9 * _MASK

GRADIENT = "backward"


class Extent(NamedTuple):
    """A shape, as far as the rule asks for it."""

    elements: int
    longest: int


@cache
def extent(shape: Shape | None) -> Extent:
    """Number of elements and longest dimension of a shape."""
    # A dimension that is not known yet is -1 with MindSpore.
    sizes = [size for size in shape or () if size >= 0]
    return Extent(math.prod(sizes), max(sizes, default=1))


def are_empty(target: Item, golden: Item) -> bool:
    """True if these are tensors of one shape without elements."""
    shape = target.shape
    return shape is not None and 0 in shape and shape == golden.shape and target.is_tensor and golden.is_tensor


def coarsest(items: Iterable[Item]) -> float:
    """The largest unit roundoff of their types."""
    return max((unit_roundoff(item.dtype) for item in items), default=0.0)


def is_number(value: Any) -> bool:
    """True if it is a number, which a flag is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    """True if it is a number that a float can hold, which an integer need not be."""
    return is_number(value) and abs(value) <= sys.float_info.max


# --- the relative difference


def is_same(target: Item, golden: Item) -> bool:
    """True if the dumps say the same of two items' values, NaN included."""
    if target is golden or (
        target.norm == golden.norm and target.max == golden.max and target.min == golden.min
        and target.mean == golden.mean and target.md5 == golden.md5
    ):  # fmt: skip
        return True
    known = _known(target, golden)
    return bool(known) and all(_agree(x, y) for x, y in known)


def _known(target: Item, golden: Item) -> list[tuple[Any, Any]]:
    """The words of the dumps on both items; a checksum of another kind tells nothing."""
    pairs = [
        (target.norm, golden.norm), (target.max, golden.max), (target.min, golden.min), (target.mean, golden.mean)
    ]  # fmt: skip
    if (target.md5 is not None) and (golden.md5 is not None) and is_xor(target.md5) == is_xor(golden.md5):
        pairs.append((target.md5, golden.md5))
    return [(x, y) for x, y in pairs if x is not None and y is not None]


def are_comparable(target: Item, golden: Item) -> bool:
    """True if the dumps say something of both items that can be held against each other."""
    return target is golden or target.value is not None or bool(_known(target, golden))


def is_xor(checksum: str) -> bool:
    """True if a checksum is the exclusive or of the elements and no CRC-32."""
    return checksum.startswith("0x")


def is_finite(item: Item) -> bool:
    """True if no statistic of a tensor is NaN or infinite."""
    return all(not is_number(value) or _is_finite(value) for value in (item.max, item.min, item.mean, item.norm))


def relative_difference(target: Item, golden: Item, exact: float | None = None) -> float:
    """The amount by which `target` and `golden` differ, relative to the larger one.

    Args:
        target, golden: two tensors of one shape, or two plain values.
        exact: the norm of the difference by that of the larger one, where the values themselves were compared.

    Returns:
        0 where the dumps say the same of both; infinity where one is NaN or infinite and the other is not; `ALTOGETHER`
        where what has no rounding differs; otherwise `exact`, or as much as the statistics give away: the difference of
        max and min relative to the largest value, of the norm relative to the norm, of the mean relative to the rms.
    """
    if exact is None and _are_four_finite_numbers(target, golden):
        return _by_statistics(target, golden)
    if is_same(target, golden) and not exact:
        return 0.0
    statistics = (
        (target.max, golden.max), (target.min, golden.min), (target.mean, golden.mean), (target.norm, golden.norm)
    )  # fmt: skip
    pairs = [(x, y) for x, y in statistics if x is not None and y is not None and not _agree(x, y)]
    roundoff = coarsest((target, golden))
    if not roundoff and target.value is None:
        return ALTOGETHER if exact or not all(_agree(x, y) for x, y in _known(target, golden)) else 0.0
    if not all(_is_finite(value) for pair in pairs for value in pair):
        return math.inf
    if exact is not None:
        return exact
    if not pairs:
        # Only the checksums differ. With statistics beside them that is little; alone they say no more than that.
        return roundoff if target.norm is not None and golden.norm is not None else ALTOGETHER
    if target.value is not None:
        return max(_relative(x, y) for x, y in pairs)
    if not all(is_number(value) for pair in statistics for value in pair):
        return _by_some_statistics(statistics)
    return _by_statistics(target, golden)


def _are_four_finite_numbers(target: Item, golden: Item) -> bool:
    """True if both have four finite numbers and a type that rounds, as nearly all tensors that differ have."""
    values = (target.max, target.min, target.mean, target.norm, golden.max, golden.min, golden.mean, golden.norm)
    if set(map(type, values)) != _FLOAT or target.value is not None:
        return False
    return math.isfinite(sum(values)) and unit_roundoff(golden.dtype) > 0


_FLOAT = {float}


def _agree(x: Any, y: Any) -> bool:
    return bool(x == y or (x != x and y != y))


def _by_statistics(target: Item, golden: Item) -> float:
    of_max, of_min = target.max - golden.max, target.min - golden.min
    return by_differences(target, golden, of_max, of_min, target.mean - golden.mean, target.norm - golden.norm)


def by_differences(target: Item, golden: Item, of_max: float, of_min: float, of_mean: float, of_norm: float) -> float:
    """`relative_difference` of two tensors with finite statistics and a type that rounds, given their differences."""
    a, c, d, e = target.max, target.min, golden.max, golden.min
    largest = max(abs(a), abs(c), abs(d), abs(e))
    if not largest:
        return 0.0
    if largest > _MASK:
        # Beside a mask everything is small; what is not the mask has a size of its own.
        return float(max(_relative(a, d), _relative(c, e)))
    difference = max(abs(of_max), abs(of_min)) / largest
    length = max(target.norm, golden.norm)
    if length:
        difference = max(difference, abs(of_norm) / length, abs(of_mean) * _spread(golden.shape) / length)
    return float(difference)


@cache
def _spread(shape: Shape | None) -> float:
    return math.sqrt(extent(shape).elements)


def _by_some_statistics(statistics: Sequence[tuple[Any, Any]]) -> float:
    """The relative difference where some statistics are missing; max and min, else norms, else means give the size."""
    largest, smallest, means, norms = ([abs(value) for value in pair if _is_finite(value)] for pair in statistics)
    size = max(largest + smallest or norms or means, default=0.0)
    differences = [abs(x - y) for x, y in statistics[:3] if _is_finite(x) and _is_finite(y)]
    between_norms = _relative(*norms) if len(norms) == 2 else 0.0
    return float(max(between_norms, max(differences, default=0.0) / size if size else 0.0))


def beside_fill_values(target: Item, golden: Item) -> float | None:
    """The relative difference of two masked tensors without the numbers that fill their masks.

    A mask is filled with -1e4, -1e9, the lowest number of the type or minus infinity, which are all the same to a
    softmax. Any other large number may be the fill where it is repeated.

    Returns:
        ``None`` where one of them has no mask, and where the masks cover another share of the elements.
    """
    if all(is_number(item.max) and item.max == item.min and _is_known(item.min, 0.0) for item in (target, golden)):
        return 0.0  # What a mask is made from: nothing but the number.
    for side, other in (("min", "max"), ("max", "min")):
        fills = [getattr(item, side) for item in (target, golden)]
        rest = [getattr(item, other) for item in (target, golden)]
        if not all(is_number(fill) and (fill <= -_FILL if side == "min" else fill >= _FILL) for fill in fills):
            continue
        # Where what is left is as large, it is no mask but a tensor of large numbers.
        if not all(_is_finite(value) and abs(value) < _FILL for value in rest):
            return None
        largest = max(map(abs, rest))
        if not all(_is_fill(item, fill, largest) for item, fill in zip((target, golden), fills)):
            return None
        shares = [
            item.mean / fill
            for item, fill in zip((target, golden), fills)
            if _is_finite(item.mean) and _is_finite(fill)
        ]
        blurred = 1e-3 + 2.0 * largest / min(map(abs, fills))
        if len(shares) == 2 and abs(shares[0] - shares[1]) > blurred:
            return None
        return _relative(*rest)
    return None


# Usual values, and the lowest number of float16; beyond the last of all only the lowest of wider types are.
_FILLS = (1e4, 65500.0, 65504.0, 1e9, 1e20)
_LOWEST = 1e30
"""Sizes from here on are fills such as the lowest number of a dtype, and no values that were computed; a guess."""


def _is_known(fill: float, rest: float) -> bool:
    size = abs(fill)
    if size >= _LOWEST:
        return fill < 0 or size < math.inf
    return any(abs(size - known) <= 1e-3 * known + 2.0 * rest for known in _FILLS)


def _is_fill(item: Item, fill: float, rest: float) -> bool:
    """True if a mask is filled with `fill`, which is a known or a repeated number; `rest` may be added to it."""
    if _is_known(fill, rest):
        return True
    if not (_is_finite(fill) and _is_finite(item.mean) and _is_finite(item.norm)):
        return False
    # Of one number that is repeated, the mean gives the same share of elements as the norm does.
    elements = extent(item.shape).elements or 1
    share = item.mean / fill
    of_norm = (item.norm / fill) ** 2 / elements
    return bool(share * elements > 1.5 and abs(share - of_norm) <= 0.02 * share)


def _relative(x: float, y: float) -> float:
    if _agree(x, y) or not (_is_finite(x) and _is_finite(y)):
        return 0.0
    return abs(x - y) / max(abs(x), abs(y))


# --- how large it may be


def rms(item: Item) -> float:
    """Root of the mean square of a tensor's elements; 0 where the statistics do not tell.

    Of a tensor with a mask in it, the largest of its other extremes.
    """
    norm = item.norm
    if type(norm) is float and 0 <= norm < _MASK:
        # No value is larger than the norm.
        return norm / (_spread(item.shape) or 1.0)
    extremes = [abs(value) for value in (item.max, item.min) if is_number(value)]
    is_all_large = len(extremes) == 2 and _MASK < min(extremes) <= max(extremes) < _LOWEST
    if not _is_finite(norm) or (max(extremes, default=0.0) > _MASK and not is_all_large):
        return float(max((value for value in extremes if value <= _MASK), default=0.0))
    return float(abs(norm)) / (_spread(item.shape) or 1.0)


class Terms(msgspec.Struct, gc=False):
    """The facts on a call's inputs."""

    error: float = 0.0
    """The largest relative difference of an input."""
    largest: float = 0.0
    """The largest value, masks left out."""
    count: int = 1
    """The largest number of elements of what the result is made of."""
    operands: tuple[int, int] = (1, 1)
    """The two largest numbers of elements of any."""
    longest: int = 1
    """The longest dimension."""
    roundoff: float = 0.0
    """The unit roundoff of the coarsest type."""
    factors: tuple[float, float] = (0.0, 0.0)
    """The two largest rms."""
    kept: float = 0.0
    """The largest rms of what the forward kept."""

    @property
    def scale(self) -> float:
        """The largest rms."""
        return self.factors[0]

    def add(self, item: Item, difference: float) -> None:
        """Count in an input that the result is made of, given its relative difference."""
        elements = self.add_operand(item, difference)
        if elements is None:
            return
        size = rms(item)
        if size > self.factors[1]:
            first = self.factors[0]
            self.factors = (size, first) if size > first else (first, size)
        if elements > self.count:
            self.count = elements
        for value in (item.max, item.min):
            if is_number(value) and self.largest < abs(value) <= _MASK:
                self.largest = abs(value)

    def add_operand(self, item: Item, difference: float) -> int | None:
        """Count in one that only scales it: a parameter, or what the forward kept for the backward.

        Returns:
            Its number of elements; ``None`` of a dtype without rounding.
        """
        if difference > self.error:
            self.error = difference
        roundoff = unit_roundoff(item.dtype)
        if not roundoff:
            return None
        elements, longest = extent(item.shape)
        if roundoff > self.roundoff:
            self.roundoff = roundoff
        if longest > self.longest:
            self.longest = longest
        if elements > self.operands[1]:
            first = self.operands[0]
            self.operands = (elements, first) if elements > first else (first, elements)
        return elements

    def add_kept(self, item: Item, difference: float) -> None:
        """Count in what the forward kept for a backward."""
        if self.add_operand(item, difference) is not None:
            size = rms(item)
            if size > self.kept:
                self.kept = size

    def summed(self, count: int) -> float:
        """About how many terms an element of an output of `count` elements is the sum of.

        A product of an m x k and a k x n matrix sums k terms, which is the root of (m k)(k n) / (m n). The same root
        counts batch and pixels in the gradient of a convolution's weight.
        """
        elements = count or 1
        return max(self.longest, math.sqrt(self.operands[0] * self.operands[1] / elements), self.count / elements)


@cache
def _kind(api: str) -> tuple[bool, bool, bool]:
    """Flags: a function keeps relative errors, makes them of absolute ones, may add up many terms that cancel."""
    known = function(api)
    adds = known.has(Trait.ADDS) or api == GRADIENT
    return known.has(Trait.RELATIVE), known.has(Trait.EXPONENTIAL), adds


def condition(api: str, terms: Terms, count: int, size: float) -> float:
    """A bound of how much a relative error of the inputs can grow in an output.

    Args:
        api: the function's own name, `GRADIENT` of a backward, and empty of a module.
        terms: the inputs.
        count: the number of elements of the output.
        size: their root mean square, the larger of both runs.
    """
    is_relative, is_exponential, adds = _kind(api)
    if is_relative:
        return 1.0
    if is_exponential:
        return 1.0 + 2.0 * terms.largest
    scale = terms.scale * (math.sqrt(max(1.0, terms.count / count)) if adds and count else 1.0)
    if size >= scale:
        return 1.0
    return scale / size if size else math.inf


def condition_of_product(api: str, terms: Terms, count: int, size: float, of_parameter: bool = False) -> float:
    """The bound of sums of products, whose terms may be larger than either factor is; arguments as of `condition`.

    The gradient of a parameter is a sum over batch and places of what came in times what comes back.
    """
    if api == GRADIENT:
        number = terms.summed(count) if of_parameter else terms.count / (count or 1)
        size_of_sum = terms.scale * terms.kept * math.sqrt(max(1.0, number))
    elif function(api).rounding == DOT_PRODUCT:
        size_of_sum = terms.factors[0] * terms.factors[1] * math.sqrt(terms.summed(count))
    else:
        return 1.0
    return max(1.0, size_of_sum / size) if size else 1.0


def rounding(terms: float, roundoff: float) -> float:
    """The relative error that rounding adds to a call's result.

    Types of 16 bits and fewer are summed in float32, as processors do, and rounded once.

    Args:
        terms: how many terms the sums in it have.
        roundoff: the unit roundoff of the coarsest type that takes part.
    """
    return CONFIDENCE * (roundoff + math.sqrt(terms) * min(roundoff, _FLOAT32))


def approximation(name: str) -> float:
    """The relative error that kernels of two frameworks add to a function, by its name or its layer's."""
    return function(name.lower()).approximation


def explained(error: float, factor: float, added: float) -> float:
    """The relative difference of an output that is explained.

    Args:
        error: the relative difference of the inputs.
        factor: `condition` of the call.
        added: `rounding`.
    """
    return factor * (SAFETY * error + added) if error or added else 0.0
