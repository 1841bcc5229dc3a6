"""Parameters that a program freezes or thaws while it trains: their rows follow, and a freeze is no alert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from monitored import monitor, rows

from probe.api.cli import main

STEPS = 60
CONFIG = {
    "wg_distribution": True, "param_distribution": True, "ops": ["norm", "min", "max"], "step_count_per_record": 1000,
    "alert": {"rules": [], "actions": []},
}  # fmt: skip


def train(change: Callable[[int, Any], Any], steps: int = STEPS, input_takes_gradient: bool = False) -> list[Any]:
    """Train three layers; `change` is called before each step. The alerts."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    change(-1, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    made = monitor(model, optimizer, **CONFIG)
    found: list[Any] = []
    made.alerts.callbacks.append(found.extend)
    for step in range(steps):
        change(step, model)
        optimizer.zero_grad()
        model(torch.randn(8, 4, requires_grad=input_takes_gradient)).pow(2).mean().backward()
        optimizer.step()
    made.stop()
    return found


def by_step(family: str) -> dict[tuple[str, int], dict[str, str]]:
    return {(row["name"], int(row["step"])): row for row in rows(f"{family}_0-999")}


def steps_of(found: dict[tuple[str, int], dict[str, str]], name: str) -> list[int]:
    return [step for each, step in found if each == name]


def test_layers_that_are_thawed_have_rows_from_then_on() -> None:
    def thaw(step: int, model: Any) -> None:
        for layer, since in ((0, 20), (2, 10), (3, -1)):
            model[layer].requires_grad_(step >= since)

    assert train(thaw) == []
    for family, late in (("grad_reduced", 0), ("param_origin", 0), ("param_updated", 0), ("grad_unreduced", 1)):
        found = by_step(family)
        assert steps_of(found, "3.weight") == list(range(STEPS)), family
        # A hook on the gradient is placed when a step begins, which is before the program thaws.
        assert steps_of(found, "2.weight") == list(range(10 + late, STEPS)), family
        assert steps_of(found, "0.bias") == list(range(20 + late, STEPS)), family
    assert main(["monitor", "report", "monitor_output"]) == 0


def test_a_model_that_is_frozen_as_a_whole_is_followed_when_it_is_thawed() -> None:
    def thaw(step: int, model: Any) -> None:
        model.requires_grad_(step >= 10)
        if step < 10:
            model[3].bias.requires_grad_(step == -1)

    train(thaw, steps=20, input_takes_gradient=True)
    assert steps_of(by_step("grad_unreduced"), "0.weight") == list(range(11, 20))


def test_layers_that_are_frozen_have_no_rows_and_are_no_alert() -> None:
    def freeze(step: int, model: Any) -> None:
        if step == 20:
            model[0].requires_grad_(False)
        if step == 50:
            model[0].requires_grad_(True)

    assert train(freeze) == []
    found = by_step("grad_reduced")
    assert steps_of(found, "0.weight") == [*range(21), *range(50, STEPS)]
    assert (found["0.weight", 20]["norm"], found["0.weight", 20]["dtype"]) == ("nan", "frozen")
    assert steps_of(by_step("param_updated"), "0.weight") == [*range(20), *range(50, STEPS)]
    assert main(["monitor", "report", "monitor_output"]) == 0


def test_a_layer_that_falls_out_of_the_graph_is_an_alert() -> None:
    def cut(step: int, model: Any) -> None:
        if step == 20:
            model[0].forward = lambda x: torch.nn.functional.linear(x, model[0].weight.detach(), model[0].bias.detach())

    found = train(cut)
    assert {(each.rule, each.name, each.step) for each in found} == {
        ("unchanged", "0.weight", 20), ("unchanged", "0.bias", 20)
    }  # fmt: skip
    assert main(["monitor", "report", "monitor_output"]) == 1
