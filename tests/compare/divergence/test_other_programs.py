"""Two programs that are not the same program: what is computed in another place, and whose code is to blame."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from divergence_runs import Run, W, X, backward, call, compared, named, result_of, tensor

EMBED, NORM = "Module.embed.Embedding.forward.0", "Module.norm.LayerNorm.forward.0"
HEAD = "Module.head.Linear.forward.0"
SCALED = "Tensor.__mul__.0.forward"


def scaled_in(place: str, factor: float = 8.0) -> Run:
    """An embedding that is scaled inside of its module or right behind it, and two layers on it."""
    inside = factor if place == "inside" else 1.0
    x = X * factor
    normed = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) + x[0, 0]
    return {
        EMBED: call([tensor(np.abs(X))], tensor(X * inside)),
        NORM: call([tensor(x)], tensor(normed)),
        HEAD: call([tensor(normed)], tensor(normed @ W)),
        EMBED.replace("forward", "backward"): backward([tensor(W * 8.0 / inside)], None),
    }


@pytest.mark.parametrize("sides", [("inside", "behind"), ("behind", "inside")])
def test_what_one_side_computes_in_the_next_place_is_no_divergence(tmp_path: Path, sides: tuple[str, str]) -> None:
    result = result_of(tmp_path, scaled_in(sides[0]), scaled_in(sides[1]), level="L0")
    assert result.divergence is None and result.without_effect


def test_it_is_one_where_what_is_computed_from_it_differs(tmp_path: Path) -> None:
    target, golden = scaled_in("inside", 8.0), scaled_in("behind", 16.0)
    assert named(compared(tmp_path, target, golden, level="L0")) == EMBED


def test_at_l0_the_module_is_named_whose_own_code_made_what_differs(tmp_path: Path) -> None:
    """A block norms by functions and calls the attention, which calls its projection."""
    names = "h.Block", "h.attn.Attention", "h.attn.o.Linear"
    block, attention, projection = (f"Module.{name}.forward.0" for name in names)
    tree = {projection: attention, attention: block, block: None}

    def run(epsilon: float) -> Run:
        x = X / np.sqrt(np.square(X).mean(-1, keepdims=True) + epsilon)
        return {
            projection: call([tensor(x * 2)], tensor(x @ W)),
            attention: call([tensor(x)], tensor(x @ W)),
            block: call([tensor(X)], tensor(X + x @ W)),
        }

    assert named(compared(tmp_path, run(0.1), run(1e-6), tree, level="L0")) == block
