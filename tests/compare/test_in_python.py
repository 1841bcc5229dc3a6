"""`probe.verdict`: the answer of ``msprobe compare`` in Python and in a notebook."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runs import RECORD, write

import probe
from probe.api import cli
from probe.common.errors import FileCheckException

ONES = np.ones((2, 3), dtype=np.float32)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs of two steps, which diverge in the second."""
    for name in ("a", "b"):
        write(tmp_path / name / "step0" / "rank0", [ONES])
        write(tmp_path / name / "step1" / "rank0", [ONES * (2 if name == "a" else 1)], stack=True)
    return tmp_path / "a", tmp_path / "b"


def test_it_prints_what_the_command_prints(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = probe.verdict(*runs)
    assert found.divergence is not None and found.divergence.record == RECORD
    assert found.answer[0] == f"first divergence: step 1, rank 0: {RECORD}" and len(found.summaries) == 2
    capsys.readouterr()
    assert cli.main(["compare", "-tp", str(runs[0]), "-gp", str(runs[1]), "-o", str(tmp_path / "out")]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if not line.lstrip().startswith(("table:", "time:"))]
    assert str(found).splitlines() == said


def test_runs_that_are_the_same_have_no_divergence(runs: tuple[Path, Path]) -> None:
    found = probe.verdict(runs[0], runs[0])
    assert found.divergence is None and found.answer == ["no divergence: nothing differs"]


def test_tables_are_written_where_a_folder_is_given(runs: tuple[Path, Path], tmp_path: Path) -> None:
    probe.verdict(*runs, output=tmp_path / "out")
    assert len([*(tmp_path / "out").rglob("*.csv")]) == 2
    with pytest.raises(FileCheckException, match="does not exist"):
        probe.verdict(runs[0], tmp_path / "nowhere")


def test_what_a_notebook_shows_has_the_answer_and_is_escaped(tmp_path: Path) -> None:
    for name, factor in (("a", 2), ("b", 1)):
        write(tmp_path / name, [ONES * factor])
        path = tmp_path / name / "dump.json"
        path.write_text(path.read_text().replace(RECORD, "Torch.<img/onerror=x>.0.forward"))
    text = probe.verdict(tmp_path / "a", tmp_path / "b")._repr_html_()
    assert "first divergence: Torch.&lt;img/onerror=x&gt;.0.forward" in text and "<img" not in text
    assert "<table" in text and len(text) < 5000
