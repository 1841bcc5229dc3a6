"""How often the host reads from a device while a step is collected: each read waits for all that is queued."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

READS: list[tuple[int, dict[str, Any]]] = [
    (2, {"level": "L0"}),
    (2, {"level": "L1"}),
    (2, {"level": "mix"}),
    (3, {"level": "L1", "summary_mode": "md5"}),
    (3, {"level": "L1", "summary_mode": "xor"}),
    (3, {"level": "mix", "task": "tensor"}),
    (4, {"level": "mix", "task": "tensor", "summary_mode": "md5"}),
    (1, {"level": "L1", "task": "overflow_check"}),
    (0, {"level": "mix", "task": "structure"}),
]
"""Reads of a step, and settings: statistics of calls and updates, sketches, and the bytes that checksums are of."""


def network(backend: Any, layers: int) -> Any:
    draws = np.random.default_rng(4)
    parts = {}
    for layer in range(layers):
        weight, bias = draws.standard_normal((8, 8), np.float32), draws.standard_normal(8, np.float32)
        parts[f"linear{layer}"], parts[f"relu{layer}"] = backend.linear(weight, bias), backend.relu()

    def forward(self: Any, x: Any) -> Any:
        for name in parts:
            x = getattr(self, name)(x)
        return x

    return backend.module("Deep", forward, **parts)


def trained(backend: Any, runs: Any, layers: int, settings: dict[str, Any] | None) -> tuple[list[int], dict[str, Any]]:
    """The reads of three steps, beyond the one that the training makes, and the state after them."""
    backend.seed(1)
    model = network(backend, layers)
    train, batch = backend.trainer(model), backend.tensor(np.linspace(-1, 1, 40, dtype=np.float32).reshape(5, 8))
    debugger = None if settings is None else runs.new(**settings)
    reads = []
    for _ in range(3):
        before = backend.reads()
        if debugger is not None:
            debugger.start(model)
        train(batch)
        if debugger is not None:
            debugger.stop()
            debugger.step()
        reads.append(backend.reads() - before - 1)
    return reads, backend.state(model)


@pytest.mark.parametrize(("count", "settings"), READS)
def test_a_step_is_read_as_often_whatever_the_size_of_the_model(
    backend: Any, runs: Any, count: int, settings: dict[str, Any]
) -> None:
    for layers in (2, 9):
        alone, expected = trained(backend, runs, layers, None)
        reads, state = trained(backend, runs, layers, settings)
        assert alone == [0] * 3 and reads == [count] * 3
        assert all(np.array_equal(state[name], value) for name, value in expected.items())
