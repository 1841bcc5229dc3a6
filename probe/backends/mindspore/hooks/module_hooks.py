"""Seeing the forward of cells, and through a `Tracker` their backward.

MSAdapter's modules are seen the same way: what differs between a cell and a torch-shaped module is a `ModuleKind`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable
from weakref import ref

from mindspore import nn
from typing_extensions import TypeAlias

from probe.backends.mindspore.gradient_graph import DIFFERENTIABLE, Tracker
from probe.backends.mindspore.guards import guarded, is_unobserved, wait_for, wait_for_all
from probe.backends.mindspore.hooks.jit import Compilation
from probe.backends.mindspore.internals import HookHandle, calls_hooks, executor, register_hook, remove_hook
from probe.backends.protocol import ModuleHandles
from probe.backends.shared.gradient_graph import ModuleWatch
from probe.backends.shared.models import HooksStayOut, ModuleShape, NamedModules, NotCopied
from probe.backends.shared.patching import Handles, each, remove_all
from probe.common import callstack
from probe.common.containers import by_prefix
from probe.common.dump.frameworks import FRAMEWORKS
from probe.common.interfaces import Handle, Listener, Logs, ModuleName

_recording: Callable[[], bool] = executor.requires_grad
_register_hook = register_hook
_remove_hook = remove_hook


Before: TypeAlias = Callable[[Any, Any, Any], Any]
"""Called with the module, args and kwargs; returns new ones as a pair, or ``None``."""
After: TypeAlias = Callable[[Any, Any, Any, Any], None]
"""Called with the module, args, kwargs and output."""


@dataclass(frozen=True)
class ModuleKind(ModuleShape):
    """The module class of a framework, and its ways.

    Args:
        base: The class of all modules.
        attach: Puts hooks before and after the forward of one module, and their handles into the list, each at once.
    """

    base: type
    attach: Callable[[Any, Before, After, list[Handle]], None]


def attach_to_cell(cell: nn.Cell, before: Before, after: After, handles: list[Handle]) -> None:
    """Ours after the user's pre-hooks and before the user's hooks: what the forward itself got and returned."""
    options = {name: True for name in ("prepend", "always_call") if name in _options()}
    handles.append(
        _registered(cell._forward_pre_hook, cell._forward_pre_hook_with_kwargs, before, cell.register_forward_pre_hook)
    )
    last = _registered(cell._forward_hook, cell._forward_hook_with_kwargs, after, cell.register_forward_hook, **options)
    handles.append(last)
    cell._forward_hook.move_to_end(last.handle_id, last=False)
    if "always_call" in options:
        cell._forward_hook_always_called[last.handle_id] = after


def _registered(
    hooks: dict[int, Any], with_kwargs: dict[int, Any], hook: Any, register: Callable[..., Any], **options: bool
) -> Any:
    handle = register(hook, with_kwargs=True, **options)
    if hook not in hooks.values() and HookHandle is not None:
        # MindSpore refuses hooks for a cell with a bprop of its own, where it runs them all the same.
        handle = HookHandle(hooks, extra_dict=with_kwargs)
        hooks[handle.handle_id] = hook
    # Where MindSpore asks for the key only: what is no other value than the hook is left out of copies with it.
    with_kwargs[handle.handle_id] = hook
    return handle


@functools.cache
def _options() -> frozenset[str]:
    """The options that this MindSpore has for a forward hook."""
    return frozenset(inspect.signature(nn.Cell.register_forward_hook).parameters)


CELLS = ModuleKind(
    root=FRAMEWORKS["mindspore"].module_root,
    base=nn.Cell,
    inside=lambda cell: cell.cells_and_names(),
    parameters=lambda cell: cell._params,
    held=(("_params", "parameter"), ("_buffers", "buffer")),
    layers="mindspore.nn.layer.",
    attach=attach_to_cell,
)

# A call is open for as long as the frame that made it runs; these run only while they call the hooks.
_calls_hooks = calls_hooks
while _calls_hooks is not None:
    callstack.leave_out(_calls_hooks.__code__)
    _calls_hooks = getattr(_calls_hooks, "__wrapped__", None)


class _Open:
    """A module's forward that has begun."""

    __slots__ = ("call", "entered", "error", "module")

    def __init__(self, module: Any) -> None:
        self.module = module
        self.call: Any = None
        self.entered: Any = None
        self.error = sys.exc_info()[1]
        """The exception that was being handled already when it began."""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[_Open] = []


class _Hooks(NotCopied):
    """The hooks around the forward of one module.

    MindSpore takes nothing but functions and methods for a hook before 2.9.
    """

    def __init__(self, module: Any, before: Before, after: After) -> None:
        # A copy of the module, such as a moving average's, shares them and is not the one.
        self._module = ref(module)
        self._before = before
        self._after = after

    def before(self, module: Any, args: Any, kwargs: Any) -> Any:
        if self._module() is not module:
            return None
        try:
            return self._before(module, args, kwargs)
        except BaseException as error:
            callstack.hide_own_frames(error)
            raise

    def after(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if self._module() is not module:
            return
        try:
            self._after(module, args, kwargs, output)
        except BaseException as error:
            callstack.hide_own_frames(error)
            raise


class _ParameterHooks:
    """The parameters that are watched, each once however often its module is attached."""

    def __init__(self) -> None:
        self._watched: dict[tuple[str, str, int], int] = {}

    def watch(self, name: ModuleName, attribute: str, parameter: Any, callback: Callable[..., None]) -> None:
        # By identity too: module_dump can give one name to several modules.
        key = (name.base, attribute, id(parameter))
        if key not in self._watched:
            # The method of the base class: mindtorch puts one that fails in its place.
            self._watched[key] = _register_hook(parameter, functools.partial(callback, name, attribute))

    def remove(self) -> None:
        watched, self._watched = self._watched, {}
        for number in watched.values():
            _remove_hook(number)


class _ForwardHooks:
    """Hooks of several modules, which go away for as long as the compiler works."""

    def __init__(self, attach: Callable[[list[Handle]], None], compilation: Compilation) -> None:
        self._attach = attach
        self._handles: list[Handle] = []
        self._compilation = compilation
        self._attached = True
        try:
            compilation.add(self)
            self.resume()
        except BaseException:
            self.remove()
            raise

    def suspend(self) -> None:
        remove_all(self._handles)

    def resume(self) -> None:
        if self._attached:
            self._attach(self._handles)

    def remove(self) -> None:
        self._attached = False
        each((self.suspend, functools.partial(self._compilation.discard, self)))


class ModuleHooks:
    """Reports the calls of modules to a listener until `remove`."""

    def __init__(self, listener: Listener, tracker: Tracker, compilation: Compilation, kind: ModuleKind) -> None:
        self._listener = listener
        self._tracker = tracker
        self._compilation = compilation
        self._kind = kind
        self._thread = _Thread()
        self._parameters = _ParameterHooks()
        self._names = NamedModules(kind)
        self._without_parameters: set[str] = set()
        """Modules of which the gradients of parameters are not wanted."""

    def attach(self, models: Any) -> ModuleHandles:
        """Watch the modules of `models`, and from their first call on the gradients of their parameters."""
        modules, kept = self._names.give(by_prefix(models))
        if not kept:
            self._parameters.remove()
        return self._attach(modules)

    def attach_one(self, module: Any, name: ModuleName, parameters: bool = True) -> ModuleHandles:
        if not parameters:
            self._without_parameters.add(name.base)
        return self._attach([(name, module)])

    def _attach(self, modules: Sequence[tuple[ModuleName, Any]]) -> ModuleHandles:
        named = [(name, ref(module)) for name, module in modules]

        def attach(handles: list[Handle]) -> None:
            for name, weak in named:
                if (module := weak()) is not None:
                    self._attach_forward(name, module, handles)

        forward = _ForwardHooks(attach, self._compilation)
        try:
            return ModuleHandles(Handles([HooksStayOut(), forward, self]), self._parameters)
        except BaseException:
            forward.remove()
            raise

    def remove(self) -> None:
        """Forget calls whose end was not seen; their hooks are gone."""
        self._thread = _Thread()

    def _attach_forward(self, name: ModuleName, module: Any, handles: list[Handle]) -> None:
        hooks = _Hooks(module, functools.partial(self.before, name), functools.partial(self.after, name))
        self._kind.attach(module, hooks.before, hooks.after, handles)

    def before(self, name: ModuleName, module: Any, args: Any, kwargs: Any) -> Any:
        if is_unobserved():
            return None
        wait_for_all(self._listener, name, args)
        wait_for_all(self._listener, name, kwargs)
        return guarded(self._listener, name, self._before, name, module, args, kwargs)

    def _before(self, name: ModuleName, module: Any, args: Any, kwargs: Any) -> Any:
        listener = self._listener
        # Noted in any case: `after` must not take an earlier call for it that raised and was never closed.
        opened = _Open(module)
        self._thread.open.append(opened)
        call = opened.call = listener.enter_module(name, args, kwargs)
        if call is None:
            return None
        if name.base not in self._without_parameters:
            guarded(listener, name, self._watch_parameters, name, module)
        given = args, kwargs
        entered = guarded(listener, call, self._tracker.enter, ModuleWatch, call, given)
        opened.entered, arguments = entered or (None, given)
        return None if arguments is given else arguments

    def after(self, name: ModuleName, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        listener, error = self._listener, sys.exc_info()[1]
        opened = guarded(listener, name, self._close, module)
        if opened is None or opened.call is None:
            return
        if error is not None and error is not opened.error:
            guarded(listener, opened.call, self._failed, opened)
            return
        wait_for_all(listener, opened.call, output)
        guarded(listener, opened.call, self._leave, opened, output)

    def _leave(self, opened: _Open, output: Any) -> None:
        call = opened.call
        if self._listener.leave_module(call, output, self._parameters_of(opened.module)):
            self._tracker.leave(call, opened.entered, output)

    def _failed(self, opened: _Open) -> None:
        listener, call = self._listener, opened.call
        guarded(listener, call, listener.fail_module, call, self._parameters_of(opened.module))

    def _parameters_of(self, module: Any) -> dict[str, Any]:
        return {name: value for name, value in self._kind.parameters(module).items() if value is not None}

    def _close(self, module: Any) -> _Open | None:
        """The innermost open call of `module`; what was opened inside it and not closed has raised."""
        opened = self._thread.open
        for index in range(len(opened) - 1, -1, -1):
            if opened[index].module is module:
                found = opened[index]
                for inner in reversed(opened[index + 1 :]):
                    if inner.call is not None:
                        self._failed(inner)
                del opened[index:]
                return found
        return None

    def _watch_parameters(self, name: ModuleName, module: Any) -> None:
        if not _recording():
            return  # a hook takes effect only where a gradient is recorded
        for attribute, parameter in self._kind.parameters(module).items():
            if parameter is not None and parameter.requires_grad:
                self._parameters.watch(name, attribute, parameter, self._on_parameter)

    def _on_parameter(self, name: ModuleName, attribute: str, gradient: Any) -> None:
        # The engine has a gradient of a parameter before those of other arguments of the same primitive; by contract
        # they follow the records of the module's primitives and precede that of the module.
        guarded(self._listener, name, self._report_later, name, attribute, gradient)

    def _report_later(self, name: ModuleName, attribute: str, gradient: Any) -> None:
        listener, owed = self._listener, self._tracker.in_collected_pass()
        report = listener.parameter_gradient
        self._tracker.defer(lambda: guarded(listener, name, report, name, attribute, gradient, owed))


def attach_passes(kind: ModuleKind, models: Any, begin: Callable[[], None], end: Callable[[], None]) -> Handle:
    """Call `begin` and `end` around every forward of the (first) model itself, one that raises included."""
    model = next(iter(by_prefix(models).values()))

    hooks = _Hooks(model, lambda *_: begin(), lambda *_: end())
    handles: list[Handle] = [HooksStayOut()]
    try:
        kind.attach(model, hooks.before, hooks.after, handles)
        return Handles(handles)
    except BaseException:
        remove_all(handles)
        raise


class _TensorHook:
    """A hook on a tensor, by the number the framework gave it."""

    def __init__(self, number: int) -> None:
        self._number: int | None = number

    def remove(self) -> None:
        number, self._number = self._number, None
        if number is not None:
            _remove_hook(number)


def attach_gradient(tensor: Any, callback: Callable[[Any], None], logs: Logs, about: str) -> Handle | None:
    """Call `callback` with every gradient of `tensor`; ``None`` where none is recorded or its type has none."""

    def callback_guarded(gradient: Any) -> None:
        wait_for(gradient)
        guarded(logs, about, callback, gradient)

    number = hook_gradient(tensor, callback_guarded)
    return None if number is None else _TensorHook(number)


def hook_gradient(tensor: Any, hook: Callable[[Any], None]) -> int | None:
    """The number of a new hook on `tensor`; ``None`` where no gradient is recorded or its type has none."""
    if not _recording() or tensor.dtype not in DIFFERENTIABLE:
        return None
    try:
        return _register_hook(tensor, hook)
    except RuntimeError as error:
        # The result of stop_gradient; before 2.10 nothing else tells.
        if "requires grad is false" in str(error):
            return None
        raise
