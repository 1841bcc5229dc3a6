"""The group `Execution` of PyTorch, which the files of this folder make up."""

from __future__ import annotations

from probe.backends.protocol import Compilation, ScriptWords
from probe.backends.torch.execution import compilation as compiler
from probe.backends.torch.execution import script as words
from probe.backends.torch.execution.copies import copied
from probe.backends.torch.execution.evaluation import autocast, devices, evaluate, one_thread, restore_draws, seed_draws
from probe.backends.torch.execution.functions import function, reference_function
from probe.backends.torch.execution.rounding import rounding_inside
from probe.backends.torch.execution.values import device_name, dtype_name, plain_value, tensor, values
from probe.backends.torch.hooks.operators import attach_operators
from probe.backends.torch.randomness.seeding import get_states as random_states
from probe.backends.torch.randomness.seeding import set_states as set_random_states
from probe.backends.torch.tensors.describe import is_tensor

__all__ = [
    "attach_operators",
    "autocast",
    "compilation",
    "copied",
    "device_name",
    "devices",
    "differentiates_anywhere",
    "dtype_name",
    "evaluate",
    "function",
    "is_tensor",
    "one_thread",
    "plain_value",
    "random_states",
    "reference_function",
    "restore_draws",
    "rounding_inside",
    "script",
    "seed_draws",
    "set_random_states",
    "tensor",
    "values",
]

script: ScriptWords = words
compilation: Compilation | None = compiler
differentiates_anywhere = True
