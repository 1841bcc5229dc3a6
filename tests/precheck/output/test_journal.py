"""The journal of a pre-check, which a run that was killed is taken up from."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from probe.calls.judged_results import JudgedResult
from probe.calls.verdict.subject import NONFINITE, PASS, KernelVerdict
from probe.common.errors import FileCheckException, MsprobeException
from probe.precheck.case_results import CaseResult
from probe.precheck.report import NO_RULES, Journal, RunSettings

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


def test_what_was_written_is_read_back_and_later_settings_hold_from_there_on(tmp_path: Path) -> None:
    assert read(tmp_path / "none.jsonl") == (None, [])
    path = written(tmp_path / "j.jsonl")
    settings, found = read(path)
    assert settings == SETTINGS and repr(found) == repr(RESULTS) and found[0] == RESULTS[0]
    other = replace(SETTINGS, rules="other")
    with closing(Journal(str(path))) as journal:
        journal.begin(other)
        journal.add(RESULTS[0])
    settings, found = read(path)
    assert settings == other and repr(found) == repr([*RESULTS, RESULTS[0]])


def test_a_line_that_was_cut_anywhere_is_left_out_and_taken_off(tmp_path: Path) -> None:
    whole = written(tmp_path / "j.jsonl").read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    lengths = {*range(0, len(whole) + 1, 29), *ends, *(end - 1 for end in ends)}
    for length in sorted(lengths):
        cut = tmp_path / "cut.jsonl"
        cut.write_bytes(whole[:length])
        complete = sum(end <= length for end in ends)
        settings, results = read(cut)
        assert settings == (SETTINGS if complete else None)
        assert len(results) == max(0, complete - 1)
        assert cut.read_bytes() == whole[: ends[complete - 1] if complete else 0]


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (b'"rows"', b'"rowz"', "line 2 is damaged"),
        (b'"seed": 1234', b'"seed": "a"', "line 1 is damaged"),
        (b'"settings"', b'"settinks"', "line 1 is damaged"),
        (b'"version": 2', b'"version": 3', "its version is 3, and this msprobe reads 2"),
    ],
)
def test_damage_is_named_by_its_line(before: bytes, after: bytes, says: str, tmp_path: Path) -> None:
    path = written(tmp_path / "j.jsonl")
    path.write_bytes(path.read_bytes().replace(before, after, 1))
    with pytest.raises(FileCheckException, match=says):
        read(path)


def test_a_journal_without_settings_is_refused(tmp_path: Path) -> None:
    """An older msprobe wrote it; its results may be of another device."""
    path = written(tmp_path / "j.jsonl")
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])
    with pytest.raises(FileCheckException, match=r"settings of its run.*without -csv_path"):
        read(path)


def test_a_run_with_another_setting_does_not_go_on() -> None:
    changes = {"dump": "/other", "device": "cuda:0", "seed": 7, "rules": "x", "version": "0.2.0"}
    for name, value in changes.items():
        with pytest.raises(MsprobeException, match=f"^{name} was {getattr(SETTINGS, name)} .* is {value} now"):
            SETTINGS.continued_by(replace(SETTINGS, **{name: value}))
    with pytest.raises(MsprobeException, match=r"device was cpu .* is cuda:0 now, seed was 1234 .* is 7 now"):
        SETTINGS.continued_by(replace(SETTINGS, device="cuda:0", seed=7))
    # Rows of two rules are never mixed by a run without any.
    without = replace(SETTINGS, rules=NO_RULES)
    assert without.continued_by(SETTINGS) == SETTINGS.continued_by(without) == SETTINGS
    assert without.continued_by(without) == without


def test_a_journal_is_written_by_one_run_and_never_through_a_link(tmp_path: Path) -> None:
    path = str(tmp_path / "j.jsonl")
    with closing(Journal(path)), pytest.raises(FileCheckException, match="another run is writing it"):
        Journal(path)
    Journal(path).close()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileCheckException, match="cannot be written"):
        Journal(str(tmp_path / "link.jsonl"))
    assert not (tmp_path / "elsewhere").exists()
