"""The way in which a program trains: torch's modules and optimizers, MindSpore's gradients. The group `Training` of
MSAdapter."""

from __future__ import annotations

from typing import Any, Callable

from probe.backends.mindspore.guards import is_unobserved
from probe.backends.mindspore.hooks import training_hooks
from probe.backends.mindspore.hooks.scalers import largest_over_ranks
from probe.backends.msadapter.scalers import attach_scalers
from probe.backends.msadapter.torch_modules import torch_module
from probe.backends.protocol import TrainingListener
from probe.backends.shared import training
from probe.backends.shared.patching import Handles, argument, plain_swap
from probe.common.interfaces import Handle

__all__ = [
    "attach_gradients",
    "attach_scalers",
    "attach_training",
    "has_parameters",
    "inside",
    "largest_over_ranks",
    "optimizers",
    "outermost",
    "parameters",
    "trainable",
]

_Module = torch_module("nn").Module
_optimizers_of_torch = torch_module("optim.optimizer")


def attach_training(listener: TrainingListener) -> Handle:
    """Report to `listener` until the handle is removed."""

    def forward(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = argument(0, "self", args, kwargs)
        if module is None or is_unobserved():
            return body(*args, **kwargs)
        listener.enter_forward(module, training_hooks.recording())
        try:
            return body(*args, **kwargs)
        finally:
            listener.leave_forward()

    return Handles(
        [
            training.OptimizerSteps(_optimizers_of_torch, listener),
            training.attach_calls(_Module.__call__, forward),
            training_hooks.attach_backwards(listener, parameters),
            *training.attach_new_optimizers([_optimizers_of_torch.Optimizer], plain_swap, listener),
        ]
    )


def attach_gradients(listener: TrainingListener) -> Handle:
    """Nothing more: `attach_training` reports all gradients, which are always returned to the program."""
    return Handles([])


def outermost(module: Any) -> Any:
    """The module that holds `module` and is held by none."""
    return training.outermost(module, _Module, _children)


def _children(module: Any) -> list[Any]:
    return training.children(module, "_modules")


def inside(module: Any) -> list[Any]:
    """The modules inside of `module`, itself not among them."""
    return [each for each in module.modules() if each is not module]


def has_parameters(module: Any) -> bool:
    """True if `module` or a module inside of it has a parameter."""
    return next(iter(module.parameters()), None) is not None


def trainable(module: Any) -> frozenset[int]:
    """The identities of the parameters of `module` that get gradients now."""
    return frozenset(id(parameter) for parameter in module.parameters() if parameter.requires_grad)


def optimizers() -> list[Any]:
    """Every optimizer that there is."""
    return training.instances(_optimizers_of_torch.Optimizer)


def parameters(optimizer: Any) -> frozenset[int]:
    """The identities of the parameters that `optimizer` updates."""
    return training.parameters_of_groups(optimizer)
