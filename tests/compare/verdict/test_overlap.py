"""Runs of which one ends early, and runs of other levels: what they have in common is compared, and the rest is told.

Each run is the whole one, cut where a process would have died, so that what has to be said is known.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from divergence_runs import X, call, chain, tensor, write

from probe.api import cli
from probe.common.dump.journal import REPLACE, Header, JournalWriter
from probe.common.dump.layout import JOURNAL_FILE
from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps
from probe.compare.output import summary_text
from probe.compare.output.summary import Summary, summarise

Run = dict[str, Any]
NONE = "no divergence in what both runs have"


def cut(run: Run, calls: int) -> Run:
    return dict(list(run.items())[:calls])


def died(folder: Path, run: Run) -> Path:
    """The folder of a process that was killed after these calls."""
    folder.mkdir(parents=True)
    writer = JournalWriter(str(folder / JOURNAL_FILE), Header("statistics", "mix", "pytorch", None))
    for number, (name, fields) in enumerate(run.items()):
        writer.record(name, number, -1, None, number, REPLACE, fields)
    writer.close()
    return folder


def summary(target: Path, golden: Path) -> Summary:
    return summarise(compare_dumps(read(target), read(golden)))


def said(found: Summary) -> list[str]:
    return [text.strip() for text, _ in [*summary_text.headline([found]), *summary_text.lines(found)]]


@pytest.mark.parametrize(("calls", "of_golden", "journal", "expected"), [
    (7, 12, False, "the target ends at Functional.linear.3.forward; the golden run has 5 more records"),
    (12, 11, False, "the golden run ends at Functional.linear.5.forward; the target has 1 more record"),
    (7, 12, True, "the target is the journal of a run that died; it ends at Functional.linear.3.forward; "
                  "the golden run has 5 more records"),
    (12, 12, True, "the target is the journal of a run that died; it ends at Torch.tanh.5.forward"),
])  # fmt: skip
def test_a_run_that_ends_early_is_reported_and_no_divergence(
    tmp_path: Path, calls: int, of_golden: int, journal: bool, expected: str
) -> None:
    target = (died if journal else write)(tmp_path / "a", cut(chain(), calls))
    found = summary(target, write(tmp_path / "b", cut(chain(), of_golden)))
    text = said(found)
    assert text[0] == (NONE if calls != of_golden else "no divergence: nothing differs") and text[2] == expected
    (ending,) = found.as_json()["endings"]
    assert ending["died"] == journal and ending["cut_at"] is None
    assert calls == of_golden or f"{ending['more']} more record" in expected


def test_a_fault_before_the_end_is_named_all_the_same(tmp_path: Path) -> None:
    found = summary(write(tmp_path / "a", cut(chain(constant=2, at=1), 7)), write(tmp_path / "b", chain()))
    assert found.divergence is not None and found.divergence.record == "Functional.linear.1.forward"
    assert len(found.truncations) == 1


def test_another_run_that_is_longer_is_no_early_end(tmp_path: Path) -> None:
    target = {**cut(chain(), 6), "Torch.sort.0.forward": call([tensor(X)], tensor(X))}
    assert summary(write(tmp_path / "a", target), write(tmp_path / "b", chain())).truncations == []
    assert summary(write(tmp_path / "c", chain()), write(tmp_path / "d", chain())).truncations == []


def test_the_search_over_ranks_says_so_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, golden = write(tmp_path / "a", cut(chain(), 7)), write(tmp_path / "b", chain())
    arguments = ["compare", "-tp", str(target), "-gp", str(golden), "-o", str(tmp_path / "out"), "-da"]
    assert cli.main(arguments) == 0
    ending = "the target ends at Functional.linear.3.forward; the golden run has 5 more records."
    assert ending in capsys.readouterr().err


# --- levels

AROUND = "Module.{}.Block.forward.0"


def leveled(folder: Path, level: str, constant: float = 1.0) -> Path:
    """Three blocks of one function each, as a run records them at `level`."""
    data: Run = {}
    tree: dict[str, str | None] = {}
    x = X
    for number in range(3):
        function, block = f"Functional.relu.{number}.forward", AROUND.format(number)
        y = x * (constant if number == 1 else 1.0)
        if level != "L0":
            data[function] = call([tensor(x)], tensor(y))
        if level != "L1":
            data[block] = call([tensor(x)], tensor(y))
            tree[block] = None
        if level != "L1" and level != "L0":
            tree[function] = block
        x = y
    write(folder, data, tree, level)
    if level == "L1":
        (folder / "construct.json").write_text(json.dumps({}))
    return folder


@pytest.mark.parametrize(
    ("target", "golden", "both"),
    [
        ("L0", "mix", "only modules are"),
        ("mix", "L0", "only modules are"),
        ("L1", "mix", "only functions are"),
        ("mix", "L1", "only functions are"),
        ("L0", "L1", "nothing is"),
    ],
)
def test_two_levels_are_reported_and_what_one_does_not_record_is_no_divergence(
    tmp_path: Path, target: str, golden: str, both: str
) -> None:
    found = summary(leveled(tmp_path / "a", target), leveled(tmp_path / "b", golden))
    text = said(found)
    assert text[2] == f'the target has level "{target}" and the golden run "{golden}": {both} in both'
    assert found.divergence is None and found.as_json()["levels"] == (target, golden)
    assert text[0] == (
        NONE if found.has_matches else "cannot be told: no record of one dump matches a record of the other"
    )


@pytest.mark.parametrize("level", ["L0", "L1"])
@pytest.mark.parametrize("turned", [False, True])
def test_between_two_levels_the_fault_is_named_in_what_both_record(tmp_path: Path, level: str, turned: bool) -> None:
    paths = leveled(tmp_path / "a", level, 2.0), leveled(tmp_path / "b", "mix")
    target, golden = paths[::-1] if turned else paths
    divergence = summary(target, golden).divergence
    expected = AROUND.format(1) if level == "L0" else "Functional.relu.1.forward"
    assert divergence is not None and divergence.record == expected
    assert divergence.first.reason.startswith("output.0 differs by 5.0e-01 of its size")
