"""What is found in trainings, while they run and afterwards, and what is wrong with that."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import forks

from probe.common.parallel.tasks import Where
from probe.overflow.find_overflow import find_overflow
from probe.overflow.overflow_report import Finding

_SCRIPT = Path(__file__).with_name("running.py")
_FIRST = re.compile(r"step (\d+): (\S+) is the first record")
MODES = ("watched", "default", "all")
NOT_RECORDED = "task overflow_check records every function"
"""What a finding says of which the call before may not be recorded."""


@dataclass(frozen=True)
class Outcome:
    """One training."""

    name: str
    truth: str
    step: int
    said: dict[str, str]
    """By mode, the step and the record of the first finding afterwards; empty where there is none."""
    while_running: str
    """The same of the task that watches."""
    sentences: dict[str, str]
    """By mode, the sentence of the finding."""
    is_neutral: bool
    """Whether the parameters are those of a training without the tool, bit by bit, in all modes."""

    @property
    def wrong(self) -> str:
        """What is wrong; empty where nothing is."""
        if not self.is_neutral:
            return "the training has other bits"
        if self.while_running != self.said["watched"]:
            return f"{self.while_running or 'nothing'} while it ran, {self.said['watched'] or 'nothing'} afterwards"
        if not self.truth:
            return next((f"{mode}: {said}" for mode, said in self.said.items() if said), "")
        for mode, said in self.said.items():
            is_told = mode != "watched" and NOT_RECORDED in self.sentences[mode] and said.startswith(f"{self.step} ")
            if not is_told and not self.is_true(said):
                return f"{mode}: {said or 'nothing'}"
        return ""

    def is_true(self, said: str) -> bool:
        """Whether the call that made the value is named."""
        function, _, direction = self.truth.partition(".")
        return re.fullmatch(rf"{self.step} \w+\.{re.escape(function)}\.\d+\.{direction}", said) is not None

    def __str__(self) -> str:
        return f"{self.name}: {self.wrong or 'right'}"


def make(folder: Path, modes: Sequence[str], names: Sequence[str]) -> None:
    """Run trainings in all `modes`, each mode in a process of its own.

    Raises:
        RuntimeError: a process failed; with what it wrote.
    """
    environment = {**os.environ, "PYTHONPATH": forks.CHECKOUT}
    for mode in modes:
        ran = forks.run_python(
            "torch", _SCRIPT, str(folder), mode, *names, environment=environment, without_warnings=True
        )
        if ran.returncode:
            raise RuntimeError(ran.stderr[-3000:])


def outcomes(folder: Path, truths: dict[str, tuple[str, int]]) -> Iterator[Outcome]:
    """The outcome of every training in `folder`.

    Args:
        folder: what `make` has made.
        truths: by name, the function and direction of the first record, empty if nothing is wrong, and the step.
    """
    for name, (truth, step) in truths.items():
        findings = {mode: _first(folder / name / mode) for mode in MODES}
        said = {mode: f"{found[0]} {found[1].record}" if found else "" for mode, found in findings.items()}
        sentences = {mode: found[1].sentence if found else "" for mode, found in findings.items()}
        line = _FIRST.search((folder / name / "watched.txt").read_text("utf-8"))
        is_neutral = all((folder / name / f"{mode}.bits").read_text() == "same" for mode in MODES)
        yield Outcome(name, truth, step, said, f"{line[1]} {line[2]}" if line else "", sentences, is_neutral)


def _first(run: Path) -> tuple[int | None, Finding] | None:
    """The first finding of a run, and its step; a training that is watched and has none leaves no folder."""
    if not run.exists():
        return None
    report = find_overflow(str(run), where=Where(jobs=1))
    return None if report.found is None else (report.found.step, report.first[0])
