"""The names of torch's functions that draw random numbers, for every backend that has functions of these names."""

from __future__ import annotations

# Functions that draw inside C++ (dropout, ``rrelu``, the dropout of attention and of recurrent layers) are not in the
# first two lists: they never pass through a Python attribute that could be replaced.
FUNCTIONS = (
    "bernoulli",
    "binomial",
    "multinomial",
    "normal",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
)
TENSOR_METHODS = (
    "bernoulli",
    "bernoulli_",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "multinomial",
    "normal_",
    "random_",
    "uniform_",
)
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
