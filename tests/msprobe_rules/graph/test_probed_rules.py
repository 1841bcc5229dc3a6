"""``--rules msprobe`` against what msProbe 26.2 says of single calls that were made for the purpose."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Optional

import made_dumps
import pytest
from made_dumps import call, plain, write

from probe.common.dump.reading.dump import read
from probe.graph.overflow_levels import LEVELS
from probe.msprobe_rules.graph.diff import msprobe_diff, msprobe_overflows
from probe.msprobe_rules.graph.statuses import ERROR, NO_STATUS, PASS, WARNING

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
