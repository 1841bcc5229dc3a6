"""What is inside of containers is found in order, in bounded time."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from probe.common.containers import MAX_CONTAINERS, MAX_DEPTH, found_in


@dataclasses.dataclass
class Output:
    first: Any
    second: Any


def test_values_come_in_the_order_in_which_they_stand() -> None:
    value = [1, (2, {"a": 3, "b": [4, "no"]}), Output([5], 6), None, 7.5, 7]
    assert list(found_in(value, int)) == [1, 2, 3, 4, 5, 6, 7]
    assert list(found_in(value, int, in_fields=False)) == [1, 2, 3, 4, 7]
    assert list(found_in(8, int)) == [8]


def test_a_class_is_no_instance_of_itself() -> None:
    assert list(found_in([Output], int)) == []


def test_a_container_that_holds_itself_has_an_end() -> None:
    value: list[Any] = [1]
    value.append(value)
    value.append(2)
    assert list(found_in(value, int)) == [1] * MAX_DEPTH + [2] * MAX_DEPTH


def test_lists_that_share_their_parts_are_followed_to_a_bound() -> None:
    value: list[Any] = [1]
    for _ in range(60):
        value = [value, value]
    assert 0 < len(list(found_in(value, int))) <= MAX_CONTAINERS


@pytest.mark.parametrize("deep", [MAX_DEPTH, MAX_DEPTH + 1])
def test_nesting_is_followed_to_a_bound(deep: int) -> None:
    value: Any = 1
    for _ in range(deep):
        value = [value]
    assert len(list(found_in(value, int))) == (deep <= MAX_DEPTH)
