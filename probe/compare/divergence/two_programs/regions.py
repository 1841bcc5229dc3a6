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

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import NamedTuple

from probe.common.align.row import Row
from probe.common.dump.naming import BACKWARD, FORWARD, PARAMETERS_GRAD, is_forward, is_module, parse
from probe.common.dump.reading.records import INPUT, PARAMETERS, Item
from probe.common.dump.reading.sources import Tree
from probe.common.numerics.error_bounds import ALTOGETHER, SAFETY, extent, relative_difference
from probe.compare.divergence.aligned_calls import AlignedCall, Trees
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.effects import Key, key_of
from probe.compare.divergence.peers.leaving import FEWEST
from probe.compare.divergence.two_programs.following import (
    Effect,
    Following,
    Outcome,
    Started,
    most_seen,
    together,
)
from probe.compare.divergence.two_programs.gradients import Gradients
from probe.compare.divergence.two_programs.graph import Graph, rounds
from probe.compare.divergence.two_programs.held_values import (
    GOLDEN,
    SPREAD,
    TARGET,
    HeldValues,
    error_of,
    least_shown,
    roundoff_of,
)
from probe.compare.divergence.two_programs.scaling import one_factor, scaled
from probe.compare.divergence.two_programs.sums import Summed, Sums

_WHOLE = 1.0
"""The relative size of a difference that is the whole of a tensor."""


class Result(NamedTuple):
    """The result of the pass of two programs."""

    record: str
    golden_record: str
    item: str
    error: float
    """The relative error of its elements."""
    usual: float
    """The one of tensors before it."""


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
        self._right: tuple[set[Key], set[Key]] = set(), set()
        """The tensors of both sides of which calls show that they are right, though the other side has others."""

    # --- what is asked

    @property
    def is_coarse(self) -> bool:
        """True if types round so much that a value which agrees says little, and one which does not says as little."""
        return self._values.are_coarse

    @property
    def shows_from(self) -> float:
        """The relative difference that the statistics of tensors which agree may have."""
        return self._values.shows_from

    def outcome(self, call: AlignedCall, item: str, found: float | None) -> Effect:
        """The effect of a difference in a call.

        Args:
            call: the call.
            item: the name of the item of the target that shows the difference.
            found: its relative difference; ``None`` where it is no matter of numbers.
        """
        parsed = parse(call.record or "")
        if parsed is None or parsed.direction not in (FORWARD, BACKWARD):
            return Effect(Outcome.UNKNOWN)
        size = math.inf if found is None or found >= ALTOGETHER else found
        if parsed.direction == BACKWARD:
            return self._gradients.effect(call, size)
        if self._is_judged_inside(call):
            return Effect(Outcome.AGREES)
        followed = self._following(TARGET, call), self._following(GOLDEN, call)
        outcome = together([self._on_side(side, call, item, size, followed[side]) for side in (TARGET, GOLDEN)])
        if outcome is Outcome.AGREES:
            for right, following in zip(self._right, followed):
                right.update(following.right)
        return Effect(outcome, most_seen(each for following in followed for each in following.hidden))

    def apart(self, call: AlignedCall) -> float | None:
        """The amount by which values differ in which a call of one side alone would show its effect, if they agree.

        In short types that is the relative error of the elements, and else the relative difference of statistics.

        Of the gradient of a parameter that the other side holds in another form, those of the next parameters tell; of
        what changes a tensor in place outside of modules, as an optimizer does, the parameters of the next step.

        Returns:
            ``None`` where it does not agree, or where nobody knows.
        """
        record = call.record or call.golden_record or ""
        side = TARGET if call.record else GOLDEN
        parsed = parse(record)
        if parsed is None:
            return None
        if parsed.direction == PARAMETERS_GRAD:
            return self._gradients.apart_behind(record, side) if self._is_of_other_form(call, side) else None
        if parsed.direction != FORWARD:
            return None
        if not parsed.is_module and parsed.base.endswith("_") and not is_module(self._trees[side].get(record) or ""):
            return self._values.shows_from
        rows = [row for row in call.rows if not is_input(row)]
        following = self._following(side, call)
        returned = self._tensors(rows, side)
        elsewhere = [each for each in returned if following.is_elsewhere(each) is True]
        starts = [Started(each, _WHOLE, record) for each in returned if each not in elsewhere]
        agrees = following.outcome(starts) is Outcome.AGREES if starts else bool(rows)
        if not agrees:
            return None
        return max(following.apart, *(self._apart_in(each, side) for each in elsewhere), 0.0) or self._values.shows_from

    def _apart_in(self, item: Item, side: int) -> float:
        """The same in a tensor that the other side has as well."""
        error = self._values.error(item, side) if self.is_coarse else None
        return self._values.shows_from if error is None else error

    def result_apart(self) -> Result | None:
        """The last result of the pass, if types are short and it differs by more than the tensors before it."""
        found = self.result() if self.is_coarse else None
        return found if found is not None and found.error > SPREAD * found.usual else None

    def result(self) -> Result | None:
        """The last result of the pass; ``None`` if both sides have other ones, or if statistics do not tell."""
        target, golden = (graph.result() for graph in self._graphs)
        if target is None or golden is None or _elements(target[1]) != _elements(golden[1]):
            return None
        error = error_of(target[1], golden[1])
        usual = self._usual_up_to(self._graphs[TARGET].positions[target[0]])
        usual = max(usual, roundoff_of(target[1], golden[1]))
        return None if error is None else Result(target[0], golden[0], target[1].name, error, usual)

    def usual_before(self, record: str, row: Row) -> float:
        """The relative error of elements that is usual of what the target returned before, one rounding at least."""
        usual = self._usual_up_to(self._graphs[TARGET].positions.get(record, 0))
        return usual if row.target is None or row.golden is None else max(usual, roundoff_of(row.target, row.golden))

    @staticmethod
    def have_as_many(row: Row) -> bool:
        """True if both sides of a row have as many elements."""
        return row.target is not None and row.golden is not None and _elements(row.target) == _elements(row.golden)

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

    def of_other_thing(self, row: Row) -> float | None:
        """The relative difference of what a forward call takes, if the other side holds it in another place.

        An argument of another program is another thing, such as a hidden state next to a residual beside their sum.
        One that was shown to be right by a like call explains nothing of what this one returns.
        """
        target = row.target
        is_given = target is not None and target.state == INPUT and is_forward(row.record)
        if not is_given or target is None or not rounds(target):
            return None
        usual = self._usual_up_to(self._graphs[TARGET].positions.get(row.record, 0))
        if any(item is not None and key_of(item) in right for item, right in zip((target, row.golden), self._right)):
            return usual
        if self._values.is_elsewhere(target, TARGET, usual) is not True:
            return None
        return self._values.error(target, TARGET) or 0.0 if self.is_coarse else 0.0

    def is_returned_later(self, row: Row) -> bool:
        """True if a later call of the other side returns what one side does here, equal in every digit.

        One module ends with a call that the other program makes behind it.
        """
        records = row.record, row.golden_record or row.record
        for item, here, other in zip((row.target, row.golden), reversed(records), reversed(self._graphs)):
            giver = None if item is None or not _is_evidence(item) else other.givers.get(key_of(item))
            if giver is not None and other.positions[giver] > other.positions.get(here, math.inf):
                return True
        return False

    def returns_the_same(self, call: AlignedCall, size: float) -> bool:
        """True if all that a call returns agrees, and would not if something in it differed by a relative `size`."""
        rows = [row for row in _returned(call.rows) if row.target is None or rounds(row.target)]
        return bool(rows) and all(self._agrees(row, size) for row in rows)

    def takes_the_same(self, call: AlignedCall) -> bool:
        """True if all tensors agree that both sides of a call take, beside its parameters."""
        both = [row for row in call.rows if is_input(row) and row.target is not None and row.golden is not None]
        rows = [row for row in both if row.target is not None and row.target.state == INPUT and rounds(row.target)]
        return all(self._agrees(row, _WHOLE) for row in rows)

    def _agrees(self, row: Row, size: float) -> bool:
        if row.target is None or row.golden is None or not self.have_as_many(row):
            return False
        if not self.is_coarse:
            difference = relative_difference(row.target, row.golden)
            return difference <= self.shows_from and size > least_shown(row.target, self.shows_from)
        error = error_of(row.target, row.golden)
        return error is not None and error <= SPREAD * self.usual_before(row.record, row) and size > SAFETY * error

    def makers(self, row: Row) -> tuple[str, str] | None:
        """The calls of target and golden side that returned what a call takes; ``None`` if one is not known."""
        return self._returned_by(row, [graph.makers for graph in self._graphs])

    def givers(self, row: Row) -> tuple[str, str] | None:
        """The same, each with the outermost module around it, or with what handed it on last."""
        return self._returned_by(row, [graph.givers for graph in self._graphs])

    @staticmethod
    def _returned_by(row: Row, sides: Sequence[Mapping[Key, str]]) -> tuple[str, str] | None:
        records = [
            None if item is None else records.get(key_of(item))
            for records, item in zip(sides, (row.target, row.golden))
        ]
        return None if None in records else (str(records[0]), str(records[1]))

    def golden_giver(self, row: Row) -> str:
        """The call of the golden side that returns the values of the target's item; empty if none is known."""
        nearest = None if row.target is None else self._values.nearest(row.target, TARGET)
        return "" if nearest is None else self._graphs[GOLDEN].makers.get(key_of(nearest), "")

    def summed_on_one_side(self, row: Row) -> Summed | None:
        """The sum that one side alone makes of an item, or of what calls of one tensor each made the item of."""
        usual = self._usual_up_to(self._graphs[TARGET].positions.get(row.record, 0))
        return self._sums.on_one_side(row, partial(self._are_one, usual=usual))

    @cached_property
    def _sums(self) -> Sums:
        return Sums(self._graphs)

    def _are_one(self, one: Item, other: Item, usual: float) -> bool:
        """True if two tensors have the same values, as far as rounding lets statistics tell."""
        if not (rounds(one) and rounds(other)) or _elements(one) != _elements(other) or not _is_evidence(one):
            return False
        if not self.is_coarse:
            return relative_difference(one, other) <= self._values.shows_from
        error = error_of(one, other)
        return error is not None and error <= SPREAD * max(usual, roundoff_of(one, other))

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
            target is not None and golden is not None and relative_difference(target, golden) <= self._values.shows_from
            for target, golden in both
        )

    def is_factor_left(self, call: AlignedCall, name: str) -> bool:
        """True if what a call returns differs by a constant factor that no product with a constant right behind undoes.

        Args:
            call: the call.
            name: the item of the target that differs.
        """
        row = next((row for row in _returned(call.rows) if row.target is not None and row.target.name == name), None)
        if row is None or row.target is None or row.golden is None:
            return False
        factor = one_factor(row.target, row.golden, SPREAD * roundoff_of(row.target, row.golden))
        if factor is None or not abs(factor - 1.0) > self._values.shows_from:
            return False
        sides = (TARGET, row.target), (GOLDEN, row.golden)
        products = ((each, side) for side, item in sides for each in scaled(self._graphs[side], item))
        return not any(self._values.is_elsewhere(each, side, self._values.roundoff) for each, side in products)

    # --- the forward pass

    def _on_side(self, side: int, call: AlignedCall, item: str, size: float, following: Following) -> Outcome:
        record = (call.record, call.golden_record)[side]
        rows = [row for row in call.rows if (row.target, row.golden)[side] is not None]
        accused = [row for row in rows if is_input(row) and row.target is not None and row.target.name == item]
        if accused:
            starts = [Started(each, size, None) for each in self._tensors(accused, side)]
        else:
            starts = [Started(each, size, record) for each in self._tensors(_returned(rows), side)]
            # What the other side has in another place is right; what is done with it there is judged there.
            starts = [each for each in starts if following.is_elsewhere(each.item) is not True]
        if not starts:
            return Outcome.AGREES if not accused and _returned(rows) else Outcome.UNKNOWN
        return following.outcome(starts)

    def _is_judged_inside(self, call: AlignedCall) -> bool:
        """True if one module ends with calls that the other has behind it, and these have counterparts.

        What the shorter one returns is in the other one as well, and what the longer one returns beyond that comes from
        a call inside of it that is judged by itself.
        """
        if not is_module(call.record or ""):
            return False
        apart: list[list[Item]] = []
        for side in (TARGET, GOLDEN):
            rows = [row for row in _returned(call.rows) if (row.target, row.golden)[side] is not None]
            following = self._following(side, call)
            apart.append([each for each in self._tensors(rows, side) if following.is_elsewhere(each) is not True])
        longer = TARGET if apart[TARGET] else GOLDEN
        if not apart[longer] or apart[1 - longer]:
            return False
        own = (call.record, call.golden_record)[longer]
        # Such a pair is judged strictly.
        return all(self._is_of_same_computation(each, longer, own) for each in apart[longer])

    def _is_of_same_computation(self, item: Item, side: int, own: str | None) -> bool:
        """True if a call inside of `own` returned a tensor, or the layer around it, and its pair is the same."""
        graph = self._graphs[side]
        record = graph.makers.get(key_of(item))
        while record is not None and record != own and key_of(item) in map(key_of, graph.calls[record].returned):
            pair = self._paired[side].get(record)
            if pair is not None and self.is_same_computation(pair):
                return True
            parent = graph.calls[record].parent
            record = parent if parent in graph.calls else None
        return False

    @cached_property
    def _paired(self) -> tuple[dict[str, AlignedCall], dict[str, AlignedCall]]:
        """The calls that both sides make by their records on either side."""
        rows: dict[tuple[str, str], list[Row]] = {}
        for row in self._rows:
            if row.target is not None and row.golden is not None:
                rows.setdefault((row.record, row.golden_record or row.record), []).append(row)
        calls = {names: AlignedCall(*names, each) for names, each in rows.items()}
        return {names[0]: each for names, each in calls.items()}, {names[1]: each for names, each in calls.items()}

    @staticmethod
    def _tensors(rows: Iterable[Row], side: int) -> list[Item]:
        items = ((row.target, row.golden)[side] for row in rows)
        return [item for item in items if item is not None and rounds(item)]

    def _following(self, side: int, call: AlignedCall) -> Following:
        graph = self._graphs[side]
        positions = self._graphs[TARGET].positions, self._graphs[GOLDEN].positions
        usual = self._usual_up_to(positions[TARGET].get(call.record or "", 0))
        position = positions[side].get((call.record, call.golden_record)[side] or "", 0)
        return Following(graph, self._values, side, position, usual)

    def _usual_up_to(self, position: int) -> float:
        """The median of the relative errors of elements of what the target returned before, where types are short.

        One rounding of the short type where little was returned: a tensor of float32 may be one of it that was cast.
        """
        if not self.is_coarse:
            return 0.0
        index = bisect_left(self._usual_errors, (position, 0.0)) - 1
        return self._usual_errors[index][1] if index >= 0 else self._values.roundoff

    @cached_property
    def _usual_errors(self) -> list[tuple[int, float]]:
        """The medians by position."""
        graph = self._graphs[TARGET]
        known: list[float] = []
        found = []
        for record in sorted(graph.calls, key=graph.positions.__getitem__):
            if not is_forward(record):
                continue
            for item in graph.calls[record].returned:
                error = self._values.error(item, TARGET)
                if error is not None:
                    insort(known, error)
            if len(known) >= FEWEST:
                found.append((graph.positions[record], known[len(known) // 2]))
        return found

    # --- what is known of the runs

    @cached_property
    def _graphs(self) -> tuple[Graph, Graph]:
        target = Graph(self._trees[TARGET], {})
        order = {record: index for index, record in enumerate(self._golden_order)}
        golden = Graph(self._trees[GOLDEN], order)
        for row in self._rows:
            if row.target is not None:
                target.add(row.record, row.target)
            if row.golden is not None:
                golden.add(row.golden_record or row.record, row.golden)
        for graph in (target, golden):
            graph.complete()
        return target, golden

    @cached_property
    def _gradients(self) -> Gradients:
        positions = self._graphs[TARGET].positions, self._graphs[GOLDEN].positions
        return Gradients(self._rows, positions, self._values.shows_from)

    @cached_property
    def _values(self) -> HeldValues:
        sides = []
        for graph in self._graphs:
            calls = [call for call in graph.calls.values() if is_forward(call.record)]
            sides.append([item for call in calls for item in (*call.given, *call.returned)])
        return HeldValues(sides[TARGET], sides[GOLDEN])


def _returned(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if not is_input(row)]


def _is_evidence(item: Item) -> bool:
    """True if a tensor has several numbers, which are not all one."""
    return _elements(item) > 1 and type(item.max) is float and item.max != item.min


def _counts(item: Item, is_layer: bool) -> bool:
    """True if an item tells what a call computes: a parameter of a layer, and any number that a function takes."""
    return rounds(item) and (item.state == PARAMETERS or not is_layer)


def _elements(item: Item) -> int:
    return extent(item.shape).elements
