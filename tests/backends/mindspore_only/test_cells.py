"""Cells and primitives as no other framework has them: compiled ones, layers, gradients inside of a gradient.

Where numbers stand, this tool does better than the one it replaces; the oddities that it keeps are recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from probe.common import log

ROW = ms.Tensor(np.array([[1.0, 2.0, 3.0]], np.float32))
MODULES = pytest.mark.parametrize("level", ["L0", "mix"])


class Scale(nn.Cell):
    """``x * weight``."""

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = ms.Parameter(ms.Tensor([weight], ms.float32))

    def construct(self, x: Any) -> Any:
        return x * self.weight


class Net(nn.Cell):
    """The sum of what `finish` makes of the output of `inner`."""

    def __init__(self, inner: nn.Cell, finish: Any = lambda output: output) -> None:
        super().__init__()
        self.inner, self.finish = inner, finish

    def construct(self, x: Any) -> Any:
        return ops.sum(self.finish(self.inner(x)))


def differentiate(model: Any) -> Any:
    """The value, and the gradient of the input."""
    weights = model.trainable_params() if isinstance(model, nn.Cell) else []
    value, gradients = ms.value_and_grad(model, 0, weights or None)(ROW)
    return value.item(), (gradients[0] if weights else gradients).asnumpy().tolist()


def collected(runs: Any, model: Any, level: str = "mix") -> Any:
    debugger = runs.new(level=level)
    debugger.start(model if isinstance(model, nn.Cell) else None)
    result = differentiate(model)
    debugger.stop()
    return result, runs.read()


def bounds(entries: Any) -> list[Any]:
    """The largest and the smallest value of each entry."""
    return [entry and (entry["Max"], entry["Min"]) for entry in entries]


class Compiled(nn.Cell):
    """``relu(x * 2) * 3``, compiled as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.relu = Scale(2.0), nn.ReLU()

    @ms.jit
    def construct(self, x: Any) -> Any:
        return self.relu(self.scale(x)) * 3


@MODULES
def test_a_compiled_cell_is_one_cell_which_is_said_once_and_not_disturbed(
    runs: Any, level: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_given", set())
    model, debugger = Net(Compiled()), runs.new(level=level)
    results = [differentiate(Net(Compiled()))]
    for _ in range(2):
        debugger.start(model)
        results.append(differentiate(model))
        debugger.stop()
        debugger.step()
    results.append(differentiate(model))
    assert results == [(36.0, [[6.0, 6.0, 6.0]])] * 4
    assert capsys.readouterr().err.count("Compiled.construct is compiled with ms.jit") == 1
    data = runs.read().data
    cells = [name for name in data if name.startswith("Cell.")]
    assert cells == ["Cell.inner.Compiled.forward.0", "Cell.inner.Compiled.backward.0"]
    assert bounds(data[cells[0]]["input_args"] + data[cells[0]]["output"]) == [(3.0, 1.0), (18.0, 6.0)]
    assert bounds(data[cells[1]]["input"] + data[cells[1]]["output"]) == [(1.0, 1.0), (6.0, 6.0)]


class Several(nn.Cell):
    """``2x`` and ``3x`` in a container."""

    def __init__(self, pack: Any) -> None:
        super().__init__()
        self.two, self.three, self.pack = Scale(2.0), Scale(3.0), pack

    def construct(self, x: Any) -> Any:
        return self.pack(self.two(x), self.three(x))


@MODULES
@pytest.mark.parametrize(
    ("pack", "unpack"),
    [
        (lambda a, b: [a, b], lambda output: output[0] * 5 + output[1]),
        (lambda a, b: {"a": a, "b": b}, lambda output: output["a"] * 5 + output["b"]),
        (lambda a, b: (a, {"b": [b]}), lambda output: output[0] * 5 + output[1]["b"][0]),
    ],
    ids=["list", "dict", "nested"],
)
def test_a_cell_that_returns_a_list_or_dict_has_its_gradients_and_its_place(
    runs: Any, level: str, pack: Any, unpack: Any
) -> None:
    result, dump = collected(runs, Net(Several(pack), unpack), level)
    assert result == (13.0 * 6, [[13.0, 13.0, 13.0]])
    record = dump.data["Cell.inner.Several.backward.0"]
    assert bounds(record["input"]) == [(5.0, 5.0), (1.0, 1.0)]
    assert bounds(record["output"]) == [(13.0, 13.0)]
    inside = ["Cell.inner.two.Scale.backward.0", "Cell.inner.three.Scale.backward.0"]
    assert [dump.tree[name] for name in inside] == ["Cell.inner.Several.backward.0"] * 2
    assert max(dump.names.index(name) for name in inside) < dump.names.index("Cell.inner.Several.backward.0")


def test_gradients_of_a_primitive_stand_in_the_order_in_which_they_are_computed(runs: Any) -> None:
    class Product(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.multiply = ops.Mul()

        def construct(self, x: Any) -> Any:
            return self.multiply(x, x * 2)

    result, dump = collected(runs, Net(Product()))
    assert result == (28.0, [[4.0, 8.0, 12.0]])
    of_first, of_second = (6.0, 2.0), (3.0, 1.0)
    assert bounds(dump.data["Primitive.multiply.Mul.0.backward"]["output"]) == [of_second, of_first]


def test_tensors_in_a_list_have_no_place_in_the_backward_of_a_function(runs: Any) -> None:
    result, dump = collected(runs, lambda x: ops.sum(ops.concat((x * 2, x * 3))), "L1")
    assert result == (30.0, [[5.0, 5.0, 5.0]])
    record = dump.data["Functional.concat.0.backward"]
    assert bounds(record["input"]) == [(1.0, 1.0)] and record["output"] == []


class Penalty(nn.Cell):
    """Its forward takes a gradient of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(3, 1, weight_init="ones", bias_init="zeros")

    def construct(self, x: Any) -> Any:
        return x * 2 + ms.grad(lambda given: (self.dense(given) ** 2).sum(), 0)(x)


@MODULES
@pytest.mark.parametrize("leaf", [True, False], ids=["of an input", "of a result"])
def test_a_cell_that_takes_a_gradient_inside_has_its_own(runs: Any, level: str, leaf: bool) -> None:
    net, x = Net(Penalty()), ms.Tensor(np.ones((2, 3), np.float32))

    def program(given: Any) -> Any:
        return net(given if leaf else given * 1)

    (expected,) = {float(value) for value in ms.grad(program, 0)(x).asnumpy().ravel()}
    debugger = runs.new(level=level)
    debugger.start(net)
    found = ms.grad(program, 0)(x).asnumpy()
    debugger.stop()
    assert (found == expected).all()
    data = runs.read().data
    outer = data["Cell.inner.Penalty.backward.0"]
    assert outer["input"][0]["Max"] == 1.0
    assert [entry and entry["Max"] for entry in outer["output"]] == [expected]
    assert data["Cell.inner.dense.Dense.backward.0"]["input"][0]["Max"] == 6.0, "the inner gradient"


def batch() -> Any:
    return ms.Tensor(np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4))


@pytest.mark.parametrize(
    ("make", "compute", "parameters"),
    [
        (lambda: nn.LSTM(4, 3), lambda cell: cell(batch())[0], {"weight_ih_l0", "weight_hh_l0"}),
        (lambda: nn.Dense(4, 2, activation="relu"), lambda cell: cell(batch()), {"weight", "bias"}),
        (
            lambda: nn.MultiheadAttention(4, 2),
            lambda cell: cell(batch(), batch(), batch())[0],
            {"in_proj_weight", "in_proj_bias"},
        ),
    ],
    ids=["lstm", "dense", "attention"],
)
def test_a_model_that_is_a_layer_of_mindspore_is_recorded_with_its_parameters_and_a_sequence_of_one_is_not(
    runs: Any, make: Callable[[], Any], compute: Callable[[Any], Any], parameters: set[str]
) -> None:
    debugger, cell = runs.new(level="L0"), make()
    debugger.start(cell)
    ms.value_and_grad(lambda: compute(cell).sum(), None, cell.trainable_params())()
    debugger.stop()
    debugger.step()
    base, data = f"Cell.{type(cell).__name__}", runs.read().data
    assert parameters <= set(data[f"{base}.forward.0"]["parameters"])
    assert parameters <= set(data[f"{base}.parameters_grad.0"])
    assert f"{base}.backward.0" in data
    if isinstance(cell, nn.LSTM):
        sequence = nn.SequentialCell(nn.LSTM(4, 3))
        debugger.start(sequence)
        sequence(batch())
        debugger.stop()
        assert runs.read(1).names[-1] == "Cell.0.LSTM.forward.0"
