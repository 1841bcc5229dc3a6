"""Call stacks as a page has them: each line once, each stack once, beginnings of paths cut off."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from probe.graph.page.texts import Texts

AUTOMATIC, WITHOUT = "auto", "all"
"""What `Prefixes` takes besides paths: cut what all have in common, and leave the stacks out."""

_PATH = re.compile(r"\s*File \"?([^\n,\"]+)")
_PACKAGES = re.compile(r"^.*[/\\](?:site|dist)-packages[/\\]|^.*[/\\]lib(?:64)?[/\\]python\d[\d.]*[/\\]")


class Prefixes:
    """What is cut off paths before others may read them.

    Args:
        prefixes: beginnings of paths; `AUTOMATIC` for the folders of packages, and the deepest one that all other
            files are in; `WITHOUT` leaves the stacks out.
    """

    def __init__(self, prefixes: Sequence[str] = ()) -> None:
        self.leave_out = WITHOUT in prefixes
        self.automatic = AUTOMATIC in prefixes
        given = (prefix for prefix in prefixes if prefix not in (AUTOMATIC, WITHOUT))
        # A folder inside of another one is cut off whole.
        self._given = sorted(given, key=len, reverse=True)

    def path(self, path: str) -> str:
        """A path of this machine without what is cut off."""
        found = self._cut(path)
        return os.path.relpath(path) if found == path and self.automatic and os.path.isabs(path) else found

    def lines(self, frames: Iterable[str]) -> dict[str, str]:
        """Each of `frames` as it is shown."""
        frames = list(dict.fromkeys(frames))
        common = _common_folder(frames) if self.automatic else ""
        return {frame: self._line(frame, common) for frame in frames}

    def _line(self, frame: str, common: str) -> str:
        match = _PATH.match(frame)
        if match is None or not (self._given or self.automatic):
            return frame
        path = self._cut(match[1])
        if self.automatic and path == match[1]:
            path = _PACKAGES.sub("", path)
            path = path[len(common) :] if common and path.startswith(common) else path
        return f"{frame[: match.start(1)]}{path}{frame[match.end(1) :]}"

    def _cut(self, path: str) -> str:
        found = next((prefix for prefix in self._given if path.startswith(prefix)), "")
        return path[len(found) :].lstrip("/\\") if found else path


def _common_folder(frames: Sequence[str]) -> str:
    """The deepest folder that holds all files of `frames` but those of packages."""
    paths = [match[1] for match in map(_PATH.match, frames) if match is not None]
    folders = {os.path.dirname(path) for path in paths if os.path.isabs(path) and not _PACKAGES.match(path)}
    try:
        return os.path.join(os.path.commonpath(folders), "") if folders else ""
    except ValueError:
        return ""  # on several drives


class StackTable:
    """The stacks of several dumps, each once; a stack is indices of its lines."""

    def __init__(self) -> None:
        self.frames = Texts()
        self._places: dict[tuple[int, ...], int] = {}

    @property
    def stacks(self) -> list[tuple[int, ...]]:
        return list(self._places)

    def place(self, stack: tuple[int, ...]) -> int:
        """Where a stack is, given where its lines are."""
        return self._places.setdefault(stack, len(self._places))

    def add(
        self, names: Sequence[str], stacks: Mapping[str, list[str]] | None, prefixes: Prefixes
    ) -> NDArray[np.int64]:
        """Where the stack of each of `names` is; -1 without one."""
        if not stacks or prefixes.leave_out:
            return np.full(len(names), -1, dtype=np.int64)
        # Calls from the same place share one list.
        different = {id(stack): stack for stack in stacks.values()}
        shown = prefixes.lines(line for stack in different.values() for line in stack)
        place = self.frames.place
        places = {
            key: self.place(tuple(place(shown[line]) for line in stack)) if stack else -1
            for key, stack in different.items()
        }
        nothing: list[str] = []
        places[id(nothing)] = -1
        return np.array([places[id(stacks.get(name, nothing))] for name in names], dtype=np.int64)
