"""The environment of a run next to its dump: what it says with each framework, and when it is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from programs import batch, block_network

from probe.common.environment.environment_file import environment_of_file


def environments(path: Path) -> list[str]:
    return sorted(each.name for each in path.glob("environment_*")) if path.exists() else []


def content(path: Path) -> dict[str, Any]:
    (name,) = environments(path)
    found: dict[str, Any] = json.loads((path / name).read_text())
    return found


def test_it_has_versions_switches_seeds_and_no_secret(runs: Any, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("NCCL_PASSWORD", "planted")
    monkeypatch.setenv("SOMETHING_ELSE", "planted")
    backend.seed(5)
    debugger = runs.new(level="L1")
    debugger.start()
    backend.apis["abs"].call(batch(backend))
    debugger.stop()
    (record_file,) = runs.path.glob("step0/proc*/dump.json")
    found = environment_of_file(str(record_file))
    assert found == content(runs.path) and found is not None
    assert found["framework"] == backend.framework and found["format"] == 1
    assert found["switches"] and found["packages"]["numpy"] and 5 in found["seeds"].values()
    assert all(type(value) in (int, float, bool, str) for value in found["switches"].values())
    assert found["variables"]["NCCL_ALGO"] == "Tree" and found["withheld"] >= 2
    assert "planted" not in json.dumps(found)
    debugger.step()


def test_it_is_written_once_and_leaves_no_hook(runs: Any, backend: Any) -> None:
    debugger, model = runs.new(level="L1"), block_network(backend)
    for step in range(2):
        debugger.start(model)
        model(batch(backend))
        debugger.stop()
        debugger.step()
        assert backend.traces_left(model) == []
        (name,) = environments(runs.path)
        if step == 0:
            (runs.path / name).unlink()
            (runs.path / name).write_text("{}")
    assert content(runs.path) == {}


@pytest.mark.parametrize("settings", [{"environment": False}, {"task": "overflow_check"}], ids=str)
def test_without_the_key_and_by_a_watch_that_finds_nothing_nothing_is_written(
    runs: Any, backend: Any, settings: dict[str, Any]
) -> None:
    debugger = runs.new(**settings)
    debugger.start()
    backend.apis["abs"].call(batch(backend))
    debugger.stop()
    debugger.step()
    assert environments(runs.path) == []


def test_a_failure_of_it_costs_the_file_only(runs: Any, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("ours")

    runs.errors_expected = True
    monkeypatch.setattr("probe.collect.environment.gathered", broken)
    debugger = runs.new()
    debugger.start()
    backend.apis["abs"].call(batch(backend))
    debugger.stop()
    debugger.step()
    assert environments(runs.path) == [] and len(runs.read().names) == 1
