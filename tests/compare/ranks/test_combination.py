"""Sums over ranks in short dtypes, in any order: what they are is found from sketches, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from probe.common.numerics.formats import FORMATS
from probe.common.numerics.rounding import rounded_to
from probe.common.numerics.sketch import sketch
from probe.compare.ranks.combination import (
    Combination,
    Sketches,
    Sums,
    distance,
    explanations,
    fits,
    in_words,
    largest_distance,
    listed,
    origin,
)
from probe.compare.ranks.reductions import fits_estimate

ELEMENTS = 4000


def sums(array: np.ndarray) -> Sums:
    return sketch(array).sums.astype("f8")


def reduced(parts: list[np.ndarray], dtype: str, factor: float = 1.0) -> np.ndarray:
    """The sum of the parts in order, rounded after each addition, times a factor."""
    whole = parts[0]
    for part in parts[1:]:
        whole = rounded_to(whole + part, FORMATS[dtype])
    return rounded_to(whole * factor, FORMATS[dtype])


@pytest.mark.parametrize("common", [0.0, 3.0], ids=["independent", "alike"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("world", [2, 8, 64])
def test_a_sum_in_any_order_fits_and_others_do_not(world: int, dtype: str, common: float) -> None:
    random = np.random.default_rng(world)
    unit = FORMATS[dtype].unit
    shared = common * random.standard_normal(ELEMENTS)
    parts = [rounded_to(random.standard_normal(ELEMENTS) + shared, FORMATS[dtype]) for _ in range(world)]
    sketches = dict(enumerate(map(sums, parts)))
    every = tuple(range(world))
    for _ in range(5):
        order = random.permutation(world)
        for factor in (1.0, 1 / world):
            result = sums(reduced([parts[rank] for rank in order], dtype, factor))
            assert fits(result, sketches, Combination(every, factor), unit)
            assert explanations(result, sketches, 0, unit) == [Combination(every, factor)]
            found = origin(result, sketches, 0, unit)
            assert found is not None and found.ranks == every and found.factor == pytest.approx(factor, rel=0.02)
    own = sums(parts[0])
    assert not any(fits(own, sketches, Combination(every, factor), unit) for factor in (1.0, 1 / world))
    assert explanations(own, sketches, 0, unit)[0] == Combination((0,), 1.0)
    if not common:
        assert origin(own, sketches, 0, unit) == Combination((0,), 1.0)


def test_a_group_is_found_and_said() -> None:
    random = np.random.default_rng(0)
    parts = [random.standard_normal(ELEMENTS).astype("f4") for _ in range(4)]
    sketches = dict(enumerate(map(sums, parts)))
    result = sums(reduced([parts[1], parts[3]], "float32", 0.5))
    (found,) = explanations(result, sketches, 1, 2.0**-24)
    assert found == Combination((1, 3), 0.5)
    assert in_words(found, 1, range(4)) == "the mean over ranks 1, 3 alone: another group"
    assert explanations(sums(random.standard_normal(ELEMENTS)), sketches, 0, 2.0**-24) == []


def test_tensors_that_are_the_same_on_all_ranks_may_be_several_things() -> None:
    same = {rank: sums(np.arange(100.0)) for rank in range(2)}
    found = explanations(same[0], same, 0, 2.0**-24)
    assert found == [Combination((0, 1), 0.5), Combination((0,), 1.0)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_of_many_ranks_the_one_whose_tensor_or_multiple_came_out_is_found_among_few(dtype: str) -> None:
    of = FORMATS[dtype.replace("_", "")]
    random = np.random.default_rng(4)
    parts = [rounded_to(random.standard_normal(200), of) for _ in range(60)]
    sketches = Sketches(dict(enumerate(map(sums, parts))))
    for rank, factor in ((17, 1.0), (50, 1.0), (50, 0.3)):
        result = sums(rounded_to(parts[rank] * factor, of))
        near = sketches.near(result, of.unit)
        assert rank in near
        if of.unit < 2.0**-8:
            assert len(near) < 10
            assert origin(result, sketches, 0, of.unit) == origin(result, dict(sketches), 0, of.unit)
            assert factor != 1 or explanations(result, sketches, 0, of.unit) == [Combination((rank,), 1.0)]
    far = [rank for rank in sketches if fits(sums(parts[3]), sketches, Combination((rank,), 1.0), of.unit)]
    assert set(far) <= set(sketches.near(sums(parts[3]), of.unit))


def test_the_largest_distance_of_many_is_that_of_all_pairs() -> None:
    random = np.random.default_rng(5)
    every = [sums(random.standard_normal(50) * random.choice([1, 1e-3, 0])) for _ in range(40)]
    assert largest_distance(every) == max(distance(one, other) for one in every for other in every)
    assert largest_distance([every[0]] * 20) == 0


def test_few_ranks_are_named_and_many_by_their_ends() -> None:
    assert listed([0, 1, 2, 3]) == "0, 1, 2, 3" and listed([0, *range(2, 1000)]) == "0, 2-999"


def test_a_norm_fits_its_estimate_by_a_sketch_and_half_or_twice_of_it_rarely_does() -> None:
    random = np.random.default_rng(0)
    tensors = [random.standard_normal(ELEMENTS).astype("f4") for _ in range(2000)]
    norms = [(float(np.linalg.norm(tensor)), float(np.linalg.norm(sums(tensor)))) for tensor in tensors]
    # 30 % of the estimate would leave out one in 250.
    assert all(fits_estimate(norm, estimate) for norm, estimate in norms)
    assert any(abs(norm - estimate) > 0.3 * estimate for norm, estimate in norms)
    for factor in (0.5, 2.0):
        assert sum(fits_estimate(factor * norm, estimate) for norm, estimate in norms) < 0.1 * len(norms)
