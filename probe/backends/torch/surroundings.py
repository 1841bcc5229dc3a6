"""Surroundings of a replayed forward: random states, modes, copies on the host, no communication."""

from __future__ import annotations

import contextlib
import copy
import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, cast

import numpy as np
import torch

from probe.backends.protocol import ReplayError
from probe.backends.torch import devices, originals
from probe.backends.torch.internals import TorchDispatchMode
from probe.backends.torch.originals import own

_CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict)


# --- random states


@dataclass(frozen=True)
class RandomState:
    """The states of all generators that are not the program's own objects."""

    python: Any
    numpy: Any
    cpu: torch.Tensor
    devices: Mapping[str, Sequence[torch.Tensor]]

    def put_in(self) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        for name, states in self.devices.items():
            getattr(torch, name).set_rng_state_all(list(states))


def random_state() -> RandomState:
    states = {kind: module.get_rng_state_all() for kind, module in devices.in_use()}
    return RandomState(random.getstate(), np.random.get_state(), torch.get_rng_state(), states)


# --- modes


@dataclass(frozen=True)
class Modes:
    """The recording of gradients, on or off, and autocast on each kind of device."""

    gradients: bool
    autocast: Mapping[str, tuple[bool, torch.dtype]]
    cache: bool

    @contextlib.contextmanager
    def put_in(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.set_grad_enabled(self.gradients))
            for device, (enabled, dtype) in self.autocast.items():
                stack.enter_context(torch.autocast(device, dtype, enabled, self.cache))
            yield


def modes() -> Modes:
    kinds = ["cpu", *(kind for kind, _ in devices.in_use())]
    autocast = {kind: (_autocast_enabled(kind), _autocast_dtype(kind)) for kind in kinds}
    return Modes(torch.is_grad_enabled(), autocast, torch.is_autocast_cache_enabled())


def _autocast_enabled(device: str) -> bool:
    try:
        return bool(torch.is_autocast_enabled(device))
    except TypeError:  # before 2.4
        ask: Callable[[], bool] = torch.is_autocast_cpu_enabled if device == "cpu" else torch.is_autocast_enabled
        return ask()


def _autocast_dtype(device: str) -> torch.dtype:
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device)
    return torch.get_autocast_cpu_dtype() if device == "cpu" else torch.get_autocast_gpu_dtype()


# --- the inside of models


def values_of(models: Sequence[torch.nn.Module]) -> list[torch.Tensor]:
    """Every parameter and buffer, once."""
    found: dict[int, torch.Tensor] = {}
    for model in models:
        for module in model.modules():
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None:
                    found.setdefault(id(tensor), tensor)
    return list(found.values())


def modules_of(models: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    """Every module, once."""
    found = {id(module): module for model in models for module in model.modules()}
    return list(found.values())


@contextlib.contextmanager
def models_untouched(models: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Restore `models` afterwards, whatever is done to them inside.

    Parameters and buffers stand on other memory for as long: their own is not written to, and neither is their version
    counter changed, so that a graph of the user's which has saved them stays valid.
    """
    modules = modules_of(models)
    attributes = [dict(vars(module)) for module in modules]
    contents = [
        (value, copy.copy(value)) for each in attributes for value in each.values() if type(value) in _CONTAINERS
    ]
    tensors = values_of(models)
    own = [tensor.data for tensor in tensors]
    try:
        for tensor, data in zip(tensors, own):
            tensor.data = originals.own.clone(data)
        yield
    finally:
        for tensor, data in zip(tensors, own):
            tensor.data = data
        for module, before in zip(modules, attributes):
            now = vars(module)
            now.clear()
            now.update(before)
        for container, before_it in contents:
            _refill(container, before_it)


def _refill(container: Any, content: Any) -> None:
    container.clear()
    if isinstance(container, (list, deque)):
        container.extend(content)
    else:
        container.update(content)


# --- copies


@dataclass(frozen=True)
class KeptTensor:
    """A tensor's values on the host, and what else it was."""

    values: torch.Tensor
    device: torch.device
    requires_grad: bool

    def again(self) -> torch.Tensor:
        """A new tensor with these values, where the other one was."""
        tensor: torch.Tensor = own.to(self.values, self.device, copy=True)
        if self.requires_grad:
            own.requires_grad_(tensor)
        return tensor


def kept(tensor: torch.Tensor) -> KeptTensor:
    """A copy of `tensor` that shares nothing with it."""
    values = own.to(own.detach(tensor), "cpu", copy=True)
    return KeptTensor(values, tensor.device, tensor.requires_grad)


def all_kept(value: Any) -> Any:
    """`value` with a copy in the place of each tensor; everything that is no container stays the same object."""
    known: dict[int, KeptTensor] = {}

    def keep(tensor: torch.Tensor) -> KeptTensor:
        if id(tensor) not in known:
            known[id(tensor)] = kept(tensor)
        return known[id(tensor)]

    return _mapped(value, torch.Tensor, keep)


def all_again(value: Any, made: list[torch.Tensor]) -> Any:
    """The way back from `all_kept`; the new tensors that take a gradient are added to `made`."""
    known: dict[int, torch.Tensor] = {}

    def again(tensor: KeptTensor) -> torch.Tensor:
        if id(tensor) not in known:
            new = known[id(tensor)] = tensor.again()
            if tensor.requires_grad:
                made.append(new)
        return known[id(tensor)]

    return _mapped(value, KeptTensor, again)


def _mapped(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, dict):
        # A shallow copy keeps what else a mapping of a class of its own has.
        new = copy.copy(value)
        for key, item in value.items():
            new[key] = _mapped(item, kind, function)
        return new
    if type(value) is list:
        return [_mapped(item, kind, function) for item in value]
    if isinstance(value, tuple):
        items = [_mapped(item, kind, function) for item in value]
        return type(value)._make(items) if hasattr(value, "_make") else tuple(items)
    return value


# --- communication


_SHARDED = ("torch.distributed.fsdp", "deepspeed", "fairscale", "megatron")
"""Packages with wrappers whose parameters, or the order of whose calls, are those of several ranks."""
_COMMUNICATION = ("c10d", "_c10d_functional", "c10d_functional", "_dtensor")


def inner_model(model: torch.nn.Module) -> torch.nn.Module:
    """The module whose calls can be run again on one rank alone.

    Raises:
        ReplayError: there is none.
    """
    if type(model).__module__.startswith("torch.nn.parallel.distributed"):
        model = cast("torch.nn.Module", model.module)
    for module in model.modules():
        for kind in type(module).__mro__:
            if kind.__module__.startswith(_SHARDED) or kind.__name__ == "SyncBatchNorm":
                raise ReplayError(f"{kind.__name__} communicates with other ranks")
            if kind.__module__.startswith("torch.nn.parallel.distributed"):
                raise ReplayError("only a part of the model is in DistributedDataParallel")
    for parameter in model.parameters():
        if type(parameter).__name__ == "DTensor" or type(parameter.data).__name__ == "DTensor":
            raise ReplayError("a parameter is a DTensor, which several ranks hold together")
    return model


class _Refusing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in _COMMUNICATION:
            raise ReplayError(f"the model communicates with other ranks ({func})")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def no_communication() -> Iterator[None]:
    """Let every communication inside fail before it begins."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        yield
        return
    with _Refusing():  # type: ignore[no-untyped-call]
        yield
