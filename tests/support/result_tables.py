"""Tables of results of the pre-check, read back."""

from __future__ import annotations

from probe.msprobe_rules.precheck.details import RESULT_HEADINGS as HEADINGS
from probe.msprobe_rules.precheck.details import ResultRow
from probe.msprobe_rules.precheck.layout import read


def read_results(path: str) -> list[ResultRow]:
    """The rows of a table of results of either command, in either form."""
    name, forward, backward, message = (heading.plain for heading in HEADINGS)
    cells = [record.cells for record in read(path, HEADINGS, (name, forward, backward))]
    return [
        ResultRow(each[name], each[forward] or None, each.get(backward) or None, each.get(message, ""))
        for each in cells
    ]
