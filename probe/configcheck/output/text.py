"""The answer as lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from probe.common.environment.differences import in_words
from probe.configcheck.findings import ERROR, INFO, PASS, WARNING, Check, Comparison, Finding

_STYLES = {PASS: "green", INFO: "", WARNING: "yellow", ERROR: "bold red"}
_MOST_ROWS = 20
"""Rows that the text has of a check; the files have all."""
_WIDEST = 60


def lines(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """The answer first, then each check with its differences; each line with a style of rich."""
    yield headline(comparison), _STYLES[comparison.answer]
    for check in comparison.checks:
        yield _title(check), _STYLES[check.level]
        for row in sorted(check.rows, key=lambda row: (ERROR, WARNING, INFO).index(row.level))[:_MOST_ROWS]:
            yield f"  {row.level}: {row_text(row)}", _STYLES[row.level]
        if len(check.rows) > _MOST_ROWS:
            yield f"  and {len(check.rows) - _MOST_ROWS} more; the files have all", ""
    for name in comparison.not_compared:
        yield f"{name}: not compared, one of the packs lacks it", _STYLES[WARNING]
    if comparison.withheld:
        several = "variables differ" if comparison.withheld > 1 else "variable differs"
        yield f"withheld: {comparison.withheld} further {several}, which may hold secrets", ""


def headline(comparison: Comparison) -> str:
    """The first line: whether the two configurations agree, or which checks do not pass, by the worst of their rows."""
    left_out = f"; not compared: {', '.join(comparison.not_compared)}" if comparison.not_compared else ""
    if comparison.answer == PASS:
        return f"pass: the configurations agree in all that is known to change numbers{left_out}"
    names = [check.name for check in comparison.checks if check.level in (WARNING, ERROR)]
    return f"{comparison.answer}: the configurations differ in {', '.join(names)}{left_out}"


def row_text(row: Finding) -> str:
    """Example: ``lr is 0.1 (golden: 0.2): weights differ after the first update``."""
    # "lr in run.sh, value 2 of 2, is".
    name = f"{row.name}," if ", value " in row.name else row.name
    where = f" in {row.golden_place}" if row.golden_place else ""
    return f"{name} is {_shown(row.target)} (golden: {_shown(row.golden)}{where}): {row.why}"


def _title(check: Check) -> str:
    if not check.rows:
        return f"{check.name}: {PASS}"
    return f"{check.name}: {check.level}, {len(check.rows)} difference{'' if len(check.rows) == 1 else 's'}"


def _shown(value: Any) -> str:
    text = " ".join(in_words(value).split())
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
