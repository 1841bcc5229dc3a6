"""A difference of one side followed through the calls behind it, to where values agree or to the end of the pass."""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

from probe.common.dump.naming import function_name, is_module, kind_name
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import SAFETY, extent, is_finite
from probe.common.numerics.formats import unit_roundoff
from probe.common.operations.function import DOT_PRODUCT, Trait
from probe.common.operations.lookup import function, has, names_with
from probe.compare.divergence.effects import Key, key_of
from probe.compare.divergence.two_programs.graph import CallOfSide, Graph, makes_another, rounds
from probe.compare.divergence.two_programs.held_values import SPREAD, HeldValues, least_shown

_STANDARDISING = tuple(name.strip("_").replace("_", "") for name in names_with(Trait.STANDARDISES))
"""The functions that standardise, as names of classes have them."""

_FACTORS = 2
"""The number of tensors in a product to which nothing is added."""


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


class Hidden(NamedTuple):
    """A difference in a value that agrees, and would agree in any case."""

    size: float
    """The relative size that it has in the value, at most."""
    shows_from: float
    """The relative size from which on it would show there."""


class Effect(NamedTuple):
    """The effect of a difference, and how small it is where it is hidden."""

    outcome: Outcome
    hidden: Optional[Hidden] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The value in which it is the nearest to being seen."""


class Started(NamedTuple):
    """A tensor that differs, and where it is from."""

    item: Item
    size: float
    """The relative size that the difference has in it, at most."""
    giver: Optional[str]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The record that returned it; ``None`` where that is not known."""
    is_joined: bool = False
    """True if other differences have gone into it."""
    is_hidden: bool = False
    """True if it agrees, and would with a difference of this size in it."""


class Following:
    """Follows one difference.

    Args:
        graph: the calls of the side.
        values: what both sides hold.
        side: the side.
        position: the place of the call with the difference in the order of the side.
        usual: the relative error of elements that is usual up to there.
    """

    def __init__(self, graph: Graph, values: HeldValues, side: int, position: float, usual: float) -> None:
        self._graph = graph
        self._values = values
        self._side = side
        self._position = position
        self._usual = usual
        self._seen: set[Key] = set()
        self._ahead: deque[Started] = deque()
        self.apart = 0.0
        """The largest relative error of elements of tensors of short types that agree, as a share of the difference."""
        self.hidden: list[Hidden] = []
        """The difference in each value that would agree in any case."""
        self.right: set[Key] = set()
        """Tensors that a call which agrees shows to be right, so that its like differ by something else."""

    def is_elsewhere(self, item: Item) -> bool | None:
        """True if the other side has these values; ``None`` if they are no evidence."""
        return self._values.is_elsewhere(item, self._side, self._usual)

    def outcome(self, starts: Iterable[Started]) -> Outcome:
        """The effect of tensors that the other side does not have."""
        self._ahead.extend(starts)
        outcomes: list[Outcome] = []
        joined: list[tuple[CallOfSide, Started]] = []
        while self._ahead or joined:
            if not self._ahead:
                outcomes += self._of_joined(joined)
                continue
            start = self._ahead.popleft()
            key = key_of(start.item)
            if key in self._seen:
                continue
            self._seen.add(key)
            takers = [each for each in self._graph.innermost_takers(key) if makes_another(each, key)]
            if not takers:
                outcomes += self._behind(start)
            apart: list[tuple[CallOfSide, list[Started]]] = []
            agreeing: set[str] = set()
            for taker in takers:
                own = {*self._seen, *(key_of(each.item) for each in self._ahead)}
                if self._has_other_difference(taker, own):
                    joined.append((taker, start))
                    continue
                made = self._made_inside(taker.record)
                items = taker.returned if made is None else [made]
                found, ahead = self._made_of(items, start, None if made else taker.record)
                outcomes += found
                # A result that is taken and differs beside one that agrees is shown to be right by nothing.
                agrees = Outcome.AGREES in found and all(each.is_hidden for each in ahead)
                if agrees and all(map(self._is_no_further_apart, items)):
                    agreeing.add(kind_name(taker.record))
                apart.append((taker, ahead))
            # A call that agrees shows that the tensor is right, such as the angles of every layer: its like differ by
            # something else.
            for taker, ahead in apart:
                if kind_name(taker.record) not in agreeing:
                    self._ahead.extend(ahead)
                elif ahead:
                    self.right.add(key)
            if agreeing:
                joined = [each for each in joined if each[1] is not start or kind_name(each[0].record) not in agreeing]
        return together(outcomes)

    def _is_no_further_apart(self, item: Item) -> bool:
        """True if a tensor that the other side has is, in short types, as near as others are."""
        error = self._values.error(item, self._side) if self._values.are_coarse and rounds(item) else None
        return error is None or error <= SPREAD * max(self._usual, unit_roundoff(item.dtype) or 0.0)

    # --- differences that are not from here

    def _has_other_difference(self, taker: CallOfSide, own: set[Key]) -> bool:
        """True if a call takes a tensor that the other side lacks as well, and that does not come from here."""
        return any(self._is_apart(item, own) for item in taker.given)

    def _is_apart(self, item: Item, own: set[Key]) -> bool:
        """True if a tensor that the other side lacks does not come from those of `own`.

        Code that is not recorded may have made it of them, where types are short, if no call returned it and it is
        taken after them.
        """
        if not self._values.are_coarse:
            return self._is_missing(item) and key_of(item) not in own
        ahead, passed = [item], set(own)
        while ahead:
            each = ahead.pop()
            key = key_of(each)
            if key in passed or not self._is_missing(each):
                continue
            passed.add(key)
            maker = self._graph.makers.get(key)
            if maker is None:
                if self._graph.positions[self._graph.takers[key][0].record] <= self._position:
                    return True
                continue
            given = [other for other in self._graph.calls[maker].given if self._is_missing(other)]
            if not given:
                return True
            ahead += given
        return False

    def _is_missing(self, item: Item) -> bool:
        return rounds(item) and self.is_elsewhere(item) is False

    def _of_joined(self, joined: list[tuple[CallOfSide, Started]]) -> list[Outcome]:
        """The outcomes of calls that seemed to take other differences too, of which some were on the way from here."""
        others = [each for each in joined if self._has_other_difference(each[0], self._seen)]
        ready = [each for each in joined if each not in others] or others
        is_joined = ready is others
        joined[:] = [] if is_joined else others
        outcomes: list[Outcome] = []
        for taker, start in ready:
            start = start._replace(is_joined=start.is_joined or is_joined)
            outcomes += self._follow(taker.returned, start, taker.record)
        return outcomes

    # --- what is made of a difference

    def _made_of(self, items: Sequence[Item], start: Started, giver: str | None) -> tuple[list[Outcome], list[Started]]:
        """The outcomes of results that agree; and those to be followed, which do not agree, or may hide it."""
        found: list[Outcome] = []
        ahead: list[Started] = []
        for item in items:
            if not rounds(item):
                continue
            elsewhere = self.is_elsewhere(item)
            share = 1.0 if self._is_product(giver) else _share(start.item, item)
            next_ = Started(item, start.size * share, giver, start.is_joined)
            if elsewhere and self._is_handed_on(item, giver):
                # The sum of a tensor and zeros is that tensor, which the other side has before its own sum.
                ahead.append(next_)
            elif elsewhere is None and is_finite(item):
                # The loss that is made of logits may agree whatever they are.
                found += [_at_end(start)] if self._values.are_coarse and len(items) == 1 else []
            elif elsewhere and _standardises(giver):
                # Its statistics are the same of other values too: what is made of it tells.
                ahead.append(next_._replace(is_hidden=True))
            elif self._values.are_coarse:
                made = self._made_in_short_type(next_, bool(elsewhere))
                if isinstance(made, Outcome):
                    found.append(made)
                else:
                    ahead.append(made)
            elif elsewhere:
                shows_from = least_shown(item, self._values.shows_from)
                self.hidden += [] if next_.size > shows_from else [Hidden(next_.size, shows_from)]
                found.append(Outcome.AGREES if next_.size > shows_from else Outcome.HIDDEN)
            else:
                ahead.append(next_)
        # Results that nobody takes, beside one that agrees, tell of the steps of the call.
        is_shown = Outcome.AGREES in found
        return found, [each for each in ahead if not (is_shown and self._is_aside(each))]

    def _follow(self, items: Sequence[Item], start: Started, giver: str | None) -> list[Outcome]:
        """The outcomes of results that agree; the others are followed."""
        found, ahead = self._made_of(items, start, giver)
        self._ahead.extend(ahead)
        return found

    def _is_aside(self, start: Started) -> bool:
        """True if a call returned a tensor that no recorded call takes."""
        return key_of(start.item) not in self._graph.takers and start.giver is not None

    def _is_product(self, giver: str | None) -> bool:
        """True if a function returns products, in which a difference has the relative size that it has in a factor.

        One of two tensors adds nothing to them, such as a bias.
        """
        call = None if giver is None or is_module(giver) else self._graph.calls.get(giver)
        if call is None:
            return False
        known = function(function_name(call.record))
        return known.has(Trait.RELATIVE) or (known.rounding == DOT_PRODUCT and len(call.given) == _FACTORS)

    def _is_handed_on(self, item: Item, giver: str | None) -> bool:
        """True if a call returns what it takes, in which nothing of what else it takes shows."""
        call = None if giver is None else self._graph.calls.get(giver)
        return call is not None and any(key_of(each) == key_of(item) for each in call.given)

    def _made_in_short_type(self, made: Started, elsewhere: bool) -> Outcome | Started:
        """The outcome of one result of a short type, or what is followed of it."""
        error = self._values.error(made.item, self._side)
        shows_from = SAFETY * (self._values.shows_from if error is None else error)
        if elsewhere and made.size > shows_from:
            if error is not None:
                # As a share of the difference that began.
                self.apart = max(self.apart, error / made.size)
            return Outcome.AGREES
        self.hidden += [Hidden(made.size, shows_from)] if elsewhere else []
        # What is behind may show more. What the other side has nearly is not more apart than that.
        return made._replace(size=made.size if error is None else min(made.size, error), is_hidden=elsewhere)

    def _behind(self, start: Started) -> list[Outcome]:
        """The outcomes of a tensor that no recorded call takes: code of the module around takes it, if any does."""
        graph = self._graph
        # The outermost module that returns it, or the last that hands it on as it is.
        giver = graph.givers.get(key_of(start.item), start.giver)
        if giver is None:
            return [Outcome.UNKNOWN]
        around = graph.calls[giver].parent
        made = self._made_behind(giver)
        if made is not None:
            return self._follow([made], start, None)
        module = None if around is None else graph.calls.get(around)
        if module is None:
            # Nothing is behind it: the result of the run, as far as it was recorded.
            return [_at_end(start)]
        return self._follow(module.returned, start, module.record)

    def _made_behind(self, giver: str) -> Item | None:
        """The next tensor that code of the module around makes and gives to a call behind `giver`."""
        position = self._graph.positions[giver]
        siblings = self._graph.children.get(self._graph.calls[giver].parent, ())
        return self._made(each for each in siblings if self._graph.positions[each.record] > position)

    def _made_inside(self, module: str) -> Item | None:
        """The first tensor that code of a module makes of what it takes, and gives to a call inside."""
        return self._made(self._graph.children.get(module, ()))

    def _made(self, calls: Iterable[CallOfSide]) -> Item | None:
        """The first tensor that one of these calls takes and no recorded call returned: code between them made it."""
        for call in calls:
            for item in call.given:
                is_made = not self._graph.has_been_returned(item, call) and key_of(item) not in self._graph.parameters
                if rounds(item) and is_made and self.is_elsewhere(item) is not None:
                    return item
        return None


def _at_end(start: Started) -> Outcome:
    if start.is_hidden:
        return Outcome.HIDDEN
    return Outcome.JOINED if start.is_joined else Outcome.PARTS


def _standardises(giver: str | None) -> bool:
    """True if a call brings each channel of any argument to the same mean and variance."""
    if giver is None:
        return False
    name = kind_name(giver)
    if not is_module(giver):
        return has(name, Trait.STANDARDISES)
    # Classes of layers join the function with devices and activations: SyncBatchNorm, BatchNormAct2d.
    return any(each in name.lower() for each in _STANDARDISING)


def _share(part: Item, whole: Item) -> float:
    """The norm of a tensor relative to that of a sum of the same size that it may be a part of, at most 1."""
    if extent(part.shape).elements != extent(whole.shape).elements:
        return 1.0
    of_part, of_whole = part.norm, whole.norm
    if not (type(of_part) is type(of_whole) is float and math.isfinite(of_part + of_whole)):
        return 1.0
    return float(min(1.0, of_part / of_whole)) if of_part and of_whole else 1.0


def most_seen(hidden: Iterable[Hidden]) -> Hidden | None:
    """The one that is the nearest to being seen."""
    return max(hidden, key=lambda each: each.size / each.shows_from, default=None)


def together(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome of several that all count."""
    found = set(outcomes)
    for each in (Outcome.PARTS, Outcome.JOINED, Outcome.HIDDEN, Outcome.UNKNOWN, Outcome.AGREES):
        if each in found:
            return each
    return Outcome.UNKNOWN
