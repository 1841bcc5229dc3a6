"""A small table for notebooks. Nothing in it is more than text: names come from dumps, and these from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from probe.common.terminal_text import printable


def paragraph(text: str) -> str:
    """`text` as a paragraph."""
    return f"<p>{_text(text)}</p>"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a header, or nothing where there is no row."""
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{_cells('th', columns)}</tr></thead>"
    return f'<table style="font-family:monospace">{head}<tbody>{body}</tbody></table>' if body else ""


def _cells(tag: str, cells: Sequence[object]) -> str:
    return "".join(f"<{tag}>{'' if cell is None else _text(str(cell))}</{tag}>" for cell in cells)


def _text(text: str) -> str:
    return escape(printable(text))
