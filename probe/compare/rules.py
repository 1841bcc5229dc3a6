"""The rules that give the rows of the table their results: the questions of a comparison to them, and our own.

An object of such rules is sent to other processes by the name of its class, which they import.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from typing_extensions import Protocol

from probe.common.align.calls import Calls
from probe.common.align.options import MatchOptions
from probe.common.align.row import Row
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import are_comparable, is_same
from probe.compare.result import ComparisonResult, Divergence, Mode

SAME, EXPLAINED, STRUCTURE, ONE_SIDE, SUSPECT, DIVERGED = (
    "same", "explained", "structure", "one side only", "suspect", "diverged",
)  # fmt: skip
"""Our results of a row, from the best to the worst."""


class Otherwise(Protocol):
    """Matching and measuring as another tool does, where that is not ours."""

    def check(self, target: Dump, golden: Dump) -> None:
        """Refuse dumps that the tool does not compare.

        Raises:
            MsprobeException: these are such dumps.
        """

    def renumbers_target(self, options: MatchOptions) -> bool:
        """True if backward records of the target are numbered anew."""

    def match(
        self, dumps: tuple[Dump, Dump], calls: Calls, options: MatchOptions
    ) -> tuple[list[Row], dict[str, str] | None]:
        """The rows of the target, and the data mapping that a layer mapping became."""

    def statistics(self, target: Item, golden: Item) -> tuple[Any, ...]:
        """The metrics of statistics, as `probe.common.numerics.statistics.compare_items` has them."""

    def values(self, target: Any, golden: Any) -> Any:
        """The metrics of two arrays, as `probe.common.numerics.values.compare_values` has them."""


class RowRules(Protocol):
    """Rules for the column ``Result``."""

    @property
    def results(self) -> Sequence[str]:
        """The results that a row can have, from the best to the worst."""

    @property
    def levels(self) -> Mapping[str, Sequence[str]]:
        """The results that ``--fail-on error`` and ``--fail-on warning`` mean."""

    @property
    def findings(self) -> Sequence[str]:
        """The results of which a summary lists records, the worst first. A message of such a row begins with it."""

    @property
    def alone(self) -> str:
        """The result of an item that the golden side has alone."""

    @property
    def is_by_record(self) -> bool:
        """True if the rows of a record are judged without those of others, apart from the first divergence."""

    @property
    def otherwise(self) -> Otherwise | None:
        """Matching and measuring, if these are not ours."""

    def classify_rows(self, rows: list[Row], mode: Mode, across_frameworks: bool) -> None:
        """Give the rows of one record of the target their results and messages."""

    def conclude(self, result: ComparisonResult) -> None:
        """Give rows the results that depend on the divergence, which is known now."""


class ProbeRows:
    """Our rules: a row has the result that the search for the first divergence gives it."""

    results = (SAME, EXPLAINED, STRUCTURE, ONE_SIDE, SUSPECT, DIVERGED)
    levels: Mapping[str, Sequence[str]] = MappingProxyType({"error": (DIVERGED,), "warning": (DIVERGED, SUSPECT)})
    findings = (DIVERGED, SUSPECT)
    alone = ONE_SIDE
    is_by_record = False
    otherwise = None

    def classify_rows(self, rows: list[Row], mode: Mode, across_frameworks: bool) -> None:
        """Nothing is said before the search for the first divergence has ended."""

    def conclude(self, result: ComparisonResult) -> None:
        """Give every row its result, with the reason for a difference."""
        marked, reasons = marked_items(result.divergence), _reasons(result)
        for row in result.rows:
            row.result = result_of(row, marked, None if result.debug else reasons)
            item = row.target or row.golden
            reason = "" if item is None else reasons.get(item.name, "")
            said = (f"{row.result}: {reason}.",) if reason and row.result in (STRUCTURE, SUSPECT, DIVERGED) else ()
            row.messages = (*said, *(note for note in row.notes if note not in said))


PROBE_ROWS = ProbeRows()


def result_of(row: Row, marked: Mapping[str, str], differing: Iterable[str] | None) -> str:
    """Our result of a row.

    Args:
        row: The item on both sides.
        marked: The items that show where the runs diverge, with the results of the calls.
        differing: The items of which the comparison says that they differ, by their types or values; a type that
            another framework spells in another way is none. ``None`` where nothing was compared.
    """
    target, golden = row.target, row.golden
    if target is None or golden is None:
        return ONE_SIDE
    if target is golden:
        return SAME
    if target.name in marked:
        return marked[target.name]
    of_kind = target.dtype != golden.dtype or target.shape != golden.shape or target.value != golden.value
    if of_kind and (differing is None or target.name in differing):
        return STRUCTURE
    return SAME if is_equal(row) else EXPLAINED


def is_equal(row: Row) -> bool:
    """True if nothing tells the two items of a row apart: neither what dumps say of both, nor their elements."""
    target, golden, apart = row.target, row.golden, row.relative_difference
    if target is None or golden is None or apart:
        return False
    return is_same(target, golden) or (apart is not None and not are_comparable(target, golden))


def marked_items(divergence: Divergence | None) -> dict[str, str]:
    """The items that show where the runs diverge, with the results of their calls."""
    if divergence is None:
        return {}
    found = {each.item: SUSPECT for each in divergence.suspects if each.item}
    return {**found, divergence.first.item: DIVERGED}


def _reasons(result: ComparisonResult) -> dict[str, str]:
    """The reasons for items, by their names."""
    found = {each.item: each.reason for each in (*result.without_effect, *result.with_effect)}
    divergence = result.divergence
    calls = () if divergence is None else (*divergence.suspects, divergence.first)
    return {**found, **{call.item: call.reason for call in calls if call.item}}
