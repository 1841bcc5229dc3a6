"""Text from elsewhere, made harmless: for a terminal, and for a notebook."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TextIO


def printable(text: str) -> str:
    """`text` with control characters, line breaks, marks of direction and lone surrogates as Python escapes them.

    Example:
        >>> print(printable("relu\\n\\x1b[2J"))
        relu\\n\\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(character if _is_shown(character) else repr(character)[1:-1] for character in text)


def _is_shown(character: str) -> bool:
    # Blanks of other scripts are not "printable", but stand in paths.
    return character.isprintable() or unicodedata.category(character) == "Zs"


def print_text(text: object, stream: TextIO | None = None) -> None:
    """Print `text` as one line, on standard output unless another stream is given."""
    print(printable(str(text)), file=stream or sys.stdout)


# --- html table


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
    from html import escape  # its table of entities is needed in a notebook alone

    return escape(printable(text))


# --- show


_SHOWN_CHARACTERS = 80
"""Characters of a value in a message; a guess."""


def show(value: object) -> str:
    """`value` as it is written in JSON, cut when it is long; of a container only its kind.

    Example:
        >>> show("L3"), show([1, 2])
        ('"L3"', 'a list of 2')
    """
    if isinstance(value, str):
        # A lone surrogate is legal in JSON text and cannot be printed.
        value = value[: _SHOWN_CHARACTERS + 1].encode("utf-8", "backslashreplace").decode()
        if len(value) > _SHOWN_CHARACTERS:
            value = value[:_SHOWN_CHARACTERS] + "..."
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int) and abs(value) >= 10**_SHOWN_CHARACTERS:
        return "a very large number"
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    return "an object" if isinstance(value, dict) else f"of type {type(value).__name__}"
