"""The two tables of a pre-check, and the lines of each."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from probe.msprobe_rules.output import details, results
from probe.msprobe_rules.output.details import DetailsRow
from probe.msprobe_rules.output.layout import PLAIN, TableLayout
from probe.msprobe_rules.output.results import ResultRow


@dataclass(frozen=True)
class Form:
    """The form of the tables of a run.

    Attributes:
        layout: Headings, numbers and line ends.
        mindspore: The details have the nine columns that msProbe writes for MindSpore.
    """

    layout: TableLayout = PLAIN
    mindspore: bool = False

    def heading_of_details(self) -> bytes:
        """The first line of the details."""
        return self.layout.heading_line(details.MINDSPORE_HEADINGS if self.mindspore else details.HEADINGS)

    def heading_of_results(self) -> bytes:
        """The first line of the results."""
        return self.layout.heading_line(results.SECOND_STAGE_HEADINGS if self.mindspore else results.HEADINGS)

    def lines(self, rows: Iterable[DetailsRow]) -> bytes:
        """Rows of the details."""
        line = details.mindspore_line if self.mindspore else details.details_line
        return b"".join(line(row, self.layout) for row in rows)

    def result_line(self, row: ResultRow) -> bytes:
        """A row of the results."""
        return results.result_line(row, self.layout, four_cells=self.mindspore)


def table_paths(folder: str, time: str) -> tuple[str, str]:
    """The paths of the results and of the details of a run that began at this time, which has 14 digits."""
    result, of_outputs = (f"accuracy_checking_{kind}_{time}.csv" for kind in ("result", "details"))
    return os.path.join(folder, result), os.path.join(folder, of_outputs)
