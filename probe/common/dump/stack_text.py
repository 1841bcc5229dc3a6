"""The text of a call stack in stack.json: one line of it for each frame, with the source that is read here."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence

from probe.common.callstack import Frame

# Files of the frameworks themselves; an environment may lie in a folder of that name.
_FRAMEWORK = re.compile(r"[/\\\\](torch|mindspore|mindnlp|mindtorch)[/\\\\](?!.*[/\\\\](site|dist)-packages[/\\\\])")
_FRAME = re.compile(r"File (?P<path>.+), line (?P<line>\d+), in (?P<function>[^,]+), *(?P<source>.*)")


def frame_text(frame: Frame) -> str:
    """The text of one frame, or an empty one when its source cannot be found.

    Example:
        >>> frame_text(("missing.py", 3, "train"))
        ''
    """
    path, line, function = frame
    source = linecache.getline(path, line).strip()
    return f"File {path}, line {line}, in {function}, \n {source}" if source else ""


def users_line(stack: Sequence[str]) -> str:
    """The innermost line of a call stack that is not a framework's own."""
    return next((line for line in stack if not _FRAMEWORK.search(line)), stack[0])


def short_frame(line: str) -> str:
    """A frame in one line, with its position as editors and terminals open it.

    Example:
        >>> short_frame("File src/train.py, line 15, in forward, \\n hidden = self.norm(x)")
        'src/train.py:15 in forward: hidden = self.norm(x)'
    """
    text = " ".join(line.split())
    found = _FRAME.fullmatch(text)
    if found is None:
        return text
    path, number, function, source = found.group("path", "line", "function", "source")
    return f"{path}:{number} in {function}{f': {source}' if source else ''}"


def is_same_line(one: str, other: str) -> bool:
    """True if two frames are the same line of a file, whatever the folder of the file."""
    frames = [_FRAME.fullmatch(" ".join(each.split())) for each in (one, other)]
    first, second = (
        None if each is None else (re.split(r"[/\\\\]", each["path"])[-1], *each.group("line", "function", "source"))
        for each in frames
    )
    return first == second if first is not None else one == other
