"""Makes the runs of PyTorch; for a process of its own, which has one debugger."""

from __future__ import annotations

import copy
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from networks_torch import NetWithLoss
from page_faults.cases import CASES, Run
from planted_faults.networks import build, draw_weights
from planted_faults.rounding import ROUNDINGS
from port_settings import Port, batches, weights
from torch import Tensor, nn

from msprobe.pytorch import PrecisionDebugger


class _Step(NamedTuple):
    model: nn.Module
    loss: Callable[[], Tensor]


def dump_all(dumps: Path, runs: Sequence[Run]) -> None:
    """Dump one training step of each run; the weights of the ports are left beside the dumps."""
    warnings.simplefilter("ignore")
    cases = {case.name: case for case in CASES}
    collected = dumps / ".collecting-torch"
    debugger = PrecisionDebugger(task="statistics", dump_path=str(collected), level="mix")
    for number, run in enumerate(runs):
        step = _port(run.network[len("port_") :], dumps) if run.network.startswith("port_") else _network(run.network)
        if run.case:
            _plant(step.model, cases[run.case].module, cases[run.case].what)
        # Nearly all tensors differ in their last bits before the fault is met, as on another machine.
        with ROUNDINGS["everything" if run.case else "plain"]():
            debugger.start(model=step.model)
            step.loss().backward()
            debugger.stop()
            debugger.step()
        (written,) = (collected / f"step{number}").iterdir()
        written.rename(dumps / run.folder)


def _network(name: str) -> _Step:
    network = build(name)
    return _Step(network.model, network.loss)


def _port(name: str, dumps: Path) -> _Step:
    model = NetWithLoss(name, Port())
    state = model.state_dict()
    arrays = weights({key: tuple(value.shape) for key, value in model.named_parameters()})
    np.savez(dumps / f"{name}.npz", **arrays)
    for key, array in arrays.items():
        state[key].copy_(torch.tensor(array))
    tensors = [torch.tensor(array) for array in batches(name, 1)[0]]
    return _Step(model, lambda: model(*tensors))


def _plant(model: nn.Module, path: str, what: str) -> None:
    above, _, name = path.rpartition(".")
    around = model.get_submodule(above)
    with torch.no_grad():
        _PLANTERS[what](around, name)


def _shift(around: nn.Module, name: str) -> None:
    around.get_submodule(name).get_parameter("weight").add_(0.01)


def _scale(around: nn.Module, name: str) -> None:
    around.get_submodule(name).get_parameter("weight").mul_(1.01)


def _roll(around: nn.Module, name: str) -> None:
    weight = around.get_submodule(name).get_parameter("weight")
    weight.copy_(weight.roll(1, 1))


def _put_nan(around: nn.Module, name: str) -> None:
    around.get_submodule(name).get_parameter("weight").view(-1)[7] = float("nan")


def _return_nan(around: nn.Module, name: str) -> None:
    def made(inner: Callable[..., Tensor], x: Tensor) -> Tensor:
        found = inner(x)
        mask = torch.zeros_like(found)
        mask.view(-1)[11] = float("nan")
        return found + mask

    _wrap(around.get_submodule(name), made)


def _compute_in_bfloat16(around: nn.Module, name: str) -> None:
    layer: Any = around.get_submodule(name)

    def forward(self: Any, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.bfloat16()
        return F.linear(x.bfloat16(), self.weight.bfloat16(), bias).to(x.dtype)

    layer.forward = types.MethodType(forward, layer)


def _wrap(module: nn.Module, made: Callable[..., Any]) -> None:
    inner = module.forward
    module.forward = lambda *given, **named: made(inner, *given, **named)  # type: ignore[method-assign]


def _insert_layer(around: nn.Module, name: str) -> None:
    torch.manual_seed(5)
    layers: Any = around
    layer = copy.deepcopy(layers[int(name)])
    draw_weights(layer)
    layers.insert(int(name), layer)


def _swap_layers(around: nn.Module, name: str) -> None:
    layers: Any = around
    first, second = layers[int(name)], layers[int(name) + 1]
    layers[int(name)], layers[int(name) + 1] = second, first


def _relu_before_norm(around: nn.Module, name: str) -> None:
    block: Any = around.get_submodule(name)

    def forward(self: Any, x: Tensor) -> Tensor:
        inner = self.bn1(F.relu(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(inner)))

    block.forward = types.MethodType(forward, block)


_PLANTERS: dict[str, Callable[[nn.Module, str], None]] = {
    "shifted by a hundredth": _shift,
    "scaled by 1.01": _scale,
    "channels rolled by one": _roll,
    "GELU by tanh": lambda around, name: setattr(around, name, nn.GELU(approximate="tanh")),
    "ReLU": lambda around, name: setattr(around, name, nn.ReLU()),
    "computed in bfloat16": _compute_in_bfloat16,
    "drawn again": _insert_layer,
    "in a weight": _put_nan,
    "in the output": _return_nan,
    "swapped with the next": _swap_layers,
    "ReLU before batch norm": _relu_before_norm,
}
