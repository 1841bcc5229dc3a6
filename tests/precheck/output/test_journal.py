"""The journal of a pre-check, which a run that was killed is taken up from."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from probe.calls.judged_results import JudgedResult
from probe.calls.verdict.subject import ERROR, NONFINITE, PASS, KernelVerdict
from probe.common.errors import FileCheckException, MsprobeException
from probe.precheck.case_results import CaseResult
from probe.precheck.output.run_journal import NO_RULES, Journal, RunSettings, encode

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
SETTINGS = RunSettings("/run/step0/rank0/dump.json", "cpu", 1234, "msprobe", "0.1.0")


def written(path: Path) -> Path:
    with closing(Journal(str(path))) as journal:
        journal.begin(SETTINGS)
        for result in RESULTS:
            journal.add(result)
    return path


def read(path: Path) -> tuple[RunSettings | None, list[CaseResult]]:
    with closing(Journal(str(path))) as journal:
        return journal.read()


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    settings, found = read(written(tmp_path / "j.jsonl"))
    assert settings == SETTINGS
    assert repr(found) == repr(RESULTS)
    assert found[0] == RESULTS[0]


def test_a_line_that_was_cut_anywhere_is_left_out_and_taken_off(tmp_path: Path) -> None:
    whole = written(tmp_path / "j.jsonl").read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for length in range(len(whole) + 1):
        cut = tmp_path / "cut.jsonl"
        cut.write_bytes(whole[:length])
        complete = sum(end <= length for end in ends)
        settings, results = read(cut)
        assert settings == (SETTINGS if complete else None)
        assert len(results) == max(0, complete - 1)
        assert cut.read_bytes() == whole[: ends[complete - 1] if complete else 0]


def test_a_damaged_line_names_itself(tmp_path: Path) -> None:
    path = written(tmp_path / "j.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"rows"', b'"rowz"', 1))
    with pytest.raises(FileCheckException, match="line 2 is damaged"):
        read(path)


def test_a_new_file_has_no_result(tmp_path: Path) -> None:
    assert read(tmp_path / "none.jsonl") == (None, [])


def test_damaged_settings_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "j.jsonl")
    whole = path.read_bytes()
    damages = ((b'"seed": 1234', b'"seed": "a"'), (b'"device"', b'"divice"'), (b'"settings"', b'"settinks"'))
    for before, after in damages:
        path.write_bytes(whole.replace(before, after, 1))
        with pytest.raises(FileCheckException, match="line 1 is damaged: no settings of a run"):
            read(path)


def test_a_journal_of_a_newer_form_is_refused_by_its_version(tmp_path: Path) -> None:
    path = written(tmp_path / "j.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"version": 2', b'"version": 3', 1))
    with pytest.raises(FileCheckException, match="its version is 3, and this msprobe reads 2"):
        read(path)


def test_a_journal_without_settings_is_refused(tmp_path: Path) -> None:
    """An older msprobe wrote it; its results may be of another device."""
    path = tmp_path / "j.jsonl"
    path.write_text("".join(f"{encode(result)}\n" for result in RESULTS))
    with pytest.raises(FileCheckException, match=r"does not begin with the settings of its run.*without -csv_path"):
        read(path)


def test_later_settings_hold_from_there_on(tmp_path: Path) -> None:
    path = written(tmp_path / "j.jsonl")
    other = replace(SETTINGS, rules="msprobe")
    with closing(Journal(str(path))) as journal:
        journal.begin(other)
        journal.add(RESULTS[0])
    settings, results = read(path)
    assert settings == other
    assert repr(results) == repr([*RESULTS, RESULTS[0]])


@pytest.mark.parametrize(
    ("name", "value"), [("dump", "/other"), ("device", "cuda:0"), ("seed", 7), ("rules", "x"), ("version", "0.2.0")]
)
def test_a_run_with_another_setting_does_not_go_on(name: str, value: Any) -> None:
    other = replace(SETTINGS, **{name: value})
    before = getattr(SETTINGS, name)
    with pytest.raises(MsprobeException, match=f"^{name} was {before} in the earlier run and is {value} now; go on"):
        SETTINGS.continued_by(other)


def test_every_setting_that_differs_is_named() -> None:
    with pytest.raises(MsprobeException, match=r"device was cpu .* is cuda:0 now, seed was 1234 .* is 7 now"):
        SETTINGS.continued_by(replace(SETTINGS, device="cuda:0", seed=7))


def test_rows_of_two_rules_are_never_mixed_by_a_run_without_any() -> None:
    without = replace(SETTINGS, rules=NO_RULES)
    assert without.continued_by(SETTINGS) == SETTINGS
    assert SETTINGS.continued_by(without) == SETTINGS
    assert without.continued_by(without) == without


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
