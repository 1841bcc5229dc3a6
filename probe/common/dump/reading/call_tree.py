"""The call tree of a dump: which call ran inside which module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Optional

from probe.common.dump import naming


class CallTree(dict[str, Optional[str]]):
    """Every call in the order of their beginnings, and the call it ran inside; ``None`` at the top.

    It is the dictionary that construct.json holds; ``str`` of it is an outline.
    """

    @cached_property
    def _children(self) -> dict[str | None, list[str]]:
        found: dict[str | None, list[str]] = {}
        for name, parent in self.items():
            found.setdefault(parent if parent in self else None, []).append(name)
        return found

    @property
    def roots(self) -> list[str]:
        """The calls that ran inside of no other."""
        return list(self._children.get(None, ()))

    def children(self, name: str) -> list[str]:
        """The calls that ran directly inside the call `name`, in order."""
        return list(self._children.get(name, ()))

    def walk(self) -> Iterator[tuple[int, str]]:
        """Every call with its depth, 0 at the top, each before those inside it."""
        seen: set[str] = set()
        # A damaged file may say that calls are inside of themselves: these are reached from no root.
        for root in (*self.roots, *self):
            ahead = [(0, root)]
            while ahead:
                depth, name = ahead.pop()
                if name not in seen:
                    seen.add(name)
                    yield depth, name
                    ahead += ((depth + 1, child) for child in reversed(self._children.get(name, ())))

    def module(self, name: str) -> str | None:
        """The innermost module around a call, or the call itself if it is one; ``None`` at the top."""
        seen: set[str] = set()
        found: str | None = name
        while found is not None and found not in seen and not naming.is_module(found):
            seen.add(found)
            found = self.get(found)
        return found if found is not None and naming.is_module(found) else None

    def around(self, name: str) -> Iterator[str]:
        """The calls around the call `name`, innermost first."""
        return around(self, name)

    def around_any(self, names: Iterable[str]) -> set[str]:
        """The calls around at least one of `names`; each is visited once, however deep the names are."""
        found: set[str] = set()
        for name in names:
            for call in self.around(name):
                if call in found:
                    break
                found.add(call)
        return found

    def __str__(self) -> str:
        return "\n".join(f"{'  ' * depth}{name}" for depth, name in self.walk())


_SHOWN = 3
"""The calls of a circle that are named."""


def circle_in(tree: Mapping[str, Optional[str]]) -> str:  # noqa: UP045
    """A description of the first calls that are inside of each other, or of themselves; empty if there are none.

    Example:
        >>> circle_in({"Module.a.A.forward.0": "Module.a.A.forward.0"})
        'Module.a.A.forward.0 is inside of itself'
    """
    done: set[str] = set()
    for name, above in tree.items():
        # In a circle, one call at least is inside of a later one, or of itself.
        if above is not None and above not in done and above in tree:
            break
        done.add(name)
    else:
        return ""
    done.clear()
    for name in tree:
        path: dict[str, None] = {}
        found: str | None = name
        while found is not None and found not in done and found not in path:
            path[found] = None
            found = tree.get(found)
        if found is not None and found in path:
            calls = list(path)
            return _in_words(calls[calls.index(found) :])
        done.update(path)
    return ""


def _in_words(circle: list[str]) -> str:
    first = circle[0]
    if len(circle) == 1:
        return f"{first} is inside of itself"
    more = ["..."] if len(circle) > _SHOWN else []
    chain = ", which is inside of ".join([*circle[:_SHOWN], *more, first])
    return f"{len(circle)} calls are inside of each other in a circle: {chain}"


def around(tree: Mapping[str, Optional[str]], name: str) -> Iterator[str]:  # noqa: UP045
    """The calls around the call `name`, innermost first."""
    seen = {name}
    parent = tree.get(name)
    # A damaged file may say that a call is inside of itself.
    while parent is not None and parent not in seen:
        seen.add(parent)
        yield parent
        parent = tree.get(parent)
