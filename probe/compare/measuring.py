"""Items of two dumps matched to rows, and the measures of each row: statistics, checksums, or distances of values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from probe.common import log
from probe.common.align.calls import Calls, KeyedCall, Row, calls
from probe.common.align.counterparts import CallPair, are_two_programs, call_pairs, table
from probe.common.align.items import alone
from probe.common.align.layers import UNMATCHED
from probe.common.dump.layout import has_real_data
from probe.common.dump.reading.records import PARAMETERS, Item
from probe.common.errors import MsprobeException
from probe.common.numerics import statistics
from probe.common.numerics.error_bounds import are_empty, is_xor
from probe.common.numerics.statistics import UNSUPPORTED, checksum
from probe.common.progress import with_progress
from probe.compare import tables
from probe.compare.options import Comparison
from probe.compare.result import Mode

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
    from probe.compare.tensor_rows import TensorValues, load_post_processing

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


# --- matching


class Matched(msgspec.Struct, frozen=True):
    """The counterparts in two dumps."""

    rows: list[Row]
    pairs: list[CallPair]
    """The calls side by side; none where another tool's rules match them."""
    same_names: bool
    """True if both sides use the same names for the same things."""
    derived: dict[str, str] | None = None
    """The data mapping that a layer mapping became, item by item."""
    aligned: bool = False
    """True if these are two programs."""


def flattened(comparison: Comparison, release: bool = False) -> Calls:
    """The calls of both dumps with their items; with `release` the memory of their records is freed."""
    options = comparison.options
    renumber = not comparison.debug and not options.fuzzy
    renumber_target = renumber and (comparison.otherwise is None or comparison.otherwise.renumbers_target(options))
    return calls(comparison.target, comparison.golden, (renumber_target, renumber), release)


def mode_of(comparison: Comparison, both: Calls, values: bool) -> Mode:
    """The quantities by which two dumps are compared.

    Raises:
        MsprobeException: they hold different things.
    """
    target, golden = comparison.target, comparison.golden
    if target.task != golden.task:
        raise MsprobeException(
            f'{target.path}: "task" is {target.task!r} and in {golden.path} it is {golden.task!r}; '
            "collect both with the same task."
        )
    if target.task == "tensor":
        without = [dump.path for dump in (target, golden) if not has_real_data(dump.path)]
        if values and without and len(target) and len(golden):
            log.info(f"{without[0]} has no files of tensors, as a pack of a run: the runs are compared by statistics.")
        return Mode.TENSOR if values and not without else Mode.STATISTICS
    if target.task != "statistics":
        raise MsprobeException(f'{target.path}: "task" is {target.task!r}; allowed: "statistics" and "tensor".')
    with_checksums = [has_checksum(side) for side in both]
    if with_checksums[0] != with_checksums[1]:
        has, lacks = (target, golden) if with_checksums[0] else (golden, target)
        raise MsprobeException(
            f"{has.path} holds checksums and {lacks.path} does not; collect both with the same summary_mode."
        )
    if not with_checksums[0]:
        return Mode.STATISTICS
    kinds = [_kind_of_checksums(side) for side in both]
    if kinds[0] != kinds[1] and comparison.otherwise is None:
        raise MsprobeException(
            f"{target.path} holds {kinds[0]} checksums and {golden.path} holds {kinds[1]}; "
            "collect both with the same summary_mode."
        )
    return Mode.CHECKSUM


def _kind_of_checksums(side: Iterable[KeyedCall]) -> str:
    found = next(item.md5 for call in side for item in call.items if item.md5 is not None)
    return "xor" if is_xor(found) else "md5"


def has_checksum(side: Iterable[KeyedCall]) -> bool:
    """True if an item of these calls has one: then dumps are compared by their checksums."""
    return any(item.md5 is not None for call in side for item in call.items)


def match(comparison: Comparison, both: Calls) -> Matched:
    """Pair the calls of both dumps and their items."""
    options, dumps = comparison.options, (comparison.target, comparison.golden)
    same_names = not (comparison.across_frameworks or options.fuzzy or options.maps_names)
    if comparison.otherwise is not None:
        found, items = comparison.otherwise.match(dumps, both, options)
        return Matched(found, _as_pairs(found, both), same_names, items)
    pairs = call_pairs(*dumps, both, options)
    rows = table(pairs)
    derived = None
    if options.layer_mapping is not None:
        derived = {row.target.name: row.golden.name if row.golden else UNMATCHED for row in rows if row.target}
    aligned = not (comparison.debug or options.maps_names or options.fuzzy) and are_two_programs(both, dumps)
    return Matched(rows, pairs, same_names and not aligned, derived, aligned)


def _as_pairs(rows: Iterable[Row], both: Calls) -> list[CallPair]:
    """The calls side by side that another tool's rows are of, and those of the golden side alone at the end."""
    found: dict[str, CallPair] = {}
    for row in rows:
        pair = found.setdefault(row.record, CallPair(row.record, None, []))
        pair.golden_record = pair.golden_record or row.golden_record
        pair.rows.append(row)
    matched = {pair.golden_record for pair in found.values()}
    rest = (call for call in both[1] if call.record.name not in matched)
    return [*found.values(), *(CallPair(None, call.record.name, alone(call, is_target=False)) for call in rest)]
