"""Two sequences held against each other: which elements correspond for certain.

A text is compared in the same way by what is called patience diff: a word that both have once is the same word, and
between two such words one looks again. Here a word may also occur several times if it does so as often on both sides;
the rarest count first. What occurs more often on one side than on the other is left alone, since nothing says which of
them is meant.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence

Pairs = list[tuple[int, int]]
"""Positions in the first and in the second sequence, both ascending."""


def align(target: Sequence[Hashable | None], golden: Sequence[Hashable | None]) -> Pairs:
    """Positions of equal elements that correspond; ``None`` corresponds to nothing."""
    found: Pairs = []
    ranges = [(0, len(target), 0, len(golden))]
    while ranges:
        start, end, other_start, other_end = ranges.pop()
        anchors = _longest_ascent(_anchors(target, golden, start, end, other_start, other_end))
        found += anchors
        if anchors:
            ranges += _gaps(anchors, start, end, other_start, other_end)
    return sorted(found)


def refine(pairs: Pairs, target: Sequence[Hashable | None], golden: Sequence[Hashable | None]) -> Pairs:
    """`pairs` and those found between them when the elements are called otherwise."""
    found = list(pairs)
    for start, end, other_start, other_end in _gaps(pairs, 0, len(target), 0, len(golden)):
        inner = align(target[start:end], golden[other_start:other_end])
        found += [(start + mine, other_start + theirs) for mine, theirs in inner]
    return sorted(found)


def equally_many(target: Iterable[tuple[int, Hashable]], golden: Iterable[tuple[int, Hashable]]) -> Pairs:
    """Positions of equal elements of which there are as many on both sides, each with the one of the same rank."""
    mine, theirs = _positions(target), _positions(golden)
    return [
        pair
        for key, indexes in mine.items()
        if len(indexes) == len(theirs.get(key, ()))
        for pair in zip(indexes, theirs[key])
    ]


def _positions(elements: Iterable[tuple[int, Hashable]]) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = {}
    for index, element in elements:
        if element is not None:
            found.setdefault(element, []).append(index)
    return found


def _anchors(
    target: Sequence[Hashable | None],
    golden: Sequence[Hashable | None],
    start: int,
    end: int,
    other_start: int,
    other_end: int,
) -> Pairs:
    """Elements that occur equally often, of those with the smallest number."""
    mine = _positions((index, target[index]) for index in range(start, end))
    theirs = _positions((index, golden[index]) for index in range(other_start, other_end))
    common = [key for key, indexes in mine.items() if len(indexes) == len(theirs.get(key, ()))]
    rarest = min((len(mine[key]) for key in common), default=0)
    return sorted(pair for key in common if len(mine[key]) == rarest for pair in zip(mine[key], theirs[key]))


def _longest_ascent(pairs: Pairs) -> Pairs:
    """The most pairs that do not cross, given ascending by their first position."""
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for index, (_, position) in enumerate(pairs):
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
        found.append(pairs[index])
        index = before[index]
    return found[::-1]


def _gaps(pairs: Pairs, start: int, end: int, other_start: int, other_end: int) -> list[tuple[int, int, int, int]]:
    """The stretches between `pairs` that are empty on neither side."""
    found = []
    for mine, theirs in [*pairs, (end, other_end)]:
        if start < mine and other_start < theirs:
            found.append((start, mine, other_start, theirs))
        start, other_start = mine + 1, theirs + 1
    return found
