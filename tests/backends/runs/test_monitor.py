"""A monitored training gives the same bits, and its rows are what numpy makes of the values."""

from __future__ import annotations

import csv
import gc
import json
import math
import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.api.monitoring.first import TrainerMon
from probe.backends import loader

EVERYTHING = {
    "xy_distribution": True, "wg_distribution": True, "mv_distribution": True, "param_distribution": True,
    "mg_direction": True, "ur_distribution": True, "grad_sign": True, "ops": ["min", "max", "mean", "norm", "zeros"],
    "recording_l2_features": True, "l2_targets": {"linear_hook": []}, "alert": {"rules": []},
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "gradients": {"wg_distribution": True, "monitor_mbs_grad": True},
    "activations": {"xy_distribution": True},
    "optimizer": {"mv_distribution": True, "param_distribution": True, "mg_direction": True, "ur_distribution": True},
    "everything": EVERYTHING,
    "every other step": {**EVERYTHING, "step_interval": 2},
}
STEPS = 3


class Monitored:
    """Trainings of one test, and the files of their monitor."""

    def __init__(self, backend: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.backend = backend
        self.folder = folder
        monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(folder / "out"))
        monkeypatch.chdir(folder)

    def network(self) -> Any:
        backend, rng = self.backend, np.random.default_rng(3)

        def linear(inputs: int, outputs: int) -> Any:
            weight = rng.normal(size=(outputs, inputs)).astype(np.float32) / np.sqrt(inputs)
            return backend.linear(weight.astype(np.float32), rng.normal(size=outputs).astype(np.float32))

        def forward(self: Any, x: Any) -> Any:
            first = self.act(self.one(x))
            return self.two(self.drop(first)) + x * 0.3

        return backend.module(
            "Net", forward, one=linear(6, 12), act=backend.relu(), drop=backend.seeded_dropout(0.25), two=linear(12, 6)
        )

    def train(
        self, settings: dict[str, Any] | None, steps: int = STEPS, dump: Callable[[], Any] | None = None,
        dump_first: bool = False, stops: bool = True,
    ) -> tuple[list[Any], dict[str, Any], bytes]:  # fmt: skip
        """Losses, state and random state; with `settings` the training is monitored, by what `dump` makes dumped."""
        backend = self.backend
        backend.seed(5)
        model = self.network()
        self.module = weakref.ref(model)
        backend.training(model, True)
        optimizer, step = backend.adam(model)
        monitor = debugger = None
        if dump is not None and dump_first:
            debugger = dump()
            debugger.start(model)
        if settings is not None:
            path = self.folder / "config.json"
            path.write_text(json.dumps(settings), encoding="utf-8")
            kind = type("TrainerMon", (TrainerMon,), {"backend": loader.detect(backend.name)})
            monitor = kind(str(path), params_have_main_grad=False)
            monitor.set_monitor(model, optimizer)
        if dump is not None and not dump_first:
            debugger = dump()
            debugger.start(model)
        rng = np.random.default_rng(8)
        self.losses, self.weights = [], []
        for _ in range(steps):
            self.weights.append({name: np.array(value) for name, value in self._weights(model).items()})
            self.losses.append(step(backend.tensor(rng.normal(size=(9, 6)).astype(np.float32))))
            if debugger is not None:
                debugger.stop()
                debugger.step()
                debugger.start(model)
        self.weights.append({name: np.array(value) for name, value in self._weights(model).items()})
        if monitor is not None and dump_first:
            monitor.stop()
        if debugger is not None:
            debugger.stop()
        self.monitor = monitor
        if monitor is not None and stops:
            monitor.stop()
        return self.losses, backend.state(model), backend.random_state()

    def _weights(self, model: Any) -> dict[str, Any]:
        return {name: value for name, value in self.backend.state(model).items() if not name.endswith(".grad")}

    def rows(self, family: str, step: int) -> dict[str, dict[str, str]]:
        (path,) = self.folder.glob(f"out/*-rank0-*/{family}_{step}-{step}.csv")
        with path.open(newline="") as stream:
            return {row["name"]: row for row in csv.DictReader(stream)}


@pytest.fixture
def monitored(backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Monitored:
    return Monitored(backend, tmp_path, monkeypatch)


def bits(ended: tuple[list[Any], dict[str, Any], bytes]) -> list[tuple[str, bytes]]:
    """What a training came to."""
    losses, state, random = ended
    named = [*(("loss", loss) for loss in losses), *state.items()]
    return [*((name, np.asarray(value).tobytes()) for name, value in named), ("random numbers", random)]


@pytest.mark.sampled(least=2, each=False)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_monitored_training_gives_the_same_bits(monitored: Monitored, name: str) -> None:
    bare = bits(monitored.train(None))
    assert bits(monitored.train(SETTINGS[name])) == bare
    assert not list(monitored.folder.rglob("dump_error_info.log"))


def test_a_model_that_the_program_deletes_is_gone_while_its_monitor_goes_on(monitored: Monitored) -> None:
    monitored.train(EVERYTHING, stops=False)
    gc.collect()
    assert monitored.module() is None
    monitored.monitor.stop()
    assert monitored.rows("grad_reduced", STEPS - 1)


def differing_fields(one: Any, other: Any, key: str = "") -> Iterator[str]:
    """The keys of the values in which two records differ."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for name in one:
            yield from differing_fields(one[name], other[name], name)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for mine, yours in zip(one, other):
            yield from differing_fields(mine, yours, key)
    elif one != other:
        yield key


def untold_fields(backend: Any) -> set[str]:
    """Before MindSpore 2.7.2 a tensor tells only if it was computed while a gradient was recorded.

    That is so of an input that has passed through the identity of a monitor.
    """
    return {"requires_grad"} if backend.name != "torch" and type(backend).release == "2.7" else set()


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("dump_first", [False, True], ids=["monitor first", "dump first"])
def test_a_monitor_and_a_dump_of_one_training_do_not_disturb_each_other(
    monitored: Monitored, runs: Any, dump_first: bool
) -> None:
    settings = {"xy_distribution": True, "wg_distribution": True, "mv_distribution": True}
    bare = monitored.train(None)
    monitored.train(settings)
    families = ("actv", "actv_grad", "grad_reduced", "exp_avg")
    alone = {family: monitored.rows(family, 1) for family in families}
    shutil.rmtree(monitored.folder / "out")
    monitored.train(None, dump=lambda: runs.new(level="mix"))
    runs.end()
    dumped = runs.read(1).data
    both = monitored.train(settings, dump=lambda: runs.new(runs.path / "both", level="mix"), dump_first=dump_first)
    runs.end()
    assert {family: monitored.rows(family, 1) for family in families} == alone
    runs.path = runs.path / "both"
    found = runs.read(1).data
    differing = {key for name in dumped for key in differing_fields(found[name], dumped[name])}
    assert list(found) == list(dumped) and differing <= untold_fields(monitored.backend), differing
    assert bits(both) == bits(bare)


def test_rows_are_what_numpy_makes_of_the_values(monitored: Monitored) -> None:
    _, state, _ = monitored.train(EVERYTHING)
    last = STEPS - 1
    for family, values in (
        ("param_origin", monitored.weights[last]),
        ("param_updated", monitored.weights[last + 1]),
        ("grad_reduced", {name[: -len(".grad")]: value for name, value in state.items() if name.endswith(".grad")}),
    ):
        rows = monitored.rows(family, last)
        assert rows and set(rows) <= set(values)
        for name, row in rows.items():
            wide = np.asarray(values[name], dtype=np.float64)
            expected = {"min": wide.min(), "max": wide.max(), "mean": wide.mean(), "norm": np.linalg.norm(wide)}
            for op, value in expected.items():
                assert math.isclose(float(row[op]), value, rel_tol=1e-5, abs_tol=1e-7), (family, name, op)
            assert float(row["zeros"]) == pytest.approx(np.mean(np.abs(values[name]) < 1e-8), abs=1e-6)
    # The moments are those with which the step begins.
    gradient = monitored.rows("grad_reduced", 0)
    for name, row in monitored.rows("exp_avg", 1).items():
        assert float(row["norm"]) == pytest.approx(0.1 * float(gradient[name]["norm"]), rel=1e-4)
    for name, row in monitored.rows("update", last).items():
        before, after = (np.asarray(monitored.weights[at][name], dtype=np.float64) for at in (last, last + 1))
        assert float(row["update_norm"]) == pytest.approx(np.linalg.norm(after - before), rel=1e-5)
        assert float(row["ratio"]) == pytest.approx(np.linalg.norm(after - before) / np.linalg.norm(before), rel=1e-5)
    for name, row in monitored.rows("linear_hook", last).items():
        weight = np.asarray(monitored.weights[last][name.replace(".linear", ".weight")], dtype=np.float64)
        assert float(row["kernel_norm"]) == pytest.approx(np.linalg.norm(weight, 2), rel=1e-4)


def test_modules_have_rows_of_what_goes_in_and_out_and_of_the_gradients(monitored: Monitored) -> None:
    monitored.train({"xy_distribution": True})
    rows = monitored.rows("actv", 0)
    names = [f"{path}.{side}" for path in ("one", "act", "drop", "two", "") for side in ("input", "output")]
    assert list(rows) == names
    assert rows["two.output"]["norm"] != rows["two.input"]["norm"]
    # The last layer hands the same gradient to its output as the one that arrives at the model's.
    gradients = monitored.rows("actv_grad", 0)
    assert set(gradients) == set(names)
    assert gradients["two.output"]["norm"] == gradients[".output"]["norm"]
    assert gradients[".input"]["norm"] == "nan"


def test_only_wanted_steps_are_collected(monitored: Monitored) -> None:
    monitored.train({"wg_distribution": True, "start_step": 1, "step_interval": 2, "collect_times": 2}, steps=7)
    found = sorted(path.name for path in monitored.folder.glob("out/*/grad_reduced_*.csv"))
    assert found == ["grad_reduced_1-1.csv", "grad_reduced_3-3.csv"]


def test_rows_follow_what_the_program_freezes_and_thaws(monitored: Monitored) -> None:
    backend, path = monitored.backend, monitored.folder / "config.json"
    backend.seed(5)
    model = monitored.network()
    backend.training(model, True)
    parameters = backend.parameters(model)
    optimizer, step = backend.adam(model)
    path.write_text(json.dumps({"wg_distribution": True, "param_distribution": True}), encoding="utf-8")
    kind = type("TrainerMon", (TrainerMon,), {"backend": loader.detect(backend.name)})
    monitor = kind(str(path), params_have_main_grad=False)
    parameters["two.weight"].requires_grad = False
    monitor.set_monitor(model, optimizer)
    for at in range(3):
        parameters["one.weight"].requires_grad = at != 1
        parameters["two.weight"].requires_grad = at > 0
        step(backend.tensor(np.ones((9, 6), np.float32)))
    monitor.stop()
    every = ["one.weight", "one.bias", "two.weight", "two.bias"]
    for family in ("grad_reduced", "param_origin", "param_updated"):
        first, second, third = (monitored.rows(family, at) for at in range(3))
        assert list(first) == ["one.weight", "one.bias", "two.bias"], family
        frozen = ["one.weight"] if family == "grad_reduced" else []
        assert list(second) == ["one.bias", "two.weight", "two.bias", *frozen], family
        assert list(third) == every, family
    row = monitored.rows("grad_reduced", 1)["one.weight"]
    assert (row["norm"], row["dtype"]) == ("nan", "frozen")
    assert not list(monitored.folder.rglob("dump_error_info.log"))


def test_routers_have_the_entropy_and_the_load_of_their_experts(monitored: Monitored) -> None:
    hooks = {"moe_router_logit_hook": ["one"], "moe_router_weight_hook": ["act"]}
    monitored.train({"recording_l2_features": True, "l2_targets": hooks}, steps=1)
    x = np.random.default_rng(8).normal(size=(9, 6)).astype(np.float32).astype(np.float64)
    weights = monitored.weights[0]
    logits = x @ weights["one.weight"].astype(np.float64).T + weights["one.bias"]
    powers = np.exp(logits)
    for family, path, scores in (("logit", "one", powers), ("weight", "act", np.maximum(logits, 0))):
        rows = monitored.rows(f"moe_router_{family}_hook", 0)
        p = scores / scores.sum(1, keepdims=True)
        parts = np.where(p > 0, -p * np.log(np.where(p > 0, p, 1)), 0)
        load = (p.argmax(1)[:, None] == np.arange(p.shape[1])).mean(0)
        assert list(rows) == [f"{path}.router", *(f"{path}.expert_{at}" for at in range(12))]
        found = {name: [float(row[op]) for op in ("entropy", "load", "probability")] for name, row in rows.items()}
        assert found[f"{path}.router"] == pytest.approx([parts.sum(1).mean(), load.max(), p.mean(0).max()], rel=1e-4)
        for at in range(12):
            expected = [parts.mean(0)[at], load[at], p.mean(0)[at]]
            assert found[f"{path}.expert_{at}"] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def routed(backend: Any, weights: Any) -> Any:
    trends = backend.adapter.trends
    return np.array(trends.read([trends.routing(backend.tensor(weights), False)])[0])


def test_tokens_that_a_router_drops_are_in_no_mean(backend: Any) -> None:
    weights = np.array([[0.75, 0.25, 0.0], [0.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.25, 0.75, 0.0]], np.float32)
    of_experts = routed(backend, weights)
    kept = np.delete(weights, 1, axis=0).astype(np.float64)
    entropies = np.where(kept > 0, -kept * np.log(np.where(kept > 0, kept, 1)), 0).mean(0)
    assert of_experts == pytest.approx(np.stack([entropies, [1 / 3, 2 / 3, 0], kept.mean(0)], 1), rel=1e-6)
    assert not routed(backend, np.zeros((2, 3), np.float32)).any()
    weights[2] = np.nan
    assert np.isnan(routed(backend, weights)[:, 0]).all()
