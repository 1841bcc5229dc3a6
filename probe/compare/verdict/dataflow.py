"""The graph of one run: which call made each tensor.

The recorder knows the maker of nearly every tensor (`Item.made_by`). Where it does not, because the dump is of another
tool or the maker is code that is not recorded, a tensor with the numbers of an earlier one is taken for that one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import Enum
from typing import NamedTuple, Optional

from probe.common.dump.naming import parse
from probe.common.dump.reading.records import INPUT, PARAMETERS, Item
from probe.common.dump.sketch_file import DATA, VIEW, SketchTable, UnreadTable

_PARAMETER, _BUFFER, _GRADIENT = "parameter:", "buffer:", "gradient:"


class Origin(Enum):
    """Where a tensor comes from."""

    CALL = "call"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    DATA = "data"
    UNKNOWN = "unknown"


class Source(NamedTuple):
    """The origin of a tensor."""

    origin: Origin
    name: str = ""
    """The item that a call returned, the parameter, the buffer, or the item that took the data first."""
    record: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The record that returned it."""
    is_view: bool = False


_UNKNOWN = Source(Origin.UNKNOWN)


class Graph:
    """The sources of the tensors of one run.

    Args:
        calls: the records of the run with their items, in order.
        table: the sketches and makers of the run; ``None`` where it has none.
    """

    def __init__(self, calls: Sequence[tuple[str, list[Item]]], table: SketchTable | UnreadTable | None = None) -> None:
        self._table = table
        self._record_of: dict[str, str] = {}
        self._sources: dict[str, Source] = {}
        self._takers: dict[str, list[str]] = {}
        self._known: dict[str, Source] = {}
        """The sources of makers that were met."""
        wanted = self._without_maker(calls)
        by_label: dict[Hashable, str] = {}
        self._parameters = {} if table is not None else self._parameters_of(calls)
        for record, items in calls:
            for item in items:
                if not item.is_tensor:
                    continue
                if item.state == INPUT or item.state == PARAMETERS:
                    source = self._source(item, by_label)
                    self._sources[item.name] = source
                    if source.record is not None:
                        self._takers.setdefault(source.record, []).append(record)
                else:
                    self._record_of[item.name] = record
                    made_by = self._made_by(item)
                    if made_by is not None and not made_by.startswith(DATA):
                        # A call that returns its argument, or a module around the call that made it.
                        self._sources[item.name] = self._source(item, by_label)
                    if wanted and _numbers(item) in wanted:
                        label = self._label(item)
                        if label is not None:
                            by_label[label] = item.name

    def _without_maker(self, calls: Sequence[tuple[str, list[Item]]]) -> set[Hashable]:
        """The numbers of the tensors that calls take and whose maker is not known: only what has such is looked for."""
        return {
            _numbers(item)
            for _, items in calls
            for item in items
            if (item.state == INPUT or item.state == PARAMETERS) and item.is_tensor and self._made_by(item) is None
        }

    def source(self, item: Item) -> Source:
        """The origin of a tensor that a call takes, or that it returns without having made it."""
        return self._sources.get(item.name, _UNKNOWN)

    def record_of(self, name: str) -> str | None:
        """The record that returned the item `name`."""
        return self._record_of.get(name)

    def takers(self, record: str) -> list[str]:
        """The records that take what `record` returned."""
        return self._takers.get(record, [])

    def _made_by(self, item: Item) -> str | None:
        # An item that both runs have in common knows the table of one of them alone.
        return None if self._table is None else self._table.made_by(item.name)

    def _label(self, item: Item) -> Hashable | None:
        """The numbers of a tensor by which it is known again; ``None`` of a constant, which many tensors are."""
        if item.max == item.min or item.norm is None:
            return None
        sketch = None if self._table is None else self._table.sketch(item.name)
        return None if sketch is None else sketch.sums.tobytes(), _numbers(item)

    def _parameters_of(self, calls: Sequence[tuple[str, list[Item]]]) -> dict[Hashable, Source]:
        """The parameters of modules, which functions inside of them take; by their numbers, if no other has these."""
        found: dict[Hashable, set[str]] = {}
        for record, items in calls:
            for item in items:
                if item.state == PARAMETERS and item.is_tensor:
                    parsed = parse(record)
                    path = "" if parsed is None else parsed.base.rpartition(".")[0].partition(".")[2]
                    name = f"{path}.{item.name.rpartition('.')[2]}".lstrip(".")
                    found.setdefault(self._label(item), set()).add(name)
        found.pop(None, None)
        return {label: Source(Origin.PARAMETER, *names) for label, names in found.items() if len(names) == 1}

    def _source(self, item: Item, by_label: dict[Hashable, str]) -> Source:
        text = self._made_by(item)
        if text is None:
            label = self._label(item)
            name = None if label is None else by_label.get(label)
            if name is None:
                return self._parameters.get(label, _UNKNOWN)
            return Source(Origin.CALL, name, self._record_of[name])
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = self._of_maker(text)
        return found

    def _of_maker(self, text: str) -> Source:
        is_view = text.startswith(VIEW)
        if is_view:
            text = text[len(VIEW) :]
        for start, origin in _STARTS:
            if text.startswith(start):
                return Source(origin, text[len(start) :], None, is_view)
        return Source(Origin.CALL, text, self._record_of.get(text), is_view)


def _numbers(item: Item) -> Hashable:
    return item.max, item.min, item.mean, item.norm


_STARTS = (
    (_PARAMETER, Origin.PARAMETER), (_BUFFER, Origin.BUFFER), (_GRADIENT, Origin.GRADIENT), (DATA, Origin.DATA),
)  # fmt: skip
