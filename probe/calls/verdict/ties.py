"""Results that are places in an input: of equal values either may be meant."""

from __future__ import annotations

import numpy as np

from probe.calls.verdict import bounds
from probe.calls.verdict.subject import Array, Subject


def are_ties(subject: Subject) -> bool:
    """True if the result and the reference are places of the same values of the first input."""
    rule = bounds.place_rule(subject.base)
    if rule is None or not subject.inputs or subject.result.dtype.kind not in "iu":
        return False
    argument, default, distinct = rule
    dim = subject.settings.get("dim", subject.settings.get("axis", subject.settings.get(str(argument))))
    dim = default if dim is None else dim
    values = subject.inputs[0]
    result, reference = subject.result, np.asarray(subject.reference)
    if dim is None:
        values, result, reference, dim = values.ravel(), result.ravel(), reference.ravel(), 0
    if not isinstance(dim, int) or not -max(values.ndim, 1) <= dim < max(values.ndim, 1):
        return False
    if not values.ndim:
        return False
    dim %= values.ndim
    if result.ndim == values.ndim - 1:
        result, reference = np.expand_dims(result, dim), np.expand_dims(reference, dim)
    others = [size for axis, size in enumerate(values.shape) if axis != dim]
    if [size for axis, size in enumerate(result.shape) if axis != dim] != others or result.ndim != values.ndim:
        return False
    if not _are_within(result, values.shape[dim]):
        return False
    if distinct and _repeats(result, dim):
        return False
    pointed, meant = (np.take_along_axis(values, index.astype(np.int64), dim) for index in (result, reference))
    return bool(np.array_equal(pointed, meant, equal_nan=values.dtype.kind in "fc"))


def _are_within(places: Array, size: int) -> bool:
    return bool(((places >= 0) & (places < size)).all())


def _repeats(places: Array, dim: int) -> bool:
    """True if a place occurs twice along the dimension."""
    return bool((np.diff(np.sort(places, dim), axis=dim) == 0).any())
