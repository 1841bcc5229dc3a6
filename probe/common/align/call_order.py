"""Two sequences side by side: the elements that correspond in their order."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from difflib import SequenceMatcher
from typing import Optional

Key = Optional[Hashable]
"""An element; ``None`` corresponds to nothing."""
Pairs = list[tuple[int, int]]
"""Indexes in the first and in the second sequence, both ascending."""

_COMPARISONS = 2_000_000
"""The pairs of equal elements up to which the best alignment is looked for. Of more the next equal element is taken."""


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
        found += ((start + i, start + j) for i, j in match_in_order(mine, theirs))
    else:
        for i, j, size in SequenceMatcher(None, mine, theirs, autojunk=False).get_matching_blocks():
            found += zip(range(start + i, start + i + size), range(start + j, start + j + size))
    found += ((len(target) - index, len(golden) - index) for index in range(end, 0, -1))
    return found


def refined(pairs: Pairs, target: Sequence[Key], golden: Sequence[Key], as_many: bool = False) -> Pairs:
    """`pairs` and those between them when the elements are called otherwise.

    Args:
        pairs: indexes that correspond, both ascending.
        target, golden: the elements.
        as_many: leave alone what occurs more often on one side between two pairs: nothing says which one is meant.
    """
    found = list(pairs)
    start = other_start = 0
    for i, j in [*pairs, (len(target), len(golden))]:
        if start < i and other_start < j:
            mine, theirs = target[start:i], golden[other_start:j]
            if as_many:
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


class _Unmatched:
    """The elements of one side that were read and have no match yet."""

    def __init__(self) -> None:
        self._first = 0
        self._indexes: dict[Hashable, deque[int]] = {}

    def add(self, key: Hashable, index: int) -> None:
        self._indexes.setdefault(key, deque()).append(index)

    def oldest(self, key: Hashable) -> int | None:
        indexes = self._indexes.get(key)
        while indexes and indexes[0] < self._first:
            indexes.popleft()
        return indexes[0] if indexes else None

    def leave_up_to(self, index: int) -> None:
        self._first = index + 1


def match_in_order(target: Sequence[Key], golden: Sequence[Key]) -> Pairs:
    """The indexes of keys that correspond, each the next of its kind, both ascending.

    Both are walked side by side. A key is looked for among those of the other side that are still waiting, the oldest
    first; once two correspond, what waited before them on either side does not any more.
    """
    waiting_target, waiting_golden = _Unmatched(), _Unmatched()
    found = []
    for index in range(max(len(target), len(golden))):
        target_kind = target[index] if index < len(target) else None
        golden_kind = golden[index] if index < len(golden) else None
        if target_kind is not None:
            waiting_target.add(target_kind, index)
        if golden_kind is not None:
            waiting_golden.add(golden_kind, index)
        pair = None
        if target_kind is not None and (older := waiting_golden.oldest(target_kind)) is not None:
            pair = index, older
        elif golden_kind is not None and (older := waiting_target.oldest(golden_kind)) is not None:
            pair = older, index
        if pair is not None:
            found.append(pair)
            waiting_target.leave_up_to(pair[0])
            waiting_golden.leave_up_to(pair[1])
    return found
