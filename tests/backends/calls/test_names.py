"""Names and numbers of records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import BATCH, Names, batch, block_network, chain


def test_an_api_is_named_by_the_entry_point_that_was_called(runs: Any, backend: Any) -> None:
    debugger, x = runs.new(), batch(backend)
    debugger.start()
    for name in ("add", "multiply", "add_inplace"):
        x = backend.apis[name].call(x, x)
    for name in ("relu", "abs", "sum"):
        backend.apis[name].call(x)
    debugger.stop()
    names = ("add", "multiply", "add_inplace", "relu", "abs", "sum")
    assert runs.read().names == [f"{backend.apis[name].base}.0.forward" for name in names]


def test_each_api_counts_from_zero(runs: Any, backend: Any) -> None:
    debugger, x = runs.new(), batch(backend)
    absolute, relu = backend.apis["abs"], backend.apis["relu"]
    debugger.start()
    for call in (absolute, relu, absolute, absolute, relu):
        call.call(x)
    debugger.stop()
    expected = [(absolute, 0), (relu, 0), (absolute, 1), (absolute, 2), (relu, 1)]
    assert runs.read().names == [f"{api.base}.{number}.forward" for api, number in expected]


def test_calls_outside_start_and_stop_are_not_counted(runs: Any, backend: Any) -> None:
    debugger, x, absolute = runs.new(), batch(backend), backend.apis["abs"]
    absolute.call(x)
    debugger.start()
    absolute.call(x)
    debugger.stop()
    absolute.call(x)
    debugger.start()
    absolute.call(x)
    debugger.stop()
    assert runs.read().names == [f"{absolute.base}.0.forward", f"{absolute.base}.1.forward"]


def test_step_sets_all_numbers_back(runs: Any, backend: Any) -> None:
    debugger, model, names = runs.new(level="mix"), block_network(backend), Names(backend)
    for _ in range(2):
        debugger.start(model)
        backend.run(model, batch(backend, requires_grad=True))
        debugger.stop()
        debugger.step()
    assert runs.read(0).names == runs.read(1).names
    assert f"{names.head}.forward.0" in runs.read(1).names


def test_names_of_modules_and_of_their_gradients(runs: Any, backend: Any) -> None:
    debugger, model, names = runs.new(level="L0"), block_network(backend), Names(backend)
    debugger.start(model)
    backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    bases = [names.fc, names.act, names.body, names.head]
    dump = runs.read()
    assert dump.forward == [f"{base}.forward.0" for base in bases]
    assert sorted(dump.backward) == sorted(f"{base}.backward.0" for base in bases)
    assert sorted(dump.parameter_gradients) == sorted(f"{base}.parameters_grad.0" for base in (names.fc, names.head))
    assert len(dump.names) == 10


def test_backward_reuses_the_number_of_the_forward(runs: Any, backend: Any) -> None:
    debugger, relu = runs.new(), backend.apis["relu"]
    debugger.start()
    relu.call(batch(backend))
    backend.run(relu.call, batch(backend, requires_grad=True))
    debugger.stop()
    assert runs.read().backward == [f"{relu.base}.1.backward"]


def test_a_list_of_models_puts_the_index_in_front(runs: Any, backend: Any) -> None:
    debugger, model, names = runs.new(level="L0"), block_network(backend), Names(backend)
    other = block_network(backend)
    for models in ([model, other], (model, other)):
        debugger.start(models)
        model(batch(backend)), other(batch(backend))
        debugger.stop()
        debugger.step()
    expected = [
        f"{base.replace(backend.root, f'{backend.root}.{index}', 1)}.forward.0"
        for index in (0, 1)
        for base in (names.fc, names.act, names.body, names.head)
    ]
    assert runs.read(0).names == runs.read(1).names == expected


def test_a_list_of_one_model_has_an_index_too(runs: Any, backend: Any) -> None:
    debugger, model = runs.new(level="L0"), block_network(backend)
    debugger.start([model])
    model(batch(backend))
    debugger.stop()
    assert runs.read().names[0] == f"{backend.root}.0.body.fc.{backend.classes['linear']}.forward.0"


def test_a_module_with_two_names_has_the_first_and_counts_its_calls(runs: Any, backend: Any) -> None:
    shared = backend.linear(np.eye(4, dtype=np.float32), np.zeros(4, np.float32))
    model = backend.module("Net", chain("first", "second", "first"), first=shared, second=shared)
    debugger = runs.new(level="L0")
    debugger.start(model)
    backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    base = f"{backend.root}.first.{backend.classes['linear']}"
    dump = runs.read()
    assert dump.forward == [f"{base}.forward.{n}" for n in range(3)]
    assert dump.backward == [f"{base}.backward.{n}" for n in (2, 1, 0)]


def test_one_backward_after_several_calls_is_one_gradient_of_the_parameters(runs: Any, backend: Any) -> None:
    shared = backend.linear(np.eye(4, dtype=np.float32), np.zeros(4, np.float32))
    model = backend.module("Net", chain("fc", "fc"), fc=shared)
    debugger = runs.new(level="L0", task="tensor")
    debugger.start(model)
    outcome = backend.run(model, batch(backend, requires_grad=True), model=model)
    debugger.stop()
    dump = runs.read()
    base = f"{backend.root}.fc.{backend.classes['linear']}"
    assert dump.parameter_gradients == [f"{base}.parameters_grad.0"]
    # x -> x, twice, with ones as gradient: each call adds the sum of its inputs' rows.
    expected = np.tile(BATCH.astype(np.float64).sum(0) * 2, (4, 1))
    (entry,) = dump.data[f"{base}.parameters_grad.0"]["weight"]
    assert entry["shape"] == [4, 4] and entry["requires_grad"] is False
    assert entry["Max"] == pytest.approx(expected.max(), abs=1e-5)
    saved = backend.load_tensor_file(dump.folder / "dump_tensor_data" / entry["data_name"])
    assert np.array_equal(saved, outcome.parameters["fc.weight"])
    assert saved == pytest.approx(expected, abs=1e-5)


def test_two_backward_passes_are_two_gradients_of_the_parameters(runs: Any, backend: Any) -> None:
    debugger, model, names = runs.new(level="L0"), block_network(backend), Names(backend)
    debugger.start(model)
    for _ in range(2):
        backend.run(model, batch(backend))
    debugger.stop()
    found = set(runs.read().parameter_gradients)
    assert found == {f"{base}.parameters_grad.{n}" for base in (names.fc, names.head) for n in (0, 1)}


def test_a_wrapped_function_inside_another_is_neither_recorded_nor_counted(runs: Any, backend: Any) -> None:
    linear, matmul, x = backend.apis["linear"], backend.apis["matmul"], batch(backend)
    debugger = runs.new()
    debugger.start()
    linear.call(x, x)
    matmul.call(x, backend.transposed(x))
    debugger.stop()
    assert runs.read().names == [f"{linear.base}.0.forward", f"{matmul.base}.0.forward"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_the_head_says_how_it_was_made(runs: Any, backend: Any, level: str) -> None:
    debugger, model = runs.new(level=level), block_network(backend)
    debugger.start(model)
    model(batch(backend))
    debugger.stop()
    head = runs.read().head
    assert list(head) == ["task", "level", "framework", "dump_data_dir", "data"]
    assert (head["task"], head["level"], head["framework"]) == ("statistics", level, backend.framework)
    assert head["dump_data_dir"] is None
