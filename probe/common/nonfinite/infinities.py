"""Infinities that were asked for: follows those of one rank from the call that made them to the calls that use them up.

Attention is masked by minus infinity, which softmax turns into zeros. Such an infinity has a lineage: the call that
made it, the calls that passed it on, and those that made finite values of it. A tensor of it is known again by the
finite extreme beside the infinity, which moving, reshaping and masking keep.

Where an argument asks for an infinity, or the call is one whose exact result is one, as the logarithm of zero, and all
that comes of it is finite, it is intended. Where a NaN comes of it, that is a finding: at the call that made the NaN
where the infinity was asked for, and at the call that made the infinity where it was not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from probe.common.dump.naming import function_name, is_module
from probe.common.dump.reading.records import Item
from probe.common.nonfinite.call_values import CallValues, infinite_sign, is_masked_by_lowest, is_nonfinite, is_number
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has

_MOVES = (Trait.HANDS_ON, Trait.LEAVES_OUT)
_WRITTEN = ("in the tensor that was written to",)
"""Marks what a call wrote that does not return it."""


@dataclass
class Source:
    """A call that made infinities of one sign from finite values."""

    index: int
    name: str
    item: str
    sign: int
    is_asked_for: bool
    open: set[Any] = field(default_factory=set)
    """Marks of tensors of its lineage that no call has used yet."""
    last: int = -1
    """The number of the last call that had it."""
    user: tuple[int, str] | None = None
    """For values that came in with a call: index and name of this call."""
    is_broken: bool = False
    """True if something else than these infinities came of it."""


class Infinities:
    """The lineages of one rank; is told of every call with values that are not finite, in order."""

    def __init__(self) -> None:
        self._sources: list[Source] = []
        self._of_mark: dict[Any, Source] = {}
        self._latest: dict[int, list[Source]] = {-1: [], 1: []}
        """By sign, in the order in which calls had them; those that were used up may be among them."""
        self._of_record: dict[str, Source] = {}
        """By the records whose outputs belong to them."""

    def of_record(self, name: str) -> Source | None:
        """The lineage that the outputs of a record belong to, which are infinite."""
        source = self._of_record.get(name)
        return None if source is None or source.is_broken else source

    def known(self, index: int, name: str, inputs: list[Item]) -> list[Source] | None:
        """The lineages that all of `inputs`, which are not finite, belong to; ``None`` where one belongs to none."""
        found = []
        for item in inputs:
            sign = infinite_sign(item)
            source = self._of_mark.get(_mark(item)) if sign else None
            if source is None and sign:
                # Of one that was made where nothing is recorded, the nearest; of a mask that came in, none.
                source = self._nearest(sign)
                # A mask has no gradient, nor has what a minimum begins with; a weight and what was computed have.
                if source is None and not item.requires_grad:
                    source = self._begin(-1, "", item.name, sign, is_asked_for=True)
                    source.user = (index, name)
            if source is None or source.is_broken:
                return None
            found.append(source)
        return found

    def begin(self, index: int, name: str, values: CallValues) -> bool:
        """True if a call that makes infinities of finite values may have been meant to; follows them if so."""
        bad = [item for item in values.outputs if is_nonfinite(item)]
        signs = {infinite_sign(item) for item in bad}
        if len(signs) != 1 or 0 in signs:
            return False
        sign = signs.pop()
        if is_module(name):
            # It returns what a call inside of it made.
            inner = self._of_mark.get(_mark(bad[0]))
            if inner is not None and not inner.is_broken:
                inner.last = index
                self._follow(inner, name, bad)
                return True
        # A call that moves numbers makes none: that of an argument which its record does not show.
        is_asked_for = sign * math.inf in values.numbers or has(function_name(name), *_MOVES)
        # Masks of the smallest number of a type, added to scores or to each other, are minus infinity, and meant alike.
        is_asked_for = is_asked_for or (sign < 0 and any(map(is_masked_by_lowest, values.inputs)))
        if not is_asked_for and not _is_exact(name, sign, values):
            return False
        source = self._begin(index, name, bad[0].name, sign, is_asked_for)
        self._follow(source, name, bad)
        return True

    def write(self, index: int, name: str, values: CallValues) -> None:
        """A call that returns nothing writes into a tensor; follows the infinity that it was asked to write."""
        for sign in (-1, 1):
            if sign * math.inf in values.numbers:
                source = self._begin(index, name, f"{name}.input.0", sign, is_asked_for=True)
                self._open(source, _WRITTEN)

    def receive(self, index: int, name: str, item: Item) -> None:
        """Minus infinity came from another rank, with a call; it may be a mask."""
        source = self._begin(-1, "", item.name, -1, is_asked_for=True)
        source.user = (index, name)
        source.last = index
        self._follow(source, name, [item])

    def use(self, index: int, name: str, sources: list[Source], values: CallValues) -> Source | None:
        """A call uses what belongs to `sources`; returns the one of which something else than infinities came."""
        for source in sources:
            source.last = index
            for item in values.inputs:
                if infinite_sign(item):
                    source.open.discard(_mark(item))
        bad = [item for item in values.outputs if is_nonfinite(item)]
        if not bad:
            return None
        signs = {source.sign for source in sources}
        if {infinite_sign(item) for item in bad} == signs and len(signs) == 1:
            self._follow(sources[0], name, bad)
            return None
        for source in sources:
            source.is_broken = True
            source.open.clear()
        # The one that nobody asked for is to blame rather than a mask.
        return next((source for source in sources if not source.is_asked_for), sources[0])

    @property
    def unsettled(self) -> list[Source]:
        """Infinities that nobody asked for and that are used by no call that makes finite values of them."""
        return [one for one in self._sources if not one.is_asked_for and not one.is_broken and one.open]

    @property
    def intended(self) -> list[Source]:
        """Calls of this rank whose infinities were meant."""
        unsettled = {id(source) for source in self.unsettled}
        return [
            one for one in self._sources
            if one.index >= 0 and id(one) not in unsettled and not one.is_broken
        ]  # fmt: skip

    def _begin(self, index: int, name: str, item: str, sign: int, is_asked_for: bool) -> Source:
        source = Source(index, name, item, sign, is_asked_for, last=index)
        self._sources.append(source)
        return source

    def _follow(self, source: Source, name: str, items: list[Item]) -> None:
        self._of_record[name] = source
        for item in items:
            mark = _mark(item)
            self._of_mark[mark] = source
            self._open(source, mark)

    def _open(self, source: Source, mark: Any) -> None:
        source.open.add(mark)
        latest = self._latest[source.sign]
        if not latest or latest[-1] is not source:
            latest.append(source)

    def _nearest(self, sign: int) -> Source | None:
        latest = self._latest[sign]
        while latest and not latest[-1].open:
            latest.pop()
        return latest[-1] if latest else None


def _is_exact(name: str, sign: int, values: CallValues) -> bool:
    """True if the exact result of a call is infinite, and no number that is too large for its type."""
    function = function_name(name)
    if sign < 0 and has(function, Trait.INFINITE):
        return True
    divisors = [item for item in values.inputs if is_number(item.max) and is_number(item.min)][-1:]
    is_zero = any(item.min <= 0 <= item.max for item in divisors) or 0 in values.numbers
    return is_zero and has(function, Trait.DIVIDES)


def is_masked(name: str) -> bool:
    """True if minus infinity masks the inputs of a call."""
    return has(function_name(name), Trait.MASKED)


def _mark(item: Item) -> Any:
    """The common property of tensors of one lineage: the extremes."""
    return item.max, item.min
