"""What a failing result is said to be: the precision it fits, sums in half precision, the interpretation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probe.calls.verdict import KernelVerdict, Subject, judge
from probe.common.numerics.formats import rounding_format
from probe.common.numerics.rounding import rounded_to

# --- what a failing result is said to be: the precision it fits, and the line of interpretation

DTYPES = ("float32", "bfloat16", "float16")


def held(values: Any, dtype: str) -> Any:
    form = rounding_format(dtype)
    assert form is not None
    return rounded_to(np.asarray(values, np.float64), form)


def product(result: Any, left: Any, right: Any, dtype: str = "float32") -> KernelVerdict:
    """Of a product of two matrices, with everything that the runner offers."""
    exact = left @ right

    def moved(unit: float, inside: bool) -> Any:
        draws = np.random.default_rng(5)
        farthest = np.zeros(exact.shape)
        for _ in range(8):
            a, b = (m * (1 + unit * draws.choice((-1.0, 1.0), m.shape)) for m in (left, right))
            farthest = np.maximum(farthest, np.abs(a @ b - exact))
        return farthest

    return judge(
        Subject(
            "Torch.matmul", "forward", result, exact, dtype, [left, right], [dtype] * 2, moved,
            lambda name: held(left, name) @ held(right, name), lambda: None, {},
        )
    )  # fmt: skip


def matrices(dtype: str = "float32", rows: int = 24, terms: int = 48, columns: int = 16) -> tuple[Any, Any]:
    draws = np.random.default_rng(11)
    return held(draws.standard_normal((rows, terms)), dtype), held(draws.standard_normal((terms, columns)), dtype)


# --- precisions


@pytest.mark.parametrize("name", ["bfloat16", "tfloat32 or float16"])
def test_a_result_that_was_stored_in_a_lower_precision(name: str) -> None:
    left, right = matrices()
    found = product(held(left @ right, name.split()[-1]), left, right)
    assert (found.status, found.fits) == ("error", f"{name} result")


@pytest.mark.parametrize("name", ["bfloat16", "tfloat32 or float16"])
def test_inputs_that_were_rounded_first(name: str) -> None:
    left, right = matrices()
    rounded = [held(matrix, name.split()[0]) for matrix in (left, right)]
    found = product(held(rounded[0] @ rounded[1], "float32"), left, right)
    assert (found.status, found.fits) == ("error", f"{name} inputs")


def test_sums_that_were_accumulated_in_a_lower_precision() -> None:
    left, right = matrices()
    total = np.zeros((24, 16))
    for term in range(48):
        total = held(total + np.outer(left[:, term], right[term]), "bfloat16")
    # The last sum is not stored in bfloat16.
    found = product(held(total + 1e-4 * np.sin(np.arange(16)), "float32"), left, right)
    assert found.status == "error"
    assert found.fits == "bfloat16 accumulation"


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_wrong_element_is_no_matter_of_precision(dtype: str) -> None:
    left, right = matrices(dtype)
    wrong = held(left @ right, dtype)
    wrong[3, 5] = held(wrong[3, 5] * 2 + 3, dtype)
    found = product(wrong, left, right, dtype)
    assert (found.fits, found.interpretation) == (None, "one element only, at [3, 5]")
    assert found.worst_index == (3, 5)


# --- one line


WRONG: list[tuple[str, Any]] = [
    ("every element is zero, so nothing was computed", lambda v: 0 * v),
    ("sign flipped", lambda v: -v),
    ("every element 5 % low: scale", lambda v: v * 0.95),
    ("every element twice as large as it should be: scale", lambda v: 2 * v),
    ("shifted by one along dim 0", lambda v: np.roll(v, 1, 0)),
    ("shifted by minus one along dim 1", lambda v: np.roll(v, -1, 1)),
    ("the same values all along dim 0", lambda v: np.broadcast_to(v[:1], v.shape).copy()),
    ("last 3 of dim 1 wrong (zeros)", lambda v: np.where(np.arange(v.shape[1]) < v.shape[1] - 3, v, 0)),
    ("first 2 of dim 0 wrong (zeros)", lambda v: np.where(np.arange(v.shape[0])[:, None] > 1, v, 0)),
    (
        "indices 12 to 15 of dim 0 wrong (zeros)",
        lambda v: np.where(abs(np.arange(v.shape[0])[:, None] - 13.5) > 2, v, 0),
    ),
    ("index 5 of dim 1 only", lambda v: np.where(np.arange(v.shape[1]) == 5, 3 * v + 20, v)),
    ("40 added to every element", lambda v: v + 40),
    ("sign flipped: one element only, at [1, 2]", lambda v: np.where(v == v[1, 2], -v, v)),
    ("first element only", lambda v: np.where(np.arange(v.size).reshape(v.shape) == 0, v + 50, v)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("words", "change"), WRONG, ids=[words for words, _ in WRONG])
def test_what_a_wrong_result_looks_like(words: str, change: Any, dtype: str) -> None:
    left, right = matrices(dtype)
    found = product(held(change(held(left @ right, dtype)), dtype), left, right, dtype)
    assert (found.status in ("suspect", "error"), found.interpretation) == (True, words)


def test_an_input_given_back() -> None:
    values = np.random.default_rng(2).standard_normal((5, 6))
    found = judge(
        Subject(
            "Functional.softplus", "forward", values, np.log1p(np.exp(values)), "float32", [values], ["float32"],
            lambda unit, inside: unit * np.abs(values), lambda name: None, lambda: None, {},
        )
    )  # fmt: skip
    assert found.interpretation == "equals input 0, so nothing was computed"


def of_values(result: Any, exact: Any, direction: str = "forward", inputs: Any = ()) -> str:
    """The line on a result in float32 of an operation without a rule."""
    return judge(
        Subject(
            "Functional.unheard_of", direction, result, exact, "float32", list(inputs), ["float32"] * len(inputs),
            lambda unit, inside: unit * np.abs(exact), lambda name: None, lambda: None, {},
        )
    ).interpretation  # fmt: skip


def test_a_gap_of_one_small_value_is_not_saturated() -> None:
    exact = np.random.default_rng(2).standard_normal((4, 50)) + 5
    wrong = exact.copy()
    wrong.reshape(-1)[70:88] = 1.7e-38
    assert "saturated" not in of_values(wrong, exact)
    assert "(all the same value)" in of_values(wrong, exact)


# --- sums in half precision: a correct kernel sums in float32 and rounds once, and others are found

HALVES = ("bfloat16", "float16")


def accumulated(products: Any, dtype: str) -> Any:
    """The sum over the last dimension, rounded to `dtype` after each addition."""
    total = np.zeros(products.shape[:-1])
    for place in range(products.shape[-1]):
        total = held(total + products[..., place], dtype)
    return total


def halves(dtype: str, terms: int, rows: int = 16, columns: int = 12) -> tuple[Any, Any]:
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
    left, right = halves(dtype, terms)
    result = accumulated(left[:, None] * right[None], dtype)
    found = judged(base, result, left, right, dtype)
    assert (found.status, found.fits) == ("error", f"{dtype} accumulation")


@pytest.mark.parametrize("terms", [1, 2, 128, 2048])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_product_that_is_accumulated_in_float32_is_right(dtype: str, terms: int) -> None:
    left, right = halves(dtype, terms)
    result = held(accumulated(left[:, None] * right[None], "float32"), dtype)
    assert judged("Torch.matmul", result, left, right, dtype).status in ("exact", "pass")


@pytest.mark.parametrize("dtype", HALVES)
def test_a_kernel_that_is_known_to_sum_in_half_precision_may(dtype: str) -> None:
    left, right = halves(dtype, 32)
    result = accumulated(left[:, None] * right[None], dtype)
    assert judged("Torch.addbmm", result, left, right, dtype).status == "pass"


def test_inputs_of_float32_are_rounded_under_autocast() -> None:
    left, right = halves("float32", 128)
    result = held(held(left, "bfloat16") @ held(right, "bfloat16").T, "bfloat16")
    exact = left @ right.T
    subject = Subject(
        "Torch.matmul", "forward", result, exact, "bfloat16", [left, right], ["float32"] * 2,
        lambda unit, inside: np.full(exact.shape, unit * 20), lambda name: None, lambda: None, {}, precision="bfloat16",
    )  # fmt: skip
    assert judge(subject).status == "pass"
