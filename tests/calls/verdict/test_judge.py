"""What is said of results, correct and wrong, whose error and tolerance are derived by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from probe.calls.verdict import SEVERITY, KernelVerdict, Subject, judge, worst_of
from probe.common.numerics.formats import rounding_format
from probe.common.numerics.rounding import rounded_to

# --- what is said of results, correct and wrong, whose error and tolerance are derived by hand

HALVES = ("bfloat16", "float16")
DTYPES = ("float32", *HALVES)


def held(values: Any, dtype: str) -> Any:
    form = rounding_format(dtype)
    assert form is not None
    return rounded_to(np.asarray(values, np.float64), form)


def verdict(base: str, result: Any, reference: Any, **given: Any) -> KernelVerdict:
    """Of a subject; without `moved` an input that is moved by 1 % moves each element by 1 %."""
    reference = np.asarray(reference)
    dtype = given.get("dtype", "float32")
    inputs = given.get("inputs", [])
    moved = given.get("moved", lambda unit: unit * np.abs(reference))
    return judge(
        Subject(
            base,
            given.get("direction", "forward"),
            np.asarray(result),
            reference,
            dtype,
            inputs,
            given.get("input_dtypes", [dtype] * len(inputs)),
            lambda unit, inside: given.get("moved_inside", moved)(unit) if inside else moved(unit),
            given.get("rounded", lambda name: None),
            given.get("yardstick", lambda: None),
            given.get("settings", {}),
        )
    )


def normal(*shape: int) -> Any:
    return np.random.default_rng(7).standard_normal(shape)


# --- structure and trivial sizes


def test_another_shape_is_structure() -> None:
    found = verdict("Torch.exp", np.zeros((2, 3)), np.zeros((3, 2)))
    assert (found.status, found.interpretation) == ("structure", "shape [2, 3] where the reference has [3, 2]")


def test_the_worst_status_of_several() -> None:
    assert worst_of(["pass", "error", "suspect"]) == "error"
    assert worst_of([]) == "not run"
    assert list(SEVERITY) == ["not run", "exact", "pass", "suspect", "error", "nonfinite", "structure"]


# --- tolerances


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rounded_reference_is_exact_for_every_operation(dtype: str) -> None:
    exact = normal(8, 9)
    for base in ("Torch.exp", "Torch.add", "Functional.unheard_of", "Torch.matmul", "Functional.relu"):
        assert verdict(base, held(exact, dtype), exact, dtype=dtype).status == "exact"


@pytest.mark.parametrize("dtype", DTYPES)
def test_operations_that_only_move_values_may_not_change_a_bit(dtype: str) -> None:
    form = rounding_format(dtype)
    assert form is not None
    exact = held(normal(4, 4), dtype)
    wrong = exact.copy()
    wrong[2, 1] = held(wrong[2, 1] * (1 + 2 * form.unit), dtype)
    found = verdict("Tensor.transpose", wrong, exact, dtype=dtype)
    assert (found.status, found.worst_index, found.tolerance) == ("error", (2, 1), pytest.approx(0, abs=1e-35))


def test_one_rounding_is_half_a_unit_in_the_last_place() -> None:
    # 1 + 2^-24 lies in the middle of two numbers of float32; the next but one is 1.5 units away.
    exact = np.array([1 + 2.0**-24 * 0.99])
    inputs = [np.ones(1), np.ones(1)]
    assert verdict("Torch.mul", [1.0], exact, inputs=inputs).status == "exact"
    found = verdict("Torch.mul", [1 + 2.0**-22], exact, inputs=inputs)
    assert found.status == "suspect"
    assert found.ratio == pytest.approx((2.0**-22 - 2.0**-24 * 0.99) / 2.0**-24, rel=2e-3)
    assert found.max_ulp == pytest.approx(found.ratio / 2, rel=2e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_unknown_operation_may_lose_what_its_conditioning_loses(dtype: str) -> None:
    form = rounding_format(dtype)
    assert form is not None
    # A difference of two numbers near 100 that is 1 large: moving them by a roundoff moves it by 100 to 200 of them.
    exact = 1 + 0.25 * normal(50) ** 2
    result = held(exact + 200 * form.unit * np.sin(np.arange(50)), dtype)
    moved = {"moved": lambda unit: np.full(50, 200 * unit)}
    assert verdict("Functional.difference", result, exact, dtype=dtype, **moved).status == "pass"
    assert verdict("Functional.difference", result, exact, dtype=dtype).status in ("suspect", "error")


def test_a_gradient_is_as_good_as_the_gradient_that_came_in() -> None:
    exact = 1 + normal(32) ** 2
    result = held(held(exact, "bfloat16"), "float32")
    inputs, dtypes = [exact, exact], ["float32", "float32"]
    assert verdict("Functional.linear", result, exact, direction="backward", inputs=inputs).status != "pass"
    dtypes = ["float32", "bfloat16"]
    found = verdict("Functional.linear", result, exact, direction="backward", inputs=inputs, input_dtypes=dtypes)
    assert found.status == "pass"


def test_a_sum_of_more_terms_may_lose_more() -> None:
    # 4 + sqrt(10000) / 2 units of 2^-24, and 4 times 2 + 50 of the norm of the terms, whatever few draws show.
    given: dict[str, Any] = {"moved": lambda unit: np.zeros(()), "inputs": [np.full(10_000, 1e-4)]}
    found = verdict("Torch.sum", 1 + 50 * 2.0**-24, 1.0, **given)
    assert (found.status, found.bound) == ("pass", "sum of 10000")
    assert found.ratio == pytest.approx(50 / 54, rel=1e-3)
    assert verdict("Torch.sum", 1 + 60 * 2.0**-24, 1.0, **given).status == "suspect"
    assert verdict("Torch.sum", 1 + 50 * 2.0**-24, 1.0, **{**given, "inputs": [np.full(9, 1 / 9)]}).status == "suspect"


def test_a_yardstick_excuses_what_another_correct_kernel_does_too() -> None:
    exact = np.linspace(1, 2, 20)
    wrong = exact + 1e-3
    assert verdict("Functional.unheard_of", wrong, exact).status == "error"
    assert verdict("Functional.unheard_of", wrong, exact, yardstick=lambda: exact - 5e-4).status == "pass"


def test_what_cancels_inside_of_an_activation_has_the_size_of_its_input() -> None:
    # gelu(-5) = -5 Phi(-5), where Phi(-5) = (1 + erf(-5 / sqrt(2))) / 2 = 2.8665157e-7 is known to 2^-24 only.
    exact = -5 * 2.8665157187919333e-07
    given: dict[str, Any] = {"inputs": [np.full(1, -5.0)]}
    assert verdict("Functional.gelu", [exact + 5 * 2.0**-24], [exact], **given).status == "pass"
    assert verdict("Functional.unheard_of", [exact + 5 * 2.0**-24], [exact], **given).status == "error"


def test_subnormal_numbers_may_be_flushed_but_not_those_of_float16() -> None:
    assert verdict("Torch.exp", [0.0], [1e-39]).status == "pass"
    assert verdict("Torch.exp", [0.0], [1e-39], dtype="bfloat16").status == "pass"
    assert verdict("Torch.exp", [0.0], [3e-5], dtype="float16").status == "error"
    assert verdict("Torch.exp", [6e-8], [1e-7], dtype="float16").status in ("exact", "pass")


@pytest.mark.parametrize("base", ["Tensor.clone", "Torch.cat", "Functional.relu", "Torch.mul", "Torch.add"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_numbers_that_are_copied_or_rounded_once_are_not_flushed(base: str, dtype: str) -> None:
    given: dict[str, Any] = {"dtype": dtype, "inputs": [np.ones(2), np.ones(2)]}
    found = verdict(base, [0.0, 1.0], [held(1e-39, dtype), 1.0], **given)
    assert (found.status, found.interpretation) == ("suspect", "1 of 2 numbers below 1.2e-38 are set to zero")
    assert verdict(base, [0.0, 1.0], [held(1e-37, dtype), 1.0], **given).status == "error"


def test_a_number_that_is_too_large_is_infinite_and_nothing_else() -> None:
    for wrong in (0.0, 65504.0):
        assert verdict("Tensor.to", [wrong, 1.0], [1e5, 1.0], dtype="float16").status == "error"
    assert verdict("Tensor.to", [np.inf, 1.0], [1e5, 1.0], dtype="float16").status == "exact"
    # A format without infinity has its largest number there, or NaN.
    assert verdict("Tensor.to", [448.0, 1.0], [1e5, 1.0], dtype="float8_e4m3fn").status in ("exact", "pass")
    assert verdict("Tensor.to", [0.0, 1.0], [1e5, 1.0], dtype="float8_e4m3fn").status == "error"


# --- what correct kernels may do


def test_the_order_of_eigenvalues_is_free_but_nan_is_none() -> None:
    values = normal(8)
    found = verdict("Torch.linalg.eigvals", values[::-1], values)
    assert (found.status, found.interpretation) == ("not run", "the order of the eigenvalues is free")
    assert verdict("Torch.linalg.eigvals", np.full(8, np.nan), values).status == "nonfinite"


@pytest.mark.parametrize("base", ["Torch.svd", "Torch.linalg.svd", "Torch.linalg_eigh", "Torch.qr"])
def test_vectors_with_the_other_sign_are_as_right(base: str) -> None:
    vectors, _ = np.linalg.qr(normal(6, 6))
    given: dict[str, Any] = {"inputs": [normal(6, 6)]}
    other = vectors * np.array([-1, 1, 1, -1, 1, 1])
    assert verdict(base, held(other, "float32"), vectors, **given).status == "exact"
    assert verdict(base, held(other * 1.01, "float32"), vectors, **given).status == "error"
    assert verdict(base, np.zeros((6, 6)), vectors, **given).status == "error"
    if base != "Torch.qr":
        values = np.arange(1.0, 7)
        assert verdict(base, -values, values, **given).status == "error"
    found = verdict(base, other, vectors, direction="backward", inputs=[vectors, vectors])
    assert (found.status, found.interpretation) == ("not run", "the sign of each vector is free")


def test_distances_may_be_computed_from_squares() -> None:
    points = held(normal(40, 8), "float32").astype(np.float32)
    exact = np.sqrt(((points[:, None].astype(np.float64) - points[None]) ** 2).sum(-1))
    squares = (points**2).sum(-1)
    result = np.sqrt(np.maximum(squares[:, None] + squares[None] - 2 * points @ points.T, 0))
    assert result.diagonal().max() > 1e-5
    given: dict[str, Any] = {"inputs": [points, points]}
    assert verdict("Torch.cdist", result, exact, **given).status == "pass"
    assert verdict("Torch.cdist", result + np.float32(0.01), exact, **given).status == "error"
    assert verdict("Functional.unheard_of", result, exact, **given).status == "error"


def test_the_gradient_of_a_weight_of_all_rows_is_a_sum() -> None:
    gradient = (normal(50_000, 16) + 0.3).astype(np.float32)
    exact = gradient.sum(0, dtype=np.float64)
    result = np.add.accumulate(gradient, axis=0)[-1]
    inputs = [gradient, np.ones(16), np.zeros(16), gradient]
    given: dict[str, Any] = {"direction": "backward", "inputs": inputs, "moved": lambda unit: np.full(16, 500 * unit)}
    found = verdict("Functional.layer_norm", result, exact, **given)
    assert (found.status, found.bound) == ("pass", "sum of 50000")
    assert verdict("Functional.layer_norm", result * np.float32(1.001), exact, **given).status == "error"


def test_what_is_computed_inside_is_moved_where_the_inputs_explain_nothing() -> None:
    asked = []

    def inside(unit: float) -> Any:
        asked.append(unit)
        return np.full(20, 1e4 * unit)

    exact = np.linspace(1, 2, 20)
    given: dict[str, Any] = {"moved_inside": inside}
    assert verdict("Functional.unheard_of", held(exact, "float32") * (1 + 5e-7), exact, **given).status == "pass"
    assert not asked
    assert verdict("Functional.unheard_of", exact + 1e-3, exact, **given).status == "pass"
    assert asked == [2.0**-24]


@pytest.mark.parametrize(("base", "weight"), [("conv2d", (8, 3, 3, 3)), ("conv_transpose2d", (3, 8, 3, 3))])
def test_the_gradient_of_a_convolution_sums_over_all_places(base: str, weight: tuple[int, ...]) -> None:
    inputs = [np.ones((4, 3, 32, 32)), np.ones(weight), np.ones((4, 8, 32, 32))]
    found = verdict(f"Functional.{base}", np.ones(weight), np.full(weight, 2.0), direction="backward", inputs=inputs)
    assert found.bound == "dot product of 4096"


def test_zeros_whatever_the_inputs_are_may_be_differences_of_rounded_numbers() -> None:
    given: dict[str, Any] = {"inputs": [np.array([[3.0]]), np.array([1.0])], "moved": lambda unit: np.zeros((1, 1))}
    assert verdict("Functional.layer_norm", [[1e-7]], [[0.0]], **given).status == "pass"
    assert verdict("Functional.layer_norm", [[1e-4]], [[0.0]], **given).status == "error"


def test_the_next_number_is_another_one_in_float64() -> None:
    values = np.ones(8, np.float32)
    result, exact = np.nextafter(values, np.float32(2)), np.nextafter(values.astype(np.float64), 2)
    assert verdict("Torch.nextafter", result, exact).status == "pass"
    assert verdict("Torch.nextafter", values + np.float32(2e-6), exact).status == "suspect"


def test_a_scalar_that_the_dtype_lacks_is_another_rounding() -> None:
    result = held(0.3 * 1.1, "bfloat16") * (1 + 2.0**-7)
    given: dict[str, Any] = {"dtype": "bfloat16", "inputs": [np.ones(1)]}
    assert verdict("Tensor.__mul__", [result], [0.33], settings={"1": 2}, **given).status == "suspect"
    assert verdict("Tensor.__mul__", [result], [0.33], settings={"1": 0.3}, **given).status == "pass"


# --- factors that all elements have in common


@pytest.mark.parametrize("dtype", HALVES)
def test_a_scale_smaller_than_a_unit_is_found_over_many_elements(dtype: str) -> None:
    exact = normal(64, 64)
    found = verdict("Functional.silu", held(exact * 1.002, dtype), exact, dtype=dtype, inputs=[exact])
    # Of bfloat16 half a unit roundoff, of float16 more than four.
    status = {"bfloat16": "suspect", "float16": "error"}[dtype]
    assert (found.status, found.interpretation[:26]) == (status, "the elements are 0.2 % too")
    # More than the roundings of a result make is no chance, even where each element for itself could be right.
    moved = {"moved": lambda unit: 3 * unit * np.abs(exact)}
    for scale in (1.05, 0.96):
        found = verdict("Functional.gelu", held(exact * scale, dtype), exact, dtype=dtype, inputs=[exact], **moved)
        assert found.status == "error"


@pytest.mark.parametrize("dtype", HALVES)
def test_roundings_have_no_factor_in_common(dtype: str) -> None:
    exact = normal(64, 64)
    # Rounded to float32 and once more; cut off at random positions of the last place.
    noise = 1 + rounding_format(dtype).unit * (np.random.default_rng(3).random(exact.shape) - 0.5)  # type: ignore[union-attr]
    assert verdict("Functional.silu", held(exact * noise, dtype), exact, dtype=dtype, inputs=[exact]).status == "pass"


# --- what is not finite


def test_nan_in_one_element() -> None:
    result = normal(64, 64)
    result[0, 3] = math.nan
    found = verdict("Torch.exp", result, normal(64, 64))
    assert (found.status, found.worst_index) == ("nonfinite", (0, 3))
    assert found.interpretation.startswith("NaN in 1 of 4096, first at [0, 3], where the reference is ")


def test_the_same_nan_and_infinity_are_right() -> None:
    values = np.array([math.nan, math.inf, -math.inf, 1.0])
    assert verdict("Torch.exp", values, values).status == "exact"
    found = verdict("Torch.exp", values, np.array([math.nan, -math.inf, math.inf, 1.0]))
    assert (found.status, found.share_over) == ("nonfinite", 0.5)


@pytest.mark.parametrize(("dtype", "largest"), [("float16", 65504.0), ("bfloat16", 3.3895e38), ("float32", 3.4028e38)])
def test_beyond_the_largest_number_infinity_is_right(dtype: str, largest: float) -> None:
    exact = np.array([1.0, 2 * largest, -3 * largest])
    assert verdict("Torch.exp", [1.0, math.inf, -math.inf], exact, dtype=dtype).status == "exact"
    assert verdict("Torch.exp", [1.0, math.inf, math.inf], exact, dtype=dtype).status == "nonfinite"
    assert verdict("Torch.exp", [1.0, math.inf, -math.inf], exact / 8, dtype=dtype).status == "suspect"
    assert verdict("Torch.exp", [1.0, math.inf, -math.inf], exact / 64, dtype=dtype).status == "nonfinite"


def test_saturated_at_the_largest_number() -> None:
    exact = np.array([1.0, 7e4, 2.0, 9e4])
    found = verdict("Torch.exp", [1.0, 65504.0, 2.0, 65504.0], exact, dtype="float16")
    assert (found.status, found.interpretation) == ("error", "saturated at 65504 in 2 of 4")


# --- whole numbers and places


def test_whole_numbers_are_equal() -> None:
    assert verdict("Torch.sum", [1, 2], np.array([1, 2]), dtype="int64").status == "exact"
    found = verdict("Torch.sum", [1, 3], np.array([1, 2]), dtype="int64")
    assert (found.status, found.worst_index, found.worst_result, found.worst_reference) == ("error", (1,), 3, 2)


@pytest.mark.parametrize(
    ("base", "values", "result", "reference", "settings", "status"),
    [
        ("Torch.argmax", [[3.0, 5, 5]], [2], [1], {"dim": 1}, "exact"),
        ("Torch.argmax", [[3.0, 5, 5]], [0], [1], {"dim": 1}, "error"),
        ("Torch.argmax", [[3.0, 5], [5, 1]], 2, 1, {}, "exact"),
        ("Torch.argmax", [[3.0, 5, 5]], [7], [1], {"dim": 1}, "error"),
        ("Torch.sort", [2.0, 1, 1], [2, 1, 0], [1, 2, 0], {}, "exact"),
        ("Torch.sort", [2.0, 1, 1], [1, 1, 0], [1, 2, 0], {}, "error"),
        ("Torch.topk", [[4.0, 9, 9, 9]], [[3, 1]], [[1, 2]], {"1": 2}, "exact"),
        ("Torch.max", [[4.0, 9], [4, 2]], [1, 0], [0, 0], {"1": 0}, "error"),
        ("Torch.max", [[4.0, 9], [4, 2]], [1, 0], [0, 0], {"dim": 0}, "exact"),
        ("Torch.sum", [4.0, 4.0], [1], [0], {}, "error"),
    ],
)
def test_places_of_equal_values(
    base: str, values: Any, result: Any, reference: Any, settings: dict[str, Any], status: str
) -> None:
    given: dict[str, Any] = {"dtype": "int64", "settings": settings, "inputs": [np.array(values)]}
    if base == "Torch.max" and settings == {"1": 0}:
        result = [1, 1]
    assert verdict(base, np.array(result), np.array(reference), **given).status == status


# --- complex numbers


def test_complex_numbers_are_judged_by_their_distance() -> None:
    exact = normal(40) + 1j * normal(40)[::-1]
    moved = {"moved": lambda unit: unit * np.abs(exact)}
    result = exact.astype(np.complex64)
    assert verdict("Torch.fft", result, exact, dtype="complex64", **moved).status == "exact"
    found = verdict("Torch.fft", result * np.complex64(1.01), exact, dtype="complex64", **moved)
    assert (found.status, found.interpretation[:5]) == ("error", "every")


@pytest.mark.parametrize("base", ["Torch.abs", "Torch.sgn"])
def test_the_absolute_value_of_a_complex_number_is_rounded(base: str) -> None:
    values = normal(40) + 1j * normal(40)[::-1]
    single = values.astype(np.complex64)
    given: dict[str, Any] = {"inputs": [values], "input_dtypes": ["complex64"], "dtype": "complex64"}
    result = single / np.abs(single) * (1 + np.float32(2.0**-23))
    exact = values / np.abs(values)
    assert verdict(base, result, exact, **given).status == "pass"
    assert verdict(base, result * np.complex64(1 + 1e-5), exact, **given).status == "error"
    given = {"inputs": [exact.real], "dtype": "float32"}
    assert verdict(base, exact.real * (1 + 2.0**-22), exact.real, **given).status == "error"


def test_a_product_of_complex_numbers_that_is_too_large_may_be_nan() -> None:
    exact = np.array([1e60 + 1e60j, 1 + 1j])
    assert verdict("Torch.prod", np.array([complex("nan+nanj"), 1 + 1j]), exact, dtype="complex64").status == "exact"
    wrong = np.array([1e60 + 1e60j, complex("nan+nanj")])
    assert verdict("Torch.prod", wrong, exact, dtype="complex64").status == "nonfinite"


# --- very many elements


@pytest.mark.parametrize(("size", "expected"), [(1 << 17, "suspect"), (1 << 22, "pass")])
def test_the_worst_of_very_many_sums_may_be_farther_off(size: int, expected: str) -> None:
    """The constants stand for tensors of 2^17 elements at most; the largest of n normal errors grows with n."""
    exact = np.ones(size)
    wrong = exact.copy()
    # Granted are 4 roundings of the result, and 8 of the inputs.
    wrong[size // 2] += 13 * 2.0**-24
    assert verdict("Functional.softmax", wrong, exact).status == expected


# --- matrices of which a part overflows


def test_an_overflow_in_a_matrix_may_be_nan_elsewhere_in_its_gradient() -> None:
    exact = np.ones((2, 3, 3))
    exact[0, 1, 2] = 4e45
    result = np.where(exact > 1, np.inf, exact)
    result[0, 0] = np.nan
    given = {"direction": "backward", "inputs": [np.ones((2, 3, 3)), np.ones(2)]}
    found = verdict("Torch.det", result, exact, **given)
    assert (found.status, found.interpretation) == (
        "not run", "it cannot be judged: exact results reach 4e+45, which overflows",
    )  # fmt: skip
    result[1, 0, 0] = np.nan
    assert verdict("Torch.det", result, exact, **given).status == "nonfinite", "of the other matrix nothing overflows"
    assert verdict("Torch.exp", result, exact).status == "nonfinite", "it has no part in other elements"


# --- dropout is judged by what it promises, whatever was drawn


def dropped(
    result: Any, source: Any, settings: dict[str, Any], base: str = "Functional.dropout", **given: Any
) -> KernelVerdict:
    dtype = given.get("dtype", "float32")
    inputs = given.get("inputs", [source])
    return judge(
        Subject(
            base, given.get("direction", "forward"), held(result, dtype), np.zeros(np.shape(result)), dtype, inputs,
            [dtype] * len(inputs), lambda unit, inside: None, lambda name: None, lambda: None, settings,
        )
    )  # fmt: skip


def kept(count: int, p: float, seed: int = 1) -> Any:
    return np.random.default_rng(seed).random(count) >= p


SOURCE = 1 + np.random.default_rng(9).random(1000)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_kept_and_scaled_or_zero(p: float, dtype: str) -> None:
    source = held(SOURCE, dtype)
    found = dropped(source * kept(1000, p) / (1 - p), source, {"p": p}, dtype=dtype)
    assert found.status in ("exact", "pass")
    assert found.interpretation.endswith(f"of 1000 dropped at p = {p}, the others scaled")


def test_a_wrong_scale_is_an_error() -> None:
    found = dropped(SOURCE * kept(1000, 0.1), SOURCE, {"p": 0.1})
    assert found.status == "error"
    assert "neither dropped nor kept and scaled" in found.interpretation


@pytest.mark.parametrize(("count", "status"), [(19, "exact"), (30, "error"), (1000, "error")])
def test_everything_dropped_is_an_error_where_chance_does_not_do_it(count: int, status: str) -> None:
    # At p = 0.5 with a probability of 2^-19, of which twice the bound is above 1e-6, and 2^-30, below it.
    assert dropped(np.zeros(count), np.ones(count), {"p": 0.5}).status == status


def test_without_training_it_gives_its_input() -> None:
    def plain(result: Any) -> KernelVerdict:
        return judge(
            Subject(
                "Functional.dropout", "forward", result, SOURCE, "float64", [SOURCE], ["float64"],
                lambda unit, inside: unit * SOURCE, lambda name: None, lambda: None, {"p": 0.5, "training": False},
            )
        )  # fmt: skip

    assert plain(SOURCE).status == "exact"
    assert plain(SOURCE * kept(1000, 0.5) * 2).status == "error"


def test_gradients_are_dropped_where_the_output_was() -> None:
    gradient = SOURCE[::-1]
    mask = kept(1000, 0.3)
    given: dict[str, Any] = {"direction": "backward", "inputs": [SOURCE, gradient]}
    assert dropped(gradient * mask / 0.7, SOURCE, {"p": 0.3}, **given).status in ("exact", "pass")
    assert dropped(SOURCE * mask / 0.7, SOURCE, {"p": 0.3}, **given).status == "error"


def test_channels_are_dropped_whole() -> None:
    source = SOURCE.reshape(10, 20, 5)
    channels = kept(200, 0.5).reshape(10, 20, 1)
    given: dict[str, Any] = {"base": "Functional.dropout2d"}
    assert dropped(source * channels * 2, source, {"p": 0.5}, **given).status == "exact"
    alone = kept(1000, 0.5).reshape(10, 20, 5)
    found = dropped(source * alone * 2, source, {"p": 0.5}, **given)
    assert (found.status, found.interpretation) == ("error", "a channel is dropped in part")


def test_nan_from_nowhere() -> None:
    result = SOURCE * kept(1000, 0.5) * 2
    result[17] = np.nan
    assert dropped(result, SOURCE, {}).status == "nonfinite"


def test_a_primitive_tells_its_share_by_its_scale() -> None:
    mask = kept(1000, 0.2)
    given: dict[str, Any] = {"base": "Primitive.dropout.Dropout"}
    assert dropped(SOURCE * mask / 0.8, SOURCE, {}, **given).status in ("exact", "pass")
    assert dropped(SOURCE * mask / 0.3, SOURCE, {}, **given).status == "error"


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    # Klambauer et al. 2017: a (x d + alpha' (1 - d)) + b with a = (q + alpha'^2 q (1 - q))^-1/2, b = -a (1 - q) alpha'.
    p, low = 0.25, -1.7580993408473766
    a = (0.75 + low**2 * 0.75 * 0.25) ** -0.5
    mask = kept(1000, p)
    result = a * np.where(mask, SOURCE, low) - a * p * low
    given: dict[str, Any] = {"base": "Functional.alpha_dropout"}
    assert dropped(result, SOURCE, {"p": p}, **given).status in ("exact", "pass")
    assert dropped(a * np.where(mask, SOURCE, 0), SOURCE, {"p": p}, **given).status == "error"
