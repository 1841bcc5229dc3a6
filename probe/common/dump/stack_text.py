"""A stack frame as one line of stack.json."""

from __future__ import annotations

import linecache

Frame = tuple[str, int, str]
"""File, line, function."""


def frame_text(frame: Frame) -> str:
    """One line of stack.json, or an empty text when the source cannot be found."""
    path, line, function = frame
    source = linecache.getline(path, line).strip()
    return f"File {path}, line {line}, in {function}, \n {source}" if source else ""
