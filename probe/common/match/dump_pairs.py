"""Which files of two paths are compared with each other: two files, two ranks of a step, or steps of two runs.

A run of MindSpore that is partly a graph has steps in two folders, ``graph`` and ``pynative``; each is compared with
its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from probe.common import log
from probe.common.dump.layout import (
    JOURNAL_FILE,
    RECORD_FILES,
    holds_records,
    processes_in,
    ranks_in,
    steps_in,
)
from probe.common.errors import FileCheckException

_KINDS = ("graph", "pynative")


@dataclass(frozen=True)
class DumpPair:
    """Two paths that are compared, each a file or the folder of one process."""

    target: str
    golden: str
    label: str = ""
    """``rank0`` or ``proc123``; empty for two files."""
    step: str = ""
    """``step0``, or ``graph/step0``; empty when the paths are those of one step."""

    def __str__(self) -> str:
        return f"{self.step} {self.label}".strip() or f"{self.target} and {self.golden}"


def locate(target: str, golden: str) -> list[DumpPair]:
    """The pairs of `target` and `golden` in order.

    Raises:
        FileCheckException: one is missing, one is a file and the other a folder, or their ranks do not correspond.
    """
    for path in (target, golden):
        if not os.path.exists(path):
            raise FileCheckException(f"{path} does not exist.")
    if os.path.isdir(target) != os.path.isdir(golden):
        raise FileCheckException(f"{target} and {golden}: give two files or two folders, not one of each.")
    if not os.path.isdir(target):
        return [_files(target, golden)]
    if holds_records(target) and holds_records(golden):
        return [DumpPair(target, golden)]
    steps = _steps_of_kinds(target, golden) or _steps(target, golden)
    if steps:
        return [pair for step in steps for pair in _ranks(f"{target}/{step}", f"{golden}/{step}", step)]
    return _ranks(target, golden, "")


def _files(target: str, golden: str) -> DumpPair:
    kinds = []
    for path in (target, golden):
        kind = next((name for name in (*RECORD_FILES, JOURNAL_FILE) if path.endswith(name)), None)
        if kind is None:
            raise FileCheckException(f"{path}: a file to compare is called {' or '.join(RECORD_FILES)}.")
        kinds.append(kind)
    if kinds[0] != kinds[1] and JOURNAL_FILE not in kinds:
        raise FileCheckException(f"{target} and {golden}: {kinds[0]} is compared with {kinds[0]} only.")
    return DumpPair(target, golden)


def _steps_of_kinds(target: str, golden: str) -> list[str]:
    """``graph/step0`` and so on, where both runs have folders of these kinds."""
    of_target, of_golden = ([kind for kind in _KINDS if os.path.isdir(f"{side}/{kind}")] for side in (target, golden))
    if not of_target or not of_golden:
        return []
    kinds = [kind for kind in of_target if kind in of_golden]
    found = [f"{kind}/{step}" for kind in kinds for step in _common_steps(f"{target}/{kind}", f"{golden}/{kind}")]
    if not found:
        raise FileCheckException(
            f"{target} holds {' and '.join(of_target)} and {golden} holds {' and '.join(of_golden)}, "
            "but they have no step of the same kind in common."
        )
    return found


def _steps(target: str, golden: str) -> list[str]:
    common = _common_steps(target, golden)
    if not common and (steps_in(target) or steps_in(golden)):
        raise FileCheckException(f"{target} and {golden} have no step in common.")
    return common


def _common_steps(target: str, golden: str) -> list[str]:
    of_target, of_golden = steps_in(target), steps_in(golden)
    common = [step for step in of_target if step in of_golden]
    for folder, found in ((target, of_target), (golden, of_golden)):
        alone = [step for step in found if step not in common]
        if alone and common:
            log.warning(f"{', '.join(alone)}: in {folder} only, and not compared.")
    return common


def _ranks(target: str, golden: str, step: str) -> list[DumpPair]:
    of_target, of_golden = ranks_in(target), ranks_in(golden)
    if holds_records(target) != holds_records(golden):
        whole, other = (target, golden) if holds_records(target) else (golden, target)
        raise FileCheckException(
            f"{whole} is the folder of one process and {other} holds folders of processes; give both in the same form."
        )
    if len(of_target) != len(of_golden):
        raise FileCheckException(
            f"{target} has {len(of_target)} rank folders and {golden} has {len(of_golden)}; they are paired in order."
        )
    if not of_target:
        of_target, of_golden = processes_in(target), processes_in(golden)
        for folder, found in ((target, of_target), (golden, of_golden)):
            if len(found) != 1:
                raise FileCheckException(
                    f"{folder} holds {len(found)} proc folders and no rank folder; "
                    "give a step folder with ranks or with exactly one process."
                )
    elif of_target != of_golden:
        pairs = ", ".join(f"{mine} with {theirs}" for mine, theirs in zip(of_target, of_golden))
        log.warning(f"{target} and {golden} hold different ranks, which are paired in order: {pairs}.")
    return [
        DumpPair(os.path.join(target, mine), os.path.join(golden, theirs), mine if mine != "rank" else "rank0", step)
        for mine, theirs in zip(of_target, of_golden)
    ]
