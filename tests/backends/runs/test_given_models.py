"""Several models in one run, what their modules return, and single modules that module_dump is given."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import numpy as np
import pytest
from programs import BATCH, WEIGHT1, WEIGHT2, Names, batch, block_network, chain, values

from probe.common.errors import MsprobeException

# --- several models


def test_another_model_in_a_later_start_has_the_names_and_so_has_a_module_that_was_exchanged(
    runs: Any, backend: Any
) -> None:
    debugger, first = runs.new(level="L0"), block_network(backend)
    second = backend.module("Other", chain("only"), only=first)
    names, linear, relu = Names(backend), backend.classes["linear"], backend.classes["relu"]
    for model in (first, second, first):
        debugger.start(model)
        model(batch(backend))
        debugger.stop()
        debugger.step()
        assert backend.traces_left(model) == []
        if model is second:
            first.head = backend.relu()
    assert (runs.read(0).names[0], runs.read(0).names[-1]) == (f"{names.fc}.forward.0", f"{names.head}.forward.0")
    inside = (f"body.fc.{linear}", f"body.act.{relu}", "body.Block", f"head.{linear}", "Net")
    assert runs.read(1).names == [f"{backend.root}.only.{each}.forward.0" for each in inside]
    assert runs.read(2).names[-1] == f"{backend.root}.head.{relu}.forward.0"


def test_another_model_in_the_same_step_counts_for_itself(runs: Any, backend: Any) -> None:
    debugger, names = runs.new(level="L0"), Names(backend)
    first, second = block_network(backend), block_network(backend)
    for model in (first, second):
        debugger.start(model)
        backend.run(model, batch(backend, requires_grad=True))
        debugger.stop()
    dump = runs.read()
    assert [name for name in dump.forward if name.startswith(names.fc)] == [f"{names.fc}.forward.{n}" for n in (0, 1)]
    assert [name for name in dump.backward if name.startswith(names.fc)] == [f"{names.fc}.backward.{n}" for n in (0, 1)]
    assert f"{names.fc}.parameters_grad.1" in dump.names


# --- modules with other results than one tensor


def outputs(backend: Any, form: str) -> Any:
    if form == "namedtuple":
        kind = collections.namedtuple("Pair", ["left", "right"])
        return lambda a, b: kind(a, b), lambda out: out.left + out.right
    if form == "dataclass":
        made = dataclasses.make_dataclass("Result", ["left", "right"])
        return lambda a, b: made(a, b), lambda out: out.left + out.right
    if form == "dict":
        return lambda a, b: {"left": a, "right": b}, lambda out: out["left"] + out["right"]
    return (lambda a, b: [a, b]) if form == "list" else (lambda a, b: (a, b)), lambda out: out[0] + out[1]


@pytest.mark.parametrize("form", ["tuple", "list", "dict", "namedtuple", "dataclass"])
def test_a_module_may_return_any_container(runs: Any, backend: Any, form: str) -> None:
    make, use = outputs(backend, form)
    fork = backend.module("Fork", lambda self, x: make(x * 2, x * 3))
    model = backend.module("Net", lambda self, x: use(self.fork(x)), fork=fork)
    debugger = runs.new(level="L0")
    debugger.start(model)
    outcome = backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    assert outcome.output == pytest.approx(BATCH * 5)
    data = runs.read().data
    base = f"{backend.root}.fork.Fork"
    given = data[f"{base}.forward.0"]["output"]
    if form in ("dict", "dataclass") or (form == "list" and backend.list_is_one_output):
        (given,) = given
    left, right = given if isinstance(given, list) else (given["left"], given["right"])
    assert (left["Max"], right["Max"]) == (4.0, 6.0)
    backward = data[f"{base}.backward.0"]
    assert [entry["Max"] for entry in backward["input"]] == [1.0, 1.0]
    assert [entry["Max"] for entry in backward["output"]] == [5.0]


def test_an_inplace_module_keeps_its_backward_and_that_of_the_one_before(runs: Any, backend: Any) -> None:
    fc = backend.linear(WEIGHT1, np.zeros(3, np.float32))
    model = backend.module("Net", chain("fc", "act"), fc=fc, act=backend.inplace_relu())
    debugger = runs.new(level="L0")
    debugger.start(model)
    outcome = backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    dump = runs.read()
    hidden = BATCH @ WEIGHT1.T
    root, linear, relu = backend.root, backend.classes["linear"], backend.classes["relu"]
    assert dump.backward == [f"{root}.act.{relu}.backward.0", f"{root}.fc.{linear}.backward.0"]
    forward = dump.data[f"{root}.act.{relu}.forward.0"]
    assert forward["input_args"][0]["Min"] == pytest.approx(hidden.min(), rel=1e-5)
    assert forward["output"][0]["Min"] == 0.0
    before = dump.data[f"{root}.fc.{linear}.backward.0"]
    mask = (hidden > 0).astype(np.float64)
    assert before["input"][0]["Norm"] == pytest.approx(np.linalg.norm(mask))
    assert before["output"][0]["Norm"] == pytest.approx(np.linalg.norm(mask @ WEIGHT1), rel=1e-5)
    assert outcome.inputs[0] == pytest.approx(mask @ WEIGHT1, rel=1e-5)


# --- module_dump


def test_module_dump_shows_one_module_and_hides_apis(runs: Any, backend: Any) -> None:
    debugger, model = runs.new(level="L1"), block_network(backend)
    absolute, x = backend.apis["abs"], batch(backend)
    debugger.start()
    absolute.call(x)
    debugger.session().module_dump(model.body, "trunk")
    backend.run(model, batch(backend, requires_grad=True))
    absolute.call(x)
    debugger.session().module_dump_end()
    absolute.call(x)
    debugger.stop()
    base = f"{backend.root}.trunk.Block"
    dump = runs.read()
    assert dump.names == [
        f"{absolute.base}.0.forward",
        f"{base}.forward.0",
        f"{base}.backward.0",
        f"{absolute.base}.1.forward",
    ]
    (hidden, middle, _), taken = values(), dump.data[f"{base}.backward.0"]
    assert dump.data[f"{base}.forward.0"]["output"][0]["Norm"] == pytest.approx(np.linalg.norm(middle), rel=1e-5)
    given = np.ones((5, 2)) @ WEIGHT2
    assert taken["input"][0]["Norm"] == pytest.approx(np.linalg.norm(given), rel=1e-5)
    assert taken["output"][0]["Norm"] == pytest.approx(np.linalg.norm((given * (hidden > 0)) @ WEIGHT1), rel=1e-5)
    debugger.step()
    assert backend.traces_left(model) == []


@pytest.mark.parametrize(("module", "name"), [(None, "x"), (3, "x"), ("model", ""), ("model", 5)])
def test_module_dump_refuses_wrong_arguments(runs: Any, backend: Any, module: Any, name: Any) -> None:
    debugger = runs.new(level="L1")
    debugger.start()
    with pytest.raises(MsprobeException, match="module_dump: "):
        debugger.session().module_dump(backend.relu() if module == "model" else module, name)
