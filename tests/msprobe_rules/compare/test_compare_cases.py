"""Rows of a comparison by the rules of msprobe 26.2: the recorded tables, and rules that these do not show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import made_dumps
import pytest
from compare_cases import (
    Run,
    check_apart_from_defects,
    columns,
    differences,
    execute,
    runs,
    same,
    table,
)
from made_dumps import call, plain, written

from probe.common.align.calls import Row
from probe.common.align.name_mapping import load_names
from probe.common.errors import MsprobeException
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options
from probe.compare.result import ComparisonResult
from probe.msprobe_rules import compare as of_rows
from probe.msprobe_rules.compare import V26_2_ROWS

# --- recorded comparisons of statistics and checksums, none of which needs a framework

TABLES = [run for run in runs(real_data=False) if "-da" not in run.arguments]
ANALYSES = [run for run in runs(real_data=False) if "-da" in run.arguments]


@pytest.mark.parametrize("run", TABLES, ids=str)
def test_26_2_writes_every_cell_as_recorded(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for made, expected in execute(run, tmp_path, monkeypatch, "--rules", "msprobe"):
        if made.suffix == ".yaml":
            assert load_names(str(made)) == load_names(str(expected))
            assert list(load_names(str(made))) == list(load_names(str(expected)))
            continue
        assert columns(made) == columns(expected)
        assert differences(table(made), table(expected)) == []


@pytest.mark.parametrize("run", TABLES, ids=str)
def test_what_differs_from_the_record_is_a_defect_of_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for made, expected in execute(run, tmp_path, monkeypatch):
        if made.suffix == ".csv":
            check_apart_from_defects(run, made, expected)


@pytest.mark.parametrize("run", ANALYSES, ids=str)
def test_first_differences_are_as_recorded(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for made, expected in execute(run, tmp_path, monkeypatch):
        assert alike(json.loads(made.read_text()), json.loads(expected.read_text()))


def alike(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(alike(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(alike, ours, theirs))
    return type(ours) is type(theirs) and same(ours, theirs)


# --- rows as msProbe 26.2 writes them; a number at a test is that of the real tool's defect in the specification

LINEAR = "Functional.linear.0.forward"


def tensor(norm: float = 1.0, **other: Any) -> dict[str, Any]:
    return made_dumps.tensor(norm, 0.0, 0.5, norm) | other


def compared(
    folder: Path,
    target: dict[str, Any],
    golden: dict[str, Any],
    as_26_2: bool = True,
    heads: dict[str, dict[str, Any]] = {},  # noqa: B006 (never changed)
) -> ComparisonResult:
    dumps = []
    for side, data in (("target", target), ("golden", golden)):
        dumps.append(written(folder / side, data, **heads.get(side, {})))
    return compare_dumps(dumps[0], dumps[1], Options(rules=V26_2_ROWS if as_26_2 else None))


def row(result: ComparisonResult, name: str) -> Row:
    (found,) = (row for row in result.rows if row.target is not None and row.target.name.endswith(name))
    return found


def test_backward_calls_are_paired_in_order_of_appearance_on_both_sides(tmp_path: Path) -> None:
    names = {"target": (0, 4, 2), "golden": (7, 1, 3)}
    data = {
        side: {f"Functional.linear.{number}.backward": {"input": [tensor(place)]} for place, number in enumerate(of)}
        for side, of in names.items()
    }
    for as_26_2 in (True, False):
        result = compared(tmp_path / str(as_26_2), data["target"], data["golden"], as_26_2)
        pairs = [(row.target.name, row.golden.name, row.metrics[3]) for row in result.rows]  # type: ignore[union-attr]
        assert pairs == [
            (f"Functional.linear.{n}.backward.input.0", f"Functional.linear.{b}.backward.input.0", 0)
            for n, b in zip(names["target"], names["golden"])
        ]


def test_an_unmatched_row_passes_and_what_golden_has_alone_is_left_out(tmp_path: Path) -> None:  # D3a, D5
    target, golden = {LINEAR: call([tensor()], [])}, {"Torch.sin.0.forward": call([tensor()], [])}
    (only,) = compared(tmp_path, target, golden).rows
    assert (only.result, only.messages) == ("pass", ())


@pytest.mark.parametrize("golden", [tensor(dtype="torch.int64"), plain(3), None])
def test_another_type_is_no_pair(tmp_path: Path, golden: Any) -> None:  # D6
    data = {LINEAR: call([tensor(dtype="torch.int32")], [])}
    (found,) = compared(tmp_path, data, {LINEAR: call([golden], [])}).rows
    assert found.golden is None and found.result == "pass"
    (found,) = compared(tmp_path, data, {LINEAR: call([golden], [])}, as_26_2=False).rows
    assert found.golden is not None


def mindspore(**fields: Any) -> dict[str, Any]:
    made = tensor(dtype="Float32", **fields)
    del made["requires_grad"]
    return {**made, "type": "mindspore.Tensor"}


def test_inputs_of_a_module_called_output_are_outputs(tmp_path: Path) -> None:  # D13
    name = "Module.attention.output.dense.Linear.forward.0"
    target = {name: call([tensor(2.0)], [tensor(9.0)])}
    golden = {name: call([tensor(1.0)], [tensor(1.0)])}
    assert of_rows.NORM in row(compared(tmp_path, target, golden), "input.0").messages


@pytest.mark.parametrize("golden", ["mindspore", "mindtorch"])
def test_a_direction_is_refused_by_26_2_alone(tmp_path: Path, golden: str) -> None:
    data, heads = {LINEAR: call([tensor()], [tensor()])}, {"golden": {"framework": golden}}
    assert [row.result for row in compared(tmp_path, data, data, as_26_2=False, heads=heads).rows] == ["pass"] * 2
    with pytest.raises(MsprobeException, match=r"by the rules msprobe a pytorch dump .* exchange both runs"):
        compared(tmp_path, data, data, heads=heads)


def test_a_flag_is_no_number_to_the_real_tool(tmp_path: Path) -> None:
    target, golden = ({LINEAR: call([plain(value)], [])} for value in (True, False))
    assert compared(tmp_path, target, golden, as_26_2=False).rows[0].metrics == (1.0,) * 4 + ("inf",) * 4
    assert compared(tmp_path, target, golden).rows[0].metrics == ("Diff",) * 8
    assert compared(tmp_path, target, target).rows[0].metrics == (0,) * 8
