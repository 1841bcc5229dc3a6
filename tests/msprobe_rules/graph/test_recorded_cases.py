"""``--rules msprobe`` against what msProbe 26.2 made of the same dumps."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from probe.common.dump.reading.dump import read
from probe.graph.diff import GraphDiff
from probe.graph.graph import Graph
from probe.graph.overflow_levels import LEVELS
from probe.msprobe_rules.graph.diff import msprobe_diff, msprobe_overflows
from probe.msprobe_rules.graph.statuses import ERROR, NO_STATUS, PASS, UNMATCHED, WARNING

CASES = Path(__file__).parents[2] / "graph" / "cases"
COMPARED = ("weight", "three_layers", "three_layers_fuzzy", "nan", "bf16")
SIDES = ("target", "golden")


def expected_of(case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CASES / f"{case}.json").read_text(encoding="utf-8"))
    return found


def diff_of(expected: dict[str, Any]) -> GraphDiff:
    target, golden = (expected[side] and read(CASES / "dumps" / expected[side]) for side in SIDES)
    return msprobe_diff(target, golden, "-fm" in expected["options"])


def graphs(diff: GraphDiff) -> list[Graph]:
    return [diff.target] if diff.golden is None else [diff.target, diff.golden]


def names(graph: Graph, values: bytearray, wanted: int) -> list[str]:
    return [name for name, value in zip(graph.names, values) if value == wanted]


@pytest.mark.parametrize("case", [*COMPARED, "build_llama"])
def test_nodes_and_their_order_are_those_of_the_recorded_tool(case: str) -> None:
    expected = expected_of(case)
    for side, graph in zip(SIDES, graphs(diff_of(expected))):
        of_side = expected["sides"][side]
        assert len(graph) == of_side["nodes"]
        order = of_side["order_and_parent"]
        if isinstance(order, str):
            order = expected_of(order.split()[-1][: -len(".json")])["sides"]["target"]["order_and_parent"]
        parents = [graph.names[parent] if parent >= 0 else None for parent in graph.parents]
        assert list(map(list, zip(graph.names, parents))) == order


@pytest.mark.parametrize("case", COMPARED)
def test_pairs_are_those_of_the_recorded_tool(case: str) -> None:
    expected = expected_of(case)
    diff = diff_of(expected)
    assert diff.golden is not None
    pairs = [[name, diff.golden.names[other]] for name, other in zip(diff.target.names, diff.pairs) if other >= 0]
    assert len(pairs) == expected["matched_pairs"]["count"]
    assert [pair for pair in pairs if pair[0] != pair[1]] == expected["matched_pairs"]["different_names"]
    assert names(diff.target, diff.statuses, UNMATCHED) == expected["sides"]["target"]["unmatched"]
    assert names(diff.golden, diff.golden_statuses, UNMATCHED) == expected["sides"]["golden"]["unmatched"]


@pytest.mark.parametrize("case", COMPARED)
def test_statuses_are_those_of_the_recorded_tool(case: str) -> None:
    expected = expected_of(case)
    target = expected["sides"]["target"]
    diff = diff_of(expected)
    assert names(diff.target, diff.statuses, WARNING) == target["status"]["warning"]
    assert names(diff.target, diff.statuses, ERROR) == target["status"]["error"]
    counts = Counter(diff.statuses)
    assert counts[PASS] == target["pass_count"]
    assert counts[NO_STATUS] + counts[UNMATCHED] == target["no_status_count"]


@pytest.mark.parametrize("case", ["nan", "bf16"])
def test_overflow_levels_are_those_of_the_recorded_tool(case: str) -> None:
    expected = expected_of(case)
    diff = diff_of(expected)
    for side, graph, found in zip(SIDES, graphs(diff), msprobe_overflows(diff)):
        assert found is not None
        for level, nodes in expected["sides"][side]["overflow"].items():
            assert names(graph, found.levels, LEVELS.index(level)) == nodes
