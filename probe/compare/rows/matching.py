"""The items of two dumps that belong together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from probe.common.align.calls import Calls, KeyedCall, calls
from probe.common.align.counterparts import CallPair, are_two_programs, call_pairs, table
from probe.common.align.items import alone
from probe.common.align.layer_names import UNMATCHED
from probe.common.align.row import Row
from probe.common.errors import MsprobeException
from probe.common.numerics.error_bounds import is_xor
from probe.compare.result import Mode
from probe.compare.two_dumps import Comparison


@dataclass(frozen=True)
class Matched:
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
        return Mode.TENSOR if values else Mode.STATISTICS
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
    return [*found.values(), *(CallPair(None, call.record.name, alone(call, of_target=False)) for call in rest)]
