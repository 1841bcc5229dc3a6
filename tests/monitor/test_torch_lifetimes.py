"""A monitor keeps no model alive that the program has deleted, and the next model has its rows."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest
import torch
from monitored import configure, monitor
from torch import nn

from msprobe.pytorch import PrecisionDebugger
from probe.api.monitoring.second import TrainerMonitorV2

ALL = {
    "xy_distribution": True,
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "mg_direction": True,
    "ur_distribution": True,
    "recording_l2_features": True,
    "l2_targets": {"linear_hook": []},
    "alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}]},
}
EVERYTHING_OF_SECOND = {
    "framework": "pytorch",
    "monitors": {
        "module": {"enabled": True},
        "weight_grad": {"enabled": True},
        "optimizer": {"enabled": True, "mv_distribution": True},
        "param": {"enabled": True, "param_distribution": True},
    },
}


@pytest.fixture(autouse=True)
def _no_debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(PrecisionDebugger, "_instance", None)
    yield
    PrecisionDebugger._instance = None


def first(name: str, model: Any, optimizer: Any) -> Any:
    return monitor(model, optimizer, **ALL)


class Plain:
    """An optimizer without hooks, as those of Megatron."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self._inner = inner
        self.param_groups = inner.param_groups

    def step(self) -> None:
        self._inner.step()

    def zero_grad(self) -> None:
        self._inner.zero_grad()


def second(name: str, model: Any, optimizer: Any) -> Any:
    Path(name).mkdir()
    configure(**EVERYTHING_OF_SECOND, output_dir=name)
    made = TrainerMonitorV2("config.json")
    made.start(model, optimizer)
    return made


def gradients(name: str, model: Any, optimizer: Any) -> Any:
    configure(task="grad_probe", dump_path=name, grad_probe={"grad_level": "L2"})
    PrecisionDebugger._instance = None
    made = PrecisionDebugger("config.json")
    made.monitor(model)
    return made


def debugger(name: str, model: Any, optimizer: Any) -> Any:
    PrecisionDebugger._instance = None
    made = PrecisionDebugger(dump_path=name, task="statistics", level="mix")
    made.start(model)
    return made


def trained(
    name: str, begin: Callable[..., Any], width: int, is_plain: bool = False
) -> tuple[Any, list[weakref.ref[Any]]]:
    """Train a model of its own for two steps; the monitor, which goes on, and what the program deletes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, width))
    model[2].weight = model[3].weight
    optimizer: Any = torch.optim.Adam(model.parameters())
    optimizer = Plain(optimizer) if is_plain else optimizer
    made = begin(name, model, optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        if begin is debugger:
            made.stop()
            made.step()
    if begin is debugger:
        made.stop()
    return made, [weakref.ref(each) for each in (model, *model.modules(), optimizer, *model.parameters())]


def collected(name: str) -> dict[str, Any]:
    """Rows and records by the file below `name`; the lines of this test are no part of them."""
    tables = {path.name: path.read_text(encoding="utf-8") for path in Path(name).rglob("*.csv")}
    dumps = {
        str(path.relative_to(name).parts[0]): json.loads(path.read_bytes()) for path in Path(name).rglob("dump.json")
    }
    return {**tables, **{step: dump["data"] for step, dump in dumps.items()}}


@pytest.mark.parametrize(
    ("begin", "is_plain"), [(first, False), (first, True), (second, False), (gradients, False), (debugger, False)]
)
def test_a_model_that_the_program_deletes_is_gone_and_the_next_one_is_collected(
    begin: Callable[..., Any], is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", "one")
    kept, deleted = trained("one", begin, 8, is_plain)
    gc.collect()
    left = [each() for each in deleted if each() is not None]
    assert not left, [type(each).__name__ for each in left]
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", "two")
    after, _ = trained("two", begin, 16, is_plain)
    kept.stop()
    after.stop()
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", "alone")
    trained("alone", begin, 16, is_plain)[0].stop()
    assert collected("one").keys() == collected("two").keys() and collected("two")
    assert collected("one") != collected("two") == collected("alone")
