"""The compressed blocks of a page, and what its manifest says of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.common.dump.frameworks import of_dump
from probe.common.dump.naming import FORWARD
from probe.common.operations.lookup import argument_name
from probe.common.report.page.filling import packed
from probe.graph.page.columns import Columns
from probe.graph.page.edges import Maker
from probe.graph.page.tensors import StackTable, Texts, rounded

Integers = NDArray[np.int64]

DETAILS_IN_BLOCK = 512
"""Rows of a block: a part of the format of a page. A guess: some tens of kB each, read at once."""
TENSORS_IN_BLOCK = 8192
"""Tensors of a block, for the same size."""


class Blocks:
    """Takes comparisons one after the other and makes the blocks of a page of them.

    Texts, frames and stacks are shared, so that names that occur in many comparisons are written once.
    """

    def __init__(self) -> None:
        self._texts, self._stacks = Texts(), StackTable()
        # Compressing leaves the interpreter to others.
        self._threads = ThreadPoolExecutor(2)
        self._blocks: dict[str, Future[bytes]] = {}
        self._waiting: dict[str, list[Any]] = {}
        """Details that name rows of comparisons which are not there yet."""
        self._calls: dict[tuple[Any, ...], tuple[int, int]] = {}
        """Comparison and row of each call that communicates."""
        self.count = 0
        """The number of comparisons."""

    def add(self, columns: Columns) -> None:
        """Take the next comparison."""
        number, self.count = self.count, self.count + 1
        texts = self._texts.indexes(columns.texts)
        frames = self._stacks.frames.indexes(columns.frames)
        stacks = np.array(
            [self._stacks.index(tuple(frames[list(stack)].tolist())) for stack in columns.stacks], dtype=np.int64
        )
        self._put(f"c{number}", _rows(columns, texts, stacks))
        self._put_code(f"c{number}s", columns)
        if any(columns.items.makers):
            self._put(f"c{number}f", [_moved_makers(makers, texts) for makers in columns.items.makers])
        for part, details in enumerate(_details(columns, texts)):
            if any(row // DETAILS_IN_BLOCK == part for row in columns.details.partners):
                self._waiting[f"c{number}d{part}"] = details
            else:
                self._put(f"c{number}d{part}", details)
        for row in columns.details.partners:
            name = columns.texts[int(columns.name[row])]
            self._calls[_location(columns), columns.rank, name] = number, row
        for part, tensors in enumerate(_tensors(columns, texts)):
            self._put(f"c{number}t{part}", tensors)

    def finished(self) -> dict[str, bytes]:
        """All blocks, those that are needed first at the beginning."""
        shared = {"names": self._texts.texts, "frames": self._stacks.frames.texts, "stacks": self._stacks.stacks}
        for name, details in self._waiting.items():
            self._put(name, [self._with_rows(detail) for detail in details])
        others, self._blocks = self._blocks, {}
        for name, content in shared.items():
            self._put(name, content)
        found = {name: block.result() for name, block in {**self._blocks, **others}.items()}
        self._threads.shutdown()
        return found

    def _with_rows(self, detail: Any) -> Any:
        """A detail with the rows of the calls that it names; of those that are on the page."""
        if not detail or "partners" not in detail:
            return detail
        location, named = detail["partners"]
        calls = ((self._calls.get((location, rank, name)), text) for rank, name, text in named)
        return {**detail, "partners": [(*call, text) for call, text in calls if call is not None]}

    def _put_code(self, name: str, columns: Columns) -> None:
        """The code around calls, by the indexes of frames; no block where there is none."""
        code = {
            side: {str(self._stacks.frames.index(frame)): around for frame, around in found.items()}
            for side, found in (("target", columns.code.target), ("golden", columns.code.golden))
        }
        if any(code.values()):
            self._put(name, code)

    def _put(self, name: str, content: Any) -> None:
        self._blocks[name] = self._threads.submit(packed, content)


def _location(columns: Columns) -> tuple[Any, ...]:
    """The key that comparisons share if their ranks exchange data."""
    return "" if columns.details.is_of_part else columns.run, columns.step, columns.dump_name


def _moved(indexes: Integers, to: Integers) -> Integers:
    """Indexes in one table as those in another; -1 stays."""
    return np.where(indexes >= 0, to[indexes], -1) if len(to) else indexes


def _moved_makers(makers: Sequence[Maker], texts: Integers) -> Any:
    """The makers of a row with their texts in another table; 0 where none is known."""

    def moved(maker: int) -> int:
        return maker if maker >= 0 else -1 - int(texts[-1 - maker])

    return [list(map(moved, each)) if isinstance(each, tuple) else moved(each) for each in makers] or 0


def _rows(columns: Columns, texts: Integers, stacks: Integers) -> dict[str, Any]:
    golden = columns.golden is not None
    same_stacks = not golden or np.array_equal(columns.stack, columns.golden_stack)
    tensors, types = _types(columns, texts)
    return {
        "name": _moved(columns.name, texts).tolist(),
        "golden": _moved(columns.golden_name, texts).tolist() if golden else 0,
        "parent": columns.parent.tolist(),
        "kind": columns.kind.tolist(),
        "status": columns.status.tolist(),
        "reason": columns.reason.tolist(),
        "level": columns.level.tolist(),
        "golden_level": columns.golden_level.tolist(),
        "in": rounded(columns.in_error),
        "out": rounded(columns.out_error),
        "arguments": columns.other_arguments,
        "micro": columns.micro.tolist() if columns.micro.any() else 0,
        "stack": _moved(columns.stack, stacks).tolist(),
        "golden_stack": 0 if same_stacks else _moved(columns.golden_stack, stacks).tolist(),
        "has": columns.has.tolist(),
        "tensors": tensors,
        "types": types,
    }


def _types(columns: Columns, texts: Integers) -> tuple[list[int], list[tuple[tuple[int, int, int], ...]]]:
    """The items of each row with their dtypes and shapes: the index of its list, and the lists, each once.

    With them a search by item, shape or dtype needs no details.
    """
    items, tensors = columns.items, columns.tensors
    names = _moved(items.names, texts)
    # An item of a side with its kind as one number. The lists of most rows have been seen already.
    width = max(1, len(texts) and int(texts.max()) + 1)
    kinds, kind_of = np.unique(
        _moved(tensors.dtypes, texts) * width + _moved(tensors.shapes, texts), return_inverse=True
    )
    count = max(1, len(kinds))
    sides = [
        np.where(side >= 0, names * count + kind_of[side], -1).tolist() if len(kind_of) else [-1] * len(side)
        for side in (items.targets, items.goldens)
    ]
    indexes: dict[tuple[int, ...], int] = {}
    seen: dict[tuple[int, ...], int] = {}
    found = []
    begin = 0
    for end in items.ends.tolist():
        here = (*sides[0][begin:end], *sides[1][begin:end])
        index = seen.get(here)
        if index is None:
            of_both = tuple(dict.fromkeys(item for item in here if item >= 0))
            seen[here] = index = indexes.setdefault(of_both, len(indexes))
        found.append(index)
        begin = end
    pairs = [divmod(kind, width) for kind in kinds.tolist()]
    return found, [tuple((item // count, *pairs[item % count]) for item in each) for each in indexes]


def _details(columns: Columns, texts: Integers) -> Iterator[list[Any]]:
    """The details of rows, as many at a time as a block has."""
    items, said = columns.items, columns.details
    names = texts[items.names].tolist() if len(items.names) else []
    differences, explained = rounded(items.differences), rounded(items.explained)
    metrics: list[Any] = [0] * len(names)
    notes = [""] * len(names)
    for index, each in items.metrics.items():
        metrics[index] = each
    for index, note in items.notes.items():
        notes[index] = note
    lists = (
        items.targets.tolist(),
        items.goldens.tolist(),
        differences,
        metrics,
        list(items.statuses),
        notes,
        explained,
    )
    cells = list(zip(names, *lists))
    ends = items.ends.tolist()
    special = {*said.why, *said.cause, *said.merged, *said.parts, *said.partners}
    for start in range(0, len(columns), DETAILS_IN_BLOCK):
        block: list[Any] = []
        begin = ends[start - 1] if start else 0
        for row in range(start, min(start + DETAILS_IN_BLOCK, len(columns))):
            end = ends[row]
            found: Any = {"i": cells[begin:end]} if end > begin else 0
            begin = end
            if row in special:
                found = {"i": [], **(found or {}), **_said(columns, row)}
            block.append(found)
        yield block


def _said(columns: Columns, row: int) -> dict[str, Any]:
    said = columns.details
    keys: Sequence[tuple[str, dict[int, Any]]] = (
        ("why", said.why), ("cause", said.cause), ("merged", said.merged), ("parts", said.parts),
    )  # fmt: skip
    found = {key: entries[row] for key, entries in keys if row in entries}
    # Rows of other comparisons are known when all are there.
    return {**found, "partners": (_location(columns), said.partners[row])} if row in said.partners else found


def _tensors(columns: Columns, texts: Integers) -> Iterator[dict[str, Any]]:
    """The tensors, as many at a time as a block has."""
    tensors = columns.tensors
    statistics = [column.as_json() for column in tensors.statistics]
    dtypes, shapes = _moved(tensors.dtypes, texts).tolist(), _moved(tensors.shapes, texts).tolist()
    has_checksums = any(checksum is not None for checksum in tensors.checksums)
    has_counts = any(tensors.excluded)
    for start in range(0, len(tensors), TENSORS_IN_BLOCK):
        part = slice(start, start + TENSORS_IN_BLOCK)
        high, low, mean, norm = (column[part] for column in statistics)
        yield {
            "dtype": dtypes[part],
            "shape": shapes[part],
            "grad": tensors.requires_grad[part],
            "max": high,
            "min": low,
            "mean": mean,
            "norm": norm,
            "excluded": tensors.excluded[part] if has_counts else 0,
            "sum": tensors.checksums[part] if has_checksums else 0,
            "value": tensors.values[part],
        }


# --- arguments


def arguments_of(columns: Columns) -> dict[str, list[str]]:
    """The names of the positional arguments of each function that the target calls, as far as they are known.

    The keys are records without their number and direction: ``Functional.linear``.
    """
    if of_dump(columns.target.framework).has_own_names:
        return {}
    found: dict[str, list[str]] = {}
    for index in columns.name.tolist():
        base, _, end = columns.texts[index].rpartition(f".{FORWARD}") if index >= 0 else ("", "", "")
        function, _, number = base.rpartition(".")
        if function and not end and number.isdigit() and function not in found:
            found[function] = _names(base)
    return {function: names for function, names in found.items() if names}


def _names(call: str) -> list[str]:
    names: list[str] = []
    while True:
        item = f"input.{len(names)}"
        name = argument_name(f"{call}.{FORWARD}", item)
        if name == item:
            return names
        names.append(name)
