"""The journal of a pre-check, which a run that was killed is taken up from."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from probe.calls.judged_results import JudgedResult
from probe.calls.verdict.subject import ERROR, NONFINITE, PASS, KernelVerdict
from probe.common.errors import FileCheckException
from probe.precheck.output.journal import Journal
from probe.precheck.result import CaseResult

ROW = JudgedResult(
    "Torch.exp.0.forward.output.0", "", "float32", "float64", (2, 3),
    KernelVerdict(PASS, "fine", "elementwise", 0.25, 1e-7, (1, 2), 1.5, 1.25, 0.5, 0.1, 0.0),
)  # fmt: skip
WRONG = JudgedResult(
    "Torch.exp.1.forward.output.0", "", "complex64", "complex128", (),
    KernelVerdict(NONFINITE, "NaN", "", math.inf, None, (), complex(math.nan, 1.0), -math.inf),
)  # fmt: skip
RESULTS = [
    CaseResult("Torch.exp.0", "Torch.exp", (ROW,), stands_for=3, saved=("a.pt",)),
    CaseResult("Torch.exp.1", "Torch.exp", (WRONG,), autocast="bfloat16", inputs="generated"),
    CaseResult("Tensor.to.0", "Tensor.to", not_run="to computes nothing: ü, \n"),
]


def written(path: Path) -> Journal:
    journal = Journal(str(path))
    for result in RESULTS:
        journal.add(result)
    journal.close()
    return Journal(str(path))


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    found = written(tmp_path / "j.jsonl").read()
    assert repr(found) == repr(RESULTS)
    assert found[0] == RESULTS[0]


def test_a_line_that_was_cut_anywhere_is_left_out_and_taken_off(tmp_path: Path) -> None:
    whole = Path(written(tmp_path / "j.jsonl").path).read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for length in range(len(whole) + 1):
        cut = tmp_path / "cut.jsonl"
        cut.write_bytes(whole[:length])
        complete = sum(end <= length for end in ends)
        assert len(Journal(str(cut)).read()) == complete
        assert cut.read_bytes() == whole[: ends[complete - 1] if complete else 0]


def test_a_damaged_line_names_itself(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(Path(written(path).path).read_bytes().replace(b'"rows"', b'"rowz"', 1))
    with pytest.raises(FileCheckException, match="line 1 is damaged"):
        Journal(str(path)).read()


def test_no_file_is_no_result(tmp_path: Path) -> None:
    assert Journal(str(tmp_path / "none.jsonl")).read() == []


def test_the_worst_row_decides(tmp_path: Path) -> None:
    wrong = KernelVerdict(ERROR, "")
    gradient = JudgedResult(
        "Torch.exp.0.backward.output.0", "Torch.exp.0.forward.input.0", "float32", "float64", (), wrong
    )
    result = CaseResult("Torch.exp.0", "Torch.exp", (ROW, gradient))
    assert (result.forward, result.backward, result.status) == (PASS, ERROR, ERROR)
