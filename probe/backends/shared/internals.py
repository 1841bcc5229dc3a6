"""Parts of a framework that only some of its releases have, each looked up once, in one module per backend.

A framework may rename or remove at any release what its documentation does not promise. So nothing else in a backend
reaches for such a part by itself: `internals.py` of the backend finds all of them, gives a stand-in for each that is
absent, and states which feature of the tool that costs. The rest of the tool works without it.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, NamedTuple

ABSENT: Any = object()


class Absent(NamedTuple):
    """A part that the installed release does not have."""

    path: str
    cost: str
    """The lack without it, as a clause: ``calls of built-in functions have no records``."""


class Internals:
    """Finds parts of one framework, and notes those that are absent.

    Args:
        framework: The name of the framework's package.
    """

    def __init__(self, framework: str) -> None:
        self._framework = framework
        self.absent: list[Absent] = []
        """Parts whose absence costs a feature, in the order in which they were looked up."""

    def find(self, path: str, otherwise: Any, cost: str = "") -> Any:
        """The part at `path` below the framework's package, or a stand-in.

        Args:
            path: Such as ``_C._autograd._get_sequence_nr``.
            otherwise: The stand-in where it is absent.
            cost: See `Absent`; empty where the stand-in does the same, or where a release without the part has nothing
                that it would be needed for.
        """
        found = find(f"{self._framework}.{path}")
        if found is not ABSENT:
            return found
        if cost:
            self.absent.append(Absent(f"{self._framework}.{path}", cost))
        return otherwise

    def absent_text(self, release: str) -> str:
        """One line on what is absent and what that costs; empty where all is there.

        Args:
            release: The framework's version.
        """
        if not self.absent:
            return ""
        costs = "; ".join(dict.fromkeys(part.cost for part in self.absent))
        paths = ", ".join(part.path for part in self.absent)
        return f"{self._framework} {release} has no {paths}: {costs}."


def find(path: str) -> Any:
    """The module or attribute at a dotted path, `ABSENT` where there is none.

    A package may have deleted the name of a module inside it, which can still be imported.
    """
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            owner = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        return functools.reduce(lambda at, part: getattr(at, part, ABSENT), parts[length:], owner)
    return ABSENT
