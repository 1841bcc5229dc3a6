"""What a call depends on besides its arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probe.backends.protocol import UnknownValue


def matmul_dtype(backend: Any) -> str:
    execution = backend.adapter.execution
    matmul = execution.function(backend.apis["matmul"].base)
    given = [execution.tensor(np.ones((4, 4)), "float32", "cpu") for _ in range(2)]
    name: str = execution.dtype_name(execution.evaluate(lambda tensors: matmul(*tensors), given, ()).output)
    return name


def test_autocast_acts_inside_only(backend: Any) -> None:
    with backend.adapter.execution.autocast("bfloat16", "cpu"):
        assert matmul_dtype(backend) == "bfloat16"
    assert matmul_dtype(backend) == "float32"


def test_an_autocast_that_is_not_there_is_named(backend: Any) -> None:
    with pytest.raises(UnknownValue, match="int8"), backend.adapter.execution.autocast("int8", "cpu"):
        pass


def test_the_cpu_is_the_last_device(backend: Any) -> None:
    devices = backend.adapter.execution.devices()
    assert devices[-1] == "cpu"
    assert len(set(devices)) == len(devices)
    for device in devices:
        made = backend.adapter.execution.tensor(np.arange(3), "float32", device)
        assert backend.adapter.execution.values(made).tolist() == [0, 1, 2]


def drawn(backend: Any) -> list[float]:
    execution = backend.adapter.execution
    dropout = execution.function(backend.apis["dropout"].base)
    given = [execution.tensor(np.ones(64), "float32", "cpu")]
    values: list[float] = execution.values(
        execution.evaluate(lambda tensors: dropout(tensors[0], 0.5), given, ()).output
    )
    return list(values)


def test_the_same_seed_draws_the_same_numbers(backend: Any) -> None:
    backend.adapter.execution.seed_draws(41)
    first = drawn(backend)
    backend.adapter.execution.seed_draws(42)
    other = drawn(backend)
    backend.adapter.execution.seed_draws(41)
    assert drawn(backend) == first
    assert first != other
