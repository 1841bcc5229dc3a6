"""Task structure: who calls what from where, and no values."""

from __future__ import annotations

from typing import Any

import dumped
import pytest
from programs import Names, batch, block_network


def collect(runs: Any, backend: Any, level: str, task: str) -> Any:
    path = runs.path / task
    debugger, model = runs.new(dump_path=path, level=level, task=task), block_network(backend)
    debugger.start(model)
    backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    debugger.step()
    return dumped.read(path)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_structure_has_no_data_and_the_same_tree_and_stacks(runs: Any, backend: Any, level: str) -> None:
    structure, statistics = (collect(runs, backend, level, task) for task in ("structure", "statistics"))
    assert structure.data == {} and len(statistics.data) > 5
    assert structure.head["task"] == "structure" and structure.head["level"] == level
    assert structure.tree == statistics.tree and len(structure.tree) >= 8
    grouping = [[names for names, _ in dump.stacks.values()] for dump in (structure, statistics)]
    assert grouping[0] == grouping[1] and grouping[0]


def test_structure_at_another_level_is_mix(runs: Any, backend: Any) -> None:
    dump = collect(runs, backend, "L1", "structure")
    names = Names(backend)
    assert dump.head["level"] == "mix"
    assert dump.tree[f"{names.act}.forward.0"] == f"{names.body}.forward.0"
    assert dump.tree[f"{backend.apis['relu'].base}.0.forward"] == f"{names.act}.forward.0"


def test_structure_needs_no_gradients_and_no_tensors(runs: Any, backend: Any) -> None:
    dump = collect(runs, backend, "mix", "structure")
    assert sorted(path.name for path in dump.folder.iterdir()) == ["construct.json", "dump.json", "stack.json"]
