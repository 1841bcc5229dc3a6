"""Two runs side by side: what every part of the verdict may ask of them. Nothing in it changes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple, Optional

import msgspec

from probe.common.align.calls import Row
from probe.common.dump.naming import BACKWARD, FORWARD, PARAMETERS_GRAD, ParsedName, is_module, parse, record_name
from probe.common.dump.reading.call_tree import around
from probe.common.dump.reading.dump import read
from probe.common.dump.reading.records import INPUT, PARAMETERS, Item
from probe.common.dump.reading.sources import Tree
from probe.common.dump.sketch_file import DATA, VIEW, SketchTable
from probe.common.dump.update_file import Update
from probe.common.environment.environment_file import Settings
from probe.compare.result import Mode
from probe.compare.verdict.facts import Call, Evidence, Precision, Tables

_PARAMETER, _BUFFER, _GRADIENT = "parameter:", "buffer:", "gradient:"


class Origin(Enum):
    """The kind of thing that made a tensor."""

    CALL = "call"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    DATA = "data"
    UNKNOWN = "unknown"


GIVEN = (Origin.PARAMETER, Origin.BUFFER, Origin.DATA)
"""The origins of tensors that no call made."""


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
        self._calls, self._table, self._twin = calls, table, twin
        self._made: dict[str, Source] = {} if twin is None else twin._made
        """The sources of items that were asked for and whose makers are recorded."""
        self._of_maker: dict[str, Source] = {}
        """The source that each maker is: several calls take what one returns."""

    def source(self, item: Item) -> Source:
        """The origin of a tensor that a call takes, or that it returns without having made it."""
        found = self._made.get(item.name)
        if found is not None:
            return found
        text = self._made_by(item)
        if text is not None:
            # Of an output: a call returns its argument, or it is a module around the call that made it.
            is_own = text.startswith(DATA) and not _is_given(item)
            found = self._made[item.name] = _UNKNOWN if is_own else self._maker_source(text)
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
        # Where makers are recorded few are not known, and the norm tells the others apart fast.
        unknown = [
            item
            for _, items in (() if self._table is None else self._calls)
            for item in items
            if item.name in self._without_maker and item.is_tensor
        ]
        norms = {item.norm for item in unknown}
        wanted = set(map(_numbers, unknown))
        latest: dict[Hashable, tuple[str, str]] = {}
        found: dict[str, Source] = {}
        for record, items in self._calls:
            for item in items:
                if not item.is_tensor:
                    continue
                if self._table is not None and (item.norm not in norms or _numbers(item) not in wanted):
                    continue
                label = self._label(item)
                if label is None:
                    continue
                if item.state != INPUT and item.state != PARAMETERS:
                    latest[label] = item.name, record
                elif label in latest and self._made_by(item) is None:
                    found[item.name] = Source(Origin.CALL, *latest[label])
        return found

    @cached_property
    def _without_maker(self) -> set[str]:
        """The names of items that calls take, and whose makers the run does not know."""
        if self._twin is not None:
            return self._twin._without_maker
        return {
            item.name
            for _, items in self._calls
            for item in items
            if (item.state == INPUT or item.state == PARAMETERS) and self._made_by(item) is None
        }

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

    def _maker_source(self, text: str) -> Source:
        found = self._of_maker.get(text)
        if found is None:
            found = self._of_maker[text] = self._source_of(text)
        return found

    def _source_of(self, text: str) -> Source:
        is_view = text.startswith(VIEW)
        if is_view:
            text = text[len(VIEW) :]
        for start, origin in _STARTS if ":" in text else ():
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


# --- two runs


Attributes = Mapping[str, Mapping[str, Any]]
_PRIMITIVE = "Primitive."


def _is_primitive(call: Call, side: int) -> bool:
    return ((call.record, call.golden_record)[side] or "").startswith(_PRIMITIVE)


class TwoRuns(msgspec.Struct, frozen=True, dict=True):
    """The calls of two runs in one step and process, with the facts on each.

    Args:
        calls: the calls in the order of the target; those of the golden run alone stand where they would be.
        mode: what the runs are compared by.
        evidence: what distances are measured from.
        tables: the sketches of target and golden run; ``None`` where one has none.
        graphs: who made each tensor, in the target and in the golden run.
        trees: the call trees.
        across_frameworks: true if the runs are of two frameworks.
        same_names: true if both use the same names for the same things: one program.
        settings: the settings of the modules of both runs, by the part of the names that their records share.
        updates: the steps of the optimizers of both runs.
        frameworks: the frameworks of the dumps.
        worked_out: what a part of the verdict works out once for these runs, by its name.
        paths: the paths of the dumps; what is asked of them is read again, because their records were released.
        product_roundoff: the unit roundoff of matrix products that are computed with less than their dtype; 0 without.
    """

    calls: Sequence[Call]
    mode: Mode
    evidence: Evidence
    tables: Optional[Tables]  # noqa: UP045 (evaluated, on Python 3.9 too)
    graphs: tuple[Graph, Graph]
    trees: tuple[Tree, Tree]
    across_frameworks: bool = False
    same_names: bool = True
    settings: tuple[Settings, Settings] = msgspec.field(default_factory=lambda: ({}, {}))
    updates: tuple[Sequence[Update], Sequence[Update]] = ((), ())
    product_roundoff: float = 0.0
    frameworks: tuple[str, str] = ("pytorch", "pytorch")
    paths: tuple[str, str] = ("", "")
    worked_out: dict[str, Any] = msgspec.field(default_factory=dict)

    @cached_property
    def by_record(self) -> Mapping[str, Call]:
        """The calls by the target's records."""
        return {call.record: call for call in self.calls if call.record is not None}

    @cached_property
    def by_golden_record(self) -> Mapping[str, Call]:
        """The calls by the golden run's records."""
        return {call.golden_record: call for call in self.calls if call.golden_record is not None}

    @cached_property
    def attributes(self) -> tuple[Attributes, Attributes]:
        """The attributes of MindSpore's primitives, by their records."""
        mine, theirs = (
            {record.name: record.attributes for record in read(path) if record.name.startswith(_PRIMITIVE)}
            if path and any(_is_primitive(call, side) for call in self.calls)
            else {}
            for side, path in enumerate(self.paths)
        )
        return mine, theirs

    @cached_property
    def precision(self) -> Precision:
        """The dtypes of both runs."""
        return Precision(row for call in self.calls for row in call.rows)

    @cached_property
    def has_functions(self) -> bool:
        """True if calls of functions are recorded, and not only those of modules."""
        return any(call.parsed is not None and not call.is_module for call in self.calls)

    @cached_property
    def has_modules(self) -> bool:
        """True if calls of modules are recorded."""
        return any(call.is_module for call in self.calls)

    @cached_property
    def has_gradients(self) -> tuple[bool, bool]:
        """True of target and golden run, if a gradient is recorded."""
        of_gradients = [call for call in self.calls if call.direction in (BACKWARD, PARAMETERS_GRAD)]
        return any(call.record for call in of_gradients), any(call.golden_record for call in of_gradients)

    @cached_property
    def row_of(self) -> Mapping[str, Row]:
        """The rows by the names of the target's items."""
        return {row.target.name: row for call in self.calls for row in call.rows if row.target is not None}

    @cached_property
    def row_of_golden(self) -> Mapping[str, Row]:
        """The rows by the names of the golden run's items."""
        return {row.golden.name: row for call in self.calls for row in call.rows if row.golden is not None}

    def row_of_side(self, side: int) -> Mapping[str, Row]:
        """The rows by the names of the items of the target (side 0) or of the golden run (side 1)."""
        return self.row_of_golden if side else self.row_of

    @cached_property
    def gradients(self) -> Mapping[str, Row]:
        """The recorded gradients of parameters, by the parameters' names in the target.

        Where no module is recorded, they are what the backward of a function gives for a parameter that it took; of
        several calls the gradient that is furthest apart counts.
        """
        found = self._gradients_of_functions
        return found | {
            f"{path_of(call.parsed)}{'.' * bool(path_of(call.parsed))}{row.target.name[len(call.name) + 1 :]}": row
            for call in self.calls
            if call.direction == PARAMETERS_GRAD
            for row in call.outputs
            if row.target is not None
        }

    @cached_property
    def _gradients_of_functions(self) -> dict[str, Row]:
        found: dict[str, Row] = {}
        for call in () if self.has_modules else self.calls:
            forward = self.in_direction(call, FORWARD) if call.direction == BACKWARD else None
            taken = {} if forward is None else {_place(row): row for row in forward.inputs}
            for row in call.outputs:
                parameter = taken.get(_place(row))
                item = None if parameter is None else parameter.target
                source = None if item is None else self.graphs[0].source(item)
                if source is None or source.origin is not Origin.PARAMETER:
                    continue
                other = found.get(source.name)
                if other is None or (other.relative_difference or 0.0) < (row.relative_difference or 0.0):
                    found[source.name] = row
        return found

    @cached_property
    def positions(self) -> Mapping[int, int]:
        """The position of each call of a function among those of the same function in the same scope, by its index."""
        seen: dict[tuple[str | None, str, str], int] = {}
        found: dict[int, int] = {}
        for call in self.calls:
            if call.parsed is None or call.is_module:
                continue
            key = self.parent(call), call.parsed.base, call.direction
            found[call.index] = seen[key] = seen.get(key, -1) + 1
        return found

    def in_direction(self, call: Call, direction: str) -> Call | None:
        """The forward, backward or gradients of parameters of the same call; ``None`` where it is not recorded."""
        if call.parsed is None:
            return None
        names = self.by_record if call.record is not None else self.by_golden_record
        number = call.parsed.number
        return names.get(record_name(ParsedName(call.parsed.base, number, direction, call.parsed.is_module)))

    def around(self, call: Call) -> Iterator[Call]:
        """The recorded modules around a call, the innermost first."""
        side = int(call.record is None)
        names = (self.by_record, self.by_golden_record)[side]
        for name in around(self.trees[side], call.name):
            found = names.get(name)
            if found is not None:
                yield found

    def parent(self, call: Call) -> str | None:
        """The name of the innermost scope around a call: a module's record, or that of an optimizer."""
        return self.trees[int(call.record is None)].get(call.name)

    def module_name(self, call: Call) -> str:
        """The record of the innermost module around a call, or of the call if it is one; empty without a call tree."""
        if call.is_module:
            return call.name
        side = int(call.record is None)
        return next((name for name in around(self.trees[side], call.name) if is_module(name)), "")

    def sources(self, row: Row) -> list[Source]:
        """The origins of an item on the sides that have it."""
        return [graph.source(item) for graph, item in zip(self.graphs, (row.target, row.golden)) if item is not None]

    def origin(self, side: int, item: Item | None) -> Origin:
        """The origin of a tensor of the target (side 0) or of the golden run (side 1)."""
        return Origin.UNKNOWN if item is None else self.graphs[side].source(item).origin

    def maker(self, item: Item, side: int) -> Call | None:
        """The call that made a tensor of the target (side 0) or of the golden run (side 1)."""
        record = self.graphs[side].source(item).record
        if record is None:
            return None
        return (self.by_record, self.by_golden_record)[side].get(record)


def path_of(parsed: ParsedName | None) -> str:
    """The path of a module in its model, such as ``layers.0.norm``; empty of the model itself and of functions."""
    if parsed is None or not parsed.is_module:
        return ""
    return parsed.base.rpartition(".")[0].partition(".")[2]


def _place(row: Row) -> str:
    """The place of an item among the inputs or outputs of its call: ``2`` of ``input.2``."""
    item = row.target or row.golden
    return "" if item is None else item.name.rpartition(".")[2]


def base_of(record: str | None) -> str:
    """The part of a record that all calls of a module share: ``Module.layers.0.norm.RMSNorm``; empty without one."""
    return "" if record is None else record.rpartition(".")[0].rpartition(".")[0]
