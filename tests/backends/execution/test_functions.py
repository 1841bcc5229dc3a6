"""The function that a record's name stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def test_every_name_of_a_call_is_found_again(backend: Any) -> None:
    missing = [api.base for api in backend.apis.values() if backend.adapter.execution.function(api.base) is None]
    assert not missing


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
