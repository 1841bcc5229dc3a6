"""The group `Execution` of MindSpore, which the files of this folder make up."""

from __future__ import annotations

from probe.backends.mindspore.execution import script as words
from probe.backends.mindspore.execution.devices import device_name, devices, one_thread
from probe.backends.mindspore.execution.evaluation import autocast, evaluate, rounding_inside
from probe.backends.mindspore.execution.functions import function
from probe.backends.mindspore.execution.in_float64 import function as reference_function
from probe.backends.mindspore.execution.values import copied, dtype_name, plain_value, tensor, values
from probe.backends.mindspore.randomness.seeding import random_states, restore_draws, seed_draws, set_random_states
from probe.backends.mindspore.tensors.describe import is_tensor
from probe.backends.protocol import Compilation, OperatorListener, ScriptWords

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
compilation: Compilation | None = None
# Data kept for gradients that nobody asks for is freed together with what the program needs.
differentiates_anywhere = False


def attach_operators(listener: OperatorListener) -> None:
    """None: MindSpore computes its functions in C++, and offers nothing below them."""
    return None
