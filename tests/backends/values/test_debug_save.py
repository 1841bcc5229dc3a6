"""`save`: single values of the user's choice, at level debug."""

from __future__ import annotations

import functools
import json
import os
from typing import Any

import dumped
import numpy as np
import pytest
from programs import batch

ONES = np.ones((2, 2), np.float32)


def test_values_are_recorded_under_their_names_in_their_form(runs: Any, backend: Any) -> None:
    debugger = runs.new(level="debug")
    debugger.save(backend.tensor(ONES * 3), "weights")
    debugger.save({"a": [1, (2.5, "text")], "t": backend.tensor(ONES), "b": True}, "mixed", save_backward=False)
    debugger.stop()
    head = dumped.read_debug(runs.path)
    assert (head["level"], head["framework"]) == ("debug", backend.framework)
    data = head["data"]
    assert list(data) == ["weights.0.debug", "weights_grad.0.debug", "mixed.0.debug"]
    assert data["weights.0.debug"]["Norm"] == 6.0 and data["weights_grad.0.debug"] is None
    mixed = data["mixed.0.debug"]
    assert mixed["a"] == [
        {"type": "int", "value": 1},
        [{"type": "float", "value": 2.5}, {"type": "str", "value": "text"}],
    ]
    assert mixed["b"] == {"type": "bool", "value": True}
    assert (mixed["t"]["Max"], mixed["t"]["Norm"]) == (1.0, 2.0)
    debugger.save(3, "later", save_backward=False)
    debugger.stop()
    debugger.step()
    assert list(dumped.read_debug(runs.path)["data"])[-1] == "later.0.debug"


def test_gradients_arrive_in_the_same_nesting(runs: Any, backend: Any) -> None:
    debugger = runs.new(level="debug")
    x, y = backend.tensor(ONES * 2, requires_grad=True), backend.tensor(ONES)

    def forward(value: Any) -> Any:
        product = value * 3
        debugger.save({"x": [value, 5], "y": y, "p": (product,)}, "inner")
        return product * 4

    outcome = backend.run(forward, x)
    debugger.step()
    data = dumped.read_debug(runs.path)["data"]
    gradient = data["inner_grad.0.debug"]
    assert set(gradient) == {"x", "y", "p"}
    assert gradient["y"] is None and gradient["x"][1] is None
    assert (gradient["x"][0]["Max"], gradient["x"][0]["Min"]) == (12.0, 12.0)
    assert gradient["p"][0]["Max"] == 4.0 and gradient["p"][0]["requires_grad"] is False
    assert np.array_equal(outcome.inputs[0], ONES * 12)


def test_save_backward_false_records_no_gradient(runs: Any, backend: Any) -> None:
    debugger = runs.new(level="debug")

    def forward(x: Any) -> Any:
        debugger.save(x, "quiet", save_backward=False)
        debugger.save(x, "loud", save_backward=True)
        return x * 2

    backend.run(forward, backend.tensor(ONES, requires_grad=True))
    debugger.step()
    data = dumped.read_debug(runs.path)["data"]
    assert list(data) == ["quiet.0.debug", "loud.0.debug", "loud_grad.0.debug"]
    assert data["loud_grad.0.debug"]["Max"] == 2.0


def test_each_name_counts_step_sets_back_and_steps_that_are_not_wanted_record_nothing(runs: Any, backend: Any) -> None:
    debugger = runs.new(level="debug", step=[0, 2])
    for step in range(4):
        for name in ("a", "b", "a"):
            debugger.save(step, name, save_backward=False)
        debugger.step()
    assert dumped.folders(runs.path) == ["step0/procN", "step2/procN"]
    for step in (0, 2):
        data = dumped.read_debug(runs.path, step)["data"]
        assert list(data) == ["a.0.debug", "b.0.debug", "a.1.debug"]
        assert data["a.1.debug"] == {"type": "int", "value": step}


def test_other_values_are_refused_with_a_warning_each(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [None, 1 + 2j, b"x", {1}, [None], {"a": object()}, np.ones(2)]
    debugger = runs.new(level="debug")
    for number, value in enumerate(values):
        debugger.save(value, f"odd{number}")
    debugger.step()
    lines = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
    for number, line in enumerate(lines[: len(values)]):
        assert f"odd{number}" in line and "allowed: tensor, int, float, str, bool" in line
    assert len(lines) >= len(values) and not list(runs.path.glob("step0/*/debug.json"))


def test_a_container_that_holds_itself_or_is_too_deep_is_refused_alone(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.errors_expected = True
    shared: list[Any] = [1]
    endless: dict[str, Any] = {"a": shared, "b": shared}
    endless["c"] = [endless]
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    debugger = runs.new(level="debug")
    debugger.save([endless, shared], "odd")
    debugger.save(deep, "deep")
    debugger.save([shared, {"a": shared}], "even", save_backward=False)
    debugger.step()
    odd, of_deep = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
    assert '"odd" is or holds a container that holds itself' in odd
    assert "save('deep'): RecursionError" in of_deep
    assert list(dumped.read_debug(runs.path, 0)["data"]) == ["even.0.debug"]


def test_the_tensor_task_writes_files(runs: Any, backend: Any) -> None:
    debugger = runs.new(level="debug", task="tensor")

    def forward(x: Any) -> Any:
        debugger.save([x, {"k": x * 2}], "v")
        return x * 5

    backend.run(forward, backend.tensor(ONES, requires_grad=True))
    debugger.step()
    (folder,) = runs.path.glob("step0/*/dump_tensor_data")
    found = {path.name: backend.load_tensor_file(path).tolist() for path in folder.iterdir()}
    suffix = backend.suffix
    assert found == {
        f"v.0.debug.0{suffix}": ONES.tolist(),
        f"v.0.debug.1.k{suffix}": (ONES * 2).tolist(),
        f"v_grad.0.debug.0{suffix}": (ONES * 5).tolist(),
    }


def test_places_of_one_spelling_have_gradients_and_files_of_their_own(runs: Any, backend: Any) -> None:
    debugger = runs.new(level="debug", task="tensor")

    def forward(value: Any) -> Any:
        parts = [value * factor for factor in (1, 2, 3, 4)]
        debugger.save({"a": {"b": parts[0]}, "a.b": parts[1], 1: parts[2], "1": parts[3]}, "inner")
        return parts[0] * 5 + parts[1] * 6 + parts[2] * 7 + parts[3] * 8

    backend.run(forward, backend.tensor(ONES, requires_grad=True))
    debugger.step()
    data = dumped.read_debug(runs.path)["data"]
    for name, expected in (("inner.0.debug", [1, 2, 3, 4]), ("inner_grad.0.debug", [5, 6, 7, 8])):
        assert list(data[name]) == ["a", "a.b", "1", "1~4"]
        entries = list(dumped.tensors(data[name]))
        assert [entry["Max"] for entry in entries] == expected
        assert len({entry["data_name"] for entry in entries}) == 4


def test_save_works_on_the_class_and_at_no_other_level_and_start_attaches_nothing(runs: Any, backend: Any) -> None:
    debugger = runs.new(level="L1")
    type(debugger).save(batch(backend), "x")
    debugger.stop()
    debugger.step()
    assert not runs.path.exists() or not list(runs.path.iterdir())
    runs.end()
    before = backend.api_objects()
    debugger = runs.new(level="debug")
    debugger.start()
    assert all(backend.api_objects()[name] is before[name] for name in before)
    backend.apis["abs"].call(batch(backend))
    type(debugger).save(3, "only", save_backward=False)
    debugger.stop()
    debugger.step()
    assert list(dumped.read_debug(runs.path)["data"]) == ["only.0.debug"]


def test_saving_changes_no_gradient(runs: Any, backend: Any) -> None:
    def forward(x: Any, save: bool) -> Any:
        y = x * 3
        if save:
            debugger.save(y, "y")
        return (y * y) + y

    values = np.random.default_rng(4).normal(size=(5, 5)).astype(np.float32)
    without = backend.run(lambda x: forward(x, False), backend.tensor(values, requires_grad=True))
    debugger = runs.new(level="debug", task="tensor")
    given = backend.run(lambda x: forward(x, True), backend.tensor(values, requires_grad=True))
    assert np.array_equal(without.output, given.output) and np.array_equal(without.inputs[0], given.inputs[0])


# Each gradient writes the whole value to the journal again: of ten thousand containers, for half a minute.
@pytest.mark.sampled()
def test_lists_that_share_their_parts_are_saved_to_a_bound(
    runs: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.environ.get("PROBE_TEST_LONG") != "1":
        monkeypatch.setattr("probe.collect.saved_values.MAX_CONTAINERS", 300)
        monkeypatch.setattr("probe.collect.describing.values.MAX_CONTAINERS", 300)
    debugger = runs.new(level="debug")

    def forward(x: Any) -> Any:
        debugger.save(functools.reduce(lambda y, _: [y, y], range(60), [x]), "shared")
        return x * 3

    outcome = backend.run(forward, backend.tensor(ONES, requires_grad=True))
    debugger.step()
    (path,) = runs.path.rglob("debug.json")
    text = path.read_text(encoding="utf-8")
    # Ten thousand containers would take the tests a minute to validate.
    path.unlink()
    assert list(json.loads(text)["data"]) == ["shared.0.debug", "shared_grad.0.debug"]
    assert np.array_equal(outcome.inputs[0], ONES * 3)
