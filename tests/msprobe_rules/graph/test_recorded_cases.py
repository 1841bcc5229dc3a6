"""The graph page by the rules of msprobe 26.2: recorded pages, and rules that these do not show."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, Optional

import made_dumps
import pytest
from made_dumps import call, plain, write

from probe.common.dump.reading.dump import read
from probe.graph.diff import GraphDiff
from probe.graph.graph import Graph
from probe.graph.overflow_levels import LEVELS
from probe.msprobe_rules.graph.diff import ERROR, NO_STATUS, PASS, UNMATCHED, WARNING, msprobe_diff, msprobe_overflows

# --- ``--rules msprobe`` against what msProbe 26.2 made of the same dumps

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


# --- ``--rules msprobe`` against what msProbe 26.2 says of single calls that were made for the purpose

NAN, INF = math.nan, math.inf
PRECISION = {NO_STATUS: None, PASS: 0, WARNING: 0.5, ERROR: 1}

Sides = tuple[list[Any], list[Any], list[Any], list[Any]]
"""Inputs of target and golden run, outputs of target and golden run."""


def tensor(
    error: float = 0.0, largest: float = 1.0, norm: float = 10.0, mean: float = 0.5, dtype: str = "torch.float32"
) -> dict[str, Any]:
    return made_dumps.tensor(largest, 0.1, mean, norm * (1 + error), (2, 3), dtype, requires_grad=True)


SAME = tensor()
HALF = tensor(dtype="torch.bfloat16")
BROKEN = tensor(largest=NAN)
SMALL, LARGE = tensor(norm=1.0), tensor(norm=150.0)

# Name: sides, then `precision_index` of relu, all_to_all_single and to.
STATUSES: dict[str, tuple[Sides, tuple[Optional[float], Optional[float], Optional[float]]]] = {  # noqa: UP045
    "inputs differ as much": (([tensor(0.2)], [SAME], [tensor(0.6)], [SAME]), (0, 0, 0)),
    "output differs by more than half": (([SAME], [SAME], [tensor(0.6)], [SAME]), (1, 0, 0)),
    "output differs by a third": (([SAME], [SAME], [tensor(0.3)], [SAME]), (0.5, 0, 0)),
    "input not finite": (([BROKEN], [SAME], [SAME], [SAME]), (1, 0, 0)),
    "type of an input": (([HALF], [SAME], [SAME], [SAME]), (1, 0, 0)),
    "an input more": (([SAME, SAME], [SAME], [SAME], [SAME]), (1, 0, 0)),
    "an input less": (([SAME], [SAME, SAME], [SAME], [SAME]), (0, 0, 0)),
    "type of an output": (([SAME], [SAME], [HALF], [SAME]), (1, 1, 0)),
    "no inputs": (([], [], [tensor(0.6)], [SAME]), (1, 1, 1)),
    "no inputs and a third": (([], [], [tensor(0.3)], [SAME]), (0.5, 0.5, 0.5)),
    "an input without a value": (([None], [None], [tensor(0.6)], [SAME]), (1, 0, 0)),
    "no value in the target": (([SAME], [SAME], [None], [SAME]), (0, 0, 0)),
    "no value in the golden run": (([SAME], [None], [], []), (0, 0, 0)),
    "no value in the golden run, not finite": (([BROKEN], [None], [SAME], [SAME]), (1, 0, 0)),
    "nothing in the target": (([], [SAME], [], []), (None, None, None)),
    "a size": (([plain([1, 2], "torch.Size")], [plain([1, 3], "torch.Size")], [SAME], [SAME]), (1, 0, 0)),
    "a slice": (([plain([0, 1], "slice")], [plain([0, 2], "slice")], [SAME], [SAME]), (0, 0, 0)),
    "kind of a number": (([plain(1.0)], [plain(1)], [SAME], [SAME]), (1, 0, 0)),
    "a number that nothing stands for": (([plain(1)], [None], [SAME], [SAME]), (0, 0, 0)),
    "norm of zero": (([tensor(norm=0.0)], [SAME], [SAME], [SAME]), (0, 0, 0)),
    "output not finite": (([SAME], [SAME], [BROKEN], [SAME]), (1, 1, 0)),
}

# Name: inputs, outputs, level.
OVERFLOWS: dict[str, tuple[list[Any], list[Any], str]] = {
    "input": ([BROKEN], [SAME], "medium"),
    "output": ([SAME], [BROKEN], "critical"),
    "both": ([BROKEN], [BROKEN], "high"),
    "the mean alone": ([tensor(mean=NAN)], [SAME], "medium"),
    "output inside of a dictionary": ([SAME], [{"a": BROKEN}], ""),
    "output inside of a list": ([SAME], [[BROKEN]], "critical"),
    "input inside of a dictionary": ([{"a": BROKEN}], [SAME], ""),
    "input inside of a list": ([[BROKEN]], [SAME], "medium"),
    "a number": ([plain(INF)], [SAME], ""),
    "a number as output": ([SAME], [plain(NAN)], ""),
    "large output": ([SMALL], [SAME, LARGE], "high"),
    "large output inside of a dictionary": ([SMALL], [{"a": LARGE}], ""),
    "large output, another input is as large": ([SMALL, LARGE], [LARGE], ""),
    "norm of the output not finite": ([SMALL], [tensor(norm=INF)], "high"),
    "norm of the input not finite": ([tensor(norm=NAN)], [LARGE], ""),
    "a large number beside": ([plain(500), SMALL], [LARGE], "high"),
    "a large number as output": ([SMALL], [plain(500)], ""),
    "no tensor as input": ([plain(1)], [LARGE], ""),
}


def dump(folder: Path, calls: dict[str, tuple[list[Any], list[Any]]]) -> None:
    write(folder, {name: call(*given_and_made) for name, given_and_made in calls.items()}, dict.fromkeys(calls))


@pytest.mark.parametrize(("api", "column"), [("relu", 0), ("all_to_all_single", 1), ("to", 2)])
def test_statuses(tmp_path: Path, api: str, column: int) -> None:
    names = {f"Torch.{api}.{number}.forward": case for number, case in enumerate(STATUSES)}
    dump(tmp_path / "target", {name: (STATUSES[case][0][0], STATUSES[case][0][2]) for name, case in names.items()})
    dump(tmp_path / "golden", {name: (STATUSES[case][0][1], STATUSES[case][0][3]) for name, case in names.items()})
    diff = msprobe_diff(read(tmp_path / "target"), read(tmp_path / "golden"))
    found = {case: PRECISION[diff.statuses[diff.target.index[name]]] for name, case in names.items()}
    assert found == {case: expected[column] for case, (_, expected) in STATUSES.items()}


def test_calls_whose_memory_nobody_has_written_to_have_no_status_without_inputs(tmp_path: Path) -> None:
    for side, output in (("target", tensor(0.6)), ("golden", SAME)):
        dump(tmp_path / side, {"Torch.empty.0.forward": ([], [output]), "Torch.numpy.0.forward": ([], [output])})
    diff = msprobe_diff(read(tmp_path / "target"), read(tmp_path / "golden"))
    assert list(diff.statuses[:2]) == [PASS, ERROR]


def test_overflow_levels(tmp_path: Path) -> None:
    names = {f"Torch.relu.{number}.forward": case for number, case in enumerate(OVERFLOWS)}
    calls = {name: OVERFLOWS[case][:2] for name, case in names.items()}
    calls |= {"Torch.empty_like.0.forward": ([BROKEN], [SAME]), "Tensor.empty_like.0.forward": ([BROKEN], [SAME])}
    dump(tmp_path / "target", calls)
    diff = msprobe_diff(read(tmp_path / "target"))
    levels, golden = msprobe_overflows(diff)
    found = {name: LEVELS[levels.levels[diff.target.index[name]]] for name in calls}
    assert {case: found[name] for name, case in names.items()} == {
        case: expected for case, (_, _, expected) in OVERFLOWS.items()
    }
    assert (found["Torch.empty_like.0.forward"], found["Tensor.empty_like.0.forward"]) == ("", "medium")
    assert golden is None


def test_checksums(tmp_path: Path) -> None:
    first, other = {**SAME, "md5": "00000001"}, {**SAME, "md5": "00000002"}
    sides = {
        "Torch.relu.0.forward": ([first], [first], PASS),
        "Torch.relu.1.forward": ([first], [other], ERROR),
        "Torch.relu.2.forward": ([first, first], [first], WARNING),
        "Torch.relu.3.forward": ([first, first], [first, None], ERROR),
        "Torch.relu.4.forward": ([first, None], [first, first], ERROR),
        "Torch.relu.5.forward": ([first, None], [first, None], PASS),
        "Torch.to.0.forward": ([first], [other], PASS),
        "Torch.all_to_all_single.0.forward": ([first], [other], PASS),
        "Torch.empty_like.0.forward": ([first], [first], ERROR),
    }
    dump(tmp_path / "target", {name: (target, [first]) for name, (target, _, _) in sides.items()})
    dump(tmp_path / "golden", {name: (golden, [first]) for name, (_, golden, _) in sides.items()})
    diff = msprobe_diff(read(tmp_path / "target"), read(tmp_path / "golden"))
    assert diff.mode == "checksum"
    found = {name: diff.statuses[diff.target.index[name]] for name in sides}
    assert found == {name: expected for name, (_, _, expected) in sides.items()}
