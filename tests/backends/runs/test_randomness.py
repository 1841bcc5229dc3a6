"""Making two runs draw the same numbers; the wording of `seed_all` itself is tested in tests/api."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
from programs import batch


@pytest.fixture(autouse=True)
def _hash_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "random")


def drawn(backend: Any) -> tuple[float, float, bytes]:
    return random.random(), float(np.random.rand()), backend.random_numbers().tobytes()


def test_the_same_seed_draws_the_same_numbers_everywhere(backend: Any) -> None:
    backend.seed_all(77)
    first = drawn(backend)
    assert os.environ["PYTHONHASHSEED"] == "77"
    assert drawn(backend) != first
    backend.seed_all(77)
    assert drawn(backend) == first
    backend.seed_all(78)
    assert all(a != b for a, b in zip(drawn(backend), first))


def keeps(backend: Any, call: Any, x: Any, *more: Any) -> bool:
    return np.array_equal(backend.numpy(call(x, *more)), backend.numpy(x))


def trained_dropout(backend: Any) -> Any:
    module = backend.dropout(0.5)
    backend.training(module, True)
    return module


@pytest.mark.parametrize("what", ["function", "module"])
def test_removed_dropout_is_the_identity_until_it_is_put_back(backend: Any, what: str) -> None:
    x = batch(backend)

    def kept() -> bool:
        return (
            keeps(backend, backend.apis["dropout"].call, x, 0.5)
            if what == "function"
            else keeps(backend, trained_dropout(backend), x)
        )

    handle = backend.adapter.randomness.remove_dropout()
    try:
        assert kept()
    finally:
        handle.remove()
    backend.seed(3)
    assert not kept()


def test_removed_dropout_is_the_identity_in_modules_that_exist(backend: Any) -> None:
    module, x = trained_dropout(backend), batch(backend)
    handle = backend.adapter.randomness.remove_dropout()
    try:
        assert keeps(backend, module, x)
    finally:
        handle.remove()
    backend.seed(3)
    assert not keeps(backend, module, x)


def test_removed_dropout_is_still_recorded(runs: Any, backend: Any) -> None:
    dropout = backend.apis["dropout"]
    handle = backend.adapter.randomness.remove_dropout()
    try:
        debugger = runs.new()
        debugger.start()
        dropout.call(batch(backend), 0.5)
        debugger.stop()
    finally:
        handle.remove()
    record = runs.read().data[f"{dropout.base}.0.forward"]
    assert record["output"][0]["Norm"] == record["input_args"][0]["Norm"]


def test_fixed_random_calls_return_the_same_every_time(backend: Any) -> None:
    handle = backend.adapter.randomness.fix_random_calls()
    try:
        assert backend.random_numbers().tobytes() == backend.random_numbers().tobytes()
    finally:
        handle.remove()
    assert backend.random_numbers().tobytes() != backend.random_numbers().tobytes()
