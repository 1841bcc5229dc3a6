"""How often the host reads from a device while a step is collected: each read waits for all that is queued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.api.monitoring.first import TrainerMon
from probe.api.monitoring.second import TrainerMonitorV2
from probe.collect.sinks.journal import tensor_writer
from probe.monitor.settings import MONITORS

READS: list[tuple[int, dict[str, Any]]] = [
    (2, {"level": "L0"}),
    (2, {"level": "L1"}),
    (2, {"level": "mix"}),
    (3, {"level": "L1", "summary_mode": "md5"}),
    (3, {"level": "L1", "summary_mode": "xor"}),
    (3, {"level": "mix", "task": "tensor"}),
    (4, {"level": "mix", "task": "tensor", "summary_mode": "md5"}),
    (1, {"level": "L1", "task": "overflow_check"}),
    (0, {"level": "mix", "task": "structure"}),
]
"""Reads of a step, and settings: statistics of calls and updates, sketches, and the bytes that checksums are of."""

FIRST: list[dict[str, Any]] = [
    {"wg_distribution": True, "monitor_mbs_grad": True, "alert": {"rules": []}},
    {"xy_distribution": True, "all_xy": True},
    {"mv_distribution": True, "param_distribution": True, "ur_distribution": True},
    {"mg_direction": True, "grad_sign": True, "grad_direction": True},
    {
        "recording_l2_features": True,
        "l2_targets": {
            "linear_hook": [],
            "attention_hook": [f"heads{layer}" for layer in range(9)],
            "moe_router_logit_hook": [f"relu{layer}" for layer in range(9)],
        },
    },
    {"wg_distribution": True, "ops": ["min", "max", "mean", "norm", "zeros", "nans", "infs", "absmax", "l1", "std"]},
]
"""Settings of `TrainerMon`."""


def network(backend: Any, layers: int) -> Any:
    draws = np.random.default_rng(4)
    parts = {}
    for layer in range(layers):
        weight, bias = draws.standard_normal((8, 8), np.float32), draws.standard_normal(8, np.float32)
        parts[f"linear{layer}"], parts[f"relu{layer}"] = backend.linear(weight, bias), backend.relu()
        parts[f"heads{layer}"] = backend.module("Heads", lambda self, query, key: query + key)

    def forward(self: Any, x: Any) -> Any:
        for name in parts:
            part, heads = getattr(self, name), x.reshape(x.shape[0], 1, 1, 8)
            x = part(heads, heads).reshape(x.shape) if name.startswith("heads") else part(x)
        return x

    return backend.module("Deep", forward, **parts)


def trained(backend: Any, runs: Any, layers: int, settings: dict[str, Any] | None) -> tuple[list[int], dict[str, Any]]:
    """The reads of three steps, beyond the one that the training makes, and the state after them."""
    backend.seed(1)
    model = network(backend, layers)
    train, batch = backend.trainer(model), backend.tensor(np.linspace(-1, 1, 40, dtype=np.float32).reshape(5, 8))
    debugger = None if settings is None else runs.new(**settings)
    reads = []
    for _ in range(3):
        before = backend.reads()
        if debugger is not None:
            debugger.start(model)
        train(batch)
        if debugger is not None:
            debugger.stop()
            debugger.step()
        reads.append(backend.reads() - before - 1)
    return reads, backend.state(model)


@pytest.mark.parametrize(("count", "settings"), READS)
def test_a_step_is_read_as_often_whatever_the_size_of_the_model(
    backend: Any, runs: Any, count: int, settings: dict[str, Any]
) -> None:
    for layers in (2, 9):
        alone, expected = trained(backend, runs, layers, None)
        reads, state = trained(backend, runs, layers, settings)
        assert alone == [0] * 3 and reads == [count] * 3
        assert all(np.array_equal(state[name], value) for name, value in expected.items())


def test_what_is_kept_on_the_device_is_bounded(
    backend: Any, runs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, files = {}, {}
    for most in (1 << 8, 1 << 26):
        monkeypatch.setattr(tensor_writer, "MOST_ON_DEVICE", most)
        dump_path = tmp_path / str(most)
        reads[most], _ = trained(backend, runs, 3, {"level": "L1", "task": "tensor", "dump_path": dump_path})
        files[most] = {path.name: path.read_bytes() for path in dump_path.glob("step2/*/dump_tensor_data/*")}
    assert min(reads[1 << 8]) > 10 > max(reads[1 << 26])
    assert len(files[1 << 8]) > 20 and files[1 << 8] == files[1 << 26]


def watched(backend: Any, layers: int, watch: Any) -> tuple[list[int], dict[str, Any]]:
    """The reads of three steps, beyond those of the training, and the state after them; `watch` gives what ends it."""
    backend.seed(1)
    model = network(backend, layers)
    optimizer, train = backend.adam(model)
    batch = backend.tensor(np.linspace(-1, 1, 40, dtype=np.float32).reshape(5, 8))
    ended = watch(model, optimizer)
    reads = []
    for _ in range(3):
        before = backend.reads()
        train(batch)
        reads.append(backend.reads() - before - 1)
    ended()
    return reads, backend.state(model)


def never(model: Any, optimizer: Any) -> Any:
    return lambda: None


def judged(backend: Any, watch: Any, most: int) -> None:
    """A step is read as often with more layers, at most so often, and the training has the bits that it has alone."""
    found = []
    for layers in (2, 9):
        reads, state = watched(backend, layers, watch)
        found.append(reads)
        _, alone = watched(backend, layers, never)
        assert all(np.array_equal(state[name], value) for name, value in alone.items())
    assert found[0] == found[1] and 0 < max(found[0]) <= most


@pytest.mark.parametrize("settings", FIRST)
def test_the_first_monitor(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(settings))

    def watch(model: Any, optimizer: Any) -> Any:
        monitor = type("TrainerMon", (TrainerMon,), {"backend": "torch"})(str(path), params_have_main_grad=False)
        monitor.set_monitor(model, optimizer)
        return monitor.stop

    # Numbers of each group: of modules, of gradients, of parameters and of the optimizer.
    judged(backend, watch, 3)


def test_the_second_monitor(backend: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    monitors = {name: {"enabled": True} for name in MONITORS}
    path.write_text(json.dumps({"framework": "torch", "output_dir": str(tmp_path), "monitors": monitors}))

    def watch(model: Any, optimizer: Any) -> Any:
        monitor = TrainerMonitorV2(str(path))
        monitor.start(model, optimizer)
        return monitor.stop

    judged(backend, watch, 4)


@pytest.mark.parametrize("level", ["L0", "L1", "L2"])
def test_the_gradient_probe(backend: Any, runs: Any, tmp_path: Path, level: str) -> None:
    def watch(model: Any, optimizer: Any) -> Any:
        debugger = runs.new(task="grad_probe", dump_path=tmp_path / "out", grad_level=level, bounds=[-1, 0, 1])
        debugger.monitor(model)
        return runs.end

    # Signatures, and sketches.
    judged(backend, watch, 2)
