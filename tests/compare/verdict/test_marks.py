"""Calls of an optimizer where one side has a parameter more: each is held against the one of the same parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import Run, X, call, tensor, write

from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options

RNG = np.random.default_rng(18)
ALIKE = {name: RNG.normal(size=(8, 8)) for name in "abcd"}
OF_SHAPES = {name: RNG.normal(size=(8, 8 + place)) for place, name in enumerate("abcd")}
Arrays = dict[str, "np.ndarray[Any, Any]"]


def run(names: str, arrays: Arrays) -> tuple[Run, dict[str, str | None]]:
    """Identity layers, and an optimizer that adds to the parameter of each."""
    data: Run = {
        f"Module.{name}.Linear.forward.0": call([tensor(X)], tensor(X), weight=tensor(arrays[name])) for name in names
    }
    tree: dict[str, str | None] = {}
    for place, name in enumerate(names):
        old = arrays[name]
        # A second call gets what the first made, and nothing that the model has recorded.
        for function, given, made in (("add_", old, old * 2), ("mul_", old * 2, old * 3)):
            record = f"Tensor.{function}.{place}.forward"
            data[record] = call([tensor(given)], tensor(made))
            tree[record] = "optimizer"
    return data, tree


@pytest.mark.parametrize("arrays", [OF_SHAPES, ALIKE, {**ALIKE, "b": np.ones((8, 8)), "d": np.zeros((8, 8))}])
@pytest.mark.parametrize("extra", ["a", "c"])
@pytest.mark.parametrize("fuzzy", [True, False])
@pytest.mark.parametrize("sides", [("target", "golden"), ("golden", "target")])
def test_calls_for_one_parameter_are_not_paired_with_those_for_another(
    tmp_path: Path, extra: str, arrays: Arrays, fuzzy: bool, sides: tuple[str, str]
) -> None:
    """Matched by kind they have nothing else that tells; many parameters are ones or zeros."""
    for side, names in zip(sides, ("abcd", "abcd".replace(extra, ""))):
        write(tmp_path / side, *run(names, arrays))
    result = compare_dumps(read(tmp_path / "target"), read(tmp_path / "golden"), Options(fuzzy=fuzzy))
    assert result.divergence is None, result.divergence
    if fuzzy:
        rows = [row for row in result.rows if row.target is not None and row.golden is not None]
        assert len(rows) == 3 * (2 + 1 + 4)
        assert all(row.target.norm == row.golden.norm for row in rows)
