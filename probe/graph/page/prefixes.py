"""Paths without prefixes, and the source code around calls, before others may read them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from probe.common.dump.layout import is_of_layout
from probe.common.dump.stack_text import parse_frame
from probe.common.given_paths import as_given
from probe.compare.evidence import users_line

AUTOMATIC, WITHOUT = "auto", "all"
"""The values of `Prefixes` besides paths: cut the common prefix of all, and leave the stacks out, too."""

PACKAGES = re.compile(r"^.*[/\\](?:site|dist)-packages[/\\]|^.*[/\\]lib(?:64)?[/\\]python\d[\d.]*[/\\]")
_BEGINNING = r"(?<![\w.\-/\\])"
"""The beginning of a path in a sentence."""
_ABSOLUTE = re.compile(_BEGINNING + r"(?:/|[A-Za-z]:\\)[^\s,;'\"()\[\]<>]*[^\s,;'\"()\[\]<>.:]")


class Prefixes:
    """The prefixes that are cut off paths before others may read them.

    Args:
        prefixes: beginnings of paths; `AUTOMATIC` for the folders of packages, the deepest one that all other files
            are in, and the location of the dumps; `WITHOUT` leaves the stacks out besides.
    """

    def __init__(self, prefixes: Sequence[str] = ()) -> None:
        self.leave_out = WITHOUT in prefixes
        self.automatic = self.leave_out or AUTOMATIC in prefixes
        given = (prefix for prefix in prefixes if prefix not in (AUTOMATIC, WITHOUT))
        # A folder inside of another one is cut off whole.
        self._given = sorted(filter(None, given), key=len, reverse=True)
        self._in_texts = [re.compile(_BEGINNING + re.escape(prefix) + r"[/\\]*") for prefix in self._given]

    def __bool__(self) -> bool:
        """True if anything is cut off."""
        return self.automatic or bool(self._given)

    def path(self, path: str) -> str:
        """A path of this machine without what is cut off."""
        path = as_given(path)
        found = self._cut(path)
        if found != path or not self.automatic:
            return found or os.path.basename(path.rstrip("/\\"))
        is_elsewhere = os.path.isabs(path) or path.split(os.sep, 1)[0] == os.pardir
        return _without_parents(os.path.abspath(path)) if is_elsewhere else path

    def text(self, text: str, known: Iterable[str] = ()) -> str:
        """A sentence in which each path is without what is cut off.

        Args:
            known: paths that may be in it, and that a search would not find whole, as there are blanks in them.
        """
        text = as_given(text)
        for path in map(as_given, known):
            if path in text:
                text = text.replace(path, self.path(path))
        for prefix in self._in_texts:
            text = prefix.sub("", text)
        return _ABSOLUTE.sub(lambda found: self.path(found[0]), text) if self.automatic else text

    def lines(self, frames: Iterable[str]) -> dict[str, str]:
        """Each of `frames` as it is shown."""
        frames = list(dict.fromkeys(frames))
        common = _common_folder(frames) if self.automatic else ""
        return {frame: self._line(frame, common) for frame in frames}

    def _line(self, frame: str, common: str) -> str:
        found = parse_frame(frame)
        if found is None or not self:
            return frame
        path = self._cut(found.path)
        if self.automatic and path == found.path:
            path = PACKAGES.sub("", path)
            path = path[len(common) :] if common and path.startswith(common) else path
        return f"{frame[: found.start]}{path}{frame[found.start + len(found.path) :]}"

    def _cut(self, path: str) -> str:
        found = next((prefix for prefix in self._given if path.startswith(prefix)), "")
        return path[len(found) :].lstrip("/\\") if found else path


def _without_parents(path: str) -> str:
    """An absolute path as it is seen from here; one that is elsewhere from the folder on that names the run."""
    below = os.path.relpath(path)
    if below.split(os.sep, 1)[0] != os.pardir:
        return below
    *above, last = path.rstrip(os.sep).split(os.sep)
    kept = [last]
    while above and above[-1] and is_of_layout(kept[0]):
        kept.insert(0, above.pop())
    return os.path.join(*kept)


def _common_folder(frames: Sequence[str]) -> str:
    """The deepest folder that holds all files of `frames` but those of packages."""
    paths = [found.path for found in map(parse_frame, frames) if found is not None]
    folders = {os.path.dirname(path) for path in paths if os.path.isabs(path) and not PACKAGES.match(path)}
    try:
        return os.path.join(os.path.commonpath(folders), "") if folders else ""
    except ValueError:
        return ""  # on several drives


# --- code


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
