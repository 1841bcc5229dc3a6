"""Inputs that are generated from the statistics of a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_dumps import written

from probe.calls.arguments import RecordedArguments, Unreadable
from probe.calls.inputs import values_of
from probe.common.dump.reading.dump import Dump


@pytest.fixture
def dump(tmp_path: Path) -> Dump:
    return written(tmp_path, {}, level="L1")


def values(dump: Dump, entry: dict[str, Any], name: str = "Torch.f.0.forward", seed: int = 1) -> Any:
    entry = {"type": "torch.Tensor", "Mean": None, "Norm": None, "requires_grad": False, **entry}
    (leaf,) = RecordedArguments(name, {"input_args": [entry]}).leaves
    found = values_of(dump, leaf.item, leaf.dtype, leaf.shape, seed)
    assert found.generated or 0 in leaf.shape
    return found.array


def test_floats_lie_in_the_recorded_range_and_reach_its_ends(dump: Dump) -> None:
    found = values(dump, {"dtype": "torch.float32", "shape": [40, 5], "Max": 3.5, "Min": -1.25})
    assert found.shape == (40, 5)
    assert (found.min(), found.max()) == (-1.25, 3.5)
    assert np.unique(found).size == 200


def test_they_are_numbers_of_their_dtype(dump: Dump) -> None:
    """The reference would otherwise be computed from others than the device gets."""
    found = values(dump, {"dtype": "torch.bfloat16", "shape": [50], "Max": 3.5, "Min": -1.25})
    bits = found.astype(np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any()


def test_the_widest_range_of_a_dtype_has_numbers_in_it(dump: Dump) -> None:
    largest = float(np.finfo(np.float64).max)
    found = values(dump, {"dtype": "torch.float64", "shape": [9], "Max": largest, "Min": -largest})
    assert np.isfinite(found).all()
    assert np.unique(found).size == 9


def test_whole_numbers_stay_in_range_so_that_they_can_be_indices(dump: Dump) -> None:
    found = values(dump, {"dtype": "torch.int64", "shape": [100], "Max": 6, "Min": 2})
    assert set(found.tolist()) == {2, 3, 4, 5, 6}


@pytest.mark.parametrize(("low", "high", "expected"), [(False, True, {False, True}), (True, True, {True})])
def test_truth_values(dump: Dump, low: bool, high: bool, expected: set[bool]) -> None:
    found = values(dump, {"dtype": "torch.bool", "shape": [64], "Max": high, "Min": low})
    assert set(found.tolist()) == expected


@pytest.mark.parametrize("low", [float("-inf"), -3.4e38, -65504.0])
def test_a_mask_of_scores_is_causal_and_masks_no_whole_row(dump: Dump, low: float) -> None:
    found = values(dump, {"dtype": "torch.float32", "shape": [2, 1, 4, 6], "Max": 0.0, "Min": low})
    rounded = float(np.float32(low))
    assert set(np.unique(found)) == {rounded, 0.0}
    assert (found[1, 0, 0] == [0, 0, 0, rounded, rounded, rounded]).all()
    assert (found[0, 0, -1] == 0).all()


def test_nan_and_infinity_are_where_the_record_had_some(dump: Dump) -> None:
    entry = {"dtype": "torch.float32", "shape": [30], "Max": float("inf"), "Min": -2.0, "Nonfinite": 1,
             "Finite Max": 5.0, "Finite Min": -2.0}  # fmt: skip
    found = values(dump, entry)
    assert np.isposinf(found).sum() == 1
    finite = found[np.isfinite(found)]
    assert finite.min() >= -2.0
    assert finite.max() <= 5.0


def test_what_is_generated_depends_on_the_names_and_the_seed_alone(dump: Dump) -> None:
    entry = {"dtype": "torch.float32", "shape": [8], "Max": 1.0, "Min": 0.0}
    first = values(dump, entry)
    assert np.array_equal(first, values(dump, entry))
    assert not np.array_equal(first, values(dump, entry, seed=2))
    assert not np.array_equal(first, values(dump, entry, name="Torch.f.1.forward"))


def test_an_empty_tensor_needs_no_statistics(dump: Dump) -> None:
    assert values(dump, {"dtype": "torch.float32", "shape": [0, 4], "Max": None, "Min": None}).shape == (0, 4)


@pytest.mark.parametrize(
    ("entry", "text"),
    [({"dtype": "torch.float32", "shape": [2], "Max": None, "Min": None}, "no statistics"),
     ({"dtype": "torch.complex64", "shape": [2], "Max": 1.0, "Min": 0.0}, "complex64")],
)  # fmt: skip
def test_nothing_is_made_up(dump: Dump, entry: dict[str, Any], text: str) -> None:
    with pytest.raises(Unreadable, match=text):
        values(dump, entry)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("shape", [[], [1]])
def test_a_single_number_that_is_not_finite(dump: Dump, value: float, shape: list[int]) -> None:
    """A loss that is NaN is such a tensor."""
    entry = {"dtype": "torch.float32", "shape": shape, "Max": value, "Min": value, "Nonfinite": 1}
    assert np.array_equal(values(dump, entry), np.full(shape, value), equal_nan=True)


def test_an_infinity_beside_negative_numbers(dump: Dump) -> None:
    found = values(dump, {"dtype": "torch.float32", "shape": [20], "Max": -0.0645, "Min": float("-inf")})
    assert np.isneginf(found).sum() == 1
    assert (found[np.isfinite(found)] <= np.float32(-0.0645)).all()


def test_labels_that_a_loss_leaves_out_are_the_only_negative_ones(dump: Dump) -> None:
    found = values(dump, {"dtype": "torch.int64", "shape": [200], "Max": 198, "Min": -100})
    assert (found == -100).sum() == 1
    assert found[found != -100].min() >= 0
    assert found.max() == 198
