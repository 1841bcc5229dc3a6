"""Removal of prefixes from paths before others may read them: in stacks, in the names of dumps, and in sentences."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from probe.common.dump.layout import is_of_layout
from probe.common.dump.stack_text import parse_frame

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
        for path in known:
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
