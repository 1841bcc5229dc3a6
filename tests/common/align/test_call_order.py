"""Calls paired by their order: the best alignment while it can be had, and an alignment in any case."""

from __future__ import annotations

import random
from difflib import SequenceMatcher
from typing import Any

import pytest

from probe.common.align.call_order import pairs_in_order


def calls(gaps: int, length: int, kinds: int, seed: int) -> list[str]:
    """Stretches of a few kinds of calls in any order, a call that occurs once before each."""
    draw = random.Random(seed)
    found = []
    for gap in range(gaps):
        found += [f"once {gap}", *(f"kind {draw.randrange(kinds)}" for _ in range(length))]
    return found


@pytest.mark.parametrize(("gaps", "length", "kinds"), [(25, 3990, 2), (50, 1999, 6), (2500, 39, 3)])
def test_comparisons_of_all_gaps_together_are_limited(
    monkeypatch: pytest.MonkeyPatch, gaps: int, length: int, kinds: int
) -> None:
    made = 0
    find = SequenceMatcher.find_longest_match

    def counting(matcher: Any, start: int, end: int, *other: int) -> Any:
        nonlocal made
        made += sum(len(matcher.b2j.get(key, ())) for key in matcher.a[start:end])
        return find(matcher, start, end, *other)

    monkeypatch.setattr(SequenceMatcher, "find_longest_match", counting)
    target, golden = calls(gaps, length, kinds, 1), calls(gaps, length, kinds, 2)
    found = pairs_in_order(target, golden)
    assert made <= 20_000_000
    assert all(target[i] == golden[j] for i, j in found)
    assert all(before[0] < after[0] and before[1] < after[1] for before, after in zip(found, found[1:]))
    # Where looking for the best takes too long, the n-th calls of a kind are found.
    assert len(found) > 0.3 * len(target)


def test_the_longest_equal_stretch_is_kept_together() -> None:
    target = ["a", "b", "x", "a", "b", "c", "d"]
    golden = ["y", "a", "b", "c", "d", "x"]
    assert pairs_in_order(target, golden) == [(3, 1), (4, 2), (5, 3), (6, 4)]


def test_matching_is_not_quadratic() -> None:
    kinds = [str(n) for n in range(200_000)]
    assert len(pairs_in_order(kinds[100_000:], kinds)) == 100_000
