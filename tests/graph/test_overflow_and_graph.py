"""The levels of the graph and ``msprobe overflow_check`` name the same first record of one rank."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from made_dumps import call, constant, plain

from probe.common.dump.reading.dump import read
from probe.common.parallel.tasks import Where
from probe.graph.diff import diff_of
from probe.graph.graph import graph_of
from probe.graph.overflow_levels import CRITICAL, overflow, overflows
from probe.overflow.find_overflow import find_overflow
from probe.overflow.findings import ORIGIN

CASES = Path(__file__).parents[1] / "overflow" / "cases"
RANKS = sorted(CASES.glob("*/step0/rank*"))
EDGES: dict[str, Any] = json.loads((CASES / "edge" / "cases.json").read_text("utf-8"))
HEAD = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}


def _agreed(folder: Path) -> str | None:
    """The first record of a rank alone, as the command and the graph name it."""
    findings = find_overflow(str(folder), where=Where(jobs=1)).first
    dump = read(folder)
    graph = graph_of(dump)
    found = overflow(graph, dump)
    of_page, _ = overflows(diff_of(read(folder)))
    assert (of_page.first, of_page.levels) == (found.first, found.levels)
    name = graph.names[found.first] if found.first >= 0 else None
    assert [finding.record for finding in findings[:1]] == ([] if name is None else [name])
    return name


def _dumped(folder: Path, data: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "dump.json").write_text(json.dumps({**HEAD, "data": data}), encoding="utf-8")
    return folder


def test_there_are_ranks() -> None:
    assert len(RANKS) == 14


@pytest.mark.parametrize("folder", RANKS, ids=lambda folder: f"{folder.parents[1].name}-{folder.name}")
def test_a_rank_alone_has_one_first_record(folder: Path) -> None:
    assert (_agreed(folder) is None) == (folder.parents[1].name == "clean")


@pytest.mark.parametrize("edge", EDGES)
def test_records_on_the_edge_are_judged_alike(edge: str, tmp_path: Path) -> None:
    found = _agreed(_dumped(tmp_path / "step0" / "rank0", EDGES[edge]["data"]))
    assert (found is None) == (edge == "norm_only_overflow")


# --- what is written into a tensor


def _tensor(shape: list[int], value: float = 1.0) -> dict[str, Any]:
    return constant(value, shape=shape, requires_grad=True)


def _call(*inputs: Any, output: Any) -> dict[str, Any]:
    return call(inputs, [output])


WRITE, ADD, DROPOUT = "Tensor.__setitem__.0.forward", "Tensor.add.0.forward", "Functional.dropout.0.forward"
PLACE = plain(3)


def test_a_nan_that_is_written_stands_at_the_write(tmp_path: Path) -> None:
    bad = _tensor([2, 12, 48], math.nan)
    data = {
        ADD: _call(_tensor([2, 12, 48]), output=_tensor([2, 12, 48])),
        # A view of what is used afterwards.
        WRITE: _call(_tensor([1152]), PLACE, plain(math.nan), output=None),
        DROPOUT: _call(bad, output=bad),
    }
    folder = _dumped(tmp_path / "step0" / "rank0", data)
    assert _agreed(folder) == WRITE
    (finding,) = find_overflow(str(folder), where=Where(jobs=1)).first
    assert (finding.kind, finding.record, finding.path[0]) == (ORIGIN, WRITE, (0, DROPOUT))
    dump = read(folder)
    graph = graph_of(dump)
    assert overflow(graph, dump).levels[graph.index[WRITE]] == CRITICAL


@pytest.mark.parametrize("kind", ["never used", "another size", "a number", "another input"])
def test_a_write_that_explains_nothing_is_not_named(tmp_path: Path, kind: str) -> None:
    bad = _tensor([7] if kind == "another size" else [2, 2], math.nan)
    written = 1.5 if kind == "a number" else math.nan
    inputs = [bad, _tensor([9], math.nan)] if kind == "another input" else [bad]
    data = {
        WRITE: _call(_tensor([4]), PLACE, plain(written), output=None),
        ADD: _call(*([_tensor([2, 2])] if kind == "never used" else inputs), output=_tensor([2, 2])),
    }
    found = _agreed(_dumped(tmp_path / "step0" / "rank0", data))
    assert found == (None if kind == "never used" else ADD)
