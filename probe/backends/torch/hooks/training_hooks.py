"""A program's training: outermost forwards, backwards, and the steps of optimizers. The group `Training` of PyTorch."""

from __future__ import annotations

import datetime
import weakref
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any, Callable, cast

import torch
import torch.distributed as dist
from torch.optim import optimizer as optimizers_of_torch
from torch.utils.data import get_worker_info

from probe.backends.protocol import TrainingListener
from probe.backends.shared import training
from probe.backends.shared.patching import Handles, Record, argument
from probe.backends.torch import internals
from probe.backends.torch.guards import passed_over, unobserved
from probe.backends.torch.hooks.compilers import readable_swap
from probe.backends.torch.originals import own
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


def scaler_step() -> FunctionType | None:
    """The method by which a gradient scaler lets an optimizer make its step."""
    # torch.amp has it from 2.3 on; the one for CUDA inherits it.
    step = getattr(torch.cuda.amp.GradScaler, "step", None)
    return step if isinstance(step, FunctionType) else None


def attach_scalers(note: training.Note) -> Handle:
    """Tell `note` of every optimizer's step that goes through a gradient scaler."""
    function = scaler_step()
    if function is None:
        return Handles([])

    @passed_over
    def step(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = body(*args, **kwargs)
        training.tell_of(note, lambda: training.of_step(args, kwargs))
        return result

    return training.OutermostCalls(function, readable_swap, step)


_MOST_SECONDS = 600
"""For a rank that does not answer."""


class _Group:
    """The process group of the question, with its own connections: none of its calls can meet one of the training.

    Made where all ranks come by, and in the host's memory: of a device, a call that is not answered ends the program.
    """

    def __init__(self) -> None:
        self._of: weakref.ref[Any] | None = None
        self._group: weakref.ref[Any] | None = None
        self._flags = torch.zeros(0, dtype=torch.int32)

    def largest(self, numbers: Sequence[int]) -> list[int]:
        group = self._made()
        if len(self._flags) != len(numbers):
            self._flags = torch.zeros(len(numbers), dtype=torch.int32)
        for at, number in enumerate(numbers):
            self._flags[at] = number
        dist.all_reduce(self._flags, op=dist.ReduceOp.MAX, group=group)
        return [int(flag) for flag in self._flags.tolist()]

    def leave(self) -> None:
        """Close the connections, so that the other ranks do not wait for this one."""
        group = None if self._group is None else self._group()
        self._group = None
        if group is not None:
            dist.destroy_process_group(group)

    def _made(self) -> Any:
        world = dist.group.WORLD
        # Not held: a group that its program has destroyed must be able to go.
        group = None if self._group is None else self._group()
        if group is None or self._of is None or self._of() is not world:
            group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=_patience(world)))
            self._of, self._group = weakref.ref(world), weakref.ref(group)
        return group


_group = _Group()


def largest_over_ranks(numbers: Sequence[int]) -> list[int]:
    """See `probe.backends.protocol.Training`."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return list(numbers)
    try:
        return cast("list[int]", unobserved(_group.largest, numbers))
    except Exception:
        _group.leave()
        raise


def _patience(world: Any) -> float:
    """Seconds: so few that the training does not lose its own patience with the ranks that wait here."""
    found = [float(_MOST_SECONDS)]
    for device in world._device_types:
        options = getattr(world._get_backend(device), "options", None)
        timeout = getattr(options, "_timeout", None)
        if isinstance(timeout, datetime.timedelta):
            found.append(timeout.total_seconds() / 2)
    return min(found)


# --- training hooks


def attach_training(listener: TrainingListener) -> Handle:
    """Report to `listener` until the handle is removed."""

    @passed_over
    def forward(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Without a module the call is a mistake; what prepares data, in a process of a loader, is no training.
        module = argument(0, "self", args, kwargs)
        if module is None or get_worker_info() is not None:
            return body(*args, **kwargs)
        listener.enter_forward(module, torch.is_grad_enabled())
        try:
            return body(*args, **kwargs)
        finally:
            listener.leave_forward()

    @passed_over
    def backward(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        listener.enter_backward(_gradients)
        computed = False
        try:
            result = body(*args, **kwargs)
            computed = True
            return result
        finally:
            listener.leave_backward(_gradients if computed else None)

    steps = training.OptimizerSteps(optimizers_of_torch, listener)

    def attached() -> Iterator[Handle]:
        yield steps
        yield from _outermost_calls((torch.nn.Module.__call__, forward), (torch.autograd.backward, backward))
        yield _scaler_hook(listener, steps)
        yield from training.attach_new_optimizers([torch.optim.Optimizer], readable_swap, listener)

    return Handles(attached())


def attach_gradients(listener: TrainingListener) -> Handle:
    """Report gradients that are returned to the program: by ``torch.autograd.grad`` and ``torch.func.grad``.

    Compiled code that calls them is compiled again when the handle is removed.
    """

    @passed_over
    def gradients(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = body(*args, **kwargs)
        # A graph that is kept, or made of the gradients, is of use to a later backward.
        kept = argument(3, "retain_graph", args, kwargs), argument(4, "create_graph", args, kwargs)
        listener.return_gradients(*kept)
        return result

    @passed_over
    def gradients_of_function(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = body(*args, **kwargs)
        listener.return_gradients()
        return result

    of_function = internals.gradients_of_function
    return Handles(_outermost_calls((torch.autograd.grad, gradients), (of_function, gradients_of_function)))


def _outermost_calls(*pairs: tuple[Any, Record]) -> Iterator[Handle]:
    """Each function that is written in Python has its outermost calls reported."""
    for function, around in pairs:
        if isinstance(function, FunctionType):
            yield training.OutermostCalls(function, readable_swap, around)


def _scaler_hook(listener: TrainingListener, steps: training.OptimizerSteps) -> Handle:
    """Report the steps that a gradient scaler does not let an optimizer make, because a gradient is not finite."""
    function = scaler_step()
    if function is None:
        return Handles([])

    @passed_over
    def step(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = steps.count
        result = body(*args, **kwargs)
        optimizer = argument(1, "optimizer", args, kwargs)
        if steps.count == before and optimizer is not None:
            listener.leave_optimizer(optimizer)
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
    """True if `module` or a module inside it has a parameter."""
    return next(module.parameters(), None) is not None


def trainable(module: torch.nn.Module) -> frozenset[int]:
    """The identities of the parameters of `module` that get gradients now."""
    with internals.without_function_modes():
        return frozenset(id(parameter) for parameter in module.parameters() if own.requires_grad.__get__(parameter))


def _gradients(optimizer: torch.optim.Optimizer) -> list[tuple[int, int] | None]:
    """A mark that changes with each gradient that is accumulated: for each parameter, the tensor and its writes."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    with internals.without_function_modes():
        return [_writes(own.grad.__get__(parameter)) for parameter in parameters]


def _writes(gradient: torch.Tensor | None) -> tuple[int, int] | None:
    if gradient is None:
        return None
    return own._cdata.__get__(gradient), 0 if own.is_inference(gradient) else own._version.__get__(gradient)


def optimizers() -> list[torch.optim.Optimizer]:
    """Every optimizer that there is."""
    return training.instances(torch.optim.Optimizer)


def parameters(optimizer: torch.optim.Optimizer) -> frozenset[int]:
    """The identities of the parameters that `optimizer` updates."""
    return training.parameters_of_groups(optimizer)
