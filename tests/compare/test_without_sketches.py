"""Dumps without sketches: statistics decide within one program, and elsewhere the answer is that it cannot be told."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from probe.common.parallel.tasks import Where
from probe.compare.output.summary import Summary
from probe.compare.output.summary_text import headline
from probe.compare.runner import summaries

Dumps = Callable[[str], Path]
ENDING = "; record both runs with sketches"


def _compared(run: Path, folder: Path) -> list[Summary]:
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("sketch.npz"))
    return list(summaries(str(folder / "target"), str(folder / "golden"), where=Where(1)))


def test_a_fault_in_one_program_is_found_by_statistics(dumps_of: Dumps, tmp_path: Path) -> None:
    found = _compared(dumps_of("pairs") / "scale-llama@L0", tmp_path / "run")
    assert "layers.1.mlp.up_proj" in headline(found)[0][0]


@pytest.mark.parametrize("case", ["llama-right-float32@mix", "llama-keys_and_values_swapped-float32@mix"])
def test_two_programs_cannot_be_told(dumps_of: Dumps, tmp_path: Path, case: str) -> None:
    found = _compared(dumps_of("fused") / case, tmp_path / "run")
    assert {each.answer for each in found} == {"cannot_tell"}
    assert headline(found)[0][0].startswith("cannot be told: ") and headline(found)[0][0].endswith(ENDING)


def test_parameters_after_an_update_that_nobody_measured_accuse_no_call(dumps_of: Dumps, tmp_path: Path) -> None:
    first, second = _compared(dumps_of("pairs") / "learning-rate-llama@L0", tmp_path / "run")
    assert (first.answer, second.answer) == ("none", "cannot_tell")
    assert second.why.endswith(ENDING)
