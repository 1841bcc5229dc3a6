"""Makes the runs of MindSpore, with the weights that those of PyTorch left; for a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from networks_mindspore import NetWithLoss, renamed
from page_faults.cases import CASES, Run
from port_settings import Port, batches

from msprobe.mindspore import PrecisionDebugger


def dump_all(dumps: Path, runs: Sequence[Run]) -> None:
    """Dump one training step of each run."""
    cases = {case.name: case for case in CASES}
    collected = dumps / ".collecting-mindspore"
    debugger = PrecisionDebugger(task="statistics", dump_path=str(collected), level="mix")
    for number, run in enumerate(runs):
        name = run.network[len("port_") :]
        model = _network(name, dumps)
        if run.case:
            _plant(model, cases[run.case].module, cases[run.case].what)
        model.set_train()
        differentiated = ms.value_and_grad(model, None, model.trainable_params())
        given = [Tensor(array.astype(np.int32) if array.dtype == np.int64 else array) for array in batches(name, 1)[0]]
        debugger.start(model)
        differentiated(*given)
        debugger.stop()
        debugger.step()
        (written,) = (collected / f"step{number}").iterdir()
        written.rename(dumps / run.folder)


def _network(name: str, dumps: Path) -> nn.Cell:
    model: nn.Cell = NetWithLoss(name, Port())
    arrays = np.load(dumps / f"{name}.npz", allow_pickle=False)
    by_name = {renamed(name, key): arrays[key] for key in arrays.files}
    for key, parameter in model.parameters_and_names():
        if "moving_" not in key:
            parameter.set_data(Tensor(by_name[key]))
    return model


def _plant(model: nn.Cell, path: str, what: str) -> None:
    above, _, name = path.rpartition(".")
    around: Any = model
    for part in above.split("."):
        around = around[int(part)] if part.isdigit() else getattr(around, part)
    _PLANTERS[what](around, name)


def _change(change: Callable[[Any], Any]) -> Callable[[Any, str], None]:
    def plant(around: Any, name: str) -> None:
        weight = getattr(around, name).weight
        weight.set_data(Tensor(change(weight.asnumpy()).astype(np.float32)))

    return plant


def _with_nan(array: Any) -> Any:
    changed = array.copy()
    changed.reshape(-1)[7] = np.nan
    return changed


def _compute_in_float16(around: Any, name: str) -> None:
    layer = getattr(around, name)
    inner = layer.construct

    def construct(x: Tensor) -> Tensor:
        # The operators of the CPU have no linear layer in float16: what goes in and comes out has its precision.
        return inner(x.astype(ms.float16).astype(ms.float32)).astype(ms.float16).astype(ms.float32)

    layer.construct = construct


def _insert_layer(around: Any, name: str) -> None:
    random = np.random.default_rng(5)
    position = int(name)
    layer = type(around[position])(Port())
    for key, parameter in layer.parameters_and_names():
        scale = 1.0 if key.endswith("gamma") else 0.1 * random.standard_normal(parameter.shape)
        parameter.set_data(Tensor((scale + np.zeros(parameter.shape)).astype(np.float32)))
        parameter.name = f"extra.{key}"
    around.insert(position, layer)


def _swap_layers(around: Any, name: str) -> None:
    position = int(name)
    first, second = around[position], around[position + 1]
    around[position], around[position + 1] = second, first


def _activate_last(around: Any, name: str) -> None:
    layer = getattr(around, name)
    layer.construct = lambda x: layer.act(layer.wo(layer.wi(x)))


_PLANTERS: dict[str, Callable[[Any, str], None]] = {
    "shifted by a hundredth": _change(lambda array: array + 0.01),
    "scaled by 1.01": _change(lambda array: array * 1.01),
    "in a weight": _change(_with_nan),
    "ReLU": lambda around, name: setattr(around, name, nn.ReLU()),
    "computed in float16": _compute_in_float16,
    "drawn again": _insert_layer,
    "swapped with the next": _swap_layers,
    "activation after the projection": _activate_last,
}
