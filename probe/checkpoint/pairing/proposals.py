"""Counterparts by values, for parameters whose names say nothing: proposed with a confidence, never silently.

Values say which class of names belongs to which. Within two classes the order of the numbers in the names decides, not
the values: layers 1 and 3 that are exchanged in one weight are a finding, though every value is somewhere.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from probe.checkpoint.pairing.layouts import plain_readings
from probe.checkpoint.pairing.pairs import Pair, Side
from probe.checkpoint.sampling import SLACK, Samples, apart, sample
from probe.checkpoint.stored import Array, Tensor, Transposed

_FAR = 0.5
"""Samples that differ by half of their length are of different parameters: two independent ones differ by 1.4 times it.
A guess; fine-tuning changes weights by a few percent."""
_NUMBER = re.compile(r"\d+")
_MOST_SLOTS = 4
"""Numbers in a name whose orders are tried; a guess, of which layers and experts need two."""


class _Match(NamedTuple):
    """The nearest parameter of the other side."""

    other: int
    confidence: float
    """1 if no other parameter comes near; 0 if another fits as well."""


def propose(ones: Sequence[Side], others: Sequence[Side]) -> list[Pair]:
    """Pairs of parameters that are left over."""
    kinds: dict[tuple[int, ...], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for index, sides in enumerate((ones, others)):
        for at, side in enumerate(sides):
            kinds[_kind(side)][index].append(at)
    matches: dict[int, _Match] = {}
    for lefts, rights in kinds.values():
        matches.update(_nearest(ones, others, lefts, rights))
    found: dict[int, tuple[int, str]] = {}
    free = set(range(len(others)))
    slots = _slots(ones, others, matches)
    shapes: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for side in ones:
        shapes[_pattern(side)].add(_shape(side))
    orders = [_in_order(ones, others, *classes, matches, slots, shapes) for classes in _classes(ones, others, matches)]
    valued = [
        [(at, match.other) for at, _ in ordered if (match := matches.get(at)) is not None and match.confidence]
        for ordered, _ in orders
    ]
    agree = sum(len(set(ordered) & set(by_value)) for (ordered, _), by_value in zip(orders, valued))
    # Where most values contradict it, the numbers of two sides count different things.
    trusted = 2 * agree >= sum(map(len, valued))
    for (ordered, are_same), by_value in zip(orders, valued):
        for left, right in ordered if trusted or are_same else by_value:
            if right in free and left not in found:
                free.discard(right)
                match = matches.get(left)
                agree = match is not None and match.other == right and match.confidence > 0
                found[left] = (
                    right,
                    f"paired by values (confidence {match.confidence:.2f})"
                    if agree and match
                    else (
                        "paired by shape and order (values fit several)"
                        if match is not None and match.confidence == 0
                        else "paired by the order of the others"
                    ),
                )
    # What no value fits, where as many are left on both sides.
    for lefts, rights in kinds.values():
        rest = [at for at in lefts if at not in found], [at for at in rights if at in free]
        if len(rest[0]) == len(rest[1]):
            for left, right in zip(*rest):
                if len(rest[0]) == 1 or (_shape(ones[left]) == _shape(others[right]) and left in matches):
                    found[left] = right, "paired by shape and order"
    return [
        Pair(ones[left], others[right], readings=plain_readings(others[right].tensor), how=[words])
        for left, (right, words) in sorted(found.items())
    ]


def _shape(side: Side) -> tuple[int, ...]:
    return tuple(length for length in side.tensor.shape if length != 1)


def _kind(side: Side) -> tuple[int, ...]:
    """The shape, the same for a transposed matrix."""
    shape = _shape(side)
    return tuple(sorted(shape)) if len(shape) == 2 else shape


def _pattern(side: Side) -> str:
    return _NUMBER.sub("#", side.name)


def _numbers(side: Side) -> tuple[int, ...]:
    return tuple(map(int, _NUMBER.findall(side.name)))


def _nearest(
    ones: Sequence[Side], others: Sequence[Side], lefts: Sequence[int], rights: Sequence[int]
) -> dict[int, _Match]:
    """The nearest of one shape, for each that is near to any; where several fit as well, each is taken once."""
    alike: dict[object, list[tuple[int, Array]]] = defaultdict(list)
    for at in rights:
        for turned in (False, True):
            for tensor in _both(others[at], turned):
                its = sample(tensor)
                alike[_shape(others[at])[:: -1 if turned else 1], its.size].append((at, its))
    samples = {key: Samples([its for _, its in members]) for key, members in alike.items()}
    distances: dict[int, dict[int, float]] = {}
    for left in lefts:
        own = sample(ones[left].tensor)
        key = _shape(ones[left]), own.size
        if key not in samples:
            continue
        about = samples[key].about(own)
        far: dict[int, float] = {}
        # The nearest two, of which a matrix and its transposed may be one.
        limit = np.partition(about, 2)[2] + SLACK if about.size > 2 else np.inf
        for index in np.flatnonzero(~(about > limit)).tolist():
            at, its = alike[key][index]
            far[at] = min(far.get(at, math.inf), apart(own, its))
        distances[left] = far
    found: dict[int, _Match] = {}
    taken: Counter[int] = Counter()
    for left, far in distances.items():
        least = min(far.values())
        if least > _FAR:
            continue
        second = sorted(far.values())[1] if len(far) > 1 else math.inf
        tied = [at for at, each in far.items() if each == least]
        chosen = min(tied, key=lambda at: taken[at])
        taken[chosen] += 1
        confidence = 1.0 if second == math.inf else 0.0 if len(tied) > 1 else 1 - least / second
        found[left] = _Match(chosen, confidence)
    return found


def _both(side: Side, turned: bool) -> list[Tensor]:
    if not turned:
        return [side.tensor]
    return [Transposed(side.tensor)] if len(side.tensor.shape) == 2 else []


def _slots(ones: Sequence[Side], others: Sequence[Side], matches: dict[int, _Match]) -> dict[int, tuple[int, ...]]:
    """The order of the numbers in names that most matches agree with, by how many numbers there are."""
    votes: dict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)
    for left, match in matches.items():
        own, its = _numbers(ones[left]), _numbers(others[match.other])
        if match.confidence and 0 < len(own) == len(its) <= _MOST_SLOTS:
            for order in itertools.permutations(range(len(own))):
                votes[len(own)][order] += tuple(own[at] for at in order) == its
    return {
        count: max(counter, key=lambda order: (counter[order], tuple(-at for at in order)))
        for count, counter in votes.items()
    }


def _classes(
    ones: Sequence[Side], others: Sequence[Side], matches: dict[int, _Match]
) -> list[tuple[list[int], list[int]]]:
    """Classes of names of both sides that belong together, those with most matches first."""
    mine: dict[object, list[int]] = defaultdict(list)
    its: dict[object, list[int]] = defaultdict(list)
    for sides, into in ((ones, mine), (others, its)):
        for at, side in enumerate(sides):
            into[_pattern(side), _kind(side)].append(at)
    of_other = {at: name for name, members in its.items() for at in members}
    votes: Counter[tuple[object, object]] = Counter()
    for name, members in mine.items():
        for at in members:
            if at in matches:
                votes[name, of_other[matches[at].other]] += 1 if matches[at].confidence else 0
                votes[name, of_other[matches[at].other]] += 0
    found: list[tuple[list[int], list[int]]] = []
    used: set[object] = set()
    order = {name: at for at, name in enumerate([*mine, *its])}
    for (name, other), count in sorted(
        votes.items(), key=lambda item: (-item[1], order[item[0][0]], order[item[0][1]])
    ):
        # A class of numbers alone holds several of those that have names.
        if (name not in used or len(mine[name]) > len(its[other])) and (
            other not in used or len(its[other]) > len(mine[name])
        ):
            found.append((mine[name], its[other]))
            if count:
                used.update((name, other))
    return found


def _in_order(
    ones: Sequence[Side],
    others: Sequence[Side],
    members: Sequence[int],
    its: Sequence[int],
    matches: dict[int, _Match],
    slots: dict[int, tuple[int, ...]],
    shapes: Mapping[str, set[tuple[int, ...]]],
) -> tuple[list[tuple[int, int]], bool]:
    """Pairs of two classes, number by number; and True if both have the same numbers, for one parameter each."""
    order = slots.get(len(_numbers(ones[members[0]])))

    def mine(at: int) -> tuple[int, ...]:
        own = _numbers(ones[at])
        return tuple(own[slot] for slot in order) if order is not None else own

    theirs = {_numbers(others[at]): at for at in its}
    keys = {mine(at): at for at in members}
    if set(keys) == set(theirs):
        return [(at, theirs[key]) for key, at in keys.items()], len(shapes[_pattern(ones[members[0]])]) == 1
    lefts, rights = sorted(members, key=mine), sorted(its, key=lambda at: _numbers(others[at]))
    if len(members) != len(its):
        # One of the classes has numbers that mean something else: those that belong to the other one, in their order.
        inside = set(its)
        lefts = [at for at in lefts if at in matches and matches[at].other in inside]
        used = {matches[at].other for at in lefts}
        rights = [at for at in rights if at in used]
        if len(rights) < len(lefts):
            return [(at, matches[at].other) for at in lefts], False
    return list(zip(lefts, rights)), False
