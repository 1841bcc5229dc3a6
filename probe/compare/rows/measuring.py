"""Measures of each row: differences of statistics, checksums, or distances of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from probe.common.align.row import Row
from probe.common.dump.reading.records import PARAMETERS, Item
from probe.common.numerics import statistics
from probe.common.numerics.error_bounds import are_empty
from probe.common.numerics.statistics import UNSUPPORTED, checksum
from probe.common.progress import with_progress
from probe.compare.output import tables
from probe.compare.result import Mode
from probe.compare.two_dumps import Comparison

if TYPE_CHECKING:
    from probe.common.progress import ProgressCallback

NO_MATCH = "warning: No golden data matched."
NO_TARGET = "warning: No target data matched."


def measure(
    comparison: Comparison, rows: Sequence[Row], mode: Mode, watch: ProgressCallback | None = None
) -> tuple[str, ...]:
    """Give each row its metrics; returns the columns of the user's own metrics."""
    if mode is not Mode.TENSOR:
        for row in rows if watch is None else with_progress(rows, watch, "items", len(rows)):
            measure_row(comparison, row, mode)
        return ()
    # With numpy, which takes longer to import than most statistics take to compare.
    from probe.common.numerics import user_metrics
    from probe.compare.rows.tensor_rows import TensorValues
    from probe.compare.rows.tensor_transforms import load_post_processing

    options = comparison.options
    transforms = None if options.post_processing is None else load_post_processing(options.post_processing)
    algorithms = tuple(user_metrics.load(options.algorithms, tables.RESERVED))
    ready = TensorValues(comparison.target, comparison.golden, comparison.otherwise, algorithms, transforms).measured(
        rows
    )
    for row in ready if watch is None else with_progress(ready, watch, "items", len(rows)):
        measure_row(comparison, row, mode, len(algorithms))
    return tuple(algorithm.column for algorithm in algorithms)


def measure_row(comparison: Comparison, row: Row, mode: Mode, further: int = 0) -> None:
    """Give a row its metrics; of real data those that it has without its values, with `further` of the user's own."""
    target, golden, otherwise = row.target, row.golden, comparison.otherwise
    if target is not None and golden is not None and are_empty(target, golden) and otherwise is None:
        _forget_values(target, golden)
    if mode is Mode.STATISTICS and target is not None and golden is not None:
        row.metrics = (statistics.compare_items if otherwise is None else otherwise.statistics)(target, golden)
        if target.requires_grad != golden.requires_grad:
            row.requires_grad_consistent = _is_requires_grad_consistent(comparison, target, golden)
        return
    if mode is Mode.CHECKSUM:
        row.metrics = (checksum(target), checksum(golden))
    elif target is None or golden is None:
        row.metrics = statistics.UNMATCHED if mode is Mode.STATISTICS else UNSUPPORTED
    if further and len(row.metrics) == len(UNSUPPORTED):
        # If the built-in metrics cannot be taken, these cannot either.
        row.metrics += row.metrics[:1] * further
    if target is None or golden is None or target.requires_grad != golden.requires_grad:
        row.requires_grad_consistent = _is_requires_grad_consistent(comparison, target, golden)
    if target is None:
        row.notes += (NO_TARGET,)
    elif golden is None:
        row.notes += (NO_MATCH,)


def _forget_values(target: Item, golden: Item) -> None:
    """Remove the values of tensors without elements: dumps write nothing, NaN or zero for them."""
    for item in (target, golden):
        item.max = item.min = item.mean = item.norm = None
    if target.md5 != golden.md5:
        target.md5 = golden.md5 = None


def _is_requires_grad_consistent(comparison: Comparison, target: Item | None, golden: Item | None) -> bool:
    of_target = None if target is None else target.requires_grad
    of_golden = None if golden is None else golden.requires_grad
    if target is not None and golden is not None and comparison.across_frameworks and comparison.otherwise is None:
        # Of what is no parameter MindSpore says whether it is part of a recorded gradient.
        return target.state != PARAMETERS or None in (of_target, of_golden) or of_target == of_golden
    return of_target == of_golden
