"""The rows of sections as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

import measure

from verdicts import Row

_LONGEST = 300
RIGHT, WRONG, UNJUDGED = "right", "**wrong**", "cannot be told"


def totals(rows: Sequence[Row]) -> str:
    """How many are right, by setting and by what is true."""
    head = ["level and task", "right", "silent and right", "diverging and right", "cannot be told"]
    lines = []
    for setting in dict.fromkeys(row.setting for row in rows):
        here = [row for row in rows if row.setting == setting]
        silent = [row for row in here if is_silent(row)]
        others = [row for row in here if not is_silent(row)]
        unjudged = sum(row.is_unjudged for row in here)
        lines.append([setting or "all", _share(here), _share(silent), _share(others), str(unjudged)])
    return measure.table(head, lines)


def kinds(rows: Sequence[Row]) -> str:
    """How many are right, by kind of pair."""
    settings = list(dict.fromkeys(row.setting for row in rows))
    lines = []
    for kind in dict.fromkeys(row.kind for row in rows):
        here = [row for row in rows if row.kind == kind]
        lines.append([kind, *(_share([row for row in here if row.setting == setting]) for setting in settings)])
    return measure.table(["kind of pair", *settings], lines)


def _share(rows: Sequence[Row]) -> str:
    return f"{sum(row.right for row in rows)} of {len(rows)}" if rows else "-"


def is_silent(row: Row) -> bool:
    return row.truth.startswith("silent")


def each(rows: Sequence[Row], shown: str = "") -> str:
    """A line for each pair, with what was said of it at the setting `shown`."""
    settings = list(dict.fromkeys(row.setting for row in rows))
    said_at = f"what was said at {shown}" if len(settings) > 1 else "what was said"
    head = ["pair", "truth", said_at, *(setting or "right or not" for setting in settings)]
    lines = [head, ["---"] * len(head)]
    for name in dict.fromkeys(row.name for row in rows):
        here = {row.setting: row for row in rows if row.name == name}
        first = here.get(shown) or next(iter(here.values()))
        answers = [_answer(here[setting]) if setting in here else "" for setting in settings]
        lines.append([name, _cell(first.truth), _cell(_short(first.said)), *answers])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _answer(row: Row) -> str:
    if row.is_unjudged:
        return UNJUDGED
    if not row.right:
        return f"{WRONG}, named next" if row.next_right else WRONG
    return RIGHT


def misses(rows: Sequence[Row]) -> str:
    """What is wrong, in full."""
    lines = []
    for row in rows:
        if not row.right:
            later = " It is among the next calls that are named." if row.next_right else ""
            where = f"{row.setting}, " if row.setting else ""
            lines.append(f"* {where}{row.name}: {row.truth}. Said: {row.said}.{later}")
    return "\n".join(lines) or "None."


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
