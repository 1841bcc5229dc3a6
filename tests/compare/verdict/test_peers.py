"""A call in bfloat16 is compared with its like; what one layer does otherwise is named behind many layers too."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import call, compared, named, result_of, tensor
from made_dumps import plain
from numpy.typing import NDArray

Run = dict[str, Any]
BFLOAT16, FLOAT32 = "torch.bfloat16", "torch.float32"
WIDTH, ROWS, LAYERS = 64, 32, 12


def short(array: NDArray[Any]) -> NDArray[np.float32]:
    """The values that bfloat16 has."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def layers(is_short: bool, fault_at: int = -1, number: int = LAYERS, seed: int = 0, scale: float = 1.0) -> Run:
    """A residual network: hidden + tanh(hidden @ weight); the layer at fault has a transposed weight.

    Args:
        scale: a factor of the product in all layers.
    """
    draw = np.random.default_rng(seed)
    dtype, kept = (BFLOAT16, short) if is_short else (FLOAT32, np.asarray)
    hidden = kept(draw.normal(size=(ROWS, WIDTH)).astype(np.float32))
    found: Run = {}
    for layer in range(number):
        weight = kept((draw.normal(size=(WIDTH, WIDTH)) * 1.2 / math.sqrt(WIDTH)).astype(np.float32))
        used = weight.T if layer == fault_at else weight
        product = kept(hidden @ used * np.float32(scale))
        found[f"Functional.linear.{layer}.forward"] = call(
            [tensor(hidden, dtype), tensor(weight, dtype)], tensor(product, dtype)
        )
        branch = kept(np.tanh(product))
        found[f"Torch.tanh.{layer}.forward"] = call([tensor(product, dtype)], tensor(branch, dtype))
        summed = kept(hidden + branch)
        found[f"Tensor.__add__.{layer}.forward"] = call(
            [tensor(hidden, dtype), tensor(branch, dtype)], tensor(summed, dtype)
        )
        hidden = summed
    return found


@pytest.mark.parametrize("fault_at", [3, 6, 10])
def test_a_fault_in_a_deep_layer_is_named_in_two_precisions(tmp_path: Path, fault_at: int) -> None:
    found = compared(tmp_path, layers(True, fault_at), layers(False))
    assert named(found) == f"Functional.linear.{fault_at}.forward"


@pytest.mark.parametrize("seed", range(5))
def test_a_right_run_in_another_precision_is_silent(tmp_path: Path, seed: int) -> None:
    assert compared(tmp_path / "1", layers(True, seed=seed), layers(False, seed=seed)) is None
    assert compared(tmp_path / "2", layers(False, seed=seed), layers(True, seed=seed)) is None


def test_a_fault_that_all_layers_share_is_named_in_the_first(tmp_path: Path) -> None:
    found = compared(tmp_path, layers(True, scale=1.5), layers(False))
    assert named(found) == "Functional.linear.0.forward"


# --- errors in one direction


def decayed(is_short: bool, factor: float = 0.999) -> Run:
    """What an optimizer keeps of each layer, times 0.999, which bfloat16 rounds to what it was."""
    dtype, kept = (BFLOAT16, short) if is_short else (FLOAT32, np.asarray)
    draw = np.random.default_rng(3)
    found: Run = {}
    for layer in range(LAYERS):
        state = kept(np.square(draw.normal(1, 0.3, size=(ROWS, WIDTH))).astype(np.float32))
        product = kept(state * np.float32(factor))
        found[f"Tensor.mul_.{layer}.forward"] = call([tensor(state, dtype), plain(0.999)], tensor(product, dtype))
    return found


def test_a_rounding_that_moves_all_elements_in_one_direction_is_no_error(tmp_path: Path) -> None:
    result = result_of(tmp_path, decayed(True), decayed(False))
    assert np.array_equal(short(np.float32(0.999) * np.float32([1.0, 1.5])), np.float32([1.0, 1.5]))
    assert result.divergence is None and result.undecided == []


def test_a_product_with_another_number_is_no_rounding(tmp_path: Path) -> None:
    assert named(compared(tmp_path, decayed(True, 0.9), decayed(False))) == "Tensor.mul_.0.forward"


@pytest.mark.parametrize(("name", "gates"), [("rnn_tanh", 1), ("lstm", 4)])
def test_a_recurrent_layer_of_many_steps_has_a_bound(tmp_path: Path, name: str, gates: int) -> None:
    """Weights that enlarge what they are given, more than a thousand times."""
    draw, width = np.random.default_rng(4), 8
    weight = (3 * draw.normal(size=(gates * width, width)) / math.sqrt(width)).astype(np.float32)
    steps = np.tanh(draw.normal(size=(1, 2048, width))).astype(np.float32)
    runs = []
    for dtype, kept in ((BFLOAT16, short), (FLOAT32, np.asarray)):
        inputs = [tensor(kept(each), dtype) for each in (steps, weight, weight)]
        runs.append({f"Torch.{name}.0.forward": call(inputs, tensor(kept(steps), dtype))})
    assert compared(tmp_path, *runs) is None


@pytest.mark.parametrize(("came_back", "is_explained"), [(0.008, True), (0.002, False)])
def test_a_gradient_is_carried_on_as_it_comes_back_whatever_few_peers_show(
    tmp_path: Path, came_back: float, is_explained: bool
) -> None:
    """The peers show no error of their inputs, so that the fit to them carries nothing on."""
    sides: list[Run] = [{}, {}]
    for layer in range(6):
        draw = np.random.default_rng(layer)
        given, returned = (draw.normal(size=(ROWS, WIDTH)).astype(np.float32) for _ in range(2))
        noise = [draw.normal(size=(ROWS, WIDTH)).astype(np.float32) for _ in range(2)]
        is_last = layer == 5
        errors = [came_back, 0.05] if is_last else [0.002, 0.002]
        for side, dtype in zip(sides, (BFLOAT16, FLOAT32)):
            values = [given, returned]
            if side is sides[0]:
                values = [short(each * (1 + error * random)) for each, error, random in zip(values, errors, noise)]
            side[f"Functional.linear.{layer}.backward"] = {
                "input": [tensor(values[0], dtype)],
                "output": [tensor(values[1], dtype)],
            }
    found = compared(tmp_path, *sides)
    assert (found is None) is is_explained, found
