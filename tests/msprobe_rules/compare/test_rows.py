"""What a comparison says; a number at a test is that of the real tool's defect in the specification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_dumps
import pytest
from made_dumps import call, plain, written

from probe.common.align.row import Row
from probe.common.dump.reading.records import Record
from probe.common.errors import MsprobeException
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options
from probe.compare.result import ComparisonResult, Divergence, Mode, Unexplained
from probe.compare.rows import measuring
from probe.msprobe_rules.compare import rows as of_rows
from probe.msprobe_rules.compare.rows import DOCUMENTED_ROWS
from probe.msprobe_rules.compare.v26_2 import V26_2_ROWS, WORDS

LINEAR = "Functional.linear.0.forward"


def tensor(norm: float = 1.0, **other: Any) -> dict[str, Any]:
    return made_dumps.tensor(norm, 0.0, 0.5, norm) | other


def compared(
    folder: Path,
    target: dict[str, Any],
    golden: dict[str, Any],
    as_26_2: bool = False,
    heads: dict[str, dict[str, Any]] = {},  # noqa: B006 (never changed)
) -> ComparisonResult:
    dumps = []
    for side, data in (("target", target), ("golden", golden)):
        dumps.append(written(folder / side, data, **heads.get(side, {})))
    return compare_dumps(dumps[0], dumps[1], Options(rules=V26_2_ROWS if as_26_2 else DOCUMENTED_ROWS))


def row(result: ComparisonResult, name: str) -> Row:
    (found,) = (row for row in result.rows if row.target is not None and row.target.name.endswith(name))
    return found


def rules(found: Row) -> tuple[str, ...]:
    """What the rules for tables say of a row, without what the search for the first divergence does."""
    return tuple(message for message in found.messages if not message.startswith(of_rows.BLAMED))


def test_backward_calls_are_paired_in_order_of_appearance_on_both_sides(tmp_path: Path) -> None:
    names = {"target": (0, 4, 2), "golden": (7, 1, 3)}
    data = {
        side: {f"Functional.linear.{number}.backward": {"input": [tensor(place)]} for place, number in enumerate(of)}
        for side, of in names.items()
    }
    result = compared(tmp_path, data["target"], data["golden"])
    pairs = [(row.target.name, row.golden.name, row.metrics[3]) for row in result.rows]  # type: ignore[union-attr]
    assert pairs == [
        (f"Functional.linear.{n}.backward.input.0", f"Functional.linear.{b}.backward.input.0", 0)
        for n, b in zip(names["target"], names["golden"])
    ]


def test_an_unmatched_row_is_a_warning_that_says_so(tmp_path: Path) -> None:  # D3a
    target, golden = {LINEAR: call([tensor()], [])}, {"Torch.sin.0.forward": call([tensor()], [])}
    first, second = compared(tmp_path, target, golden).rows
    assert (first.result, first.messages) == ("warning", (measuring.NO_MATCH,))
    assert second.target is None and second.golden is not None and second.messages == (measuring.NO_TARGET,)  # D5
    (only,) = compared(tmp_path, target, golden, as_26_2=True).rows
    assert (only.result, only.messages) == ("pass", ())


@pytest.mark.parametrize("golden", [tensor(dtype="torch.int64"), plain(3), None])
def test_another_type_keeps_the_pair_and_is_an_error(tmp_path: Path, golden: Any) -> None:  # D6
    data = {LINEAR: call([tensor(dtype="torch.int32")], [])}
    (found,) = compared(tmp_path, data, {LINEAR: call([golden], [])}).rows
    assert found.golden is not None and of_rows.DTYPE in found.messages
    (found,) = compared(tmp_path, data, {LINEAR: call([golden], [])}, as_26_2=True).rows
    assert found.golden is None and found.result == "pass"


def mindspore(**fields: Any) -> dict[str, Any]:
    made = tensor(dtype="Float32", **fields)
    del made["requires_grad"]
    return {**made, "type": "mindspore.Tensor"}


def test_frameworks_may_name_the_same_type_differently(tmp_path: Path) -> None:  # D12
    target, golden = {LINEAR: call([mindspore()], [])}, {LINEAR: call([tensor()], [])}
    heads = {"target": {"framework": "mindspore"}}
    (found,) = compared(tmp_path, target, golden, heads=heads).rows
    assert (found.result, found.requires_grad_consistent) == ("pass", True)
    (found,) = compared(tmp_path, target, golden, as_26_2=True, heads=heads).rows
    assert found.messages == (WORDS[of_rows.REQUIRES_GRAD], WORDS[of_rows.DTYPE])
    (found,) = compared(tmp_path, target, {LINEAR: call([tensor(dtype="torch.float16")], [])}, heads=heads).rows
    assert found.messages == (of_rows.DTYPE,)


def test_the_row_of_the_first_divergence_never_passes(tmp_path: Path) -> None:
    target, golden = ({LINEAR: call([tensor(1.0)], [tensor(norm)])} for norm in (2.0, 2.01))
    result = compared(tmp_path, target, golden)
    assert result.divergence is not None and result.divergence.first.item == f"{LINEAR}.output.0"
    assert row(result, "input.0").result == "pass"
    (message,) = row(result, "output.0").messages
    assert message == f"error: The first divergence is here: {result.divergence.first.reason}."
    assert row(compared(tmp_path, target, golden, as_26_2=True), "output.0").result == "pass"


def test_that_row_is_found_where_functions_have_other_numbers_on_the_golden_side() -> None:
    """The target's first call is the golden side's second."""
    names = [f"Functional.gelu.{place}.forward" for place in range(3)]
    items = [Record(name, call([], [tensor(1.0)]), "dump.json").items()[0] for name in names]
    rows = [Row("Functional.gelu.0.forward", items[0], items[1]), Row("Functional.gelu.1.forward", items[1], items[2])]
    first = Unexplained("Functional.gelu.1.forward", "Functional.gelu.2.forward", "", "far", item=items[1].name)
    result = ComparisonResult("target", "golden", Mode.STATISTICS, rows=rows)
    result.divergence = Divergence(first, [], [], [])
    DOCUMENTED_ROWS.conclude(result)
    assert [each.result for each in rows] == ["", "error"]


def test_inputs_of_a_module_called_output_are_no_outputs(tmp_path: Path) -> None:  # D13
    name = "Module.attention.output.dense.Linear.forward.0"
    target = {name: call([tensor(2.0)], [tensor(9.0)])}
    golden = {name: call([tensor(1.0)], [tensor(1.0)])}
    assert rules(row(compared(tmp_path, target, golden), "input.0")) == ()
    assert of_rows.NORM in row(compared(tmp_path, target, golden, as_26_2=True), "input.0").messages


def test_nan_against_inf_is_an_error(tmp_path: Path) -> None:  # D17
    nan, inf = float("nan"), float("inf")
    for golden, expected in ((nan, ()), (inf, (of_rows.NONFINITE_OTHERWISE,)), (1.0, (of_rows.NONFINITE,))):
        result = compared(tmp_path, {LINEAR: call([tensor(nan)], [])}, {LINEAR: call([tensor(golden)], [])})
        assert rules(result.rows[0]) == expected
    result = compared(tmp_path, {LINEAR: call([tensor(nan)], [])}, {LINEAR: call([tensor(inf)], [])}, as_26_2=True)
    assert result.rows[0].messages == ()


@pytest.mark.parametrize("ends", [{}, dict.fromkeys(("Max", "Min", "Mean", "Norm"), float("nan")), {"md5": "00000000"}])
@pytest.mark.parametrize("framework", ["pytorch", "mindspore"])
def test_tensors_without_elements_are_equal_whatever_is_said_of_their_values(
    tmp_path: Path, ends: dict[str, Any], framework: str
) -> None:
    nothing = dict.fromkeys(("Max", "Min", "Mean", "Norm"))
    full = tensor(md5="abcdef12") if "md5" in ends else tensor()
    other = {"md5": None} if "md5" in ends else {}
    sides = [
        {LINEAR: call([full], [tensor(**{**nothing, "shape": [0, 3], **values})])}
        for values in (ends, {**nothing, **other}, ends)
    ]
    for target, golden in ((sides[0], sides[1]), (sides[1], sides[2]), (sides[0], sides[2])):
        result = compared(tmp_path, target, golden, heads={"target": {"framework": framework}})
        assert [found.result for found in result.rows] == ["pass", "pass"] and result.divergence is None


def test_a_tensor_without_elements_is_not_one_with_some(tmp_path: Path) -> None:
    empty = tensor(**dict.fromkeys(("Max", "Min", "Mean", "Norm")), shape=[0])
    for target, golden in ((empty, tensor()), (tensor(), empty), (empty, {**empty, "shape": [0, 2]})):
        result = compared(tmp_path, {LINEAR: call([], [target])}, {LINEAR: call([], [golden])})
        assert row(result, "output.0").result == "error"


def test_devices_are_never_a_finding(tmp_path: Path) -> None:  # D18
    target, golden = {LINEAR: call([plain("npu:0")], [])}, {LINEAR: call([plain("cuda:0")], [])}
    assert compared(tmp_path, target, golden).rows[0].messages == ()
    assert compared(tmp_path, target, golden, as_26_2=True).rows[0].messages == (WORDS[of_rows.SCALAR],)
    assert compared(tmp_path, target, {LINEAR: call([plain("mean")], [])}).rows[0].messages == (of_rows.SCALAR,)


def test_an_output_far_off_while_the_inputs_are_not_is_an_error(tmp_path: Path) -> None:
    golden = {LINEAR: call([tensor(1.0)], [tensor(1.0), tensor(1.0)])}
    result = compared(tmp_path, {LINEAR: call([tensor(1.05)], [tensor(1.1), tensor(1.6)])}, golden)
    assert [rules(row) for row in result.rows] == [(), (of_rows.TENFOLD,), (of_rows.NORM,)]


@pytest.mark.parametrize("name", ["Tensor.to.0.forward", "Torch.empty.3.forward"])
def test_what_is_not_computed_is_not_judged(tmp_path: Path, name: str) -> None:
    result = compared(tmp_path, {name: call([], [tensor(99.0)])}, {name: call([], [tensor(1.0)])})
    assert rules(result.rows[0]) == ()


def test_records_whose_rows_are_separated_keep_their_verdicts(tmp_path: Path) -> None:  # D15
    target = {f"Torch.sin.{i}.forward": call([plain(i)], []) for i in range(3)}
    golden = {f"Torch.sin.{i}.forward": call([plain(1)], []) for i in (2, 0, 1)}
    assert [row.result for row in compared(tmp_path, target, golden).rows] == ["error", "pass", "error"]


def test_checksums_on_one_side_only_are_refused(tmp_path: Path) -> None:
    with_checksum = {LINEAR: call([tensor(md5="0badcafe")], [])}
    without = {LINEAR: call([tensor()], [])}
    with pytest.raises(MsprobeException, match=r"holds checksums and .* does not"):
        compared(tmp_path, with_checksum, without)
    result = compared(tmp_path, with_checksum, {LINEAR: call([tensor(md5="12345678")], [])})
    assert result.mode is Mode.CHECKSUM and result.rows[0].messages == (of_rows.CHECKSUM,)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ({"target": {"task": "tensor"}}, "\"task\" is 'tensor'"),
        ({side: {"task": "structure"} for side in ("target", "golden")}, 'allowed: "statistics" and'),
        ({"target": {"framework": "jax"}}, "known: 'pytorch'"),
        ({"golden": {"framework": "jax"}}, "known: 'pytorch'"),
        ({"target": {"level": "debug"}}, "saved values"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(tmp_path: Path, heads: dict[str, Any], message: str) -> None:
    data = {LINEAR: call([tensor()], [])}
    with pytest.raises(MsprobeException, match=message) as error:
        compared(tmp_path, data, data, heads=heads)
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize("golden", ["mindspore", "mindtorch"])
def test_a_direction_is_refused_by_26_2_alone(tmp_path: Path, golden: str) -> None:
    data, heads = {LINEAR: call([tensor()], [tensor()])}, {"golden": {"framework": golden}}
    assert [row.result for row in compared(tmp_path, data, data, heads=heads).rows] == ["pass"] * 2
    with pytest.raises(MsprobeException, match=r"by the rules msprobe a pytorch dump .* exchange -tp and -gp"):
        compared(tmp_path, data, data, as_26_2=True, heads=heads)


def test_between_frameworks_gradients_are_held_against_each_other_for_parameters_only(tmp_path: Path) -> None:
    sides = [{**mindspore(), "requires_grad": True}, tensor()]
    target, golden = ({LINEAR: {**call([side], []), "parameters": {"weight": side}}} for side in sides)
    found = compared(tmp_path, target, golden, heads={"target": {"framework": "mindspore"}}).rows
    assert [(row.messages, row.requires_grad_consistent) for row in found] == [
        ((), True),
        ((of_rows.REQUIRES_GRAD,), False),
    ]


def test_whole_numbers_of_another_width_are_no_error_between_frameworks(tmp_path: Path) -> None:
    labels = {LINEAR: call([{**mindspore(), "dtype": "Int32"}], [])}
    heads = {"target": {"framework": "mindspore"}}
    (found,) = compared(tmp_path, labels, {LINEAR: call([tensor(dtype="torch.int64")], [])}, heads=heads).rows
    assert (found.result, found.messages) == ("pass", ())
    (found,) = compared(tmp_path, labels, {LINEAR: call([tensor()], [])}, heads=heads).rows
    assert found.messages == (of_rows.DTYPE,)


def test_a_flag_is_no_number_to_the_real_tool(tmp_path: Path) -> None:
    target, golden = ({LINEAR: call([plain(value)], [])} for value in (True, False))
    assert compared(tmp_path, target, golden).rows[0].metrics == (1.0,) * 4 + ("inf",) * 4
    assert compared(tmp_path, target, golden, as_26_2=True).rows[0].metrics == ("Diff",) * 8
    assert compared(tmp_path, target, target, as_26_2=True).rows[0].metrics == (0,) * 8


@pytest.mark.parametrize(
    ("target", "golden"),
    [
        ("Bool", "torch.bool"),
        ("BFloat16", "torch.bfloat16"),
        ("Complex64", "torch.complex64"),
        ("UInt8", "torch.uint8"),
        ("Float8E4M3FN", "torch.float8_e4m3fn"),
    ],
)
def test_names_of_types_match(tmp_path: Path, target: str, golden: str) -> None:
    mine, theirs = {LINEAR: call([{**mindspore(), "dtype": target}], [])}, {LINEAR: call([tensor(dtype=golden)], [])}
    (found,) = compared(tmp_path, mine, theirs, heads={"target": {"framework": "mindspore"}}).rows
    assert of_rows.DTYPE not in found.messages
