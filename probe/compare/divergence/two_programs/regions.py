"""The effect of a difference further down, where two programs for one network compute it in different ways.

One program hands a hidden state and a residual on, the other their sum; one computes a variance, the other its
logarithm. Such a difference of representation is done with where everything that is computed from it holds the values
that the other run holds somewhere: names and pairs of calls do not matter for that. A difference that is still there
when the pass ends is a divergence.

Data is followed by statistics, as `effects` does. Calls of code that is not recorded are passed by: what comes of a
tensor that no recorded call takes is looked for among the later calls of the module around, and in what that returns.
Agreement confirms only what would have shown: a difference of a branch counts by the branch's share of a sum.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Optional

from probe.common.align.layers.same_values import Contents, allowed_difference
from probe.common.align.row import Row
from probe.common.dump.naming import BACKWARD, FORWARD, PARAMETERS_GRAD, is_module, parse
from probe.common.dump.reading.records import INPUT, OUTPUT, PARAMETERS, Item
from probe.common.dump.reading.sources import Tree
from probe.common.numerics.error_bounds import ALTOGETHER, extent, is_finite, relative_difference
from probe.common.numerics.formats import unit_roundoff
from probe.compare.divergence.aligned_calls import AlignedCall, Trees
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.effects import Key, key_of

TARGET, GOLDEN = 0, 1

_NEXT_GRADIENTS = 3
"""The number of parameter gradients behind a backward that tell what it handed on."""


_COARSE = 1e-3
"""The tolerance from which on a difference that agreement would hide is no evidence by itself; that of float16 is."""


class Outcome(enum.Enum):
    """The effect of a difference."""

    AGREES = "agrees"
    """Every value that is computed from it has a counterpart, and each would have shown it."""
    PARTS = "parts"
    """It reaches the end of the pass."""
    JOINED = "joined"
    """It reaches the end of the pass, but only where other differences go in as well."""
    HIDDEN = "hidden"
    """Everything computed from it agrees, and would in any case: the difference or the branch is too small."""
    UNKNOWN = "unknown"
    """Nothing that is computed from it is recorded."""


class _Started(NamedTuple):
    """A tensor that differs, and where it is from."""

    item: Item
    share: float
    """The part of a difference that is left of it here."""
    giver: Optional[str]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The record that returned it; ``None`` where that is not known."""
    is_joined: bool = False
    """True if other differences have gone into it."""


@dataclass
class _Call:
    """A call of one side."""

    record: str
    parent: str | None
    given: list[Item] = field(default_factory=list)
    returned: list[Item] = field(default_factory=list)


class Regions:
    """Follows differences through the calls of both runs.

    Args:
        rows: all rows of the comparison.
        golden_order: the records of the golden side in their order.
        trees: the call trees of target and golden side.
    """

    def __init__(self, rows: Sequence[Row], golden_order: Sequence[str], trees: Trees) -> None:
        self._rows = rows
        self._golden_order = golden_order
        self._trees: tuple[Tree, Tree] = (trees[TARGET] or {}, trees[GOLDEN] or {})

    # --- what is asked

    @property
    def is_coarse(self) -> bool:
        """True if types round so much that a value which agrees says little, and one which does not says as little."""
        return self.shows_from > _COARSE

    def outcome(self, call: AlignedCall, item: str, found: float | None) -> Outcome:
        """The effect of a difference in a call.

        Args:
            call: the call.
            item: the name of the item of the target that shows the difference.
            found: its relative difference; ``None`` where it is no matter of numbers.
        """
        parsed = parse(call.record or "")
        if parsed is None or parsed.direction not in (FORWARD, BACKWARD):
            return Outcome.UNKNOWN
        size = math.inf if found is None or found >= ALTOGETHER else found
        if parsed.direction == BACKWARD:
            return self._of_gradients(call, size)
        return _together([self._on_side(side, call, item, size) for side in (TARGET, GOLDEN)])

    def shows_one_side(self, call: AlignedCall) -> bool:
        """True if what a call of one side alone comes to agrees with the other side.

        Of the gradient of a parameter that the other side holds in another form, those of the next parameters tell; of
        what changes a tensor in place outside of modules, as an optimizer does, the parameters of the next step.
        """
        record = call.record or call.golden_record or ""
        side = TARGET if call.record else GOLDEN
        parsed = parse(record)
        if parsed is None:
            return False
        if parsed.direction == PARAMETERS_GRAD:
            return self._is_of_other_form(call, side) and self._agree_behind(record, side)
        if parsed.direction != FORWARD:
            return False
        if not parsed.is_module and parsed.base.endswith("_") and not is_module(self._trees[side].get(record) or ""):
            return True
        rows = [row for row in call.rows if not is_input(row)]
        starts = [_Started(each, 1.0, record) for each in self._tensors(rows, side)]
        starts = [each for each in starts if self._is_elsewhere(each.item, side) is not True]
        return self._followed(side, starts, 1.0) is Outcome.AGREES if starts else bool(rows)

    def _is_of_other_form(self, call: AlignedCall, side: int) -> bool:
        """True if no gradient or parameter of the other side is the one that this call has, in another place."""
        parsed = parse(call.record or call.golden_record or "")
        if parsed is None:
            return False
        return self._paired_parameters[side].isdisjoint({parsed.base})

    @cached_property
    def _paired_parameters(self) -> tuple[set[str], set[str]]:
        """The modules of both sides with a parameter that has a counterpart."""
        found: tuple[set[str], set[str]] = set(), set()
        for row in self._rows:
            if row.target is None or row.golden is None or row.target.state != PARAMETERS:
                continue
            for bases, record in zip(found, (row.record, row.golden_record or "")):
                parsed = parse(record)
                if parsed is not None:
                    bases.add(parsed.base)
        return found

    def _agree_behind(self, record: str, side: int) -> bool:
        """True if the gradients of the next parameters behind one agree."""
        position = self._graphs[side].positions.get(record, math.inf)
        found = 0
        for row in self._gradients:
            name = (row.record, row.golden_record or "")[side]
            if row.target is None or self._graphs[side].positions.get(name, -1) <= position:
                continue
            if self._golden_gradients.has(row.target) is False:
                return False
            found += 1
            if found == _NEXT_GRADIENTS:
                break
        return found > 0

    def is_other_thing(self, row: Row) -> bool:
        """True if the other side holds what a forward call takes here, in another place than the one it is paired with.

        An argument of another program is another thing, such as a hidden state next to a residual beside their sum.
        """
        target = row.target
        is_given = target is not None and target.state == INPUT and FORWARD in row.record
        return is_given and target is not None and _rounds(target) and self._is_elsewhere(target, TARGET) is True

    def makers(self, row: Row) -> tuple[str, str] | None:
        """The calls of target and golden side that returned what a call takes; ``None`` if one is not known."""
        records = []
        for graph, item in zip(self._graphs, (row.target, row.golden)):
            record = None if item is None else graph.makers.get(key_of(item))
            if record is None:
                return None
            records.append(record)
        return records[0], records[1]

    def is_same_computation(self, call: AlignedCall) -> bool:
        """True if two calls compute the same: a layer with equal parameters, a function with equal inputs."""
        is_layer = is_module(call.record or "")
        sides = [(row.target, row.golden) for row in call.rows if is_input(row)]
        both = [
            (target, golden)
            for target, golden in sides
            if any(_counts(item, is_layer) for item in (target, golden) if item is not None)
        ]
        return bool(both) and all(
            target is not None and golden is not None and relative_difference(target, golden) <= self.shows_from
            for target, golden in both
        )

    # --- the forward pass

    def _on_side(self, side: int, call: AlignedCall, item: str, size: float) -> Outcome:
        record = (call.record, call.golden_record)[side]
        rows = [row for row in call.rows if (row.target, row.golden)[side] is not None]
        accused = [row for row in rows if is_input(row) and row.target is not None and row.target.name == item]
        if accused:
            starts = [_Started(each, 1.0, None) for each in self._tensors(accused, side)]
        else:
            starts = [_Started(each, 1.0, record) for each in self._tensors(_returned(rows), side)]
            # What the other side has in another place is right; what is done with it there is judged there.
            starts = [each for each in starts if self._is_elsewhere(each.item, side) is not True]
        if not starts:
            return Outcome.AGREES if not accused and _returned(rows) else Outcome.UNKNOWN
        return self._followed(side, starts, size)

    @staticmethod
    def _tensors(rows: Iterable[Row], side: int) -> list[Item]:
        items = ((row.target, row.golden)[side] for row in rows)
        return [item for item in items if item is not None and _rounds(item)]

    def _followed(self, side: int, starts: Iterable[_Started], size: float) -> Outcome:
        """The effect of tensors of one side that the other side does not have."""
        graph = self._graphs[side]
        ahead, seen = deque(starts), set[Key]()
        outcomes: list[Outcome] = []
        joined: list[tuple[_Call, _Started]] = []
        while ahead or joined:
            if not ahead:
                outcomes += self._of_joined(side, joined, size, seen, ahead)
                continue
            start = ahead.popleft()
            key = key_of(start.item)
            if key in seen:
                continue
            seen.add(key)
            takers = [each for each in graph.innermost_takers(key) if _makes_another(each, key)]
            if not takers:
                outcomes += self._behind(side, start, size, ahead)
            for taker in takers:
                if self._has_other_difference(side, taker, seen, ahead):
                    joined.append((taker, start))
                    continue
                made = self._made_inside(side, graph, taker.record)
                items = taker.returned if made is None else [made]
                outcomes += self._made_of(side, items, start, size, ahead, None if made else taker.record)
        return _together(outcomes)

    def _has_other_difference(self, side: int, taker: _Call, seen: set[Key], ahead: Iterable[_Started]) -> bool:
        """True if a call takes a tensor that the other side lacks as well, and that does not come from here."""
        own = {*seen, *(key_of(each.item) for each in ahead)}
        others = (item for item in taker.given if _rounds(item) and key_of(item) not in own)
        return any(self._is_elsewhere(item, side) is False for item in others)

    def _of_joined(
        self,
        side: int,
        joined: list[tuple[_Call, _Started]],
        size: float,
        seen: set[Key],
        ahead: deque[_Started],
    ) -> list[Outcome]:
        """The outcomes of calls that seemed to take other differences too, of which some were on the way from here."""
        others = [each for each in joined if self._has_other_difference(side, each[0], seen, ())]
        ready = [each for each in joined if each not in others] or others
        is_joined = ready is others
        joined[:] = [] if is_joined else others
        outcomes: list[Outcome] = []
        for taker, start in ready:
            start = start._replace(is_joined=start.is_joined or is_joined)
            outcomes += self._made_of(side, taker.returned, start, size, ahead, taker.record)
        return outcomes

    def _made_of(
        self, side: int, items: Iterable[Item], start: _Started, size: float, ahead: deque[_Started], giver: str | None
    ) -> list[Outcome]:
        """The outcomes of results that agree or hide; those that do not are added to `ahead`."""
        found = []
        for item in items:
            if not _rounds(item):
                continue
            elsewhere = self._is_elsewhere(item, side)
            share = start.share * _share(start.item, item)
            if elsewhere is None and is_finite(item):
                continue
            if elsewhere:
                found.append(self._confirmed(item, size * share))
            else:
                ahead.append(_Started(item, share, giver, start.is_joined))
        return found

    def _behind(self, side: int, start: _Started, size: float, ahead: deque[_Started]) -> list[Outcome]:
        """The outcomes of a tensor that no recorded call takes: code of the module around takes it, if any does."""
        graph = self._graphs[side]
        # The outermost module that returns it, or the last that hands it on as it is.
        giver = graph.givers.get(key_of(start.item), start.giver)
        if giver is None:
            return [Outcome.UNKNOWN]
        around = graph.calls[giver].parent
        made = self._made_behind(side, graph, giver)
        if made is not None:
            return self._made_of(side, [made], start, size, ahead, None)
        module = None if around is None else graph.calls.get(around)
        if module is None:
            # Nothing is behind it: the result of the run, as far as it was recorded.
            return [Outcome.JOINED if start.is_joined else Outcome.PARTS]
        return self._made_of(side, module.returned, start, size, ahead, module.record)

    def _made_behind(self, side: int, graph: _Graph, giver: str) -> Item | None:
        """The next tensor that code of the module around makes and gives to a call behind `giver`."""
        position = graph.positions[giver]
        siblings = graph.children.get(graph.calls[giver].parent, ())
        return self._made(side, graph, (each for each in siblings if graph.positions[each.record] > position))

    def _made_inside(self, side: int, graph: _Graph, module: str) -> Item | None:
        """The first tensor that code of a module makes of what it takes, and gives to a call inside."""
        return self._made(side, graph, graph.children.get(module, ()))

    def _made(self, side: int, graph: _Graph, calls: Iterable[_Call]) -> Item | None:
        """The first tensor that one of these calls takes and no recorded call returned: code between them made it."""
        for call in calls:
            for item in call.given:
                is_made = not graph.has_been_returned(item, call) and key_of(item) not in graph.parameters
                if _rounds(item) and is_made and self._is_elsewhere(item, side) is not None:
                    return item
        return None

    def _confirmed(self, item: Item, size: float) -> Outcome:
        """The effect of a difference that had this size in an item, as an item that agrees tells it.

        Of independent errors of size e in n elements the statistics show e / sqrt(n), of either sign, and e^2 / 2.
        """
        shown = max(size / math.sqrt(max(extent(item.shape).elements, 1)), min(size, 1.0) ** 2 / 2)
        return Outcome.AGREES if shown > self.shows_from else Outcome.HIDDEN

    def _is_elsewhere(self, item: Item, side: int) -> bool | None:
        """True if the other side has these values; ``None`` if they are no evidence."""
        if extent(item.shape).elements > 1:
            return self._contents[1 - side].has(item)
        # A number that both have may be one by chance: a count, a loss that hardly depends on it.
        return None if type(item.max) is not float or self._has_number(item.max, 1 - side) else False

    def _has_number(self, number: float, side: int) -> bool:
        numbers = self._numbers[side]
        allowed = self.shows_from * abs(number)
        position = bisect_left(numbers, number - allowed)
        return position < len(numbers) and numbers[position] <= number + allowed

    @cached_property
    def _numbers(self) -> tuple[list[float], list[float]]:
        """The numbers that are tensors of one element on either side, sorted."""
        target, golden = (
            sorted(item.max for item in items if type(item.max) is float and extent(item.shape).elements <= 1)
            for items in self._tensors_of_sides
        )
        return target, golden

    # --- the backward pass

    def _of_gradients(self, call: AlignedCall, size: float) -> Outcome:
        """The effect of a gradient, told by those of the next parameters, which it would reach."""
        position = self._graphs[TARGET].positions.get(call.record or "", math.inf)
        outcomes = []
        for row in self._gradients:
            if self._graphs[TARGET].positions[row.record] <= position or row.target is None:
                continue
            elsewhere = self._golden_gradients.has(row.target)
            if elsewhere is None:
                continue
            if not elsewhere:
                return Outcome.PARTS
            outcomes.append(self._confirmed(row.target, size))
            if len(outcomes) == _NEXT_GRADIENTS:
                break
        return _together(outcomes)

    @cached_property
    def _gradients(self) -> list[Row]:
        """The gradients of parameters that have a counterpart, in the order of the target."""
        return [row for row in self._rows if row.golden is not None and PARAMETERS_GRAD in row.record]

    @cached_property
    def _golden_gradients(self) -> Contents:
        items = (row.golden for row in self._rows if row.golden is not None and PARAMETERS_GRAD in row.record)
        return Contents(items, self.shows_from)

    # --- what is known of the runs

    @cached_property
    def _graphs(self) -> tuple[_Graph, _Graph]:
        target = _Graph(self._trees[TARGET], {})
        order = {record: index for index, record in enumerate(self._golden_order)}
        golden = _Graph(self._trees[GOLDEN], order)
        for row in self._rows:
            if row.target is not None:
                target.add(row.record, row.target)
            if row.golden is not None:
                golden.add(row.golden_record or row.record, row.golden)
        for graph in (target, golden):
            graph.complete()
        return target, golden

    @cached_property
    def _tensors_of_sides(self) -> tuple[list[Item], list[Item]]:
        sides = []
        for graph in self._graphs:
            calls = [call for call in graph.calls.values() if FORWARD in call.record]
            sides.append([item for call in calls for item in (*call.given, *call.returned)])
        return sides[TARGET], sides[GOLDEN]

    @cached_property
    def shows_from(self) -> float:
        """The relative difference that tensors which agree may have; an effect shows from there on."""
        return allowed_difference(*self._tensors_of_sides)

    @cached_property
    def _contents(self) -> tuple[Contents, Contents]:
        target, golden = self._tensors_of_sides
        return Contents(target, self.shows_from), Contents(golden, self.shows_from)


class _Graph:
    """The calls of one side, and who takes what."""

    def __init__(self, tree: Tree, order: Mapping[str, int]) -> None:
        self._tree = tree
        self._order = order
        self.calls: dict[str, _Call] = {}
        self.positions: dict[str, int] = {}
        self.takers: dict[Key, list[_Call]] = {}
        self.makers: dict[Key, str] = {}
        """The call that returned a tensor first."""
        self.givers: dict[Key, str] = {}
        """The call that returned it last: the outermost module, or what hands it on."""
        self.parameters: set[Key] = set()
        self.children: dict[str | None, list[_Call]] = {}

    def add(self, record: str, item: Item) -> None:
        """Add an item of a record."""
        call = self.calls.get(record)
        if call is None:
            call = self.calls[record] = _Call(record, self._tree.get(record))
            self.positions[record] = self._order.get(record, len(self.positions))
        if not item.is_tensor:
            return
        if item.state == PARAMETERS:
            self.parameters.add(key_of(item))
        elif item.state == INPUT:
            call.given.append(item)
        elif item.state == OUTPUT:
            call.returned.append(item)

    def has_been_returned(self, item: Item, call: _Call) -> bool:
        """True if another call returned a tensor before this one, which may hand on what it takes."""
        maker = self.makers.get(key_of(item))
        return maker is not None and self.positions[maker] < self.positions[call.record]

    def innermost_takers(self, key: Key) -> list[_Call]:
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

    def complete(self) -> None:
        """Note who takes and who returns what, in the forward pass."""
        for record in sorted(self.calls, key=self.positions.__getitem__):
            call = self.calls[record]
            if not record.rpartition(FORWARD)[1]:
                continue
            for item in call.given:
                self.takers.setdefault(key_of(item), []).append(call)
            for item in call.returned:
                self.makers.setdefault(key_of(item), record)
                self.givers[key_of(item)] = record
            self.children.setdefault(call.parent, []).append(call)


def _makes_another(call: _Call, key: Key) -> bool:
    """True if a call makes another tensor of one, and does not only hand it on."""
    return any(_rounds(item) and key_of(item) != key for item in call.returned)


def _returned(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if not is_input(row)]


def _counts(item: Item, is_layer: bool) -> bool:
    """True if an item tells what a call computes: a parameter of a layer, and any number that a function takes."""
    return _rounds(item) and (item.state == PARAMETERS or not is_layer)


def _rounds(item: Item) -> bool:
    return item.is_tensor and bool(unit_roundoff(item.dtype))


def _share(part: Item, whole: Item) -> float:
    """The norm of a tensor relative to that of a sum of the same size that it may be a part of, at most 1."""
    if extent(part.shape).elements != extent(whole.shape).elements:
        return 1.0
    of_part, of_whole = part.norm, whole.norm
    if not (type(of_part) is type(of_whole) is float and math.isfinite(of_part + of_whole)) or not of_whole:
        return 1.0
    return float(min(1.0, of_part / of_whole))


def _together(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome of several that all count."""
    found = set(outcomes)
    for each in (Outcome.PARTS, Outcome.JOINED, Outcome.HIDDEN, Outcome.UNKNOWN, Outcome.AGREES):
        if each in found:
            return each
    return Outcome.UNKNOWN
