"""Calls that write into what they were given: the program sees its own writes, and its gradients are its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from programs import BATCH, batch

LEVELS = pytest.mark.parametrize("level", ["L0", "L1", "mix"])


def set_row(x: Any) -> Any:
    x[0] = 7
    return x


def set_and_add(x: Any) -> Any:
    x[0] = 7
    x += 1
    return x


def set_and_return_another(x: Any) -> Any:
    x[0] = 7
    return x * 2


def set_and_return_nothing(x: Any) -> None:
    x[0] = 7


WRITERS = pytest.mark.parametrize(
    "write", [set_row, set_and_add, set_and_return_another, set_and_return_nothing], ids=lambda write: write.__name__
)


class Program:
    """``3 * y`` of a ``y`` that `write` wrote to, plus what `write` returned."""

    def __init__(self, backend: Any, write: Any) -> None:
        self.backend, self.write = backend, write
        self.after: Any = None
        """What ``y`` held in the end."""

    def __call__(self, x: Any) -> Any:
        y = x * 2
        alias = y
        written = self.write(y)
        self.after = self.backend.numpy(y)
        return alias * 3 if written is None else alias * 3 + written

    def results(self, model: Any = None) -> tuple[Any, Any, Any]:
        """The output, the gradient of the input, and what ``y`` held."""
        outcome = self.backend.run(self, batch(self.backend, requires_grad=True), model=model)
        return outcome.output, outcome.inputs[0], self.after


def assert_same(watched: Any, alone: Any) -> None:
    for name, mine, expected in zip(("output", "gradient", "input after the call"), watched, alone):
        assert np.array_equal(mine, expected), name


@LEVELS
@WRITERS
def test_a_module_may_write_to_its_input(runs: Any, backend: Any, level: str, write: Any) -> None:
    model = backend.module("Writer", lambda self, x: write(x))
    net = backend.module("Net", lambda self, x: self.inner(x), inner=model)
    alone = Program(backend, net).results()
    assert (alone[2][0] >= 7).all(), "it was written to"
    debugger = runs.new(level=level)
    debugger.start(net)
    assert_same(Program(backend, net).results(), alone)
    debugger.stop()


@LEVELS
def test_an_activation_may_write_to_its_input(runs: Any, backend: Any, level: str) -> None:
    net = backend.module("Net", lambda self, x: self.inner(x), inner=backend.inplace_relu())
    alone = Program(backend, net).results()
    assert np.array_equal(alone[2], np.maximum(2 * BATCH, 0))
    debugger = runs.new(level=level)
    debugger.start(net)
    assert_same(Program(backend, net).results(), alone)
    debugger.stop()


@pytest.mark.parametrize("level", ["L1", "mix"])
@WRITERS
def test_a_custom_api_may_write_to_its_argument(runs: Any, backend: Any, level: str, write: Any) -> None:
    alone = Program(backend, write).results()
    owner = SimpleNamespace(write=write)
    net = backend.module("Net", lambda self, x: owner.write(x))
    debugger = runs.new(level=level)
    debugger.register_custom_api(owner, "write", "User")
    debugger.start(net)
    assert_same(Program(backend, net).results(), alone)
    debugger.stop()
    assert "User.write.0.forward" in runs.read().names
