"""PyTorch's functions that draw random numbers and are called from Python."""

from __future__ import annotations

import torch
import torch.distributed as dist

from probe.backends.shared.randomness.recorder import existing_calls
from probe.backends.torch.guards import compiling
from probe.common.interfaces import RandomCall
from probe.common.operations.function import Trait
from probe.common.operations.lookup import names_with


def random_calls() -> list[RandomCall]:
    """The functions of `torch` and the methods of `torch.Tensor` that draw random numbers."""
    # ``with torch.device(...)`` knows the functions it applies to by identity, and learns them at its first use. Were
    # that to be after the replacement, it would not recognise the originals we call.
    with torch.device("meta"):
        torch.empty(0)
    # Draws inside C++, such as dropout, never pass through a Python attribute that could be replaced.
    names = names_with(Trait.DRAWS)
    functions = existing_calls("torch_random", torch, names, compiling)
    return functions + existing_calls("tensor_random", torch.Tensor, names, compiling)


def rank() -> int | None:
    """The rank in the default process group, or None while there is none."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else None
