"""Replays without communication: another rank may have no reason to run its step again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import torch

from probe.backends.protocol import ReplayError
from probe.backends.torch.internals import TorchDispatchMode

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
                raise ReplayError("a part of the model is wrapped in DistributedDataParallel by itself")
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
