"""The table of results: a row for each case."""

from __future__ import annotations

from dataclasses import dataclass

from probe.common.report.csv_lines import Cell
from probe.msprobe_rules.output.details import SKIP
from probe.msprobe_rules.output.layout import Heading, TableLayout

_NAME, _FORWARD, _BACKWARD, _MESSAGE = "API Name", "Forward Test Success", "Backward Test Success", "Message"
# The two commands of msProbe, and its two frameworks, write the first heading in two ways; both are read.
HEADINGS = (
    Heading(_NAME, "API name"), Heading(_FORWARD, _FORWARD), Heading(_BACKWARD, _BACKWARD), Heading(_MESSAGE, _MESSAGE),
)  # fmt: skip
SECOND_STAGE_HEADINGS = (Heading(_NAME, _NAME), *HEADINGS[1:])


@dataclass(frozen=True)
class ResultRow:
    """The row of one case.

    Attributes:
        name: ``Functional.silu.0``.
        forward: `PASS`, `WARNING`, `ERROR` or `SKIP` of `probe.msprobe_rules.output.details`.
        backward: The same, or ``None`` where the case has no backward.
    """

    name: str
    forward: str | None
    backward: str | None = None
    message: str = ""


def result_line(row: ResultRow, layout: TableLayout, four_cells: bool = False) -> bytes:
    """A row of the table; msProbe leaves the message of what was run out, unless `four_cells`."""
    cells: list[Cell] = [row.name, row.forward, row.backward, row.message]
    skipped = SKIP in (row.forward, row.backward)
    if layout.is_msprobe and not four_cells and not skipped:
        cells.pop()
    return layout.line(cells)
