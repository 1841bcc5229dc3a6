"""Running a program's script or module in this process, as Python would."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from types import FrameType, ModuleType, TracebackType
from typing import Any

from probe.common.callstack import MARK, OWN_FILES, leave_out
from probe.common.errors import FileCheckException, MsprobeException

ENDED_BY_ERROR, INTERRUPTED = 1, 130


def load_script(path: str) -> tuple[ModuleType, Any]:
    """Make the main module of the script at `path`; returns it and its code.

    Raises:
        FileCheckException: there is no such file.
        SyntaxError: as Python raises it.
    """
    try:
        with io.open_code(path := os.path.abspath(path)) as stream:
            source = stream.read()
    except OSError as error:
        text = f'"{path}" cannot be read ({error.strerror}); give the path of a script.'
        raise FileCheckException(text) from error
    module = ModuleType("__main__")
    module.__file__ = path
    module.__builtins__ = builtins  # type: ignore[attr-defined]
    return module, compile(source, path, "exec", dont_inherit=True)


def load_module(name: str) -> tuple[ModuleType, Any]:
    """The same for a module or package by its name, as ``python -m`` runs it.

    Raises:
        MsprobeException: there is no such module, or it cannot be run.
    """
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError) as error:
        raise MsprobeException(f'module "{name}" cannot be found ({error}).') from error
    code = getattr(spec.loader, "get_code", lambda _: None)(name) if spec is not None else None
    if spec is None or code is None:
        raise MsprobeException(f'there is no module "{name}" that can be run.')
    module = ModuleType("__main__")
    module.__file__ = spec.origin
    module.__spec__ = spec
    module.__loader__ = spec.loader
    module.__package__ = spec.parent
    module.__builtins__ = builtins  # type: ignore[attr-defined]
    return module, code


def execute(main: ModuleType, code: Any, arguments: Sequence[str]) -> int:
    """Run `code` in `main` with ``sys.argv`` as given; returns the exit status.

    An error of the program is shown as Python shows it, without frames of ours. Call stacks begin with the program.
    """
    sys.argv = list(arguments)
    sys.modules["__main__"] = main
    launcher: FrameType | None = sys._getframe()
    while launcher is not None:
        leave_out(launcher.f_code)
        launcher = launcher.f_back
    try:
        exec(code, main.__dict__)
    except SystemExit as error:
        return _status(error)
    except BaseException as error:
        frames = _without_own(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else ENDED_BY_ERROR
    return 0


def _status(error: SystemExit) -> int:
    """What Python makes of it: a text is printed, and is a failure."""
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return ENDED_BY_ERROR


def _without_own(frames: TracebackType | None) -> TracebackType | None:
    kept = [frame for frame in _each(frames) if not _is_own(frame)]
    shown: TracebackType | None = None
    for frame in reversed(kept):
        shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return shown


def _each(frames: TracebackType | None) -> list[TracebackType]:
    found = []
    while frames is not None:
        found.append(frames)
        frames = frames.tb_next
    return found


def _is_own(frame: TracebackType) -> bool:
    code = frame.tb_frame.f_code
    return code.co_filename.startswith(OWN_FILES) or MARK in code.co_consts
