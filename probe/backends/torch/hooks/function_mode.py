"""A torch function mode that lies below those of the user, and is taken out again without a trace.

It reports calls of built-in functions, also of those that were bound earlier by ``from torch import relu``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import FunctionType, MethodWrapperType
from typing import Any, Callable

import torch
from torch.overrides import TorchFunctionMode

from probe.backends.shared.patching import Attributes
from probe.backends.torch import internals
from probe.backends.torch.guards import compiling, guarded, passed_over
from probe.common.callstack import hide_own_frames
from probe.common.interfaces import Listener

_pop = internals.pop_function_mode
_push = internals.push_function_mode
_depth = internals.count_function_modes
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_NONE: Mapping[str, Any] = {}
_NO_MODE = object()


class FunctionMode:
    """The mode on each thread that installs it.

    Args:
        callback: Called in place of each function that passes the mode, with the function, the types of its tensors,
            args and kwargs; it calls the function itself. The mode is out of the way until it returns.
    """

    def __init__(self, listener: Listener, callback: Callable[..., Any]) -> None:
        self._listener = listener
        self._mode = _Mode(callback)
        self._question = Attributes()
        self._threads: set[threading.Thread] = set()
        """Threads on which `install` put the mode, and no `remove` has taken it off yet."""
        self._bodies: dict[Any, Callable[..., Any]] = {}
        self._local = _Running()

    @property
    def on_some_thread(self) -> bool:
        """Whether the mode is still in place on some thread."""
        return bool(self._threads)

    def install(self) -> None:
        """Put the mode in place on this thread."""
        if not internals.HAS_FUNCTION_MODES:
            return
        self.remove()
        if not self._threads:
            question = torch.overrides.has_torch_function
            self._question.set(torch.overrides, "has_torch_function", _Question(self._mode, question))
        self._threads.add(threading.current_thread())
        _insert_lowest(self._mode)

    def remove(self) -> None:
        """Take the mode off this thread; those of another one are out of reach.

        Until ours is taken off there too nobody may notice it, so the question whether there are modes stays replaced.
        """
        if not internals.HAS_FUNCTION_MODES:
            return
        _take_out(self._mode)
        here = threading.current_thread()
        self._threads = {thread for thread in self._threads if thread is not here and thread.is_alive()}
        if not self._threads:
            self._question.remove()

    @passed_over
    def call_without(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function whose inner calls are of no interest, without the mode in their way."""
        depth = _depth()
        if not depth:
            return function(*args, **kwargs)
        top = _pop()
        if top is not self._mode:
            # The user's mode is above ours and stays in charge; ours lets inner calls pass.
            _push(top)
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            _push(top)

    @passed_over
    def call_within(self, function: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function that passed the mode and is not recorded itself, but may call others that are.

        A Python function of torch first asks whether a mode is active and hands itself over; called again it would do
        so for ever, and called without the mode its inner calls would go unseen. So its body runs with a view of its
        globals in which that question is answered with no.
        """
        if type(function) is not FunctionType or not _PLAIN.issuperset(types):
            return function(*args, **kwargs)
        running = self._local.functions
        if function in running:
            return function(*args, **kwargs)
        body = self._bodies.get(function)
        if body is None:
            body = guarded(self._listener, function.__name__, _without_question, function) or function
            self._bodies[function] = body
        try:
            running.add(function)
            _push(self._mode)
            return body(*args, **kwargs)
        finally:
            _take_out(self._mode)
            running.discard(function)


class _Mode(TorchFunctionMode):
    def __init__(self, callback: Callable[..., Any]) -> None:
        super().__init__()
        self._callback = callback

    @passed_over
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # The first are the getter and the setter of an attribute, which programs use more often than functions.
        if type(func) is MethodWrapperType or compiling():
            return func(*args, **(kwargs or _NONE))
        try:
            return self._callback(func, types, args, kwargs or _NONE)
        except BaseException as error:
            hide_own_frames(error)
            raise


class _Running(threading.local):
    def __init__(self) -> None:
        self.functions: set[Any] = set()


class _View(dict[str, Any]):
    """A function's globals, as they are at each look-up, with some names answered differently."""

    def __init__(self, under: dict[str, Any], over: dict[str, Any]) -> None:
        super().__init__(over)
        self._under = under

    def __missing__(self, key: str) -> Any:
        return self._under[key]


def _no(*_: Any) -> bool:
    return False


def _without_question(function: FunctionType) -> Callable[..., Any]:
    inner: Any = function
    if function.__code__.co_name == "wrapped" and hasattr(function, "__wrapped__"):
        inner = function.__wrapped__  # a decorator of torch asks the question for the function
    if type(inner) is not FunctionType:
        return function
    questions = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    view = _View(inner.__globals__, dict.fromkeys(questions, _no))
    body = FunctionType(inner.__code__, view, inner.__name__, inner.__defaults__, inner.__closure__)
    body.__kwdefaults__ = inner.__kwdefaults__
    return body


class _Question:
    """``torch.overrides.has_torch_function`` as if our mode were not there.

    Modules such as TransformerEncoder take a faster path, with other last bits, when no mode is active.

    It equals the function that it stands for: torch's compiler finds what it knows of this function in a table that it
    may make while this is in its place.
    """

    def __init__(self, mode: TorchFunctionMode, question: Callable[..., bool]) -> None:
        self._mode = mode
        self._question = question

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._question

    def __hash__(self) -> int:
        return hash(self._question)

    def __call__(self, *args: Any) -> bool:
        question = self._question
        if compiling() or not _depth():
            return question(*args)
        top = _pop()
        try:
            if top is self._mode:
                return question(*args)
        finally:
            _push(top)
        return question(*args)


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
