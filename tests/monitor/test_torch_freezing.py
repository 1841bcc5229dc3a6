"""Parameters that a program freezes or thaws while it trains: their rows follow, and a freeze is no alert."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from msprobe.pytorch import TrainerMon
from probe.api.cli import main

STEPS = 60
CONFIG = {
    "wg_distribution": True, "param_distribution": True, "ops": ["norm", "min", "max"], "step_count_per_record": 1000,
    "alert": {"rules": [], "actions": []},
}  # fmt: skip


def train(
    folder: Path, change: Callable[[int, Any], Any], steps: int = STEPS, input_takes_gradient: bool = False
) -> list[Any]:
    """Train three layers; `change` is called before each step. The alerts."""
    (folder / "monitor.json").write_text(json.dumps(CONFIG))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    change(-1, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = TrainerMon("monitor.json", params_have_main_grad=False)
    monitor.set_monitor(model, optimizer)
    found: list[Any] = []
    monitor.alerts.callbacks.append(found.extend)
    for step in range(steps):
        change(step, model)
        optimizer.zero_grad()
        model(torch.randn(8, 4, requires_grad=input_takes_gradient)).pow(2).mean().backward()
        optimizer.step()
    monitor.stop()
    return found


def rows(folder: Path, family: str) -> dict[tuple[str, int], dict[str, str]]:
    (path,) = folder.glob(f"monitor_output/*/{family}_0-999.csv")
    with path.open(newline="") as stream:
        return {(row["name"], int(row["step"])): row for row in csv.DictReader(stream)}


def steps_of(found: dict[tuple[str, int], dict[str, str]], name: str) -> list[int]:
    return [step for each, step in found if each == name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MONITOR_OUTPUT_DIR", raising=False)
    return tmp_path


def test_layers_that_are_thawed_have_rows_from_then_on(folder: Path) -> None:
    def thaw(step: int, model: Any) -> None:
        for layer, since in ((0, 20), (2, 10), (3, -1)):
            model[layer].requires_grad_(step >= since)

    assert train(folder, thaw) == []
    for family, late in (("grad_reduced", 0), ("param_origin", 0), ("param_updated", 0), ("grad_unreduced", 1)):
        found = rows(folder, family)
        assert steps_of(found, "3.weight") == list(range(STEPS)), family
        # A hook on the gradient is placed when a step begins, which is before the program thaws.
        assert steps_of(found, "2.weight") == list(range(10 + late, STEPS)), family
        assert steps_of(found, "0.bias") == list(range(20 + late, STEPS)), family
    assert main(["monitor", "report", str(folder / "monitor_output")]) == 0


def test_a_model_that_is_frozen_as_a_whole_is_followed_when_it_is_thawed(folder: Path) -> None:
    def thaw(step: int, model: Any) -> None:
        model.requires_grad_(step >= 10)
        if step < 10:
            model[3].bias.requires_grad_(step == -1)

    train(folder, thaw, steps=20, input_takes_gradient=True)
    assert steps_of(rows(folder, "grad_unreduced"), "0.weight") == list(range(11, 20))


def test_layers_that_are_frozen_have_no_rows_and_are_no_alert(folder: Path) -> None:
    def freeze(step: int, model: Any) -> None:
        if step == 20:
            model[0].requires_grad_(False)
        if step == 50:
            model[0].requires_grad_(True)

    assert train(folder, freeze) == []
    found = rows(folder, "grad_reduced")
    assert steps_of(found, "0.weight") == [*range(21), *range(50, STEPS)]
    assert (found["0.weight", 20]["norm"], found["0.weight", 20]["dtype"]) == ("nan", "frozen")
    assert steps_of(rows(folder, "param_updated"), "0.weight") == [*range(20), *range(50, STEPS)]
    assert main(["monitor", "report", str(folder / "monitor_output")]) == 0


def test_a_layer_that_falls_out_of_the_graph_is_an_alert(folder: Path) -> None:
    def cut(step: int, model: Any) -> None:
        if step == 20:
            model[0].forward = lambda x: torch.nn.functional.linear(x, model[0].weight.detach(), model[0].bias.detach())

    found = train(folder, cut)
    assert {(each.rule, each.name, each.step) for each in found} == {
        ("unchanged", "0.weight", 20), ("unchanged", "0.bias", 20)
    }  # fmt: skip
    assert main(["monitor", "report", str(folder / "monitor_output")]) == 1
