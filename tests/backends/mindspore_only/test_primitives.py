"""Primitives that cells hold are watched while collecting, and are the user's own again afterwards."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from probe.backends.mindspore.hooks.api_hooks import _attributes

LEVELS = pytest.mark.parametrize("level", ["L1", "mix"])


def network() -> Any:
    return nn.SequentialCell(nn.Dense(3, 3), nn.ReLU(), nn.Dense(3, 1))


def ones() -> Any:
    return Tensor(np.ones((2, 3), np.float32))


def watched(backend: Any, model: Any) -> list[str]:
    return [trace for trace in backend.traces_left(model) if trace.endswith(".__class__")]


def classes(model: Any) -> list[type]:
    return [
        type(value) for _, cell in model.cells_and_names() for value in vars(cell).values()
        if isinstance(value, ops.Primitive)
    ]  # fmt: skip


@LEVELS
def test_primitives_are_watched_between_start_and_stop_only(runs: Any, backend: Any, level: str) -> None:
    model, debugger = network(), runs.new(level=level)
    before = classes(model)
    assert len(before) >= 5 and watched(backend, model) == []
    debugger.start(model)
    assert len(watched(backend, model)) == len(before)
    model(ones())
    debugger.stop()
    assert watched(backend, model) == []
    assert classes(model) == before
    debugger.step()
    assert backend.traces_left(model) == []


def test_level_l0_watches_no_primitive(runs: Any, backend: Any) -> None:
    model, debugger = network(), runs.new(level="L0")
    debugger.start(model)
    assert watched(backend, model) == []
    debugger.stop()


@LEVELS
def test_primitives_of_a_copy_are_not_watched(runs: Any, backend: Any, level: str) -> None:
    model, debugger = network(), runs.new(level=level)
    before = classes(model)
    debugger.start(model)
    seen = watched(backend, model)
    copied = copy.deepcopy(model)
    assert watched(backend, copied) == [] and classes(copied) == before
    assert watched(backend, model) == seen, "copying takes nothing away"
    debugger.stop()


@LEVELS
def test_primitives_of_a_copy_have_no_records(runs: Any, level: str) -> None:
    model, debugger = network(), runs.new(level=level)
    expected = model(ones()).asnumpy()
    debugger.start(model)
    copied = copy.deepcopy(model)
    for step in (0, 1):
        assert np.array_equal(copied(ones()).asnumpy(), expected)
        debugger.stop()
        debugger.step()
        assert runs.read(step).names == []
        debugger.start(model)
    model(ones())
    debugger.stop()
    assert "Primitive.matmul.MatMul.0.forward" in runs.read(2).names


def test_a_primitive_says_what_it_was_made_with_where_that_is_not_its_default(runs: Any) -> None:
    class Layers(nn.Cell):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.LayerNorm((4,), epsilon=1e-3)
            self.second = nn.LayerNorm((4,))
            self.dropout = nn.Dropout(p=0.25)

        def construct(self, x: Any) -> Any:
            return self.dropout(self.second(self.first(x)))

    model, debugger = Layers().set_train(), runs.new(level="mix")
    debugger.start(model)
    model(Tensor(np.ones((2, 4), np.float32)))
    debugger.stop()
    debugger.step()
    data = runs.read(0).data
    of_norms = [record for name, record in data.items() if ".LayerNorm." in name and name.startswith("Primitive.")]
    assert [record.get("attributes") for record in of_norms] == [{"epsilon": 1e-3}, None]
    assert data["Primitive.dropout.Dropout.0.forward"]["attributes"] == {"keep_prob": 0.75}


@pytest.mark.parametrize("stride, said", [([2, 2], {"stride": [2, 2]}), ([], {})])
def test_an_empty_setting_of_a_primitive_is_not_said(stride: list[int], said: dict[str, Any]) -> None:
    primitive = ops.Primitive("Any")
    primitive.init_attrs = {"stride": stride}
    assert _attributes(primitive) == said
