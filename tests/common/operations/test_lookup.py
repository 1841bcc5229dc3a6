"""A function has one line in the table, by whichever name it is asked for, with its arguments and its kin."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

import probe.common.align
from probe.common.align.operations import operation
from probe.common.operations.function import Function
from probe.common.operations.lookup import function, is_default, writes_in_place
from probe.common.operations.table import FUNCTIONS

# --- A function has one line in the table, by whichever name it is asked for


@pytest.mark.parametrize(
    "name",
    ["add", "add_", "Functional.add", "Tensor.__add__", "__iadd__", "__radd__", "Mint.add", "Aten.add.Tensor",
     "Aten.add_.Scalar", "Primitive.plus.Add", "Add"],
)  # fmt: skip
def test_every_spelling_leads_to_the_line(name: str) -> None:
    assert function(name).name == "add"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("add_", True), ("__iadd__", True), ("Tensor.__ipow__", True), ("Aten.relu_.default", True), ("__invert__", False),
     ("__int__", False), ("__index__", False), ("__add__", False), ("add", False)],
)  # fmt: skip
def test_a_name_says_whether_it_writes_in_place(name: str, expected: bool) -> None:
    assert writes_in_place(name) is expected


def test_no_two_lines_claim_one_name() -> None:
    names = Counter(name for each in FUNCTIONS for name in {each.name, *each.also, *each.primitive})
    assert [name for name, count in names.items() if count > 1] == []


def test_what_is_akin_meets_in_one_line() -> None:
    own = {each.name: each for each in FUNCTIONS}
    chained = [each.name for each in FUNCTIONS if each.akin and own.get(each.akin, Function("")).akin]
    assert chained == []


def test_the_lines_are_in_order_of_their_names() -> None:
    names = [each.name for each in FUNCTIONS]
    assert names == sorted(names, key=lambda name: (name.strip("_").lower(), name))


def test_functions_that_give_the_same_values_round_alike() -> None:
    akin = [(each, function(each.akin)) for each in FUNCTIONS if each.akin]
    assert akin and [each.name for each, other in akin if each.rounding != other.rounding] == []


# --- names and defaults of arguments are those of the signatures

SDPA = "Functional.scaled_dot_product_attention.0.forward"


@pytest.mark.parametrize(
    ("record", "item", "value", "width", "expected"),
    (
        ("Functional.layer_norm.0.forward", "input.4", 1e-5, 64, True),
        ("Functional.layer_norm.0.forward", "input.eps", 1e-6, 64, False),
        ("Functional.dropout.0.forward", "input.p", 0.5, None, True),
        ("Functional.dropout.0.forward", "input.training", True, None, True),
        ("Functional.dropout.0.forward", "input.training", False, None, False),
        (SDPA, "input.scale", 0.25, 16, True),
        (SDPA, "input.scale", 0.25, None, False),
        ("Torch.addmm.0.forward", "input.beta", 1, None, True),
        ("Functional.cross_entropy.0.forward", "input.reduction", "mean", None, True),
        ("Functional.cross_entropy.0.forward", "input.reduction", "sum", None, False),
        ("Functional.unheard_of.0.forward", "input.1", 0.0, None, False),
    ),
)
def test_defaults_are_those_of_the_signatures(
    record: str, item: str, value: Any, width: int | None, expected: bool
) -> None:
    assert is_default(record, item, value, width) is expected


# --- what names of functions and of layers mean, held against the public mapping table of the two frameworks

TABLES = Path(probe.common.align.__file__).parent


def table(name: str) -> Any:
    return yaml.safe_load((TABLES / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("mindspore", "torch"),
    [
        # Rows of the mapping table.
        ("Functional.equal", "Torch.eq"),
        ("Functional.subtract", "Torch.sub"),
        ("Functional.dense", "Functional.linear"),
        ("Functional.sigmoid", "Torch.sigmoid"),
        ("Tensor.asnumpy", "Tensor.numpy"),
        ("Tensor.tile", "Tensor.repeat"),
        ("Functional.divide", "Torch.true_divide"),
        # mindspore.mint mirrors torch.
        ("Mint.matmul", "Torch.matmul"),
        ("MintFunctional.softmax", "Functional.softmax"),
        ("MintDistributed.all_reduce", "Distributed.all_reduce"),
        # Methods and operators are functions.
        ("Tensor.__matmul__", "Torch.matmul"),
        ("Mint.div", "Tensor.__truediv__"),
        ("Primitive.fc.MatMul", "Torch.matmul"),
        ("Primitive.act.ReLU", "Functional.relu"),
    ],
)
def test_names_of_one_thing_mean_the_same(mindspore: str, torch: str) -> None:
    assert operation(mindspore, "mindspore").name == operation(torch, "pytorch").name
    assert operation(torch, "mindtorch") == operation(torch, "pytorch")


@pytest.mark.parametrize(
    ("mindspore", "torch"),
    [
        # In MindSpore this takes the whole order of the dimensions, and indices of one.
        ("Functional.transpose", "Torch.transpose"),
        ("Functional.select", "Torch.select"),
        ("Distributed.reduce", "Torch.sum"),
        ("Primitive.relu.Unknown", "Functional.relu"),
        ("Custom.relu", "Functional.relu"),
    ],
)
def test_names_of_different_things_do_not(mindspore: str, torch: str) -> None:
    assert operation(mindspore, "mindspore").name != operation(torch, "pytorch").name
