"""Digests of tensors: one definition in numpy, the compiled pass, and the arithmetic of parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from probe.common.numerics import digests
from probe.common.numerics.digests import BASE, BFLOAT16, BITS, CUT, FACTORS, FLOAT16, PRIME, VALUE, Digested, Pass

DTYPES = ("float32", "bfloat16", "float16")


def numbers(count: int, seed: int = 0, strange: bool = False) -> Any:
    random = np.random.default_rng(seed)
    values = random.standard_normal(count).astype(np.float32)
    if strange:
        # Zeros of both signs, what no number is, and what rounds to zero or infinity in float16.
        values[: 12 * (count // 12) : 12] = -0.0
        for at, value in enumerate((np.nan, np.inf, -np.inf, -1e-44, 3e38, -1e-9, 70000.0, 2.0**100)):
            values[at * 5 + 1] = value
    return values


def words(values: Any, dtype: str) -> Any:
    with np.errstate(over="ignore"):
        return {
            "float32": lambda: values,
            "bfloat16": lambda: (values.view(np.uint32) >> 16).astype(np.uint16),
            "float16": lambda: values.astype(np.float16),
        }[dtype]()


def passed(data: Any, dtype: str, parts: int = 1) -> Digested:
    found = Pass(dtype)
    for part in np.array_split(data, parts):
        found.add(part)
    return found.finish()


@pytest.fixture(params=["vectors", "plain"])
def compiled(request: pytest.FixtureRequest) -> Iterator[Any]:
    part = digests._digests
    if part is None:
        pytest.skip("the compiled part is not built")
    if not part.use_vectors(request.param == "vectors") and request.param == "vectors":
        pytest.skip("the processor has no AVX2")
    yield
    part.use_vectors(True)


def test_a_digest_is_what_its_definition_says() -> None:
    data = np.random.default_rng(1).integers(0, 1 << 32, 200).astype(np.uint64)
    padded = [*data.tolist(), *[0] * 56]
    rows = [padded[start : start + 64] for start in range(0, 256, 64)]
    factors = FACTORS.tolist()
    sums = [sum(f * word for f, word in zip(factors, row)) % (1 << 64) for row in rows]
    assert digests.digest(data) == sum(pow(BASE, at, PRIME) * each for at, each in enumerate(sums)) % PRIME


def test_products_are_those_of_python() -> None:
    random = np.random.default_rng(2)
    ones, others = (random.integers(0, PRIME, 1000, dtype=np.uint64) for _ in range(2))
    ones[:2], others[:2] = PRIME - 1, (PRIME - 1, 0)
    wanted = [int(a) * int(b) % PRIME for a, b in zip(ones, others)]
    assert digests.times(ones, others).tolist() == wanted


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 64, 65, 5000])
def test_the_compiled_pass_is_the_one_of_numpy(
    compiled: None, monkeypatch: pytest.MonkeyPatch, dtype: str, count: int
) -> None:
    data = words(numbers(count, strange=count > 100), dtype)
    fast = passed(data, dtype, 3)
    monkeypatch.setattr(digests, "_digests", None)
    slow = passed(data, dtype)
    assert fast.digests == slow.digests and fast.elements == slow.elements
    assert fast[2:6] == slow[2:6]
    np.testing.assert_allclose(fast[6:8], slow[6:8], rtol=1e-5)
    np.testing.assert_allclose(fast.sketch.sums, slow.sketch.sums, rtol=1e-4, atol=1e-4 * max(slow.norm, 1e-30))
    assert fast.sketch.excluded == slow.sketch.excluded
    np.testing.assert_array_equal(fast.sketch.marks, slow.sketch.marks)


@pytest.mark.parametrize("size", [1e-30, 1e-24, 1e22, 1e29])
def test_the_norm_of_numbers_whose_squares_float32_does_not_hold(compiled: None, size: float) -> None:
    data = numbers(640) * np.float32(size)
    np.testing.assert_allclose(passed(data, "float32").norm, np.linalg.norm(data.astype(np.float64)), rtol=1e-6)


def test_digests_of_rounded_values_are_those_of_the_rounded_tensor() -> None:
    values = numbers(1000)
    exact, cut, half = (passed(words(values, dtype), dtype) for dtype in DTYPES)
    assert exact.digests[CUT] == cut.digests[VALUE]
    assert exact.digests[FLOAT16] == half.digests[VALUE] == half.digests[FLOAT16]
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    assert exact.digests[BFLOAT16] == passed(rounded, "bfloat16").digests[VALUE]
    assert len(set(exact.digests)) == 4  # bits and values of float32 are one


def test_zeros_of_both_signs_have_one_value_and_two_bits() -> None:
    one, other = (passed(np.array([1, zero], np.float32), "float32") for zero in (0.0, -0.0))
    assert one.digests[BITS] != other.digests[BITS]
    assert one.digests[VALUE:] == other.digests[VALUE:]


def test_a_changed_an_exchanged_and_a_negated_number_change_the_digest() -> None:
    values = numbers(4096)
    exchanged, negated, nearest = (values.copy() for _ in range(3))
    exchanged[[7, 3000]] = exchanged[[3000, 7]]
    negated[[1, 2000]] *= -1
    nearest[5] = np.nextafter(nearest[5], np.float32(9))
    found = {passed(each, "float32").digests[BITS] for each in (values, exchanged, negated, nearest)}
    assert len(found) == 4
    assert passed(values, "float32").elements == passed(exchanged, "float32").elements
    assert passed(values, "float32").elements != passed(negated, "float32").elements


def test_digests_of_parts_are_joined_and_taken_apart() -> None:
    data = np.random.default_rng(3).integers(0, 1 << 32, 640).astype(np.uint64)
    first, rest = digests.digest(data[:128]), digests.digest(data[128:])
    assert digests.joined([(first, 128), (rest, 512)]) == digests.digest(data)
    assert digests.part_between(first, digests.digest(data), 2) == rest
    assert digests.joined([(first, 100), (rest, 512)]) is None


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_parts_at_their_places_add_up_to_the_whole(dtype: str) -> None:
    data = numbers(512).astype(dtype)
    parts = []
    for start in (256, 0):
        found = Pass(dtype)
        found.seek(start // 64)
        found.add(data[start : start + 256])
        parts.append(found.finish())
    whole, together = passed(data, dtype), digests.added(*parts, (256, 256))
    assert together.digests == whole.digests and together.elements == whole.elements
    np.testing.assert_allclose(together.sketch.sums, whole.sketch.sums, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(together[4:8], whole[4:8], rtol=1e-5)
