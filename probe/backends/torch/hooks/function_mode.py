"""A torch function mode that lies below those of the user, and is taken out again without a trace.

It reports calls of built-in functions, also of those that were bound earlier by ``from torch import relu``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from types import CodeType, GetSetDescriptorType, MethodWrapperType, ModuleType
from typing import Any, Callable

import torch
from torch.overrides import TorchFunctionMode

from probe.backends.shared.patching import Attributes
from probe.backends.torch import internals
from probe.backends.torch.guards import compiling, guarded, passed_over, skipped
from probe.backends.torch.originals import BUILT_IN, HANDING_OVER, looked_up_as
from probe.common.callstack import hide_own_frames
from probe.common.interfaces import Logs

try:
    from probe.backends.torch.hooks._function_calls import PassedBy
except ImportError:  # not built here

    class PassedBy:  # type: ignore[no-redef]
        """The compiled one gives torch `passing` in the place of the mode's own ``__torch_function__``."""

        passing: Any = None


_pop = internals.pop_function_mode
_push = internals.push_function_mode
_depth = internals.count_function_modes
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_NONE: Mapping[str, Any] = {}
_NO_MODE = object()


class FunctionMode(PassedBy, TorchFunctionMode):
    """A mode that is put in place on each thread that installs it.

    Args:
        callback: Called in place of each function that passes the mode, with the function, the types of its tensors,
            args and kwargs; it calls the function itself. The mode is out of the way until it returns.
        logs: Told of a failure of the mode itself.
    """

    def __init__(self, callback: Callable[..., Any], logs: Logs) -> None:
        super().__init__()
        self._callback = callback
        self._logs = logs
        self._questions = _Questions(self)
        self._threads: set[threading.Thread] = set()
        """Threads on which `install` put the mode, and no `remove` has taken it off yet."""

    @property
    def on_some_thread(self) -> bool:
        """True if the mode is still in place on some thread."""
        return bool(self._threads)

    def install(self) -> None:
        """Put the mode in place on this thread."""
        if not internals.HAS_FUNCTION_MODES:
            return
        self.remove()
        if not self._threads:
            self._questions.install()
        self._threads.add(threading.current_thread())
        _insert_lowest(self)

    def remove(self) -> None:
        """Take the mode off this thread; those of another one are out of reach.

        Until ours is taken off there too nobody may notice it, so the questions whether there are modes stay replaced.
        """
        if not internals.HAS_FUNCTION_MODES:
            return
        _take_out(self)
        here = threading.current_thread()
        self._threads = {thread for thread in self._threads if thread is not here and thread.is_alive()}
        if not self._threads:
            self._questions.remove()

    @passed_over
    def call_without(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function whose inner calls are of no interest, without the mode in their way."""
        depth = _depth()
        if not depth:
            return function(*args, **kwargs)
        top = _pop()
        if top is not self:
            # The user's mode is above ours and stays in charge; ours lets inner calls pass.
            _push(top)
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            _push(top)

    @passed_over
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = type(func)
        # The first are the getter and the setter of an attribute, which programs use more often than functions.
        if (kind is MethodWrapperType and type(func.__self__) is GetSetDescriptorType) or compiling():
            return func(*args, **(kwargs or _NONE))
        try:
            if kind in BUILT_IN:
                return self._callback(func, types, args, kwargs or _NONE)
            return self._not_built_in(func, types, args, kwargs or _NONE, sys._getframe(1).f_code)
        except BaseException as error:
            hide_own_frames(error)
            raise

    @passed_over
    def _not_built_in(self, func: Any, types: Any, args: Any, kwargs: Any, caller: CodeType) -> Any:
        if caller is HANDING_OVER:
            return self._hand_on(func, types, args, kwargs)
        # Looking it up compares and asks objects of the user's, which may raise anything.
        called = guarded(self._logs, "__torch_function__", looked_up_as, func)
        if called is None:
            return func(*args, **kwargs)
        if type(called) is MethodWrapperType:
            return called(*args, **kwargs)
        return self._callback(called, types, args, kwargs)

    @passed_over
    def _hand_on(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Give a Python function that handed itself over for the sake of others to whom it would have gone to."""
        if not _depth():
            # Whoever handed it over goes on to the tensors of other classes when the mode does not know it.
            return func(*args, **kwargs) if _PLAIN.issuperset(types) else NotImplemented
        below = _pop()
        try:
            _push(self)
            return below.__torch_function__(func, types, args, kwargs)
        finally:
            _take_out(self)
            _push(below)


class _Questions:
    """Torch's Python functions ask whether to hand themselves to a mode; this answers as if ours was not there.

    A function that hands itself over is looked up by its name, and called again by whoever took it: a wrapper that the
    user has put in its place would run twice. It also takes another path, with all defaults filled in, and modules such
    as TransformerEncoder take a slower one, with other last bits.
    """

    def __init__(self, mode: FunctionMode) -> None:
        self._answers = {name: _Question(mode, getattr(torch.overrides, name)) for name in _QUESTIONS}
        self._attributes = Attributes()
        self._places: list[tuple[ModuleType, str]] = []
        self._known = 0

    def install(self) -> None:
        if self._known != len(sys.modules):
            self._known = len(sys.modules)
            self._places = list(_asking(self._answers))
        for module, name in self._places:
            self._attributes.set(module, name, self._answers[name])

    def remove(self) -> None:
        self._attributes.remove()


_QUESTIONS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def _asking(answers: Mapping[str, _Question]) -> Iterator[tuple[ModuleType, str]]:
    """The modules that ask a question of torch's, each with the name of the question."""
    for module in list(sys.modules.values()):
        # Libraries of cffi, such as that of the package cryptography, say that they are modules and are none.
        if issubclass(type(module), ModuleType):
            # A module that is imported when it is first used must not be: so it is not asked for its dictionary.
            names = ModuleType.__getattribute__(module, "__dict__")
            yield from ((module, name) for name in _QUESTIONS if names.get(name) == answers[name])


class _Question:
    """Answers a question as if our mode were not there.

    It equals the function that it stands for: torch's compiler finds what it knows of this function in a table that it
    may make while this is in its place.
    """

    def __init__(self, mode: FunctionMode, question: Callable[..., bool]) -> None:
        self._mode = mode
        self._question = question

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._question

    def __hash__(self) -> int:
        return hash(self._question)

    @skipped
    def __call__(self, *args: Any) -> bool:
        if not _depth() or compiling():
            return self._question(*args)
        return bool(self._mode.call_without(self._question, *args))


def _insert_lowest(mode: TorchFunctionMode) -> None:
    """Below the user's modes: a user's ``with`` block that ends takes off whatever is on top.

    But above the one of ``torch.set_default_device``, which torch looks for at the very bottom.
    """
    above: list[Any] = []
    try:
        while _depth():
            above.append(_pop())
        if above and above[-1] is getattr(internals.default_device_mode, "device_context", _NO_MODE):
            _push(above.pop())
        _push(mode)
    finally:
        for other in reversed(above):
            _push(other)


def _take_out(mode: TorchFunctionMode) -> None:
    """However often it is there: an interrupt may have kept it from being taken out."""
    # No comprehension: it is a call, which can fail where this one did not.
    others: list[Any] = []
    try:
        for _ in range(_depth()):
            top = _pop()
            if top is not mode:
                others.append(top)
    finally:
        for other in reversed(others):
            _push(other)
