"""Layers that compute on parts of what they are given, with parameters that no recorded call takes whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from divergence_runs import Run, W, X, call, compared, named, tensor

EXPERTS, ACTIVATION = "Module.experts.Experts.forward.0", "Module.experts.act.SiLU.forward.0"
Tree = dict[str, "str | None"]


def run(rows: int, weights: Any = W, wrong: float = 1.0, batch: int = 16) -> tuple[Run, Tree]:
    """A layer of experts that works on so many rows at a time, with its own code around a recorded activation."""
    x = X[:batch]
    given = x @ weights
    data: Run = {}
    tree: Tree = {EXPERTS: None}
    parts = []
    for number, start in enumerate(range(0, batch, rows)):
        part = given[start : start + rows]
        parts.append(np.tanh(part) * np.float32(wrong))
        for name in (f"Functional.silu.{number}.forward", f"Module.experts.act.SiLU.forward.{number}"):
            data[name] = call([tensor(part)], tensor(parts[-1]))
            tree[name] = EXPERTS if name.startswith("Module") else f"Module.experts.act.SiLU.forward.{number}"
    data[EXPERTS] = call([tensor(x)], tensor(np.concatenate(parts)), up_proj=tensor(weights))
    return data, tree


def divergence(folder: Path, target: tuple[Run, Tree], golden: tuple[Run, Tree]) -> Any:
    return compared(folder, target[0], golden[0], target[1], golden[1])


def test_parts_that_are_put_together_to_the_same_are_no_divergence(tmp_path: Path) -> None:
    assert divergence(tmp_path / "parts", run(4), run(16)) is None
    assert divergence(tmp_path / "whole", run(16), run(4)) is None


def test_a_fault_is_found_through_other_parts(tmp_path: Path) -> None:
    found = divergence(tmp_path, run(4, wrong=1.1), run(16))
    assert named(found).startswith(("Functional.silu", "Module.experts")) and "batch" not in found.first.cause


def test_a_parameter_that_differs_is_named_whichever_call_uses_it(tmp_path: Path) -> None:
    weights = W.copy()
    weights[:8] += np.float32(0.05)
    found = divergence(tmp_path, run(16, weights), run(16))
    assert named(found) == EXPERTS
    assert found.first.reason.startswith("parameter experts.up_proj differs by ")
    assert EXPERTS not in [each.record for each in found.suspects]
