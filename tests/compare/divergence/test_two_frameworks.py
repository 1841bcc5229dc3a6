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
    first,
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


NORM = "Primitive.layer_norm.LayerNorm.0.forward", "Functional.layer_norm.0.forward"
WEIGHT = np.ones(6, np.float32)


def norm_of(epsilon: float) -> Record:
    return call([tensor(X), [plain(6)], tensor(WEIGHT), tensor(WEIGHT), plain(epsilon)], tensor(X))


@pytest.mark.parametrize("output, cause", [(X * 1.1, "eps is 0.001 and in the golden run 1e-05"), (X, None)])
def test_the_epsilon_of_a_primitive_is_named_where_it_has_an_effect(tmp_path: Path, output: Any, cause: Any) -> None:
    primitive = call([ported(X), ported(WEIGHT), ported(WEIGHT)], ported(output))
    runs = layer(with_attributes(primitive, epsilon=1e-3), norm_of(1e-5), NORM)
    divergence = compared(tmp_path, *runs).divergence
    assert (None if divergence is None else divergence.first.cause) == cause


def test_the_epsilon_that_a_primitive_has_by_default_is_named_too(tmp_path: Path) -> None:
    primitive = call([ported(X), ported(WEIGHT), ported(WEIGHT)], ported(X * 1.1))
    divergence = compared(tmp_path, *layer(primitive, norm_of(1e-5), NORM)).divergence
    assert divergence is not None and divergence.first.cause == "eps is 1e-07 and in the golden run 1e-05"


def test_a_dump_without_attributes_names_none(tmp_path: Path) -> None:
    """Those of the reference tool say neither what a primitive was made with nor what takes a gradient."""
    primitive = call([ported(X), ported(WEIGHT), ported(WEIGHT)], ported(X * 1.1))
    for entry in primitive["input_args"]:
        del entry["requires_grad"]
    divergence = compared(tmp_path, *layer(primitive, norm_of(1e-5), NORM)).divergence
    assert divergence is not None and divergence.first.cause == ""


@pytest.mark.parametrize("attributes, golden, cause", [
    ({"keep_prob": 0.1}, [plain(0.1)], "p is 0.9 and in the golden run 0.1"),
    ({"keep_prob": 0.9}, [plain(0.1)], ""),
])  # fmt: skip
def test_a_share_that_is_kept_is_held_against_one_that_is_dropped(
    tmp_path: Path, attributes: dict[str, Any], golden: list[Any], cause: str
) -> None:
    names = "Primitive.dropout.Dropout.0.forward", "Functional.dropout.0.forward"
    target = with_attributes(call([ported(X)], ported(X * 1.5)), **attributes)
    divergence = compared(tmp_path, *layer(target, call([tensor(X), *golden], tensor(X)), names)).divergence
    assert divergence is not None and divergence.first.cause == cause


@pytest.mark.parametrize("attributes, cause", [
    ({"pad_mode": "same", "stride": [1, 1, 2, 2]}, "padding is same and in the golden run 1"),
    ({"pad_mode": "pad", "pad": [1, 1, 1, 1], "stride": [2, 2]}, ""),
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
    ({"pad_mode": "same", "stride": 1}, ""),
    ({"pad_mode": "same", "stride": 1, "dilation": 2}, "dilation is 2 and in the golden run 1"),
    ({"pad_mode": "same", "stride": []}, ""),
    ({"pad_mode": "pad", "pad": 1, "stride": [], "dilation": []}, ""),
])  # fmt: skip
def test_padding_that_keeps_the_size_is_a_number(tmp_path: Path, attributes: dict[str, Any], cause: str) -> None:
    names = "Primitive.conv2d.Conv2D.0.forward", "Functional.conv2d.0.forward"
    kernel, image, out = (RNG.normal(size=size) for size in ((2, 3, 3, 3), (1, 3, 8, 8), (1, 2, 8, 8)))
    target = with_attributes(call([ported(image), ported(kernel)], ported(out * 1.2)), **attributes)
    golden = call([tensor(image), tensor(kernel), None, [plain(1)], [plain(1)]], tensor(out))
    divergence = compared(tmp_path, *layer(target, golden, names)).divergence
    assert divergence is not None and divergence.first.cause == cause


def test_padding_that_keeps_the_size_of_an_unknown_kernel_is_held_against_no_number(tmp_path: Path) -> None:
    names = "Primitive.conv2d.Conv2D.0.forward", "Functional.conv2d.0.forward"
    target = with_attributes(call([ported(X)], ported(X * 1.2)), pad_mode="same")
    golden = call([tensor(X), None, None, [plain(1)], [plain(1)]], tensor(X))
    divergence = compared(tmp_path, *layer(target, golden, names)).divergence
    assert divergence is not None and divergence.first.cause == ""


@pytest.mark.parametrize("flag, word, cause", [
    (True, "tanh", ""),
    (False, "tanh", "approximate is none and in the golden run tanh"),
])  # fmt: skip
def test_the_kind_of_a_gelu_is_a_flag_or_a_word(tmp_path: Path, flag: bool, word: str, cause: str) -> None:
    names = "Functional.gelu.0.forward", "Functional.gelu.0.forward"
    target, golden = call([ported(X)], ported(X * 1.1)), call([tensor(X)], tensor(X))
    target["input_kwargs"], golden["input_kwargs"] = {"approximate": plain(flag)}, {"approximate": plain(word)}
    divergence = compared(tmp_path, *layer(target, golden, names)).divergence
    assert divergence is not None and divergence.first.cause == cause


def test_a_parameter_that_one_side_lacks_is_the_cause(tmp_path: Path) -> None:
    names = "Cell.fc.Dense.forward.0", "Module.fc.Linear.forward.0"
    target = call([ported(X)], ported(X * 1.1), weight=ported(WEIGHT))
    golden = call([tensor(X)], tensor(X), weight=tensor(WEIGHT), bias=tensor(WEIGHT))
    divergence = compared(tmp_path, *layer(target, golden, names)).divergence
    assert divergence is not None
    assert divergence.first.cause == "parameters.bias is there in the golden run only"


def test_running_statistics_that_part_are_named_with_the_momentum(tmp_path: Path) -> None:
    names = "Primitive.bn_train.BatchNorm.0.forward", "Functional.batch_norm.0.forward"
    weight = [np.ones(6, np.float32), np.zeros(6, np.float32)]
    mean, variance = RNG.normal(size=6), 1 + RNG.random(6)
    target = call([ported(each) for each in (X, *weight, mean * 9, variance)], ported(X))
    settings = [plain(True), plain(0.1), plain(1e-5)]
    golden = call([*(tensor(each) for each in (X, mean, variance, *weight)), *settings], tensor(X))
    target = with_attributes(target, momentum=0.9, is_training=True)
    divergence = compared(tmp_path, *layer(target, golden, names)).divergence
    assert divergence is not None
    assert divergence.first.cause == "momentum is 0.9 and in the golden run 0.1"


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


@pytest.mark.parametrize("noise, factor, diverges", [
    (1e-7, 1.0, False), (1e-7, 1.05, True), (1e-6, 1.05, True), (1e-6, 1.001, False)
])  # fmt: skip
def test_what_a_forward_pass_shows_bounds_the_gradients_behind_adam(
    tmp_path: Path, noise: float, factor: float, diverges: bool
) -> None:
    def last(kind: Any, noise: float, factor: float) -> Run:
        forward = call([kind(X)], kind(np.maximum(X, 0) * (1 + noise)))
        return {"Tensor.relu.0.forward": forward, "Tensor.relu.0.backward": backward([kind(X)], kind(X * factor))}

    lasts = last(ported, noise, factor), last(tensor, 0.0, 1.0)
    result = second_step(tmp_path, (adam(1e-8), adam(1e-8)), lasts=lasts)
    found = result.divergence
    assert ("" if found is None else found.record) == ("Tensor.relu.0.backward" if diverges else "")


def test_another_epsilon_of_adam_is_told(tmp_path: Path) -> None:
    cause = first(second_step(tmp_path, (adam(1e-3), adam(1e-8)))).cause
    assert cause.startswith("the optimizer step before this step diverges") and "another epsilon" in cause
