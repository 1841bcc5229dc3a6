"""The group `Hooks` of PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Callable

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from probe.backends.protocol import HeldTensor, ModuleHandles
from probe.backends.shared.api_list import as_now, custom_name
from probe.backends.shared.backward_tracker import BackwardTracker
from probe.backends.shared.patching import CodeSwap, each, remove_all, wrap_attribute
from probe.backends.torch.gradient_graph import TorchGraph
from probe.backends.torch.guards import guarded, passed_over, unobserved
from probe.backends.torch.hooks import api_hooks, module_hooks
from probe.backends.torch.hooks.api_hooks import ApiHooks
from probe.backends.torch.hooks.compilers import readable_swap, something_is_compiled
from probe.backends.torch.hooks.module_hooks import ModuleHooks
from probe.backends.torch.tracker import tracker_for
from probe.common.dump.naming import CLIP_GRAD, OPTIMIZER
from probe.common.interfaces import Handle, Listener, ModuleName


class OptimizerHooks:
    """Reports both to a listener between `install` and `remove`."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        functions = (getattr(torch.nn.utils, name) for name in ("clip_grad_norm_", "clip_grad_value_"))
        self._swaps = [self._swap(function) for function in functions if isinstance(function, FunctionType)]
        self._handles: list[Handle] = []

    def _swap(self, function: FunctionType) -> CodeSwap:
        listener = self._listener

        @passed_over
        def clip(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            guarded(listener, CLIP_GRAD, listener.enter_optimizer, CLIP_GRAD)
            try:
                return body(*args, **kwargs)
            finally:
                guarded(listener, CLIP_GRAD, listener.leave_optimizer, CLIP_GRAD)

        return readable_swap(function, clip)

    def install(self) -> None:
        try:
            self._install()
        except BaseException:
            self.remove()
            raise

    def _install(self) -> None:
        for swap in self._swaps:
            swap.install()
        listener = self._listener
        for register, report in (
            (register_optimizer_step_pre_hook, listener.enter_optimizer),
            (register_optimizer_step_post_hook, listener.leave_optimizer),
        ):
            self._handles.append(register(lambda *_, report=report: guarded(listener, OPTIMIZER, report, OPTIMIZER)))

    def remove(self) -> None:
        each([functools.partial(remove_all, self._handles), *(swap.restore for swap in self._swaps)])


# --- group


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
        self.risk_class = api_hooks.risk_class
        self.attach_passes = module_hooks.attach_passes
        self.attach_gradient = module_hooks.attach_gradient
        self.unobserved = unobserved

    def _for(self, listener: Listener) -> _Parts:
        if self._parts is None or self._parts.listener is not listener:
            graph = TorchGraph(listener)
            tracker = tracker_for(listener, graph)
            apis = ApiHooks(listener, tracker, graph, lambda: as_now(api_hooks.watched()))
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
        name = custom_name(owner, attribute, prefix, api_hooks.watched())
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
