"""The results of rows follow the answer: a table has an error where the runs diverge, and nowhere else."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_dumps
import pytest
from made_dumps import call, plain, written

import probe
from probe.api import cli
from probe.common.align.dump_pairs import locate
from probe.common.align.row import Row
from probe.common.dump.reading.dump import read
from probe.common.errors import MsprobeException
from probe.common.parallel.tasks import Where
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options
from probe.compare.output.summary import first_of, summarise
from probe.compare.output.tables import DISTANCE, EXPLAINED
from probe.compare.result import ComparisonResult
from probe.compare.rows import measuring
from probe.compare.runner import summaries

Dumps = Callable[[str], Path]
CASES = [
    case
    for case in json.loads((Path(__file__).parent / "judged" / "cases.json").read_text(encoding="utf-8"))
    if not case.get("refused")
]
LINEAR = "Functional.linear.0.forward"
BLAMED = "error: The first divergence is here: "


def tensor(norm: float = 1.0, **other: Any) -> dict[str, Any]:
    return made_dumps.tensor(norm, 0.0, 0.5, norm) | other


def mindspore(**fields: Any) -> dict[str, Any]:
    made = tensor(dtype="Float32", **fields)
    del made["requires_grad"]
    return {**made, "type": "mindspore.Tensor"}


def compared(folder: Path, mine: dict[str, Any], theirs: dict[str, Any], **heads: dict[str, Any]) -> ComparisonResult:
    target, golden = (
        written(folder / side, data, **heads.get(side, {})) for side, data in (("target", mine), ("golden", theirs))
    )
    return compare_dumps(target, golden)


def judged(result: ComparisonResult) -> list[tuple[str, tuple[str, ...]]]:
    return [(row.result, row.messages) for row in result.rows]


def name_of(row: Row) -> str:
    item = row.target or row.golden
    assert item is not None
    return item.name


@pytest.mark.rounding
@pytest.mark.sampled
@pytest.mark.parametrize("case", [pytest.param(case, id=f"{case['set']}-{case['case']}") for case in CASES])
def test_rows_are_errors_where_the_runs_diverge_and_nowhere_else(dumps_of: Dumps, case: dict[str, Any]) -> None:
    folder = dumps_of(case["set"])
    for pair in locate(str(folder / case["target"]), str(folder / case["golden"])):
        result = compare_dumps(read(pair.target), read(pair.golden), before=pair.before)
        errors = [row for row in result.rows if row.result == "error"]
        found = [] if result.divergence is None else [result.divergence.first, *result.divergence.suspects]
        assert {name_of(row) for row in errors} == {each.item for each in found}
        assert len(errors) == len(set(map(name_of, errors)))
        blamed = [row for row in errors if any(text.startswith(BLAMED) for text in row.messages)]
        assert [name_of(row) for row in blamed] == [each.item for each in found[:1]]
        counts = summarise(result).counts
        assert counts == {each: Counter(row.result for row in result.rows)[each] for each in counts}
        for row in result.rows:
            # A message is never worse than its row, and each result but "pass" has one of its own.
            levels = {text.partition(":")[0] for text in row.messages}
            allowed = {"pass": {"note"}, "warning": {"note", "warning"}, "error": {"note", "warning", "error"}}
            assert levels <= allowed[row.result] and (row.result == "pass" or row.result in levels), row
            if row.result == "pass" and row.explained is not None and not found:
                assert (row.relative_difference or 0.0) <= row.explained, row


@pytest.mark.parametrize(
    ("of", "case"), [("pairs", "scale-llama@L0"), ("pairs", "attention-llama@mix"), ("planted", "")], ids=str
)
def test_the_table_says_what_is_printed(
    dumps_of: Dumps, of: str, case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = dumps_of(of) / case if case else next(iter(sorted(dumps_of(of).rglob("golden")))).parent
    sides = [str(run / side) for side in ("target", "golden")]
    assert cli.main(["compare", *sides, "-o", str(tmp_path), "--jobs", "1"]) == 0
    said = capsys.readouterr().out
    rows = []
    for table in tmp_path.rglob("*.csv"):
        with open(table, newline="", encoding="utf-8") as stream:
            rows += list(csv.DictReader(stream))
    errors = [row for row in rows if row["Result"] == "error"]
    assert bool(errors) == said.startswith("first divergence: ")
    counts = [line.partition("rows by statistics: ")[2] for line in said.splitlines() if "rows by statistics" in line]
    assert sum(int(line.split(", ")[-1].split()[0]) for line in counts) == len(errors)
    assert {row["Result"] for row in rows} <= {"pass", "warning", "error"}


def test_an_error_fails_where_a_divergence_does(dumps_of: Dumps, tmp_path: Path) -> None:
    for case, expected in (("scale-llama@L0", 1), ("attention-llama@mix", 0)):
        run = dumps_of("pairs") / case
        for level in ("error", "divergence"):
            command = ["compare", str(run / "target"), str(run / "golden"), "-o", str(tmp_path / "out"), "--jobs", "1"]
            assert cli.main([*command, "--fail-on", level]) == expected
    for side, norm in (("a", 1.0), ("b", 2.0)):
        written(tmp_path / side, {"loss.0.debug": tensor(norm)}, level="debug")
    for level, expected in (("error", 2), ("divergence", 2), ("warning", 1)):
        sides = str(tmp_path / "a"), str(tmp_path / "b")
        assert cli.main(["compare", *sides, "-o", str(tmp_path / "out"), "--fail-on", level]) == expected


def test_the_first_divergence_is_an_error_however_small(tmp_path: Path) -> None:
    target, golden = ({LINEAR: call([tensor(1.0)], [tensor(norm)])} for norm in (2.0, 2.01))
    result = compared(tmp_path, target, golden)
    assert result.divergence is not None and result.divergence.first.item == f"{LINEAR}.output.0"
    assert judged(result) == [("pass", ()), ("error", (f"{BLAMED}{result.divergence.first.reason}.",))]


def test_a_name_that_both_sides_have_for_two_calls_is_marked_once(tmp_path: Path) -> None:
    """Calls that the golden run makes in another order have the names of others."""
    target = {
        "Torch.sin.0.forward": call([tensor(1.0)], [tensor(0.8)]),
        "Torch.sin.1.forward": call([tensor(3.0)], [tensor(0.5)]),
    }
    golden = {
        "Torch.sin.0.forward": call([tensor(9.0)], [tensor(0.1)]),
        "Torch.sin.1.forward": call([tensor(1.0)], [tensor(0.8)]),
        "Torch.sin.2.forward": call([tensor(3.0)], [tensor(0.4)]),
    }
    result = compared(tmp_path, target, golden)
    errors = [row for row in result.rows if row.result == "error"]
    assert bool(errors) == (result.divergence is not None)
    assert len(errors) == len({name_of(row) for row in errors})


def test_what_one_side_has_alone_is_a_warning(tmp_path: Path) -> None:
    target, golden = {LINEAR: call([tensor()], [])}, {"Torch.sin.0.forward": call([tensor()], [])}
    first, second = judged(compared(tmp_path, target, golden))
    assert first == ("warning", (measuring.NO_MATCH,)) and second == ("warning", (measuring.NO_TARGET,))


@pytest.mark.parametrize(
    ("target", "golden", "reason"),
    [
        (plain(2.0), plain(1.0), "input.1 is 2.0 and in the golden run 1.0"),
        (tensor(dtype="torch.int32"), tensor(dtype="torch.int64"), "input.1 is int32 and in the golden run int64"),
        (tensor(shape=[4, 1]), tensor(shape=[2, 2]), "input.1 has shape [4, 1] and in the golden run [2, 2]"),
    ],
)
def test_another_argument_dtype_or_shape_without_effect_is_a_warning(
    tmp_path: Path, target: Any, golden: Any, reason: str
) -> None:
    sides = ({"Torch.mul.0.forward": call([tensor(), side], [tensor()])} for side in (target, golden))
    assert judged(compared(tmp_path, *sides)) == [("pass", ()), ("warning", (f"warning: {reason}.",)), ("pass", ())]


def test_checksums_that_differ_are_an_error_where_the_inputs_agree(tmp_path: Path) -> None:
    def digest(text: str) -> dict[str, Any]:
        return {name: value for name, value in tensor(md5=text).items() if name not in ("Max", "Min", "Mean", "Norm")}

    def run(*sums: str) -> dict[str, Any]:
        return {f"Torch.sin.{n}.forward": call([digest("1")], [digest(each)]) for n, each in enumerate(sums)}

    assert {result for result, _ in judged(compared(tmp_path / "same", run("2", "3"), run("2", "3")))} == {"pass"}
    result = compared(tmp_path / "other", run("2", "3"), run("2", "4"))
    assert result.divergence is not None
    assert [each for each, _ in judged(result)] == ["pass", "pass", "pass", "error"]


def test_frameworks_may_name_the_same_type_differently(tmp_path: Path) -> None:
    heads = {"target": {"framework": "mindspore"}}
    for mine, theirs in (("Float32", "float32"), ("Int32", "int64"), ("Bool", "bool"), ("BFloat16", "bfloat16")):
        target = {LINEAR: call([{**mindspore(), "dtype": mine}], [mindspore()])}
        golden = {LINEAR: call([tensor(dtype=f"torch.{theirs}")], [tensor()])}
        assert {each for each, _ in judged(compared(tmp_path / mine, target, golden, **heads))} == {"pass"}


def test_saved_values_that_differ_are_warnings_as_nobody_can_tell(tmp_path: Path) -> None:
    heads = {side: {"level": "debug"} for side in ("target", "golden")}
    sides = ({"loss.0.debug": tensor(norm), "logits.0.debug": tensor()} for norm in (1.0, 2.0))
    result = compared(tmp_path, *sides, **heads)
    (loss, message), logits = judged(result)
    assert loss == "warning" and "does not record which saved value" in message[0] and logits == ("pass", ())
    assert summarise(result).answer == "cannot_tell"


def test_a_note_of_measuring_is_no_worse_than_its_row(tmp_path: Path) -> None:
    head = {"task": "tensor"}
    sides = ({LINEAR: call([tensor(data_name="gone.pt")], [tensor(data_name="gone.pt")])} for _ in range(2))
    for result, messages in judged(compared(tmp_path, *sides, target=head, golden=head)):
        assert result == "warning" and not any(text.startswith("error: ") for text in messages)


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
        result = compared(tmp_path, target, golden, target={"framework": framework})
        assert [each for each, _ in judged(result)] == ["pass", "pass"] and result.divergence is None


def test_a_tensor_without_elements_is_not_one_with_some(tmp_path: Path) -> None:
    empty = tensor(**dict.fromkeys(("Max", "Min", "Mean", "Norm")), shape=[0])
    for target, golden in ((empty, tensor()), (tensor(), empty), (empty, {**empty, "shape": [0, 2]})):
        (found,) = judged(compared(tmp_path, {LINEAR: call([], [target])}, {LINEAR: call([], [golden])}))
        assert found[0] == "warning" and "has shape" in found[1][0]


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
        compared(tmp_path, data, data, **heads)
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


def test_checksums_on_one_side_only_are_refused(tmp_path: Path) -> None:
    with_checksum, without = {LINEAR: call([tensor(md5="0badcafe")], [])}, {LINEAR: call([tensor()], [])}
    with pytest.raises(MsprobeException, match=r"holds checksums and .* does not"):
        compared(tmp_path, with_checksum, without)


def test_between_frameworks_gradients_are_held_against_each_other_for_parameters_only(tmp_path: Path) -> None:
    sides = [{**mindspore(), "requires_grad": True}, tensor()]
    target, golden = ({LINEAR: {**call([side], []), "parameters": {"weight": side}}} for side in sides)
    found = compared(tmp_path, target, golden, target={"framework": "mindspore"}).rows
    assert [row.requires_grad_consistent for row in found] == [True, False]


def test_our_rules_by_name_add_distances_behind_the_other_columns(dumps_of: Dumps, tmp_path: Path) -> None:
    run = dumps_of("pairs") / "scale-llama@L0"
    options = Options(distances=True)
    found = list(summaries(str(run / "target"), str(run / "golden"), str(tmp_path), options, where=Where(1)))
    first = first_of(found)
    assert first is not None and first.divergence is not None
    with open(first.tables[0], newline="", encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    assert list(lines[0])[-2:] == [DISTANCE, EXPLAINED]
    (diverged,) = [line for line in lines if BLAMED in line["Err_message"]]
    assert diverged["NPU Name"] == first.divergence.first.item
    assert float(diverged[DISTANCE]) == pytest.approx(first.divergence.first.found, rel=1e-2)
    kinds = Counter(bool(line[DISTANCE]) for line in lines)
    assert kinds[True] > kinds[False]


@pytest.mark.parametrize(("rules", "has_distances"), [(None, False), ("msprobe", False), ("probe", True)])
def test_only_rules_that_are_asked_for_add_columns(
    dumps_of: Dumps, tmp_path: Path, rules: str | None, has_distances: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MSPROBE_RULES", raising=False)
    run = dumps_of("pairs") / "scale-llama@L0"
    found = probe.verdict(run / "target", run / "golden", tmp_path, rules=rules).summaries[0]
    with open(found.tables[0], newline="", encoding="utf-8") as stream:
        head = next(csv.reader(stream))
    assert (DISTANCE in head, EXPLAINED in head) == (has_distances, has_distances)
