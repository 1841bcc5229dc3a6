"""The error of a call, compared with that of its like: the same call in other layers, other micro steps, other shapes.

Rounding errors are independent of each other and add like a random walk. The worst case that `error_bounds` derives
grows with every layer and explains everything behind the fourth one in bfloat16. The errors that rounding really makes
at a position of a network are measured by the peers of that position. Of each output there is one number,

    q = e_out / sqrt((carry * e_in)^2 + own^2)

with the relative errors e_in of what goes in and e_out of what comes out, and the carry and the own rounding of this
kind of call, which are fitted to its peers. A call with a fault leaves its peers. The calls behind it do not, because
their inputs carry the fault already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from probe.common.align.row import Row
from probe.common.dump.naming import BACKWARD, FORWARD, PARAMETERS_GRAD, ParsedName, is_forward, parse, record_name
from probe.common.dump.reading.call_tree import around
from probe.common.dump.reading.records import INPUT, Item
from probe.common.dump.reading.sources import Tree
from probe.common.numerics.error_bounds import extent, rms
from probe.common.numerics.formats import unit_roundoff
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input, row_difference
from probe.compare.divergence.casts import Casts
from probe.compare.divergence.peers.fits import Member
from probe.compare.divergence.peers.leaving import (
    FEWEST,
    UNRELATED,
    Leaving,
    decides,
    deviations_of,
    in_group,
    of_walk,
    ratio_by_chance,
    widened,
)
from probe.compare.divergence.peers.one_rounding import is_one_rounding
from probe.compare.divergence.peers.positions import Positions
from probe.compare.divergence.peers.random_error import is_masked, random_error
from probe.compare.divergence.peers.short_sums import error_of_partial_sums
from probe.compare.divergence.peers.terms import growth, is_product, share_of_terms
from probe.compare.result import Mode

_FLOAT32 = unit_roundoff("float32")
_NEARLY = 0.6
"""The share of what chance explains from which on nobody can tell.

Chosen between what was measured: of the forward calls of 15 right pairs at two levels, in bfloat16 and float16, the
largest is 0.52; of a head that was rolled, which nothing else shows, it is 0.70.
"""


class _Given(NamedTuple):
    """The inputs of a call, in numbers."""

    error: float
    """The relative error of all inputs together; infinite where it is not known."""
    own: float
    """The coarsest unit roundoff."""
    scale: float = 0.0
    """The size of the terms that an element of a result is the sum of."""
    weight: float = 1.0
    """The factor of the terms of a matrix that is the gradient of a parameter: the size of what went in."""
    gradient: float = 0.0
    """The root mean square of the gradient that came back to the call, if it is a backward."""
    returned: int = 0
    """The number of elements of it."""


class Peers:
    """The outputs of all calls of two runs in groups of their like.

    Args:
        calls: all calls of both runs, in order.
        mode: what the runs were compared by.
        tree: the call tree of the target.
        coarsest: the unit roundoff of the shortest type that both runs, or one of them, compute with. Nothing is looked
            at if it is that of float32.
        casts: the casts of modules to shorter types yet, which no record shows.
    """

    def __init__(
        self, calls: Sequence[AlignedCall], mode: Mode, tree: Tree, coarsest: float, casts: Casts | None = None
    ) -> None:
        self._calls = calls
        self._mode = mode
        self._tree = tree
        self._shortest = coarsest
        self._casts = casts if casts is not None and casts.coarsest else None
        self._coarsest = coarsest if self._casts is None else max(coarsest, self._casts.coarsest)
        self._known: dict[int, float | None] = {}

    @property
    def are_asked(self) -> bool:
        """True if the runs, or one of them, compute with fewer digits than float32 has."""
        return self._coarsest > _FLOAT32

    @cached_property
    def leaving(self) -> dict[int, Leaving]:
        """The outputs that leave their peers, by the identity of their rows."""
        return {key: each._replace(allowed=each.most) for key, each in self._far.items() if each.error > each.most}

    @cached_property
    def nearly_leaving(self) -> dict[int, Leaving]:
        """The outputs of forward calls that are further from their peers than those of right runs, and do not leave.

        The values themselves leave no such doubt.
        """
        far = {key: each for key, each in self._far.items() if key not in self.leaving}
        if self._mode is Mode.TENSOR:
            far = {key: each for key, each in far.items() if each.error > each.allowed}
        if not far:
            return {}
        forwards = {id(member.row) for member, _, _ in self.members if is_forward(member.call.record or "")}
        return {key: each for key, each in far.items() if key in forwards}

    @cached_property
    def _far(self) -> dict[int, Leaving]:
        """The outputs that leave their peers, or nearly."""
        rows = {id(member.row): member for member, _, _ in self.members} if self._judged else {}
        far = {key: each for key, each in self._judged.items() if each.error > _NEARLY * each.allowed}
        return {key: each for key, each in far.items() if not is_one_rounding(rows[key].call, rows[key].row)}

    @cached_property
    def unjudged(self) -> set[int]:
        """The outputs of forward calls that may differ by as much as those of a fault and be explained.

        Neither their like nor a random walk of roundings says more of them. By the identity of their rows.
        """
        if not self.are_asked:
            return set()
        forwards = (id(member.row) for member, _, _ in self.members if is_forward(member.call.record or ""))
        return {key for key in forwards if key not in self._judged or not decides(self._judged[key])}

    def allowed(self, row: Row) -> float:
        """The largest relative error of an output that chance explains; infinity if it is not known."""
        found = self._judged.get(id(row))
        return math.inf if found is None else found.most

    def decides(self, row: Row, share: float) -> bool:
        """True if an output would leave its peers if a part of it that has this share were another."""
        found = self._judged.get(id(row))
        return found is not None and decides(found, share)

    @cached_property
    def _judged(self) -> dict[int, Leaving]:
        """The outputs of which it is known what chance explains."""
        if not self.are_asked:
            return {}
        by_position: dict[str, list[Member]] = {}
        by_kind: dict[str, list[Member]] = {}
        members = self.members
        for member, position, kind in members:
            by_position.setdefault(position, []).append(member)
            by_kind.setdefault(kind, []).append(member)
        found: dict[int, Leaving] = {}
        deviations = deviations_of(len(members))
        alone: dict[str, None] = {}
        for group in by_position.values():
            if len(group) >= FEWEST:
                found.update(in_group(group, ratio_by_chance(group[0], self._mode, deviations)))
        for _, position, kind in members:
            # Gradients of one shape are not alike: those of keys cancel, and those of queries beside them do not.
            if f" {FORWARD} " in kind and len(by_position[position]) < FEWEST <= len(by_kind[kind]):
                alone[kind] = None
        judged = {id(each.row) for each, position, _ in members if len(by_position[position]) >= FEWEST}
        for kind in alone:
            group = by_kind[kind]
            in_kind = in_group(group, ratio_by_chance(group[0], self._mode, deviations))
            found.update((key, each) for key, each in in_kind.items() if key not in judged)
        found = widened((each for each, _, _ in members), found, deviations)
        for member, position, kind in members:
            group = by_position[position] if len(by_position[position]) >= FEWEST else by_kind[kind]
            walked = of_walk(member, group, deviations)
            known = found.get(id(member.row))
            if walked is None or (known is not None and known.error > known.most):
                continue
            if known is None or walked.error > walked.allowed:
                found[id(member.row)] = walked
        return found

    def has_left(self, call: AlignedCall) -> bool:
        """True if an output of a call leaves its peers."""
        leaving = self.leaving
        return bool(leaving) and any(id(row) in leaving for row in call.rows)

    def is_unjudged(self, call: AlignedCall) -> bool:
        """True if an output of a call may differ by as much as that of a fault and be explained."""
        unjudged = self.unjudged
        return bool(unjudged) and any(id(row) in unjudged for row in call.rows)

    def _error(self, row: Row) -> float | None:
        """The relative error of an item; ``None`` where it is not known."""
        key = id(row)
        if key not in self._known:
            self._known[key] = self._measured(row)
        return self._known[key]

    def _measured(self, row: Row) -> float | None:
        target, golden = row.target, row.golden
        if target is None or golden is None or target.shape != golden.shape:
            return None
        if not unit_roundoff(golden.dtype) or not unit_roundoff(target.dtype):
            return None
        if self._mode is Mode.TENSOR and row.metrics and type(row.metrics[1]) is float:
            found = row_difference(row, Mode.TENSOR)
            return min(2.0, found) if math.isfinite(found) else None
        return random_error(target, golden)

    @cached_property
    def members(self) -> list[tuple[Member, str, str]]:
        """The outputs that can be judged, each with its position in a layer and its kind."""
        found = []
        positions, inside = Positions(self._calls, self._tree), self._calls_inside()
        for call in self._calls:
            parsed = parse(call.record or "") if call.golden_record else None
            if parsed is None:
                continue
            calls = inside.get(call.record or "", 0)
            given = self._inputs(call, parsed, calls)
            if not math.isfinite(given.error):
                continue
            position, common = "", self._common_error(call, parsed)
            for row in call.rows:
                if is_input(row) or row.target is None or row.golden is None:
                    continue
                error = self._error(row)
                if error is None or extent(row.golden.shape).elements < 2:
                    continue
                position = position or positions.of(call, parsed)
                item = row.target.name[len(call.record or "") :]
                rounded = max(given.own, unit_roundoff(row.target.dtype), unit_roundoff(row.golden.dtype))
                summed = error_of_partial_sums(parsed, row.target, row.golden, given.returned, given.gradient, True)
                rounded = math.hypot(rounded, summed)
                kind = f"{parsed.base.rpartition('.')[2]} {parsed.direction} {item} {row.golden.shape}"
                size = max(rms(row.target), rms(row.golden))
                is_matrix = len(row.golden.shape or ()) > 1
                weight = given.weight if is_matrix and size else 1.0
                if parsed.direction == FORWARD:
                    made = self._made_in.get(call.record or "", []) if calls else None
                    condition = growth(call, parsed, row.golden, size, given.scale, made)
                else:
                    condition = max(1.0, given.scale * weight / size) if size else 1.0
                inputs = math.hypot(given.error, common * weight / size) if is_matrix and size else given.error
                found.append(
                    (
                        Member(call, row, error, inputs, rounded, condition, calls),
                        f"{position}{item}",
                        kind,
                    )
                )
        return found

    def _common_error(self, call: AlignedCall, parsed: ParsedName) -> float:
        """The absolute error that the rows of a gradient have in common, which the gradient of a bias shows.

        A bias takes their sum. In that of keys they cancel, and what is left of them is what rounding made.
        """
        found = 0.0
        for row in call.rows if parsed.direction == PARAMETERS_GRAD else ():
            if row.target is not None and row.golden is not None and len(row.golden.shape or ()) == 1:
                found = max(found, (self._error(row) or 0.0) * max(rms(row.target), rms(row.golden)))
        return found

    @cached_property
    def _by_record(self) -> dict[str | None, AlignedCall]:
        return {call.record: call for call in self._calls}

    def _inputs_of(self, record: str) -> list[Row]:
        call = self._by_record.get(record)
        return [] if call is None else [row for row in call.rows if is_input(row)]

    @cached_property
    def _made_in(self) -> dict[str | None, list[Item]]:
        """The results of the calls that each module makes itself."""
        found: dict[str | None, list[Item]] = {}
        for call in self._calls:
            if call.golden_record and is_forward(call.record or ""):
                around = self._tree.get(call.record or "")
                items = (row.golden for row in call.rows if not is_input(row))
                found.setdefault(around, []).extend(item for item in items if item is not None and item.is_tensor)
        return found

    def _calls_inside(self) -> dict[str, int]:
        """The number of forward calls inside of each module."""
        found: dict[str, int] = {}
        for call in self._calls:
            for module in around(self._tree, call.record or ""):
                found[module] = found.get(module, 0) + 1
        return found

    def _inputs(self, call: AlignedCall, parsed: ParsedName, calls_inside: int) -> _Given:
        """The inputs of a call, in numbers."""
        squares = gradients = forwards = rows_of_gradient = 0.0
        count = 0
        # Calls inside of a module may round to the shortest type, though it takes and returns others. Statistics may
        # hide what was rounded to it before, and calls of two programs that were paired late have nothing else.
        own = self._coarsest
        if self._casts is not None and not calls_inside and is_product(parsed):
            # Statistics of what an elementwise call takes may hide what was cast before; a product averages over it.
            own = max(self._shortest, self._casts.roundoff(call))
        own_rows = [row for row in call.rows if is_input(row)]
        results = [row.golden for row in call.rows if not is_input(row) and row.golden is not None]
        of_forward = own_rows if parsed.direction == FORWARD else self._inputs_of(_in_direction(parsed, FORWARD))
        of_backward = own_rows if parsed.direction == BACKWARD else []
        if parsed.direction == PARAMETERS_GRAD:
            of_backward = [*own_rows, *self._inputs_of(_in_direction(parsed, BACKWARD))]
        for index, row in enumerate((*of_backward, *of_forward)):
            if row.target is None or row.golden is None:
                continue
            own = max(own, unit_roundoff(row.target.dtype), unit_roundoff(row.golden.dtype))
            error = self._error(row)
            if error is None and unit_roundoff(row.golden.dtype) and not is_masked(row.golden):
                # Nothing is known of an input that cannot be measured.
                return _Given(math.inf, own)
            if error:
                if error >= UNRELATED:
                    error *= share_of_terms(parsed, row.golden, results)
                squares += error * error
            if row.golden.state != INPUT or not unit_roundoff(row.golden.dtype):
                continue
            if index >= len(of_backward):
                forwards = max(forwards, rms(row.golden))
            else:
                gradients = max(gradients, rms(row.golden))
                count = max(count, extent(row.golden.shape).elements)
                rows_of_gradient = max(rows_of_gradient, _rows(row.golden))
        inputs = math.sqrt(squares)
        if parsed.direction == FORWARD:
            return _Given(inputs, own, forwards)
        # Gradients are sums of gradients; what the forward was called with weighs them, in those of a matrix at least.
        if parsed.direction != PARAMETERS_GRAD:
            return _Given(inputs, own, gradients, gradient=gradients, returned=count)
        return _Given(inputs, own, gradients * math.sqrt(rows_of_gradient), forwards, gradients, count)


def _rows(item: Item) -> float:
    """The number of rows of a tensor, which the gradient of a parameter sums up."""
    last = (item.shape or (1,))[-1]
    return extent(item.shape).elements / last if last else 0.0


def _in_direction(parsed: ParsedName, direction: str) -> str:
    """The record of the same call in another direction."""
    return record_name(ParsedName(parsed.base, parsed.number, direction, parsed.is_module))
