"""A small table for notebooks. Nothing in it is more than text: names come from dumps, and these from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from probe.common.terminal_text import printable

_CELL = "text-align:left;font-family:monospace;white-space:nowrap"


def paragraph(text: str) -> str:
    """`text` as a paragraph."""
    return f"<p>{_text(text)}</p>"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a header; an empty one has none."""
    body = "".join(f"<tr>{''.join(_cell('td', cell) for cell in row)}</tr>" for row in rows)
    head = "".join(_cell("th", column) for column in columns)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if body else ""


def _cell(tag: str, content: object) -> str:
    return f'<{tag} style="{_CELL}">{_text(str(content))}</{tag}>'


def _text(text: str) -> str:
    return escape(printable(text))
