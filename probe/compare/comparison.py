"""One dump against another: items are matched, measured and judged, then the first divergence is searched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from probe.common.align.calls import Calls
from probe.common.align.row import Row
from probe.common.dump.reading.dump import Dump
from probe.compare.options import Options
from probe.compare.result import ComparisonResult, Mode
from probe.compare.rows.matching import flattened, match, mode_of
from probe.compare.rows.measuring import measure
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
    release: bool = False,
    watch: ProgressCallback | None = None,
    before: tuple[str, str] | None = None,
) -> ComparisonResult:
    """Compare two dumps with each other.

    Args:
        target, golden: the dumps.
        options: what the user chose.
        values: compare real data by its values; otherwise by its statistics.
        release: free the memory of the dumps' records as soon as their items are made. Nobody can look at the records
            of these dumps afterwards.
        watch: a callback for how far the measuring is.
        before: the paths of the dumps of the step before, which tell of the optimizer's step between.

    Raises:
        MsprobeException: these two cannot be compared, and why.
    """
    comparison = Comparison(target, golden, options or Options(), before)
    return compared(comparison, values=values, release=release, watch=watch).result


def compared(
    comparison: Comparison,
    *,
    values: bool = True,
    release: bool = False,
    watch: ProgressCallback | None = None,
    keeps_judged: bool = False,
) -> ComparedDumps:
    """Compare two dumps as `compare_dumps` does; `keeps_judged` keeps what was found of each pair of calls."""
    target, golden = comparison.target, comparison.golden
    both = flattened(comparison)
    for dump in (target, golden) if release else ():
        dump.release()
    mode = mode_of(comparison, both, values)
    matched = match(comparison, both)
    algorithms = measure(comparison, matched.rows, mode, watch)
    # Rows of the golden side alone are at the end and belong to no record of the target.
    groups = groupby((row for row in matched.rows if row.target is not None), key=attrgetter("record"))
    classify_records(comparison, (list(rows) for _, rows in groups), mode)
    stacks = target.stacks, golden.stacks
    result = ComparisonResult(target.path, golden.path, mode, comparison.debug, matched.rows, *stacks)
    result.data_mapping, result.algorithms = matched.derived, algorithms
    seen = conclude(comparison, both, matched, result, keeps_judged)
    comparison.options.rules.conclude(result)
    return ComparedDumps(result, both, seen)


def classify_records(comparison: Comparison, records: Iterable[list[Row]], mode: Mode) -> None:
    """Give the rows of the target their results; they come record by record."""
    rules, across_frameworks = comparison.options.rules, comparison.across_frameworks
    for rows in records:
        rules.classify_rows(rows, mode, across_frameworks)
