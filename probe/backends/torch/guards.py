"""Running the tool's own tensor operations so that nothing of the user's notices.

Own operations must not be seen by function modes (ours or the user's) nor by dispatch modes such as selective
checkpointing, must record no gradient graph, must not be cast by autocast, and are no part of what torch.jit traces or
torch.compile compiles.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Iterator
from typing import Any, Callable, TypeVar

import torch

from probe.backends.torch import internals
from probe.common.interfaces import Logs

_Function = TypeVar("_Function", bound=Callable[..., Any])


_OBSERVERS = (
    "Tracer", "Python", "PythonTLSSnapshot",
    "AutocastCPU", "AutocastCUDA", "AutocastXPU", "AutocastMPS", "AutocastPrivateUse1",
)  # fmt: skip
_observers = internals.key_set(*_OBSERVERS)
_observers_and_autograd = internals.key_set(
    *_OBSERVERS, "AutogradCPU", "AutogradCUDA", "AutogradXPU", "AutogradMPS", "AutogradMeta", "AutogradPrivateUse1",
    "AutogradOther", "AutogradFunctionality", "ADInplaceOrView",
)  # fmt: skip
_observers_but_dispatch_modes = internals.key_set(*(name for name in _OBSERVERS if not name.startswith("Python")))
_no_function_modes = internals.without_function_modes
_without_keys = internals.without_keys
_force_keys = internals.force_keys
_included_keys = internals.included_keys
_number_of_keys = internals.number_of_keys
_set_grad_enabled = internals.set_grad_enabled
_get_tracing_state = internals.tracing_state
_set_tracing_state = internals.set_tracing_state
_is_compiling = internals.is_compiling
_tracing_context = internals.tracing_context


def skipped(function: _Function) -> _Function:
    """Keep torch.compile away from a function of the tool and from all it calls.

    As ``torch.compiler.disable`` does, which would import the compiler for everyone.
    """
    frames = internals.compiler_frames
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
        return function
    return _without_compiler(function) if hasattr(frames, "skip_code") else function


def _without_compiler(function: Any) -> Any:
    """`function` with torch.compile off while it runs, in torch 2.5, where code has no strategies."""
    set_compiler = internals.compiler_frames.set_eval_frame

    @passed_over
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = set_compiler(None)
        try:
            return function(*args, **kwargs)
        finally:
            set_compiler(before)

    return call


def passed_over(function: _Function) -> _Function:
    """Keep torch.compile away from a function of the tool, but not from what it calls."""
    frames = internals.compiler_frames
    if hasattr(frames, "set_code_exec_strategy"):
        actions = frames._FrameAction
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(actions.SKIP, actions.DEFAULT))
    elif hasattr(frames, "skip_code"):
        # The same in torch 2.5, where strategies are not known.
        frames.skip_code(function.__code__)
    return function


def compiling() -> bool:
    """True if torch.compile is at work: reading the caller, which takes this for true and leaves out what follows, or
    running operations on fake tensors to find out their shapes.
    """
    if _is_compiling():
        return True
    return _fake_mode(_FAKE) is not None and _tracing_context() is not None


_fake_mode = internals.dispatch_mode
_FAKE = internals.FAKE_MODE


@skipped
def unobserved(function: Callable[..., Any], *args: Any) -> Any:
    """Call `function(*args)` so that nothing of the user's sees it."""
    tracing = _get_tracing_state()
    if tracing is not None:
        _set_tracing_state(None)
    try:
        with _no_function_modes(), _without_keys(_observers_and_autograd):
            return function(*args)
    finally:
        if tracing is not None:
            _set_tracing_state(tracing)


_transforms = internals.transforms
_of_transforms = internals.key_set("FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode")


def beneath_transforms(function: Callable[..., Any], *args: Any) -> Any:
    """Call `function(*args)` so that what it makes of an ordinary tensor is one.

    Inside a function transform (vmap, grad) every result is a wrapper, also that of an operation on a tensor which the
    transform knows nothing of.
    """
    if _transforms() is None:
        return function(*args)
    with _without_keys(_of_transforms):
        return function(*args)


_idle: deque[Any] = deque()
"""Key guards that are not in use: to make one takes as long as to use it."""
_idle_with_kernels: dict[int | None, deque[Any]] = {}
"""Key guards of `with_autograd_kernels` that are not in use, by the keys that a guard includes."""


@skipped
def guarded(listener: Logs, about: Any, function: Callable[..., Any], *args: Any) -> Any:
    """Call `function(*args)` unobserved, and log a failure: an error of the tool must not reach the user's program."""
    try:
        if _get_tracing_state() is not None:
            return unobserved(function, *args)
        # `unobserved`, written out: this runs several times for every record.
        try:
            guard = _idle.pop()
        except IndexError:
            guard = _without_keys(_observers_and_autograd)
        with _no_function_modes(), guard:
            result = function(*args)
        _idle.append(guard)
        return result
    except Exception as error:
        listener.failed(about, error)
        return None


@contextlib.contextmanager
def with_dispatch_modes() -> Iterator[None]:
    """Inside `unobserved`: where a dispatch mode of the tool is to see operations."""
    with _force_keys(_included_keys(), _observers_but_dispatch_modes), torch.no_grad():
        yield


class with_autograd_kernels:
    """Inside `unobserved`: for operations, those of sparse tensors say, that do not work without autograd's kernels.

    A class, and its guards are used again: around each view that a recorded call returns, a generator and a guard made
    anew took 16 of 24 us.
    """

    __slots__ = ("_included", "_keys", "_recorded")

    def __enter__(self) -> None:
        included = _included_keys()
        self._included = _number_of_keys(included)
        try:
            self._keys = _idle_with_kernels[self._included].pop()
        except (KeyError, IndexError):
            self._keys = _force_keys(included, _observers)
        self._keys.__enter__()
        self._recorded = torch.is_grad_enabled()
        _set_grad_enabled(False)

    def __exit__(self, *error: object) -> None:
        _set_grad_enabled(self._recorded)
        self._keys.__exit__(*error)
        if self._included is not None:
            _idle_with_kernels.setdefault(self._included, deque()).append(self._keys)


@contextlib.contextmanager
def with_mode(mode: Any) -> Iterator[None]:
    """Inside `alone`: a dispatch mode of the tool sees operations, and no other one does."""
    # To take modes away torch imports sympy, which takes seconds.
    others = internals.count_dispatch_modes() or internals.count_export_modes()
    without_others = internals.without_dispatch_modes() if others else contextlib.nullcontext()
    with _force_keys(_included_keys(), _observers_but_dispatch_modes), without_others, mode:
        yield


_AUTOCAST_KEYS = {
    "cpu": "AutocastCPU", "cuda": "AutocastCUDA", "xpu": "AutocastXPU", "mps": "AutocastMPS",
    "privateuseone": "AutocastPrivateUse1",
}  # fmt: skip
_MODES = tuple(name for name in _OBSERVERS if not name.startswith("Autocast"))
# Outside of every autocast its keys are excluded, so what is left out here is what casts.
_excluded_alone = {
    device: internals.key_set(*_MODES, *(key for kind, key in _AUTOCAST_KEYS.items() if kind != device))
    for device in (None, *_AUTOCAST_KEYS)
}
# A kind that torch has no name of its own for is the one that is registered from outside.
_excluded_outside = _excluded_alone["privateuseone"]
_saved_tensor_hooks = internals.saved_tensor_hooks


@contextlib.contextmanager
def alone(gradients: bool = False, autocast: str | None = None) -> Iterator[None]:
    """Inside, torch calls nothing of the user's, whatever surrounds it.

    Not even modes, function transforms, inference mode, hooks on saved tensors, or `unobserved`.

    Args:
        gradients: True if gradients are recorded.
        autocast: The kind of device whose autocast, where it is on, is left on.
    """
    with _rare_surroundings():
        recorded = torch.is_grad_enabled()
        with _no_function_modes(), _force_keys(_included_keys(), _excluded_alone.get(autocast, _excluded_outside)):
            internals.set_grad_enabled(gradients)
            try:
                yield
            finally:
                internals.set_grad_enabled(recorded)


_nothing_rare = contextlib.nullcontext()


def _rare_surroundings() -> contextlib.AbstractContextManager[Any]:
    """The function that takes away those of the surroundings that are seldom there."""
    tracing = _get_tracing_state()
    inference, hooks = torch.is_inference_mode_enabled(), _saved_tensor_hooks(False) is not None
    transformed = _transforms() is not None
    if tracing is None and not inference and not hooks and not transformed:
        return _nothing_rare
    with contextlib.ExitStack() as stack:
        if transformed:
            stack.enter_context(internals.without_transforms())
        if tracing is not None:
            _set_tracing_state(None)
            stack.callback(_set_tracing_state, tracing)
        if inference:
            stack.enter_context(torch.inference_mode(False))
        if hooks:
            try:
                stack.enter_context(torch.autograd.graph.saved_tensors_hooks(_same, _same))
            except RuntimeError:
                pass  # inside of a transform old releases refuse hooks, and call none
        return stack.pop_all()


def _same(value: Any) -> Any:
    return value
