"""The function that a record's name stands for."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest


def test_every_name_of_a_call_is_found_again(backend: Any) -> None:
    missing = [api.base for api in backend.apis.values() if backend.adapter.execution.function(api.base) is None]
    assert not missing


LISTS = {
    "torch": "probe.backends.torch.hooks.api_hooks",
    "mindspore": "probe.backends.mindspore.hooks.api_hooks",
    "msadapter": "probe.backends.msadapter.hooks",
}
ELSEWHERE = ("distributed", "mint_distributed", "npu")
"""Families that need other ranks, or a device."""
REMOVED = "torch._linalg_utils"
"""The module of functions which torch has only left a message of."""


def is_removed(listed: Any) -> bool:
    return getattr(getattr(listed.owner, listed.attribute), "__module__", None) == REMOVED


def test_each_function_of_the_lists_is_found_by_what_its_records_say(backend: Any) -> None:
    execution = backend.adapter.execution
    others = {}
    for family, functions in importlib.import_module(LISTS[backend.name]).watched().items():
        for each in functions if family not in ELSEWHERE else ():
            function = getattr(each.owner, each.attribute)
            if is_removed(each):
                continue
            found = execution.function(each.name.base, called=each.name.function)
            if found is not function and getattr(found, "__wrapped__", None) is not function:
                others[each.name.base, each.name.function] = found
    # What a class inherits from its own type is bound anew each time.
    assert {names: found for names, found in others.items() if "Tensor.__ror__" not in names} == {}


def test_names_that_are_those_of_two_functions(backend: Any) -> None:
    functions = [each for found in importlib.import_module(LISTS[backend.name]).watched().values() for each in found]
    names = {each.name.base: each.name.function for each in functions if each.name.function}
    two = "cross det diagonal matmul matrix_exp matrix_power norm qr slogdet svd vander"
    # torch.qr has only left a message from 2.14 on.
    gone = {each.name.base for each in functions if is_removed(each)}
    assert (
        names
        == {
            "torch": {f"Torch.{name}": f"torch.linalg.{name}" for name in two.split() if f"Torch.{name}" not in gone},
            "mindspore": {},
            "msadapter": {"Torch.norm": "mindtorch.linalg.norm"},
        }[backend.name]
    )


@pytest.mark.parametrize("called", ["os.system", "torch.linalg.no_such_function", "relu", "torch.ops.aten.relu.out"])
def test_a_full_name_is_looked_up_in_the_lists_alone(backend: Any, called: str) -> None:
    assert backend.adapter.execution.function(backend.apis["relu"].base, called=called) is None


def test_it_computes_what_the_program_computed(backend: Any) -> None:
    x = np.array([-1.5, 0.0, 2.0], np.float32)
    function = backend.adapter.execution.function(backend.apis["relu"].base)
    assert np.array_equal(backend.numpy(function(backend.tensor(x))), np.maximum(x, 0))


@pytest.mark.parametrize("base", ["Functional.no_such_function", "Nowhere.add", "Tensor.__class__", "add", ""])
def test_there_is_none_for_another_name(backend: Any, base: str) -> None:
    assert backend.adapter.execution.function(base) is None


@pytest.mark.parametrize("name", ["relu", "abs", "concat"])
def test_a_function_that_was_replaced_is_found_as_it_is_now(
    backend: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = backend.apis[name]
    before = backend.adapter.execution.function(api.base)
    with monkeypatch.context() as patch:
        patch.setattr(api.owner, api.attribute, lambda *args: "another")
        assert backend.adapter.execution.function(api.base)(1, 2) == "another"
    assert backend.adapter.execution.function(api.base) == before
