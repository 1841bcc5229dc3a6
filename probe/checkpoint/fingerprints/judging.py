"""Two tensors compared of which one or both may be a fingerprint: digests tell what is equal, sketches how far."""

from __future__ import annotations

import math

import numpy as np

from probe.checkpoint import measuring
from probe.checkpoint.fingerprints.entry import Entry, Fingerprinted, entry_of, facing, rests_on_fingerprint
from probe.checkpoint.measuring import Measured, coarser, conversions, not_comparable
from probe.checkpoint.report import CLOSE, DIFFERENT, IDENTICAL, ROUNDING
from probe.checkpoint.sampling import apart, sample
from probe.checkpoint.stored import Tensor, Transposed
from probe.common.numerics.digests import BFLOAT16, BITS, CUT, FLOAT16, NOT_KNOWN, VALUE, Digested
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
    unlike = not_comparable(one, other)
    found = by_digests(left.dtype, right.dtype, left.told, right.told)
    if found is not None and (found.verdict == IDENTICAL or not unlike):
        if found.verdict == ROUNDING and left.told.digests[VALUE] != right.told.digests[VALUE]:
            found.l2, found.relative_l2, found.cos = _distances(left.told, right.told)
        return found
    if unlike:
        return Measured(DIFFERENT, unlike, *[math.nan] * 7)
    first, second = left.told, right.told
    if not _same_places(first.sketch, second.sketch, first.nonfinite, second.nonfinite):
        return Measured(DIFFERENT, "NaN or infinities are not at the same positions", *[math.nan] * 7)
    l2, relative, cos = _distances(first, second)
    numbers = (None, None, None, None, l2, relative, cos)
    form = coarser(left.dtype, right.dtype)
    if form is not None and relative <= _UNITS * 2 * form.unit:
        # Numbers that are each two units away are 2^(2 - digits) apart, relative to their norm.
        how = f"so near that a fingerprint does not tell units in the last place of {form.name}"
        return Measured(CLOSE, how, *numbers)
    return Measured(DIFFERENT, "", *numbers)


def by_digests(dtype: str, other_dtype: str, one: Digested, other: Digested) -> Measured | None:
    """The verdict on tensors whose digests prove that they are equal, or that one is the other rounded."""
    if dtype == other_dtype and one.digests[BITS] == other.digests[BITS]:
        return Measured(IDENTICAL)
    equal = one.digests[VALUE] == other.digests[VALUE] != NOT_KNOWN
    if equal and one.is_exact and other.is_exact:
        if dtype == other_dtype:
            return Measured(CLOSE, "0.0 and -0.0, or other bits of NaN")
        longer, shorter = measuring.by_bits(dtype, other_dtype)
        return Measured(ROUNDING, f"{longer} storage of {shorter} values")
    if one.nonfinite != other.nonfinite:
        # A number that a shorter format has as infinity is lost, and not rounded.
        return None
    for words, to, exact in conversions(dtype, other_dtype):
        which = CUT if to is None else _DIGEST_OF.get(to.name)
        long, short = (one, other) if exact == 0 else (other, one)
        if which is not None and short.is_exact and long.digests[which] == short.digests[VALUE] != NOT_KNOWN:
            return Measured(ROUNDING, words, *[None] * 7)
    return None


def _same_places(one: Sketch, other: Sketch, nonfinite: int, others: int) -> bool:
    """True if the same elements are infinite, no numbers or too large for a sketch."""
    if nonfinite != others or one.excluded != other.excluded:
        return False
    return one.marks is None or other.marks is None or bool(np.array_equal(one.marks, other.marks))


def _distances(one: Digested, other: Digested) -> tuple[float, float, float]:
    """The estimated distance, relative to the norm of the second, and the cosine."""
    l2 = distance(one.sketch, other.sketch).estimate
    relative = l2 / other.norm if other.norm else (math.inf if l2 else 0.0)
    return l2, relative, cosine(one.sketch, other.sketch)
