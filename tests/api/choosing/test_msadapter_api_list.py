"""Which functions are recorded where torch is mindtorch: looked up by name on the modules behind the proxies."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from mindtorch.torch_proxy import initialize_torch_proxy, setup_metadata_patch

initialize_torch_proxy()
setup_metadata_patch()

import mindtorch  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from probe.backends.msadapter import hooks  # noqa: E402
from probe.backends.msadapter.hooks import (  # noqa: E402
    proxy_of,
    torch_module,
)


def test_functions_are_found_although_the_proxy_does_not_list_them() -> None:
    families = hooks.watched()
    assert "matmul" not in dir(torch) and "relu" not in dir(F)
    counts = {family: len(found) for family, found in families.items()}
    assert counts == {"functional": 62, "tensor": 412, "torch": 211, "distributed": 18, "npu": 0}
    for found in families.values():
        assert all(callable(one.function) for one in found)


def test_the_owner_is_the_module_behind_the_proxy() -> None:
    relu = next(one for one in hooks.watched()["functional"] if one.attribute == "relu")
    assert relu.owner is sys.modules["mindtorch.nn.functional"] and relu.owner is not F
    assert relu.function is F.relu and relu.name.base == "Functional.relu"
    norm = next(one for one in hooks.watched()["torch"] if one.owner is mindtorch.linalg and one.attribute == "norm")
    assert norm.name.base == "Torch.norm"


def test_collectives_work_in_place() -> None:
    filled = {one.attribute: one.name.filled for one in hooks.watched()["distributed"]}
    assert filled["all_gather_into_tensor"] == (0, "output_tensor")
    assert all(one.name.returns_arguments for one in hooks.watched()["distributed"])


def test_a_copy_that_the_proxy_holds_is_watched_too() -> None:
    def relu(input: Any) -> Any:
        return input

    F.relu = relu
    try:
        found = [one for one in hooks.watched()["functional"] if one.attribute == "relu"]
        assert [(one.owner, one.function) for one in found[1:]] == [(F, relu)]
    finally:
        del F.relu


def test_the_proxy_of_a_module_is_known_and_another_module_of_its_name_is_none() -> None:
    assert proxy_of(torch_module("nn.functional")) is F
    assert proxy_of(torch_module()) is torch
    assert proxy_of(sys.modules["mindspore"]) is None


def test_a_torch_that_is_no_proxy_is_used_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mindtorch")
    assert torch_module() is torch and torch_module("nn.functional") is F
    monkeypatch.setitem(sys.modules, "torch.nn.functional", sys)
    assert proxy_of(torch_module("nn.functional")) is None
