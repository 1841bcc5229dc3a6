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
from made_dumps import call, written

import probe
from probe.common.align.calls import Row
from probe.common.align.dump_pairs import locate
from probe.common.dump.reading.dump import read
from probe.common.errors import MsprobeException
from probe.compare.comparison import compare_dumps
from probe.compare.result import ComparisonResult
from probe.compare.summary import summarise
from probe.compare.tables import DISTANCE, EXPLAINED

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
@pytest.mark.sampled(least=12, each=False)
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


def test_saved_values_that_differ_are_warnings_as_nobody_can_tell(tmp_path: Path) -> None:
    heads = {side: {"level": "debug"} for side in ("target", "golden")}
    sides = ({"loss.0.debug": tensor(norm), "logits.0.debug": tensor()} for norm in (1.0, 2.0))
    result = compared(tmp_path, *sides, **heads)
    (loss, message), logits = judged(result)
    assert loss == "warning" and "does not record which saved value" in message[0] and logits == ("pass", ())
    assert summarise(result).answer == "cannot_tell"


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
