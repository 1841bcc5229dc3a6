"""Steps of optimizers as every framework has them recorded: settings, gradients as taken, and updates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import batch, block_network

import probe
from probe.common.dump.update_file import Update
from probe.common.numerics.sketch import sketch


class Wide:
    """A network with a parameter of more than 64 elements, and its batch."""

    def __init__(self, backend: Any, seed: int = 7) -> None:
        draws = np.random.default_rng(seed)
        first = backend.linear(draws.standard_normal((40, 6), np.float32), draws.standard_normal(40, np.float32))
        second = backend.linear(draws.standard_normal((3, 40), np.float32), draws.standard_normal(3, np.float32))

        def forward(self: Any, x: Any) -> Any:
            return self.second(self.first(x))

        self.model = backend.module("Wide", forward, first=first, second=second)
        self.batch = backend.tensor(draws.standard_normal((5, 6), np.float32))
        self._train = backend.adam(self.model)[1]

    def train(self, debugger: Any = None, steps: int = 1) -> None:
        for _ in range(steps):
            if debugger is not None:
                debugger.start(self.model)
            self._train(self.batch)
            if debugger is not None:
                debugger.stop()
                debugger.step()


def arrays(backend: Any, model: Any) -> dict[str, Any]:
    return {name: backend.numpy(value).astype(np.float64) for name, value in backend.parameters(model).items()}


def updates(path: Path, step: int = 0) -> list[Update]:
    found = probe.read(path / f"step{step}")
    assert isinstance(found, probe.Dump)
    return found.updates


def holds(update: Update, before: dict[str, Any], after: dict[str, Any], gradients: dict[str, Any]) -> None:
    """The update has each parameter, with the numbers that numpy gets from copies."""
    assert [each.name for each in update.parameters] == list(after)
    for each in update.parameters:
        change, gradient = after[each.name] - before[each.name], gradients[each.name].astype(np.float64)
        assert each.elements == change.size and each.note is None
        assert each.gradient_norm == pytest.approx(np.linalg.norm(gradient), rel=1e-6)
        assert each.parameter_norm == pytest.approx(np.linalg.norm(after[each.name]), rel=1e-6)
        size = np.linalg.norm(after[each.name]) + np.linalg.norm(before[each.name])
        assert each.gradient is not None and each.update is not None
        np.testing.assert_allclose(each.gradient.sums, sketch(gradient).sums, rtol=0, atol=3e-7 * each.gradient_norm)
        np.testing.assert_allclose(each.update.sums, sketch(change).sums, rtol=0, atol=3e-7 * size)
        norm, exact = each.update_norm, float(np.linalg.norm(change))
        assert norm is not None and norm.low <= norm.estimate <= norm.high
        if change.size <= 64:
            assert norm.estimate == pytest.approx(exact, abs=2e-7 * size)
        assert norm.low <= exact * (1 + 1e-6) and exact <= norm.high * (1 + 1e-6)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_update_has_what_numpy_gets_from_copies(runs: Any, backend: Any, level: str) -> None:
    network, debugger = Wide(backend), runs.new(level=level)
    for step in range(2):
        before = arrays(backend, network.model)
        network.train(debugger)
        (update,) = updates(runs.path, step)
        assert update.optimizer.endswith("Adam") and update.index == 0 and not update.skipped and update.groups
        gradients = backend.state(network.model)
        gradients = {name: gradients[f"{name}.grad"] for name in before}
        holds(update, before, arrays(backend, network.model), gradients)


def test_update_after_stop_belongs_to_the_step(runs: Any, backend: Any) -> None:
    network, debugger = Wide(backend), runs.new(level="L0")
    debugger.start(network.model)
    network.model(network.batch)
    debugger.stop()
    network.train()
    debugger.step()
    network.train()
    assert len(updates(runs.path)) == 1
    assert backend.traces_left(network.model) == []


def test_update_is_in_the_journal_before_the_step_ends(runs: Any, backend: Any) -> None:
    network, debugger = Wide(backend), runs.new(level="L0")
    debugger.start(network.model)
    network.train()
    (journal,) = runs.path.glob("step0/*/dump.journal")
    died = probe.read(journal)
    assert isinstance(died, probe.Dump)
    (from_journal,) = died.updates
    debugger.stop()
    debugger.step()
    (from_file,) = updates(runs.path)
    assert from_journal.groups == from_file.groups
    for one, other in zip(from_journal.parameters, from_file.parameters):
        assert one.gradient_norm == other.gradient_norm
        assert one.update is not None and other.update is not None
        np.testing.assert_array_equal(one.update.sums, other.update.sums)


@pytest.mark.parametrize("settings", [{"task": "structure"}, {"sketch": False}], ids=str)
def test_without_sketches_nothing_is_recorded_and_other_files_and_the_training_are_what_they_are_with_them(
    runs: Any, backend: Any, tmp_path: Path, settings: dict[str, Any]
) -> None:
    written, ended = [], []
    for name, chosen in (("bare", None), ("with", {}), ("without", settings)):
        network = Wide(backend)
        debugger = None if chosen is None else runs.new(tmp_path / name, level="mix", **chosen)
        network.train(debugger, 2)
        ended.append({name: value.tobytes() for name, value in arrays(backend, network.model).items()})
        for folder in (tmp_path / name).glob("step0/*"):
            assert (folder / "updates.npz").exists() is (name == "with")
            # Structure alone has other records; its tree of modules is the same.
            files = ("construct.json",) if "task" in settings else ("dump.json", "construct.json")
            written.append([(folder / file).read_bytes() for file in files])
        runs.end()
    assert ended[0] == ended[1] == ended[2]
    assert updates(tmp_path / "without") == []
    assert len(written) == 2 and written[0] == written[1]


def test_numpy_and_json_alone_read_the_file(runs: Any, backend: Any) -> None:
    network = block_network(backend)
    _, train = backend.adam(network)
    debugger = runs.new(level="L0")
    debugger.start(network)
    train(batch(backend))
    debugger.stop()
    debugger.step()
    (path,) = runs.path.glob("step0/*/updates.npz")
    with np.load(path, allow_pickle=False) as content:
        text = json.loads(content["updates.json"])
        (update,) = text["updates"]
        assert text["version"] == 1
        assert update["names"] == ["body.fc.weight", "body.fc.bias", "head.weight", "head.bias"]
        assert content["gradient"].shape == content["update"].shape == (4, 64)


def test_whoever_is_told_of_updates_may_leave_before_a_later_one(backend: Any) -> None:
    attach = backend.adapter.settings.attach_updates
    network, told = Wide(backend), []
    first = attach(lambda *_: told.append("first"))
    second = attach(lambda *_: told.append("second"), lambda *_: told.append("second, after"))
    network.train()
    first.remove()
    network.train()
    second.remove()
    network.train()
    assert sorted(told) == ["first", *["second"] * 2, *["second, after"] * 2]
