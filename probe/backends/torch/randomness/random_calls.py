"""PyTorch's functions that draw random numbers and are called from Python."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from probe.backends.shared.randomness.recorder import existing_calls
from probe.backends.torch.guards import compiling
from probe.common.interfaces import RandomCall
from probe.common.operations.function import Trait
from probe.common.operations.lookup import names_with

F = torch.nn.functional


def _function_drops(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> bool:
    return bool(training and p)


def _alpha_drops(input: Any, p: float = 0.5, training: bool = False, inplace: bool = False) -> bool:
    return bool(training and p)


def _builtin_drops(input: Any, p: float, train: bool) -> bool:
    return bool(train and p)


def _attention_drops(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *_: Any) -> bool:
    return bool(dropout_p)


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


def dropping_calls() -> list[RandomCall]:
    """The functions that drop elements at random; each says of the arguments of a call if they ask for it.

    Modules and ``multi_head_attention_forward`` call these functions by their names.
    """
    found = []
    for name in names_with(Trait.DROPS):
        drops = _alpha_drops if "alpha" in name else _function_drops
        found += [call._replace(draws=drops) for call in existing_calls("functional_random", F, [name], compiling)]
        builtins = existing_calls("torch_random", torch, [name, f"{name}_"], compiling)
        found += [call._replace(draws=_builtin_drops) for call in builtins]
    (attention,) = existing_calls("functional_random", F, ["scaled_dot_product_attention"], compiling)
    return [*found, attention._replace(draws=_attention_drops)]


def rank() -> int | None:
    """The rank in the default process group, or None while there is none."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else None
