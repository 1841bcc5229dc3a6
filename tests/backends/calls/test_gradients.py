"""A backward record holds what belongs to its own call, in its own pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import chain


def test_an_input_that_is_also_an_output_has_the_gradient_of_all_its_uses(runs: Any, backend: Any) -> None:
    inner = backend.module("Pair", lambda self, x: (x * 3, x))

    def forward(self: Any, x: Any) -> Any:
        tripled, same = self.inner(x * 1)
        return tripled.sum() + same.sum()

    model, debugger = backend.module("Net", forward, inner=inner), runs.new(level="L0")
    debugger.start(model)
    outcome = backend.run(model, backend.tensor(np.ones((2, 3), np.float32), requires_grad=True))
    debugger.stop()
    assert (outcome.inputs[0] == 4).all()
    record = runs.read().data[f"{backend.root}.inner.Pair.backward.0"]
    # A tensor stands for one gradient, which is the same wherever the tensor is listed.
    assert [entry["Max"] for entry in record["output"]] == [4.0]
    assert record["input"][0]["Max"] == 1.0


@pytest.mark.parametrize("positional", [0, 1, 2])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_inputs_given_by_keyword_have_their_gradients(runs: Any, backend: Any, level: str, positional: int) -> None:
    inner = backend.module("Weighted", lambda self, x, y: x * 2 + y * 3)

    def forward(self: Any, x: Any) -> Any:
        values = {"x": x * 1, "y": x * 1}
        given = [values.pop(name) for name in ("x", "y")[:positional]]
        return self.inner(*given, **values).sum()

    model, debugger = backend.module("Net", forward, inner=inner), runs.new(level=level)
    debugger.start(model)
    outcome = backend.run(model, backend.tensor(np.ones((2, 3), np.float32), requires_grad=True))
    debugger.stop()
    assert (outcome.inputs[0] == 5).all()
    record = runs.read().data[f"{backend.root}.inner.Weighted.backward.0"]
    assert [entry["Max"] for entry in record["output"]] == [2.0, 3.0]


def test_a_module_that_returns_its_parameter_has_the_gradient_of_each_pass(runs: Any, backend: Any) -> None:
    scale = backend.module("Scale", lambda self: self.weight, weight=backend.parameter(np.ones(3, np.float32)))
    model = backend.module("Net", lambda self, x: (self.scale() * x).sum(), scale=scale)
    debugger = runs.new(level="L0")
    debugger.start(model)
    for factor in (1, 10, 100):
        outcome = backend.run(model, backend.tensor(np.full((2, 3), factor, np.float32)), model=model)
        assert (outcome.parameters["scale.weight"] == 2 * factor).all()
    debugger.stop()
    data = runs.read().data
    passes = [data[f"{backend.root}.scale.Scale.backward.{number}"]["input"] for number in range(3)]
    assert [[entry["Max"] for entry in entries] for entries in passes] == [[2.0], [20.0], [200.0]]


def test_a_module_without_a_backward_takes_none_of_a_later_pass(runs: Any, backend: Any) -> None:
    """The tensor it returned takes part in the next pass; its call was not part of that."""
    scale = backend.module("Scale", lambda self: self.weight, weight=backend.parameter(np.ones(3, np.float32)))
    model = backend.module("Net", chain("scale"), scale=scale)
    debugger = runs.new(level="L0")
    debugger.start(model)
    backend.without_gradient(scale)
    backend.run(lambda x: (scale() * x).sum(), backend.tensor(np.ones((2, 3), np.float32)), model=model)
    debugger.stop()
    assert runs.read().backward == [f"{backend.root}.scale.Scale.backward.1"]
