"""Numbered layers of which one run has more: which of them are the same, told by what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import made_dumps
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.common.align.calls import KeyedCall
from probe.common.align.layers.siblings import renumbered
from probe.common.dump.reading.records import Record


def tensor(seed: float) -> dict[str, Any]:
    """Weights that no other seed has; all zeros for none."""
    return made_dumps.tensor(seed, -seed, seed / 7, 3 * seed, (4, 4), requires_grad=True)


def calls(seeds: Sequence[float], place: str = "blocks") -> list[KeyedCall]:
    """A list of blocks, each with a layer inside; a seed for each of them."""
    records = []
    for number, seed in enumerate(seeds):
        for name, factor in (("norm.LayerNorm", 0.0), ("a.Linear", 1.0), ("b.Linear", 1.3)):
            parameters = {"weight": tensor(seed * factor)}
            fields = {"input_args": [tensor(1.0)], "parameters": parameters, "output": [tensor(2.0)]}
            records.append(Record(f"Module.{place}.{number}.{name}.forward.0", fields, "dump.json"))
    return [KeyedCall(record, record.name, record.items()) for record in records]


def counterparts(target: Sequence[float], golden: Sequence[float]) -> list[int | None]:
    """The golden number of each of the target's blocks."""
    found = renumbered((calls(target), calls(golden)))
    numbers = []
    for number in range(len(target)):
        name = found.record(f"Module.blocks.{number}.a.Linear.forward.0").split(".")[2]
        numbers.append(int(name) if name.isdigit() and int(name) < len(golden) else None)
    return numbers


@pytest.mark.parametrize(
    ("target", "golden", "expected"),
    [
        # A copy of a layer, after it: of two that hold the same the number decides.
        ([1, 2, 3, 3, 4], [1, 2, 3, 4], [0, 1, 2, None, 3]),
        # At the beginning, and a layer with values of its own.
        ([9, 1, 2, 3, 4], [1, 2, 3, 4], [None, 0, 1, 2, 3]),
        # At the end numbers say it.
        ([1, 2, 3, 9], [1, 2, 3], [0, 1, 2, None]),
        # One removed, and two more.
        ([1, 3, 4], [1, 2, 3, 4], [0, 2, 3]),
        ([1, 8, 2, 3, 9, 4], [1, 2, 3, 4], [0, None, 1, 2, None, 3]),
        # One inserted and another one wrong, which keeps its place.
        ([1, 9, 2, 7, 4, 5], [1, 2, 3, 4, 5], [0, None, 1, 2, 3, 4]),
        # Nothing to go by: freshly zero, or all other values.
        ([0, 0, 0, 0], [0, 0, 0], [0, 1, 2, None]),
        ([6, 7, 8, 9], [1, 2, 3], [0, 1, 2, None]),
    ],
)
def test_siblings_are_aligned_by_what_they_hold(
    target: list[float], golden: list[float], expected: list[int | None]
) -> None:
    assert counterparts(target, golden) == expected


@settings(deadline=None)
@given(st.integers(3, 7), st.sets(st.integers(0, 6), max_size=3))
def test_whatever_is_inserted_stays_alone_and_the_rest_finds_its_own(number: int, places: set[int]) -> None:
    golden: list[float] = [10.0 + 1.7 * n for n in range(number)]
    target = list(golden)
    for place in sorted(places):
        target.insert(place, 100.0 + 3.1 * place)
    assert counterparts(target, golden) == [golden.index(seed) if seed in golden else None for seed in target]
    back = counterparts(golden, target)
    assert back == [target.index(seed) for seed in golden]


def test_as_many_siblings_keep_their_numbers() -> None:
    """Two that were exchanged are wrong, not moved."""
    assert not renumbered((calls([1, 3, 2, 4]), calls([1, 2, 3, 4])))


def test_numbers_inside_of_a_layer_that_moved_move_too() -> None:
    target = [*calls([1, 2], "blocks.0.parts"), *calls([9, 8], "blocks.1.parts")]
    target += calls([3, 4, 5, 6, 7], "blocks.2.parts")
    golden = [*calls([1, 2], "blocks.0.parts"), *calls([3, 4, 5, 7], "blocks.1.parts")]
    found = renumbered((target, golden))
    assert found.record("Module.blocks.2.parts.4.a.Linear.backward.3") == "Module.blocks.1.parts.3.a.Linear.backward.3"
    assert found.record("Module.blocks.2.Block.forward.0") == "Module.blocks.1.Block.forward.0"
    assert found.record("Module.blocks.0.parts.1.a.Linear.forward.0") == "Module.blocks.0.parts.1.a.Linear.forward.0"
    assert found.record("Functional.linear.2.forward") == "Functional.linear.2.forward"
