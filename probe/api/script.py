"""Running a program's script or module in this process, as Python would."""

from __future__ import annotations

import builtins
import importlib.util
import os
import shutil
import sys
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from types import CodeType, FrameType, ModuleType
from typing import Any, Callable, NamedTuple

from probe.common.callstack import hide_own_frames, leave_out
from probe.common.errors import FileCheckException, MsprobeException, failure_text

ENDED_BY_ERROR, INTERRUPTED = 1, 130
interrupted = False
"""True if a program of this process was ended by a keyboard interrupt that it did not catch."""


@dataclass(frozen=True)
class Program:
    """A main module that has not run yet.

    Args:
        main: The module.
        compiled: Gives its code; what is wrong with it is an error of the program.
        folder: Where the program's imports are looked for first.
    """

    main: ModuleType
    compiled: Callable[[], CodeType]
    folder: str


def load_script(path: str) -> Program:
    """The program in the script at `path`.

    Raises:
        FileCheckException: there is no such file.
    """
    absolute = os.path.abspath(path)
    loader = SourceFileLoader("__main__", absolute)
    try:
        source = loader.get_data(absolute)
    except OSError as error:
        text = f'"{path}" cannot be read ({error.strerror}); give the path of a script.'
        if os.path.basename(path) == path and shutil.which(path):
            text += f" A launcher stands in front: {path} ... -m msprobe run train.py."
        raise FileCheckException(text) from error
    main = _main(absolute, loader)

    def compiled() -> CodeType:
        code: CodeType = compile(source, absolute, "exec", dont_inherit=True)
        return code

    # The real folder, where the script is a link.
    return Program(main, compiled, os.path.dirname(os.path.realpath(absolute)))


def load_module(name: str) -> Program:
    """The program in a module, or in ``__main__`` of a package, by its name.

    Raises:
        MsprobeException: there is no such module, or it cannot be run.
    """
    folder = os.getcwd()
    search_first(folder)
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError) as error:
        raise MsprobeException(f'module "{name}" cannot be found ({error}).') from error
    get_code = getattr(spec.loader, "get_code", None) if spec is not None else None
    if spec is None or get_code is None:
        raise MsprobeException(f'there is no module "{name}" that can be run.')
    main = _main(spec.origin or name, spec.loader)
    main.__dict__.update(__spec__=spec, __package__=spec.parent, __cached__=spec.cached)
    return Program(main, lambda: get_code(name), folder)


def _main(file: str, loader: Any) -> ModuleType:
    main = ModuleType("__main__")
    main.__file__ = file
    main.__loader__ = loader
    main.__dict__.update(__builtins__=builtins, __cached__=None, __annotations__={})
    return main


def search_first(folder: str) -> None:
    """Have imports look where Python would look first for the program, instead of where it found us."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


class Ended(NamedTuple):
    """The end of a program."""

    status: int
    reason: str
    """The exception or the status with which it failed; empty if it did not.

    Example:
        ``ModuleNotFoundError: No module named 'deepspeed'``
    """


def execute(program: Program, arguments: Sequence[str], process_ends: bool) -> Ended:
    """Run `program` with ``sys.argv`` as given, and wait for its threads.

    An error of the program is shown as Python shows it, without frames of ours. Call stacks begin with the program.

    Args:
        program: What to run.
        arguments: Its name and its arguments.
        process_ends: True if this process ends with the program, so that pools of threads can be ended too.
    """
    global interrupted
    before = set(threading.enumerate())
    sys.argv = list(arguments)
    sys.modules["__main__"] = program.main
    search_first(program.folder)
    launcher: FrameType | None = sys._getframe()
    while launcher is not None:
        leave_out(launcher.f_code)
        launcher = launcher.f_back
    ended = Ended(0, "")
    try:
        exec(program.compiled(), program.main.__dict__)
    except SystemExit as error:
        status = _status(error)
        ended = Ended(status, f"exit status {status}" if status else "")
    except BaseException as error:
        _show(error)
        interrupted = isinstance(error, KeyboardInterrupt)
        reason = "KeyboardInterrupt" if interrupted else failure_text(error)
        ended = Ended(INTERRUPTED if interrupted else ENDED_BY_ERROR, reason)
    if process_ends:
        _end_pools()
    try:
        _wait_for_threads(before)
    except KeyboardInterrupt as error:
        if not process_ends:
            raise
        _stop_waiting(error)
    return ended


def _show(error: BaseException) -> None:
    hide_own_frames(error)
    sys.excepthook(type(error), error, error.__traceback__)


def _status(error: SystemExit) -> int:
    """Exit status as Python computes it: a text is printed and is a failure."""
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return ENDED_BY_ERROR


def _end_pools() -> None:
    """Call, as Python does at its end, what pools have registered for it: their threads go on until then.

    Pools take no further work afterwards, in the whole process.
    """
    at_end = getattr(threading, "_threading_atexits", [])
    while at_end:
        try:
            at_end.pop()()
        except BaseException as error:
            _show(error)  # Python shows it too, and it changes no exit status


def _stop_waiting(interrupt: KeyboardInterrupt) -> None:
    """Have Python end without its threads, as it does if it is interrupted while it waits for them: the status stays.

    It shows what is raised before it waits.
    """

    def end() -> None:
        raise interrupt

    getattr(threading, "_threading_atexits", []).append(end)


_POOLS = {"concurrent.futures.thread": "_threads_queues", "concurrent.futures.process": "_threads_wakeups"}
"""Registry of Python for threads that wait for work until the process ends."""


def _wait_for_threads(before: Collection[threading.Thread]) -> None:
    """Wait for the threads of the program as Python does at its end; what they train can still be reported here.

    Args:
        before: Threads that are not the program's.
    """
    pools = (getattr(sys.modules.get(module), name, ()) for module, name in _POOLS.items())
    idle = {thread for pool in pools for thread in list(pool) if thread.is_alive()}
    for thread in threading.enumerate():
        if not thread.daemon and thread not in before and thread not in idle:
            thread.join()
