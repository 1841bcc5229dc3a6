"""Two tensors compared of which one or both may be a fingerprint: digests tell what is equal, sketches how far it is."""

from __future__ import annotations

import math

import numpy as np

from probe.checkpoint import measuring
from probe.checkpoint.fingerprints.entry import Entry, Fingerprinted, entry_of, facing, rests_on_fingerprint
from probe.checkpoint.measuring import Measured, coarser, conversions, not_comparable
from probe.checkpoint.report import CLOSE, DIFFERENT, IDENTICAL, ROUNDING
from probe.checkpoint.sampling import apart, sample
from probe.checkpoint.stored import Tensor, Transposed
from probe.common.numerics.digests import BFLOAT16, BITS, CUT, FLOAT16, NOT_KNOWN, VALUE
from probe.common.numerics.formats import Format
from probe.common.numerics.sketch import Sketch, cosine, distance

_DIGEST_OF = {"bfloat16": BFLOAT16, "float16": FLOAT16, "float32": VALUE}
_UNITS = 2.0
"""Units in the last place by which all numbers of close tensors may be apart; see `measuring`."""


def measure(one: Tensor, other: Tensor) -> Measured:
    """Compare two tensors of one shape, by values where both have them.

    Raises:
        NotHeldError: a part of a fingerprint is asked for that it does not have.
    """
    if not (rests_on_fingerprint(one) or rests_on_fingerprint(other)):
        return measuring.measure(one, other)
    one, other = facing(one, other)
    left, right = turned_pair(one, other)
    if left is not None and right is not None:
        return _turned(left, right, one, other)
    return judged(entry_of(one), entry_of(other), one, other)


def are_same(one: Tensor, other: Tensor) -> bool:
    """True if both have the same dtype, shape and bits."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return measure(one, other).verdict == IDENTICAL


def turned_pair(one: Tensor, other: Tensor) -> tuple[Fingerprinted | None, Fingerprinted | None]:
    """Two fingerprints of which one is read transposed."""
    for left, right in ((one, other), (other, one)):
        if isinstance(left, Fingerprinted) and isinstance(right, Transposed) and isinstance(right.of, Fingerprinted):
            return left, right.of
    return None, None


def _turned(left: Fingerprinted, right: Fingerprinted, one: Tensor, other: Tensor) -> Measured:
    """Two fingerprints, transposed: the same numbers in any order, of which the samples agree."""
    same = left.entry.told.elements == right.entry.told.elements and apart(sample(one), sample(other)) == 0
    if not same:
        return Measured(DIFFERENT, "", *[None] * 7)
    if left.dtype == right.dtype:
        return Measured(IDENTICAL)
    longer, shorter = measuring.by_bits(left.dtype, right.dtype)
    return Measured(ROUNDING, f"{longer} storage of {shorter} values")


def judged(left: Entry, right: Entry, one: Tensor, other: Tensor) -> Measured:
    """The verdict on two fingerprints."""
    first, second = left.told, right.told
    if left.dtype == right.dtype and first.digests[BITS] == second.digests[BITS]:
        return Measured(IDENTICAL)
    unlike = not_comparable(one, other)
    if unlike:
        return Measured(DIFFERENT, unlike, *[math.nan] * 7)
    equal = first.digests[VALUE] == second.digests[VALUE]
    if not equal and not _same_places(first.sketch, second.sketch, first.nonfinite, second.nonfinite):
        return Measured(DIFFERENT, "NaN or infinities are not at the same positions", *[math.nan] * 7)
    if equal and first.is_exact and second.is_exact:
        if left.dtype == right.dtype:
            return Measured(CLOSE, "0.0 and -0.0, or other bits of NaN")
        longer, shorter = measuring.by_bits(left.dtype, right.dtype)
        return Measured(ROUNDING, f"{longer} storage of {shorter} values")
    l2, relative, cos = _distances(first.sketch, second.sketch, first.norm, second.norm)
    numbers = (None, None, None, None, l2, relative, cos)
    for words, to, exact in conversions(left.dtype, right.dtype):
        which = CUT if to is None else _DIGEST_OF.get(to.name)
        long, short = (first, second) if exact == 0 else (second, first)
        if which is None or not short.is_exact:
            continue
        if long.digests[which] == short.digests[VALUE] != NOT_KNOWN:
            return Measured(ROUNDING, words, *numbers)
    form = coarser(left.dtype, right.dtype)
    if form is not None and _may_be_close(first.sketch, second.sketch, relative, form):
        how = f"so near that a fingerprint does not tell units in the last place of {form.name}"
        return Measured(CLOSE, how, *numbers)
    return Measured(DIFFERENT, "", *numbers)


def _same_places(one: Sketch, other: Sketch, nonfinite: int, others: int) -> bool:
    """True if the same elements are infinite, no numbers or too large for a sketch."""
    if nonfinite != others or one.excluded != other.excluded:
        return False
    return one.marks is None or other.marks is None or bool(np.array_equal(one.marks, other.marks))


def _distances(one: Sketch, other: Sketch, norm: float, other_norm: float) -> tuple[float, float, float]:
    """The estimated distance, relative to the norm of the second, and the cosine.

    Of vectors a and b, |a|^2 + |b|^2 - |a - b|^2 is twice their product, which is nearer than the product of sketches
    where both are alike; the norms are exact.
    """
    l2 = distance(one, other).estimate
    relative = l2 / other_norm if other_norm else (math.inf if l2 else 0.0)
    if not norm or not other_norm:
        return l2, relative, math.nan
    cos = (norm * norm + other_norm * other_norm - l2 * l2) / (2 * norm * other_norm)
    return l2, relative, cos if cos > 0.9 else cosine(one, other)


def _may_be_close(one: Sketch, other: Sketch, relative: float, form: Format) -> bool:
    """True if no number is known to be more than two units in the last place away.

    Numbers of which each is two units away are `2^(2 - digits)` apart, relative to their norm. A lane that is away by
    more than that, where few of them differ, holds one element that is.
    """
    return relative <= _UNITS * 2 * form.unit
