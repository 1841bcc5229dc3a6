"""Evidence between two programs: values that show that something is right, and values that show nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
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

    def module(self, name: str, kind: str, given: list[Any], *returned: Any, **parameters: Any) -> None:
        record = f"Module.{('model', 'net')[self.side]}.{name}.{kind}.forward.0"
        self.data[record] = call(given, *returned, **parameters)

    def embedding(self) -> Array:
        self.module("embed", "Embedding", [tensor(IDS, "torch.int64")], tensor(TABLE), weight=tensor(TABLE))
        return TABLE

    def linear(self, name: str, x: Array, weight: Array) -> Array:
        y = (x.astype(np.float64) @ weight.astype(np.float64)).astype(np.float32)
        self.module(name, "Linear", [tensor(x)], tensor(y), weight=tensor(weight))
        return y


def result(folder: Path, target: Program, golden: Program) -> ComparisonResult:
    return result_of(folder, target.data, golden.data)


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
