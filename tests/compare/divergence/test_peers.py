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

from probe.common.align.row import Row
from probe.common.dump.reading.records import Item
from probe.common.numerics.formats import unit_roundoff
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.peers.fits import Member, fits
from probe.compare.divergence.peers.groups import Peers
from probe.compare.divergence.peers.leaving import FEWEST
from probe.compare.divergence.peers.one_rounding import is_one_rounding
from probe.compare.divergence.peers.positions import without_numbers
from probe.compare.divergence.peers.random_error import random_error
from probe.compare.divergence.precision import Precision
from probe.compare.divergence.propagated_error import PropagatedError
from probe.compare.result import Mode

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


@pytest.mark.parametrize("elements", [512, 4096])
def test_statistics_give_the_error_of_elements_within_a_factor_of_three(elements: int) -> None:
    draw, e = np.random.default_rng(1), 6e-3
    ratios = []
    for _ in range(50):
        golden = draw.normal(size=elements)
        target = golden + e * draw.normal(size=elements)
        found = random_error(item(target), item(golden))
        assert found is not None
        ratios.append(found / e)
    assert 1 / 3 < np.median(ratios) < 3
    assert np.quantile(ratios, 0.95) < 3


def test_statistics_of_masks_and_of_values_that_are_not_finite_give_no_error() -> None:
    golden = np.ones(8)
    assert random_error(item(golden * -1e9), item(golden * -1e9)) is None
    assert random_error(item(golden * math.nan), item(golden)) is None


def test_statistics_that_are_rounded_themselves_hide_no_more_than_that() -> None:
    golden = np.random.default_rng(2).normal(size=4096)
    target = short(golden.astype(np.float32))
    rounded = item(target, BFLOAT16)
    rounded.norm = float(short(np.float32([rounded.norm]))[0])
    rounded.mean = float(short(np.float32([rounded.mean]))[0])
    found = random_error(rounded, item(golden))
    assert found is not None
    assert found < 2**-7


def test_a_normalisation_of_another_input_does_not_agree_in_a_short_type() -> None:
    draw = np.random.default_rng(3)
    normed = [draw.normal(size=(64, 64)) for _ in range(2)]
    one, other = (item(short((each - each.mean()) / each.std()), BFLOAT16) for each in normed)
    row = Row("Functional.batch_norm.0.forward", one, other, "Functional.batch_norm.0.forward")
    error = PropagatedError(Mode.STATISTICS, {}, Precision([]))
    assert error.of_elements(row) > error.difference(row) > 0.0


def test_a_member_that_leaves_its_peers_does_not_move_their_fit() -> None:
    members = [member(inputs, 1.5 * inputs) for inputs in (1e-3, 2e-3, 4e-3, 5e-3, 8e-3, 9e-3, 1e-2)]
    faulty = [*members[:4], member(8e-3, 1.0), *members[5:]]
    for fit in fits(faulty):
        assert fit.expected(member(8e-3, 0.0)) == pytest.approx(1.2e-2, rel=0.5)


def test_errors_that_grow_with_what_cancels_are_usual() -> None:
    conditions = (1.0, 2.0, 5.0, 20.0, 60.0, 200.0, 500.0)
    gradients = [member(2e-2, 1e-3 * each + 1e-2)._replace(condition=each) for each in conditions]
    assert max(fit.expected(gradients[-1]) for fit in fits(gradients)) > 0.1
    assert max(fit.expected(gradients[0]) for fit in fits(gradients)) < 0.1


def test_layers_of_one_kind_have_one_place() -> None:
    assert without_numbers("Module.h.11.mlp.experts.3") == "Module.h.#.mlp.experts.#"
    assert FEWEST == 5


def item(array: NDArray[Any], dtype: str = FLOAT32) -> Item:
    """The statistics of an array, as a dump has them."""
    norm = float(np.sqrt(np.square(array).sum()))
    found = Item("x", "output", dtype=dtype, shape=array.shape)
    found.max, found.min, found.mean, found.norm = (
        float(array.max()), float(array.min()), float(array.mean()), norm
    )  # fmt: skip
    return found


def member(inputs: float, error: float) -> Member:
    """A peer of which only errors are asked."""
    return Member(None, None, error, inputs, 1e-4, 1.0)  # type: ignore[arg-type]


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


def modules(is_short: bool, of_product: float = 0.0, of_layer: float = 0.0) -> tuple[Run, dict[str, str | None]]:
    """Layers whose results are recorded, of which layer 9 adds errors of these relative sizes to what it computes."""
    draw, dtype = np.random.default_rng(5), BFLOAT16 if is_short else FLOAT32
    calls, tree, found = layers(is_short), {}, Run()
    for layer in range(LAYERS):
        linear, module = f"Functional.linear.{layer}.forward", f"Module.layers.{layer}.Layer.forward.0"
        tree.update({linear: module, module: None})
        hidden, weight = (values_of[layer] for values_of in _values(is_short))
        product = hidden @ weight
        for name, error in ((linear, of_product), (module, of_layer)):
            noise = draw.normal(size=product.shape) * (error if layer == 9 else 0.0) + 1.0
            result = (short if is_short else np.asarray)((product * noise).astype(np.float32))
            given = calls[linear]["input_args"] if name == linear else [calls[linear]["input_args"][0]]
            found[name] = call(given, tensor(result, dtype))
    return found, tree


def _values(is_short: bool) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    """What goes into the products of `layers`, and their weights."""
    kept = short if is_short else np.asarray
    draw = np.random.default_rng(0)
    hidden = [kept(draw.normal(size=(ROWS, WIDTH)).astype(np.float32))]
    weights = []
    for _ in range(LAYERS):
        weights.append(kept((draw.normal(size=(WIDTH, WIDTH)) * 1.2 / math.sqrt(WIDTH)).astype(np.float32)))
        hidden.append(kept(hidden[-1] + kept(np.tanh(kept(hidden[-1] @ weights[-1])))))
    return hidden, weights


def test_a_module_that_leaves_its_like_is_named_at_the_call_inside_that_nearly_does(tmp_path: Path) -> None:
    """Chance explains the error of the product in layer 9 alone, and not together with that of the layer around it."""
    golden, tree = modules(False)
    clean = result_of(tmp_path / "clean", modules(True)[0], golden, tree)
    assert clean.divergence is None and clean.undecided == []
    alone = result_of(tmp_path / "alone", modules(True, 0.045)[0], golden, tree)
    assert alone.divergence is None and [each.record for each in alone.undecided] == ["Functional.linear.9.forward"]
    both = compared(tmp_path / "both", modules(True, 0.045, 0.4)[0], golden, tree)
    assert named(both) == "Functional.linear.9.forward"


def test_nothing_is_measured_where_both_runs_compute_in_float32() -> None:
    peers = Peers([], Mode.STATISTICS, {}, unit_roundoff("float32"))
    assert (peers.leaving, peers.nearly_leaving) == ({}, {})
    assert "members" not in vars(peers)


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


def test_each_member_of_a_large_group_is_asked_few_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Twenty thousand calls of one kind must not take the square of that."""
    asked = 0

    def counted(self: Member) -> float:
        nonlocal asked
        asked += 1
        return math.hypot(self.condition * self.inputs, self.own * math.sqrt(1.0 + self.calls))

    monkeypatch.setattr(Member, "walk", property(counted))
    result_of(tmp_path, layers(True, number=100), layers(False, number=100))
    assert 0 < asked < 20 * 300


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


@pytest.mark.parametrize(("exponent", "is_explained"), [(2, True), (1, False)])
def test_a_power_has_the_errors_of_its_base_times_the_exponent(exponent: int, is_explained: bool) -> None:
    base = np.random.default_rng(8).normal(size=(ROWS, WIDTH)).astype(np.float32)
    sides = [(item(each), item(each**2)) for each in (base * np.float32(1.006), base)]
    for given, _ in sides:
        given.state = "input"
    power = Item("x", "input", dtype="<class 'int'>", shape=(), value=exponent)
    record = "Tensor.pow.0.forward"
    rows = [Row(record, *each, record) for each in (*zip(*sides), (power, power))]
    assert is_one_rounding(AlignedCall(record, record, rows), rows[1]) is is_explained
