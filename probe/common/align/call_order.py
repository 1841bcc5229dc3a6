"""Two sequences side by side: the elements that correspond in their order."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from difflib import SequenceMatcher
from typing import Optional

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
        found += ((start + i, start + j) for i, j in refined(_of_equal_numbers(mine, theirs), mine, theirs))
    else:
        for i, j, size in SequenceMatcher(None, mine, theirs, autojunk=False).get_matching_blocks():
            found += zip(range(start + i, start + i + size), range(start + j, start + j + size))
    found += ((len(target) - index, len(golden) - index) for index in range(end, 0, -1))
    return found


def _of_equal_numbers(target: Sequence[Hashable], golden: Sequence[Hashable]) -> Pairs:
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
