"""What watching a training needs of PyTorch: its gradient scalers, and a word among the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any, Callable

import torch
import torch.distributed as dist

from probe.backends.shared import scalers, training
from probe.backends.shared.patching import Handles
from probe.backends.torch.guards import passed_over
from probe.backends.torch.hooks.torch_compile import readable_swap
from probe.common.interfaces import Handle


def scaler_step() -> FunctionType | None:
    """The method by which a gradient scaler lets an optimizer make its step."""
    # torch.amp has it from 2.3 on; the one for CUDA inherits it.
    step = getattr(torch.cuda.amp.GradScaler, "step", None)
    return step if isinstance(step, FunctionType) else None


def attach_scalers(note: scalers.Note) -> Handle:
    """Tell `note` of every optimizer's step that goes through a gradient scaler."""
    function = scaler_step()
    if function is None:
        return Handles([])

    @passed_over
    def step(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = body(*args, **kwargs)
        scalers.tell_of(note, lambda: scalers.of_step(body, args, kwargs))
        return result

    return training.OutermostCalls(function, readable_swap, step)


def largest_over_ranks(numbers: Sequence[int]) -> list[int]:
    """See `probe.backends.protocol.Watching`."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return list(numbers)
    flags = torch.tensor(numbers, dtype=torch.int32, device=_device())
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return [int(flag) for flag in flags.tolist()]


def _device() -> torch.device:
    """Where the default process group takes tensors from."""
    types = dist.distributed_c10d._get_default_group()._device_types
    # Without an index that of a device is the current one, as programs set it.
    return torch.device("cpu") if torch.device("cpu") in types else types[0]
