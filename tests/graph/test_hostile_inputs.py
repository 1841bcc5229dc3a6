"""Damaged, strange and hostile dumps: each gives a page that hides nothing, or one line that names the file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hostile.dumps import CASES, LINEAR, NAMES, RELU, Case, Given, Page, Refused, tensor, whole, write
from written_pages import WrittenPage

from probe.api.cli import main

_WITHIN = 20
"""Seconds; each takes a tenth of one."""


class _Run:
    """The command, run by a case; a pipe that nobody writes to would stop it for ever."""

    def __init__(self, given: Given, capture: pytest.CaptureFixture[str]) -> None:
        self.status: int | str | None = None
        self.failure: BaseException | None = None
        arguments = ["-tp", str(given.target), "-gp", str(given.golden), "-o", str(given.output), *given.options]
        thread = threading.Thread(target=self._run, args=(["graph_visualize", *arguments],), daemon=True)
        thread.start()
        thread.join(_WITHIN)
        assert not thread.is_alive(), "it waits for ever"
        if self.failure is not None:
            raise self.failure
        said = capture.readouterr()
        self.out, self.err = said.out, said.err

    def _run(self, arguments: list[str]) -> None:
        try:
            self.status = main(arguments)
        except BaseException as error:
            self.failure = error


def page_in(output: Path) -> WrittenPage:
    """The only page below a folder."""
    (page,) = output.glob("*.html")
    return WrittenPage(page)


def prepared(case: Case, folder: Path) -> Given:
    """The two runs of a case, written."""
    given = Given(folder, whole(), folder / "target", folder / "golden", folder / "output", [])
    write(given.golden, whole())
    case.change(given)
    if not given.is_written:
        write(given.target, given.files)
    return given


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_hostile_input_gives_a_page_or_one_line(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = prepared(case, tmp_path)
    run = _Run(given, capsys)
    assert "Traceback" not in run.out + run.err
    if isinstance(case.outcome, Refused):
        assert run.status == 2, run.out
        (line,) = run.err.splitlines()
        assert case.outcome.says in line and str(tmp_path / case.outcome.path) in line, line
        assert not given.output.is_dir() or not list(given.output.glob("*.html"))
    else:
        assert run.status == case.outcome.status, run.err
        _check_page(page_in(given.output), case.outcome)


def _check_page(page: WrittenPage, outcome: Page) -> None:
    # Names do not end the element that they stand in, and are not read as one.
    assert "<script>alert(1)" not in page.text and "</script>.0" not in page.text and "<img" not in page.text
    manifest = page.manifest
    shown: set[str | None] = set()
    for number, comparison in enumerate(manifest["comparisons"]):
        rows = page.rows(number)
        assert len(rows) == comparison["rows"] == sum(comparison["counts"])
        shown |= {name for name, _ in rows if name is not None}
    assert set(outcome.has) <= shown, set(outcome.has) - shown
    notes = [*manifest["unpaired"], *(note for each in manifest["comparisons"] for note in each["notes"])]
    if outcome.says:
        assert any(outcome.says in note for note in notes), notes


def test_nothing_is_said_of_a_dump_in_which_nothing_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other tests could not fail otherwise."""
    given = prepared(Case("whole", lambda given: None, Page()), tmp_path)
    assert _Run(given, capsys).status == 0
    page = page_in(given.output)
    (comparison,) = page.manifest["comparisons"]
    assert comparison["first"] is None and comparison["notes"] == [] and page.manifest["unpaired"] == []
    assert {name for name, _ in page.rows()} == {*NAMES, "DefaultModel"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
@pytest.mark.parametrize("locked", ["target", "output"])
def test_a_folder_that_may_not_be_entered_is_named(
    locked: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = prepared(Case("locked", lambda given: None, Page()), tmp_path)
    (tmp_path / locked).mkdir(exist_ok=True)
    (tmp_path / locked).chmod(0)
    try:
        run = _Run(given, capsys)
    finally:
        (tmp_path / locked).chmod(0o750)
    assert run.status == 1
    (line,) = run.err.splitlines()
    assert str(tmp_path / locked) in line


def test_a_page_is_never_written_through_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = prepared(Case("link", lambda given: None, Page()), tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    given.output.symlink_to(elsewhere)
    run = _Run(given, capsys)
    if run.status != 0:
        (line,) = run.err.splitlines()
        assert str(given.output) in line
        assert list(elsewhere.iterdir()) == []


def test_a_dump_read_from_its_journal_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from probe.common.dump.journal import REPLACE, Header, JournalWriter
    from probe.common.dump.layout import JOURNAL_FILE

    given = prepared(Case("journal", lambda given: None, Page()), tmp_path)
    for name in ("dump.json", "construct.json", "stack.json"):
        (given.target / name).unlink()
    writer = JournalWriter(str(given.target / JOURNAL_FILE), Header("statistics", "mix", "pytorch", None))
    writer.record(RELU, 0, -1, None, 0, REPLACE, {"input_args": [], "input_kwargs": {}, "output": []})
    writer.close()
    assert _Run(given, capsys).status == 0
    (comparison,) = page_in(given.output).manifest["comparisons"]
    assert any("journal" in note for note in comparison["notes"])


def test_of_several_steps_and_ranks_the_earliest_is_told_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As compare tells it, with the step and the rank."""
    given = prepared(Case("steps", lambda given: None, Page()), tmp_path)
    calls = NAMES[:4]
    for step, rank, wrong in ((0, 0, ""), (0, 1, RELU), (1, 0, LINEAR), (1, 1, LINEAR)):
        for side in ("steps_a", "steps_b"):
            files = whole()
            # What differs has an effect: what comes after it differs too.
            for name in calls[calls.index(wrong) :] if wrong and side == "steps_a" else ():
                files["dump.json"]["data"][name]["output"] = [tensor(9.0)]
            write(tmp_path / side / f"step{step}" / f"rank{rank}", files)
    given.target, given.golden = tmp_path / "steps_a", tmp_path / "steps_b"
    run = _Run(given, capsys)
    assert run.status == 0
    assert run.out.startswith(f"first divergence: step 0, rank 1: net (Net), {RELU}\n"), run.out
