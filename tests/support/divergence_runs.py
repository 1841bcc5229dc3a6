"""Runs whose arithmetic numpy does, for the tests of the divergence search."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_dumps
import numpy as np
from made_dumps import tensor_of as tensor
from numpy.typing import NDArray

from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps
from probe.compare.result import ComparisonResult, Divergence, Unexplained

RNG = np.random.default_rng(20)
X = RNG.normal(size=(16, 64)).astype(np.float32)
W = (RNG.normal(size=(64, 64)) / 8).astype(np.float32)
Record = dict[str, Any]
Run = dict[str, Record]


def whole(array: Any) -> Record:
    """The entry of a tensor of whole numbers."""
    return tensor(array, "torch.int64")


def rounded(array: Any, kind: str) -> Any:
    """An array in bfloat16, by cutting off half of each number and rounding, or as it is."""
    if kind == "float32":
        return array
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def call(inputs: list[Any], *outputs: Any, **parameters: Any) -> Record:
    return made_dumps.call(inputs, list(outputs), **({"parameters": parameters} if parameters else {}))


def backward(inputs: list[Any], *outputs: Any) -> Record:
    return {"input": inputs, "output": list(outputs)}


def write(folder: Path, data: Run, tree: dict[str, str | None] | None = None, level: str = "mix", **head: str) -> Path:
    line = f"File {folder.name}.py, line {{}}, in f, \n g()"
    stacks = {str(place): [[name], [line.format(place)]] for place, name in enumerate(data)}
    return made_dumps.write(folder, data, {**dict.fromkeys(data), **(tree or {})}, stacks, level=level, **head)


def compared(folder: Path, target: Run, golden: Run, *trees: dict[str, str | None], **head: str) -> Divergence | None:
    return result_of(folder, target, golden, *trees, **head).divergence


def result_of(folder: Path, target: Run, golden: Run, *trees: dict[str, str | None], **head: str) -> ComparisonResult:
    of_target, of_golden = trees if len(trees) == 2 else (trees * 2 or ({}, {}))
    write(folder / "target", target, of_target, **head)
    write(folder / "golden", golden, of_golden, **head)
    return compare_dumps(read(folder / "target"), read(folder / "golden"))


def named(divergence: Divergence | None) -> str:
    assert divergence is not None
    return divergence.record


def chain(dtype: Any = np.float32, constant: float = 1.0, at: int = -1, nan: int = -1, calls: int = 6) -> Run:
    """Products and activations, one after the other, computed in `dtype` and rounded to float32."""
    data, x = {}, X
    for number in range(calls):
        y = (x.astype(dtype) @ W.astype(dtype)).astype(np.float32)
        if number == at:
            y = y * np.float32(constant)
        if number == nan:
            y[3, 3] = np.nan
        data[f"Functional.linear.{number}.forward"] = call([tensor(x), tensor(W)], tensor(y))
        x = np.tanh(y.astype(dtype)).astype(np.float32)
        data[f"Torch.tanh.{number}.forward"] = call([tensor(y)], tensor(x))
    return data


# --- two steps of an optimizer

Array = NDArray[np.float32]
LAYERS = 6
RATE = 1e-4
_STEPS = np.random.default_rng(7)
WEIGHTS = [(_STEPS.normal(0.2, 1, size=(16, 64)) / 8).astype(np.float32) for _ in range(LAYERS)]
GRADIENTS = [_STEPS.normal(0.5, 1, size=(16, 64)).astype(np.float32) for _ in range(LAYERS)]
Update = Callable[[Array, Array, int], Array]


def sgd(weight: Array, gradient: Array, _layer: int = 0) -> Array:
    return weight - np.float32(RATE) * gradient


def name(layer: int) -> str:
    return f"Module.layers.{layer}.Linear"


def first(result: ComparisonResult) -> Unexplained:
    assert result.divergence is not None
    return result.divergence.first
