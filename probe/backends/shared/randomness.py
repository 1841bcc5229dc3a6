"""Random draws recorded and repeated, and functions that drop made to return their input."""

from __future__ import annotations

import functools
import inspect
import os
import random
import sys
import threading
from collections.abc import Iterable, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any, Callable, NamedTuple

import numpy as np

from probe.backends.shared.patching import Attributes
from probe.common import clock, log
from probe.common.callstack import OWN_FILES
from probe.common.dump.stack_text import frame_text
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.files import FILE_MODE, make_folder
from probe.common.interfaces import Handle, RandomCall

_NAME_TRIES = 60
"""Seconds after the first for which a free name of a file is looked for; a guess."""

# Functions of the two modules that do not draw: reading and setting the state, and generators of their own.
_PYTHON_STATE = {"seed", "getstate", "setstate"}
_NUMPY_STATE = {"seed", "get_state", "set_state", "default_rng"}


def existing_calls(
    library: str, owner: Any, names: Iterable[str], compiling: Callable[[], bool] | None = None
) -> list[RandomCall]:
    """Functions that `owner` has, of `names`; `compiling` is that of `RandomCall`."""
    found = [RandomCall(library, owner, name) for name in names if hasattr(owner, name)]
    return found if compiling is None else [call._replace(compiling=compiling) for call in found]


def python_calls() -> list[RandomCall]:
    """The functions of Python's `random` that draw from its global generator."""
    return _drawing_functions("python_random", random, _PYTHON_STATE)


def numpy_calls() -> list[RandomCall]:
    """The functions of `numpy.random` that draw from its global generator."""
    return _drawing_functions("numpy_random", np.random, _NUMPY_STATE)


def _drawing_functions(library: str, module: Any, other: set[str]) -> list[RandomCall]:
    names = [name for name in module.__all__ if name not in other]
    return [RandomCall(library, module, name) for name in names if not inspect.isclass(getattr(module, name))]


def replace_call(attributes: Attributes, call: RandomCall, wrapper: Callable[..., Any]) -> None:
    """Let `attributes` put `wrapper` in the place of `call`, under its name.

    The name is the one by which the function is reached, not the internal one that PyTorch's builtins carry
    (``_VariableFunctionsClass.rand``): pickle finds a Python function by it.
    """
    functools.update_wrapper(wrapper, getattr(call.owner, call.name))
    of_class = inspect.isclass(call.owner)
    wrapper.__module__ = call.owner.__module__ if of_class else call.owner.__name__
    wrapper.__qualname__ = f"{call.owner.__qualname__}.{call.name}" if of_class else call.name
    attributes.set(call.owner, call.name, wrapper)


class RandomRecorder:
    """Write a row for every watched call into one csv file.

    Args:
        folder: Where the file goes; made if needed, refused if it is a symbolic link.
        rank: Gives the rank of this process, or None as long as it is not known. Asked on each call until it
            answers; the file is then renamed from ``random_proc<PID>_*`` to ``random_rank<R>_*``.

    Raises:
        FileCheckException: `folder` is a link or not a folder, or the file cannot be made.
    """

    def __init__(self, folder: str, rank: Callable[[], int | None]) -> None:
        self.folder = os.path.abspath(folder)
        self._rank = rank
        self._lines: dict[tuple[CodeType, int], str] = {}
        self._attributes = Attributes()
        self._descriptor: int | None = None
        try:
            make_folder(self.folder)
        except FileCheckException as problem:
            raise FileCheckException(f'output_path is "{folder}": {problem}') from None
        self.path = self._open(rank())
        log.info(f"random_save writes each random call, with its line of code, to {self.path}.")

    def watch(self, calls: Iterable[RandomCall]) -> None:
        """Replace each of `calls` by a function that records and then does the same."""
        for call in calls:
            original = getattr(call.owner, call.name)
            wrapper = _recording(original, self.record, f"{call.library}.{call.name}", call)
            replace_call(self._attributes, call, wrapper)

    def record(self, api: str) -> None:
        """Write the row of one call of `api`; whatever goes wrong here stays here."""
        if self._descriptor is None:
            return
        try:
            if os.getpid() != self._pid:
                self._leave_parent()
            with self._lock:
                if self._rank_unknown:
                    self._take_rank()
                number = self._counts.get(api, 0)
                self._counts[api] = number + 1
                self._write(f'{api}.{number},"{self._stack(sys._getframe(3))}"\r\n')
        except Exception as problem:
            # The numbers the training draws matter more than the list of them.
            self._descriptor = None
            log.warning(f"random_save stops recording into {self.path}: {problem!r}.", once="random-save-failed")

    def _open(self, rank: int | None) -> str:
        # Reentrant: a signal handler or finalizer that draws numbers may run in the middle of `record`.
        self._lock = threading.RLock()
        self._counts: dict[str, int] = {}
        self._pid = os.getpid()
        self._rank_unknown = rank is None
        owner = f"proc{self._pid}" if rank is None else f"rank{rank}"
        # O_EXCL never follows a link and never continues a file that another run has written.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        for name in _file_names(owner):
            path = os.path.join(self.folder, name)
            try:
                self._descriptor = os.open(path, flags, FILE_MODE)
            except FileExistsError:
                continue
            except OSError as problem:
                raise FileCheckException(
                    f'output_path is "{self.folder}"; {name} cannot be made there ({problem.strerror}). '
                    "Give a folder you may write to."
                ) from None
            self._write("\ufeffapi_name,stack\r\n")
            return path
        raise FileCheckException(
            f'output_path is "{self.folder}"; all file names for {owner} are taken there. Give another folder.'
        )

    def _leave_parent(self) -> None:
        # A forked child (a data loader's worker) counts for itself. It keeps its process id in the name, as it
        # believes to have the rank of its parent, whose file must not be replaced.
        inherited, self._descriptor = self._descriptor, None
        if inherited is not None:
            os.close(inherited)
        self.path = self._open(None)
        self._rank_unknown = False

    def _take_rank(self) -> None:
        rank = self._rank()
        if rank is None:
            return
        self._rank_unknown = False
        for name in _file_names(f"rank{rank}"):
            path = os.path.join(self.folder, name)
            if os.path.lexists(path):
                continue
            try:
                os.rename(self.path, path)
            except OSError as problem:
                log.warning(f"random_save: {self.path} cannot be renamed to {name} ({problem.strerror}) and is kept.")
                return
            log.info(f"random_save: this process is rank {rank}; {self.path} is now {path}.")
            self.path = path
            return

    def _stack(self, frame: FrameType | None) -> str:
        """The text of the frames from `frame` outwards; made once per line of code, then looked up."""
        lines = self._lines
        parts = []
        while frame is not None:
            code = frame.f_code
            key = (code, frame.f_lineno)
            text = lines.get(key)
            if text is None:
                text = lines[key] = _row_text(code, frame.f_lineno)
            parts.append(text)
            frame = frame.f_back
        return "".join(parts)

    def _write(self, row: str) -> None:
        rest = row.encode("utf-8", "backslashreplace")
        descriptor = self._descriptor
        while rest and descriptor is not None:
            rest = rest[os.write(descriptor, rest) :]


def _recording(
    original: Callable[..., Any], record: Callable[[str], None], api: str, about: RandomCall
) -> Callable[..., Any]:
    compiling, draws = about.compiling, about.draws
    if draws is not None:
        return _recording_some(original, record, api, compiling, draws)

    # A compiler can read a function that refers to nothing but functions and text.
    def note() -> None:
        record(api)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not compiling():
            note()
        return original(*args, **kwargs)

    return call


def _recording_some(
    original: Callable[..., Any],
    record: Callable[[str], None],
    api: str,
    compiling: Callable[[], bool],
    draws: Callable[..., bool],
) -> Callable[..., Any]:
    """Record the calls that draw, as the arguments say."""

    def note(*args: Any, **kwargs: Any) -> None:
        try:
            is_drawing = draws(*args, **kwargs)
        except Exception:
            return  # the function refuses these arguments as well, and says so itself
        if is_drawing:
            record(api)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not compiling():
            note(*args, **kwargs)
        return original(*args, **kwargs)

    # PyTorch's script compiler asks a function for what it shall read in its place.
    vars(call)["__prepare_scriptable__"] = lambda: original
    return call


def _row_text(code: CodeType, line: int | None) -> str:
    """One frame, quotes doubled for csv; empty for our own frames and where no source is to be had."""
    if line is None or code.co_filename.startswith(OWN_FILES):
        return ""
    text = frame_text((code.co_filename, line, code.co_name))
    return text.replace('"', '""') + "\n" if text else ""


def _file_names(owner: str) -> Iterable[str]:
    """Names for the file of `owner`, from the present second on."""
    now = clock.now()
    for seconds in range(_NAME_TRIES):
        yield f"random_{owner}_{clock.stamp('%Y%m%d%H%M%S', now + seconds)}.csv"


_recorder: RandomRecorder | None = None


def start_recording(output_path: str, calls: Iterable[RandomCall], rank: Callable[[], int | None]) -> RandomRecorder:
    """Record `calls` from now on; a second start in one process goes on with the first file.

    Args:
        output_path: Folder of the csv file.
        calls: What to watch besides Python's and numpy's functions.
        rank: The rank of this process, or None while it has none.
    """
    global _recorder
    if not isinstance(output_path, str):
        raise MsprobeException(f"output_path is {output_path!r}; it must be a str, the folder of the csv file.")
    if _recorder is None:
        _recorder = RandomRecorder(output_path, rank)
        _recorder.watch([*calls, *numpy_calls(), *python_calls()])
    elif os.path.abspath(output_path) == _recorder.folder:
        log.info(f"random_save is already active and writes to {_recorder.path}.")
    else:
        log.warning(
            f'random_save is already active and writes to {_recorder.path}; output_path "{output_path}" is not used. '
            "Call it once per process."
        )
    return _recorder


# One for each way to be called, as the code must take the arguments of the function. They have a source of their own
# and are not made on the way: MindSpore's compiler reads the source of what it finds in the place of the original.


# --- no dropout


def _plain(input: Any, p: float = 0.5, training: bool = True) -> Any:
    return input


def _inplace(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return input


def _seeded(input: Any, p: float = 0.5, training: bool = True, seed: Any = None) -> Any:
    return input


def _inner(x: Any, p: float, training: bool) -> Any:
    return x


def _construct(self: Any, input: Any) -> Any:
    return input


# If somebody has wrapped the function: a wrapper's code knows things that ours does not, so it is not exchanged.


def _any_function(input: Any, *_: Any, **__: Any) -> Any:
    return input


def _any_method(self: Any, input: Any, *_: Any, **__: Any) -> Any:
    return input


def _shape(code: CodeType) -> tuple[Any, ...]:
    variadic = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return code.co_varnames[: code.co_argcount], code.co_kwonlyargcount, variadic, code.co_freevars


_CODES = {_shape(one.__code__): one.__code__ for one in (_plain, _inplace, _seeded, _inner, _construct)}
_OURS = (*_CODES.values(), _any_function.__code__, _any_method.__code__)


def return_input(owner: Any, name: str) -> Handle:
    """Make the function `name` of `owner` return its first argument until the handle is removed."""
    function = getattr(owner, name)
    code = getattr(function, "__code__", None)
    attributes = Attributes()
    if code not in _OURS:
        fitting = _CODES.get(_shape(function.__code__)) if isinstance(function, FunctionType) else None
        if fitting is not None:
            return _ExchangedCode(function, fitting)
        attributes.set(owner, name, _any_method if inspect.isclass(owner) else _any_function)
    return attributes


class _ExchangedCode:
    """A function that runs `code` until `remove`."""

    def __init__(self, function: FunctionType, code: CodeType) -> None:
        self._function = function
        self._before = function.__code__
        self._code = code
        function.__code__ = code

    def remove(self) -> None:
        if self._function.__code__ is self._code:
            self._function.__code__ = self._before


# --- repeat draws


class DrawSource(NamedTuple):
    """A generator, by the functions that draw from it and those that read and set its state."""

    calls: Sequence[RandomCall]
    get_state: Callable[[], Any]
    set_state: Callable[[Any], Any]


class _FixedCalls:
    def __init__(self, sources: Sequence[DrawSource]) -> None:
        self._active = True
        self._sources = sources
        self._states: list[Any] = []
        self.take_states()
        self._attributes = Attributes()
        for index, source in enumerate(sources):
            for call in source.calls:
                repeating = self._repeating(getattr(call.owner, call.name), source.set_state, index)
                replace_call(self._attributes, call, repeating)

    def take_states(self) -> None:
        self._states = [source.get_state() for source in self._sources]

    def remove(self) -> None:
        """Put the functions back."""
        global _fixed
        # Where another tool has wrapped our function it stays in the chain and only calls through.
        self._active = False
        self._attributes.remove()
        if _fixed is self:
            _fixed = None

    def _repeating(
        self, original: Callable[..., Any], set_state: Callable[[Any], Any], index: int
    ) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._active and kwargs.get("generator") is None:
                set_state(self._states[index])
            return original(*args, **kwargs)

        return call


_fixed: _FixedCalls | None = None


def fix_calls(sources: Callable[[], Sequence[DrawSource]]) -> Handle:
    """Make every later random call of numpy, Python and `sources` draw as if it were the first one from now on.

    A second call takes the states of that moment. A call with a ``generator`` of its own is not touched.
    """
    global _fixed
    if _fixed is None:
        numpy = DrawSource(numpy_calls(), np.random.get_state, np.random.set_state)
        python = DrawSource(python_calls(), random.getstate, random.setstate)
        _fixed = _FixedCalls([*sources(), numpy, python])
    else:
        _fixed.take_states()
    return _fixed


def take_states() -> None:
    """Save the present states, if calls are fixed; later calls start from them."""
    if _fixed is not None:
        _fixed.take_states()
