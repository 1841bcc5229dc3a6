"""Names and numbers of records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import BATCH, Names, batch, block_network, chain, collect, collect_calls


def test_an_api_is_named_by_the_entry_point_that_was_called_and_counts_from_zero(runs: Any, backend: Any) -> None:
    x, apis = batch(backend), backend.apis

    def call() -> None:
        y = x
        for name in ("add", "multiply", "add_inplace"):
            y = apis[name].call(y, y)
        for name in ("relu", "abs", "sum", "abs", "abs", "relu"):
            apis[name].call(y)

    order = [("add", 0), ("multiply", 0), ("add_inplace", 0), ("relu", 0), ("abs", 0), ("sum", 0), ("abs", 1)]
    expected = [f"{apis[name].base}.{number}.forward" for name, number in [*order, ("abs", 2), ("relu", 1)]]
    assert collect_calls(runs, None, call, "L1").names == expected


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
    dump, names = collect(runs, backend, "L0"), Names(backend)
    bases = [names.fc, names.act, names.body, names.head]
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


def test_a_module_with_two_names_has_the_first_and_counts_its_calls(runs: Any, backend: Any) -> None:
    shared = backend.linear(np.eye(4, dtype=np.float32), np.zeros(4, np.float32))
    model = backend.module("Net", chain("first", "second", "first"), first=shared, second=shared)
    dump = collect_calls(runs, model, lambda: backend.run(model, batch(backend, requires_grad=True)))
    base = f"{backend.root}.first.{backend.classes['linear']}"
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
    model, names = block_network(backend), Names(backend)
    dump = collect_calls(runs, model, lambda: [backend.run(model, batch(backend)) for _ in range(2)])
    expected = {f"{base}.parameters_grad.{n}" for base in (names.fc, names.head) for n in (0, 1)}
    assert set(dump.parameter_gradients) == expected


def test_a_wrapped_function_inside_another_is_neither_recorded_nor_counted(runs: Any, backend: Any) -> None:
    linear, matmul, x = backend.apis["linear"], backend.apis["matmul"], batch(backend)
    dump = collect_calls(runs, None, lambda: (linear.call(x, x), matmul.call(x, backend.transposed(x))), "L1")
    assert dump.names == [f"{linear.base}.0.forward", f"{matmul.base}.0.forward"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_the_head_says_how_it_was_made(runs: Any, backend: Any, level: str) -> None:
    head = collect(runs, backend, level).head
    assert list(head) == ["task", "level", "framework", "dump_data_dir", "data"]
    assert (head["task"], head["level"], head["framework"]) == ("statistics", level, backend.framework)
    assert head["dump_data_dir"] is None
