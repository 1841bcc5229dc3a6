"""Gradients as they become ready, before they are reduced over ranks: of plain models, DDP, and both kinds of FSDP."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any, Callable

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from probe.backends.protocol.trends import Ready
from probe.backends.shared.patching import Handles, argument, plain_swap
from probe.backends.torch import internals
from probe.backends.torch.guards import guarded, passed_over, skipped
from probe.backends.torch.hooks.module_hooks import attach_accumulated
from probe.backends.torch.originals import own
from probe.common import log
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
    handles: list[Handle] = []
    sharded: dict[Any, int] = {}
    for index, parameter in enumerate(parameters):
        if type(parameter).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            # A shard gets its gradient when it is reduced already.
            sharded[parameter] = index
        elif parameter.is_leaf:
            handles.append(attach_accumulated(parameter, weakref.ref(parameter), _Accumulated(index, ready, logs)))
    if sharded:
        handles += _attach_to_shards(sharded, ready, logs)
    if any(_is_flat(module) for model in models for module in model.modules()):
        handles += _attach_to_flat({each: index for index, each in enumerate(parameters)}, ready, logs)
    return Handles(handles)


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
