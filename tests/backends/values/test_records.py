"""What stands in a record, against values computed with numpy, and the order of records."""

from __future__ import annotations

from typing import Any

import dumped
import numpy as np
import pytest
from programs import BATCH, WEIGHT1, WEIGHT2, Names, batch, block_network, values

import probe


def collect(runs: Any, backend: Any, level: str, requires_grad: bool = True, **settings: Any) -> tuple[Any, Any]:
    model = block_network(backend)
    debugger = runs.new(level=level, **settings)
    debugger.start(model)
    outcome = backend.run(model, batch(backend, requires_grad), model=model)
    debugger.stop()
    return runs.read(), outcome


def assert_describes(entry: Any, exact: Any, requires_grad: bool) -> None:
    assert entry["shape"] == list(np.shape(exact)) and entry["requires_grad"] is requires_grad
    found = [entry[key] for key in ("Max", "Min", "Mean", "Norm")]
    expected = [np.max(exact), np.min(exact), np.mean(exact), np.linalg.norm(exact)]
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_module_record_has_inputs_outputs_and_parameters(runs: Any, backend: Any) -> None:
    dump, _ = collect(runs, backend, "L0")
    names, (hidden, _, output) = Names(backend), values()
    record = dump.data[f"{names.fc}.forward.0"]
    assert list(record) == ["input_args", "input_kwargs", "output", "parameters"]
    assert_describes(record["input_args"][0], BATCH, True)
    assert record["input_kwargs"] == {}
    assert_describes(record["output"][0], hidden, True)
    assert list(record["parameters"]) == ["weight", "bias"]
    assert_describes(record["parameters"]["weight"], WEIGHT1, True)
    assert_describes(dump.data[f"{names.head}.forward.0"]["output"][0], output, True)
    assert dump.data[f"{names.body}.forward.0"]["parameters"] == {}, "only its own are a module's"


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_tensors_that_are_not_finite_are_counted_in_every_record(runs: Any, backend: Any, level: str) -> None:
    values = np.array(BATCH, dtype=np.float32)
    values[0, 0] = np.nan
    dumps = {}
    for nonfinite in (True, False):
        model, folder = block_network(backend), runs.path.with_name(f"nonfinite-{nonfinite}")
        debugger = runs.new(dump_path=folder, level=level, nonfinite=nonfinite)
        debugger.start(model)
        backend.run(model, backend.tensor(values, "float32"), model=model)
        debugger.stop()
        debugger.step()
        dumps[nonfinite] = probe.read(dumped.read(folder).folder)
    counted = [item for record in dumps[True] for item in record.items() if item.is_tensor]
    plain = [item for record in dumps[False] for item in record.items() if item.is_tensor]
    assert [item.name for item in counted] == [item.name for item in plain]
    assert all((item.nonfinite is not None) == (item.has_nan or item.has_inf) for item in counted)
    assert not any(item.nonfinite for item in plain)
    assert {repr(item.norm) for item in counted} == {repr(item.norm) for item in plain}
    bad = [item for item in counted if item.nonfinite]
    assert len(bad) > 3 and any(item.nonfinite == 1 and item.finite_max == np.nanmax(values) for item in bad)
    assert any(".backward" in item.name or "parameters_grad" in item.name for item in bad)


def test_backward_has_the_gradients_of_output_and_input(runs: Any, backend: Any) -> None:
    dump, outcome = collect(runs, backend, "L0")
    names, (hidden, _, output) = Names(backend), values()
    of_output = np.ones_like(output)
    of_middle = of_output @ WEIGHT2
    of_hidden = of_middle * (hidden > 0)
    of_input = of_hidden @ WEIGHT1
    for base, given, taken in (
        (names.head, of_output, of_middle),
        (names.act, of_middle, of_hidden),
        (names.fc, of_hidden, of_input),
        (names.body, of_middle, of_input),
    ):
        record = dump.data[f"{base}.backward.0"]
        assert list(record) == ["input", "output"]
        assert len(record["input"]) == len(record["output"]) == 1
        assert_describes(record["input"][0], given, False)
        assert_describes(record["output"][0], taken, False)
    assert outcome.inputs[0] == pytest.approx(of_input, rel=1e-5)
    for field, exact in (("weight", of_hidden.T @ BATCH), ("bias", of_hidden.sum(0))):
        (entry,) = dump.data[f"{names.fc}.parameters_grad.0"][field]
        assert_describes(entry, exact, False)


def test_api_backward_has_the_gradients_of_its_function(runs: Any, backend: Any) -> None:
    matmul = backend.apis["matmul"]
    left, right = BATCH, WEIGHT1.T.copy()
    debugger = runs.new()
    debugger.start()
    inputs = backend.tensor(left, requires_grad=True), backend.tensor(right, requires_grad=True)
    backend.run(matmul.call, *inputs)
    debugger.stop()
    record = runs.read().data[f"{matmul.base}.0.backward"]
    ones = np.ones((5, 3))
    (given,) = record["input"]
    assert_describes(given, ones, False)
    assert_describes(record["output"][0], ones @ right.T, False)
    assert_describes(record["output"][1], left.T @ ones, False)


def test_keyword_inputs_stand_by_name(runs: Any, backend: Any) -> None:
    def forward(self: Any, x: Any, *, factor: Any, note: str) -> Any:
        return x * factor

    inner = backend.module("Scale", forward)
    model = backend.module("Net", lambda self, x: self.inner(x, factor=x, note="twice"), inner=inner)
    debugger = runs.new(level="L0")
    debugger.start(model)
    model(batch(backend))
    debugger.stop()
    record = runs.read().data[f"{backend.root}.inner.Scale.forward.0"]
    assert len(record["input_args"]) == 1 and list(record["input_kwargs"]) == ["factor", "note"]
    assert record["input_kwargs"]["note"] == {"type": "str", "value": "twice"}
    assert_describes(record["input_kwargs"]["factor"], BATCH, False)
    assert_describes(record["output"][0], BATCH.astype(np.float64) ** 2, False)


# --- order


def test_without_gradient_of_the_input_a_backward_has_that_of_its_output(runs: Any, backend: Any) -> None:
    dump, _ = collect(runs, backend, "L0", requires_grad=False)
    names = Names(backend)
    # Where the module stands among its children then differs from framework to framework.
    bases = (names.head, names.body, names.act, names.fc)
    assert sorted(dump.backward) == sorted(f"{base}.backward.0" for base in bases)
    for base in (names.body, names.fc):
        record = dump.data[f"{base}.backward.0"]
        assert record["output"] in ([], [None]) and len(record["input"]) == 1
    assert len(dump.data[f"{names.act}.backward.0"]["output"]) == 1


def test_apis_stand_where_they_began_and_modules_where_they_ended(runs: Any, backend: Any) -> None:
    dump, _ = collect(runs, backend, "mix")
    names, linear, relu = Names(backend), backend.apis["linear"].base, backend.apis["relu"].base
    assert dump.forward == [
        f"{linear}.0.forward",
        f"{names.fc}.forward.0",
        f"{relu}.0.forward",
        f"{names.act}.forward.0",
        f"{names.body}.forward.0",
        f"{linear}.1.forward",
        f"{names.head}.forward.0",
    ]
    assert dump.backward == [
        f"{linear}.1.backward",
        f"{names.head}.backward.0",
        f"{relu}.0.backward",
        f"{names.act}.backward.0",
        f"{linear}.0.backward",
        f"{names.fc}.backward.0",
        f"{names.body}.backward.0",
    ]


def test_a_parameter_used_by_two_modules_appears_under_both(runs: Any, backend: Any) -> None:
    weight = backend.parameter(np.array([1.0, 2.0, 3.0, 4.0], np.float32))

    def scale(self: Any, x: Any) -> Any:
        return x * self.weight

    first, second = backend.module("Scale", scale, weight=weight), backend.module("Scale", scale, weight=weight)
    model = backend.module("Net", lambda self, x: self.second(self.first(x)), first=first, second=second)
    debugger = runs.new(level="L0")
    debugger.start(model)
    backend.run(model, batch(backend))
    debugger.stop()
    dump = runs.read()
    assert sorted(dump.parameter_gradients) == [
        f"{backend.root}.{name}.Scale.parameters_grad.0" for name in ("first", "second")
    ]
    exact = 2 * np.array([1.0, 2.0, 3.0, 4.0]) * BATCH.astype(np.float64).sum(0)
    for name in dump.parameter_gradients:
        assert_describes(dump.data[name]["weight"][0], exact, False)


def test_nothing_backward_where_no_gradient_is_taken(runs: Any, backend: Any) -> None:
    debugger, model = runs.new(level="mix"), block_network(backend)
    debugger.start(model)
    backend.without_gradient(lambda: model(batch(backend, requires_grad=True)))
    debugger.stop()
    dump = runs.read()
    assert len(dump.forward) == 7 and dump.forward == dump.names


def test_dropout_that_drops_nothing_has_no_backward(runs: Any, backend: Any) -> None:
    dropout = backend.apis["dropout"]
    debugger = runs.new()
    debugger.start()
    for training in (False, True):
        backend.run(lambda x, on=training: dropout.call(x, 0.5, on), batch(backend, requires_grad=True))
    debugger.stop()
    dump = runs.read()
    assert dump.forward == [f"{dropout.base}.0.forward", f"{dropout.base}.1.forward"]
    assert dump.backward == [f"{dropout.base}.1.backward"]


def test_unused_outputs_have_a_null_gradient(runs: Any, backend: Any) -> None:
    split = backend.apis["split"]
    debugger = runs.new()
    debugger.start()
    backend.run(lambda x: split.call(x, 2, 1)[1], batch(backend, requires_grad=True))
    debugger.stop()
    record = runs.read().data[f"{split.base}.0.backward"]
    assert record["input"][0] is None
    assert_describes(record["input"][1], np.ones((5, 2)), False)
    (taken,) = [entry for entry in record["output"] if entry is not None]
    assert_describes(taken, np.repeat([[0, 0, 1, 1]], 5, axis=0), False)
