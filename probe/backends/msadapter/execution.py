"""The group `Execution` of MSAdapter: torch's names, MindSpore's tensors."""

from __future__ import annotations

from probe.backends.mindspore.execution.group import (
    attach_operators,
    autocast,
    copied,
    device_name,
    devices,
    differentiates_anywhere,
    dtype_name,
    evaluate,
    is_tensor,
    one_thread,
    restore_draws,
    rounding_inside,
    tensor,
    values,
)
from probe.backends.msadapter import script as words
from probe.backends.msadapter.functions import function, plain_value, reference_function
from probe.backends.msadapter.randomness import random_states, seed_draws, set_random_states
from probe.backends.protocol import Compilation, ScriptWords

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
