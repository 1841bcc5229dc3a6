"""Two programs of which one gives a layer another tensor, which the other program has in another place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from divergence_runs import Run, X, call, first, result_of, tensor

LAYERS = 4
_RANDOM = np.random.default_rng(3)
WEIGHTS = [(_RANDOM.normal(size=(64, 64)) / 8).astype(np.float32) for _ in range(LAYERS)]
SCALES = [(1 + 0.2 * _RANDOM.normal(size=64)).astype(np.float32) for _ in range(LAYERS)]
NAMES = {
    "target": ("blocks.{}.norm.LayerNorm", "blocks.{}.fc.Linear"),
    "golden": ("layers.{}.ln.LayerNorm", "layers.{}.proj.Linear"),
}


def program(side: str, without_sum: int = -1, scaled: int = -1) -> tuple[Run, dict[str, str | None]]:
    """Layers that add a projection of their norm to what they take, one of them without the sum, or with another scale.

    Both programs make the sums by functions.
    """
    norm_name, linear_name = NAMES[side]
    data: Run = {}
    x = X.astype(np.float64)
    for layer in range(LAYERS):
        normed = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) * SCALES[layer]
        norm = f"Module.{norm_name.format(layer)}.forward.0"
        data[norm] = call([tensor(x)], tensor(normed), weight=tensor(SCALES[layer]))
        branch = normed @ WEIGHTS[layer] * (1.5 if layer == scaled else 1.0)
        linear = f"Module.{linear_name.format(layer)}.forward.0"
        data[linear] = call([tensor(normed)], tensor(branch), weight=tensor(WEIGHTS[layer]))
        if layer != without_sum:
            data[f"Tensor.__add__.{len(data)}.forward"] = call([tensor(x), tensor(branch)], tensor(x + branch))
        x = branch if layer == without_sum else x + branch
    return data, dict.fromkeys(data)


def test_a_sum_that_one_program_lacks_is_named_by_what_the_next_layer_takes(tmp_path: Path) -> None:
    (target, tree), (golden, golden_tree) = program("target", without_sum=1), program("golden")
    found = first(result_of(tmp_path, target, golden, tree, golden_tree))
    assert found.record == "Module.blocks.2.norm.LayerNorm.forward.0"
    assert found.item.endswith("input.0")
    assert "Tensor.__add__.5.forward" in found.cause


def test_programs_that_do_the_same_are_silent(tmp_path: Path) -> None:
    (target, tree), (golden, golden_tree) = program("target"), program("golden")
    assert result_of(tmp_path, target, golden, tree, golden_tree).divergence is None


def test_a_layer_that_computes_another_thing_is_named_itself(tmp_path: Path) -> None:
    (target, tree), (golden, golden_tree) = program("target", scaled=1), program("golden")
    assert first(result_of(tmp_path, target, golden, tree, golden_tree)).record == "Module.blocks.1.fc.Linear.forward.0"
