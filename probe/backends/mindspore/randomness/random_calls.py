"""What of MindSpore draws random numbers and is called from Python.

Dropout is not in these lists, and neither are initializers: they draw from numpy's generator.
"""

from __future__ import annotations

import os

import mindspore
from mindspore import mint, ops
from mindspore.communication import get_rank

from probe.backends.mindspore import internals
from probe.backends.shared.randomness.recorder import existing_calls
from probe.common.interfaces import RandomCall

_OPS = (
    "bernoulli",
    "bernoulli_",
    "bernoulli_ext",
    "choice_with_mask",
    "exponential_",
    "gamma",
    "laplace",
    "log_uniform_candidate_sampler",
    "multinomial",
    "multinomial_with_replacement",
    "normal",
    "normal_",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "random_",
    "random_categorical",
    "random_gamma",
    "random_poisson",
    "randperm",
    "shuffle",
    "standard_laplace",
    "standard_normal",
    "uniform",
    "uniform_",
    "uniform_candidate_sampler",
)
_MINT = (
    "bernoulli",
    "multinomial",
    "normal",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
)
_TENSOR_METHODS = (
    "bernoulli",
    "bernoulli_",
    "cauchy",
    "exponential_",
    "log_normal",
    "multinomial",
    "normal_",
    "random_",
    "random_categorical",
    "uniform",
    "uniform_",
)


def random_calls() -> list[RandomCall]:
    """The functions of ops and mint and the methods of Tensor that draw random numbers."""
    return [
        *existing_calls("ops_random", ops, _OPS),
        *existing_calls("mint_random", mint, _MINT),
        *existing_calls("tensor_random", mindspore.Tensor, _TENSOR_METHODS),
    ]


def rank() -> int | None:
    """The rank in the world group, or None while there is none."""
    # Without the first question get_rank answers 0; the scheduler of a job has initialized but is none of its ranks.
    if not internals.has_communication() or os.environ.get("MS_ROLE") == "MS_SCHED":
        return None
    return int(get_rank())
