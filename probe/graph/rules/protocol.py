"""The protocol of the rules that judge two graphs: the questions of a page to them.

An object of such rules is sent to other processes by the name of its class, which they import.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from probe.common.dump.reading.dump import Dump
from probe.common.progress import ProgressCallback
from probe.compare.evidence import Options
from probe.graph.diff import GraphDiff
from probe.graph.manual_pairs import ManualPair
from probe.graph.page.columns import ColumnRules, Columns


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
