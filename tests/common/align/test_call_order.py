"""Calls paired by their order: the best alignment while it can be had, and an alignment in any case."""

from __future__ import annotations

import random
from difflib import SequenceMatcher
from typing import Any

import pytest

from probe.common.align.call_order import align, match_in_order, pairs_in_order


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
    # Where looking for the best takes too long, the next call of the kind is found.
    assert len(found) > 0.4 * len(target)


def test_the_longest_equal_stretch_is_kept_together() -> None:
    target = ["a", "b", "x", "a", "b", "c", "d"]
    golden = ["y", "a", "b", "c", "d", "x"]
    assert pairs_in_order(target, golden) == [(3, 1), (4, 2), (5, 3), (6, 4)]


@pytest.mark.parametrize("pairs", [match_in_order, pairs_in_order])
def test_matching_is_not_quadratic(pairs: Any) -> None:
    kinds = [str(n) for n in range(200_000)]
    assert len(pairs(kinds[100_000:], kinds)) == 100_000


def test_long_stretches_are_left_where_names_tell_more() -> None:
    sides = ["a", "b"] * 3000, ["b", "a", "a"] * 2500
    assert pairs_in_order(*sides) == []
    assert len(pairs_in_order(*sides, leave_long=False)) > 4000


def test_backward_calls_of_functions_are_paired_as_their_forward_calls_are() -> None:
    """Two programs, of which one makes a call more and goes back through three projections in another order."""
    target = [f"Functional.linear.{n}.forward" for n in range(3)]
    golden = [*target, "Torch.tanh.0.forward"]
    backwards = [f"Functional.linear.{n}.backward" for n in range(3)]
    found = align([*target, *backwards], [*golden, *reversed(backwards)], (None, None))
    assert {pair for pair in found if None not in pair} == {(name, name) for name in (*target, *backwards)}
    assert [pair for pair in found if None in pair] == [(None, "Torch.tanh.0.forward")]


def test_backward_calls_of_forward_calls_that_were_made_again_are_paired_by_their_order() -> None:
    """One side recomputes: the backward belongs to the second forward call, which has no counterpart."""
    target = ["Torch.exp.0.forward", "Torch.exp.1.forward", "Torch.exp.1.backward"]
    found = align(target, ["Torch.exp.0.forward", "Torch.exp.0.backward"], (None, None))
    assert ("Torch.exp.1.backward", "Torch.exp.0.backward") in found
