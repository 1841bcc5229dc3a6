"""The names of the files and folders of a dump: ``<dump_path>/step<S>/rank<R>``, or ``proc<PID>`` without a rank.

Each process has a folder of its own in that of the step, and in it

    dump.json              the records; at level debug ``debug.json``
    stack.json             the call stacks
    construct.json         the call tree
    sketch.npz             a sketch of every tensor, and what made it
    updates.npz            what the optimizers did
    dump_tensor_data/      the files of tensors
    dump.journal           what the others are made from, while the process runs or after it died
    dump_error_info.log    failures of the tool itself
    process.json           which process of which run this is, under ``msprobe run``

Beside the folders of the steps is, for each process, ``environment_rank<R>.json`` or ``environment_proc<PID>.json``:
versions, variables, switches and seeds of the run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from probe.common.log import ERROR_LOG

DUMP_FILE = "dump.json"
DEBUG_FILE = "debug.json"
STACK_FILE = "stack.json"
CONSTRUCT_FILE = "construct.json"
SKETCH_FILE = "sketch.npz"
UPDATES_FILE = "updates.npz"
JOURNAL_FILE = "dump.journal"
PROCESS_FILE = "process.json"
TENSOR_FOLDER = "dump_tensor_data"

RECORD_FILES = (DUMP_FILE, DEBUG_FILE)
"""The files that may hold the records of a process."""
MADE_FILES = (*RECORD_FILES, STACK_FILE, CONSTRUCT_FILE, SKETCH_FILE, UPDATES_FILE)
"""The files that are made from a journal."""
MODES = ("graph", "pynative")
"""The folders above those of steps in which MindSpore writes what ran as a graph, and what did not."""

_STEP = re.compile(r"step(\d+)\Z")
_RANK = re.compile(r"rank(\d*)\Z")
_PROCESS = re.compile(r"proc(\d+)\Z")
_ENVIRONMENT = re.compile(r"environment_(rank|proc)\d+\.json\Z")


def record_file(level: str) -> str:
    """The name of the file that holds the records of a run at `level`."""
    return DEBUG_FILE if level == "debug" else DUMP_FILE


def step_folder(step: int) -> str:
    """The name of the folder of a training step."""
    return f"step{step}"


def process_folder(rank: int | None) -> str:
    """The name of the folder of this process, which has `rank` or none."""
    return f"proc{os.getpid()}" if rank is None else f"rank{rank}"


def environment_file(process: str) -> str:
    """The name of the file with the environment of a process, given the name of its folder: ``rank0``, ``proc123``."""
    return f"environment_{process}.json"


def is_environment_file(name: str) -> bool:
    """True if a file has the name of the environment of a process."""
    return _ENVIRONMENT.match(name) is not None


def environments_in(folder: str) -> list[str]:
    """The names of the files with environments in a dump's `folder`: ranks first, and each kind by its numbers."""
    found = filter(is_environment_file, os.listdir(folder))
    return sorted(found, key=lambda name: process_order(name[len("environment_") : -len(".json")]))


def is_without_rank(name: str) -> bool:
    """True if a process folder is that of a process without a rank."""
    return _PROCESS.match(name) is not None


def is_of_rank(name: str) -> bool:
    """True if a process folder is that of a rank."""
    return _RANK.match(name) is not None


def process_order(name: str) -> tuple[bool, int]:
    """The key that orders the folders of processes: ranks first, and each kind by its numbers."""
    return is_without_rank(name), int("".join(filter(str.isdigit, name)) or -1)


def is_of_layout(name: str) -> bool:
    """True if a file or a folder has the name of a part of a dump: ``step0``, ``rank3``, ``dump.json``."""
    if name in (*MADE_FILES, JOURNAL_FILE, ERROR_LOG, PROCESS_FILE, TENSOR_FOLDER, *MODES) or is_environment_file(name):
        return True
    return any(pattern.match(name) for pattern in (_STEP, _RANK, _PROCESS))


def steps_in(folder: str) -> list[str]:
    """The names of the step folders in `folder`, in order."""
    return _numbered(folder, _STEP)


def ranks_in(folder: str) -> list[str]:
    """The names of the folders of ranks in a step's `folder`, in order; a lone ``rank`` without number comes first."""
    return _numbered(folder, _RANK)


def processes_in(folder: str) -> list[str]:
    """The names of the folders of processes without a rank in a step's `folder`, in order."""
    return _numbered(folder, _PROCESS)


def step_and_rank(path: str) -> tuple[int | None, int | None]:
    """The step and the rank of a file of records, by the names of the folders it is in; ``None`` where they do not say.

    Example:
        >>> step_and_rank("dump_path/step3/rank1/dump.json"), step_and_rank("dump.json")
        ((3, 1), (None, None))
    """
    folder = os.path.dirname(os.path.abspath(path))
    step, rank = _STEP.match(os.path.basename(os.path.dirname(folder))), _RANK.match(os.path.basename(folder))
    return None if step is None else int(step[1]), int(rank[1]) if rank is not None and rank[1] else None


def process_and_mode(path: str) -> tuple[str | None, str | None]:
    """The process without a rank and the mode of MindSpore that a file of records is of; ``None`` where it is of none.

    Example:
        >>> process_and_mode("dump_path/graph/step3/proc12/dump.json")
        ('proc12', 'graph')
    """
    names = os.path.dirname(os.path.abspath(path)).split(os.sep)
    mode = names[-3] if len(names) > 2 and names[-3] in MODES and _STEP.match(names[-2]) else None
    return names[-1] if is_without_rank(names[-1]) else None, mode


def _numbered(folder: str, pattern: re.Pattern[str]) -> list[str]:
    found = []
    for name in os.listdir(folder):
        match = pattern.match(name)
        if match and os.path.isdir(os.path.join(folder, name)):
            found.append((int(match[1] or -1), name))
    return [name for _, name in sorted(found)]


def folder_of(path: str) -> str:
    """The folder of a dump, given that or a file in it."""
    return path if os.path.isdir(path) else os.path.dirname(path) or os.curdir


def holds_records(folder: str) -> bool:
    """True if `folder` is that of a process: a file of records is in it, or a journal."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in (*RECORD_FILES, JOURNAL_FILE))


def has_real_data(path: str) -> bool:
    """True if a dump, given its folder or a file in it, has tensors."""
    return os.path.isdir(os.path.join(folder_of(path), TENSOR_FOLDER))


# --- sizes

# Below these, of all pairs together, processes do not pay: they start in a quarter of a second, and in two with torch,
# which each of them needs for real data.
_SMALL_TEXT = 8_000_000
_SMALL_VALUES = 200_000_000
"""Bytes of tensor files up to which one process is faster than several; a guess, see `_SMALL_TEXT`."""
_FEW_TENSORS = 4_000
"""Tensor files up to which one process is faster than several; a guess, see `_SMALL_TEXT`."""


def are_large(paths: Iterable[str]) -> bool:
    """True if dumps, given their folders or files in them, are so large that starting processes for them pays."""
    text = tensors = values = 0
    for folder in map(folder_of, paths):
        text += sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())
        if has_real_data(folder):
            sizes = [entry.stat().st_size for entry in os.scandir(os.path.join(folder, TENSOR_FOLDER))]
            tensors, values = tensors + len(sizes), values + sum(sizes)
        if text > _SMALL_TEXT or tensors > _FEW_TENSORS or values > _SMALL_VALUES:
            return True
    return False
