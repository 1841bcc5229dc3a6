"""Copies of the tensors of a running program, and the states that its random numbers come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_a_copy_is_the_same(backend: Any, dtype: str) -> None:
    execution = backend.adapter.execution
    tensor = execution.tensor(VALUES, dtype, execution.devices()[0])
    copy = execution.copied(tensor)
    assert execution.dtype_name(copy) == dtype
    assert execution.device_name(copy) == execution.device_name(tensor) == execution.devices()[0]
    assert np.array_equal(execution.values(copy), execution.values(tensor))


def test_a_copy_shares_nothing(backend: Any) -> None:
    execution = backend.adapter.execution
    tensor = execution.tensor(VALUES, "float32", execution.devices()[0])
    copy = execution.copied(tensor)
    backend.write(copy, 1)
    assert np.array_equal(execution.values(tensor), VALUES)
    backend.write(tensor, 2)
    assert execution.values(copy).max() == 1


def test_a_copy_of_what_is_no_whole_tensor(backend: Any) -> None:
    execution = backend.adapter.execution
    whole = execution.tensor(VALUES, "float32", execution.devices()[0])
    parts = [(backend.transposed(whole), VALUES.T), (whole[1:, 2], VALUES[1:, 2]), (whole[0:0], VALUES[0:0])]
    for part, expected in parts:
        assert np.array_equal(execution.values(execution.copied(part)), expected)


def test_a_copy_takes_no_gradient(backend: Any) -> None:
    copy = backend.adapter.execution.copied(backend.tensor(VALUES, requires_grad=True))
    assert not getattr(copy, "requires_grad", False)


def test_random_numbers_go_on_where_they_were(backend: Any) -> None:
    execution = backend.adapter.execution
    backend.seed(3)
    states = execution.random_states()
    expected = np.array(backend.random_numbers())
    execution.seed_draws(5)
    execution.set_random_states(states)
    assert np.array_equal(np.array(backend.random_numbers()), expected)
