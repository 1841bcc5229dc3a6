"""Dropout, judged by what it promises: kept elements are scaled, and as many are dropped as chance makes likely.

The share is held against the Chernoff bound of a binomial distribution (W. Hoeffding, J. Amer. Statist. Assoc. 58,
1963, theorem 1), which holds for any number of elements: of 20 at p = 0.5, all are dropped once in a million times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from probe.calls.verdict import bounds
from probe.calls.verdict.subject import ERROR, EXACT, NONFINITE, PASS, Array, KernelVerdict, Subject
from probe.common.numerics.formats import Format, rounding_format
from probe.common.numerics.rounding import rounded_to, rounding_scale

IMPROBABLE = 1e-6
"""A share of dropped elements that chance gives less often is an error."""
_ROUNDINGS = 4
"""The roundings of the factor, of the product, and of the noise's constants."""
_SELU_FLOOR = -1.7580993408473766
"""The value of elements dropped by alpha dropout, before the scale: the lowest value of SELU (Klambauer et al. 2017).
"""
BOUND = "dropout"


def judge(subject: Subject) -> KernelVerdict | None:
    """The verdict on an output or gradient of dropout; ``None`` of another operation, or where nothing is dropped."""
    rule = bounds.dropped_dimensions(subject.base)
    of = rounding_format(subject.dtype)
    if rule is None or of is None or of.is_complex or not subject.inputs:
        return None
    name, leading = rule
    source = np.asarray(subject.inputs[-1 if subject.direction == "backward" else 0], np.float64)
    result = np.asarray(subject.result, np.float64)
    if source.shape != result.shape or _setting(subject.settings, ("training", "train"), 2) is False:
        return None
    finite = np.isfinite(source)
    if not np.array_equal(np.isfinite(result), finite):
        wrong = np.isfinite(result) != finite
        words = f"{int(np.count_nonzero(wrong))} of {wrong.size} elements are not finite where the input is"
        return KernelVerdict(NONFINITE, words, BOUND)
    p = _setting(subject.settings, ("p",), 1)
    if not isinstance(p, (int, float)) or isinstance(p, bool):
        if _is_mask(subject, source, result):
            return KernelVerdict(PASS, "which elements are kept", BOUND)
        # A primitive has its share in an attribute.
        p = _told_by_scale(source, result) if subject.base.startswith("Primitive.") else 0.5
    if p is None or not 0 <= p <= 1:
        return None
    kept, dropped = _values(name, source, float(p), subject.direction == "backward")
    return _judged(result, source, kept, dropped, float(p), leading, of)


def _is_mask(subject: Subject, source: Array, result: Array) -> bool:
    """True if this is the second output of a primitive of MindSpore, which has no value of its own."""
    is_primitive = subject.base.startswith("Primitive.") and subject.direction == "forward"
    return is_primitive and bool(np.isin(result, (0, 1)).all()) and not np.isin(source, (0, 1)).all()


def _setting(settings: Mapping[str, Any], names: tuple[str, ...], position: int) -> Any:
    return next((settings[name] for name in (*names, str(position)) if name in settings), None)


def _told_by_scale(source: Array, result: Array) -> float | None:
    """The share that belongs to the factor of what is not zero; ``None`` where all is."""
    seen = (source != 0) & (result != 0)
    if not seen.any():
        return None
    return float(1 - 1 / max(float(np.median(result[seen] / source[seen])), 1.0))


def _values(name: str, source: Array, p: float, backward: bool) -> tuple[Array, float]:
    """The values of a kept and of a dropped element."""
    if "alpha" not in name:
        return source / (1 - p) if p < 1 else np.zeros_like(source), 0.0
    if p == 1:
        return np.zeros_like(source), 0.0
    scale = ((1 - p) * (1 + p * _SELU_FLOOR**2)) ** -0.5
    if backward:
        return source * scale, 0.0
    shift = -scale * p * _SELU_FLOOR
    return source * scale + shift, scale * _SELU_FLOOR + shift


def _judged(
    result: Array, source: Array, kept: Array, dropped: float, p: float, leading: int | None, of: Format
) -> KernelVerdict:
    size = np.abs(source).max(initial=0.0, where=np.isfinite(source)) if dropped else 0.0
    allowed = _ROUNDINGS * of.unit * (rounding_scale(np.abs(kept), of) + abs(dropped) + size)
    if of.may_flush:
        allowed = allowed + of.smallest_normal
    is_kept = np.abs(result - kept) <= allowed
    is_kept |= ~np.isfinite(source)
    is_dropped = np.abs(result - dropped) <= _ROUNDINGS * of.unit * 4 * abs(dropped)
    other = ~(is_kept | is_dropped)
    if other.any():
        first = np.unravel_index(int(other.argmax()), other.shape)
        value, wanted = float(result[first]), float(rounded_to(np.asarray(kept[first]), of))
        words = (
            f"{int(np.count_nonzero(other))} of {other.size} elements are neither dropped nor kept and scaled: "
            f"{value:.6g} where {wanted:.6g} or {dropped:.6g} is right for p = {p:.6g}"
        )
        ratios = np.where(other, np.abs(result - kept) / allowed, 0.0)
        share = float(np.count_nonzero(other) / other.size)
        ratio = float(ratios.max())
        return KernelVerdict(
            ERROR, words, BOUND, ratio, float(np.broadcast_to(allowed, other.shape)[first]),
            tuple(map(int, first)), value, wanted, share_over=share,
        )  # fmt: skip
    # Where both are the same value nothing is told.
    told = ~(is_kept & is_dropped)
    gone, count = _counts(is_dropped & told, told, leading)
    if gone is None:
        return KernelVerdict(ERROR, "a channel is dropped in part", BOUND)
    if count and _chance(gone, count, p) < IMPROBABLE:
        words = f"{gone} of {count} {'channels' if leading else 'elements'} dropped at p = {p:.6g}"
        return KernelVerdict(ERROR, words, BOUND, share_over=1.0)
    words = f"{gone} of {count} dropped at p = {p:.6g}, the others scaled"
    is_exact = bool(np.array_equal(result[is_kept], rounded_to(kept, of)[is_kept], equal_nan=True))
    return KernelVerdict(EXACT if is_exact else PASS, words, BOUND, share_over=0.0)


def _counts(gone: Array, told: Array, leading: int | None) -> tuple[int | None, int]:
    """The number of dropped elements, and the number of all; ``None`` if one channel is dropped in part."""
    if leading is None or gone.ndim <= leading:
        return int(np.count_nonzero(gone)), int(np.count_nonzero(told))
    shape = (math.prod(gone.shape[:leading]), -1)
    gone_of, told_of = (np.count_nonzero(mask.reshape(shape), axis=1) for mask in (gone, told))
    seen = told_of > 0
    if (gone_of[seen] % told_of[seen]).any():
        return None, 0
    return int(np.count_nonzero(gone_of)), int(np.count_nonzero(seen))


def _chance(gone: int, count: int, p: float) -> float:
    """At most how often a share this far from `p`, or farther, comes by chance."""
    share = gone / count
    exponent = 0.0
    for seen, expected in ((share, p), (1 - share, 1 - p)):
        if seen:
            if not expected:
                return 0.0
            exponent += seen * math.log(seen / expected)
    return 2 * math.exp(-count * exponent)
