"""What is no divergence between two frameworks, and the causes that settings of calls and parameters give."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import (
    GRADIENTS,
    WEIGHTS,
    Array,
    Record,
    Run,
    Update,
    backward,
    call,
    name,
    sgd,
    tensor,
    write,
)
from made_dumps import plain

from probe.common.dump.reading.dump import read
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import beside_fill_values
from probe.compare.comparison import compare_dumps
from probe.compare.result import ComparisonResult

RNG = np.random.default_rng(3)
X = RNG.normal(size=(4, 6, 6)).astype(np.float32)
LOWEST = float(np.finfo(np.float32).min)


def ported(array: Any, **more: Any) -> Record:
    """The entry of an array in MindSpore."""
    return {**tensor(array, "Float32", **more), "type": "mindspore.Tensor"}


def compared(folder: Path, target: Run, golden: Run, framework: str = "mindspore") -> ComparisonResult:
    write(folder / "target", target, framework=framework)
    write(folder / "golden", golden)
    return compare_dumps(read(folder / "target"), read(folder / "golden"))


def softmax(scores: Any) -> Any:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


# --- masks


def masked(fill: float, hidden: int, framework: str) -> Run:
    """Scores with a causal mask, of which more columns may be hidden, and their softmax."""
    kind, prefix = (ported, "Functional") if framework == "mindspore" else (tensor, "Functional")
    scores = np.where(np.triu(np.ones((6, 6)), hidden).astype(bool), fill, X.astype(np.float64))
    with np.errstate(over="ignore"):
        entry = kind(scores)
    if abs(fill) > 1e30:
        entry["Norm"] = math.inf  # As it is in float32.
    return {f"{prefix}.softmax.0.forward": call([entry, plain(-1)], kind(softmax(scores)))}


@pytest.mark.parametrize("fill", [-1e4, -1e9, LOWEST])
@pytest.mark.parametrize("golden_fill", [-1e4, LOWEST])
def test_masks_may_be_filled_with_other_numbers(tmp_path: Path, fill: float, golden_fill: float) -> None:
    target, golden = masked(fill, 1, "mindspore"), masked(golden_fill, 1, "pytorch")
    assert compared(tmp_path, target, golden).divergence is None


def test_a_mask_of_other_elements_is_a_divergence(tmp_path: Path) -> None:
    assert compared(tmp_path, masked(-1e9, 2, "mindspore"), masked(LOWEST, 1, "pytorch")).divergence is not None


def test_a_mask_on_one_side_is_a_divergence(tmp_path: Path) -> None:
    assert compared(tmp_path, masked(-1e9, 6, "mindspore"), masked(LOWEST, 1, "pytorch")).divergence is not None


SCALE = 65536.0


def scaled_loss(kind: Any, factor: float, overflows: bool = False, given: float = SCALE) -> Run:
    """A gradient at a loss scale, which is multiplied by `factor`, of one that is `given` times as large as usual."""
    gradient = kind(X * SCALE * factor)
    if overflows:
        gradient.update({"Max": math.inf, "Norm": math.inf, "Mean": math.inf})
    forward = call([kind(X)], kind(np.tanh(X)))
    return {"Tensor.tanh.0.forward": forward, "Tensor.tanh.0.backward": backward([kind(X * given)], gradient)}


@pytest.mark.parametrize("given", [SCALE, 1e3])
@pytest.mark.parametrize("factor", [1.05, 1.5, 100.0])
def test_gradients_at_a_loss_scale_are_no_mask(tmp_path: Path, factor: float, given: float) -> None:
    runs = scaled_loss(ported, factor, given=given), scaled_loss(tensor, 1.0, given=given)
    assert compared(tmp_path, *runs, "mindtorch").divergence is not None


def test_an_overflow_at_a_loss_scale_is_no_mask(tmp_path: Path) -> None:
    target, golden = scaled_loss(ported, 1.0, overflows=True), scaled_loss(tensor, 1.0)
    assert compared(tmp_path, target, golden, "mindtorch").divergence is not None


def with_outliers(kind: Any, values: list[float]) -> Run:
    array = X.astype(np.float64).copy()
    array.flat[: len(values)] = values
    return {"Functional.relu.0.forward": call([kind(X)], kind(array))}


@pytest.mark.parametrize("target, golden", [
    ([3e5], [2e5]), ([-3e5], [-2e5]), ([-3e5, -6e5], [-2e5, -4e5]), ([-3e5, 6e5], [-2e5, 4e5]), ([3e9], [2e5]),
])  # fmt: skip
def test_outliers_are_no_mask(tmp_path: Path, target: list[float], golden: list[float]) -> None:
    runs = with_outliers(ported, target), with_outliers(tensor, golden)
    assert compared(tmp_path, *runs, "mindtorch").divergence is not None


@pytest.mark.parametrize("fill, other, same", [
    (-2e5, -3e7, True), (-2e5, -math.inf, True), (2e5, 3e7, True), (2e5, math.inf, False)
])  # fmt: skip
def test_a_number_that_is_repeated_fills_a_mask(fill: float, other: float, same: bool) -> None:
    def item(value: float) -> Item:
        array = np.where(np.triu(np.ones((6, 6)), 1).astype(bool), value, 0.0)
        norm = float(np.sqrt(np.square(array).sum()))
        values = {"max": float(array.max()), "min": float(array.min()), "mean": float(array.mean()), "norm": norm}
        return Item("x", "input", dtype="torch.float32", shape=(6, 6), **values)

    assert beside_fill_values(item(other), item(fill)) == (0.0 if same else None)


@pytest.mark.parametrize("target, golden, same", [
    (-1e9, LOWEST, True), (-math.inf, -1e4, True), (3e5, 2e5, False), (-3e5, -2e5, False), (math.inf, 1e9, False),
])  # fmt: skip
def test_a_tensor_of_one_number_is_a_mask_where_that_is_known(target: float, golden: float, same: bool) -> None:
    def item(value: float) -> Item:
        values = {"max": value, "min": value, "mean": value, "norm": abs(value)}
        return Item("x", "input", dtype="torch.float32", shape=(9,), **values)

    assert beside_fill_values(item(target), item(golden)) == (0.0 if same else None)


# --- absent values


def test_a_gradient_that_one_framework_leaves_out_is_absent(tmp_path: Path) -> None:
    def run(kind: Any, second: Any) -> Run:
        forward = call([kind(X), kind(X[0])], kind(X + X[0]))
        return {"Tensor.__add__.0.forward": forward, "Tensor.__add__.0.backward": backward([kind(X)], kind(X), second)}

    assert compared(tmp_path, run(ported, ported(X.sum(0))), run(tensor, None), "mindtorch").divergence is None


# --- backward calls in another order


def test_backward_calls_belong_to_their_forward_calls(tmp_path: Path) -> None:
    def run(kind: Any, order: tuple[int, int]) -> Run:
        forwards = {f"Module.shared.Linear.forward.{n}": call([kind(X + n)], kind(2 * X + n)) for n in (0, 1)}
        return {
            **forwards,
            **{f"Module.shared.Linear.backward.{n}": backward([kind(X * (n + 1))], kind(X * (n + 3))) for n in order},
        }

    assert compared(tmp_path, run(ported, (0, 1)), run(tensor, (1, 0)), "mindtorch").divergence is None


# --- settings


def layer(target: Record, golden: Record, names: tuple[str, str]) -> tuple[Run, Run]:
    return {names[0]: target}, {names[1]: golden}


def with_attributes(record: Record, **attributes: Any) -> Record:
    return {**record, "attributes": attributes}


FACTOR = "output 0 is 6/5 times that of the golden run"
"""The planted difference."""


@pytest.mark.parametrize("attributes, cause", [
    ({"pad_mode": "same", "stride": [1, 1, 2, 2]}, "padding is same and in the golden run 1"),
    ({"pad_mode": "pad", "pad": [1, 1, 1, 1], "stride": [2, 2]}, FACTOR),
    ({"pad_mode": "pad", "pad": 1, "stride": 1}, "stride is 1 and in the golden run 2"),
])  # fmt: skip
def test_padding_and_strides_are_compared_by_meaning(tmp_path: Path, attributes: dict[str, Any], cause: str) -> None:
    names = "Primitive.conv2d.Conv2D.0.forward", "Functional.conv2d.0.forward"
    kernel, image = RNG.normal(size=(2, 3, 3, 3)), RNG.normal(size=(1, 3, 8, 8))
    out = RNG.normal(size=(1, 2, 4, 4))
    target = with_attributes(call([ported(image), ported(kernel)], ported(out * 1.2)), **attributes)
    pairs = [plain(2), plain(2)], [plain(1), plain(1)], [plain(1), plain(1)], plain(1)
    golden = call([tensor(image), tensor(kernel), None, *pairs], tensor(out))
    divergence = compared(tmp_path, *layer(target, golden, names)).divergence
    assert divergence is not None and divergence.first.cause == cause


@pytest.mark.parametrize("attributes, cause", [
    ({"pad_mode": "same", "stride": 1}, FACTOR),
    ({"pad_mode": "same", "stride": 1, "dilation": 2}, "dilation is 2 and in the golden run 1"),
    ({"pad_mode": "same", "stride": []}, FACTOR),
    ({"pad_mode": "pad", "pad": 1, "stride": [], "dilation": []}, FACTOR),
])  # fmt: skip
def test_padding_that_keeps_the_size_is_a_number(tmp_path: Path, attributes: dict[str, Any], cause: str) -> None:
    names = "Primitive.conv2d.Conv2D.0.forward", "Functional.conv2d.0.forward"
    kernel, image, out = (RNG.normal(size=size) for size in ((2, 3, 3, 3), (1, 3, 8, 8), (1, 2, 8, 8)))
    target = with_attributes(call([ported(image), ported(kernel)], ported(out * 1.2)), **attributes)
    golden = call([tensor(image), tensor(kernel), None, [plain(1)], [plain(1)]], tensor(out))
    divergence = compared(tmp_path, *layer(target, golden, names)).divergence
    assert divergence is not None and divergence.first.cause == cause


# --- between steps


def adam(epsilon: float) -> Update:
    def update(weight: Array, gradient: Array, _layer: int) -> Array:
        return (weight - np.float32(1e-3) * gradient / (np.abs(gradient) + np.float32(epsilon))).astype(np.float32)

    return update


def step(
    folder: Path, kind: Any, weights: list[Array], gradients: list[Array], framework: str, last: Run | None = None
) -> Path:
    data = {
        f"{name(number)}.forward.0": call([kind(X)], kind(X), weight=kind(weight))
        for number, weight in enumerate(weights)
    }
    data.update(last or {})
    for number, gradient in enumerate(gradients):
        data[f"{name(number)}.parameters_grad.0"] = {"weight": [kind(gradient)]}
    return write(folder, data, level="L0", framework=framework)


def second_step(
    root: Path, updates: tuple[Update, Update], noise: float = 1e-7, lasts: tuple[Run, Run] = ({}, {})
) -> ComparisonResult:
    """The second step of two runs whose gradients are of many sizes and were rounded otherwise.

    Args:
        root: a folder for the dumps.
        updates: what the optimizers do.
        noise: the relative difference of gradients.
        lasts: more records of the second step.
    """
    golden = [each * np.float32(10.0 ** (-number)) for number, each in enumerate(GRADIENTS)]
    rounded = [each + RNG.normal(size=each.shape).astype(np.float32) * noise * np.abs(each).max() for each in golden]
    dumps, before = [], []
    sides = (("target", ported, "mindtorch", rounded), ("golden", tensor, "pytorch", golden))
    for (side, kind, framework, used), update, last in zip(sides, updates, lasts):
        weights = [update(weight, gradient, 0) for weight, gradient in zip(WEIGHTS, used)]
        before.append(str(step(root / side / "step0", kind, WEIGHTS, used, framework)))
        dumps.append(read(step(root / side / "step1", kind, weights, used, framework, last)))
    return compare_dumps(*dumps, before=(before[0], before[1]))


@pytest.mark.parametrize("update", [sgd, adam(1e-8)])
def test_gradients_that_were_rounded_otherwise_are_no_divergence_of_the_next_step(
    tmp_path: Path, update: Update
) -> None:
    assert second_step(tmp_path, (update, update)).divergence is None
