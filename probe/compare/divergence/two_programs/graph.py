"""The calls of one of two programs, and who takes what: data is followed by its statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from probe.common.dump.naming import is_forward
from probe.common.dump.reading.records import INPUT, OUTPUT, PARAMETERS, Item
from probe.common.dump.reading.sources import Tree
from probe.common.numerics.error_bounds import extent
from probe.common.numerics.formats import unit_roundoff
from probe.compare.divergence.effects import Key, key_of


@dataclass
class CallOfSide:
    """A call of one side."""

    record: str
    parent: str | None
    given: list[Item] = field(default_factory=list)
    returned: list[Item] = field(default_factory=list)


class Graph:
    """The calls of one side, and who takes what."""

    def __init__(self, tree: Tree, order: Mapping[str, int]) -> None:
        self._tree = tree
        self._order = order
        self.calls: dict[str, CallOfSide] = {}
        self.positions: dict[str, int] = {}
        self.takers: dict[Key, list[CallOfSide]] = {}
        self.makers: dict[Key, str] = {}
        """The call that returned a tensor first."""
        self.givers: dict[Key, str] = {}
        """The call that returned it last: the outermost module, or what hands it on."""
        self.parameters: set[Key] = set()
        self.children: dict[str | None, list[CallOfSide]] = {}

    def add(self, record: str, item: Item) -> None:
        """Add an item of a record."""
        call = self.calls.get(record)
        if call is None:
            call = self.calls[record] = CallOfSide(record, self._tree.get(record))
            self.positions[record] = self._order.get(record, len(self.positions))
        if not item.is_tensor:
            return
        if item.state == PARAMETERS:
            self.parameters.add(key_of(item))
        elif item.state == INPUT:
            call.given.append(item)
        elif item.state == OUTPUT:
            call.returned.append(item)

    def has_been_returned(self, item: Item, call: CallOfSide) -> bool:
        """True if another call returned a tensor before this one, which may hand on what it takes."""
        maker = self.makers.get(key_of(item))
        return maker is not None and self.positions[maker] < self.positions[call.record]

    def innermost_takers(self, key: Key) -> list[CallOfSide]:
        """The calls that take a tensor, without modules around others of them."""
        takers = self.takers.get(key, [])
        if len(takers) == 1:
            return takers
        around: set[str] = set()
        for call in takers:
            parent = call.parent
            # A damaged file may say that a module is inside of itself.
            while parent is not None and parent not in around:
                around.add(parent)
                parent = self._tree.get(parent)
        return [call for call in takers if call.record not in around]

    def result(self) -> tuple[str, Item] | None:
        """The last tensor of more than one number that a call of the forward pass returned, and the call."""
        for record in sorted(self.calls, key=self.positions.__getitem__, reverse=True):
            for item in self.calls[record].returned if is_forward(record) else ():
                if rounds(item) and extent(item.shape).elements > 1:
                    return record, item
        return None

    def complete(self) -> None:
        """Note who takes and who returns what, in the forward pass."""
        for record in sorted(self.calls, key=self.positions.__getitem__):
            call = self.calls[record]
            if not is_forward(record):
                continue
            for item in call.given:
                self.takers.setdefault(key_of(item), []).append(call)
            for item in call.returned:
                self.makers.setdefault(key_of(item), record)
                self.givers[key_of(item)] = record
            self.children.setdefault(call.parent, []).append(call)


def makes_another(call: CallOfSide, key: Key) -> bool:
    """True if a call makes another tensor of one, and does not only hand it on."""
    return any(rounds(item) and key_of(item) != key for item in call.returned)


def rounds(item: Item) -> bool:
    """True if an item is a tensor of a type that rounds."""
    return item.is_tensor and bool(unit_roundoff(item.dtype))
