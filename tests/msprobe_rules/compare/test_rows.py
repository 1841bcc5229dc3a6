"""Rows as msProbe 26.2 writes them; a number at a test is that of the real tool's defect in the specification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_dumps
import pytest
from made_dumps import call, plain, written

from probe.common.align.row import Row
from probe.common.errors import MsprobeException
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options
from probe.compare.result import ComparisonResult, Mode
from probe.msprobe_rules.compare import rows as of_rows
from probe.msprobe_rules.compare.v26_2 import V26_2_ROWS

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


def test_other_names_of_a_type_are_an_error(tmp_path: Path) -> None:  # D12
    target, golden = {LINEAR: call([mindspore()], [])}, {LINEAR: call([tensor()], [])}
    heads = {"target": {"framework": "mindspore"}}
    (found,) = compared(tmp_path, target, golden, heads=heads).rows
    assert found.messages == (of_rows.REQUIRES_GRAD, of_rows.DTYPE)
    (found,) = compared(tmp_path, target, golden, as_26_2=False, heads=heads).rows
    assert found.requires_grad_consistent


def test_no_row_says_where_the_runs_diverge(tmp_path: Path) -> None:
    target, golden = ({LINEAR: call([tensor(1.0)], [tensor(norm)])} for norm in (2.0, 2.01))
    result = compared(tmp_path, target, golden)
    assert result.divergence is not None and result.divergence.first.item == f"{LINEAR}.output.0"
    assert row(result, "output.0").result == "pass"


def test_inputs_of_a_module_called_output_are_outputs(tmp_path: Path) -> None:  # D13
    name = "Module.attention.output.dense.Linear.forward.0"
    target = {name: call([tensor(2.0)], [tensor(9.0)])}
    golden = {name: call([tensor(1.0)], [tensor(1.0)])}
    assert of_rows.NORM in row(compared(tmp_path, target, golden), "input.0").messages


def test_nan_against_inf_passes(tmp_path: Path) -> None:  # D17
    nan, inf = float("nan"), float("inf")
    for golden, expected in ((nan, ()), (inf, ()), (1.0, (of_rows.NONFINITE,))):
        result = compared(tmp_path, {LINEAR: call([tensor(nan)], [])}, {LINEAR: call([tensor(golden)], [])})
        assert result.rows[0].messages == expected


def test_devices_are_a_finding(tmp_path: Path) -> None:  # D18
    target, golden = {LINEAR: call([plain("npu:0")], [])}, {LINEAR: call([plain("cuda:0")], [])}
    assert compared(tmp_path, target, golden).rows[0].messages == (of_rows.SCALAR,)


def test_an_output_far_off_while_the_inputs_are_not_is_an_error(tmp_path: Path) -> None:
    golden = {LINEAR: call([tensor(1.0)], [tensor(1.0), tensor(1.0)])}
    result = compared(tmp_path, {LINEAR: call([tensor(1.05)], [tensor(1.1), tensor(1.6)])}, golden)
    assert [row.messages for row in result.rows] == [(), (of_rows.TENFOLD,), (of_rows.NORM,)]


@pytest.mark.parametrize("name", ["Tensor.to.0.forward", "Torch.empty.3.forward"])
def test_what_is_not_computed_is_not_judged(tmp_path: Path, name: str) -> None:
    result = compared(tmp_path, {name: call([], [tensor(99.0)])}, {name: call([], [tensor(1.0)])})
    assert result.rows[0].messages == ()


def test_records_whose_rows_are_separated_keep_their_verdicts(tmp_path: Path) -> None:  # D15
    target = {f"Torch.sin.{i}.forward": call([plain(i)], []) for i in range(3)}
    golden = {f"Torch.sin.{i}.forward": call([plain(1)], []) for i in (2, 0, 1)}
    assert [row.result for row in compared(tmp_path, target, golden).rows] == ["error", "pass", "error"]


def test_checksums_that_differ_are_an_error(tmp_path: Path) -> None:
    with_checksum = {LINEAR: call([tensor(md5="0badcafe")], [])}
    result = compared(tmp_path, with_checksum, {LINEAR: call([tensor(md5="12345678")], [])})
    assert result.mode is Mode.CHECKSUM and result.rows[0].messages == (of_rows.CHECKSUM,)


@pytest.mark.parametrize("golden", ["mindspore", "mindtorch"])
def test_a_direction_is_refused_by_26_2_alone(tmp_path: Path, golden: str) -> None:
    data, heads = {LINEAR: call([tensor()], [tensor()])}, {"golden": {"framework": golden}}
    assert [row.result for row in compared(tmp_path, data, data, as_26_2=False, heads=heads).rows] == ["pass"] * 2
    with pytest.raises(MsprobeException, match=r"by the rules msprobe a pytorch dump .* exchange -tp and -gp"):
        compared(tmp_path, data, data, heads=heads)


def test_a_flag_is_no_number_to_the_real_tool(tmp_path: Path) -> None:
    target, golden = ({LINEAR: call([plain(value)], [])} for value in (True, False))
    assert compared(tmp_path, target, golden, as_26_2=False).rows[0].metrics == (1.0,) * 4 + ("inf",) * 4
    assert compared(tmp_path, target, golden).rows[0].metrics == ("Diff",) * 8
    assert compared(tmp_path, target, target).rows[0].metrics == (0,) * 8
