"""What an optimizer did otherwise between two steps, told by the parameters before and after it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from divergence_runs import GRADIENTS, RATE, WEIGHTS, Array, Update, X, call, first, name, sgd, tensor, write

from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps
from probe.compare.result import ComparisonResult


def twice_the_rate(weight: Array, gradient: Array, _layer: int) -> Array:
    return weight - np.float32(2 * RATE) * gradient


def with_weight_decay(weight: Array, gradient: Array, _layer: int) -> Array:
    return weight - np.float32(RATE) * (gradient + np.float32(0.1) * weight)


def third_layer_frozen(weight: Array, gradient: Array, layer: int) -> Array:
    return weight if layer == 2 else sgd(weight, gradient)


def adam(weight: Array, gradient: Array, _layer: int) -> Array:
    return weight - np.float32(RATE) * np.sign(gradient)


def step(folder: Path, weights: list[Array], gradients: list[Array]) -> Path:
    """One step: the layers with their weights, and the gradients of these."""
    data = {
        f"{name(layer)}.forward.0": call([tensor(X)], tensor(X), weight=tensor(weight))
        for layer, weight in enumerate(weights)
    }
    for layer, gradient in enumerate(gradients):
        data[f"{name(layer)}.parameters_grad.0"] = {"weight": [tensor(gradient)]}
    return write(folder, data, level="L0")


def second_step(
    root: Path, target: Update, golden: Update = sgd, gradients: list[Array] | None = None
) -> ComparisonResult:
    """The second step of two runs that began alike; `gradients` are those of the target in the first one."""
    paths = []
    for side, update, used in (("target", target, gradients or GRADIENTS), ("golden", golden, GRADIENTS)):
        before = step(root / side / "step0", WEIGHTS, used)
        weights = [update(weight, used[layer], layer) for layer, weight in enumerate(WEIGHTS)]
        paths.append((before, step(root / side / "step1", weights, GRADIENTS)))
    (target_before, target_path), (golden_before, golden_path) = paths
    before_paths = str(target_before), str(golden_before)
    return compare_dumps(read(target_path), read(golden_path), before=before_paths)


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (twice_the_rate, "are 2 times those of the golden run: another learning rate"),
        (with_weight_decay, "take 1e-05 of the parameter more away: another weight decay"),
    ],
)
def test_another_update_is_told_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: Update, expected: str
) -> None:
    assert second_step(tmp_path / "same", sgd).divergence is None
    # A module may be called so.
    monkeypatch.setitem(globals(), "name", lambda layer: f"Module.parameters.{layer}.Linear")
    cause = first(second_step(tmp_path / "other", update)).cause
    assert cause.startswith(f"the optimizer step before this step diverges: updates {expected}")


@pytest.mark.parametrize("side", ["target", "golden run"])
def test_a_frozen_parameter_is_named_with_the_side_that_left_it(tmp_path: Path, side: str) -> None:
    updates = (third_layer_frozen, sgd) if side == "target" else (sgd, third_layer_frozen)
    found = first(second_step(tmp_path, *updates))
    assert found.record == f"{name(2)}.forward.0"
    assert found.cause == f"the optimizer step before this step diverges: layers.2.weight stays as it was in the {side}"


def test_a_gradient_that_is_nothing_but_rounding_may_move_its_parameter_by_a_whole_update(tmp_path: Path) -> None:
    """Adam makes an update of one size of every gradient, however small."""
    noise = [GRADIENTS[0] * np.float32(1e-9), *GRADIENTS[1:]]
    golden = [noise[0][::-1] * np.float32(-1.0), *GRADIENTS[1:]]
    paths = []
    for side, used in (("target", noise), ("golden", golden)):
        before = step(tmp_path / side / "step0", WEIGHTS, used)
        weights = [adam(weight, gradient, 0) for weight, gradient in zip(WEIGHTS, used)]
        paths.append((str(before), read(step(tmp_path / side / "step1", weights, GRADIENTS))))
    (target_before, target), (golden_before, golden_dump) = paths
    result = compare_dumps(target, golden_dump, before=(target_before, golden_before))
    assert result.divergence is None
    alone = compare_dumps(target, golden_dump).divergence
    assert alone is not None and alone.record == f"{name(0)}.forward.0"
