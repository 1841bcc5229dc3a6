"""The rows of a training of torch, taken with plain hooks; statistics by numpy in float64.

It stands beside the monitor so that the rules are measured over rows that the monitor did not make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from probe.monitor.alerts.rows import FamilyRows

OPS = ("min", "max", "mean", "norm", "zeros")


def statistics(tensor: torch.Tensor) -> tuple[float, ...]:
    """Values of `OPS`."""
    values = tensor.detach().to(torch.float64).numpy()
    if not values.size:
        return (np.nan,) * len(OPS)
    with np.errstate(invalid="ignore", over="ignore"):
        return (
            float(values.min()), float(values.max()), float(values.mean()), float(np.sqrt(np.square(values).sum())),
            float(np.mean(np.abs(values) < 1e-8)),
        )  # fmt: skip


class Rows:
    """Collects rows of a step, family by family."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {}
        self.values: dict[str, list[tuple[float, ...]]] = {}
        self.numel: dict[str, list[int]] = {}
        self.judged: dict[str, list[bool]] = {}

    def add(self, family: str, name: str, tensor: torch.Tensor | None) -> None:
        there = tensor is not None
        self.names.setdefault(family, []).append(name)
        self.values.setdefault(family, []).append(statistics(tensor) if tensor is not None else (np.nan,) * len(OPS))
        self.numel.setdefault(family, []).append(tensor.numel() if tensor is not None else 0)
        self.judged.setdefault(family, []).append(there and tensor.is_floating_point())  # type: ignore[union-attr]

    def families(self) -> list[FamilyRows]:
        return [
            FamilyRows(
                family, tuple(names), OPS, np.array(self.values[family], dtype=float),
                micro=(0,) * len(names) if family.startswith("actv") else None,
                numel=np.array(self.numel[family], dtype=float), judged=np.array(self.judged[family]),
            )
            for family, names in self.names.items()
        ]  # fmt: skip


def _tensors(value: Any) -> list[tuple[str, torch.Tensor]]:
    values = value if isinstance(value, (tuple, list)) else [value]
    found = [each for each in values if isinstance(each, torch.Tensor)]
    return [("" if len(found) == 1 else f"_{index}", each) for index, each in enumerate(found)]


class Recorder:
    """Hooks on a model and an optimizer; `after_step` gets the number of the step and its rows."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        after_step: Callable[[int, list[FamilyRows]], None],
    ) -> None:
        self.rows, self.step, self.after_step = Rows(), 0, after_step
        self.model, self.optimizer = model, optimizer
        self.parameters = dict(model.named_parameters())
        for name, module in model.named_modules():
            module.register_forward_hook(self._forward(name))
            module.register_full_backward_hook(self._backward(name))
        optimizer.register_step_pre_hook(lambda *_: self._before())
        optimizer.register_step_post_hook(lambda *_: self._after())

    def _forward(self, name: str) -> Any:
        def hook(module: torch.nn.Module, args: Any, output: Any) -> None:
            if not module.training:
                return
            for kind, value in (("input", args), ("output", output)):
                for index, tensor in _tensors(value):
                    self.rows.add("actv", f"{name}.{kind}{index}", tensor)

        return hook

    def _backward(self, name: str) -> Any:
        def hook(module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
            for kind, values in (("input", inputs), ("output", outputs)):
                for index, tensor in enumerate(values):
                    self.rows.add("actv_grad", f"{name}.{kind}_{index}", tensor)

        return hook

    def _before(self) -> None:
        for name, parameter in self.parameters.items():
            self.rows.add("param_origin", name, parameter)
            if parameter.grad is not None:
                self.rows.add("grad_reduced", name, parameter.grad)
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor) and value.dim():
                    self.rows.add(key, name, value)

    def _after(self) -> None:
        for name, parameter in self.parameters.items():
            self.rows.add("param_updated", name, parameter)
        self.after_step(self.step, self.rows.families())
        self.rows, self.step = Rows(), self.step + 1
