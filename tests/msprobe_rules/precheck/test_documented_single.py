"""One device by the documented classes: correct results pass in every dtype, and what 26.2.0 misses is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probe.msprobe_rules.output.details import DetailsRow
from probe.msprobe_rules.precheck import v26_2_single
from probe.msprobe_rules.precheck.documented_single import classify_output, classify_tensor, rounded, worst_of
from probe.msprobe_rules.precheck.outputs import Tensor

OF_CLASS = {
    "binary": "Torch.sort",
    "absolute_threshold": "Torch.mul",
    "ulp": "Torch.matmul",
    "dual_1000": "Functional.conv2d",
    "benchmark": "Functional.silu",
}
DTYPES = ("float16", "bfloat16", "float32")
Array = NDArray[Any]


def wide(seed: int = 0, size: int = 4096) -> Array:
    """Magnitudes from 1e-6 to 1e3, with zeros."""
    random = np.random.default_rng(seed)
    values: Array = random.normal(size=size) * 10.0 ** random.uniform(-6, 3, size)
    values[::97] = 0
    return values


def judged(base: str, result: Array, reference: Array, dtype: str) -> DetailsRow:
    return classify_tensor(base, result, reference, dtype, "name")


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
@pytest.mark.parametrize("base", OF_CLASS.values())
def test_the_correctly_rounded_result_passes(base: str, dtype: str) -> None:
    # P4: in bfloat16 the release warns of it.
    reference = wide()
    row = judged(base, rounded(reference, dtype), reference, dtype)
    assert (row.status, row.message) == ("pass", "")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("base", OF_CLASS.values())
def test_equal_specials_pass_and_unequal_ones_do_not(base: str, dtype: str) -> None:
    # P7 and P8.
    reference = np.abs(wide()) + 1
    reference[3:6] = np.nan, np.inf, -np.inf
    result = rounded(reference, dtype)
    assert judged(base, result, reference, dtype).status == "pass"
    for place, wrong in ((0, np.nan), (1, np.inf), (3, 1.0), (4, -np.inf), (5, np.nan)):
        bad = result.copy()
        bad[place] = wrong
        assert judged(base, bad, reference, dtype).status == "error", (place, wrong)


@pytest.mark.parametrize("base", OF_CLASS.values())
def test_what_overflows_the_dtype_is_infinite_on_both_sides(base: str) -> None:
    reference = np.full(200, 1e6)
    assert judged(base, rounded(reference, "float16"), reference, "float16").status == "pass"


@pytest.mark.parametrize(
    ("base", "dtype", "limit"),
    [
        ("Torch.mul", "float16", 2**-10),
        ("Torch.mul", "bfloat16", 2**-8),
        ("Torch.mul", "float32", 2**-20),
        ("Functional.conv2d", "float32", 1e-3),
        ("Functional.silu", "float32", 1e-3),
        ("Functional.silu", "float16", 1e-2),
    ],
)
def test_the_limit_of_a_class_holds(base: str, dtype: str, limit: float) -> None:
    # Results that are held exactly, so that the limit is met from both sides.
    result = np.full(2000, 1024.0)
    assert judged(base, result.astype(np.float32), result / (1 + limit * 0.9), dtype).status != "error"
    assert judged(base, result.astype(np.float32), result / (1 + limit * 1.1), dtype).status == "error"


def test_small_results_that_are_twice_as_large_are_found() -> None:
    # P3: the release passes everything below 1e-3.
    reference = wide() * 1e-7
    reference = reference[np.abs(reference) > 1e-8]
    assert judged("Functional.silu", (reference * 2).astype(np.float32), reference, "float32").status == "error"
    assert (
        v26_2_single.classify_tensor("x.silu", (reference * 2).astype(np.float32), reference, "float32", "n").status
        == "pass"
    )


def test_a_ulp_class_counts_elements_beyond_one_unit() -> None:
    reference = np.full(10000, 1.5)
    result = rounded(reference, "bfloat16")
    result[:9] += 4 * 2.0**-7
    assert judged("Torch.matmul", result, reference, "bfloat16").status == "pass"
    result[:10] = 1.5 + 4 * 2.0**-7
    row = judged("Torch.matmul", result, reference, "bfloat16")
    assert (row.status, row.metrics["max_ulp"], row.metrics["ulp_share"]) == ("error", 4, 0.001)


def test_an_exact_api_finds_one_element_that_is_one_unit_off() -> None:
    reference = rounded(wide(), "float16").astype(np.float64)
    result = reference.astype(np.float16)
    result[5] = np.nextafter(result[5], np.float16(np.inf))
    row = judged("Torch.sort", result, reference, "float16")
    assert (row.status, row.metrics["binary_error_rate"]) == ("error", 1 / 4096)


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8", "bool"])
def test_whole_numbers_have_to_be_equal_whatever_the_api(dtype: str) -> None:
    reference = np.arange(256).astype(dtype)
    result = reference.copy()
    assert judged("Torch.matmul", result, reference, dtype).status == "pass"
    result[7] = not result[7] if dtype == "bool" else result[7] + 1
    assert judged("Torch.matmul", result, reference, dtype).status == "error"


def test_where_it_quantises_numbers_may_be_one_off_and_no_more() -> None:
    reference = np.arange(100, dtype=np.int8)
    assert judged("NPU.npu_quantize", reference + np.int8(1), reference, "int8").status == "pass"
    assert judged("NPU.npu_quantize", reference + np.int8(2), reference, "int8").status == "error"
    assert judged("NPU.npu_quantize", np.full(1, 127, np.int8), np.full(1, -128, np.int8), "int8").status == "error"


def test_complex_numbers_are_judged_by_their_parts() -> None:
    reference = wide(1) + 1j * wide(2)
    assert judged("Torch.fft", reference.astype(np.complex64), reference, "complex64").status == "pass"
    assert judged("Torch.fft", reference.conj().astype(np.complex64), reference, "complex64").status == "error"


def test_a_zero_dimensional_and_an_empty_tensor() -> None:
    assert judged("Functional.silu", np.float32(2.0).reshape(()), np.array(2.0), "float32").status == "pass"
    assert judged("Functional.silu", np.zeros((0, 3), np.float32), np.zeros((0, 3)), "float32").status == "SKIP"


def test_shapes_and_kinds_that_differ_are_named() -> None:
    row = judged("Functional.silu", np.zeros((2, 3), np.float32), np.zeros((3, 2)), "float32")
    assert (row.status, row.message) == ("error", "the device's shape is (2, 3), the reference's (3, 2).")
    row = judged("Functional.silu", np.zeros(3, np.int64), np.zeros(3), "int64")
    assert (row.status, row.message) == ("error", "the device's dtype is int64, the reference's float64.")


def test_a_dtype_without_limits_is_not_judged() -> None:
    row = judged("Functional.silu", np.ones(3, np.float32), np.ones(3), "float8_e4m3fn")
    assert (row.status, row.message) == ("SKIP", "there are no documented limits for float8_e4m3fn.")


class TestDropout:
    """P17: only how many elements are zero is looked at by the release."""

    @staticmethod
    def drawn(size: int, seed: int, share: float = 0.5, scale: float = 2.0) -> Array:
        kept = np.random.default_rng(seed).random(size) >= share
        values: Array = kept * scale * np.linspace(1, 2, size)
        return values

    @pytest.mark.parametrize("size", [10, 50, 99, 2000])
    def test_other_elements_may_be_dropped(self, size: int) -> None:
        for seed in range(20):
            result, reference = self.drawn(size, seed), self.drawn(size, seed + 100)
            assert judged("Functional.dropout", result.astype(np.float32), reference, "float32").status == "pass"

    @pytest.mark.parametrize("size", [50, 99, 2000])
    def test_everything_dropped_is_an_error(self, size: int) -> None:
        result = np.zeros(size, np.float32)
        assert judged("Functional.dropout", result, self.drawn(size, 1), "float32").status == "error"

    def test_a_wrong_scale_is_an_error(self) -> None:
        result = self.drawn(2000, 1, scale=1.0).astype(np.float32)
        assert judged("Functional.dropout", result, self.drawn(2000, 2), "float32").status == "error"

    def test_alpha_dropout_is_not_judged(self) -> None:
        result = self.drawn(200, 1).astype(np.float32)
        assert judged("Functional.alpha_dropout", result, self.drawn(200, 2), "float32").status == "SKIP"


def tensor(values: Array) -> Tensor:
    return Tensor(values.astype(np.float32), "float32")


class TestWholeOutputs:
    """P6 and P10."""

    good, bad = np.linspace(1, 2, 64), np.linspace(2, 1, 64)

    def rows(self, result: Any, reference: Any) -> list[tuple[str, str]]:
        rows = classify_output("Torch.sin", result, reference, "o")
        return [(row.name, row.status) for row in rows]

    def test_lists_and_dicts_of_lists_are_gone_into(self) -> None:
        one, other, wrong = tensor(self.good), Tensor(self.good, "float64"), tensor(self.bad)
        assert self.rows([one, [wrong, None]], [other, [other, None]]) == [
            ("o.0", "pass"), ("o.1.0", "error"), ("o.1.1", "SKIP"),
        ]  # fmt: skip
        assert self.rows({"a": [one], "b": 3}, {"a": [other], "b": 4}) == [("o.0.a.0", "pass"), ("o.0.b", "error")]

    @pytest.mark.parametrize("less", ["result", "reference"])
    def test_an_item_that_one_side_lacks_is_an_error(self, less: str) -> None:
        one, other = tensor(self.good), Tensor(self.good, "float64")
        pair = ([one], [other, other]) if less == "result" else ([one, one], [other])
        assert ("o", "error") in self.rows(*pair)
        keys = ({"a": one}, {"a": other, "b": other}) if less == "result" else ({"a": one, "b": one}, {"a": other})
        assert ("o.0", "error") in self.rows(*keys)

    def test_a_case_is_as_bad_as_its_worst_output(self) -> None:
        assert worst_of(["error", "warning"]) == worst_of(["warning", "error"]) == "error"
        assert worst_of(["pass", "warning", "SKIP"]) == "warning"
        assert worst_of(["SKIP"]) == worst_of([]) == "SKIP"

    def test_plain_values_have_to_be_equal_and_of_one_type(self) -> None:
        assert self.rows(float("nan"), float("nan")) == [("o.0", "pass")]
        assert self.rows(1, 1.0) == self.rows(None, 1) == self.rows("a", "b") == [("o.0", "error")]
