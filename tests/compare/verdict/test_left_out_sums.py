"""A residual that one of two programs leaves out, and calls that are no cause because both programs make them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from divergence_runs import Run, X, call, first, result_of, tensor

LAYERS, AT = 4, 2
_RANDOM = np.random.default_rng(4)
WEIGHTS = [(_RANDOM.normal(size=(64, 64)) / 8).astype(np.float32) for _ in range(LAYERS)]
SCALES = [_RANDOM.normal(1, 0.2, size=64).astype(np.float32) for _ in range(LAYERS)]
Names = tuple[str, str, str]
GOLDEN: Names = ("model.layers", "dense", "norm")
TARGET: Names = ("net.blocks", "lin", "ln")


def program(names: Names, left_out: int = -1, share: float = 1.0, factor: float = 1.0) -> Run:
    """Layers of a product, a sum with what went in, and a norm; one layer may leave the sum out.

    Args:
        names: those of layers.
        left_out: the layer without a sum.
        share: the size of products.
        factor: what the norm of layer `AT` returns is this times what it should be.
    """
    block, dense, norm = names
    data: Run = {f"Module.{block.partition('.')[0]}.embed.Embedding.forward.0": call([tensor(np.abs(X))], tensor(X))}
    x, sums = X, 0
    for layer, (weight, scale) in enumerate(zip(WEIGHTS, SCALES)):
        made = (x @ weight * share).astype(np.float32)
        data[f"Module.{block}.{layer}.{dense}.Linear.forward.0"] = call(
            [tensor(x)], tensor(made), weight=tensor(weight)
        )
        total = made
        if layer != left_out:
            total = x + made
            data[f"Tensor.__add__.{sums}.forward"] = call([tensor(x), tensor(made)], tensor(total))
            sums += 1
        x = total / np.sqrt(np.square(total).mean(-1, keepdims=True)) * scale * (factor if layer == AT else 1.0)
        data[f"Module.{block}.{layer}.{norm}.LayerNorm.forward.0"] = call(
            [tensor(total)], tensor(x), weight=tensor(scale)
        )
    return data


def test_two_right_programs_are_silent(tmp_path: Path) -> None:
    result = result_of(tmp_path, program(TARGET), program(GOLDEN))
    assert result.divergence is None and not result.undecided


@pytest.mark.parametrize("is_target", [True, False])
def test_a_residual_that_is_left_out_is_told_at_the_norm_behind(tmp_path: Path, is_target: bool) -> None:
    sides = program(TARGET, AT if is_target else -1), program(GOLDEN, -1 if is_target else AT)
    found = first(result_of(tmp_path, *sides))
    assert found.record == f"Module.net.blocks.{AT}.ln.LayerNorm.forward.0"
    assert found.reason.startswith("input.0 differs by ") and " of its size already" in found.reason
    assert found.cause == f"only the {'golden run' if is_target else 'target'} calls Tensor.__add__.2.forward"


def test_what_is_not_finite_is_told_of_what_the_norm_returns(tmp_path: Path) -> None:
    found = first(result_of(tmp_path, program(TARGET, AT, factor=float("nan")), program(GOLDEN)))
    assert found.record == f"Module.net.blocks.{AT}.ln.LayerNorm.forward.0"
    assert found.item.endswith("output.0") and "nan" in found.reason.lower()


# --- causes
