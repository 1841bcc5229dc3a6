"""A comparison as others may see it: whatever is said of paths of this machine goes through `Prefixes`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Any

import msgspec

from probe.common.align.calls import Row
from probe.common.dump.reading.items import Item
from probe.common.dump.reading.sources import Stacks
from probe.common.given_paths import as_given
from probe.compare.evidence import Difference, Divergence, Summary, users_line
from probe.graph.diff import GraphDiff
from probe.graph.graph import Graph
from probe.graph.page.prefixes import Code, Prefixes, code_of, own_files, roots


def without_paths(diff: GraphDiff, prefixes: Prefixes) -> GraphDiff:
    """A comparison without what is cut off, and with paths as they were given; the given one stays as it is."""
    return _Cutting(diff, prefixes).diff() if prefixes or _is_of_pack(diff) else diff


def _is_of_pack(diff: GraphDiff) -> bool:
    return any(as_given(graph.path) != graph.path for graph in (diff.target, diff.golden) if graph is not None)


class _Cutting:
    def __init__(self, diff: GraphDiff, prefixes: Prefixes) -> None:
        self._diff, self._prefixes = diff, prefixes
        paths = {graph.path for graph in (diff.target, diff.golden) if graph is not None}
        # A sentence that names an argument does not say where a path with blanks ends.
        self._known = sorted(paths.union(_path_arguments(diff)), key=len, reverse=True)

    def diff(self) -> GraphDiff:
        diff = self._diff
        return replace(
            diff,
            target=self._graph(diff.target),
            golden=None if diff.golden is None else self._graph(diff.golden),
            why=self._texts(diff.why),
            cause=self._texts(diff.cause),
            golden_why=self._texts(diff.golden_why),
            golden_cause=self._texts(diff.golden_cause),
            items=self._items(diff.items),
            golden_items=self._items(diff.golden_items),
            summary=None if diff.summary is None else self._summary(diff.summary),
            stacks=self._stacks(diff.stacks),
            golden_stacks=self._stacks(diff.golden_stacks),
            notes=[self._text(note) for note in diff.notes],
            code=self._code(),
            is_without_paths=True,
        )

    def _text(self, text: str) -> str:
        return self._prefixes.text(text, self._known)

    def _texts(self, texts: dict[int, str]) -> dict[int, str]:
        return {node: self._text(text) for node, text in texts.items()}

    def _graph(self, graph: Graph) -> Graph:
        return replace(graph, path=self._prefixes.path(graph.path), notes=[self._text(note) for note in graph.notes])

    def _stacks(self, stacks: Stacks | None) -> Stacks | None:
        if stacks is None or self._prefixes.leave_out:
            return None
        # Calls from the same place share one list, and do so afterwards.
        different = {id(stack): stack for stack in stacks.values()}
        shown = self._prefixes.lines(line for stack in different.values() for line in stack)
        cut = {key: [shown[line] for line in stack] for key, stack in different.items()}
        return {name: cut[id(stack)] for name, stack in stacks.items()}

    def _code(self) -> Code:
        """The code around calls, by frames as they are shown; none where the stacks are left out."""
        if self._prefixes.leave_out:
            return Code()
        diff = self._diff
        code = code_of(diff.stacks, diff.golden_stacks)
        # Both sides are cut as their stacks are: each by what its own files have in common.
        shown = [self._prefixes.lines(_frames(stacks)) for stacks in (diff.stacks, diff.golden_stacks)]
        sides = (code.target, code.golden)
        target, golden = ({lines[frame]: found for frame, found in side.items()} for lines, side in zip(shown, sides))
        names = [own_files(lines.values()) for lines in shown]
        return Code(target, golden, roots(*names))

    # --- items

    def _items(self, items: dict[int, list[Row]]) -> dict[int, list[Row]]:
        return {node: self._rows(rows) for node, rows in items.items()}

    def _rows(self, rows: list[Row]) -> list[Row]:
        # Hardly any argument is a text, and few rows have messages.
        if not any(row.messages or row.notes or _is_text(row.target) or _is_text(row.golden) for row in rows):
            return rows
        return [self._row(row) for row in rows]

    def _row(self, row: Row) -> Row:
        found = copy(row)
        found.target = self._item(row.target)
        # One object says that both are the same.
        found.golden = found.target if row.golden is row.target else self._item(row.golden)
        found.messages = tuple(map(self._text, row.messages))
        found.notes = tuple(map(self._text, row.notes))
        return found

    def _item(self, item: Item | None) -> Item | None:
        if item is None or not _is_text(item):
            return item
        found = copy(item)
        # The statistics of a plain value are its text once more.
        for field in ("value", "max", "min", "mean", "norm"):
            value: Any = getattr(item, field)
            if type(value) is str:
                setattr(found, field, self._text(value))
        return found

    # --- the verdict

    def _summary(self, summary: Summary) -> Summary:
        path, divergence = self._prefixes.path, summary.divergence
        return msgspec.structs.replace(
            summary,
            target=path(summary.target),
            golden=path(summary.golden),
            divergence=None if divergence is None else self._divergence(divergence),
            suspects=[
                msgspec.structs.replace(each, stack=[], message=self._text(each.message)) for each in summary.suspects
            ],
            tables=list(map(path, summary.tables)),
            without_effect=list(map(self._difference, summary.without_effect)),
            with_effect=list(map(self._difference, summary.with_effect)),
            undecided=list(map(self._difference, summary.undecided)),
        )

    def _difference(self, found: Difference) -> Difference:
        return msgspec.structs.replace(
            found, reason=self._text(found.reason), labelled_reason=self._text(found.labelled_reason)
        )

    def _divergence(self, found: Divergence) -> Divergence:
        calls = [
            msgspec.structs.replace(
                call,
                reason=self._text(call.reason),
                cause=self._text(call.cause),
                labelled_reason=self._text(call.labelled_reason),
                labelled_cause=self._text(call.labelled_cause),
            )
            for call in (found.first, *found.suspects)
        ]
        stack, golden_stack = self._users_line(found.stack), self._users_line(found.golden_stack)
        return msgspec.structs.replace(
            found, first=calls[0], suspects=calls[1:], stack=stack, golden_stack=golden_stack
        )

    def _users_line(self, stack: list[str]) -> list[str]:
        """The line of a stack that is told; which one that is shows in whole paths alone."""
        if not stack or self._prefixes.leave_out:
            return []
        return [self._prefixes.lines(stack)[users_line(stack)]]


def _path_arguments(diff: GraphDiff) -> Iterator[str]:
    """The arguments of calls that are paths."""
    for row in (row for items in (diff.items, diff.golden_items) for rows in items.values() for row in rows):
        for value in (item.value for item in (row.target, row.golden) if item is not None):
            # One of fewer parts is found without this, and may be as short as a slash.
            if type(value) is str and value.count(os.sep) > 1 and os.path.isabs(value):
                yield value


def _frames(stacks: Stacks | None) -> Iterator[str]:
    return (line for stack in {id(each): each for each in (stacks or {}).values()}.values() for line in stack)


def _is_text(item: Item | None) -> bool:
    return item is not None and type(item.value) is str
