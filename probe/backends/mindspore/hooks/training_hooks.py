"""A program's training: outermost calls of cells, gradients, calls of optimizers. The group `Training` of MindSpore."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Callable, cast

import numpy as np
from mindspore import Tensor, amp, mint, nn
from mindspore.communication import get_group_size
from mindspore.experimental.optim import Optimizer as ExperimentalOptimizer

from probe.backends.mindspore.guards import is_unobserved, unobserved
from probe.backends.mindspore.internals import executor
from probe.backends.mindspore.randomness import rank
from probe.backends.protocol import ScaledUpdate, TrainingListener
from probe.backends.shared import training
from probe.backends.shared.patching import Handles, argument, plain_swap
from probe.backends.shared.training import Note, attach_calls, tell_of
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


def attach_scalers(note: Note) -> Handle:
    """Tell `note` of every step that a loss scaler is asked about: `amp.DynamicLossScaler` and the cell that
    `nn.TrainOneStepWithLossScaleCell` asks, where they are not compiled.
    """

    def adjust(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = body(*args, **kwargs)
        tell_of(note, lambda: _update_of_scaler(args[0], (*args[1:], *kwargs.values())[0]))
        return result

    def update(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = body(*args, **kwargs)
        tell_of(note, lambda: _update_of_cell(*args[1:], **kwargs))
        return result

    return Handles([
        attach_calls(vars(amp.DynamicLossScaler).get("adjust"), adjust),
        attach_calls(vars(nn.DynamicLossScaleUpdateCell).get("construct"), update),
    ])  # fmt: skip


def _update_of_scaler(scaler: Any, grads_finite: Any) -> ScaledUpdate:
    return ScaledUpdate(lambda: not bool(grads_finite), lambda: float(scaler.scale_value))


def _update_of_cell(loss_scale: Any, overflow: Any) -> ScaledUpdate:
    return ScaledUpdate(lambda: bool(overflow), lambda: float(loss_scale))


def largest_over_ranks(numbers: Sequence[int]) -> list[int]:
    """See `probe.backends.protocol.Training`."""
    if rank() is None or get_group_size() == 1:
        return list(numbers)
    return cast("list[int]", unobserved(_largest, numbers))


def _largest(numbers: Sequence[int]) -> list[int]:
    flags = Tensor(np.array(numbers, np.int32))
    mint.distributed.all_reduce(flags, op="max")
    return [int(flag) for flag in flags.asnumpy()]


# --- training hooks


recording: Callable[[], bool] = executor.requires_grad
_OPTIMIZERS = (nn.Optimizer, ExperimentalOptimizer)


def attach_training(listener: TrainingListener) -> Handle:
    """Report to `listener` until the handle is removed."""

    def call(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        cell = argument(0, "self", args, kwargs)
        if cell is None or is_unobserved():
            return body(*args, **kwargs)
        if _is_optimizer(cell):
            result = body(*args, **kwargs)
            listener.leave_optimizer(cell)
            return result
        # A cell that trains another one computes gradients and calls the optimizer inside of its own call.
        inside = list(filter(_is_optimizer, _children(cell)))
        listener.enter_forward(cell, recording() or bool(inside))
        try:
            result = body(*args, **kwargs)
            for optimizer in inside:
                listener.leave_optimizer(optimizer)
            return result
        finally:
            listener.leave_forward()

    def attached() -> Iterator[Handle]:
        yield training.attach_calls(nn.Cell.__call__, call)
        yield attach_backwards(listener, parameters)
        yield from training.attach_new_optimizers(_OPTIMIZERS, plain_swap, listener)

    return Handles(attached())


def attach_backwards(listener: TrainingListener, parameters: Callable[[Any], frozenset[int]]) -> Handle:
    """Report whenever gradients of a function were computed; `parameters` are those of an optimizer."""

    def backward(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def computes(optimizer: Any) -> bool:
            return bool(parameters(optimizer) & _weights(*args, **kwargs))

        listener.enter_backward(lambda optimizer: False)
        computed = False
        try:
            result = body(*args, **kwargs)
            computed = True
            return result
        finally:
            listener.leave_backward(computes if computed else None)

    kind = type(executor)
    return Handles(training.attach_calls(vars(kind).get(name), backward) for name in ("grad", "grad_aux"))


def _weights(_: Any, function: Any, grad: Any, weights: Any = None, *args: Any, **kwargs: Any) -> frozenset[int]:
    """The identities of the parameters whose gradients `executor.grad` was asked for."""
    many = weights if isinstance(weights, (list, tuple)) else [weights]
    return frozenset(map(id, many))


def attach_gradients(listener: TrainingListener) -> Handle:
    """Nothing more: `attach_training` reports all gradients, which are always returned to the program."""
    return Handles([])


def outermost(module: nn.Cell) -> Any:
    """The cell that holds `module` and is held by none, but for those that train it, such as TrainOneStepCell."""
    cell = training.outermost(module, nn.Cell, lambda holder: () if _trains(holder) else _children(holder))
    while _trains(cell):
        trained = [child for child in _children(cell) if isinstance(child, nn.Cell) and not _is_optimizer(child)]
        cell = next((child for child in trained if child.trainable_params()), None)
        if cell is None:
            return module
    return cell


def _trains(cell: nn.Cell) -> bool:
    return any(map(_is_optimizer, _children(cell)))


def _is_optimizer(cell: Any) -> bool:
    return isinstance(cell, _OPTIMIZERS)


def _children(cell: nn.Cell) -> list[Any]:
    return training.children(cell, "_cells")


def inside(module: nn.Cell) -> list[nn.Cell]:
    """The cells inside of `module`, itself not among them."""
    return [cell for _, cell in module.cells_and_names() if cell is not module]


def has_parameters(module: nn.Cell) -> bool:
    """True if `module` or a cell inside it has a parameter."""
    return next(iter(module.get_parameters()), None) is not None


def trainable(module: nn.Cell) -> frozenset[int]:
    """The identities of the parameters of `module` that get gradients now."""
    return frozenset(id(parameter) for parameter in module.get_parameters() if parameter.requires_grad)


def optimizers() -> list[Any]:
    """Every optimizer that there is."""
    return training.instances(*_OPTIMIZERS)


def parameters(optimizer: Any) -> frozenset[int]:
    """The identities of the parameters that `optimizer` updates."""
    return frozenset(id(parameter) for parameter in optimizer.parameters)
