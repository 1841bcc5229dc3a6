"""The group `Hooks` of PyTorch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Callable

import torch

from probe.backends.protocol import HeldTensor, ModuleHandles
from probe.backends.shared.api_list import as_now, custom_name
from probe.backends.shared.autograd.backward_tracker import BackwardTracker
from probe.backends.shared.patching import wrap_attribute
from probe.backends.torch.autograd.graph import TorchGraph
from probe.backends.torch.guards import unobserved
from probe.backends.torch.hooks import api_list, module_hooks
from probe.backends.torch.hooks.api_hooks import ApiHooks
from probe.backends.torch.hooks.module_hooks import ModuleHooks
from probe.backends.torch.hooks.optimizer_hooks import OptimizerHooks
from probe.backends.torch.hooks.torch_compile import something_is_compiled
from probe.common.interfaces import Handle, Listener, ModuleName


@dataclass(frozen=True)
class _Parts:
    """The objects that serve one listener."""

    listener: Listener
    tracker: BackwardTracker
    apis: ApiHooks
    modules: ModuleHooks
    optimizer: OptimizerHooks


class TorchHooks:
    """Implements `probe.backends.protocol.Hooks` for PyTorch on CPU, CUDA and NPU."""

    def __init__(self) -> None:
        self._parts: _Parts | None = None
        self.risk_class = api_list.risk_class
        self.attach_passes = module_hooks.attach_passes
        self.attach_gradient = module_hooks.attach_gradient
        self.unobserved = unobserved

    def _for(self, listener: Listener) -> _Parts:
        if self._parts is None or self._parts.listener is not listener:
            graph = TorchGraph(listener)
            tracker = BackwardTracker(listener, graph)
            apis = ApiHooks(listener, tracker, graph, as_now(api_list.watched()))
            modules, optimizer = ModuleHooks(listener, tracker), OptimizerHooks(listener)
            self._parts = _Parts(listener, tracker, apis, modules, optimizer)
        return self._parts

    def check_mode(self) -> None:
        # Code compiled by torch is distinguished call by call.
        return

    def attach_apis(self, models: Any, listener: Listener, everything: bool = False) -> Handle:
        apis = self._for(listener).apis
        apis.install(everything)
        return apis

    def held_tensors(self, models: Any) -> Iterable[tuple[int, HeldTensor]]:
        return module_hooks.SHAPE.tensors(models).items()

    def attach_custom_api(self, owner: Any, attribute: str, prefix: str, listener: Listener) -> Handle:
        name = custom_name(owner, attribute, prefix, api_list.watched())
        wrapper = self._for(listener).apis.wrapper
        return wrap_attribute(owner, attribute, lambda function: wrapper(name, function))

    def attach_casts(self, listener: Listener, note: Callable[[str], None]) -> Handle | None:
        if something_is_compiled():
            # It asks for the modes around it, and would be compiled again; inside of it nothing passes them.
            return None
        return self._for(listener).apis.watch_casts(note)

    def attach_modules(self, models: Any, listener: Listener) -> ModuleHandles:
        return self._for(listener).modules.attach(models)

    def attach_module(
        self, module: Any, name: ModuleName, listener: Listener, parameters: bool = True
    ) -> ModuleHandles:
        return self._for(listener).modules.attach_one(module, name, parameters)

    def attach_optimizer_hooks(self, listener: Listener) -> Handle:
        optimizer = self._for(listener).optimizer
        optimizer.install()
        return optimizer

    def finish_backward(self) -> None:
        if self._parts is not None:
            unobserved(self._parts.tracker.finish)

    def end_step(self) -> None:
        if self._parts is not None:
            self._parts.tracker.forget()
            self._parts.apis.end_step()

    def is_module(self, value: Any) -> bool:
        return isinstance(value, torch.nn.Module)
