"""Hooks on modules: they report the forward, and through a `BackwardTracker` the backward."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Callable

import torch

from probe.backends.protocol import ModuleHandles
from probe.backends.shared.backward_tracker import BackwardTracker
from probe.backends.shared.gradient_graph import GradientEdge, ModuleWatch
from probe.backends.shared.models import HooksStayOut, ModuleShape, NamedModules, NotCopied
from probe.backends.shared.patching import Handles, each
from probe.backends.torch import internals
from probe.backends.torch.guards import compiling, guarded, skipped
from probe.backends.torch.hooks.compilers import (
    compiled_by_wrapper,
    compiled_in_place,
    say_what_is_compiled,
    script_guard,
    seen_from_outside,
    something_is_compiled,
    without_hooks,
)
from probe.backends.torch.originals import of_torch
from probe.common import log
from probe.common.containers import by_prefix
from probe.common.dump.frameworks import FRAMEWORKS
from probe.common.interfaces import Handle, Listener, Logs, ModuleName

ROOT = FRAMEWORKS["torch"].module_root
SHAPE = ModuleShape(
    root=ROOT,
    inside=lambda module: module.named_modules(),
    parameters=lambda module: module._parameters,
    layers="torch.nn.modules.",
    held=(("_parameters", "parameter"), ("_buffers", "buffer")),
)
# Here, and not when they are called: a user may have put others in their place.
_register_hook = of_torch(torch.Tensor.register_hook)
_register_before = of_torch(torch.nn.Module.register_forward_pre_hook)
_register_after = of_torch(torch.nn.Module.register_forward_hook)
_register_accumulated = of_torch(torch.Tensor.register_post_accumulate_grad_hook)
_no_function_modes = internals.without_function_modes


_Key = tuple[str, str, int]
"""The names of a module and its parameter, and the parameter's identity: module_dump can give several modules one name.
"""


class _ParameterHook:
    """The hook on one parameter: one object for the garbage collector, as `gradient_graph.NodeHook` is."""

    __slots__ = ("_hooks", "_name", "_parameter_name")

    def __init__(self, hooks: ModuleHooks, name: ModuleName, parameter_name: str) -> None:
        self._hooks = hooks
        self._name = name
        self._parameter_name = parameter_name

    @skipped
    def __call__(self, parameter: torch.Tensor) -> None:
        self._hooks.on_parameter(self._name, self._parameter_name, parameter)


class _WeakParameter(weakref.ref[torch.Tensor]):
    """A weak reference to a parameter with a hook."""

    __slots__ = ("key",)
    key: _Key


class _ParameterHooks:
    """The hooks on parameters, each once however often its module is attached, for as long as the parameter lives."""

    def __init__(self) -> None:
        self.watched: dict[_Key, AccumulatedHook] = {}
        self._known: dict[_Key, AccumulatedHook] = {}
        """The hooks in `watched`, and hooks of earlier steps, put back when their module is called again."""
        self._forget = self._gone

    def watch(self, key: _Key, parameter: torch.Tensor, hooks: ModuleHooks, name: ModuleName) -> None:
        hook = self._known.get(key)
        if hook is None:
            weak = _WeakParameter(parameter, self._forget)
            weak.key = key
            hook = self._known[key] = AccumulatedHook(weak, _ParameterHook(hooks, name, key[1]))
        hook.attach(parameter)
        self.watched[key] = hook

    def _gone(self, weak: Any) -> None:
        # A later parameter can have the same identity.
        self.watched.pop(weak.key, None)
        self._known.pop(weak.key, None)

    def remove(self) -> None:
        each([functools.partial(self._remove, key) for key in reversed(list(self.watched))])

    def _remove(self, key: _Key) -> None:
        hook = self.watched.get(key)
        if hook is not None:
            hook.remove()
            self.watched.pop(key, None)

    def forget(self) -> None:
        """Remove the hooks and put none of them back: the modules are others."""
        self.remove()
        self._known.clear()


class _Open:
    """The forward of a module that has begun."""

    __slots__ = ("call", "edges", "entered_at", "error", "module")

    def __init__(self, module: Any, call: Any, entered_at: int, edges: list[GradientEdge], error: Any) -> None:
        self.module = module
        self.call = call
        self.entered_at = entered_at
        self.edges = edges
        self.error = error


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[_Open] = []


_nothing = contextlib.nullcontext()
_no_hook = _nothing.__exit__
"""The replacement of a hook in copies by a class of the user's: a function that returns ``None`` for any arguments, and
that can be unpickled without this package."""


class _Hook(NotCopied):
    """A hook on one module. Shallow copies of the module share it and are not reported."""

    def __init__(self, report: Callable[..., None], name: ModuleName, module: Any) -> None:
        self._report = report
        self._name = name
        self.module = weakref.ref(module)
        self.number: Any = None
        """The number under which it was registered first, an integer; ``None`` before."""

    def __deepcopy__(self, memo: Any) -> Any:
        return _no_hook

    def __reduce__(self) -> Any:
        return getattr, (_nothing, _no_hook.__name__)

    def is_for(self, module: Any) -> bool:
        # A replica of DataParallel does the work of the module it was made from.
        return self.module() is module or getattr(module, "_is_replica", False)


class _ForwardPreHook(_Hook):
    def __call__(self, module: Any, args: Any, kwargs: Any) -> None:
        if not compiling() and self.is_for(module):
            self._report(self._name, module, args, kwargs)


class _ForwardHook(_Hook):
    def __call__(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if not compiling() and self.is_for(module):
            self._report(self._name, module, args, kwargs, output)


class _PassHook(_Hook):
    def __call__(self, module: Any, *_: Any) -> None:
        if not compiling() and self.is_for(module):
            self._report()


def _note(hook: _Hook, *options: dict[int, Any]) -> None:
    """Enter the hook itself where torch enters ``True`` and asks for the key only: so copies are made without it."""
    for option in options:
        option[hook.number] = hook


class _HookedModule:
    """The two hooks on one module, in place between `attach` and `remove`.

    They keep the numbers under which torch has registered them first, and are put under these again as torch would: in
    3 us, where registering two hooks and removing them takes 20.
    """

    __slots__ = ("after", "before")

    def __init__(self, before: _ForwardPreHook, after: _ForwardHook) -> None:
        self.before = before
        self.after = after

    def attach(self, module: torch.nn.Module) -> None:
        # Ours run after the user's pre-hooks and before the user's hooks, and see what forward itself gets and returns.
        before, after = self.before, self.after
        if before.number is None:
            before.number = _register_before(module, before, with_kwargs=True).id
        module._forward_pre_hooks[before.number] = before
        _note(before, module._forward_pre_hooks_with_kwargs)
        if after.number is None:
            after.number = _register_after(module, after, with_kwargs=True, always_call=True, prepend=True).id
        hooks: Any = module._forward_hooks
        hooks[after.number] = after
        hooks.move_to_end(after.number, last=False)
        _note(after, module._forward_hooks_with_kwargs, module._forward_hooks_always_called)

    def remove(self) -> None:
        module = self.before.module()
        if module is None:
            return
        after, before = self.after.number, self.before.number
        for hooks in (module._forward_hooks, module._forward_hooks_with_kwargs, module._forward_hooks_always_called):
            hooks.pop(after, None)
        for hooks in (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs):
            hooks.pop(before, None)


class ModuleHooks:
    """Reports the calls of modules to a listener until `remove`."""

    def __init__(self, listener: Listener, tracker: BackwardTracker) -> None:
        self._listener = listener
        self._tracker = tracker
        self._thread = _Thread()
        self._parameters = _ParameterHooks()
        self._names = NamedModules(SHAPE)
        self._without_parameters: set[str] = set()
        """Modules of which the gradients of parameters are not wanted."""
        self._hooks: dict[tuple[str, int], _HookedModule] = {}
        """The hooks of each module, by its name and identity."""

    def attach(self, models: Any) -> ModuleHandles:
        """Watch the modules of `models`, and from their first call on the gradients of their parameters."""
        given = by_prefix(models)
        # A model from torch.compile is seen in the place of the one it was made from, which only compiled code calls.
        seen = {id(model._orig_mod): model for model in given.values() if compiled_by_wrapper(model)}
        named, kept = self._names.give(given)
        if not kept:
            self._parameters.forget()
            self._hooks.clear()
        if len(self._hooks) > len(named):
            self._hooks = {key: hooks for key, hooks in self._hooks.items() if hooks.before.module() is not None}
        modules = [(name, seen.get(id(module), module)) for name, module in named]
        say_what_is_compiled(modules, list(given.values()))
        return self._attach(modules, _in_layers_that_refuse_hooks([*given.values(), *(module for _, module in named)]))

    def remove(self) -> None:
        script_guard.remove(self)

    def attach_one(self, module: torch.nn.Module, name: ModuleName, parameters: bool = True) -> ModuleHandles:
        if not parameters:
            self._without_parameters.add(name.base)
        return self._attach([(name, module)], _in_layers_that_refuse_hooks(module.modules()))

    def _attach(self, modules: list[tuple[ModuleName, torch.nn.Module]], refusing: set[int]) -> ModuleHandles:
        forward: list[Handle] = [HooksStayOut()]
        try:
            script_guard.install(self, without_hooks(_Hook), self._listener)
            for name, module in modules:
                self._attach_forward(name, module, forward, id(module) in refusing)
            return ModuleHandles(Handles([*forward, self]), self._parameters)
        except BaseException:
            Handles(forward).remove()
            raise

    def _attach_forward(
        self, name: ModuleName, module: torch.nn.Module, handles: list[Handle], refuses_hooks: bool
    ) -> None:
        if getattr(module, "_is_full_backward_hook", None) is False:
            log.warning(
                f"{name.base} has a hook of the deprecated register_backward_hook; its backward is not collected. "
                "Use register_full_backward_hook.",
                once=f"deprecated-backward-hook {name.base}",
            )
        if isinstance(module, torch.jit.ScriptModule):
            slug = f"script-module {name.base}"
            log.warning(f"{name.base} is a ScriptModule: its calls have no records.", once=slug)
            return
        hooks = self._hooks_of(name, module)
        if refuses_hooks or compiled_in_place(module):
            handles.append(seen_from_outside(module, hooks.before, hooks.after))
            return
        handles.append(hooks)
        hooks.attach(module)

    def _hooks_of(self, name: ModuleName, module: Any) -> _HookedModule:
        key = (name.base, id(module))
        found = self._hooks.get(key)
        if found is None or not found.before.is_for(module):
            before = _ForwardPreHook(self.before, name, module)
            found = self._hooks[key] = _HookedModule(before, _ForwardHook(self.after, name, module))
        return found

    def before(self, name: ModuleName, module: Any, args: Any, kwargs: Any) -> None:
        try:
            self._before(name, module, args, kwargs)
        except Exception as error:
            self._listener.failed(name, error)

    def _before(self, name: ModuleName, module: Any, args: Any, kwargs: Any) -> None:
        with _no_function_modes():
            self._tracker.advance_to_current()
            call = guarded(self._listener, name, self._listener.enter_module, name, args, kwargs)
            if call is None:
                return
            # Only now: the parameters of a module that is not called, such as the output projection of torch's
            # MultiheadAttention, have gradients which are not this module's doing.
            if name.base not in self._without_parameters:
                self._watch_parameters(name, module)
            entered_at, edges = self._tracker.inputs(call, args, kwargs)
            self._thread.open.append(_Open(module, call, entered_at, edges, sys.exc_info()[1]))

    def _watch_parameters(self, name: ModuleName, module: Any) -> None:
        # At every call, for parameters can be exchanged and thawed.
        base, watched = name.base, self._parameters.watched
        for parameter_name, parameter in module._parameters.items():
            key = base, parameter_name, id(parameter)
            if key not in watched and parameter is not None and parameter.requires_grad and parameter.is_leaf:
                self._parameters.watch(key, parameter, self, name)

    def after(self, name: ModuleName, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        try:
            self._after(module, output)
        except Exception as error:
            self._listener.failed(name, error)

    def _after(self, module: Any, output: Any) -> None:
        opened = self._close(module)
        if opened is None:
            return
        listener, call = self._listener, opened.call
        error = sys.exc_info()[1]
        parameters = module._parameters
        if error is not None and error is not opened.error:
            guarded(listener, call, listener.fail_module, call, parameters)
            return
        with _no_function_modes():
            wants_backward = guarded(listener, call, listener.leave_module, call, output, parameters)
            if wants_backward and getattr(module, "_is_full_backward_hook", None) is not False:
                self._tracker.watch(ModuleWatch, call, opened.entered_at, opened.edges, output)

    def _close(self, module: Any) -> _Open | None:
        """The innermost open call of `module`; calls inside it that were not closed are forgotten."""
        opened = self._thread.open
        for index in range(len(opened) - 1, -1, -1):
            if opened[index].module is module:
                found = opened[index]
                del opened[index:]
                return found
        return None

    def on_parameter(self, name: ModuleName, parameter_name: str, parameter: torch.Tensor) -> None:
        guarded(self._listener, name, self._report_gradient, name, parameter_name, parameter)

    def _report_gradient(self, name: ModuleName, parameter_name: str, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            owed = self._tracker.in_collected_pass()
            self._listener.parameter_gradient(name, parameter_name, parameter.grad, owed)


def _in_layers_that_refuse_hooks(modules: Iterable[torch.nn.Module]) -> set[int]:
    """The identities of modules in those layers among `modules` that compute otherwise where a module has a hook.

    They compute with other last bits then.

    In evaluation, torch's encoder layer asks its modules for hooks and takes its fast path only where there are none.
    A layer with hooks of the program does not take it anyway; and the compiler reads hooks, but not what stands in
    their place.
    """
    found: set[int] = set()
    if something_is_compiled():
        return found
    for layer in modules:
        if isinstance(layer, torch.nn.TransformerEncoderLayer):
            inside = list(layer.modules())
            if not any(_has_hooks(module) or compiled_in_place(module) for module in inside):
                found.update(map(id, inside))
    return found


def _has_hooks(module: torch.nn.Module) -> bool:
    hooks = module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks
    return any(map(bool, hooks))


def attach_gradient(tensor: torch.Tensor, callback: Callable[[Any], None], logs: Logs, about: str) -> Handle | None:
    """Call `callback` with every gradient of `tensor`; ``None`` where it takes none."""
    if not tensor.requires_grad:
        return None

    def callback_guarded(gradient: Any) -> None:
        guarded(logs, about, callback, gradient)

    return _TensorHandle(tensor, callback_guarded)


def attach_accumulated(
    parameter: torch.Tensor, weak: weakref.ref[torch.Tensor], callback: Callable[[Any], None]
) -> Handle:
    """Call `callback` with `parameter` whenever a gradient has been accumulated into it, before other such hooks."""
    hook = AccumulatedHook(weak, callback)
    hook.attach(parameter)
    return hook


class AccumulatedHook:
    """A hook on a parameter that this does not keep alive, called whenever a gradient has been accumulated into it.

    It is called before other such hooks, which may take the gradient away: an optimizer that steps in them sets it to
    ``None`` or to zeros. As the hooks on modules it keeps the number under which torch has registered it first, and is
    put back under it without a handle of torch's.
    """

    __slots__ = ("_callback", "_had_hooks", "_hooks", "_number", "_weak")

    def __init__(self, weak: weakref.ref[torch.Tensor], callback: Callable[[Any], None]) -> None:
        self._weak = weak
        self._callback = callback
        self._number: int | None = None
        self._hooks: Any = None
        """The dictionary of hooks that this is in; the gradient graph can still have it where the tensor is gone."""
        self._had_hooks = False

    def attach(self, parameter: torch.Tensor) -> None:
        hooks: Any = parameter._post_accumulate_grad_hooks
        self._had_hooks = hooks is not None
        # torch asks the class of any other one what to do.
        if self._number is None or type(parameter) not in (torch.Tensor, torch.nn.Parameter):
            self._number = _register_accumulated(parameter, self._callback).id
        elif hooks is None:
            parameter._post_accumulate_grad_hooks = OrderedDict([(self._number, self._callback)])
        else:
            hooks[self._number] = self._callback
        self._hooks = hooks = parameter._post_accumulate_grad_hooks
        if len(hooks) > 1:
            # PyTorch calls the values as a plain dictionary has them, which `OrderedDict.move_to_end` does not change.
            # Those of several modules that share a parameter stay in the order of the modules' calls.
            ours = {self._number, *(key for key, hook in hooks.items() if type(hook) is _ParameterHook)}
            others = [(key, hook) for key, hook in hooks.items() if key not in ours]
            for key, _ in others:
                del hooks[key]
            hooks.update(others)

    def remove(self) -> None:
        hooks, self._hooks = self._hooks, None
        if hooks is not None:
            hooks.pop(self._number, None)
        _leave_as_it_was(self._weak(), "_post_accumulate_grad_hooks", self._had_hooks)


def _leave_as_it_was(tensor: torch.Tensor | None, attribute: str, had_hooks: bool) -> None:
    # torch leaves an empty dictionary behind, and a tensor with one is pickled differently.
    if tensor is None or had_hooks:
        return
    # The user may stop within a function mode, which sees these attributes.
    with _no_function_modes():
        if not getattr(tensor, attribute):
            setattr(tensor, attribute, None)


class _TensorHandle:
    """A hook on the gradient of a tensor that this does not keep alive."""

    def __init__(self, tensor: torch.Tensor, callback: Callable[[Any], None]) -> None:
        self._weak = weakref.ref(tensor)
        self._had_hooks = tensor._backward_hooks is not None
        self._handle = _register_hook(tensor, callback)

    def remove(self) -> None:
        # The gradient graph can still have the hook where the tensor is gone.
        self._handle.remove()
        _leave_as_it_was(self._weak(), "_backward_hooks", self._had_hooks)


def attach_passes(model: Any, begin: Callable[[], None], end: Callable[[], None]) -> Handle:
    """Call `begin` and `end` around every forward of `model` (of the first one if there are several)."""
    module = next(iter(by_prefix(model).values()))
    name = ModuleName("the model")
    before, after = _PassHook(lambda *_: begin(), name, module), _PassHook(lambda *_: end(), name, module)
    first = _register_before(module, before, prepend=True)
    last = _register_after(module, after, always_call=True)
    after.number = last.id
    _note(after, module._forward_hooks_always_called)
    return Handles([HooksStayOut(), first, last])


def attach_calls(module: torch.nn.Module, before: Callable[..., None], after: Callable[..., None]) -> Handle:
    """Call `before(name, module, args, kwargs)` as it was called, and `after` last, with the output besides."""
    name = ModuleName("the model")
    pre_hook, hook = _ForwardPreHook(before, name, module), _ForwardHook(after, name, module)
    first = _register_before(module, pre_hook, prepend=True, with_kwargs=True)
    last = _register_after(module, hook, with_kwargs=True, always_call=True)
    pre_hook.number, hook.number = first.id, last.id
    _note(pre_hook, module._forward_pre_hooks_with_kwargs)
    _note(hook, module._forward_hooks_with_kwargs, module._forward_hooks_always_called)
    return Handles([HooksStayOut(), first, last])
