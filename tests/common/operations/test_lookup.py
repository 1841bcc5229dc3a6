"""A function has one line in the table, by whichever name it is asked for, with its arguments and its kin."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

import probe.common.align
from probe.common.align.operations import layer_kind, operation
from probe.common.operations.function import Function, Trait
from probe.common.operations.lookup import canonical, function, has, primitive, writes_in_place
from probe.common.operations.signatures import argument_name, is_default
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
    ("name", "line"),
    [("__and__", "bitwise_and"), ("__truediv__", "div"), ("divide_", "div"), ("__ifloordiv__", "floor_divide"),
     ("__invert__", "bitwise_not"), ("__int__", "int")],
)  # fmt: skip
def test_other_names_and_operators_lead_to_the_line(name: str, line: str) -> None:
    assert function(name).name == line


@pytest.mark.parametrize("name", ["__rsub__", "__index__", "__init__", "relu6x", "_", "____", ""])
def test_a_name_that_only_looks_alike_has_no_line(name: str) -> None:
    assert function(name).name not in {each.name for each in FUNCTIONS if each.traits}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("add_", True), ("__iadd__", True), ("Tensor.__ipow__", True), ("Aten.relu_.default", True), ("__invert__", False),
     ("__int__", False), ("__index__", False), ("__add__", False), ("add", False)],
)  # fmt: skip
def test_a_name_says_whether_it_writes_in_place(name: str, expected: bool) -> None:
    assert writes_in_place(name) is expected


def test_a_function_without_a_line_has_no_trait() -> None:
    found = function("Custom.frobnicate_")
    assert found == Function("frobnicate") and not has("Custom.frobnicate_", *Trait)


def test_the_name_in_the_words_of_pytorch_keeps_what_writes_in_place() -> None:
    assert (canonical("divide"), canonical("__truediv__"), canonical("add_"), canonical("mine")) == (
        "div", "div", "add_", "mine"
    )  # fmt: skip


def test_a_primitive_that_is_not_known_has_no_function() -> None:
    found = primitive("RealDiv")
    assert found is not None and found.name == "div" and primitive("relu") is None


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


def test_importing_the_table_takes_about_fifteen_calls_a_line() -> None:
    # Calls are counted, and not time, which a busy machine makes longer. Of the 15 calls a line, 9 split and make it.
    program = (
        "import functools, probe.common.dump.naming, sys; calls = [];"
        "sys.setprofile(lambda frame, event, arg: calls.append(event) if event in ('call', 'c_call') else None);"
        "import probe.common.operations.lookup; sys.setprofile(None); print(len(calls))"
    )
    calls = int(subprocess.check_output([sys.executable, "-c", program]))
    assert len(FUNCTIONS) < calls < 20 * len(FUNCTIONS)


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


def test_names_of_arguments_have_no_defaults_in_them() -> None:
    assert argument_name("Functional.layer_norm.0.forward", "input.4") == "eps"
    assert argument_name("Torch.addmm.0.forward", "input.4") == "input.4"  # Arguments without a position follow.


# --- what names of functions and of layers mean, held against the public mapping table of the two frameworks

TABLES = Path(probe.common.align.__file__).parent


def table(name: str) -> Any:
    return yaml.safe_load((TABLES / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("mindspore", "torch"),
    [
        # Rows of the mapping table.
        ("Functional.equal", "Torch.eq"),
        ("Functional.gather_elements", "Torch.gather"),
        ("Functional.subtract", "Torch.sub"),
        ("Functional.swapaxes", "Torch.transpose"),
        ("Functional.dense", "Functional.linear"),
        ("Functional.bidense", "Functional.bilinear"),
        ("Functional.random_poisson", "Torch.poisson"),
        ("Functional.sigmoid", "Functional.sigmoid"),
        ("Functional.sigmoid", "Torch.sigmoid"),
        ("Functional.gelu", "Functional.gelu"),
        ("Tensor.asnumpy", "Tensor.numpy"),
        ("Tensor.ndimension", "Tensor.dim"),
        ("Tensor.tile", "Tensor.repeat"),
        ("Tensor.equal", "Tensor.eq"),
        ("Tensor.subtract", "Tensor.sub"),
        ("Functional.less_equal", "Torch.le"),
        ("Functional.divide", "Torch.true_divide"),
        # mindspore.mint mirrors torch.
        ("Mint.matmul", "Torch.matmul"),
        ("MintFunctional.softmax", "Functional.softmax"),
        ("MintDistributed.all_reduce", "Distributed.all_reduce"),
        # Methods and operators are functions.
        ("Tensor.matmul", "Torch.matmul"),
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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Functional.reshape", "Tensor.view"),
        ("Functional.transpose", "Tensor.permute"),
        ("Mint.add", "Tensor.add_"),
        ("Mint.div", "Tensor.divide_"),
        ("Mint.pow", "Tensor.__ipow__"),
        ("Mint.bitwise_or", "Tensor.__ror__"),
    ],
)
def test_what_gives_the_same_values_is_akin(one: str, other: str) -> None:
    assert operation(one, "mindspore").akin == operation(other, "pytorch").akin


@pytest.mark.parametrize(
    ("mindspore", "torch"),
    [
        ("Dense", "Linear"),
        ("SequentialCell", "Sequential"),
        ("CellList", "ModuleList"),
        ("Conv2dTranspose", "ConvTranspose2d"),
        ("HSigmoid", "Hardsigmoid"),
        ("SeLU", "SELU"),
        ("LayerNorm", "LayerNorm"),
        ("BatchNorm2d", "SyncBatchNorm"),
    ],
)
def test_classes_of_one_layer_mean_the_same(mindspore: str, torch: str) -> None:
    assert layer_kind(mindspore) == layer_kind(torch) is not None


def test_a_class_of_the_user_means_only_itself() -> None:
    assert layer_kind("MyLinear") is None


def test_the_tables_say_everything_once() -> None:
    layers = table("layers.yaml")
    assert not set(layers["same"]) & {*layers["renamed"], *layers["renamed"].values()}
