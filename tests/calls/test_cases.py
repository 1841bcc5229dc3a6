"""Cases of a dump: which calls they are, and their arguments and inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_dumps import call, tensor, written

from probe.calls.arguments import RecordedArguments, Unreadable
from probe.calls.cases import Selection, cases_of, not_run, values_of
from probe.common.dump.reading.dump import Dump
from probe.common.errors import MsprobeException

# --- which calls of a dump are checked


def record(largest: float = 1.0, size: int = 3) -> dict[str, Any]:
    entry = tensor(largest, 0.0, 0.5, shape=[size], requires_grad=True)
    return call([entry], [entry])


def test_a_case_is_a_forward_with_its_backward(tmp_path: Path) -> None:
    data = {"Functional.relu.0.forward": record(), "Torch.exp.0.forward": record(),
            "Functional.relu.0.backward": {"input": [], "output": []}}  # fmt: skip
    relu, exp = cases_of(written(tmp_path, data), Selection())
    assert (relu.name, relu.base) == ("Functional.relu.0", "Functional.relu")
    assert relu.backward is not None
    assert exp.backward is None


def test_a_dump_without_values_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MsprobeException, match=r'"task" is "structure".*"tensor"'):
        cases_of(written(tmp_path, {}, task="structure"), Selection())


def test_of_calls_that_differ_in_values_only_one_stays_and_says_for_how_many_it_stands(tmp_path: Path) -> None:
    data = {f"Torch.exp.{number}.forward": record(number, 3 if number < 3 else 4) for number in range(5)}
    found = cases_of(written(tmp_path, data), Selection(distinct=True))
    assert [(case.name, case.stands_for) for case in found] == [("Torch.exp.0", 3), ("Torch.exp.3", 2)]


def test_a_name_on_both_lists_is_left_out() -> None:
    selection = Selection(frozenset(("linear", "relu")), frozenset(("relu",)))
    assert selection.leaves_out("Functional.linear") is None
    assert selection.leaves_out("Functional.relu") == "relu is in black_list"
    assert selection.leaves_out("Torch.exp") == "exp is not in white_list"


@pytest.mark.parametrize(
    ("base", "reason"),
    [("Distributed.all_reduce", "the other ranks"), ("MintDistributed.all_gather", "the other ranks"),
     ("Tensor.to", "computes nothing"), ("Torch.empty_like", "computes nothing"),
     ("Aten.new_empty.default", "computes nothing"), ("Torch.exp", None)],
)  # fmt: skip
def test_what_is_never_run_says_why(base: str, reason: str | None) -> None:
    found = not_run(base)
    assert found is None if reason is None else found is not None and reason in found


# --- the arguments of a recorded call, made again from its record

TENSOR = {"type": "torch.Tensor", "dtype": "torch.bfloat16", "shape": [2, 3], "Max": 1.0, "Min": -1.0, "Mean": 0.0,
          "Norm": 1.0, "requires_grad": True, "data_name": "x.pt"}  # fmt: skip


def bound(name: str, fields: dict[str, Any], tensors: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    return RecordedArguments(name, fields).bound(tensors, lambda entry: ("own", entry["value"]))


def test_each_tensor_has_a_place_in_the_order_of_the_arguments() -> None:
    arguments = RecordedArguments(
        "Torch.cat.0.forward", {"input_args": [[TENSOR, TENSOR]], "input_kwargs": {"out": TENSOR}}
    )
    assert [leaf.item.name for leaf in arguments.leaves] == [
        "Torch.cat.0.forward.input.0.0", "Torch.cat.0.forward.input.0.1", "Torch.cat.0.forward.input.out",
    ]  # fmt: skip
    assert arguments.leaves[0].dtype == "bfloat16"
    assert arguments.leaves[0].shape == (2, 3)
    assert arguments.bound(["a", "b", "c"], dict) == ([["a", "b"]], {"out": "c"})


def test_plain_values_have_the_types_they_had() -> None:
    entries = [
        {"type": "int", "value": 3}, {"type": "float", "value": 2.0}, {"type": "bool", "value": True},
        {"type": "str", "value": "ij"}, None, {"type": "ellipsis", "value": "..."},
        {"type": "slice", "value": [0, None, 2]}, {"type": "float32", "value": 0.5},
    ]  # fmt: skip
    args, _ = bound("Torch.f.0.forward", {"input_args": entries}, [])
    assert args == [3, 2.0, True, "ij", None, Ellipsis, slice(0, None, 2), 0.5]
    assert [type(each) for each in args[:3]] == [int, float, bool]


def test_settings_name_plain_arguments_by_place_and_by_name() -> None:
    named = {"keepdim": {"type": "bool", "value": True}}
    fields = {"input_args": [TENSOR, {"type": "int", "value": -1}], "input_kwargs": named}
    assert RecordedArguments("Torch.sum.0.forward", fields).settings == {"1": -1, "keepdim": True}


@pytest.mark.parametrize(
    ("dtype", "asked", "expected"),
    [("torch.float32", True, True), ("torch.float32", False, False), ("torch.int64", True, False),
     ("Float16", True, True), ("torch.complex64", True, True)],
)  # fmt: skip
def test_gradients_are_asked_for_where_the_record_has_them(dtype: str, asked: bool, expected: bool) -> None:
    entry = {**TENSOR, "dtype": dtype, "requires_grad": asked}
    (leaf,) = RecordedArguments("Torch.f.0.forward", {"input_args": [entry]}).leaves
    assert leaf.is_differentiated is expected


@pytest.mark.parametrize("fields", [{"input_args": [7]}, {"input_args": "x"}, {"input_args": [], "input_kwargs": [1]}])
def test_a_damaged_record_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(Unreadable):
        RecordedArguments("Torch.f.0.forward", fields)


def test_whole_numbers_as_an_index_are_not_guessed_at() -> None:
    """``x[[0, 2]]`` and ``x[0, 2]`` look alike in a dump."""
    index = [{"type": "int", "value": 0}, {"type": "int", "value": 2}]
    with pytest.raises(Unreadable, match="a list or a tuple"):
        RecordedArguments("Tensor.__setitem__.0.forward", {"input_args": [TENSOR, index, {"type": "int", "value": 0}]})


def test_values_of_the_framework_are_made_by_it() -> None:
    fields = {"input_args": [], "input_kwargs": {"dtype": {"type": "torch.dtype", "value": "torch.float32"}}}
    assert bound("Torch.sum.0.forward", fields, []) == ([], {"dtype": ("own", "torch.float32")})
    assert RecordedArguments("Torch.sum.0.forward", fields).settings == {"dtype": "torch.float32"}


def test_an_index_of_several_dimensions_is_a_tuple() -> None:
    index = [{"type": "slice", "value": [None, None, None]}, {"type": "int", "value": 1}]
    args, _ = bound("Tensor.__setitem__.0.forward", {"input_args": [TENSOR, index, {"type": "int", "value": 0}]}, ["x"])
    assert args == ["x", (slice(None), 1), 0]


# --- inputs that are generated from the statistics of a record


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


def test_the_widest_range_of_a_dtype_has_numbers_in_it(dump: Dump) -> None:
    largest = float(np.finfo(np.float64).max)
    found = values(dump, {"dtype": "torch.float64", "shape": [9], "Max": largest, "Min": -largest})
    assert np.isfinite(found).all()
    assert np.unique(found).size == 9


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


def test_labels_that_a_loss_leaves_out_are_the_only_negative_ones(dump: Dump) -> None:
    found = values(dump, {"dtype": "torch.int64", "shape": [200], "Max": 198, "Min": -100})
    assert (found == -100).sum() == 1
    assert found[found != -100].min() >= 0
    assert found.max() == 198
