"""The bound of a call depends on what its function does, by whichever name it was recorded."""

from __future__ import annotations

import math

import numpy as np
import pytest

from probe.common.dump.reading.items import Item
from probe.common.numerics.error_bounds import (
    CONFIDENCE,
    GRADIENT,
    Terms,
    approximation,
    condition,
    condition_of_product,
)


def tensor(size: float, *shape: int) -> Item:
    norm = size * math.sqrt(math.prod(shape))
    return Item("x", "input", "torch.float32", shape, max=size, min=-size, mean=0.0, norm=norm, requires_grad=False)


SMALL, LARGE = tensor(1e-3, 4), tensor(1.0, 4)


def terms() -> Terms:
    found = Terms()
    found.add(LARGE, 1e-6)
    found.add(LARGE, 1e-6)
    return found


@pytest.mark.parametrize("name", ["mul", "mul_", "__rmul__", "multiply", "Mul", "relu_", "RealDiv", "__itruediv__"])
def test_a_product_keeps_the_relative_error_by_any_name(name: str) -> None:
    assert condition(name, terms(), SMALL, SMALL) == 1.0


@pytest.mark.parametrize("name", ["add", "sub_", "mean", "backwards", "Custom"])
def test_what_may_cancel_does_not(name: str) -> None:
    assert condition(name, terms(), SMALL, SMALL) == pytest.approx(1e3)


@pytest.mark.parametrize("name", ["softmax", "Softmax", "exp_", "_softmax"])
def test_an_exponential_turns_absolute_into_relative_errors(name: str) -> None:
    assert condition(name, terms(), SMALL, SMALL) == 3.0


@pytest.mark.parametrize("name", ["sum", "cumsum", "nansum", "ReduceSum", GRADIENT])
def test_a_sum_of_many_may_cancel_more(name: str) -> None:
    many = Terms()
    many.add(tensor(1.0, 4, 100), 1e-6)
    assert condition(name, many, SMALL, SMALL) > 5 * condition("mean", many, SMALL, SMALL)


@pytest.mark.parametrize("name", ["matmul", "__matmul__", "bmm", "MatMul", "Dense", "dense", "Conv2D", "addmm_"])
def test_a_sum_of_products_may_have_larger_terms_than_its_factors(name: str) -> None:
    assert condition_of_product(name, terms(), SMALL, SMALL) > 1e2
    assert condition_of_product("mul", terms(), SMALL, SMALL) == 1


def test_the_name_of_a_layer_tells_how_its_kernel_approximates() -> None:
    assert approximation("Tanh") == approximation("tanh") == 2e-4 and approximation("Linear") == 0.0


def test_rounding_is_expected_to_grow_with_the_root_of_the_length() -> None:
    """The bound of Higham and Mary holds for sums of random terms, which are computed here."""
    random = np.random.default_rng(20)
    for length in (64, 1024, 16384):
        a, b = random.normal(size=(2, 200, length)).astype(np.float32)
        products = a * b
        rounded = np.zeros(200, np.float32)
        for column in products.T:
            rounded += column
        exact = products.astype(np.float64).sum(1)
        apart = np.linalg.norm(rounded - exact) / np.linalg.norm(exact)
        assert apart < CONFIDENCE * np.sqrt(length) * 2.0**-24
