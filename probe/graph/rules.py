"""The protocol of the rules that judge two graphs, and our rules: the judgement of ``compare`` on every node.

An object of such rules is sent to other processes by the name of its class, which they import.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from probe.common.align.calls import Row
from probe.common.dump.reading.dump import Dump
from probe.common.progress import ProgressCallback
from probe.compare.evidence import Options, headline
from probe.graph.diff import GraphDiff, diff_of
from probe.graph.overflow_levels import OverflowLevels, overflows
from probe.graph.page.columns import ColumnRules, Columns
from probe.graph.pairing import ONE_SIDE, SAME, STATUSES, ManualPair


@dataclass(frozen=True)
class Status:
    """One status as the page shows it."""

    key: str
    letter: str
    name: str
    hint: str
    colour: str
    problem: bool = False


class GraphRules(ColumnRules, Protocol):
    """Rules by which two dumps are paired and judged."""

    @property
    def name(self) -> str:
        """The name on the page."""

    @property
    def statuses(self) -> Sequence[Status]:
        """The statuses of a node; those of a `GraphDiff` are their indices."""

    def check(self, options: Options, pairs: Sequence[ManualPair]) -> None:
        """Refuse options that these rules have no place for.

        Raises:
            MsprobeException: there is such an option.
        """

    def diff(
        self,
        target: Dump,
        golden: Dump | None,
        options: Options,
        before: tuple[str, str] | None,
        *,
        pairs: Sequence[ManualPair],
        release: bool,
        watch: ProgressCallback | None,
    ) -> GraphDiff:
        """Judge two dumps, or show one; the arguments are those of `probe.graph.diff.diff_of`."""

    def named_rows(self, columns: Columns) -> tuple[int, list[int]]:
        """The row of the first divergence, -1 without one, and those of the suspects."""

    def verdict(self, columns: Columns) -> list[str]:
        """The first lines on two dumps; none where their values were not compared."""


# --- probe


_SHOWN = (
    Status("none", "·", "no data", "The dumps have no values to compare.", "none"),
    Status("same", "=", "same", "Both runs have the same values.", "good"),
    Status("explained", "~", "explained", "Its inputs and rounding explain the difference.", "neutral"),
    Status("follows", "→", "follows", "An input is not finite, or an earlier step has diverged.", "neutral"),
    Status("structure", "S", "structure", "Another argument, dtype or shape; or nothing tells of a value.", "info"),
    Status("alone", "1", "one side only", "The other run has no such call.", "alone"),
    Status("suspect", "?", "suspect", "It also differs by more than its inputs explain.", "warn", True),
    Status("diverged", "!", "diverged", "The first unexplained difference, or not finite on one side.", "bad", True),
)
_INDEX = {name: index for index, name in enumerate(STATUSES)}


class ProbeGraph:
    """The rules as `probe.graph.rules.GraphRules`."""

    name = "probe"
    statuses = _SHOWN
    finds_overflows = True

    def check(self, options: Options, pairs: Sequence[ManualPair]) -> None:
        """Every option goes with these rules."""

    def diff(
        self,
        target: Dump,
        golden: Dump | None,
        options: Options,
        before: tuple[str, str] | None,
        *,
        pairs: Sequence[ManualPair],
        release: bool,
        watch: ProgressCallback | None,
    ) -> GraphDiff:
        """Judge two dumps as ``compare`` does."""
        return diff_of(target, golden, options, before, pairs=pairs, release=release, watch=watch)

    def overflows(self, diff: GraphDiff) -> tuple[OverflowLevels, OverflowLevels | None]:
        """The overflow levels of both; an infinity that was meant is none."""
        return overflows(diff)

    def item_statuses(self, diff: GraphDiff, rows: Sequence[Row]) -> bytes:
        """The result of each row, as the search for the first divergence gives it.

        What shows a divergence that is told at another call is no worse than its own call.
        """
        judgement = diff.judgement
        if judgement is None:
            return bytes([ONE_SIDE if row.target is None or row.golden is None else SAME for row in rows])
        node_of, of_nodes = diff.target.index, diff.statuses
        found = bytearray([_INDEX[judgement.of(row)[0]] for row in rows])
        for index, status in enumerate(found):
            if status not in (SAME, ONE_SIDE):
                found[index] = min(status, of_nodes[node_of.get(rows[index].record, -1)])
        return bytes(found)

    def item_notes(self, diff: GraphDiff, rows: Sequence[Row]) -> list[str]:
        """The differences of an item other than its values, in the words of ``msprobe compare``.

        The reason of a divergence is that of its call.
        """
        summary = diff.summary
        differing = () if summary is None else (*summary.without_effect, *summary.with_effect, *summary.undecided)
        reasons = {each.item: each.shown_reason for each in differing}
        items = (row.target or row.golden for row in rows)
        said = ("" if item is None else reasons.get(item.name, "") for item in items)
        return [
            "\n".join(filter(None, (reason, *row.notes))) if row.notes else reason for reason, row in zip(said, rows)
        ]

    def named_rows(self, columns: Columns) -> tuple[int, list[int]]:
        """The row of the first divergence, -1 without one, and those of the suspects."""
        return columns.first, columns.suspects

    def verdict(self, columns: Columns) -> list[str]:
        """The first lines of ``msprobe compare``."""
        return [] if columns.summary is None else [text for text, _ in headline([columns.summary])]


PROBE_GRAPH = ProbeGraph()
