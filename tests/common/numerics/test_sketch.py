"""Sketches of tensors: their definition, what they promise, and the compiled pass."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probe.backends.shared import tensors
from probe.common.numerics import sketch as sketches
from probe.common.numerics.sketch import LANES, Sketch, distance, sketch, unpacked

SEED = 20261129
ELEMENTS = np.arange(512 * 512)
STRUCTURES: dict[str, NDArray[np.bool_]] = {
    "all": ELEMENTS >= 0,
    "element": ELEMENTS == 70_007,
    "column": ELEMENTS % 512 == 5,
    "column of a narrow tensor": ELEMENTS % 24 == 5,
    "row": ELEMENTS // 512 == 7,
    "head": ELEMENTS % 512 // 64 == 3,
    "head of 40": ELEMENTS % 480 // 40 == 3,
    "channel of NCHW": ELEMENTS // 1024 % 16 == 3,
    "channel of NHWC": ELEMENTS % 96 == 3,
    "every 61st": ELEMENTS % 61 == 1,
    "every 64th": ELEMENTS % 64 == 1,
    "every 4,096th": ELEMENTS % 4096 == 17,
    "every 3,904th": ELEMENTS % 3904 == 17,
}


def by_definition(values: NDArray[Any]) -> NDArray[np.float64]:
    """The sums by the formulas of the documentation, element by element, with Python's integers."""

    def mixed(number: int) -> int:
        number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        number = (number ^ number >> 27) * 0x94D049BB133111EB % 2**64
        return number ^ number >> 31

    sums = np.zeros(64)
    for i, value in enumerate(values.reshape(-1).tolist()):
        row, column = divmod(i, 64)
        sign = -1 if mixed((row + 1) * 0x9E3779B97F4A7C15 % 2**64) >> column & 1 else 1
        sums[column ^ mixed(row % 4093) >> 58] += sign * value
    return sums


def compiled(values: NDArray[Any]) -> Sketch:
    address = values.__array_interface__["data"][0]
    strides = tuple(stride // values.itemsize for stride in values.strides)
    assert tensors.reduce is not None
    packed = tensors.reduce(address, values.shape, strides, tensors.KINDS[str(values.dtype)], False, True)[4]
    assert packed is not None
    return unpacked(packed)


def agree(found: Sketch, expected: Sketch) -> None:
    scale = float(np.linalg.norm(expected.sums.astype(np.float64))) or 1.0
    np.testing.assert_allclose(found.sums, expected.sums, rtol=0, atol=3e-7 * scale)
    assert found.excluded == expected.excluded
    assert (found.marks is None) == (expected.marks is None)
    if found.marks is not None and expected.marks is not None:
        np.testing.assert_array_equal(found.marks, expected.marks)


needs_compiled = pytest.mark.skipif(tensors.reduce is None, reason="the package was installed without a C compiler")


class TestDefinition:
    @pytest.mark.parametrize("elements", [1, 63, 64, 65, 1000, 64 * 4093 + 130])
    def test_numpy_computes_what_the_page_says(self, elements: int) -> None:
        values = np.random.default_rng(SEED).standard_normal(elements)
        np.testing.assert_allclose(sketch(values).sums, by_definition(values), rtol=1e-5, atol=1e-4)

    def test_shape_and_layout_do_not_matter(self) -> None:
        values = np.random.default_rng(SEED).standard_normal((64, 48))
        np.testing.assert_array_equal(sketch(values).sums, sketch(values.reshape(4, 16, 48)).sums)
        np.testing.assert_array_equal(sketch(values).sums, sketch(np.asfortranarray(values)).sums)


class TestPromises:
    @pytest.mark.sampled(least=3, each=False)
    @pytest.mark.parametrize("structure", STRUCTURES)
    def test_difference_is_estimated_within_30_percent_in_99_of_100_draws(self, structure: str) -> None:
        changed, draws = STRUCTURES[structure], np.random.default_rng(SEED)
        ratios = []
        for _ in range(100):
            difference = np.zeros(ELEMENTS.size)
            difference[changed] = draws.standard_normal(int(changed.sum()))
            ratios.append(float(np.linalg.norm(sketch(difference).sums) / np.linalg.norm(difference)))
        assert sum(abs(ratio - 1) < 0.3 for ratio in ratios) >= 99, f"seed {SEED}"

    def test_sketches_add_up_and_multiply(self) -> None:
        draws = np.random.default_rng(SEED)
        one, other = draws.standard_normal(10_000), draws.standard_normal(10_000)
        both = sketch(3 * one - other).sums
        expected = 3 * sketch(one).sums - sketch(other).sums
        np.testing.assert_allclose(both, expected, rtol=0, atol=4e-7 * np.linalg.norm(both))

    def test_distance_of_a_millionth_is_seen(self) -> None:
        draws = np.random.default_rng(SEED)
        values = draws.standard_normal(100_000)
        moved = distance(sketch(values + 1e-6 * draws.standard_normal(100_000)), sketch(values))
        assert moved.relative == pytest.approx(1e-6, rel=0.3)
        assert moved.low < 1e-6 * math.sqrt(100_000) < moved.high

    def test_interval_holds_the_distance_in_99_of_100_draws(self) -> None:
        draws, inside = np.random.default_rng(SEED), 0
        for _ in range(100):
            values, change = draws.standard_normal(3000), draws.standard_normal(3000)
            found = distance(sketch(values + change), sketch(values))
            inside += found.low <= float(np.linalg.norm(change)) <= found.high
        assert inside >= 97, f"seed {SEED}"


class TestExcluded:
    def test_infinities_nan_and_huge_values_count_as_zero(self) -> None:
        values = np.random.default_rng(SEED).standard_normal(1000).astype(np.float32)
        odd = values.copy()
        odd[[3, 500, 700, 701]] = math.inf, -math.inf, math.nan, np.finfo(np.float32).min
        found, values[[3, 500, 700, 701]] = sketch(odd), 0
        np.testing.assert_array_equal(found.sums, sketch(values).sums)
        assert found.excluded == 4

    def test_masks_of_the_same_size_are_told_apart(self) -> None:
        causal = np.where(np.tri(64) > 0, 0, np.finfo(np.float32).min).astype(np.float32)
        other = sketch(causal.T.copy())
        assert other.excluded == sketch(causal).excluded
        assert not np.array_equal(other.marks, sketch(causal).marks)  # type: ignore[arg-type]

    def test_packed_sketches_come_back(self) -> None:
        for values in (np.arange(100.0), np.array([1.0, math.nan])):
            made = sketch(values)
            agree(unpacked(made.packed()), made)

    @pytest.mark.parametrize("size", [0, 4, 255, 260, 300])
    def test_other_bytes_are_refused(self, size: int) -> None:
        with pytest.raises(ValueError, match="no sketch"):
            unpacked(bytes(size))


@needs_compiled
class TestCompiled:
    @pytest.mark.parametrize("dtype", [kind for kind in tensors.KINDS if kind != "bfloat16"])
    @pytest.mark.parametrize("elements", [1, 63, 64, 65, 256, 257, 1000, 70_001])
    def test_every_kind_of_element_agrees(self, dtype: str, elements: int) -> None:
        values = (np.random.default_rng(SEED).standard_normal(elements) * 50).astype(dtype)
        agree(compiled(values), sketch(values))

    def test_strided_memory_is_read_in_the_order_of_the_tensor(self) -> None:
        values = np.random.default_rng(SEED).standard_normal((37, 5, 100)).astype(np.float32)
        images = np.random.default_rng(SEED).standard_normal((2, 9, 9, 33)).astype(np.float32)
        for view in (
            values.transpose(1, 0, 2), values.transpose(2, 1, 0), values[::2], values[:, :, ::3], values[:, :, :70],
            np.broadcast_to(values[:, :, None], (37, 5, 7, 100)), np.broadcast_to(values[0, 0, 0], (3, 200)),
            images.transpose(0, 3, 1, 2), values[:, :1], values[3:4, 2],
        ):  # fmt: skip
            agree(compiled(view), sketch(np.ascontiguousarray(view)))

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_excluded_elements_are_marked(self, dtype: str) -> None:
        values = np.random.default_rng(SEED).standard_normal((40, 50)).astype(dtype)
        values[3], values[4, 2], values[5] = math.inf, math.nan, -math.inf
        if dtype != "float16":
            values[6] = 2.0**100
            values[7] = np.nextafter(values.dtype.type(2.0**100), values.dtype.type(0))
        for view in (values, values.T):
            agree(compiled(view), sketch(np.ascontiguousarray(view)))


def test_a_sketch_takes_256_bytes() -> None:
    assert len(sketch(np.arange(1000.0)).packed()) == 4 * LANES == 256
    assert sketches.VERSION == 1
