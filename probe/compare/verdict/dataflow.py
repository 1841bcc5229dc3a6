"""The graph of one run: which call made each tensor.

The recorder knows the maker of nearly every tensor (`Item.made_by`). Where it does not, because the dump is of another
tool or the maker is code that is not recorded, a tensor with the numbers of an earlier one is taken for that one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import Enum
from functools import cached_property
from typing import NamedTuple, Optional

from probe.common.dump.naming import parse
from probe.common.dump.reading.records import INPUT, PARAMETERS, Item
from probe.common.dump.sketch_file import DATA, VIEW, SketchTable

_PARAMETER, _BUFFER, _GRADIENT = "parameter:", "buffer:", "gradient:"


class Origin(Enum):
    """The kind of thing that made a tensor."""

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
        twin: the graph of another run with the same calls and makers, which knows the same sources of these.
    """

    def __init__(
        self,
        calls: Sequence[tuple[str, list[Item]]],
        table: SketchTable | None = None,
        twin: Graph | None = None,
    ) -> None:
        self._calls, self._table = calls, table
        self._made: dict[str, Source] = {} if twin is None else twin._made
        """The sources of items that were asked for and whose makers are recorded."""

    def source(self, item: Item) -> Source:
        """The origin of a tensor that a call takes, or that it returns without having made it."""
        found = self._made.get(item.name)
        if found is not None:
            return found
        text = self._made_by(item)
        if text is not None:
            # Of an output: a call returns its argument, or it is a module around the call that made it.
            is_own = text.startswith(DATA) and not _is_given(item)
            found = self._made[item.name] = _UNKNOWN if is_own else self._of_maker(text)
        elif not _is_given(item):
            return _UNKNOWN
        else:
            found = self._recognised.get(item.name)
            if found is None:
                found = self._recognised[item.name] = self._parameters.get(self._label(item), _UNKNOWN)
        return found

    def takers(self, record: str) -> list[str]:
        """The records that take what `record` returned."""
        return self._takers.get(record, [])

    @cached_property
    def _takers(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for record, items in self._calls:
            for item in items:
                if _is_given(item):
                    source = self.source(item)
                    if source.record is not None:
                        found.setdefault(source.record, []).append(record)
        return found

    @cached_property
    def _record_of(self) -> dict[str, str]:
        """The records that returned each item."""
        return {
            item.name: record
            for record, items in self._calls
            for item in items
            if item.is_tensor and not _is_given(item)
        }

    @cached_property
    def _recognised(self) -> dict[str, Source]:
        """The sources of tensors whose maker is not known: the latest before them that has the same numbers."""
        wanted = {
            _numbers(item)
            for _, items in self._calls
            for item in items
            if _is_given(item) and self._made_by(item) is None
        }
        latest: dict[Hashable, Source] = {}
        found: dict[str, Source] = {}
        for record, items in self._calls:
            for item in items:
                if not item.is_tensor or _numbers(item) not in wanted:
                    continue
                label = self._label(item)
                if label is None:
                    continue
                if not _is_given(item):
                    latest[label] = Source(Origin.CALL, item.name, record)
                elif label in latest and self._made_by(item) is None:
                    found[item.name] = latest[label]
        return found

    @cached_property
    def _parameters(self) -> dict[Hashable, Source]:
        """The parameters of modules, which functions inside of them take, by their numbers if no other has these."""
        found: dict[Hashable, set[str]] = {}
        for record, items in () if self._table is not None else self._calls:
            parsed = parse(record)
            path = "" if parsed is None else parsed.base.rpartition(".")[0].partition(".")[2]
            for item in items:
                if item.state == PARAMETERS and item.is_tensor:
                    name = f"{path}.{item.name.rpartition('.')[2]}".lstrip(".")
                    found.setdefault(self._label(item), set()).add(name)
        found.pop(None, None)
        return {label: Source(Origin.PARAMETER, min(names)) for label, names in found.items() if len(names) == 1}

    def _made_by(self, item: Item) -> str | None:
        # An item that both runs have in common knows the table of one of them alone.
        return None if self._table is None else self._table.made_by(item.name)

    def _label(self, item: Item) -> Hashable | None:
        """The numbers of a tensor by which it is known again; ``None`` of a constant, which many tensors are."""
        if item.max is None:
            return item.md5
        if item.max == item.min:
            return None
        sketch = None if self._table is None else self._table.sketch(item.name)
        return None if sketch is None else sketch.sums.tobytes(), _numbers(item)

    def _of_maker(self, text: str) -> Source:
        is_view = text.startswith(VIEW)
        if is_view:
            text = text[len(VIEW) :]
        for start, origin in _STARTS:
            if text.startswith(start):
                return Source(origin, text[len(start) :], None, is_view)
        return Source(Origin.CALL, text, self._record_of.get(text), is_view)


def _is_given(item: Item) -> bool:
    """True if it is a tensor that a call takes."""
    return (item.state == INPUT or item.state == PARAMETERS) and item.is_tensor


def _numbers(item: Item) -> Hashable:
    return item.max, item.min, item.mean, item.norm, item.md5


_STARTS = (
    (_PARAMETER, Origin.PARAMETER), (_BUFFER, Origin.BUFFER), (_GRADIENT, Origin.GRADIENT), (DATA, Origin.DATA),
)  # fmt: skip
