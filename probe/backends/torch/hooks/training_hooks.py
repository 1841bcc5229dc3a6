"""Seeing how a program trains: outermost forwards, backwards, and the steps of optimizers."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any, Callable, cast

import torch
from torch.optim import optimizer as optimizers_of_torch
from torch.utils.data import get_worker_info

from probe.backends.protocol import TrainingListener
from probe.backends.shared import training
from probe.backends.shared.patching import Handles
from probe.backends.torch.guards import passed_over
from probe.backends.torch.hooks.scalers import scaler_step
from probe.backends.torch.hooks.torch_compile import readable_swap
from probe.common.interfaces import Handle


def attach_training(listener: TrainingListener) -> Handle:
    """Report to `listener` until the handle is removed."""

    @passed_over
    def forward(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if get_worker_info() is not None:
            return body(*args, **kwargs)  # what prepares data, in a process of a loader, is no training
        listener.enter_forward(args[0], torch.is_grad_enabled())
        try:
            return body(*args, **kwargs)
        finally:
            listener.leave_forward()

    @passed_over
    def backward(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = body(*args, **kwargs)
        listener.leave_backward()
        return result

    steps = training.OptimizerSteps(optimizers_of_torch, listener)
    handles: list[Handle] = [steps]
    call, of_gradients = torch.nn.Module.__call__, torch.autograd.backward
    if isinstance(call, FunctionType):
        handles.append(training.OutermostCalls(call, readable_swap, forward))
    if isinstance(of_gradients, FunctionType):
        handles.append(training.OutermostCalls(of_gradients, readable_swap, backward))
    handles.append(_scaler_hook(listener, steps))
    return Handles(handles)


def _scaler_hook(listener: TrainingListener, steps: training.OptimizerSteps) -> Handle:
    """Report the steps that a gradient scaler does not let an optimizer make, because a gradient is not finite."""
    function = scaler_step()
    if function is None:
        return Handles([])

    @passed_over
    def step(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = steps.count
        result = body(*args, **kwargs)
        if steps.count == before:
            listener.leave_optimizer(inspect.signature(body).bind(*args, **kwargs).arguments["optimizer"])
        return result

    return training.OutermostCalls(function, readable_swap, step)


def outermost(module: torch.nn.Module) -> torch.nn.Module:
    """The module that holds `module` and is held by none."""
    return cast("torch.nn.Module", training.outermost(module, torch.nn.Module, _children))


def _children(module: torch.nn.Module) -> list[Any]:
    return training.children(module, "_modules")


def inside(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules inside of `module`, itself not among them."""
    return [each for each in module.modules() if each is not module]


def has_parameters(module: torch.nn.Module) -> bool:
    """Whether `module` or a module inside of it has a parameter."""
    return next(module.parameters(), None) is not None


def optimizers() -> list[torch.optim.Optimizer]:
    """Every optimizer that there is."""
    return training.instances(torch.optim.Optimizer)


def parameters(optimizer: torch.optim.Optimizer) -> frozenset[int]:
    """The identities of the parameters that `optimizer` updates."""
    return training.parameters_of_groups(optimizer)
