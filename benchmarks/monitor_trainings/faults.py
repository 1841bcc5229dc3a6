"""Faults that are planted into a training by hooks of torch, from a step on or in one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

FROM = 60
"""The step in which a fault begins."""


@dataclass(frozen=True)
class Planted:
    """A fault, and what names it."""

    rules: tuple[str, ...]
    name: str
    """The beginning of the name of the row; empty for any."""


Plant = Callable[[nn.Module, torch.optim.Optimizer], Planted]


class _Steps:
    """Counts the steps of an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.now = 0
        optimizer.register_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.now += 1


def _leaves(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules with weights of their own and none inside."""
    found = [each for each in model.named_modules() if not list(each[1].children())]
    return [(name, each) for name, each in found if any(True for _ in each.parameters())]


def _middle(model: nn.Module) -> tuple[str, nn.Module]:
    wanted = [each for each in _leaves(model) if isinstance(each[1], (nn.Linear, nn.Conv2d))]
    return wanted[len(wanted) // 2]


def _change_output(module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change what a module computes; a hook would run after those of the monitor."""
    forward = module.forward
    module.forward = lambda *args, **kwargs: change(forward(*args, **kwargs))  # type: ignore[method-assign]


def learning_rate(model: nn.Module, optimizer: torch.optim.Optimizer) -> Planted:
    """One step with a thousand times the learning rate."""
    steps = _Steps(optimizer)
    kept = []

    def before(*_: Any) -> None:
        kept[:] = [group["lr"] for group in optimizer.param_groups]
        if steps.now == FROM:
            for group in optimizer.param_groups:
                group["lr"] *= 1000

    def after(*_: Any) -> None:
        for group, rate in zip(optimizer.param_groups, kept):
            group["lr"] = rate

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    return Planted(("hyper_parameter",), "group")


def nan_data(model: nn.Module, optimizer: torch.optim.Optimizer) -> Planted:
    """One NaN in what the first layer makes of a batch."""
    steps = _Steps(optimizer)
    name, module = _leaves(model)[0]

    def with_nan(output: torch.Tensor) -> torch.Tensor:
        if steps.now != FROM:
            return output
        output = output.clone()
        output.view(-1)[0] = torch.nan
        return output

    _change_output(module, with_nan)
    return Planted(("nonfinite",), f"{name}.output")


def dead_layer(model: nn.Module, optimizer: torch.optim.Optimizer) -> Planted:
    """The outputs of a layer in the middle become zero."""
    steps = _Steps(optimizer)
    name, module = _middle(model)
    _change_output(module, lambda output: output * 0 if steps.now >= FROM else output)
    return Planted(("dead",), name)


def frozen_weight(model: nn.Module, optimizer: torch.optim.Optimizer) -> Planted:
    """A weight in the middle keeps its value although it has a gradient."""
    steps = _Steps(optimizer)
    name, module = _middle(model)
    kept: list[torch.Tensor] = []

    def after(*_: Any) -> None:
        if steps.now < FROM:
            return
        if not kept:
            kept.append(module.weight.detach().clone())
        with torch.no_grad():
            module.weight.copy_(kept[0])

    optimizer.register_step_post_hook(after)
    return Planted(("unchanged",), f"{name}.weight")


def gradient_spike(model: nn.Module, optimizer: torch.optim.Optimizer) -> Planted:
    """The gradient of one weight is a thousand times as large in one step, as of a wrong kernel."""
    steps = _Steps(optimizer)
    name, module = _middle(model)
    module.weight.register_hook(lambda gradient: gradient * 1000 if steps.now == FROM else gradient)
    return Planted(("spike",), f"{name}.weight")


FAULTS: dict[str, Plant] = {
    each.__name__: each for each in (learning_rate, nan_data, dead_layer, frozen_weight, gradient_spike)
}


def exploding_depth(record: Callable[[nn.Module, torch.optim.Optimizer], Any], steps: int) -> None:
    """A net of ten layers whose weights are initialised three times too large."""
    layers = [nn.Linear(32, 32) for _ in range(10)]
    for each in layers:
        nn.init.normal_(each.weight, std=3 * (2 / 32) ** 0.5)
    model = nn.Sequential(*[part for each in layers for part in (each, nn.ReLU())], nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    record(model, optimizer)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(16, 32)
        nn.functional.smooth_l1_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
