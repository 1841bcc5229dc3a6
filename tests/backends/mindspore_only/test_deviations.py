"""Where this tool does better than the one it replaces, and the few recorded oddities that it keeps.

The numbers are those of section 9 of the reference's FACTS.md. A behaviour with a thorough test elsewhere has its
shortest proof here.
"""

from __future__ import annotations

from types import SimpleNamespace
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


def collected(runs: Any, model: Any, level: str = "mix", custom: Any = None, **settings: Any) -> Any:
    debugger = runs.new(level=level, **settings)
    if custom is not None:
        debugger.register_custom_api(custom, "call", "User")
    debugger.start(model if isinstance(model, nn.Cell) else None)
    result = differentiate(model)
    debugger.stop()
    return result, runs.read()


def bounds(entries: Any) -> list[Any]:
    """The largest and the smallest value of each entry."""
    return [entry and (entry["Max"], entry["Min"]) for entry in entries]


# 1; more in test_statistics.py
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_statistics_are_computed_on_the_cpu(runs: Any, task: str) -> None:
    _, dump = collected(runs, Net(Scale()), task=task)
    entry = dump.data["Cell.inner.Scale.forward.0"]["input_args"][0]
    assert [entry[key] for key in ("Max", "Min", "Mean")] == [3.0, 1.0, 2.0]
    assert entry["Norm"] == pytest.approx(14**0.5, rel=1e-6)


# 2; more in test_statistics.py
def test_requires_grad_is_written(runs: Any) -> None:
    model = Net(Scale())
    model.inner.weight.requires_grad = False
    _, dump = collected(runs, model)
    record = dump.data["Cell.inner.Scale.forward.0"]
    assert record["parameters"]["weight"]["requires_grad"] is False
    assert record["output"][0]["requires_grad"] is True


# 4


class Compiled(nn.Cell):
    """``relu(x * 2) * 3``, compiled as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.relu = Scale(2.0), nn.ReLU()

    @ms.jit
    def construct(self, x: Any) -> Any:
        return self.relu(self.scale(x)) * 3


@MODULES
def test_a_compiled_cell_is_one_cell(runs: Any, level: str) -> None:
    expected = differentiate(Net(Compiled()))
    result, dump = collected(runs, Net(Compiled()), level)
    assert result == expected == (36.0, [[6.0, 6.0, 6.0]])
    cells = [name for name in dump.names if name.startswith("Cell.")]
    assert cells == ["Cell.inner.Compiled.forward.0", "Cell.inner.Compiled.backward.0"]
    assert bounds(dump.data[cells[0]]["input_args"] + dump.data[cells[0]]["output"]) == [(3.0, 1.0), (18.0, 6.0)]
    assert bounds(dump.data[cells[1]]["input"] + dump.data[cells[1]]["output"]) == [(1.0, 1.0), (6.0, 6.0)]


def test_compiled_code_is_said_once_and_neither_before_nor_later_disturbed(
    runs: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_given", set())
    model, debugger = Net(Compiled()), runs.new(level="mix")
    results = []
    for _ in range(2):
        debugger.start(model)
        results.append(differentiate(model))
        debugger.stop()
        debugger.step()
    results.append(differentiate(model))
    assert results == [(36.0, [[6.0, 6.0, 6.0]])] * 3
    assert capsys.readouterr().err.count("Compiled.construct is compiled with ms.jit") == 1


# 5; more in test_given_models.py


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


# 6; kept


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


# 7; kept


def test_tensors_in_a_list_have_no_place_in_the_backward_of_a_function(runs: Any) -> None:
    result, dump = collected(runs, lambda x: ops.sum(ops.concat((x * 2, x * 3))), "L1")
    assert result == (30.0, [[5.0, 5.0, 5.0]])
    record = dump.data["Functional.concat.0.backward"]
    assert bounds(record["input"]) == [(1.0, 1.0)] and record["output"] == []


# 8; more in test_custom_api.py


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_function_that_returns_a_dict_has_its_gradients(runs: Any, level: str) -> None:
    library = SimpleNamespace(call=lambda x: {"a": x * 2, "b": [x * 3]})

    class User(nn.Cell):
        def construct(self, x: Any) -> Any:
            return library.call(x)

    net = Net(User(), lambda output: output["a"] * 5 + output["b"][0])
    result, dump = collected(runs, net, level, custom=library)
    assert result == (13.0 * 6, [[13.0, 13.0, 13.0]])
    record = dump.data["User.call.0.backward"]
    assert bounds(record["input"]) == [(5.0, 5.0), (1.0, 1.0)]
    assert bounds(record["output"]) == [(13.0, 13.0)]


# 12; more in test_config.py
def test_structure_at_l1_is_said_to_become_mix(
    runs: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_given", set())
    _, dump = collected(runs, Net(Scale()), "L1", task="structure")
    assert 'Task "structure" needs level "L0" or "mix"; "L1" becomes "mix".' in capsys.readouterr().err
    assert dump.data == {} and dump.tree["Functional.sum.0.forward"] is None
    assert dump.tree["Tensor.__mul__.0.forward"] == "Cell.inner.Scale.forward.0"


# 13 has its tests in tests/api/choosing/test_msadapter_backend_choice.py.


# 15; more in tests/api/randomness/test_mindspore_seed_all.py
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_dropout_stays_active_without_being_asked(runs: Any, level: str) -> None:
    dropout, ones = nn.Dropout(p=0.5).set_train(), ms.Tensor(np.ones((8, 8), np.float32))

    def dropped() -> list[int]:
        return [int((call(ones).asnumpy() == 0).sum()) for call in (dropout, lambda x: ops.dropout(x, 0.5))]

    debugger = runs.new(level=level)
    counts = [dropped()]
    debugger.start(Net(dropout))
    counts.append(dropped())
    debugger.stop()
    counts.append(dropped())
    assert all(8 < number < 56 for pair in counts for number in pair), counts
