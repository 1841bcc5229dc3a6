"""The journal of a pre-check, which a run that was killed is taken up from."""

from __future__ import annotations

import math
from contextlib import closing
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
    CaseResult("Torch.exp.0", "Torch.exp", (ROW,), stands_for=3, saved=("a.pt",), details=({"rmse": math.inf},)),
    CaseResult("Torch.exp.1", "Torch.exp", (WRONG,), autocast="bfloat16", inputs="generated", details=None),
    CaseResult("Tensor.to.0", "Tensor.to", not_run="to computes nothing: ü, \n"),
]


def written(path: Path) -> Path:
    with closing(Journal(str(path))) as journal:
        for result in RESULTS:
            journal.add(result)
    return path


def read(path: Path) -> list[CaseResult]:
    with closing(Journal(str(path))) as journal:
        return journal.read()


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    found = read(written(tmp_path / "j.jsonl"))
    assert repr(found) == repr(RESULTS)
    assert found[0] == RESULTS[0]


def test_a_line_that_was_cut_anywhere_is_left_out_and_taken_off(tmp_path: Path) -> None:
    whole = written(tmp_path / "j.jsonl").read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for length in range(len(whole) + 1):
        cut = tmp_path / "cut.jsonl"
        cut.write_bytes(whole[:length])
        complete = sum(end <= length for end in ends)
        assert len(read(cut)) == complete
        assert cut.read_bytes() == whole[: ends[complete - 1] if complete else 0]


def test_a_damaged_line_names_itself(tmp_path: Path) -> None:
    path = written(tmp_path / "j.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"rows"', b'"rowz"', 1))
    with pytest.raises(FileCheckException, match="line 1 is damaged"):
        read(path)


def test_a_new_file_has_no_result(tmp_path: Path) -> None:
    assert read(tmp_path / "none.jsonl") == []


def test_two_runs_do_not_write_one_journal(tmp_path: Path) -> None:
    path = str(tmp_path / "j.jsonl")
    with closing(Journal(path)), pytest.raises(FileCheckException, match="another run is writing it"):
        Journal(path)
    Journal(path).close()


def test_a_journal_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "j.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileCheckException, match="cannot be written"):
        Journal(str(tmp_path / "j.jsonl"))
    assert not (tmp_path / "elsewhere").exists()


def test_the_worst_row_decides(tmp_path: Path) -> None:
    wrong = KernelVerdict(ERROR, "")
    gradient = JudgedResult(
        "Torch.exp.0.backward.output.0", "Torch.exp.0.forward.input.0", "float32", "float64", (), wrong
    )
    result = CaseResult("Torch.exp.0", "Torch.exp", (ROW, gradient))
    assert (result.forward, result.backward, result.status) == (PASS, ERROR, ERROR)
