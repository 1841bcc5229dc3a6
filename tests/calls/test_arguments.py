"""The arguments of a recorded call, made again from its record."""

from __future__ import annotations

from typing import Any

import pytest

from probe.calls.arguments import RecordedArguments, Unreadable

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


def test_a_float_that_json_lacks_is_that_float() -> None:
    args, _ = bound("Torch.f.0.forward", {"input_args": [{"type": "float", "value": "\0-Infinity"}]}, [])
    assert args == [float("-inf")]


def test_values_of_the_framework_are_made_by_it() -> None:
    fields = {"input_args": [], "input_kwargs": {"dtype": {"type": "torch.dtype", "value": "torch.float32"}}}
    assert bound("Torch.sum.0.forward", fields, []) == ([], {"dtype": ("own", "torch.float32")})
    assert RecordedArguments("Torch.sum.0.forward", fields).settings == {"dtype": "torch.float32"}


def test_an_index_of_several_dimensions_is_a_tuple() -> None:
    index = [{"type": "slice", "value": [None, None, None]}, {"type": "int", "value": 1}]
    args, _ = bound("Tensor.__setitem__.0.forward", {"input_args": [TENSOR, index, {"type": "int", "value": 0}]}, ["x"])
    assert args == ["x", (slice(None), 1), 0]


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
