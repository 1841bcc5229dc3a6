"""Gradients as they become ready, the steps of optimizers, and communication, as a monitor sees them with PyTorch."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, Callable

import torch
import torch.distributed
from torch.utils.weak import WeakTensorKeyDictionary

from probe.backends.protocol.trends import CommunicationListener, Ready
from probe.backends.shared.patching import Handles, argument, plain_swap, wrap_attribute
from probe.backends.torch import internals
from probe.backends.torch.guards import guarded, passed_over, skipped, unobserved
from probe.backends.torch.hooks.module_hooks import attach_accumulated
from probe.backends.torch.originals import own
from probe.common import log
from probe.common.collectives.calls import IN_PLACE
from probe.common.interfaces import Handle, Logs


class _Accumulated:
    """The hook on one parameter."""

    __slots__ = ("_index", "_logs", "_ready")

    def __init__(self, index: int, ready: Ready, logs: Logs) -> None:
        self._index = index
        self._ready = ready
        self._logs = logs

    @skipped
    def __call__(self, parameter: torch.Tensor) -> None:
        guarded(self._logs, "a gradient", self._report, parameter)

    def _report(self, parameter: torch.Tensor) -> None:
        gradient = own.grad.__get__(parameter)
        if gradient is not None:
            self._ready(self._index, gradient)


def attach_gradients(models: Sequence[Any], parameters: Sequence[Any], ready: Ready, logs: Logs) -> Handle:
    """See `probe.backends.protocol.Trends.attach_gradients`."""

    def attached() -> Iterator[Handle]:
        sharded: dict[Any, int] = {}
        for index, parameter in enumerate(parameters):
            if type(parameter).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
                # A shard gets its gradient when it is reduced already.
                sharded[parameter] = index
            elif parameter.is_leaf:
                yield attach_accumulated(parameter, weakref.ref(parameter), _Accumulated(index, ready, logs))
        if sharded:
            yield from _attach_to_shards(sharded, ready, logs)
        if any(_is_flat(module) for model in models for module in model.modules()):
            yield from _attach_to_flat({each: index for index, each in enumerate(parameters)}, ready, logs)

    return Handles(attached())


def reduces(model: Any) -> bool:
    """True of DDP, and of models in which something is sharded."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return True
    inner = getattr(model, "parameters", None)
    plain = torch.Tensor.__torch_dispatch__
    if inner is not None and any(type(each).__torch_dispatch__ is not plain for each in inner()):
        return True
    return any(_is_flat(module) for module in model.modules())


def _is_flat(module: Any) -> bool:
    return type(module).__name__ == "FullyShardedDataParallel"


def _attach_to_shards(sharded: dict[Any, int], ready: Ready, logs: Logs) -> list[Handle]:
    """The whole gradients that ``fully_shard`` is about to reduce."""
    indices: Mapping[Any, int] = WeakTensorKeyDictionary(sharded)

    def report(params: Sequence[Any], gradients: Sequence[Any]) -> None:
        for param, gradient in zip(params, gradients):
            index = indices.get(param.sharded_param)
            if index is not None:
                ready(index, gradient)

    @passed_over
    def reduce(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        params = argument(0, "fsdp_params", args, kwargs)
        gradients = argument(1, "unsharded_grads", args, kwargs)
        guarded(logs, "gradients of shards", report, params, gradients)
        return body(*args, **kwargs)

    return _swapped("fully_shard", internals.reduce_shards(), reduce)


def _attach_to_flat(flattened: dict[Any, int], ready: Ready, logs: Logs) -> list[Handle]:
    """The whole gradients that ``FullyShardedDataParallel`` is about to reduce, with ``use_orig_params``."""
    indices: Mapping[Any, int] = WeakTensorKeyDictionary(flattened)

    def report(handle: Any) -> None:
        flat = handle.flat_param
        if flat.grad is None or getattr(flat, "_params", None) is None:
            return
        for parameter, view in zip(flat._params, handle._get_unflat_views_unaligned(flat.grad)):
            index = indices.get(parameter)
            if index is not None:
                ready(index, view)

    @passed_over
    def reduce(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        guarded(logs, "gradients of shards", report, argument(1, "handle", args, kwargs))
        return body(*args, **kwargs)

    return _swapped("FullyShardedDataParallel", internals.reduce_flat(), reduce)


def _swapped(sharding: str, function: Any, record: Callable[..., Any]) -> list[Handle]:
    if not isinstance(function, FunctionType):
        text = f"this release of PyTorch does not show gradients before {sharding} reduces them; they have no rows."
        log.warning(text, once=text)
        return []
    swap = plain_swap(function, record)
    swap.install()
    return [_Swap(swap)]


class _Swap:
    def __init__(self, swap: Any) -> None:
        self.remove: Callable[[], None] = swap.restore


# --- optimizers


def attach_optimizer(optimizer: Any, before: Callable[[], None], after: Callable[[], None], logs: Logs) -> Handle:
    """See `probe.backends.protocol.Trends.attach_optimizer`."""
    optimizer = innermost(optimizer)
    name = "the step of the optimizer"

    def enter(*_: Any) -> None:
        guarded(logs, name, before)

    def leave(*_: Any) -> None:
        guarded(logs, name, after)

    if isinstance(optimizer, torch.optim.Optimizer):

        def enter_with(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            # The optimizer itself is the first of `args`.
            closure = args[1] if len(args) > 1 else kwargs.get("closure")
            if not callable(closure):
                enter()
                return None
            # Gradients are final when it has run: Lightning makes all of a step in it.
            after_it = _then(closure, enter)
            if len(args) > 1:
                return (args[0], after_it, *args[2:]), kwargs
            return args, {**kwargs, "closure": after_it}

        return Handles([optimizer.register_step_pre_hook(enter_with), optimizer.register_step_post_hook(leave)])

    def wrapped(step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def call(*args: Any, **kwargs: Any) -> Any:
            enter()
            result = step(*args, **kwargs)
            leave()
            return result

        return call

    # Megatron's optimizers have no hooks. What was put in place is kept by the optimizer itself.
    attributes = wrap_attribute(optimizer, "step", wrapped)
    optimizer.step.attributes = attributes
    return _Weak(attributes)


class _Weak:
    """A handle for as long as something else keeps it."""

    def __init__(self, handle: Handle) -> None:
        self._handle = weakref.ref(handle)

    def remove(self) -> None:
        handle = self._handle()
        if handle is not None:
            handle.remove()


def _then(closure: Callable[[], Any], enter: Callable[[], None]) -> Callable[[], Any]:
    """`closure`, with a call of `enter` after its first evaluation; LBFGS evaluates it several times a step."""
    evaluated = False

    @functools.wraps(closure)
    def evaluate() -> Any:
        nonlocal evaluated
        result = closure()
        if not evaluated:
            evaluated = True
            enter()
        return result

    return evaluate


def innermost(optimizer: Any) -> Any:
    """The optimizer that a wrapper calls when gradients are complete, such as that of accelerate."""
    seen = {id(optimizer)}
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer) and id(inner) not in seen:
        seen.add(id(inner))
        optimizer = inner
    return optimizer


def optimizer_state(optimizer: Any, parameter: Any) -> Mapping[str, Any]:
    """The tensors of more than one number that the optimizer keeps for `parameter`."""
    held = getattr(innermost(optimizer), "state", None)
    found = held.get(parameter) if isinstance(held, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor) and value.dim()} or {
        name: value for name, value in found.items() if isinstance(value, torch.Tensor) and name != "step"
    }


def state_counts(optimizer: Any) -> Mapping[str, float]:
    """See `probe.backends.protocol.Trends.state_counts`. Counters on a device are not fetched."""
    held = getattr(innermost(optimizer), "state", None)
    states = [each for each in held.values() if isinstance(each, Mapping)] if isinstance(held, Mapping) else []
    found = {"parameters": float(sum(any(map(_is_kept, each.values())) for each in states))}
    for step in (each["step"] for each in states if "step" in each):
        if not isinstance(step, torch.Tensor):
            found["step"] = float(step)
        elif step.is_cpu:
            found["step"] = unobserved(own.item, step)
        break
    return found


def _is_kept(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def ties(model: torch.nn.Module) -> list[tuple[str, str, Callable[[], bool]]]:
    """See `probe.backends.protocol.Trends.ties`."""
    first: dict[int, tuple[str, torch.nn.Module, str]] = {}
    found: list[tuple[str, str, Callable[[], bool]]] = []
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            full = f"{path}.{name}" if path else name
            full = full.replace("_orig_mod.", "")
            known = first.setdefault(id(parameter), (full, module, name))
            if known[0] != full:
                found.append((known[0], full, _same(known[1:], (module, name))))
    return found


def _same(one: tuple[torch.nn.Module, str], other: tuple[torch.nn.Module, str]) -> Callable[[], bool]:
    first, second = (_current(weakref.ref(module), name) for module, name in (one, other))
    return lambda: first() is second()


def _current(weak: weakref.ref[torch.nn.Module], name: str) -> Callable[[], Any]:
    """The parameter that a module has under `name` whenever it is called; ``None`` of a module that is deleted."""
    return lambda: None if (module := weak()) is None else module._parameters.get(name)


# --- communication


_NAMES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "broadcast",
    "reduce", "gather", "scatter", "all_to_all", "all_to_all_single", "send", "recv", "isend", "irecv", "barrier",
    "all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list", "batch_isend_irecv",
)  # fmt: skip


class _Thread(threading.local):
    inside = False


def attach_communication(listener: CommunicationListener, logs: Logs) -> Handle:
    """See `probe.backends.protocol.Trends.attach_communication`."""
    if not torch.distributed.is_available():
        return Handles([])
    thread = _Thread()

    def attached() -> Iterator[Handle]:
        for name in _NAMES:
            function = getattr(torch.distributed, name, None)
            if isinstance(function, FunctionType):
                swap = plain_swap(function, _around(name, listener, logs, thread))
                swap.install()
                yield _Restore(swap)

    return Handles(attached())


class _Restore:
    def __init__(self, swap: Any) -> None:
        self.remove: Callable[[], None] = swap.restore


def _around(name: str, listener: CommunicationListener, logs: Logs, thread: _Thread) -> Callable[..., Any]:
    @passed_over
    def record(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if thread.inside:
            return body(*args, **kwargs)
        thread.inside = True
        try:
            entered = guarded(logs, name, _enter, listener, name, args, kwargs)
            result = body(*args, **kwargs)
            # Results of background communication are not there yet, and nobody waits for them here.
            done = () if result is not None and hasattr(result, "wait") else _tensors(name, args, kwargs, is_over=True)
            guarded(logs, name, listener.leave_communication, entered, done)
            return result
        finally:
            thread.inside = False

    return record


def _enter(listener: CommunicationListener, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    peer = kwargs.get("dst", kwargs.get("src", kwargs.get("group_dst", kwargs.get("group_src"))))
    if peer is None and name in ("send", "recv", "isend", "irecv", "broadcast", "reduce") and len(args) > 1:
        peer = args[1] if isinstance(args[1], int) else None
    groups = (each for each in args if isinstance(each, torch.distributed.ProcessGroup))
    group = kwargs.get("group") or next(groups, None)
    return listener.enter_communication(
        name,
        _tensors(name, args, kwargs, is_over=False),
        {"group": torch.distributed.get_world_size(group), "peer": peer},
    )


def _tensors(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], is_over: bool) -> list[torch.Tensor]:
    """The tensors of a call; before it ends not those that only it fills, whose memory may hold anything."""
    filled = () if is_over or name not in IN_PLACE else IN_PLACE[name].fills
    names = IN_PLACE[name].arguments if name in IN_PLACE else ()
    given = [value for at, value in enumerate(args) if at >= len(names) or names[at] not in filled]
    given += [value for key, value in kwargs.items() if key not in filled]
    found: list[torch.Tensor] = []
    for value in given:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [each for each in value if isinstance(each, torch.Tensor)]
    return found
