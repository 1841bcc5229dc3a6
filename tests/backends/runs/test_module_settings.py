"""The settings of modules next to a dump: attributes, buffers and hooks, once for each set of models."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from programs import BIAS1, WEIGHT1, Names, batch, block_network, chain

from probe.common.environment.environment_file import ModuleSettings, settings_at

TABLE = np.float32([0.5, -1.25, 3.0])


def environment(runs: Any) -> dict[str, Any]:
    (path,) = runs.path.glob("environment_*")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def settings(runs: Any, step: int = 0) -> dict[str, ModuleSettings]:
    return dict(settings_at(environment(runs), step))


def collect(debugger: Any, model: Any, backend: Any) -> None:
    debugger.start(model)
    model(batch(backend))
    debugger.stop()
    debugger.step()


def look(module: Any, *_: Any) -> None:
    """A hook of a program."""


def test_they_are_there_under_the_names_of_records(runs: Any, backend: Any) -> None:
    model, names = block_network(backend), Names(backend)
    model.body.eps, model.body.mode, model.body.sizes = 1e-6, "wide", (2, 3)
    model.body.password, model.body._kept, model.body.other = "planted", 1.0, object()
    model.body.register_buffer("table", backend.tensor(TABLE), persistent=False)
    handle = model.body.register_forward_pre_hook(look)
    collect(runs.new(level="L0"), model, backend)
    handle.remove()
    found = settings(runs)
    model_itself = f"{backend.root}.{type(model).__name__}"
    assert set(found) == {names.fc, names.act, names.body, names.head, model_itself}
    assert [name for name, each in found.items() if each.is_model] == [model_itself]
    body = found[names.body]
    assert body.class_name == "Block" and not body.is_layer
    assert found[names.act].is_layer == (".nn." in found[names.act].kind)
    own = {name: body.values.get(name) for name in ("eps", "mode", "sizes")}
    assert own == {"eps": 1e-6, "mode": "wide", "sizes": [2, 3]}
    assert not {"password", "_kept", "other"} & set(body.values) and "planted" not in json.dumps(environment(runs))
    assert body.hooks == ("forward pre-hook look",) and found[names.fc].hooks == ()
    table, wide = body.buffers["table"], TABLE.astype(np.float64)
    assert table.shape == (3,) and not table.is_state and "loat32" in table.dtype
    assert table.statistics == pytest.approx((wide.max(), wide.min(), wide.mean(), np.sqrt(np.square(wide).sum())))


def test_they_are_described_once_for_each_model(runs: Any, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    debugger, names = runs.new(level="L0"), Names(backend)
    first, second = block_network(backend), block_network(backend)
    first.body.eps, second.body.eps = 1.0, 2.0
    for model in (first, first, second, second):
        collect(debugger, model, backend)
    found = [settings(runs, step)[names.body].values["eps"] for step in range(4)]
    assert found == [1.0, 1.0, 2.0, 2.0] and len(environment(runs)["modules"]) == 2
    assert backend.traces_left(second) == []


def test_models_beyond_the_most_sets_have_no_settings_of_others(
    runs: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probe.collect.environment.MOST_SETS", 2)
    debugger, names = runs.new(level="L0"), Names(backend)
    models = [block_network(backend) for _ in range(4)]
    for number, model in enumerate(models):
        model.body.eps = float(number)
        collect(debugger, model, backend)
    assert [settings(runs, step)[names.body].values["eps"] for step in (0, 1)] == [0.0, 1.0]
    assert settings(runs, 2) == settings(runs, 3) == {}


def test_models_that_take_turns_in_a_step_are_described_together(runs: Any, backend: Any) -> None:
    debugger, names = runs.new(level="L0"), Names(backend)
    first = block_network(backend)
    second = backend.module("Other", chain("tail"), tail=backend.linear(WEIGHT1, BIAS1))
    for _ in range(2):
        for model in (first, second):
            debugger.start(model)
            model(batch(backend))
            debugger.stop()
        debugger.step()
    (table,) = environment(runs)["modules"]
    tail = f"{backend.root}.tail.{backend.classes['linear']}"
    models = {f"{backend.root}.{type(model).__name__}" for model in (first, second)}
    assert table["step"] == 0
    assert set(settings(runs, 1)) == {names.fc, names.act, names.body, names.head, tail} | models


def test_models_of_a_list_are_described_too(runs: Any, backend: Any) -> None:
    debugger = runs.new(level="L0")
    models = [block_network(backend), backend.linear(WEIGHT1, BIAS1)]
    models[0].scale = 0.5
    models[0].register_buffer("table", backend.tensor(TABLE))
    debugger.start(models)
    for model in models:
        model(batch(backend))
    debugger.stop()
    debugger.step()
    found = settings(runs)
    model_itself = found[f"{backend.root}.0.{type(models[0]).__name__}"]
    assert model_itself.is_model and model_itself.values["scale"] == 0.5 and set(model_itself.buffers) == {"table"}
    # A model that is one layer has records of its own.
    assert not found[f"{backend.root}.1.{backend.classes['linear']}"].is_model


@pytest.mark.parametrize("wanted", [False, True])
def test_a_failure_of_it_costs_it_alone_and_without_the_key_nothing_is_asked_for(
    runs: Any, backend: Any, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("ours")

    runs.errors_expected = wanted
    monkeypatch.setattr("probe.collect.environment.DescribedModels.add", broken)
    collect(runs.new(level="L0", environment=wanted), block_network(backend), backend)
    if not wanted:
        assert list(runs.path.glob("environment_*")) == []
        return
    found = environment(runs)
    assert "modules" not in found and found["packages"]["numpy"] and runs.read().names
