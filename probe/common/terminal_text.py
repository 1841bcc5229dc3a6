"""Terminal text: what comes from elsewhere is printed as one line, and nothing in it is a command to the terminal.

Names of records, files and modules come from dumps, and these from anywhere: an escape sequence in one would be obeyed
by the terminal, and a line break would let it add lines that look like the tool's own.
"""

from __future__ import annotations

import sys
import unicodedata
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
