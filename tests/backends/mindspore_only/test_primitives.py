"""Primitives that cells hold are watched while collecting, and are the user's own again afterwards."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from probe.backends.mindspore.execution.values import primitive as primitive_of
from probe.backends.mindspore.hooks.api_hooks import _attributes
from probe.backends.protocol import UnknownValue

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


@LEVELS
def test_primitives_of_a_copy_are_not_watched_and_have_no_records(runs: Any, backend: Any, level: str) -> None:
    model, debugger = network(), runs.new(level=level)
    before, expected = classes(model), model(ones()).asnumpy()
    debugger.start(model)
    seen = watched(backend, model)
    copied = copy.deepcopy(model)
    assert watched(backend, copied) == [] and classes(copied) == before
    assert watched(backend, model) == seen, "copying takes nothing away"
    for step in (0, 1):
        assert np.array_equal(copied(ones()).asnumpy(), expected)
        debugger.stop()
        debugger.step()
        assert runs.read(step).names == []
        debugger.start(model)
    model(ones())
    debugger.stop()
    assert "Primitive.matmul.MatMul.0.forward" in runs.read(2).names


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_primitive_says_what_it_was_made_with_where_that_is_not_its_default(runs: Any, task: str) -> None:
    class Layers(nn.Cell):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.LayerNorm((4,), epsilon=1e-3)
            self.second = nn.LayerNorm((4,))
            self.dropout = nn.Dropout(p=0.25)

        def construct(self, x: Any) -> Any:
            return self.dropout(self.second(self.first(x)))

    model, debugger = Layers().set_train(), runs.new(level="mix", task=task)
    debugger.start(model)
    model(Tensor(np.ones((2, 4), np.float32)))
    debugger.stop()
    debugger.step()
    data = runs.read(0).data
    of_norms = [record for name, record in data.items() if ".LayerNorm." in name and name.startswith("Primitive.")]
    # What shapes show is said only where the tensors are saved, with which the call can be run again.
    axes = {"begin_norm_axis": -1, "begin_params_axis": -1} if task == "tensor" else {}
    assert [record.get("attributes", {}) for record in of_norms] == [{**axes, "epsilon": 1e-3}, axes]
    assert data["Primitive.dropout.Dropout.0.forward"]["attributes"]["keep_prob"] == 0.75


@pytest.mark.parametrize("primitive, said", [
    (ops.MatMul(transpose_b=True), {"transpose_b": True}),
    (ops.MatMul(), {}),
    (ops.Squeeze(), {}),
    (ops.Pad(((1, 1), (0, 2))), {"paddings": [[1, 1], [0, 2]]}),
    (ops.Conv2D(2, 3, pad_mode="same"), {"kernel_size": 3, "out_channel": 2, "pad_mode": "same"}),
])  # fmt: skip
def test_a_primitive_is_made_again_from_what_it_says(primitive: Any, said: dict[str, Any]) -> None:
    found = _attributes(primitive)
    assert found is not None and {name: found[name] for name in said} == said
    assert primitive_of(type(primitive).__name__, found).init_attrs == primitive.init_attrs


def test_a_primitive_that_takes_nothing_says_nothing() -> None:
    assert _attributes(ops.ReLU()) is None
    assert isinstance(primitive_of("ReLU", None), ops.ReLU)


def test_a_primitive_is_not_made_again_from_too_little() -> None:
    for name, attributes in (("MatMul", None), ("Conv2D", {"pad": 1}), ("MatMul", {"transpose_a": None})):
        with pytest.raises(UnknownValue, match=name):
            primitive_of(name, attributes)
    assert primitive_of("NoPrimitive", {}) is None and primitive_of("AllReduce", {}) is None
