"""What is found in dumps of the reference tool: the truth, which that tool names in two of six; and its own file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probe.api.cli import main
from probe.common.parallel.tasks import Where
from probe.overflow.find_overflow import find_overflow
from probe.overflow.overflow_report import COMMUNICATION, ORIGIN, OUTSIDE, PARAMETER, Finding, Report

CASES = Path(__file__).parent / "cases"
EDGES = json.loads((CASES / "edge" / "cases.json").read_text("utf-8"))

TRUTH: dict[str, list[tuple[str, int, str]]] = {
    "compute_rank1": [(ORIGIN, 1, "Torch.log.0.forward")],
    "compute_rank0_late": [(ORIGIN, 0, "Torch.sqrt.0.forward")],
    "comm_creates": [
        (COMMUNICATION, 0, "Distributed.all_reduce.0.forward"),
        (COMMUNICATION, 1, "Distributed.all_reduce.0.forward"),
    ],
    "both_ranks": [(ORIGIN, 0, "Torch.div.0.forward"), (ORIGIN, 1, "Torch.div.0.forward")],
    "input_nan_rank0_only": [(OUTSIDE, 0, "Functional.linear.0.forward")],
    "backward_only": [(ORIGIN, 0, "Torch.sqrt.0.backward"), (ORIGIN, 1, "Torch.sqrt.0.backward")],
    "clean": [],
}
"""The kind, the rank and the record of every first finding."""
AS_IN_THE_TOOL = ("compute_rank1", "backward_only")
"""Where the reference tool is right."""

OF_EDGES: dict[str, tuple[str, str, str] | None] = {
    "norm_only_overflow": None,
    "empty_ignored": (OUTSIDE, "Torch.mul.0.forward", "input.0"),
    "fill_ignored": (ORIGIN, "Tensor.fill_.0.forward", "output.0"),
    "input_abnormal_only": (OUTSIDE, "Torch.mul.0.forward", "input.0"),
    "kwarg_abnormal": (OUTSIDE, "Functional.linear.0.forward", "input.bias"),
    "nested_output": (ORIGIN, "Torch.split.0.forward", "output.0.1"),
    "module_record_first": (ORIGIN, "Module.fc.Linear.forward.0", "output.0"),
    "parameter_abnormal": (PARAMETER, "Module.fc.Linear.forward.0", "parameters.weight"),
    "string_nan": (ORIGIN, "Torch.mul.0.forward", "output.0"),
}
"""The kind, the record and the tensor of the first finding."""


def search(path: Path) -> Report:
    return find_overflow(str(path), where=Where(jobs=1))


def places(finding: Finding) -> list[tuple[str, int, str]]:
    return [(finding.kind, *key) for key in finding.members or [finding.key]]


@pytest.mark.parametrize("case", TRUTH)
def test_what_is_true_is_found(case: str) -> None:
    report = search(CASES / case)
    assert sorted(place for finding in report.first for place in places(finding)) == TRUTH[case]
    assert [step.step for step in report.steps] == [0]


@pytest.mark.parametrize("case", TRUTH)
def test_a_step_is_searched_as_its_run_is(case: str) -> None:
    first = search(CASES / case).first
    assert [finding.key for finding in search(CASES / case / "step0").first] == [finding.key for finding in first]


@pytest.mark.parametrize("case", TRUTH)
def test_the_status_says_whether_something_was_found(case: str, tmp_path: Path) -> None:
    status = main(["overflow_check", "-i", str(CASES / case), "-o", str(tmp_path), "--no_page", "--jobs", "1"])
    assert status == (1 if TRUTH[case] else 0)
    written = sorted(path.name.partition("_")[0] for path in tmp_path.iterdir())
    assert written == (["anomaly", "overflow"] if TRUTH[case] else [])


@pytest.mark.parametrize("case", AS_IN_THE_TOOL)
def test_where_the_reference_tool_is_right_its_file_is_written_as_it_writes_it(case: str, tmp_path: Path) -> None:
    assert written_file(CASES / case, tmp_path) == file_of_the_tool(case)


@pytest.mark.parametrize("case", sorted(set(TRUTH) - {"clean", *AS_IN_THE_TOOL}))
def test_elsewhere_each_record_stands_in_the_file_as_the_tool_would_write_it(case: str, tmp_path: Path) -> None:
    written = written_file(CASES / case, tmp_path)
    named = sorted((int(rank[5:]), each["op_name"]) for rank, found in written.items() for each in found)
    assert named == [place[1:] for place in TRUTH[case]]
    for rank, found in file_of_the_tool(case).items():
        for each in found:
            same = [one for one in written.get(rank, []) if one["op_name"] == each["op_name"]]
            assert same in ([], [each])


def file_of_the_tool(case: str) -> Any:
    return comparable(json.loads((CASES / case / "real_result.json").read_text("utf-8")))


def written_file(path: Path, output: Path) -> Any:
    main(["overflow_check", "-i", str(path), "-o", str(output), "--no_page", "--jobs", "1"])
    (file,) = output.glob("anomaly_analyze_*.json")
    return comparable(json.loads(file.read_text("utf-8")))


def comparable(value: Any) -> Any:
    """NaN is unequal to itself."""
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [comparable(item) for item in value]
    return "NaN" if value != value else value


def test_every_edge_has_a_truth() -> None:
    assert set(OF_EDGES) == set(EDGES)


@pytest.mark.parametrize("edge", OF_EDGES)
def test_what_is_true_of_records_on_the_edge_is_found(edge: str, tmp_path: Path) -> None:
    dump = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
    dump["data"] = EDGES[edge]["data"]
    folder = tmp_path / "step0" / "rank0"
    folder.mkdir(parents=True)
    (folder / "dump.json").write_text(json.dumps(dump), encoding="utf-8")
    first = search(tmp_path).first
    expected = OF_EDGES[edge]
    found = [(finding.kind, finding.record, finding.item.removeprefix(f"{finding.record}.")) for finding in first]
    assert found == ([] if expected is None else [expected])


def test_memory_that_was_never_written_is_named_as_the_source(tmp_path: Path) -> None:
    dump = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
    dump["data"] = EDGES["empty_ignored"]["data"]
    (tmp_path / "dump.json").write_text(json.dumps(dump), encoding="utf-8")
    (finding,) = search(tmp_path).first
    assert finding.source == "Torch.empty.0.forward"


def test_a_norm_beyond_its_type_is_noted_and_is_no_finding(tmp_path: Path) -> None:
    dump = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
    dump["data"] = EDGES["norm_only_overflow"]["data"]
    (tmp_path / "dump.json").write_text(json.dumps(dump), encoding="utf-8")
    (step,) = search(tmp_path).steps
    assert step.findings == []
    assert any("norm exceeds the range of its dtype" in note for note in step.notes)
