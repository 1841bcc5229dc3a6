"""The rules of msProbe for two graphs: ``--rules msprobe``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probe.common.align.calls import ERROR as ROW_ERROR
from probe.common.align.calls import WARNING as ROW_WARNING
from probe.common.align.calls import Row
from probe.common.dump.reading.dump import Dump
from probe.common.errors import MsprobeException
from probe.common.progress import ProgressCallback
from probe.compare.options import Options
from probe.graph.diff import GraphDiff
from probe.graph.overflow_levels import OverflowLevels
from probe.graph.page.columns import Columns, name_of
from probe.graph.pairing import ManualPair
from probe.graph.rules import Status
from probe.msprobe_rules.graph.diff import ERROR, PASS, UNMATCHED, WARNING, msprobe_diff, msprobe_overflows

_SHOWN = (
    Status("none", "·", "no status", "msProbe gives it no colour.", "none"),
    Status("pass", "=", "pass", "msProbe passes it.", "good"),
    Status("unmatched", "1", "unmatched", "msProbe finds no counterpart.", "alone"),
    Status("warning", "?", "warning", "msProbe warns of it.", "warn", True),
    Status("error", "!", "error", "msProbe takes it for an error.", "bad", True),
)


class MsprobeGraph:
    """The rules as `probe.graph.rules.GraphRules`."""

    name = "msprobe"
    statuses = _SHOWN
    finds_overflows = False

    def check(self, options: Options, pairs: Sequence[ManualPair]) -> None:
        """Refuse pairs made by hand and mappings.

        Raises:
            MsprobeException: there are such.
        """
        if pairs or options.maps_names:
            given = "pairs made by hand" if pairs else "a mapping of names"
            raise MsprobeException(
                f"the rules msprobe match as msProbe does, which {given} would change; leave --pairs and -lm out, or "
                "give --rules probe."
            )

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
        """Judge two dumps; neither the step before nor pairs made by hand count."""
        return msprobe_diff(target, golden, options.fuzzy)

    def overflows(self, diff: GraphDiff) -> tuple[OverflowLevels, OverflowLevels | None]:
        """The levels of msProbe."""
        return msprobe_overflows(diff)

    def item_statuses(self, diff: GraphDiff, rows: Sequence[Row]) -> bytes:
        """The result of each row."""
        return bytes([_status(row) for row in rows])

    def item_notes(self, diff: GraphDiff, rows: Sequence[Row]) -> list[str]:
        """The messages of each row."""
        return ["\n".join(row.messages) for row in rows]

    def named_rows(self, columns: Columns) -> tuple[int, list[int]]:
        """The first error and the first warning, or the one that there is: no divergence is named."""
        if columns.golden is None:
            return columns.first, columns.suspects
        rows = (np.flatnonzero(columns.status == status) for status in (ERROR, WARNING))
        found = [int(of_status[0]) for of_status in rows if len(of_status)]
        return (found[0], found[1:]) if found else (-1, [])

    def verdict(self, columns: Columns) -> list[str]:
        """The number of nodes with each status."""
        counts = np.bincount(columns.status, minlength=len(_SHOWN)).tolist()
        numbers = ", ".join(f"{counts[status]} {_SHOWN[status].name}" for status in (ERROR, WARNING, PASS, UNMATCHED))
        found = [f"by the rules of msProbe: {numbers}"]
        first, others = self.named_rows(columns)
        for row in [first, *others] if first >= 0 else []:
            found.append(f"  first {_SHOWN[int(columns.status[row])].name}: {name_of(columns, row)}")
        return found


MSPROBE_GRAPH = MsprobeGraph()


def _status(row: Row) -> int:
    if row.target is None or row.golden is None:
        return UNMATCHED
    return {ROW_ERROR: ERROR, ROW_WARNING: WARNING}.get(row.result, PASS)
