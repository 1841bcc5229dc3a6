"""Counterparts by values, for parameters whose names say nothing: proposed with a confidence, never silently."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from probe.checkpoint.names.scheme import layer_of
from probe.checkpoint.pairing.pairs import Side
from probe.checkpoint.pairing.sampling import apart, sample
from probe.checkpoint.stored.tensors import Transposed

_FAR = 0.5
"""Samples that differ by half of their length are of different parameters: two independent ones differ by 1.4 times it.
A guess; fine-tuning changes weights by a few percent."""
_NUMBER = re.compile(r"\d+")


class Proposal(NamedTuple):
    """Two parameters that belong together, to judge by their values."""

    one: Side
    other: Side
    confidence: float
    """1 if no other parameter comes near; 0 if another fits as well."""
    transposed: bool
    by_order: bool = False
    """True if several fit equally well, as norms of a new model do, and their order decided."""


def propose(ones: Sequence[Side], others: Sequence[Side]) -> list[Proposal]:
    """Pairs of parameters that are left over, the surest first."""
    by_shape: dict[tuple[int, ...], list[Side]] = defaultdict(list)
    for side in others:
        by_shape[_kind(side)].append(side)
    found: list[Proposal] = []
    taken: set[int] = set()
    groups: dict[tuple[int, ...], list[Side]] = defaultdict(list)
    for side in ones:
        groups[_kind(side)].append(side)
    for kind, sides in groups.items():
        found += _in_group(sides, by_shape.get(kind, []), taken)
    return found


def _kind(side: Side) -> tuple[int, ...]:
    """The shape, the same for a transposed matrix."""
    shape = tuple(length for length in side.tensor.shape if length != 1)
    return tuple(sorted(shape)) if len(shape) == 2 else shape


def _in_group(ones: Sequence[Side], others: Sequence[Side], taken: set[int]) -> list[Proposal]:
    samples = [(sample(side.tensor), sample(Transposed(side.tensor)) if _is_matrix(side) else None) for side in others]
    rows = []
    for side in ones:
        own = sample(side.tensor)
        distances = []
        for other, (plain, turned) in zip(others, samples):
            far = apart(own, plain) if side.tensor.shape == other.tensor.shape else math.inf
            far_turned = math.inf
            if turned is not None and side.tensor.shape == other.tensor.shape[::-1]:
                far_turned = apart(own, turned)
            if far == math.inf and side.tensor.size == other.tensor.size and not _is_matrix(side):
                far = apart(own.reshape(-1), plain.reshape(-1))
            distances.append((min(far, far_turned), far_turned < far))
        rows.append(distances)
    found: list[Proposal] = []
    while True:
        best = _surest(rows, ones, others, taken, found)
        if best is None:
            return found
        found.append(best)
        taken.update((id(best.one), id(best.other)))


def _is_matrix(side: Side) -> bool:
    return len(side.tensor.shape) == 2


def _surest(
    rows: list[list[tuple[float, bool]]],
    ones: Sequence[Side],
    others: Sequence[Side],
    taken: set[int],
    found: list[Proposal],
) -> Proposal | None:
    best: tuple[tuple[float, float, int, int], Proposal] | None = None
    patterns = {(_pattern(each.one), _pattern(each.other)) for each in found}
    for index, side in enumerate(ones):
        if id(side) in taken:
            continue
        left = [
            (far, not _fits(side, others[at], patterns), at, turned)
            for at, (far, turned) in enumerate(rows[index])
            if id(others[at]) not in taken
        ]
        if not left:
            continue
        left.sort()
        far, _, at, turned = left[0]
        if far > _FAR:
            continue
        second = left[1][0] if len(left) > 1 else math.inf
        tied = second == far
        confidence = 1.0 if second == math.inf else 0.0 if tied else 1 - far / second
        proposal = Proposal(side, others[at], confidence, turned, tied)
        rank = (-confidence, far, index, at)
        if best is None or rank < best[0]:
            best = rank, proposal
    return None if best is None else best[1]


def _fits(one: Side, other: Side, patterns: set[tuple[str, str]]) -> bool:
    """True if both are in layers of one number, or names like these were paired before."""
    layers = layer_of(one.key), layer_of(other.key)
    if layers[0] is not None and layers[1] is not None and layers[0].number != layers[1].number:
        return False
    numbers = _NUMBER.findall(one.name), _NUMBER.findall(other.name)
    return numbers[0][:1] == numbers[1][:1] or (_pattern(one), _pattern(other)) in patterns


def _pattern(side: Side) -> str:
    return _NUMBER.sub("#", side.name)
