"""Which tensors of two runs are held to have the same values, given their statistics."""

from __future__ import annotations

import numpy as np
from made_dumps import tensor_of

from probe.common.dump.reading.records import Item, Record
from probe.compare.divergence.same_values import SameValues

RNG = np.random.default_rng(5)
X = RNG.normal(size=(6, 8))


def item(array: np.ndarray, dtype: str = "torch.float32") -> Item:
    return Record("Torch.mul.0.forward", {"output": [tensor_of(array, dtype)]}, "dump.json").items()[0]


def test_shape_and_order_do_not_matter() -> None:
    target, golden = item(X.reshape(48)), item(X.T)
    same = SameValues([target], [golden])
    assert same.label(target) is not None and same.label(target) == same.label(golden)


def test_what_rounding_makes_of_a_value_is_the_same_value() -> None:
    target, golden = item(X * (1 + 1e-6)), item(X)
    same = SameValues([target], [golden])
    assert same.label(target) == same.label(golden) is not None


def test_a_value_that_the_other_run_does_not_have_has_no_label() -> None:
    target, golden = item(X * (1 + 1e-3)), item(X)
    same = SameValues([target], [golden])
    assert same.label(target) is same.label(golden) is None


def test_constants_and_whole_numbers_are_no_evidence() -> None:
    for array, dtype in ((np.ones((2, 2)), "float32"), (X.round(), "int64"), (np.full(3, np.inf), "float32")):
        target, golden = item(array, f"torch.{dtype}"), item(array, f"torch.{dtype}")
        assert SameValues([target], [golden]).label(target) is None


def test_in_a_short_type_each_is_the_nearest_of_several_that_would_do() -> None:
    weights = [RNG.normal(size=(6, 8)) * (1 + 0.004 * number) for number in range(3)]
    rounded = [item(np.float16(weight).astype(float) * (1 + 1e-4), "torch.bfloat16") for weight in weights]
    exact = [item(weight) for weight in weights]
    same = SameValues(rounded, exact)
    labels = [same.label(each) for each in rounded]
    assert labels == [same.label(each) for each in exact] and len({*labels}) == 3 and None not in labels
