"""Tables of results of the pre-check, read back."""

from __future__ import annotations

from probe.msprobe_rules.output.layout import read
from probe.msprobe_rules.output.results import HEADINGS, NEEDED, ResultRow, row_of


def read_results(path: str) -> list[ResultRow]:
    """The rows of a table of results of either command, in either form."""
    return [row_of(record) for record in read(path, HEADINGS, NEEDED)]
