"""Tensors of two runs that hold the same values, told by their sketches.

Until two runs diverge, tensors that correspond hold nearly the same numbers, whatever they are called and whatever
their shape is. A constant tensor says nothing of where it came from.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Optional

from probe.common.dump.naming import BACKWARD
from probe.common.dump.reading.records import INPUT, OUTPUT, Item
from probe.common.numerics.error_bounds import extent
from probe.common.numerics.formats import unit_roundoff

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    _Vectors = NDArray[np.float64]

Label = int
"""A content: tensors of both runs with the same label hold the same values."""

_NEAR = 0.05
"""The relative distance of two sketches up to which tensors correspond if nothing else is near. It is measured: right
pairs in bfloat16 are up to 0.1 apart behind many layers, those behind a small fault 0.01, other tensors about 1.4."""
_LEAST, _UNITS = 2e-5, 4.0
"""The relative difference of statistics up to which they are equal, since six digits of float32 survive a network; and
that of a coarser type in its unit roundoff."""
_CLEARLY = 0.5
"""The distance of the nearest tensor is at most this share of the distance of the second; a guess."""
_ROWS = 1024
"""The tensors whose distances from all others are in memory at once."""
_SHARE = 0.1
"""The share of a run's tensors that have a type if the others are computed from what it rounded; a guess."""

_IN_BACKWARD = f".{BACKWARD}."
"""Is part of the names of items of a backward."""

_Key = tuple[int, Hashable]
"""The number of elements, and what tells a content from others of this number."""


class Contents:
    """The tensors of two runs that hold the same values.

    Args:
        target, golden: tensors of the two runs.
        in_any_order: true if statistics decide where sketches do not: then a transposed weight is the same.
    """

    def __init__(self, target: Iterable[Item], golden: Iterable[Item], in_any_order: bool = False) -> None:
        sides = [[item for item in side if is_evidence(item)] for side in (target, golden)]
        self._labels: dict[int, Label] = {}
        self._number = 0
        self._have_sketches = all(any(item.sketch is not None for item in side[:_ROWS]) for side in sides)
        for by_sketch in (True, False) if self._have_sketches and in_any_order else (self._have_sketches,):
            self._look(sides, by_sketch)
        self._position = [{id(item): index for index, item in enumerate(side)} for side in sides]
        self._places: list[dict[Label | None, list[int]]] = [{}, {}]
        for side, places in zip(sides, self._places):
            for index, item in enumerate(side):
                if self.label(item) is not None:
                    places.setdefault(self.label(item), []).append(index)

    def label(self, item: Item | None) -> Label | None:
        """The label of one of the tensors; ``None`` where the other run has nothing like it."""
        return None if item is None else self._labels.get(id(item))

    def contradict(self, item: Item | None, other: Item | None) -> bool:
        """True if one of two results arises only later in the other run: a fault repeats values, but has none early.

        Gradients of results come in the opposite order.
        """
        if item is None or other is None or self.label(item) == self.label(other) or not _is_of_result(item):
            return False
        are_later = self._is_later(1, item, other), self._is_later(0, other, item)
        return any(are_later) if self._have_sketches else all(are_later)

    def _is_later(self, number: int, item: Item, other: Item) -> bool:
        """True if a side has the content of `item` only behind `other`, an item of its own."""
        places = self._places[number].get(self.label(item))
        at = self._position[number].get(id(other), 0)
        if places is None:
            return False
        return places[-1] < at if _IN_BACKWARD in item.name else places[0] > at

    def _look(self, sides: Sequence[Sequence[Item]], by_sketch: bool) -> None:
        """Label the contents of both sides; what has a label keeps it, and gives it to what is the same."""
        # Order is looked at without numbers, so that most comparisons need no numpy.
        import numpy as np

        groups: tuple[_Group, _Group] = {}, {}
        for side, group in zip(sides, groups):
            for item in side:
                group.setdefault(_key(item, by_sketch), []).append(item)
        for key in groups[0].keys() & groups[1].keys():
            self._join(groups[0][key], groups[1][key])
        allowed = _NEAR if by_sketch else max(_LEAST, _UNITS * max(map(_roundoff, sides), default=0.0))
        sizes = [_by_size(group) for group in groups]
        for size, mine in sizes[0].items():
            theirs = sizes[1].get(size, [])
            known = [[self._has_labels(each) for each in side] for side in (mine, theirs)]
            if (all(known[0]) and all(known[1])) or not theirs:
                continue
            vectors = [
                np.array([_vector(items[0], by_sketch) for items in side], np.float64) for side in (mine, theirs)
            ]
            for i, j in _nearest(vectors[0], vectors[1], allowed):
                if not (known[0][i] and known[1][j]):
                    self._join(mine[i], theirs[j])

    def _has_labels(self, items: Sequence[Item]) -> bool:
        return id(items[0]) in self._labels

    def _join(self, mine: Sequence[Item], theirs: Sequence[Item]) -> None:
        """Give two contents one label."""
        items = (*mine, *theirs)
        label = next((label for item in items if (label := self.label(item)) is not None), self._number)
        self._number += 1
        for item in items:
            self._labels.setdefault(id(item), label)


_Group = dict[_Key, list[Item]]
"""The tensors of one side by their contents."""


def _key(item: Item, by_sketch: bool) -> _Key:
    sketch = item.sketch if by_sketch else None
    if sketch is not None:
        return extent(item.shape).elements, sketch.sums.tobytes()
    return extent(item.shape).elements, item.md5 or (item.max, item.min, item.mean, item.norm)


def _by_size(group: _Group) -> dict[int, list[list[Item]]]:
    found: dict[int, list[list[Item]]] = {}
    for key, items in group.items():
        found.setdefault(key[0], []).append(items)
    return found


def _vector(item: Item, by_sketch: bool) -> Any:
    sketch = item.sketch if by_sketch else None
    if sketch is not None:
        return sketch.sums
    if by_sketch or item.norm is None:
        return [math.nan] * (64 if by_sketch else 4)
    root = math.sqrt(extent(item.shape).elements)
    return [item.norm, item.mean * root, item.max * root / 3, item.min * root / 3]


def _nearest(target: _Vectors, golden: _Vectors, allowed: float) -> list[tuple[int, int]]:
    """Pairs of tensors of which each is clearly the nearest to the other."""
    import numpy as np

    best_of_golden = np.full(len(golden), np.inf)
    nearest_to_golden = np.zeros(len(golden), int)
    candidates: list[tuple[int, int]] = []
    for start in range(0, len(target), _ROWS):
        found = relative_distances(target[start : start + _ROWS], golden)
        lowest = found.min(0)
        nearer = lowest < best_of_golden
        nearest_to_golden[nearer] = start + found.argmin(0)[nearer]
        best_of_golden = np.minimum(best_of_golden, lowest)
        rows, nearest = np.arange(len(found)), found.argmin(1)
        best = found[rows, nearest]
        found[rows, nearest] = np.inf
        clear = (best <= allowed) & (best <= _CLEARLY * found.min(1))
        candidates += ((start + int(i), int(nearest[i])) for i in np.flatnonzero(clear))
    return [(i, j) for i, j in candidates if nearest_to_golden[j] == i]


def relative_distances(target: _Vectors, golden: _Vectors) -> _Vectors:
    """The distances of all vectors of the target from all of the golden side, each relative to the larger one."""
    import numpy as np

    squares, other_squares = (target * target).sum(1), (golden * golden).sum(1)
    distances = squares[:, None] + other_squares - 2 * (target @ golden.T)
    larger = np.maximum(np.maximum(squares[:, None], other_squares), 1e-300)
    found: _Vectors = np.nan_to_num(np.sqrt(np.maximum(distances, 0) / larger), nan=np.inf)
    return found


def is_evidence(item: Item) -> bool:
    """True if a tensor holds real numbers that are finite and not all the same."""
    if not item.is_tensor or not unit_roundoff(item.dtype):
        return False
    if item.norm is None:
        return item.md5 is not None
    statistics = item.max, item.min, item.mean, item.norm
    if not all(type(each) is float and math.isfinite(each) for each in statistics):
        return False
    return bool(item.max != item.min and item.norm)


def _is_of_result(item: Item) -> bool:
    """True if a tensor is what a call returns, or the gradient of that."""
    return item.state == (INPUT if _IN_BACKWARD in item.name else OUTPUT)


def _roundoff(items: Sequence[Item]) -> float:
    """The unit roundoff of the coarsest type that is not used in a few places only."""
    types = Counter(item.dtype for item in items)
    many = _SHARE * sum(types.values())
    return max((unit_roundoff(dtype) for dtype, number in types.items() if number >= many), default=0.0)


# --- call order


Key = Optional[Hashable]
"""An element; ``None`` corresponds to nothing."""
Pairs = list[tuple[int, int]]
"""Indexes in the first and in the second sequence, both ascending."""

_COMPARISONS = 2_000_000
"""The pairs of equal elements up to which the best alignment is looked for. Of more the n-th ones are taken."""


def pairs_in_order(target: Sequence[Key], golden: Sequence[Key]) -> Pairs:
    """The indexes of equal elements that correspond: the longest equal stretches, and between them the next ones."""
    start = 0
    shortest = min(len(target), len(golden))
    while start < shortest and target[start] == golden[start] is not None:
        start += 1
    end = 0
    while end < shortest - start and target[-1 - end] == golden[-1 - end] is not None:
        end += 1
    found = [(index, index) for index in range(start)]
    # No element of one is equal to a None of the other.
    mine, theirs = (
        [(side,) if key is None else key for key in each[start : len(each) - end]]
        for side, each in enumerate((target, golden))
    )
    number = Counter(theirs)
    if sum(number[key] for key in mine) > _COMPARISONS:
        found += ((start + i, start + j) for i, j in refined(_equal_in_order(mine, theirs), mine, theirs))
    else:
        for i, j, size in SequenceMatcher(None, mine, theirs, autojunk=False).get_matching_blocks():
            found += zip(range(start + i, start + i + size), range(start + j, start + j + size))
    found += ((len(target) - index, len(golden) - index) for index in range(end, 0, -1))
    return found


def _equal_in_order(target: Sequence[Hashable], golden: Sequence[Hashable]) -> Pairs:
    """The indexes of the n-th of each equal elements, as far as they do not cross."""
    at: dict[Hashable, list[int]] = {}
    for index in range(len(golden) - 1, -1, -1):
        at.setdefault(golden[index], []).append(index)
    return ascending((index, at[key].pop()) for index, key in enumerate(target) if at.get(key))


def refined(
    pairs: Pairs, target: Sequence[Key], golden: Sequence[Key], as_many: bool = False, ends_early: bool = False
) -> Pairs:
    """`pairs` and those between them when the elements are called otherwise.

    Args:
        pairs: indexes that correspond, both ascending.
        target, golden: the elements.
        as_many: leave alone what occurs more often on one side between two pairs: nothing says which one is meant.
        ends_early: pair what is behind the last pair all the same, because one side may have ended there.
    """
    found = list(pairs)
    start = other_start = 0
    for i, j in [*pairs, (len(target), len(golden))]:
        if start < i and other_start < j:
            mine, theirs = target[start:i], golden[other_start:j]
            if as_many and not (ends_early and i == len(target)):
                counts, other_counts = Counter(mine), Counter(theirs)
                mine, theirs = (
                    [key if counts[key] == other_counts[key] else None for key in each] for each in (mine, theirs)
                )
            found += ((start + one, other_start + other) for one, other in pairs_in_order(mine, theirs))
        start, other_start = i + 1, j + 1
    return sorted(found)


def ascending(pairs: Iterable[tuple[int, int]]) -> Pairs:
    """The most of `pairs` that do not cross."""
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    ordered = sorted(pairs)
    for index, (_, position) in enumerate(ordered):
        length = bisect_left(ends, position)
        before.append(last[length - 1] if length else -1)
        if length == len(ends):
            ends.append(position)
            last.append(index)
        else:
            ends[length], last[length] = position, index
    found: Pairs = []
    index = last[-1] if last else -1
    while index >= 0:
        found.append(ordered[index])
        index = before[index]
    return found[::-1]
