"""One dump against another: items are matched, measured and judged, then the first divergence is searched."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from probe.common.align.calls import Calls
from probe.common.dump.reading.dump import Dump
from probe.compare.options import Options
from probe.compare.result import ComparisonResult
from probe.compare.rows.matching import flattened, match, mode_of
from probe.compare.rows.measuring import measure
from probe.compare.rules import judge_rows
from probe.compare.two_dumps import Comparison
from probe.compare.verdict.conclusion import Seen, conclude

if TYPE_CHECKING:
    from probe.common.progress import ProgressCallback


@dataclass(frozen=True)
class ComparedDumps:
    """Two dumps compared, with what was seen on the way."""

    result: ComparisonResult
    calls: Calls
    """The calls of both sides with their items."""
    seen: Seen
    """The calls side by side, and what was found of each pair."""


def compare_dumps(
    target: Dump,
    golden: Dump,
    options: Options | None = None,
    *,
    values: bool = True,
    before: tuple[str, str] | None = None,
) -> ComparisonResult:
    """Compare two dumps with each other.

    Args:
        target, golden: the dumps.
        options: what the user chose.
        values: compare real data by its values; otherwise by its statistics.
        before: the paths of the dumps of the step before, which tell of the optimizer's step between.

    Raises:
        MsprobeException: these two cannot be compared, and why.
    """
    return compared(Comparison(target, golden, options or Options(), before), values=values).result


def compared(
    comparison: Comparison,
    *,
    values: bool = True,
    release: bool = False,
    watch: ProgressCallback | None = None,
    keeps_judged: bool = False,
) -> ComparedDumps:
    """Compare two dumps as `compare_dumps` does.

    Args:
        comparison: the dumps, and how they are compared.
        values: compare real data by its values; otherwise by its statistics.
        release: free the memory of the dumps' records as soon as their items are made. Nobody can look at the records
            of these dumps afterwards.
        watch: a callback for how far the measuring is.
        keeps_judged: keep what was found of each pair of calls.
    """
    target, golden, rules = comparison.target, comparison.golden, comparison.options.rules
    both = flattened(comparison, release)
    mode = mode_of(comparison, both, values)
    matched = match(comparison, both)
    algorithms = measure(comparison, matched.rows, mode, watch)
    result = ComparisonResult(target.path, golden.path, mode, comparison.debug)
    result.rows, result.stacks, result.golden_stacks = matched.rows, target.stacks, golden.stacks
    result.data_mapping, result.algorithms = matched.derived, algorithms
    seen = conclude(comparison, both, matched, result, keeps_judged)
    if rules is None:
        judge_rows(result)
    else:
        for _, rows in groupby(result.rows, key=attrgetter("record")):
            rules.classify_rows(list(rows), mode)
    return ComparedDumps(result, both, seen)
