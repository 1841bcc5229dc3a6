"""Which files of two paths are compared with each other: two files, two ranks of a step, or steps of two runs.

A run of MindSpore that is partly a graph has steps in two folders, ``graph`` and ``pynative``; each is compared with
its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Optional

from probe.common import log
from probe.common.dump.layout import (
    JOURNAL_FILE,
    RECORD_FILES,
    holds_records,
    is_of_rank,
    is_without_rank,
    processes_in,
    ranks_in,
    steps_in,
)
from probe.common.dump.runs import processes_of
from probe.common.errors import FileCheckException
from probe.common.match.processes import pair_processes

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
    before: Optional[tuple[str, str]] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The paths of the same processes at the step before, which tell of the optimizer's step between."""

    def __str__(self) -> str:
        return f"{self.step} {self.label}".strip() or f"{self.target} and {self.golden}"


def locate(target: str, golden: str) -> list[DumpPair]:
    """The pairs of `target` and `golden` in order.

    Raises:
        FileCheckException: one is missing, one is a file and the other no folder of one process, or their ranks do not
            correspond.
    """
    for path in (target, golden):
        if not os.path.exists(path):
            raise FileCheckException(f"{path} does not exist.")
    if os.path.isdir(target) != os.path.isdir(golden):
        return [_file_and_folder(target, golden)]
    if not os.path.isdir(target):
        return [_files(target, golden)]
    if holds_records(target) and holds_records(golden):
        return [DumpPair(target, golden)]
    steps = _steps_of_kinds(target, golden) or _steps(target, golden)
    partners: dict[str, str] = {}
    if steps:
        return _with_steps_before(
            [pair for step in steps for pair in _processes(f"{target}/{step}", f"{golden}/{step}", step, partners)]
        )
    return _processes(target, golden, "", partners)


def _file_and_folder(target: str, golden: str) -> DumpPair:
    """A file and the folder of a process, in which the same file is meant where it is there."""
    folder, file = (target, golden) if os.path.isdir(target) else (golden, target)
    if not holds_records(folder):
        raise FileCheckException(
            f"{folder} holds no dump itself, and {file} is a file; give two files, the folder of one process beside a "
            "file, or two folders."
        )
    inside = os.path.join(folder, os.path.basename(file))
    if not os.path.isfile(inside):
        # What it holds, a journal perhaps, is found by those who read it.
        inside = next(
            path for name in (*RECORD_FILES, JOURNAL_FILE) if os.path.isfile(path := os.path.join(folder, name))
        )
    return _files(*((inside, golden) if folder == target else (target, inside)))


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


def _processes(target: str, golden: str, step: str, partners: dict[str, str]) -> list[DumpPair]:
    """The pairs of one step; `partners` are processes without a rank that were paired at a step before, and are now."""
    if holds_records(target) != holds_records(golden):
        whole, other = (target, golden) if holds_records(target) else (golden, target)
        raise FileCheckException(
            f"{whole} is the folder of one process and {other} holds folders of processes; give both in the same form."
        )
    return [
        DumpPair(os.path.join(target, name), os.path.join(golden, other), label if label != "rank" else "rank0", step)
        for name, other, label in _pairs_of_processes(target, golden, partners)
    ]


def _pairs_of_processes(target: str, golden: str, partners: dict[str, str]) -> list[tuple[str, str, str]]:
    """The folders that belong together, each pair with its label.

    Ranks are paired by number. Where one side is a single process without a rank, each rank of the other is compared
    with it. Several processes without a rank are paired by what they ran.
    """
    of_target, of_golden = _folders(target), _folders(golden)
    has_several = len(of_target) > 1 or len(of_golden) > 1
    if has_several and _are_numbered(of_target) and _are_numbered(of_golden):
        return _pairs_of_ranks(target, golden, of_target, of_golden)
    if any(len(names) > 1 and any(map(is_without_rank, names)) for names in (of_target, of_golden)):
        return _pairs_by_work(target, golden, of_target, of_golden, partners)
    if len(of_target) > 1:
        log.info(f"{golden} holds one process; each rank of {target} is compared with it.")
        return [(name, of_golden[0], name) for name in of_target]
    if len(of_golden) > 1:
        log.info(f"{target} holds one process; it is compared with each rank of {golden}.")
        return [(of_target[0], name, name) for name in of_golden]
    return [(of_target[0], of_golden[0], of_target[0])]


def _folders(step: str) -> list[str]:
    """The folders of the processes of a step, in order; a rank is one of them even if its folder holds nothing.

    Raises:
        FileCheckException: there is none.
    """
    found = processes_of(step)
    left_out = found.left_out("compared")
    if left_out:
        log.warning(left_out)
    others = {each.name for each in found.earlier}
    ranks = [name for name in ranks_in(step) if name not in others]
    names = [*ranks, *(each.name for each in found.folders if each.name not in ranks)] or processes_in(step)[:1]
    if not names:
        raise FileCheckException(
            f"{step} holds neither rank folders nor the folder of a process; give the folder of a dumped step."
        )
    return names


def _pairs_by_work(
    target: str, golden: str, of_target: list[str], of_golden: list[str], partners: dict[str, str]
) -> list[tuple[str, str, str]]:
    # A process stays the same over all steps.
    known = {name: partners[name] for name in of_target if partners.get(name) in of_golden}
    known.update({name: name for name in of_target if is_of_rank(name) and name in of_golden})
    left = [name for name in of_target if name not in known]
    others = [name for name in of_golden if name not in known.values()]
    found = pair_processes([f"{target}/{name}" for name in left], [f"{golden}/{name}" for name in others])
    known.update({left[index]: others[other] for index, other in found})
    new = [f"{name} with {known[name]}" for name in of_target if name in known and partners.get(name) != known[name]]
    if new:
        shown = ", ".join(new[:8]) + (f" and {len(new) - 8} more" if len(new) > 8 else "")
        log.info(f"processes without a rank are paired by what they ran and the order in which they began: {shown}.")
    partners.update(known)
    _warn_of_alone(target, [name for name in of_target if name not in known])
    _warn_of_alone(golden, [name for name in of_golden if name not in known.values()])
    return [(name, known[name], name) for name in of_target if name in known]


def _warn_of_alone(folder: str, alone: list[str]) -> None:
    if alone:
        log.warning(f"{', '.join(alone)}: in {folder} only, and not compared.")


def _are_numbered(ranks: list[str]) -> bool:
    """Whether these are folders of ranks; a process that knew no rank has one without a number."""
    return bool(ranks) and all(is_of_rank(name) and name[-1].isdigit() for name in ranks)


def _pairs_of_ranks(
    target: str, golden: str, of_target: list[str], of_golden: list[str]
) -> list[tuple[str, str, str]]:
    common = [name for name in of_target if name in of_golden]
    if not common:
        raise FileCheckException(
            f"{target} holds {', '.join(of_target)} and {golden} holds {', '.join(of_golden)}: they have no rank in "
            "common. To compare two ranks with each other, give their folders."
        )
    for folder, found in ((target, of_target), (golden, of_golden)):
        _warn_of_alone(folder, [name for name in found if name not in common])
    return [(name, name, name) for name in common]


def _with_steps_before(pairs: list[DumpPair]) -> list[DumpPair]:
    """The pairs, each with the one of the step before if that is there: a step apart, of the same ranks."""
    by_step = {(pair.step, pair.label): pair for pair in pairs}
    found = []
    for pair in pairs:
        kind, _, step = pair.step.rpartition("step")
        # A single process has another number in every run, and the same label in all steps of one.
        earlier = by_step.get((f"{kind}step{int(step) - 1}", pair.label)) if step.isdigit() else None
        found.append(replace(pair, before=(earlier.target, earlier.golden)) if earlier is not None else pair)
    return found
