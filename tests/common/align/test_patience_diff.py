"""Sequences held against each other: what corresponds for certain, and that nothing else does."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.common.align.patience_diff import align, equally_many, refine

TEXT = st.lists(st.sampled_from("abcd"), max_size=30)


@pytest.mark.parametrize(
    ("target", "golden", "expected"),
    [
        ("abc", "abc", ["aa", "bb", "cc"]),
        ("", "abc", []),
        ("axb", "ayb", ["aa", "bb"]),
        # One of the two x is too many, and nothing says which; between a and b there is one on each side.
        ("xx", "x", []),
        ("xxaxb", "xaxb", ["aa", "xx", "bb"]),
        ("axbxc", "axbxc", ["aa", "xx", "bb", "xx", "cc"]),
        # Crossing: the most that keep their order.
        ("abcd", "bcda", ["bb", "cc", "dd"]),
    ],
)
def test_only_what_is_certain_corresponds(target: str, golden: str, expected: list[str]) -> None:
    assert [target[i] + golden[j] for i, j in align(list(target), list(golden))] == expected


@given(TEXT, TEXT)
def test_pairs_are_equal_and_never_cross(target: list[str], golden: list[str]) -> None:
    pairs = align(target, golden)
    assert all(target[i] == golden[j] for i, j in pairs)
    assert pairs == sorted(pairs) and [j for _, j in pairs] == sorted({j for _, j in pairs})
    assert len({i for i, _ in pairs}) == len(pairs)
    # Of as many that cross nothing says which are meant: the other way round it may be others, and another number.
    assert align(target, target) == [(place, place) for place in range(len(target))]


@given(TEXT)
def test_a_sequence_corresponds_to_itself(text: list[str]) -> None:
    assert align(text, text) == [(place, place) for place in range(len(text))]


def test_nothing_corresponds_to_what_has_no_name() -> None:
    assert align([None, "a"], [None, "a"]) == [(1, 1)]


def test_other_names_are_tried_between_what_corresponds() -> None:
    pairs = align(list("a1b2"), list("a3b4"))
    assert refine(pairs, list("xnxn"), list("xnxn")) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert refine(pairs, list("xnxx"), list("xxxn")) == pairs


def test_what_is_left_corresponds_in_any_order_if_there_are_as_many() -> None:
    assert equally_many([(3, "a"), (5, "b"), (7, "c")], [(2, "b"), (4, "a"), (6, "c"), (8, "c")]) == [(3, 4), (5, 2)]


def test_long_sequences_take_no_time() -> None:
    target = [number % 97 for number in range(40_000)]
    golden = [number for place, number in enumerate(target) if place % 1000]
    start = time.process_time()
    assert len(align(target, golden)) > 20_000
    assert time.process_time() - start < 5
