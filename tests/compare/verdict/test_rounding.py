"""What rounding and another framework explain, and the faults beside it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import Record, Run, W, X, backward, call, compared, named, result_of, rounded, tensor, write
from made_dumps import plain
from numpy.typing import NDArray

from probe.common.dump.reading.dump import read
from probe.common.environment.environment_file import ModuleSettings
from probe.compare.comparison import compare_dumps
from probe.compare.result import ComparisonResult, Divergence
from probe.compare.verdict.settings import are_one, of_attributes
from probe.compare.verdict.two_runs import TwoRuns

# --- gradients of parameters that a kernel adds up row by row in bfloat16, as PyTorch's `layer_norm` does on a CPU

SHORT = "torch.bfloat16"


def short(array: Any) -> NDArray[np.float32]:
    return np.asarray(rounded(array, "bfloat16"))


def sum_of_rows(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The sum of rows whose partial sums are rounded to bfloat16."""
    total = np.zeros(rows.shape[1:], np.float32)
    for row in rows:
        total = short(total + row)
    return total


NUMBERS_OF_ROWS = (64, 64, 64, 64, 64, 8192)


def norms(is_short: bool, kind: str = "MyNorm", of_functions: bool = False, factor_at: int = -1) -> Run:
    """Norms over unlike numbers of rows, and the gradients of their biases, which the short run sums row by row.

    Args:
        is_short: true if the run is in bfloat16, and sums in it.
        kind: the class of the norms.
        of_functions: true if the functions that they call are recorded too.
        factor_at: the norm whose gradient is three times as large.
    """
    random, dtype = np.random.default_rng(5), SHORT if is_short else "torch.float32"
    kept = short if is_short else np.array
    data: Run = {}
    for layer, rows in enumerate(NUMBERS_OF_ROWS):
        x, gradient = (kept(random.normal(size=(rows, 16)).astype(np.float32)) for _ in range(2))
        total = sum_of_rows(gradient) if is_short else gradient.sum(0)
        total = kept(total * np.float32(3 if layer == factor_at else 1))
        name, weight = f"Module.layers.{layer}.norm.{kind}", tensor(kept(np.ones(16, np.float32)), dtype)
        given, returned = tensor(x, dtype), tensor(gradient, dtype)
        data[f"{name}.forward.0"] = call([given], given, bias=weight)
        if of_functions:
            data[f"Functional.layer_norm.{layer}.forward"] = call([given, weight, weight], given)
            data[f"Functional.layer_norm.{layer}.backward"] = backward(
                [returned], returned, weight, tensor(total, dtype)
            )
        data[f"{name}.backward.0"] = backward([returned], returned)
        data[f"{name}.parameters_grad.0"] = {"bias": [tensor(total, dtype)]}
    return data


@pytest.mark.parametrize("of_functions", [False, True])
def test_norms_of_a_class_of_their_own_may_sum_rows_in_the_short_type(tmp_path: Path, of_functions: bool) -> None:
    sides = (norms(is_short, of_functions=of_functions) for is_short in (True, False))
    assert compared(tmp_path, *sides) is None


@pytest.mark.parametrize(("kind", "factor_at"), [("MyNorm", 0), ("MyNorm", 4), ("BatchNorm2d", 5)])
def test_a_wrong_gradient_is_named(tmp_path: Path, kind: str, factor_at: int) -> None:
    found = compared(tmp_path, norms(True, kind, factor_at=factor_at), norms(False, kind))
    assert named(found) == f"Module.layers.{factor_at}.norm.{kind}.parameters_grad.0"


# --- matrix products of float32 that one run computes in TF32, which its environment tells and no dtype does

LAYERS = 6


def tf32(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """The numbers that TF32 has: eleven bits of significand."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000).astype(np.uint32).view(np.float32)


def run(rounded: bool, fault_at: int = -1) -> Run:
    kept = tf32 if rounded else np.asarray
    found: Run = {}
    x = X
    for layer in range(LAYERS):
        product = (kept(x) @ kept(W)).astype(np.float32)
        found[f"Functional.linear.{layer}.forward"] = call([tensor(x), tensor(W)], tensor(product))
        y = np.maximum(product, 0) if layer == fault_at else np.tanh(product)
        found[f"Torch.tanh.{layer}.forward"] = call([tensor(product)], tensor(y))
        x = x + y
        found[f"Tensor.__add__.{layer}.forward"] = call([tensor(x - y), tensor(y)], tensor(x))
    return found


def result(folder: Path, target: Run, **switches: Any) -> ComparisonResult:
    for side, data, of_side in (("target", target, switches), ("golden", run(False), {})):
        write(folder / side / "step0" / "rank0", data)
        content = {"format": 1, "framework": "pytorch", "switches": {"matmul_tf32": False, **of_side}}
        (folder / side / "environment_rank0.json").write_text(json.dumps(content))
    target, golden = (read(folder / side / "step0" / "rank0") for side in ("target", "golden"))
    return compare_dumps(target, golden)


def test_a_right_run_in_tf32_is_silent_and_without_the_switch_it_is_not(tmp_path: Path) -> None:
    found = result(tmp_path / "on", run(True), matmul_tf32=True)
    assert found.divergence is None and found.undecided == []
    assert named(result(tmp_path / "off", run(True)).divergence) == "Functional.linear.0.forward"


@pytest.mark.parametrize("fault_at", [0, 4])
def test_a_fault_in_tf32_is_named(tmp_path: Path, fault_at: int) -> None:
    found = result(tmp_path, run(True, fault_at), matmul_tf32=True)
    assert named(found.divergence) == f"Torch.tanh.{fault_at}.forward"


# --- what is no divergence between two frameworks; ports are in judged

SCORES = np.random.default_rng(3).normal(size=(4, 6, 6)).astype(np.float32)
LOWEST = float(np.finfo(np.float32).min)


def ported(array: Any, **more: Any) -> Record:
    """The entry of an array in MindSpore."""
    return {**tensor(array, "Float32", **more), "type": "mindspore.Tensor"}


def diverged(folder: Path, target: Run, golden: Run, framework: str = "mindtorch") -> Divergence | None:
    write(folder / "target", target, framework=framework)
    write(folder / "golden", golden)
    return compare_dumps(read(folder / "target"), read(folder / "golden")).divergence


def masked(kind: Any, fill: float, hidden: int) -> Run:
    """Scores with a causal mask, of which more columns may be hidden, and their softmax."""
    scores = np.where(np.triu(np.ones((6, 6)), hidden).astype(bool), fill, SCORES.astype(np.float64))
    with np.errstate(over="ignore"):
        entry = kind(scores)
    if abs(fill) > 1e30:
        entry["Norm"] = math.inf  # As it is in float32.
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return {"Functional.softmax.0.forward": call([entry, plain(-1)], kind(powers / powers.sum(-1, keepdims=True)))}


@pytest.mark.parametrize("golden_fill", [-1e4, LOWEST])
@pytest.mark.parametrize(
    ("fill", "hidden", "is_same"),
    [(-1e4, 1, True), (-1e9, 1, True), (LOWEST, 1, True), (-1e9, 2, False), (-1e9, 6, False)],
)
def test_masks_may_be_filled_with_other_numbers_and_not_be_other_masks(
    tmp_path: Path, fill: float, golden_fill: float, hidden: int, is_same: bool
) -> None:
    runs = masked(ported, fill, hidden), masked(tensor, golden_fill, 1)
    assert (diverged(tmp_path, *runs, "mindspore") is None) == is_same


def scaled_loss(kind: Any, factor: float, overflows: bool = False) -> Run:
    """A gradient at a loss scale, which is multiplied by `factor`."""
    gradient = kind(SCORES * 65536.0 * factor)
    if overflows:
        gradient.update({"Max": math.inf, "Norm": math.inf, "Mean": math.inf})
    forward = call([kind(SCORES)], kind(np.tanh(SCORES)))
    return {"Tensor.tanh.0.forward": forward, "Tensor.tanh.0.backward": backward([kind(SCORES * 65536.0)], gradient)}


@pytest.mark.parametrize(("factor", "overflows"), [(1.05, False), (100.0, False), (1.0, True)])
def test_gradients_at_a_loss_scale_are_no_mask(tmp_path: Path, factor: float, overflows: bool) -> None:
    runs = scaled_loss(ported, factor, overflows), scaled_loss(tensor, 1.0)
    assert diverged(tmp_path, *runs) is not None


def test_a_gradient_that_one_framework_leaves_out_is_absent(tmp_path: Path) -> None:
    def run(kind: Any, second: Any) -> Run:
        forward = call([kind(SCORES), kind(SCORES[0])], kind(SCORES + SCORES[0]))
        return {
            "Tensor.__add__.0.forward": forward,
            "Tensor.__add__.0.backward": backward([kind(SCORES)], kind(SCORES), second),
        }

    assert diverged(tmp_path, run(ported, ported(SCORES.sum(0))), run(tensor, None)) is None


# --- evidence between two programs: values that show that something is right, and values that show nothing

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


def result_between(folder: Path, target: Program, golden: Program) -> ComparisonResult:
    return result_of(folder, target.data, golden.data)


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
    found = result_between(tmp_path, rotated(TARGET, wrong_angles=True), rotated(GOLDEN))
    assert named(found.divergence) == "Module.model.rotary.Rotary.forward.0"


def test_right_angles_are_no_divergence_from_their_cosines(tmp_path: Path) -> None:
    assert result_between(tmp_path, rotated(TARGET), rotated(GOLDEN)).divergence is None


# --- settings of modules in two frameworks: what is one setting in two forms, and what is another one


def test_numbers_that_were_computed_may_be_rounded() -> None:
    assert are_one(0.35355339059327373, 0.353515625, 4 * 2.0**-8)
    assert not are_one(1e-5, 1.001e-5, 4 * 2.0**-8)  # Nobody computes an epsilon.
    assert are_one(1, 1.0) and not are_one(1, True) and not are_one(1, 2)
    assert are_one("cpu", "cuda:0") and are_one([0, 0], "valid") and not are_one([1, 1], "valid")


def torch_and_mindspore(target: dict[str, Any], golden: dict[str, Any], kind: str = "Layer") -> list[str]:
    runs: Any = TwoRuns((), None, None, None, ({}, {}), ({}, {}), True, False)  # type: ignore[arg-type]
    sides = (
        ModuleSettings(f"{module}.{kind}", True, True, values)
        for module, values in (("mindspore.nn", target), ("torch.nn", golden))
    )
    return [each.sentence.shown for each in of_attributes(*sides, "Cell.layer", runs)]


SAME = [
    ({"epsilon": 1e-5}, {"eps": 1e-5}),
    ({"keep_prob": 0.9, "p": None}, {"p": 0.1}),
    ({"keep_prob": 0.5, "p": 0.1}, {"p": 0.1}),
    ({"approximate": True}, {"approximate": "tanh"}),
    ({"pad_mode": "pad", "padding": 1, "kernel_size": [3, 3]}, {"padding": (1, 1), "kernel_size": (3, 3)}),
    ({"pad_mode": "valid", "padding": 0}, {"padding": 0}),
    ({"momentum": 0.09999999999999998, "num_features": 8}, {"momentum": 0.1}),
    ({"axis": -1}, {"dim": -1}),
]


@pytest.mark.parametrize(("target", "golden"), SAME)
def test_conventions_of_frameworks_are_no_difference(target: dict[str, Any], golden: dict[str, Any]) -> None:
    assert torch_and_mindspore(target, golden) == []


DIFFERENT = [
    ({"epsilon": 1e-7}, {"eps": 1e-5}, "argument eps = 1e-07 (golden: 1e-05)"),
    ({"keep_prob": 0.1, "p": None}, {"p": 0.1}, "argument p = 0.9 (golden: 0.1)"),
    ({"approximate": "none"}, {"approximate": "tanh"}, "argument approximate = none (golden: tanh)"),
    ({"momentum": 0.9}, {"momentum": 0.1}, "argument momentum = 0.9 (golden: 0.1)"),
    ({"pad_mode": "valid", "padding": 0}, {"padding": (1, 1)}, "argument padding = 0 (golden: 1)"),
]


@pytest.mark.parametrize(("target", "golden", "expected"), DIFFERENT)
def test_settings_of_layers_are_said_as_pytorch_does(target: Any, golden: Any, expected: str) -> None:
    assert torch_and_mindspore(target, golden) == [expected]
