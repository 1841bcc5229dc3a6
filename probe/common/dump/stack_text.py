"""The text of a call stack in stack.json: one line of it for each frame, with the source that is read here."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Sequence
from typing import NamedTuple

from probe.common.callstack import GAP, Frame

# Files of the frameworks themselves; an environment may lie in a folder of that name.
_FRAMEWORK = re.compile(r"[/\\\\](torch|mindspore|mindnlp|mindtorch)[/\\\\](?!.*[/\\\\](site|dist)-packages[/\\\\])")
_FRAME = re.compile(
    r"\s*File \"?(?P<path>[^\n]+?)(?=\"?(?:, line \d|\n|\Z))\"?"
    r"(?:, line (?P<line>\d+)(?:, in (?P<function>[^\n,]*),?)?)?\s*(?P<source>.*)",
    re.DOTALL,
)


GAP_TEXT = "... the frames in the middle of this long stack are left out ..."
"""Has no number, so that calls of one line that differ in their depth alone have one text; the schema has it too."""


class ParsedFrame(NamedTuple):
    """The parts of a frame's text, as this tool and Python write it."""

    path: str
    line: int
    """0 if the text has none."""
    function: str
    source: str
    """The source of the line; several lines where a statement has them."""
    start: int
    """The index in the text at which the path begins."""

    @property
    def file(self) -> str:
        """The name of the file without its folder."""
        return re.split(r"[/\\]", self.path)[-1]


def parse_frame(text: str) -> ParsedFrame | None:
    """The parts of a line of a call stack; ``None`` of a text of another form.

    Example:
        >>> parse_frame("File src/train.py, line 15, in forward, \\n hidden = self.norm(x)")[:4]
        ('src/train.py', 15, 'forward', 'hidden = self.norm(x)')
    """
    found = _FRAME.match(text)
    if found is None:
        return None
    path, line, function, source = found.group("path", "line", "function", "source")
    return ParsedFrame(path, int(line or 0), (function or "").strip(), source.strip(), found.start("path"))


def frame_text(frame: Frame) -> str:
    """The text of one frame, or an empty one when its source cannot be found.

    Example:
        >>> frame_text(("missing.py", 3, "train"))
        ''
    """
    if frame == GAP:
        return GAP_TEXT
    path, line, function = frame
    # A damaged journal may name a device, which never ends, or no name of a file at all.
    if path not in linecache.cache and os.path.exists(path) and not os.path.isfile(path):
        return ""
    try:
        source = linecache.getline(path, line).strip()
    except ValueError:
        return ""
    return f"File {_cell(path) or path}, line {line}, in {function}, \n {source}" if source else ""


def _cell(path: str) -> str:
    """The cell of a notebook whose code is said to be in `path`, a temporary name; empty for a file.

    Example:
        ``Cell In[3]``
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    name = getattr(getattr(shell, "compile", None), "format_code_name", None)
    return " ".join((name(path) if name is not None else None) or ())


def users_line(stack: Sequence[str]) -> str:
    """The innermost line of a call stack that is not a framework's own."""
    return next((line for line in stack if not _FRAMEWORK.search(line)), stack[0])


def short_frame(line: str) -> str:
    """A frame in one line, with its position as editors and terminals open it.

    Example:
        >>> short_frame("File src/train.py, line 15, in forward, \\n hidden = self.norm(x)")
        'src/train.py:15 in forward: hidden = self.norm(x)'
    """
    found = parse_frame(line)
    if found is None or not found.line:
        return " ".join(line.split())
    source = " ".join(found.source.split())
    return f"{found.path}:{found.line} in {found.function}{f': {source}' if source else ''}"


def is_same_line(one: str, other: str) -> bool:
    """True if two frames are the same line of a file, whatever the folder of the file."""
    first, second = (
        None if found is None else (found.file, found.line, found.function, found.source.split())
        for found in map(parse_frame, (one, other))
    )
    return first == second if first is not None else one == other
