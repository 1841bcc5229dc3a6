"""Two programs that are not the same program: what is computed in another place, and whose code is to blame."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from divergence_runs import Run, W, X, backward, call, compared, named, tensor

EMBED, NORM = "Module.embed.Embedding.forward.0", "Module.norm.LayerNorm.forward.0"
HEAD = "Module.head.Linear.forward.0"


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


def test_it_is_one_where_what_is_computed_from_it_differs(tmp_path: Path) -> None:
    target, golden = scaled_in("inside", 8.0), scaled_in("behind", 16.0)
    assert named(compared(tmp_path, target, golden, level="L0")) == EMBED
