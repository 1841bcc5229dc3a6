"""Evidence between two programs: values that show that something is right, and values that show nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import Run, call, named, result_of, tensor
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
    normed = ((joined - joined.mean(0)) / joined.std(0)).astype(np.float32)
    if level == "mix":
        program.function("Functional.batch_norm", [tensor(joined)], tensor(normed))
    else:
        program.module("norm", "BatchNorm2d", [tensor(joined)], tensor(normed))
    weight = np.vstack([WEIGHTS[2], WEIGHTS[3][:2]])
    shown = np.maximum(normed, 0)
    if level == "mix":
        program.function("Functional.relu", [tensor(normed)], tensor(shown))
    last = program.linear("c", shown, weight)
    program.linear("d", last, WEIGHTS[4])
    return program


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_a_batch_norm_that_agrees_excuses_no_difference_before_it(tmp_path: Path, level: str) -> None:
    found = result(tmp_path, normed_net(TARGET, level), normed_net(GOLDEN, level), level)
    assert named(found.divergence) in ("Torch.tanh.0.forward", "Module.model.b.Linear.forward.0")


# --- what a call returns beside a result that agrees


def attending(side: int, factor: float, is_taken: bool = False) -> Program:
    """A scale inside of an embedding or of the attention behind it, which returns its scores too on one side.

    Args:
        side: the side.
        factor: the scale of the embedding.
        is_taken: true if both sides return scores, and a layer takes them.
    """
    program = Program(side)
    program.module("embed", "Embedding", [tensor(IDS, "torch.int64")], tensor(TABLE * factor), weight=tensor(TABLE))
    scores = (TABLE @ TABLE.T / 8 * factor).astype(np.float32)
    out = np.tanh(TABLE @ WEIGHTS[0])
    beside = [tensor(scores)] if side == TARGET or is_taken else []
    program.module("attention", "Attention", [tensor(TABLE * factor)], tensor(out), *beside)
    program.linear("b", program.linear("a", out, WEIGHTS[1]), WEIGHTS[2])
    if is_taken:
        program.linear("c", scores, WEIGHTS[3][:ROWS])
    return program


def test_a_result_beside_one_that_agrees_tells_of_steps_alone_if_nobody_takes_it(tmp_path: Path) -> None:
    found = result(tmp_path, attending(TARGET, 8.0), attending(GOLDEN, 1.0))
    assert found.divergence is None and not found.undecided


def test_such_a_result_that_is_taken_is_followed(tmp_path: Path) -> None:
    found = result(tmp_path, attending(TARGET, 8.0, is_taken=True), attending(GOLDEN, 1.0, is_taken=True))
    assert named(found.divergence) == "Module.model.embed.Embedding.forward.0"


# --- what a tensor is that several calls take


def rotated(side: int, wrong_angles: bool = False) -> Program:
    """Angles on one side and their cosines and sines on the other, which every attention takes."""
    program = Program(side)
    x = program.embedding()
    angles = np.outer(IDS, 0.7 ** np.arange(WIDTH // 2)).astype(np.float32)
    if wrong_angles:
        angles = angles * np.float32(1.25)
    turned = np.exp(1j * angles)
    handed = [tensor(angles)] if side == TARGET else [tensor(turned.real), tensor(turned.imag)]
    program.module("rotary", "Rotary", [tensor(IDS, "torch.int64")], *handed)
    for layer in range(3):
        q = program.linear(f"{layer}.q", x, WEIGHTS[2 * layer])
        pairs = (q[:, ::2] + 1j * q[:, 1::2]) * turned
        scores = (pairs @ pairs.conj().T).real / 64
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        out = (shares / shares.sum(-1, keepdims=True) @ q).astype(np.float32)
        program.module(f"{layer}.attend", "Attend", [tensor(q), *handed], tensor(out))
        x = program.linear(f"{layer}.o", out, WEIGHTS[2 * layer + 1])
    return program


def test_angles_are_named_that_are_wrong_in_all_calls(tmp_path: Path) -> None:
    found = result(tmp_path, rotated(TARGET, wrong_angles=True), rotated(GOLDEN))
    assert named(found.divergence) == "Module.model.rotary.Rotary.forward.0"


def test_right_angles_are_no_divergence_from_their_cosines(tmp_path: Path) -> None:
    assert result(tmp_path, rotated(TARGET), rotated(GOLDEN)).divergence is None


# --- parameters in another form

SCALE = np.linspace(0.5, 1.5, WIDTH, dtype=np.float32)


def normed(side: int, wrong: float = 1.0, other_activation: bool = False) -> Program:
    """Two norms whose scale one program holds as its distance from 1."""
    program = Program(side)
    x = program.embedding()
    for layer in range(3):
        held, factor = (SCALE - 1.0, wrong if layer == 1 else 1.0) if side == TARGET else (SCALE, 1.0)
        y = (x / np.sqrt(np.square(x).mean(-1, keepdims=True)) * SCALE * factor).astype(np.float32)
        program.module(f"{layer}.norm", "RMSNorm", [tensor(x)], tensor(y), weight=tensor(held * factor))
        z = program.linear(f"{layer}.up", y, WEIGHTS[2 * layer])
        is_other = other_activation and side == TARGET and layer == 1
        shown = np.maximum(z, 0) if is_other else np.tanh(z)
        program.function("Functional.relu" if is_other else "Torch.tanh", [tensor(z)], tensor(shown))
        x = program.linear(f"{layer}.down", shown, WEIGHTS[2 * layer + 1])
    return program


def test_a_wrong_scale_is_named_at_its_layer(tmp_path: Path) -> None:
    found = result(tmp_path, normed(TARGET, wrong=1.25), normed(GOLDEN))
    assert named(found.divergence) == "Module.model.1.norm.RMSNorm.forward.0"


# --- the first value that is not equal in every digit
