"""The files of two paths that are compared with each other: two files, two ranks of a step, or steps of two runs.

A run of MindSpore that is partly a graph has steps in two folders, ``graph`` and ``pynative``; each is compared with
its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Optional, TypeVar

import msgspec
from msgspec.structs import replace

from probe.common import log
from probe.common.dump.layout import (
    DEBUG_FILE,
    DUMP_FILE,
    JOURNAL_FILE,
    RECORD_FILES,
    is_of_rank,
    is_without_rank,
    process_order,
)
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.runs import DumpLocation, FoundDumps, find_dumps, warn_of_left_out
from probe.common.errors import FileCheckException, MsprobeException

_FIRST = 4
"""Records of which the values are looked at: those that stand before any difference between two runs, mostly."""
_MOST_COMPARED = 4096
"""Pairs of processes of which the records are looked at; of more only the order."""


class _Work(msgspec.Struct, frozen=True):
    """The recorded work of a process."""

    names: frozenset[str]
    first_values: tuple[str, ...]


_NOTHING = _Work(frozenset(), ())


def pair_processes(target: Sequence[str], golden: Sequence[str]) -> list[tuple[int, int]]:
    """The indices of the folders that belong together, in the order of the target's.

    Args:
        target, golden: The folders of the processes of one step, each in the order in which these were started.

    Returns:
        As many pairs as the shorter one has folders.
    """
    if len(target) * len(golden) > _MOST_COMPARED:
        return list(zip(range(len(target)), range(len(golden))))
    of_target, of_golden = [_work(path) for path in target], [_work(path) for path in golden]
    ranked = sorted(
        ((index, other) for index in range(len(target)) for other in range(len(golden))),
        key=lambda pair: (*_unlikeness(of_target[pair[0]], of_golden[pair[1]]), abs(pair[0] - pair[1]), pair),
    )
    found: dict[int, int] = {}
    taken: set[int] = set()
    for index, other in ranked:
        if index not in found and other not in taken:
            found[index] = other
            taken.add(other)
    return sorted(found.items())


class PoolTasks:
    """The tasks that the processes of two runs took; a pool may hand them out in another order in every run.

    Args:
        target, golden: The folders of all processes without a rank, of all steps.
    """

    def __init__(self, target: Sequence[str], golden: Sequence[str]) -> None:
        self._target = target
        self._golden = golden
        self._first_values: dict[str, tuple[str, ...]] = {}

    @property
    def has_pool(self) -> bool:
        """True if a run has several processes, which can take tasks in another order."""
        return any(len(set(map(os.path.basename, paths))) > 1 for paths in (self._target, self._golden))

    def differ(self, target: str, golden: str) -> bool:
        """True if two paired processes have computed different tasks at a step, given their folders of this step.

        They have if the first values differ, and those of one are found in another process of the other run, but not
        in the one that it is paired with: a process that diverges computes values that no process of the other run has.
        """
        if target not in self._target or golden not in self._golden:
            return False
        one, other = self._values(target), self._values(golden)
        if one == other or not one or not other:
            return False
        return self._are_elsewhere(one, golden, self._golden) or self._are_elsewhere(other, target, self._target)

    def _are_elsewhere(self, values: tuple[str, ...], path: str, paths: Sequence[str]) -> bool:
        """True if a process has `values` at any step, and that of `path` at none."""
        has_them = {os.path.basename(each) for each in paths if self._values(each) == values}
        return bool(has_them) and os.path.basename(path) not in has_them

    def _values(self, path: str) -> tuple[str, ...]:
        found = self._first_values.get(path)
        if found is None:
            found = self._first_values[path] = _work(path).first_values
        return found


def _unlikeness(one: _Work, other: _Work) -> tuple[float, bool]:
    """0 for the same calls, 1 for none in common; and whether their first values differ."""
    every = one.names | other.names
    in_common = len(one.names & other.names) / len(every) if every else 0.0
    return 1 - in_common, one.first_values != other.first_values


def _work(path: str) -> _Work:
    try:
        dump = read(path)
        return _Work(frozenset(record.name for record in dump), _first_values(dump))
    except (MsprobeException, OSError) as error:
        # Whoever compares it says so as well.
        log.debug(f"{path} cannot be read, and is paired by its order: {error}")
        return _NOTHING


def _first_values(dump: Dump) -> tuple[str, ...]:
    """The inputs of the first calls as text, in which a NaN equals itself."""
    found: list[str] = []
    for record in dump.records[:_FIRST]:
        for item in dump.items(record):
            if item.state != "output":
                found.append(repr((item.shape, item.max, item.min, item.mean, item.norm, item.md5)))
    return tuple(found)


# --- dump pairs


T = TypeVar("T")
_THE_PATH_ITSELF = ""
"""The name of a step whose folder was given."""
_MOST_NAMED = 6
"""Folders that an error lists; a guess."""
_NUMBERED, _SPACED = re.compile(r"\b(step|rank)(?=\d)"), r"\1 "


class DumpPair(msgspec.Struct, frozen=True):
    """Two paths that are compared, each a file or the folder of one process."""

    target: str
    golden: str
    label: str = ""
    """``rank0`` or ``proc123``; empty for two files."""
    step: str = ""
    """``step0``, or ``graph/step0``; empty when the paths are those of one step."""
    before: Optional[tuple[str, str]] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The paths of the same processes at the step before, which tell of the optimizer's step between."""
    left_out: str = ""
    """The first step and process that is not compared, because a pool handed out its tasks in another order."""
    missing: tuple[str, ...] = ()
    """The steps and ranks that one run has alone, in words; the last pair beside which they are missing has them."""

    def __str__(self) -> str:
        return f"{self.step} {self.label}".strip() or f"{self.target} and {self.golden}"


def locate(target: str, golden: str) -> list[DumpPair]:
    """The pairs of `target` and `golden` in order; what is left out is logged.

    Raises:
        FileCheckException: one is missing or holds no dump, one is a file and the other no folder of one process, or
            their ranks do not correspond.
    """
    found = find_dumps(target), find_dumps(golden)
    warn_of_left_out(*found)
    return pairs_of(*found)


def pairs_of(target: FoundDumps, golden: FoundDumps) -> list[DumpPair]:
    """The pairs of the dumps of two paths in order.

    Raises:
        FileCheckException: one is a file and the other no folder of one process, one is the folder of a step and the
            other holds several, or their ranks do not correspond.
    """
    if target.is_one and golden.is_one:
        return [_pair_of_two(target.path, golden.path)]
    for one, other in ((target, golden), (golden, target)):
        if one.is_one:
            raise FileCheckException(_not_the_same_form(one.path, other.path))
    of_target, of_golden = beside_one_step((target.path, golden.path), (_steps(target), _steps(golden)))
    partners: dict[str, str] = {}
    steps = _common_steps(target, golden, list(of_target), list(of_golden))
    pairs = [pair for step in steps for pair in _processes(of_target[step], of_golden[step], step, partners)]
    of_steps = [[step for step in found if step not in steps] for found in (of_target, of_golden)]
    pairs = _and_missing(_with_records(pairs, (target, golden)), _names_of_one_run(of_steps))
    return _with_steps_before(_with_tasks(pairs, PoolTasks(_without_rank(target), _without_rank(golden))))


def _names_of_one_run(alone: Sequence[Sequence[str]], step: str = "") -> list[str]:
    """The steps, or the processes of a step, that one run has alone, in words."""
    found = []
    for names, run in zip(alone, ("target", "golden run")):
        if names:
            shown = [_NUMBERED.sub(_SPACED, name) for name in names[:_MOST_NAMED]]
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            of = f" of {_NUMBERED.sub(_SPACED, step)}" if step else ""
            found.append(f"{', '.join(shown)}{more}{of} {'is' if len(names) == 1 else 'are'} in the {run} only")
    return found


def _with_records(pairs: Sequence[DumpPair], runs: tuple[FoundDumps, FoundDumps]) -> list[DumpPair]:
    """The pairs of which both sides have records; the last one says which have them in one run only.

    Raises:
        FileCheckException: no pair is left.
    """
    empty = [{each.path for each in found.empty} for found in runs]
    kept: list[DumpPair] = []
    missing: list[str] = []
    for pair in pairs:
        lacks = pair.target in empty[0], pair.golden in empty[1]
        if not any(lacks):
            kept.append(pair)
        elif not all(lacks):
            run = "golden run" if lacks[0] else "target"
            missing.append(f"{_NUMBERED.sub(_SPACED, str(pair))} has records in the {run} only")
    if not kept:
        paths = f"{runs[0].path} and {runs[1].path}"
        raise FileCheckException(f"{paths} have no rank in common of which both hold records.")
    return _and_missing(kept, missing)


def _and_missing(pairs: list[DumpPair], missing: Sequence[str]) -> list[DumpPair]:
    """The pairs, of which the last one says what is missing, too."""
    last = [replace(pair, missing=(*pair.missing, *missing)) for pair in pairs[-1:]]
    return [*pairs[:-1], *last]


def _without_rank(found: FoundDumps) -> list[str]:
    return [os.path.join(each.step_folder, each.name) for each in found.dumps if is_without_rank(each.name)]


def _with_tasks(pairs: list[DumpPair], tasks: PoolTasks) -> list[DumpPair]:
    """The pairs of which the processes have computed the same tasks at this step and all steps before.

    Raises:
        FileCheckException: there is none.
    """
    if not tasks.has_pool:
        return pairs
    others: dict[str, DumpPair] = {}
    found: list[DumpPair] = []
    for pair in pairs:
        if pair.label not in others and tasks.differ(pair.target, pair.golden):
            others[pair.label] = pair
            name = os.path.basename(pair.golden)
            log.warning(f"{pair.label}: not compared; starting at {pair.step}, its tasks of a pool differ from {name}.")
        if pair.label not in others:
            found.append(pair)
    left_out = next(map(str, others.values()), "")
    if not found:
        raise FileCheckException(
            f"nothing is compared: starting at {left_out}, the processes of a pool took other tasks in each run. "
            "Use a pool of one process in both runs."
        )
    return [replace(pair, left_out=left_out) for pair in found] if left_out else pairs


def beside_one_step(
    paths: tuple[str, str], steps: tuple[Mapping[str, T], Mapping[str, T]]
) -> tuple[Mapping[str, T], Mapping[str, T]]:
    """The steps of two paths; if one path is the folder of a step, the only step of the other is its counterpart.

    Args:
        paths: Target and golden run.
        steps: What there is of each step, by its name below the path; empty if the path is the folder of the step.

    Raises:
        FileCheckException: one path is the folder of a step, and the other holds several.
    """
    if (_THE_PATH_ITSELF in steps[0]) == (_THE_PATH_ITSELF in steps[1]):
        return steps
    run = 0 if _THE_PATH_ITSELF in steps[1] else 1
    names = list(steps[run])
    if len(names) > 1:
        same = os.path.basename(os.path.abspath(paths[1 - run]))
        example = os.path.join(paths[run], same if same in names else names[0])
        held = ", ".join(names[:_MOST_NAMED]) + (f" and {len(names) - _MOST_NAMED} more" if names[_MOST_NAMED:] else "")
        raise FileCheckException(
            f"{paths[1 - run]} is the folder of one step, and {paths[run]} holds {held}; give the folder of one of "
            f"these steps, such as {example}."
        )
    only = {_THE_PATH_ITSELF: steps[run][names[0]]}
    return (only, steps[1]) if run == 0 else (steps[0], only)


def _not_the_same_form(one: str, other: str) -> str:
    if os.path.isfile(one):
        return (
            f"{other} holds no dump itself, and {one} is a file; give two files, the folder of one process and a "
            "file, or two folders."
        )
    return f"{one} is the folder of one process and {other} holds folders of processes; give both in the same form."


def _pair_of_two(target: str, golden: str) -> DumpPair:
    """Two files, or the folders of two processes; in a folder beside a file the same file is meant, if it is there."""
    if os.path.isdir(target) and os.path.isdir(golden):
        return DumpPair(target, golden)
    target, golden = _file_in(target, golden), _file_in(golden, target)
    kinds = [_kind(target), _kind(golden)]
    if kinds[0] != kinds[1] and JOURNAL_FILE not in kinds:
        raise FileCheckException(f"{target} and {golden}: {kinds[0]} is compared with {kinds[0]} only.")
    return DumpPair(target, golden)


def _file_in(path: str, other: str) -> str:
    """The file that is meant by the folder of a process beside a file; a file itself."""
    if not os.path.isdir(path):
        return path
    # What it holds, a journal perhaps, is found by those who read it.
    names = (os.path.basename(other), *RECORD_FILES, JOURNAL_FILE)
    return next(inside for name in names if os.path.isfile(inside := os.path.join(path, name)))


def _kind(path: str) -> str:
    """``dump.json``, ``debug.json`` or ``dump.journal``; a file of another name is taken for the first of them."""
    return next((name for name in (DEBUG_FILE, JOURNAL_FILE) if path.endswith(name)), DUMP_FILE)


def _steps(found: FoundDumps) -> dict[str, list[DumpLocation]]:
    """The dumps of each step, by its name below the path; a rank without records is one of them."""
    steps: dict[str, list[DumpLocation]] = {}
    for each in found.dumps:
        steps.setdefault(found.name_of_step(each), []).append(each)
    for each in found.empty:
        of_step = steps[found.name_of_step(each)]
        # Among the other ranks by its number; processes without a rank stay behind them.
        order = process_order(each.name)
        of_step.insert(sum(process_order(other.name) < order for other in of_step), each)
    return steps


def _common_steps(target: FoundDumps, golden: FoundDumps, of_target: list[str], of_golden: list[str]) -> list[str]:
    common = [step for step in of_target if step in of_golden]
    if not common:
        modes = [_modes(of_target), _modes(of_golden)]
        if not all(modes):
            raise FileCheckException(f"{target.path} and {golden.path} have no step in common.")
        raise FileCheckException(
            f"{target.path} holds {modes[0]} and {golden.path} holds {modes[1]}, "
            "but they have no step of the same kind in common."
        )
    return common


def _modes(steps: list[str]) -> str:
    """``graph and pynative``: the folders that steps of MindSpore are in."""
    return " and ".join(dict.fromkeys(step.rpartition("/")[0] for step in steps if "/" in step))


def _processes(
    target: list[DumpLocation], golden: list[DumpLocation], step: str, partners: dict[str, str]
) -> list[DumpPair]:
    """The pairs of one step; `partners` are processes without a rank that were paired at a step before, and are now."""
    folders = target[0].step_folder, golden[0].step_folder
    names = [each.name for each in target], [each.name for each in golden]
    pairs = [
        DumpPair(
            os.path.join(folders[0], name), os.path.join(folders[1], other), "rank0" if label == "rank" else label, step
        )
        for name, other, label in _pairs_of_processes(*folders, *names, partners)
    ]
    paired = {path for pair in pairs for path in (pair.target, pair.golden)}
    alone = [
        [name for name in of_side if os.path.join(folder, name) not in paired]
        for folder, of_side in zip(folders, names)
    ]
    return _and_missing(pairs, _names_of_one_run(alone, step))


def _pairs_of_processes(
    target: str, golden: str, of_target: list[str], of_golden: list[str], partners: dict[str, str]
) -> list[tuple[str, str, str]]:
    """The folders that belong together, each pair with its label.

    Ranks are paired by number. Where one side is a single process without a rank, each rank of the other is compared
    with it. Several processes without a rank are paired by what they ran.
    """
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
    return [(name, known[name], name) for name in of_target if name in known]


def _are_numbered(ranks: list[str]) -> bool:
    """True if these are folders of ranks; a process that knew no rank has one without a number."""
    return bool(ranks) and all(is_of_rank(name) and name[-1].isdigit() for name in ranks)


def _pairs_of_ranks(target: str, golden: str, of_target: list[str], of_golden: list[str]) -> list[tuple[str, str, str]]:
    common = [name for name in of_target if name in of_golden]
    if not common:
        raise FileCheckException(
            f"{target} holds {', '.join(of_target)} and {golden} holds {', '.join(of_golden)}: they have no rank in "
            "common. To compare two ranks with each other, give their folders."
        )
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
