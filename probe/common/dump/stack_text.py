"""The text of a call stack in stack.json: one line of it for each frame, with the source that is read here."""

from __future__ import annotations

import linecache

from probe.common.callstack import Frame


def frame_text(frame: Frame) -> str:
    """The text of one frame, or an empty one when its source cannot be found.

    Example:
        >>> frame_text(("missing.py", 3, "train"))
        ''
    """
    path, line, function = frame
    source = linecache.getline(path, line).strip()
    return f"File {path}, line {line}, in {function}, \n {source}" if source else ""
