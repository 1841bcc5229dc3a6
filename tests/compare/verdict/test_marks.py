"""Calls of an optimizer where one side has parameters more: each is held against the one of the same parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import Run, X, call, result_of, tensor, write

from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options

RNG = np.random.default_rng(18)
ALIKE = {name: RNG.normal(size=(8, 8)) for name in "abcd"}
OF_SHAPES = {name: RNG.normal(size=(8, 8 + place)) for place, name in enumerate("abcd")}
Arrays = dict[str, "np.ndarray[Any, Any]"]


def run(names: str, arrays: Arrays, recorded: bool) -> tuple[Run, dict[str, str | None]]:
    """Identity layers, of which parameters are recorded or not, and an optimizer that adds to each parameter."""
    data: Run = {}
    for name in names:
        more = {"weight": tensor(arrays[name])} if recorded else {}
        data[f"Module.{name}.Linear.forward.0"] = call([tensor(X)], tensor(X), **more)
    tree: dict[str, str | None] = {}
    for place, name in enumerate(names):
        old = arrays[name]
        # A second call gets what the first made, and nothing that the model has recorded.
        for function, given, made in (("add_", old, old * 2), ("mul_", old * 2, old * 3)):
            record = f"Tensor.{function}.{place}.forward"
            data[record] = call([tensor(given)], tensor(made))
            tree[record] = "optimizer"
    return data, tree


@pytest.mark.parametrize("extra_on_target", [True, False])
@pytest.mark.parametrize(("arrays", "recorded"), [(ALIKE, True), (OF_SHAPES, True), (OF_SHAPES, False)])
@pytest.mark.parametrize("extra", ["a", "b", "c", "d"])
def test_a_parameter_more_is_no_divergence(
    tmp_path: Path, extra: str, arrays: Arrays, recorded: bool, extra_on_target: bool
) -> None:
    names = ["abcd", "abcd".replace(extra, "")]
    (data, tree), (other, other_tree) = (run(each, arrays, recorded) for each in names)
    trees = {**tree, **other_tree}
    sides = (data, other) if extra_on_target else (other, data)
    result = result_of(tmp_path, *sides, trees, level="mix")
    assert result.divergence is None, result.divergence


@pytest.mark.parametrize("arrays", [ALIKE, {**ALIKE, "b": np.ones((8, 8)), "d": np.zeros((8, 8))}])
@pytest.mark.parametrize("extra", ["a", "c"])
@pytest.mark.parametrize("fuzzy", [True, False])
def test_calls_for_one_parameter_are_not_paired_with_those_for_another(
    tmp_path: Path, extra: str, arrays: Arrays, fuzzy: bool
) -> None:
    """Matched by kind they have nothing else that tells; many parameters are ones or zeros."""
    for side, names in (("target", "abcd"), ("golden", "abcd".replace(extra, ""))):
        write(tmp_path / side, *run(names, arrays, True))
    result = compare_dumps(read(tmp_path / "target"), read(tmp_path / "golden"), Options(fuzzy=fuzzy))
    assert result.divergence is None, result.divergence
    if fuzzy:
        rows = [row for row in result.rows if row.target is not None and row.golden is not None]
        assert len(rows) == 3 * (2 + 1 + 4)
        assert all(row.target.norm == row.golden.norm for row in rows)
