"""The lines of source code around calls, and the folders in which the two runs have their own files."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from probe.common.dump.stack_text import parse_frame
from probe.compare.evidence import users_line
from probe.graph.page.prefixes import PACKAGES

Around = tuple[int, list[str]]
"""The number of the first line, and the lines."""

_LINES_AROUND = 3
"""The number of lines on each side of the call, the same as in a diff."""
_LARGEST = 4_000_000
"""Bytes of a file; no source that a person wrote is larger (the largest module of torch has 1.2 MB)."""


class Code(NamedTuple):
    """The code around the calls of two runs, by the frames of their stacks."""

    target: Mapping[str, Around] = {}
    golden: Mapping[str, Around] = {}
    roots: tuple[str, str] = ("", "")
    """The folder of each side below which both have the same files."""


def code_of(target: Mapping[str, list[str]] | None, golden: Mapping[str, list[str]] | None) -> Code:
    """The code around the calls of two runs, as far as the files are still those that ran.

    Args:
        target: the stack of each call, innermost line first.
        golden: the same of the other run.
    """
    stacks = [list({id(stack): stack for stack in (side or {}).values()}.values()) for side in (target, golden)]
    files: dict[str, list[str] | None] = {}
    mine, theirs = ({frame: _around(frame, files) for frame in _shown(side)} for side in stacks)
    own = [own_files(line for stack in side for line in stack) for side in stacks]
    kept = [{frame: found for frame, found in side.items() if found is not None} for side in (mine, theirs)]
    return Code(kept[0], kept[1], roots(*own))


def _shown(stacks: Iterable[Sequence[str]]) -> dict[str, None]:
    """The frames whose code is shown: the line that the answer names, and the innermost one of the user's own files."""
    found: dict[str, None] = {}
    for stack in stacks:
        if stack:
            found[users_line(stack)] = None
            found.update(dict.fromkeys([line for line in stack if _is_own(line)][:1]))
    return found


def _is_own(line: str) -> bool:
    frame = parse_frame(line)
    return frame is not None and not PACKAGES.match(frame.path)


def own_files(lines: Iterable[str]) -> set[str]:
    """The files of frames that belong to no package."""
    frames = map(parse_frame, dict.fromkeys(lines))
    return {frame.path for frame in frames if frame is not None and not PACKAGES.match(frame.path)}


def _around(frame: str, files: dict[str, list[str] | None]) -> Around | None:
    """The lines around a frame; ``None`` where the file is gone or has another line there now."""
    found = parse_frame(frame)
    if found is None or not found.source:
        return None
    path, number, code = found.path, found.line, found.source
    if path not in files:
        files[path] = _lines_of(path)
    lines = files[path]
    # A dump may name any file: only one that has the recorded line where it is said to be is the source of the call.
    if lines is None or not 0 < number <= len(lines) or lines[number - 1].strip() != code.splitlines()[0].strip():
        return None
    first = max(1, number - _LINES_AROUND)
    return first, [line.rstrip() for line in lines[first - 1 : number + _LINES_AROUND]]


def _lines_of(path: str) -> list[str] | None:
    if not path.endswith(".py"):
        return None
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > _LARGEST:
            return None
        with open(path, encoding="utf-8") as stream:
            return stream.read().splitlines()
    except (OSError, UnicodeError):
        return None  # The page is whole without it.


def roots(target: Iterable[str], golden: Iterable[str]) -> tuple[str, str]:
    """The folders of two checkouts: what is left of paths in front of the longest end that files of both share.

    Example:
        >>> roots({"/a/repo/train.py", "/a/repo/model.py"}, {"/b/new/repo/train.py", "/b/new/repo/model.py"})
        ('/a/', '/b/new/')
    """
    mine, theirs = set(target), set(golden)
    votes: Counter[tuple[str, str]] = Counter()
    for path in sorted(mine - theirs):
        pairs = [_apart(path, other) for other in sorted(theirs - mine)]
        # The longest common end is that of the shortest beginning.
        best = min((pair for pair in pairs if pair[0] != path), key=lambda pair: len(pair[0]), default=None)
        if best is not None:
            votes[best] += 1
    if votes:
        return max(votes.items(), key=lambda each: (each[1], -len(each[0][0])))[0]
    folders = [os.path.dirname(path) for path in mine | theirs if os.path.isabs(path)]
    try:
        folder = os.path.join(os.path.commonpath(folders), "") if folders else ""
    except ValueError:
        folder = ""  # on several drives
    return folder, folder


def _apart(path: str, other: str) -> tuple[str, str]:
    """Two paths without the folders and the name at their ends that are the same."""
    mine, theirs = re.split(r"(?<=[/\\])", path), re.split(r"(?<=[/\\])", other)
    while mine and theirs and mine[-1] == theirs[-1]:
        mine.pop()
        theirs.pop()
    return "".join(mine), "".join(theirs)
