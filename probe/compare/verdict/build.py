"""Two runs made from two dumps whose items are paired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probe.common.align.calls import Calls
from probe.common.align.counterparts import CallPair
from probe.common.align.row import Row
from probe.common.dump.layout import step_and_rank
from probe.common.environment import environment_file as environment_files
from probe.common.environment.environment_file import product_roundoff
from probe.common.environment.modules import settings_at
from probe.compare.result import Mode
from probe.compare.rows.matching import Matched
from probe.compare.two_dumps import Comparison
from probe.compare.verdict.dataflow import Graph
from probe.compare.verdict.facts import call_of, measure
from probe.compare.verdict.two_runs import TwoRuns


def two_runs(comparison: Comparison, both: Calls, pairs: Sequence[CallPair], mode: Mode, matched: Matched) -> TwoRuns:
    """Two runs with the facts on them."""
    target, golden = comparison.target, comparison.golden
    dumps = target, golden
    of_both = target.sketches, golden.sketches
    tables = None if None in of_both else of_both
    rows: list[Row] = [row for pair in pairs for row in pair.rows]
    graphs = _graphs(both, of_both)
    evidence = measure(rows, mode, tables)  # type: ignore[arg-type]
    calls = [call_of(index, pair.record, pair.golden_record, pair.rows) for index, pair in enumerate(pairs)]
    environments = [environment_files.of_record_file(dump.path) for dump in dumps]
    settings = tuple(settings_at(each, step_and_rank(dump.path)[0]) for each, dump in zip(environments, dumps))
    return TwoRuns(
        calls,
        mode,
        evidence,
        tables,  # type: ignore[arg-type]
        graphs,
        (target.tree or {}, golden.tree or {}),
        comparison.across_frameworks,
        matched.same_names,
        settings,  # type: ignore[arg-type]
        (target.updates, golden.updates),
        product_roundoff(environments),
        (target.framework or "", golden.framework or ""),
        (target.path, golden.path),
    )


def _graphs(both: Calls, tables: tuple[Any, Any]) -> tuple[Graph, Graph]:
    (table, other), (mine, theirs) = tables, ([(call.record.name, call.items) for call in side] for side in both)
    target = Graph(mine, table)
    if len(mine) == len(theirs) and all(one[1] is another[1] for one, another in zip(mine, theirs)):
        return target, target
    names = [[(name, [item.name for item in items]) for name, items in side] for side in (mine, theirs)]
    is_twin = table is not None and other is not None and names[0] == names[1] and table.share(other)
    return target, Graph(theirs, other, target if is_twin else None)
