"""MindSpore's functions that draw random numbers and are called from Python.

Dropout is not among it, and neither are initializers: they draw from numpy's generator.
"""

from __future__ import annotations

import os

import mindspore
from mindspore import mint, ops
from mindspore.communication import get_rank

from probe.backends.mindspore import internals
from probe.backends.shared.randomness.recorder import existing_calls
from probe.common.interfaces import RandomCall
from probe.common.operations.function import Trait
from probe.common.operations.lookup import names_with


def random_calls() -> list[RandomCall]:
    """The functions of ops and mint and the methods of Tensor that draw random numbers."""
    names = names_with(Trait.DRAWS)
    return [
        *existing_calls("ops_random", ops, names),
        *existing_calls("mint_random", mint, names),
        *existing_calls("tensor_random", mindspore.Tensor, names),
    ]


def dropping_calls() -> list[RandomCall]:
    """None: MindSpore's dropouts draw in primitives, which are no functions that could be replaced."""
    return []


def rank() -> int | None:
    """The rank in the world group, or None while there is none."""
    # Without the first question get_rank answers 0; the scheduler of a job has initialized but is none of its ranks.
    if not internals.has_communication() or os.environ.get("MS_ROLE") == "MS_SCHED":
        return None
    return int(get_rank())
