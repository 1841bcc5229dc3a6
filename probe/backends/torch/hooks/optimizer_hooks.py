"""Hooks on gradient clipping and the optimizer's step, which are nodes of the module tree outside all modules."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any, Callable

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from probe.backends.shared.patching import CodeSwap, each, remove_all
from probe.backends.torch.guards import guarded, passed_over
from probe.backends.torch.hooks.torch_compile import readable_swap
from probe.common.dump.naming import CLIP_GRAD, OPTIMIZER
from probe.common.interfaces import Handle, Listener


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
