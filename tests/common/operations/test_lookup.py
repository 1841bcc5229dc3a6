"""A function has one line in the table, by whichever name it is asked for."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from probe.common.operations.function import Function, Trait
from probe.common.operations.lookup import canonical, function, has, primitive, writes_in_place
from probe.common.operations.table import FUNCTIONS


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
