"""Functions that draw random numbers when torch is MindSpore underneath, in both shapes."""

from __future__ import annotations

from probe.backends.mindspore.randomness import random_calls as mindspore_random_calls
from probe.backends.msadapter.torch_modules import torch_module
from probe.backends.shared.randomness.recorder import existing_calls
from probe.common.interfaces import RandomCall
from probe.common.operations.function import Trait
from probe.common.operations.lookup import names_with

# init_process_group of torch.distributed initializes MindSpore's communication.
rank = mindspore_random_calls.rank


def torch_random_calls() -> list[RandomCall]:
    """The functions of torch and the methods of Tensor, which the two sides share, that draw random numbers."""
    torch, names = torch_module(), names_with(Trait.DRAWS)
    return [
        *existing_calls("torch_random", torch, names),
        *existing_calls("tensor_random", torch.Tensor, names),
    ]


def random_calls() -> list[RandomCall]:
    """Functions of torch that draw random numbers, and functions of MindSpore that have no torch name."""
    calls = torch_random_calls()
    known = {(call.owner, call.name) for call in calls}
    return calls + [call for call in mindspore_random_calls.random_calls() if (call.owner, call.name) not in known]
