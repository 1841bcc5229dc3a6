"""Sums in half precision: a correct kernel sums in float32 and rounds once, and others are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probe.calls.verdict import KernelVerdict, Subject, judge
from probe.common.numerics.formats import rounding_format
from probe.common.numerics.rounding import rounded_to

HALVES = ("bfloat16", "float16")


def held(values: Any, dtype: str) -> Any:
    form = rounding_format(dtype)
    assert form is not None
    return rounded_to(np.asarray(values, np.float64), form)


def accumulated(products: Any, dtype: str) -> Any:
    """The sum over the last dimension, rounded to `dtype` after each addition."""
    total = np.zeros(products.shape[:-1])
    for place in range(products.shape[-1]):
        total = held(total + products[..., place], dtype)
    return total


def matrices(dtype: str, terms: int, rows: int = 16, columns: int = 12) -> tuple[Any, Any]:
    draws = np.random.default_rng(3)
    return held(draws.standard_normal((rows, terms)), dtype), held(draws.standard_normal((columns, terms)), dtype)


def judged(base: str, result: Any, left: Any, right: Any, dtype: str, **given: Any) -> KernelVerdict:
    exact = left @ right.T

    def moved(unit: float, inside: bool) -> Any:
        draws = np.random.default_rng(5)
        farthest = np.zeros(exact.shape)
        for _ in range(8):
            a, b = (m * (1 + unit * draws.choice((-1.0, 1.0), m.shape)) for m in (left, right))
            farthest = np.maximum(farthest, np.abs(a @ b.T - exact))
        return farthest

    subject = Subject(
        base, "forward", result, exact, dtype, [left, right], [dtype] * 2, moved, lambda name: None, lambda: None, {},
        **given,
    )  # fmt: skip
    return judge(subject)


@pytest.mark.parametrize("terms", [128, 2048])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "base", ["Functional.linear", "Torch.matmul", "Torch.bmm", "Functional.conv1d", "Torch.einsum"]
)
def test_a_product_that_is_accumulated_in_half_precision_is_wrong(base: str, dtype: str, terms: int) -> None:
    left, right = matrices(dtype, terms)
    result = accumulated(left[:, None] * right[None], dtype)
    found = judged(base, result, left, right, dtype)
    assert (found.status, found.fits) == ("error", f"{dtype} accumulation")


@pytest.mark.parametrize("terms", [1, 2, 128, 2048])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_product_that_is_accumulated_in_float32_is_right(dtype: str, terms: int) -> None:
    left, right = matrices(dtype, terms)
    result = held(accumulated(left[:, None] * right[None], "float32"), dtype)
    assert judged("Torch.matmul", result, left, right, dtype).status in ("exact", "pass")


@pytest.mark.parametrize("dtype", HALVES)
def test_the_products_are_not_rounded_before_they_are_summed(dtype: str) -> None:
    left, right = matrices(dtype, 128)
    result = held(held(left[:, None] * right[None], dtype).sum(-1), dtype)
    assert judged("Torch.matmul", result, left, right, dtype).status in ("suspect", "error")
    # A function of two operations rounds in between, which is seen inside of it.
    inside = {"moved_inside": lambda unit: unit * (np.sqrt(((left[:, None] * right[None]) ** 2).sum(-1)))}
    assert judged("Torch.matmul", result, left, right, dtype, **inside).status == "pass"


@pytest.mark.parametrize("dtype", HALVES)
def test_a_kernel_that_is_known_to_sum_in_half_precision_may(dtype: str) -> None:
    left, right = matrices(dtype, 32)
    result = accumulated(left[:, None] * right[None], dtype)
    assert judged("Torch.addbmm", result, left, right, dtype).status == "pass"


def test_inputs_of_float32_are_rounded_under_autocast() -> None:
    left, right = matrices("float32", 128)
    result = held(held(left, "bfloat16") @ held(right, "bfloat16").T, "bfloat16")
    exact = left @ right.T
    subject = Subject(
        "Torch.matmul", "forward", result, exact, "bfloat16", [left, right], ["float32"] * 2,
        lambda unit, inside: np.full(exact.shape, unit * 20), lambda name: None, lambda: None, {}, precision="bfloat16",
    )  # fmt: skip
    assert judge(subject).status == "pass"
