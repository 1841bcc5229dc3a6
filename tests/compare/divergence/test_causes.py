"""Causes of a divergence: calls on its way, gradients that one side does not take, the settings of an optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import (
    GRADIENTS,
    WEIGHTS,
    Run,
    W,
    X,
    backward,
    call,
    compared,
    first,
    name,
    result_of,
    tensor,
    write,
)
from made_dumps import plain

from probe.common.dump.reading.dump import read
from probe.common.operations.signatures import argument_name
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options
from probe.compare.result import Unexplained

LINEAR, ROLL, TANH = "Functional.linear.0.forward", "Torch.roll.0.forward", "Torch.tanh.0.forward"


def run(way: str = "") -> Run:
    x = np.tanh(X)
    data = {TANH: call([tensor(X)], tensor(x))}
    if way == "roll":
        # The same elements are added up in another order.
        x = np.roll(x, 1, -1)
        data[ROLL] = call(
            [tensor(np.tanh(X)), plain(1), plain(-1)], {**tensor(x), "Mean": float(x.mean()) * (1 + 1e-7)}
        )
        data[ROLL]["output"] = [data[ROLL]["output"]]
    if way == "half":
        short = x.astype(np.float16)
        data["Tensor.half.0.forward"] = call([tensor(x)], tensor(short, "torch.float16"))
        x = short.astype(np.float32)
        data["Tensor.float.0.forward"] = call([tensor(short, "torch.float16")], tensor(x))
    data[LINEAR] = call([tensor(x), tensor(W)], tensor(x @ W))
    return data


def with_other_names(folder: Path, target: Run, golden: Run) -> Unexplained:
    paths = [write(folder / side, data) for side, data in (("target", target), ("golden", golden))]
    return first(compare_dumps(read(paths[0]), read(paths[1]), Options(fuzzy=True)))


@pytest.mark.parametrize("on_target", [True, False])
def test_a_call_of_one_side_that_reorders_the_input_is_named(tmp_path: Path, on_target: bool) -> None:
    divergence = compared(tmp_path, *((run("roll"), run()) if on_target else (run(), run("roll"))))
    assert divergence is not None and divergence.record == ROLL
    assert divergence.first.reason.startswith(f"in {LINEAR}, output.0 differs by")


@pytest.mark.parametrize("on_target", [True, False])
@pytest.mark.parametrize("way, maker, did", [
    ("roll", ROLL, "may return what it takes in another order"), ("half", "Tensor.half.0.forward", "makes input.0"),
])  # fmt: skip
def test_other_names_leave_the_call_of_one_side_as_the_cause(
    tmp_path: Path, way: str, maker: str, did: str, on_target: bool
) -> None:
    found = with_other_names(tmp_path, *((run(way), run()) if on_target else (run(), run(way))))
    assert found.record == LINEAR
    assert found.cause == f"only the {'target' if on_target else 'golden run'} calls {maker}, which {did}"


def test_other_names_leave_an_argument_as_the_cause(tmp_path: Path) -> None:
    norm = "Functional.layer_norm.0.forward"
    given = [plain(64), tensor(W[0]), tensor(W[1])]
    runs = [{norm: call([tensor(X), *given, plain(eps)], tensor(X * (1 + eps)))} for eps in (0.1, 1e-5)]
    assert with_other_names(tmp_path / "other", *runs).cause == "eps is 0.1 and in the golden run 1e-05"
    divergence = compared(tmp_path / "same", *runs)
    assert divergence is not None and divergence.first.cause == "eps is 0.1 and in the golden run 1e-05"


def test_a_call_that_computes_is_no_other_order(tmp_path: Path) -> None:
    data = run()
    data["Tensor.__add__.0.forward"] = call([tensor(np.tanh(X))], tensor(np.tanh(X)))
    data[LINEAR] = {**data.pop(LINEAR), "output": [tensor(X @ W * 2)]}
    divergence = compared(tmp_path, data, run())
    assert divergence is not None and divergence.record == LINEAR


def test_a_permuted_parameter_is_told_by_the_rounding_of_its_mean(tmp_path: Path) -> None:
    linear = "Module.linear.Linear.forward.0"
    weights = tensor(W), {**tensor(W), "Mean": float(W.mean()) * (1 + 1e-6)}
    runs = [{linear: call([tensor(X)], tensor(y), weight=w)} for w, y in zip(weights, (X @ W, X @ W[:, ::-1] * 1.1))]
    divergence = compared(tmp_path, *runs)
    assert divergence is not None
    assert divergence.first.cause.startswith("parameter linear.weight may have its elements in another order")


# --- gradients


def detached(is_detached: bool) -> Run:
    grad = {"requires_grad": not is_detached}
    x, size = np.tanh(X), np.float32(1.0 if is_detached else 2.0)
    data: Run = {
        TANH: call([tensor(X, requires_grad=True)], tensor(x, requires_grad=True)),
        LINEAR: call([tensor(x, **grad), tensor(W)], tensor(x @ W, requires_grad=True)),
        "Functional.linear.0.backward": backward([tensor(X)], tensor(W)),
    }
    if not is_detached:
        data["Torch.tanh.0.backward"] = backward([tensor(X)], tensor(X))
    data["Torch.exp.0.backward"] = backward([tensor(X * size)], tensor(W * size))
    return data


@pytest.mark.parametrize("on_target", [True, False])
def test_a_tensor_that_one_side_detaches_is_the_cause_of_other_gradients(tmp_path: Path, on_target: bool) -> None:
    divergence = compared(tmp_path, detached(on_target), detached(not on_target))
    sides = ("golden run", "target") if on_target else ("target", "golden run")
    assert divergence is not None
    text = f"in {LINEAR}, input.0 takes a gradient in the {sides[0]} only: the {sides[1]} detaches it"
    assert divergence.first.cause.startswith(text)


def tied(is_tied: bool) -> Run:
    names = "Module.wte.Embedding", "Module.head.Linear"
    data: Run = {f"{each}.forward.0": call([tensor(X)], tensor(X), weight=tensor(W)) for each in names}
    sizes = (3, 3) if is_tied else (2, 1)
    for each, size in zip(names[::-1], sizes):
        data[f"{each}.parameters_grad.0"] = {"weight": [tensor(W * np.float32(size))]}
    return data


def test_weights_that_are_tied_on_one_side_are_told(tmp_path: Path) -> None:
    divergence = compared(tmp_path, tied(False), tied(True))
    assert divergence is not None and divergence.record == "Module.head.Linear.parameters_grad.0"
    tells = "head.weight and wte.weight are one parameter in the golden run (tied weights) and two in the target"
    assert divergence.first.cause == tells


def scaled(factor: float, other: float) -> Run:
    head, low = "Module.head.Linear", "Module.low.Linear"
    data: Run = {f"{each}.forward.0": call([tensor(X)], tensor(X), weight=tensor(W)) for each in (low, head)}
    gradient = (X + np.float32(0.3)) * np.float32(factor)
    data[f"{head}.backward.0"] = backward([tensor(gradient)], tensor(gradient))
    for each, size in ((head, factor), (low, other)):
        data[f"{each}.parameters_grad.0"] = {"weight": [tensor(W * np.float32(size))]}
    return data


@pytest.mark.parametrize("factor, tells", [
    (16.0, "probably the target sums the loss over 16 terms, and the golden run takes the mean"),
    (1 / 1024, "probably the golden run sums the loss over 1024 terms, and the target takes the mean"),
    (0.3, "the loss is scaled, or summed instead of averaged, or gradients are clipped"),
])  # fmt: skip
def test_one_factor_over_all_gradients_is_told(tmp_path: Path, factor: float, tells: str) -> None:
    divergence = compared(tmp_path, scaled(factor, factor), scaled(1, 1))
    assert divergence is not None and divergence.first.cause.startswith("all gradients of parameters are ")
    assert divergence.first.cause.endswith(f" times those of the golden run: {tells}")


def test_gradients_with_several_factors_are_not_scaled(tmp_path: Path) -> None:
    divergence = compared(tmp_path, scaled(16, 8), scaled(1, 1))
    assert divergence is not None and not divergence.first.cause


# --- optimizers


def optimized(**settings: float) -> tuple[Run, dict[str, str | None]]:
    """One step of Adam with decoupled weight decay, of one parameter."""
    chosen = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.1, **settings}
    weight, gradient, layer = WEIGHTS[0], GRADIENTS[0], name(0)
    data: Run = {f"{layer}.forward.0": call([tensor(X)], tensor(X), weight=tensor(weight))}
    data[f"{layer}.parameters_grad.0"] = {"weight": [tensor(gradient)]}
    modules = list(data)

    def add(base: str, inputs: list[Any], output: Any, **kwargs: float) -> None:
        number = sum(record.startswith(f"Tensor.{base}.") for record in data)
        entries = [tensor(each) if isinstance(each, np.ndarray) else plain(each) for each in inputs]
        record = call(entries, tensor(output))
        record["input_kwargs"] = {key: plain(value) for key, value in kwargs.items()}
        data[f"Tensor.{base}.{number}.forward"] = record

    decayed = weight * np.float32(1 - chosen["lr"] * chosen["decay"])
    add("mul_", [weight, 1 - chosen["lr"] * chosen["decay"]], decayed)
    state = np.tanh(gradient)
    mean = state + np.float32(1 - chosen["beta1"]) * (gradient - state)
    add("lerp_", [state, gradient, 1 - chosen["beta1"]], mean)
    square = np.square(state)
    kept = square * np.float32(chosen["beta2"])
    add("mul_", [square, chosen["beta2"]], kept)
    added = kept + np.float32(1 - chosen["beta2"]) * np.square(gradient)
    add("addcmul_", [kept, gradient, gradient], added, value=1 - chosen["beta2"])
    root = np.sqrt(added)
    below = root + np.float32(chosen["eps"])
    add("add_", [root, chosen["eps"]], below)
    updated = decayed - np.float32(chosen["lr"]) * mean / below
    add("addcdiv_", [decayed, mean, below], updated, value=-chosen["lr"])
    return data, {record: "optimizer" for record in data if record not in modules}


@pytest.mark.parametrize("setting, value, tells", [
    ("lr", 0.02, "weight decay times lr is 0.002 and in the golden run 0.001, for parameter layers.0.weight; "
                 "lr over the bias correction is 0.02 and in the golden run 0.01"),
    ("beta1", 0.8, "beta1 is 0.8 and in the golden run 0.9, for parameter layers.0.weight"),
    ("beta2", 0.95, "beta2 is 0.95 and in the golden run 0.999, for parameter layers.0.weight"),
    ("eps", 0.1, "eps is 0.1 and in the golden run 1e-08, for parameter layers.0.weight"),
    ("decay", 1.0, "weight decay times lr is 0.01 and in the golden run 0.001, for parameter layers.0.weight"),
])  # fmt: skip
def test_a_setting_of_an_optimizer_has_its_name(tmp_path: Path, setting: str, value: float, tells: str) -> None:
    (target, tree), (golden, golden_tree) = optimized(**{setting: value}), optimized()
    assert first(result_of(tmp_path, target, golden, tree, golden_tree)).cause == tells


def test_the_weight_decay_of_a_new_norm_is_no_momentum(tmp_path: Path) -> None:
    def decayed(lr: float) -> tuple[Run, dict[str, str | None]]:
        data, tree = optimized(lr=lr)
        ones, kept = np.ones(5, np.float32), 1 - lr * 0.1
        data["Tensor.mul_.2.forward"] = call([tensor(ones), plain(kept)], tensor(ones * np.float32(kept)))
        return data, {**tree, "Tensor.mul_.2.forward": "optimizer"}

    (target, tree), (golden, golden_tree) = decayed(0.02), decayed(0.01)
    cause = first(result_of(tmp_path, target, golden, tree, golden_tree)).cause
    assert "lr over the bias correction is 0.02" in cause and "momentum" not in cause


def test_a_new_norm_shows_no_dampening(tmp_path: Path) -> None:
    def stepped(lr: float) -> tuple[Run, dict[str, str | None]]:
        ones, gradient, layer = np.ones_like(WEIGHTS[0]), GRADIENTS[0], name(0)
        data: Run = {f"{layer}.forward.0": call([tensor(X)], tensor(X), weight=tensor(WEIGHTS[0]), bias=tensor(ones))}
        data[f"{layer}.parameters_grad.0"] = {"weight": [tensor(gradient)]}
        modules = list(data)
        for number, each in enumerate((WEIGHTS[0], ones)):
            record = call([tensor(each), tensor(gradient)], tensor(each - np.float32(lr) * gradient))
            data[f"Tensor.add_.{number}.forward"] = {**record, "input_kwargs": {"alpha": plain(-lr)}}
        return data, {record: "optimizer" for record in data if record not in modules}

    (target, tree), (golden, golden_tree) = stepped(0.2), stepped(0.1)
    cause = first(result_of(tmp_path, target, golden, tree, golden_tree)).cause
    assert cause == "lr is 0.2 and in the golden run 0.1, for parameter layers.0.weight"


# --- arguments


@pytest.mark.parametrize("record, item, tells", [
    ("Functional.layer_norm.3.forward", "input.4", "eps"),
    ("Torch.softmax.0.forward", "input.1", "dim"),
    ("Tensor.add_.0.forward", "input.alpha", "alpha"),
    ("Tensor.clamp_.0.forward", "input.2", "max"),
    ("Functional.own.0.forward", "input.4", "input.4"),
    ("Functional.layer_norm.3.forward", "input.4.0", "input.4.0"),
    ("Functional.layer_norm.3.forward", "output.0", "output.0"),
])  # fmt: skip
def test_an_argument_has_the_name_of_the_signature(record: str, item: str, tells: str) -> None:
    assert argument_name(record, item) == tells
