"""What of PyTorch draws random numbers and is called from Python."""

from __future__ import annotations

import torch
import torch.distributed as dist

from probe.backends.shared.randomness.recorder import existing_calls
from probe.backends.torch.guards import compiling
from probe.backends.torch.randomness.random_names import FUNCTIONS, TENSOR_METHODS
from probe.common.interfaces import RandomCall


def random_calls() -> list[RandomCall]:
    """The functions of `torch` and the methods of `torch.Tensor` that draw random numbers."""
    # ``with torch.device(...)`` knows the functions it applies to by identity, and learns them at its first use. Were
    # that to be after the replacement, it would not recognise the originals we call.
    with torch.device("meta"):
        torch.empty(0)
    functions = existing_calls("torch_random", torch, FUNCTIONS, compiling)
    return functions + existing_calls("tensor_random", torch.Tensor, TENSOR_METHODS, compiling)


def rank() -> int | None:
    """The rank in the default process group, or None while there is none."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else None
