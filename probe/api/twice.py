"""``msprobe run --twice``: a program is run two times, and both runs are compared bit for bit.

Each run is a process of its own, with the arguments, the variables and the folder of this one, so that whatever
decides a run once, such as the hashes of texts, is decided anew.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from probe.api import script
from probe.api.commands.question import FINE, FOUND, TROUBLE, print_lines
from probe.api.following.environment import ROOT
from probe.collect.training_loop import AUTO
from probe.common import clock, log
from probe.common.align.calls import WARNING
from probe.common.data_files import read_object
from probe.common.errors import MsprobeException

FOLDERS = "first", "second"
"""The folders of both runs below the output folder."""
_TASKS = ("statistics", "tensor")
"""The tasks whose dumps can be compared."""
_OPTIONS = {
    "config": "--config", "level": "--level", "module_pattern": "--module", "api": "--api", "step": "--step",
    "task": "--task", "summary_mode": "--summary-mode", "step_after": "--step-after",
}  # fmt: skip
"""The options with a value that both runs get."""
_START = (
    f"import sys; sys.path[: not getattr(sys.flags, 'safe_path', False)] = [{ROOT!r}]; "
    "from probe.api.cli import main; sys.exit(main())"
)
"""The ``msprobe`` command. With ``-m msprobe``, a ``probe.py`` of the working folder would be imported."""
_FLAGS = {"follow_children": "--follow-children", "quiet": "--quiet", "strict": "--strict"}
_MOST_FILES = 50_000
"""Files of the working folder that are looked at, which takes about a second."""
_SHOWN = 4
_Written = tuple[int, int]
"""The time of the last write to a file, in nanoseconds since the epoch, and its size in bytes."""
_NOT_READ = frozenset(("__pycache__", ".git"))
"""Folders that a program does not begin from."""


def run_twice(args: argparse.Namespace, program: Sequence[str], given: Mapping[str, Any]) -> int:
    """Run a program two times, compare both runs and print the answer; returns the exit status.

    Args:
        args: The arguments of ``msprobe run``.
        program: The script or the module, and its arguments.
        given: The options that are keys of the configuration, checked.

    Raises:
        MsprobeException: an option does not fit, or nothing can be compared.
    """
    _check(args, given)
    # Found here, its absence is said once, before a run begins.
    if args.module is None:
        script.load_script(program[0])
    if args.quiet:
        log.quieten()
    output = os.path.abspath(args.output or os.path.join("msprobe_output", clock.stamp("twice_%Y%m%d%H%M%S")))
    folders = [os.path.join(output, name) for name in FOLDERS]
    for folder in folders:
        if os.path.lexists(folder):
            # Steps of an earlier run that this one does not have would be compared as well.
            raise MsprobeException(f"{folder} exists already; give another folder with -o, or remove it.")
    places = list(_places(program, output))
    before = _files(places, output)
    statuses: list[int] = []
    written: dict[str, _Written] = {}
    second_began = 0
    for folder, name in zip(folders, FOLDERS):
        log.info(f"msprobe run --twice: the {name} run, into {folder}.")
        second_began = time.time_ns()
        statuses.append(_run([*_command(args, given), "-o", folder, *_of_program(args, program)]))
        if not written:
            after = _files(places, output)
            written = {path: state for path, state in after.items() if before.get(path) != state}
            if statuses[0]:
                log.error(f"the first run ended with status {statuses[0]}, so that there is no second one.")
                return TROUBLE
    return _answer(
        (folders[0], folders[1]),
        statuses,
        [_Left(path, _was_read(path, state, second_began)) for path, state in written.items()],
    )


def _check(args: argparse.Namespace, given: Mapping[str, Any]) -> None:
    task = given["task"] or (read_object(args.config).get("task") if args.config else None) or _TASKS[0]
    if task not in _TASKS:
        raise MsprobeException(
            f'--twice compares what was recorded; the task is "{task}"; allowed: {", ".join(_TASKS)}.'
        )
    for flag, value in (("--baseline", args.against), ("--stop-at", args.stop_at)):
        if value is not None:
            raise MsprobeException(
                f"--twice cannot be used with {flag}: its second run is compared with its first one, when both ended."
            )
    if os.environ.get("TORCHELASTIC_RUN_ID") or os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
        raise MsprobeException(
            "--twice stands in front of a launcher, which is run two times: msprobe run --twice --follow-children "
            "-m torch.distributed.run --nproc-per-node N train.py."
        )


def _command(args: argparse.Namespace, given: Mapping[str, Any]) -> Iterator[str]:
    """``msprobe run`` in another Python, with the options of this call."""
    yield from (sys.executable, *subprocess._args_from_interpreter_flags(), "-c", _START, "run")  # type: ignore[attr-defined]
    for name, flag in _OPTIONS.items():
        value = getattr(args, name)
        if value not in (None, AUTO):
            yield from (flag, value)
    yield from (flag for name, flag in _FLAGS.items() if getattr(args, name))
    if given["summary_mode"] is None and not _names_summary(args, given):
        yield from ("--summary-mode", "md5")


def _names_summary(args: argparse.Namespace, given: Mapping[str, Any]) -> bool:
    """True if the configuration says what a record has of a tensor, or tensors are saved, which are compared then."""
    content = read_object(args.config) if args.config else {}
    task = given["task"] or content.get("task") or _TASKS[0]
    section = content.get(str(task))
    return task == "tensor" or (isinstance(section, dict) and section.get("summary_mode") is not None)


def _of_program(args: argparse.Namespace, program: Sequence[str]) -> list[str]:
    return [*(["-m"] if args.module is not None else []), *program]


def _run(command: Sequence[str]) -> int:
    """Run a command to its end, and give its exit status; Ctrl-C reaches it, too."""
    with subprocess.Popen(command) as process:
        return process.wait()


# --- what the second run may have begun from


class _Left(NamedTuple):
    """A file that the first run wrote."""

    path: str
    is_read: bool
    """True if the second run has read it and not written it; false where the file system does not tell."""


def _places(program: Sequence[str], output: str) -> Iterator[str]:
    """The working folder, and the files and folders that arguments of the program name."""
    here = os.getcwd()
    yield here
    for word in program[1:]:
        path = os.path.abspath(word.partition("=")[2] or word)
        is_outside = os.path.commonpath((here, path)) != here and os.path.commonpath((output, path)) != output
        if is_outside and path != os.path.sep:
            yield path


def _files(places: Iterable[str], output: str) -> dict[str, _Written]:
    """Time of the last write and size of the files in `places`, but for those in `output`."""
    found: dict[str, _Written] = {}
    for place in places:
        for path in [place] if os.path.isfile(place) else _files_below(place, output):
            try:
                state = os.stat(path)
            except OSError:
                continue  # A link that leads nowhere, or a file that is gone.
            found[path] = state.st_mtime_ns, state.st_size
            if len(found) == _MOST_FILES:
                return found
    return found


def _files_below(folder: str, output: str) -> Iterator[str]:
    for path, names, files in os.walk(folder):
        names[:] = [name for name in names if name not in _NOT_READ and os.path.join(path, name) != output]
        yield from (os.path.join(path, name) for name in files)


def _was_read(path: str, written: _Written, since: int) -> bool:
    """True if a file that nobody has written since was read after `since`, in nanoseconds since the epoch."""
    try:
        state = os.stat(path)
    except OSError:
        return False
    return (state.st_mtime_ns, state.st_size) == written and state.st_atime_ns > since


# --- answer


def _answer(folders: tuple[str, str], statuses: Sequence[int], left: Sequence[_Left]) -> int:
    from probe.compare.twice.answer import lines, repetition

    found = repetition(*folders)
    notes = [(f"  note:   {text}", WARNING) for text in _notes(statuses, left if found.differs else ())]
    print_lines([*lines(found), *notes], sys.stdout)
    return FOUND if found.differs or statuses[1] else FINE


def _notes(statuses: Sequence[int], left: Sequence[_Left]) -> Iterator[str]:
    if statuses[1]:
        yield f"the second run ended with status {statuses[1]}, and the first with 0"
    read = [os.path.relpath(each.path) for each in left if each.is_read]
    if read:
        yield f"the second run has read what the first wrote ({_some(read)}), and may not have begun in the same state"
    elif left:
        names = _some([os.path.relpath(each.path) for each in left])
        yield f"the first run wrote {names}; if the program reads that, the second run began in another state"


def _some(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return f"{', '.join(paths[:_SHOWN])}{more}"
