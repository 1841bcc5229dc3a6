"""A run that ends anywhere leaves files with which it can go on, to the same files as one that was never ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest
from result_tables import read_results

from probe.common.errors import MsprobeException
from probe.msprobe_rules.output.details import DetailsRow, read_details
from probe.msprobe_rules.output.layout import MSPROBE, PLAIN
from probe.msprobe_rules.output.results import ResultRow
from probe.msprobe_rules.output.run_files import Form, RunFiles, details_path, new_result_path, resume_tables

CASES = Path(__file__).parents[2] / "precheck" / "cases"
NAME = "accuracy_checking_result_20260102030405.csv"
FORMS = {
    "english": Form(PLAIN),
    "msprobe": Form(MSPROBE),
    "more columns": Form(PLAIN, more=("Verdict", "Bound, of it")),
    "mindspore": Form(MSPROBE, mindspore=True),
}


def cases() -> Iterator[tuple[ResultRow, list[DetailsRow]]]:
    """Names that begin alike, quotation marks, line breaks, skipped cases with and without rows."""
    message = 'first "line",\nsecond\n'
    for number, outputs in ((1, 1), (11, 2), (111, 0), (2, 1)):
        name = f"Torch.sort.{number}"
        statuses = ("pass", None) if outputs else ("SKIP", "SKIP")
        rows = [
            DetailsRow(
                f"{name}.forward.output.{place}", "pass", message, "float64", "float32", (2,),
                {"cosine": 0.5, "rmse": 1}, more={"Verdict": 'a "b"', "Bound, of it": 2.5},
            )
            for place in range(outputs)
        ]  # fmt: skip
        yield ResultRow(name, *statuses, message="" if outputs else "not supported,\nhere"), rows
    for number, status in ((0, "SKIP"), (1, "pass")):
        name = f"Torch.nothing.{number}"
        yield ResultRow(name, status), [DetailsRow(f"{name}.forward.output.0", status, "none")]


def run(path: Path, form: Form, skip: frozenset[str] = frozenset()) -> None:
    with closing(RunFiles(str(path), form)) as tables:
        for result, rows in cases():
            if result.name not in skip:
                tables.add(result, rows)


def contents(path: Path) -> tuple[bytes, bytes]:
    return path.read_bytes(), Path(details_path(str(path))).read_bytes()


def states(form: Form) -> list[tuple[bytes, bytes]]:
    """What stands in both files after each write of a run."""
    result, details = form.heading_of_results(), form.heading_of_details()
    found = [(b"", b""), (b"", details), (result, details)]
    for row, rows in cases():
        if rows:
            details += form.lines(rows)
            found.append((result, details))
        result += form.result_line(row)
        found.append((result, details))
    return found


def cut_anywhere(form: Form) -> Iterator[tuple[bytes, bytes]]:
    """Both files as a process leaves them that is killed after any byte."""
    before = (b"", b"")
    for after in states(form):
        for place in (0, 1):
            for length in range(len(before[place]), len(after[place]) + 1):
                cut = list(before)
                cut[place] = after[place][:length]
                yield cut[0], cut[1]
        before = after


@pytest.mark.parametrize("name", FORMS)
def test_a_run_that_is_killed_after_any_byte_goes_on_to_the_same_files(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    whole = tmp_path / NAME
    run(whole, form)
    expected = contents(whole)
    assert expected == states(form)[-1]
    cuts = list(cut_anywhere(form))
    # After every byte of the last rows in the form with line breaks in cells and at ends of two bytes; else after some.
    for result, details in [*cuts[:-500:13], *cuts[-500 :: 1 if name == "msprobe" else 13]]:
        whole.write_bytes(result)
        Path(details_path(str(whole))).write_bytes(details)
        resumed, found = resume_tables(str(whole), form)
        finished = [row.name for row, _ in cases()][: len(resumed.results)]
        assert [row.name for row in resumed.results] == finished
        assert {row.case for row in resumed.details} <= set(finished)
        assert found == form
        # One case more than needed may be run again, where a half row has no whole name.
        assert len(finished) >= result.count(b"\r\n" if form.layout.is_msprobe else b"\n") - 3
        run(whole, found, frozenset(row.name for row in resumed.results))
        assert contents(whole) == expected, (result[-60:], details[-60:])


@pytest.mark.parametrize("name", ["english", "msprobe"])
def test_details_that_were_lost_make_their_cases_unfinished(name: str, tmp_path: Path) -> None:
    """A machine that lost power may keep the results and lose the ends of the details, which were written before."""
    form = FORMS[name]
    path = tmp_path / NAME
    run(path, form)
    result, details = contents(path)
    boundaries = {len(after) for _, after in states(form)} | {0}
    lost = [length for length in range(len(details)) if details[length - 1 : length] != b"\n" or length in boundaries]
    for length in sorted({*lost[::3], *boundaries.intersection(lost)}):
        path.write_bytes(result)
        Path(details_path(str(path))).write_bytes(details[:length])
        resumed, found = resume_tables(str(path), form)
        run(path, found, frozenset(row.name for row in resumed.results))
        assert contents(path) == (result, details), details[:length][-80:]


def test_a_finished_run_has_nothing_to_repeat_and_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / NAME
    run(path, Form())
    before = [os.stat(name).st_ino for name in (path, details_path(str(path)))]
    resumed, _ = resume_tables(str(path))
    assert {row.name for row in resumed.results} == {row.name for row, _ in cases()}
    assert [os.stat(name).st_ino for name in (path, details_path(str(path)))] == before
    assert resumed.results == tuple(read_results(str(path)))
    assert resumed.details == tuple(read_details(details_path(str(path))))


def test_a_run_of_the_release_itself_can_go_on(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes((CASES / "replay/planted_result.csv").read_bytes())
    details = (CASES / "replay/planted_details.csv").read_bytes()
    # P11: it would glue the next row to this half one.
    Path(details_path(str(path))).write_bytes(details[:-140])
    resumed, form = resume_tables(str(path))
    assert form == Form(MSPROBE)
    assert [row.name for row in resumed.results][-1] == "Functional.pad.0"
    assert Path(details_path(str(path))).read_bytes() == details[: details.index(b"Functional.cross_entropy")]


def test_the_form_of_the_files_goes_before_that_which_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / NAME
    for form in FORMS.values():
        run(path, form)
        assert resume_tables(str(path), Form(more=("x",)))[1] == form
        path.unlink()
        Path(details_path(str(path))).unlink()


def test_a_run_that_was_killed_can_be_resumed(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom probe.msprobe_rules.output.run_files import RunFiles, Form\n"
        "from probe.msprobe_rules.output.results import ResultRow\n"
        "from probe.msprobe_rules.output.details import DetailsRow\n"
        "tables = RunFiles(sys.argv[1], Form())\n"
        "for number in range(10**9):\n"
        "    name = f'Torch.sin.{number}'\n"
        "    tables.add(ResultRow(name, 'pass'), [DetailsRow(f'{name}.forward.output.0', 'pass')])\n"
    )
    path = tmp_path / NAME
    process = subprocess.Popen([sys.executable, "-c", program, str(path)])
    try:
        until = time.monotonic() + 20
        while time.monotonic() < until and not (path.exists() and path.stat().st_size > 5000):
            time.sleep(0.01)
        with pytest.raises(MsprobeException, match="another run is writing it"):
            resume_tables(str(path))
        with pytest.raises(MsprobeException, match="another run is writing it"):
            RunFiles(str(path), Form())
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    resumed, _ = resume_tables(str(path))
    assert len(resumed.results) > 50
    assert [row.name for row in resumed.results] == [f"Torch.sin.{number}" for number in range(len(resumed.results))]
    assert [row.case for row in resumed.details] == [row.name for row in resumed.results]


def test_names_and_modes(tmp_path: Path) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5)
    first = new_result_path(str(tmp_path / "new"), now)
    assert os.path.basename(first) == NAME
    run(Path(first), Form())
    assert os.stat(first).st_mode & 0o777 == 0o640
    assert new_result_path(str(tmp_path / "new"), now).endswith("20260102030406.csv")


@pytest.mark.parametrize("name", ["result.csv", "accuracy_checking_result_2026.csv", "accuracy_checking_result_.csv"])
def test_other_names_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(MsprobeException, match=re.escape("accuracy_checking_result_<14 digits>.csv")):
        resume_tables(str(tmp_path / name))


def test_what_cannot_be_gone_on_with_is_refused(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with pytest.raises(MsprobeException, match="there is no such file"):
        resume_tables(str(path))
    path.write_text("some,other\ntable,of mine\n")
    with pytest.raises(MsprobeException, match="has no column API Name"):
        resume_tables(str(path))
    assert path.read_text() == "some,other\ntable,of mine\n"
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MsprobeException, match="cannot be written"):
        RunFiles(str(path), Form())
    assert not (tmp_path / "elsewhere").exists()
