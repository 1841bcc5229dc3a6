"""Which functions of MindSpore are recorded, and how much they matter to `risk_level`."""

from __future__ import annotations

import types

import mindspore
import pytest
from mindspore import mint, ops

from probe.backends.mindspore.hooks import api_list

COUNTS = {
    "functional": ("Functional", 500),
    "tensor": ("Tensor", 257),
    "mint": ("Mint", 142),
    "mint_functional": ("MintFunctional", 40),
    "distributed": ("Distributed", 14),
    "mint_distributed": ("MintDistributed", 16),
}


@pytest.mark.parametrize("family", COUNTS)
def test_every_name_of_the_list_is_a_function_of_its_owner(family: str) -> None:
    prefix, count = COUNTS[family]
    found = api_list.watched()[family]
    assert len(found) == count
    for one in found:
        assert getattr(one.owner, one.attribute) == one.function
        assert callable(one.function) and not isinstance(one.function, (type, types.ModuleType))
        assert one.name.base == f"{prefix}.{one.attribute}"


def test_no_function_stands_in_the_list_twice() -> None:
    places = [(id(one.owner), one.attribute) for family in api_list.watched().values() for one in family]
    assert len(places) == len(set(places))


def test_functions_are_found_where_user_code_takes_them() -> None:
    owners = {family: found[0].owner for family, found in api_list.watched().items()}
    assert owners["functional"] is ops and owners["mint"] is mint and owners["tensor"] is mindspore.Tensor
    assert owners["mint_functional"] is mint.nn.functional


def test_collectives_of_mint_work_in_place_and_those_of_comm_func_return() -> None:
    families = api_list.watched()
    assert all(one.name.returns_arguments for one in families["mint_distributed"])
    assert not any(one.name.returns_arguments for one in families["distributed"])
    filled = {one.attribute: one.name.filled for one in families["mint_distributed"]}
    assert filled["all_gather"] == (0, "tensor_list") and filled["all_reduce"] == ()


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("Functional.matmul", "core"),
        ("Functional.conv2d", "core"),
        ("Functional.concat", "low"),
        ("Functional.gather", "middle"),
        ("Functional.bias_add", "middle"),
        ("Mint.bmm", "core"),
        ("Mint.chunk", "low"),
        ("MintFunctional.linear", "core"),
        ("MintFunctional.relu", "middle"),
        ("Tensor.__matmul__", "core"),
        ("Tensor.reshape", "low"),
        ("MintDistributed.all_reduce", "core"),
        ("Distributed.broadcast", "core"),
        ("Primitive.matmul.MatMul", "middle"),
        ("Library.compute", "core"),
    ],
)
def test_a_function_has_the_class_of_torchs_namesake(base: str, expected: str) -> None:
    assert api_list.risk_class(base) == expected
