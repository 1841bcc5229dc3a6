"""Matching without the numbers of calls: a call of a module that both sides have is not matched outside of it."""

from __future__ import annotations

import pytest

from probe.common.align.calls import KeyedCall
from probe.common.align.fuzzy import by_kind
from probe.common.dump.reading.records import Item, Record

LINEAR = "Functional.linear.{}.forward"


def side(paths: list[str]) -> tuple[list[KeyedCall], dict[str, str | None]]:
    """A linear layer in each module of these paths."""
    calls, tree = [], {}
    for number, path in enumerate(paths):
        name = LINEAR.format(number)
        calls.append(KeyedCall(Record(name, {}, "dump.json"), name, [Item(f"{name}.input.0", "input")]))
        tree[name] = f"Module.{path}.Linear.forward.0" if path else None
    return calls, tree


@pytest.mark.parametrize(
    ("target", "golden", "expected"),
    [
        # A layer more on either side.
        (["a", "extra", "b", "c"], ["a", "b", "c"], [(0, 0), (2, 1), (3, 2)]),
        (["a", "b", "c"], ["a", "extra", "b", "c"], [(0, 0), (1, 2), (2, 3)]),
        # Other paths on both sides, such as below a wrapper, say nothing.
        (["module.a", "module.b"], ["a", "b"], [(0, 0), (1, 1)]),
        # One layer was renamed.
        (["a", "new", "c"], ["a", "old", "c"], [(0, 0), (1, 1), (2, 2)]),
        (["", "", ""], ["", ""], [(0, 0), (1, 1)]),
        # One side has put another module around a layer, beside layers that both have.
        (["a", "head", "head.inner", "z"], ["a", "head", "head", "z"], [(0, 0), (1, 1), (2, 2), (3, 3)]),
    ],
)
def test_calls_are_matched_inside_of_modules_of_both_sides(
    target: list[str], golden: list[str], expected: list[tuple[int, int]]
) -> None:
    (calls, tree), (golden_calls, golden_tree) = side(target), side(golden)
    rows = by_kind(calls, golden_calls, (tree, golden_tree))
    found = [(row.record, row.golden_record) for row in rows if row.target is not None and row.golden is not None]
    assert found == [(LINEAR.format(mine), LINEAR.format(theirs)) for mine, theirs in expected]
