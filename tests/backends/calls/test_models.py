"""Which modules of the models given to `start` have records, and how several models share the names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from programs import BATCH, BIAS1, BIAS2, WEIGHT1, WEIGHT2, Names, batch, block_network, chain, collect_calls, values

from probe.common import log


@pytest.fixture(autouse=True)
def nothing_said_yet() -> Iterator[None]:
    log.reset()
    yield
    log.reset()


def linear(backend: Any) -> Any:
    return backend.linear(WEIGHT1, BIAS1)


def layer(backend: Any, path: str = "") -> str:
    """The name of `linear` as a model of its own, or with this path."""
    return ".".join(filter(None, (backend.root, path, backend.classes["linear"])))


def warnings(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if "[WARNING]" in line]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_model_that_is_one_layer_is_recorded_itself(
    runs: Any, backend: Any, level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, name = linear(backend), layer(backend)
    debugger = runs.new(level=level)
    for _ in range(2):
        debugger.start(model)
        backend.run(model, batch(backend, requires_grad=True), model=model)
        debugger.stop()
        debugger.step()
    assert warnings(capsys) == [] and backend.traces_left(model) == []
    for step in (0, 1):
        dump = runs.read(step)
        modules = {f"{name}.forward.0", f"{name}.backward.0", f"{name}.parameters_grad.0"}
        assert {each for each in dump.names if each.startswith(backend.root)} == modules
        hidden, ones = values()[0], np.ones((5, 3))
        forward, backward = dump.data[f"{name}.forward.0"], dump.data[f"{name}.backward.0"]
        assert list(forward) == ["input_args", "input_kwargs", "output", "parameters"]
        assert forward["output"][0]["Norm"] == pytest.approx(np.linalg.norm(hidden), rel=1e-5)
        assert forward["parameters"]["weight"]["Norm"] == pytest.approx(np.linalg.norm(WEIGHT1), rel=1e-5)
        assert backward["input"][0]["Norm"] == pytest.approx(np.linalg.norm(ones), rel=1e-5)
        assert backward["output"][0]["Norm"] == pytest.approx(np.linalg.norm(ones @ WEIGHT1), rel=1e-5)
        (weight,) = dump.data[f"{name}.parameters_grad.0"]["weight"]
        assert weight["Norm"] == pytest.approx(np.linalg.norm(ones.T @ BATCH), rel=1e-5)


def test_a_model_that_is_one_layer_is_in_the_tree_and_has_a_stack(runs: Any, backend: Any) -> None:
    debugger, model, name = runs.new(level="mix"), linear(backend), layer(backend)
    debugger.start(model)
    backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    dump, api = runs.read(), backend.apis["linear"].base
    assert dump.tree == {
        f"{name}.forward.0": None,
        f"{api}.0.forward": f"{name}.forward.0",
        f"{name}.backward.0": None,
        f"{api}.0.backward": f"{name}.backward.0",
    }
    assert any("test_models.py" in frame for frame in dump.stack_of(f"{name}.forward.0"))


def test_token_range_counts_calls_of_a_model_that_is_one_layer(runs: Any, backend: Any) -> None:
    debugger, model, name = runs.new(level="L0"), linear(backend), layer(backend)
    debugger.start(model, token_range=[1, 2])
    for factor in range(5):
        model(backend.tensor(BATCH * factor))
    debugger.stop()
    data = runs.read().data
    assert list(data) == [f"{name}.forward.0", f"{name}.forward.1"]
    maxima = [record["input_args"][0]["Max"] for record in data.values()]
    assert maxima == [BATCH.max(), BATCH.max() * 2]


def test_the_name_of_a_model_that_is_one_layer_can_be_a_scope(runs: Any, backend: Any) -> None:
    model, scope = linear(backend), [f"{layer(backend)}.forward.{number}" for number in (1, 2)]
    dump = collect_calls(runs, model, lambda: [model(batch(backend)) for _ in range(4)], scope=scope)
    assert dump.names == scope


def test_several_models_have_their_index_or_their_name_in_front(runs: Any, backend: Any) -> None:
    debugger, names = runs.new(level="L0"), Names(backend)
    first, second = linear(backend), block_network(backend)
    given: list[Any] = [[first, second], (first, second), [second], {"coder": first, "judge": second}]
    for models in given:
        debugger.start(models)
        first(batch(backend)), second(batch(backend))
        debugger.stop()
        debugger.step()

    def of_second(prefix: str) -> list[str]:
        bases = (names.fc, names.act, names.body, names.head)
        return [f"{base}.forward.0".replace(backend.root, f"{backend.root}.{prefix}", 1) for base in bases]

    numbered = [f"{layer(backend, '0')}.forward.0", *of_second("1")]
    expected = [numbered, numbered, of_second("0"), [f"{layer(backend, 'coder')}.forward.0", *of_second("judge")]]
    # A model with modules inside is not recorded itself.
    assert [runs.read(step).names for step in range(4)] == expected


def test_no_two_modules_of_the_models_given_have_one_name(runs: Any, backend: Any) -> None:
    fc, inner = linear(backend), backend.module("Net", chain("fc"), fc=backend.linear(WEIGHT1 * 2, BIAS1))
    first = backend.module("Net", chain("inner"), inner=inner)
    second = backend.module("Net", chain("fc"), fc=fc)
    debugger = runs.new(level="L0")
    debugger.start({"a": first, "a.inner": second})
    first(batch(backend)), second(batch(backend))
    debugger.stop()
    data = runs.read().data
    found = {name: record["parameters"]["weight"]["Max"] for name, record in data.items() if record["parameters"]}
    assert found == {f"{layer(backend, 'a.inner.fc')}.forward.0": 2, f"{layer(backend, 'a.inner.fc~2')}.forward.0": 1}


@pytest.mark.parametrize("layer_first", [True, False])
def test_a_layer_inside_another_model_that_is_given_has_its_name_there(
    runs: Any, backend: Any, layer_first: bool
) -> None:
    fc = linear(backend)
    model = backend.module("Net", chain("fc"), fc=fc)
    debugger = runs.new(level="L0")
    debugger.start([fc, model] if layer_first else [model, fc])
    model(batch(backend)), fc(batch(backend))
    debugger.stop()
    base = layer(backend, f"{int(layer_first)}.fc")
    assert runs.read().names == [f"{base}.forward.0", f"{base}.forward.1"]


def test_a_module_of_two_models_has_the_name_of_the_first_and_one_record_a_call(runs: Any, backend: Any) -> None:
    shared = linear(backend)
    first = backend.module("Net", chain("coder"), coder=shared)
    second = backend.module("Net", chain("fc", "head"), fc=shared, head=backend.linear(WEIGHT2, BIAS2))
    debugger = runs.new(level="L0")
    debugger.start([first, second])
    first(batch(backend))
    backend.run(second, batch(backend), model=second)
    debugger.stop()
    coder, head = layer(backend, "0.coder"), layer(backend, "1.head")
    dump = runs.read()
    assert dump.forward == [f"{coder}.forward.0", f"{coder}.forward.1", f"{head}.forward.0"]
    assert sorted(dump.parameter_gradients) == [f"{coder}.parameters_grad.0", f"{head}.parameters_grad.0"]


def test_a_name_that_belonged_to_another_model_before_is_reported_once(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    debugger, first, second = runs.new(level="L0"), block_network(backend), block_network(backend)
    for _ in range(2):
        for model in (first, second):
            debugger.start(model)
            model(batch(backend))
            debugger.stop()
    (line,) = warnings(capsys)
    assert f"{Names(backend).body} was another module in an earlier start" in line
    assert "start([first, second])" in line
    head = Names(backend).head
    assert [name for name in runs.read().names if name.startswith(head)] == [f"{head}.forward.{n}" for n in range(4)]


def test_a_model_in_the_place_of_one_that_is_gone_is_not_reported(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    debugger = runs.new(level="L0")
    for _ in range(3):
        model = block_network(backend)
        debugger.start(model)
        model(batch(backend))
        debugger.stop()
        debugger.step()
        del model
    assert warnings(capsys) == []
    assert runs.read(0).names == runs.read(1).names == runs.read(2).names


def test_module_dump_shows_a_model_that_is_one_layer(runs: Any, backend: Any) -> None:
    debugger, model = runs.new(level="L1"), linear(backend)
    debugger.start(model)
    debugger.session().module_dump(model, "coder")
    backend.run(model, batch(backend, requires_grad=True), model=model)
    debugger.session().module_dump_end()
    debugger.stop()
    base = layer(backend, "coder")
    assert set(runs.read().names) == {f"{base}.forward.0", f"{base}.backward.0", f"{base}.parameters_grad.0"}
