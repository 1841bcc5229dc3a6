"""What counts as evidence between two programs: values that show that something is right, and values that show nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import Run, call, named, result_of, tensor
from made_dumps import plain
from numpy.typing import NDArray

from probe.compare.result import ComparisonResult

Array = NDArray[np.float32]
RNG = np.random.default_rng(31)
ROWS, WIDTH = 16, 64
IDS = np.arange(ROWS)
TABLE = RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)
WEIGHTS = [(RNG.normal(size=(WIDTH, WIDTH)) / 8).astype(np.float32) for _ in range(12)]
TARGET, GOLDEN = 0, 1


class Program:
    """The records of one of two programs, which have other names for the same layers.

    Args:
        side: the side.
    """

    def __init__(self, side: int) -> None:
        self.side = side
        self.data: Run = {}
        self.tree: dict[str, str | None] = {}
        self._numbers: dict[str, int] = {}

    def module(self, name: str, kind: str, given: list[Any], *returned: Any, **parameters: Any) -> None:
        record = f"Module.{('model', 'net')[self.side]}.{name}.{kind}.forward.0"
        self.data[record] = call(given, *returned, **parameters)

    def function(self, name: str, given: list[Any], *returned: Any) -> None:
        number = self._numbers[name] = self._numbers.get(name, -1) + 1
        self.data[f"{name}.{number}.forward"] = call(given, *returned)

    def embedding(self) -> Array:
        self.module("embed", "Embedding", [tensor(IDS, "torch.int64")], tensor(TABLE), weight=tensor(TABLE))
        return TABLE

    def linear(self, name: str, x: Array, weight: Array) -> Array:
        y = (x.astype(np.float64) @ weight.astype(np.float64)).astype(np.float32)
        self.module(name, "Linear", [tensor(x)], tensor(y), weight=tensor(weight))
        return y


def result(folder: Path, target: Program, golden: Program, level: str = "mix") -> ComparisonResult:
    return result_of(folder, target.data, golden.data, target.tree, golden.tree, level=level)


# --- what batch norm returns


def standardised(x: Array) -> Array:
    return ((x - x.mean(0)) / x.std(0)).astype(np.float32)


def normed_net(side: int, level: str) -> Program:
    """Another activation on either side, and a batch norm whose largest elements come from somewhere else."""
    program = Program(side)
    x = program.linear("a", program.embedding(), WEIGHTS[0])
    y = np.tanh(x) if side == TARGET else np.maximum(x, 0)
    if level == "mix":
        program.function("Torch.tanh" if side == TARGET else "Functional.relu6", [tensor(x)], tensor(y))
    z = program.linear("b", y, WEIGHTS[1])
    # One element of a channel that is far off the others is as large as standardising makes any.
    far = np.zeros((ROWS, 2), np.float32)
    far[3] = 40.0, -40.0
    joined = np.concatenate([z, far], 1)
    if level == "mix":
        program.function("Torch.cat", [[tensor(z), tensor(far)]], tensor(joined))
    normed = standardised(joined)
    if level == "mix":
        program.function("Functional.batch_norm", [tensor(joined)], tensor(normed))
    else:
        program.module("norm", "BatchNorm2d", [tensor(joined)], tensor(normed))
    w = np.float32(RNG.standard_normal(1)) * 0 + np.vstack([WEIGHTS[2], WEIGHTS[3][:2]])
    shown = np.maximum(normed, 0)
    if level == "mix":
        program.function("Functional.relu", [tensor(normed)], tensor(shown))
    last = program.linear("c", shown, w)
    program.linear("d", last, WEIGHTS[4])
    return program


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_a_batch_norm_that_agrees_excuses_no_difference_before_it(tmp_path: Path, level: str) -> None:
    found = result(tmp_path, normed_net(TARGET, level), normed_net(GOLDEN, level), level)
    assert named(found.divergence) in ("Module.model.a.Linear.forward.0", "Torch.tanh.0.forward", "Module.model.b.Linear.forward.0")
