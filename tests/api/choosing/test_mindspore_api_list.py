"""Which functions of MindSpore are recorded."""

from __future__ import annotations

import types

import mindspore
from mindspore import mint, ops

from probe.backends.mindspore.hooks import api_hooks

COUNTS = {
    "functional": ("Functional", 500),
    "tensor": ("Tensor", 257),
    "mint": ("Mint", 142),
    "mint_functional": ("MintFunctional", 40),
    "distributed": ("Distributed", 14),
    "mint_distributed": ("MintDistributed", 16),
}


def test_every_name_of_the_list_is_a_function_of_its_owner_and_there_once() -> None:
    families = api_hooks.watched()
    assert {family: len(found) for family, found in families.items()} == {name: n for name, (_, n) in COUNTS.items()}
    for family, (prefix, _) in COUNTS.items():
        for one in families[family]:
            assert getattr(one.owner, one.attribute) == one.function
            assert callable(one.function) and not isinstance(one.function, (type, types.ModuleType))
            assert one.name.base == f"{prefix}.{one.attribute}"
    places = [(id(one.owner), one.attribute) for family in families.values() for one in family]
    assert len(places) == len(set(places))


def test_functions_are_found_where_user_code_takes_them() -> None:
    owners = {family: found[0].owner for family, found in api_hooks.watched().items()}
    assert owners["functional"] is ops and owners["mint"] is mint and owners["tensor"] is mindspore.Tensor
    assert owners["mint_functional"] is mint.nn.functional


def test_collectives_of_mint_work_in_place_and_those_of_comm_func_return() -> None:
    families = api_hooks.watched()
    assert all(one.name.returns_arguments for one in families["mint_distributed"])
    assert not any(one.name.returns_arguments for one in families["distributed"])
    filled = {one.attribute: one.name.filled for one in families["mint_distributed"]}
    assert filled["all_gather"] == (0, "tensor_list") and filled["all_reduce"] == ()
