"""The group `Hooks` of MindSpore."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Callable

from probe.backends.mindspore.backward_tracker import tracker_for
from probe.backends.mindspore.gradient_graph import Tracker
from probe.backends.mindspore.guards import unobserved
from probe.backends.mindspore.hooks import api_hooks, module_hooks
from probe.backends.mindspore.hooks.api_hooks import ApiHooks, async_work_types
from probe.backends.mindspore.hooks.jit import Compilation, check_pynative
from probe.backends.mindspore.hooks.module_hooks import CELLS, ModuleHooks, ModuleKind
from probe.backends.protocol import HeldTensor, ModuleHandles
from probe.backends.shared.api_list import Watched, custom_name
from probe.backends.shared.patching import Handles, wrap_attribute
from probe.common.interfaces import Handle, Listener, ModuleName


@dataclass(frozen=True)
class Seen:
    """The parts of a program that are seen.

    Args:
        modules: What its modules are.
        functions: Gives the functions to watch, by family.
        risk_class: ``core``, ``low`` or ``middle`` of an API.
        works: Gives the classes of what asynchronous communication returns, which has a method ``wait``.
    """

    modules: ModuleKind
    functions: Callable[[], Mapping[str, list[Watched]]]
    risk_class: Callable[[str], str]
    works: Callable[[], list[type]]


OF_MINDSPORE = Seen(CELLS, api_hooks.watched, api_hooks.risk_class, async_work_types)


@dataclass(frozen=True)
class _Parts:
    """The objects that serve one listener."""

    listener: Listener
    tracker: Tracker
    apis: ApiHooks
    modules: ModuleHooks


class MindSporeHooks:
    """Implements `probe.backends.protocol.Hooks` for MindSpore on CPU, GPU and Ascend, and for what runs on it."""

    def __init__(self, seen: Seen = OF_MINDSPORE) -> None:
        self._seen = seen
        self._parts: _Parts | None = None
        self.risk_class = seen.risk_class
        self.attach_gradient = module_hooks.attach_gradient
        self.unobserved = unobserved
        self.check_mode = check_pynative

    def _for(self, listener: Listener) -> _Parts:
        if self._parts is None or self._parts.listener is not listener:
            seen, tracker, compilation = self._seen, tracker_for(listener), Compilation(listener)
            apis = ApiHooks(listener, tracker, compilation, seen.functions, seen.works)
            self._parts = _Parts(listener, tracker, apis, ModuleHooks(listener, tracker, compilation, seen.modules))
        return self._parts

    def attach_apis(self, models: Any, listener: Listener, everything: bool = False) -> Handle:
        apis = self._for(listener).apis
        apis.install(models, self._seen.modules)
        return apis

    def held_tensors(self, models: Any) -> Iterable[tuple[int, HeldTensor]]:
        return self._seen.modules.tensors(models).items()

    def attach_custom_api(self, owner: Any, attribute: str, prefix: str, listener: Listener) -> Handle:
        name = custom_name(owner, attribute, prefix, self._seen.functions())
        wrapper = self._for(listener).apis.wrapper
        return wrap_attribute(owner, attribute, lambda function: wrapper(name, function))

    def attach_casts(self, listener: Listener, note: Callable[[str], None]) -> None:
        # Its casts are functions, which change for the whole process if they are replaced.
        return None

    def attach_modules(self, models: Any, listener: Listener) -> ModuleHandles:
        return self._for(listener).modules.attach(models)

    def attach_module(
        self, module: Any, name: ModuleName, listener: Listener, parameters: bool = True
    ) -> ModuleHandles:
        return self._for(listener).modules.attach_one(module, name, parameters)

    def attach_optimizer_hooks(self, listener: Listener) -> Handle:
        # Clipping and the optimizer are no nodes of the module tree of MindSpore.
        return Handles([])

    def attach_passes(self, models: Any, begin: Callable[[], None], end: Callable[[], None]) -> Handle:
        return module_hooks.attach_passes(self._seen.modules, models, begin, end)

    def finish_backward(self) -> None:
        if self._parts is not None:
            unobserved(self._parts.tracker.finish)

    def end_step(self) -> None:
        if self._parts is not None:
            self._parts.tracker.forget()
            self._parts.apis.end_step()

    def is_module(self, value: Any) -> bool:
        return isinstance(value, self._seen.modules.base)
