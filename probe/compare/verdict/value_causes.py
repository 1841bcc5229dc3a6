"""Causes that the values of a divergence show: a factor, another order, a term that is left out or added.

They are found by arithmetic on sketches, which are linear: a factor by projection, a term by what is left over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, Optional

from probe.common.align.calls import Row
from probe.common.dump.naming import CLIP_GRAD
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import extent, is_number
from probe.common.numerics.formats import is_boolean, unit_roundoff
from probe.compare.judgement import NOTHING, Sentence, item_words
from probe.compare.result import SIDES
from probe.compare.verdict import arithmetic, gradients
from probe.compare.verdict.facts import Call, coarser, distance, goes_in, is_parameter, of_gradient
from probe.compare.verdict.findings import own_name
from probe.compare.verdict.settings import Design, Setting, differences_of, unrecorded_settings
from probe.compare.verdict.two_runs import Origin, TwoRuns, path_of

_IN_REACH = 24
"""Calls before the place, in the same module, whose tensors may be a term of it; a guess."""
_POWERS = (1.0, -1.0, 0.5, -0.5, 2.0, -2.0)
"""The powers of a setting that a factor may be: it is multiplied, divided by, squared in a loss, or a root is taken."""


class Place(NamedTuple):
    """A divergence: where it is, and how large."""

    call: Call
    row: Optional[Row]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The input, parameter or output that shows it; ``None`` of a call as a whole."""
    difference: float
    allowed: float


class ValueCauses:
    """Looks for causes in values.

    Args:
        runs: both runs.
        design: dtypes that are meant to be other ones.
    """

    def __init__(self, runs: TwoRuns, design: Design) -> None:
        self._runs, self._design = runs, design

    def of(self, place: Place, row: Row | None) -> Sentence:
        """Name a factor, another order, or a term that one side lacks.

        Args:
            place: the divergence.
            row: the value that shows it.
        """
        target, golden = (None, None) if row is None else (row.target, row.golden)
        if row is None or target is None or golden is None or not target.is_tensor or not golden.is_tensor:
            return NOTHING
        if extent(target.shape).elements != extent(golden.shape).elements or extent(target.shape).elements < 2:
            return NOTHING
        name = self.shown(place.call, row)
        if not (unit_roundoff(target.dtype) and unit_roundoff(golden.dtype)):
            return _whole_numbers_sentence(name, target, golden)
        if target.has_nan or golden.has_nan or math.isinf(place.difference):
            return NOTHING
        if arithmetic.is_constant(target) or arithmetic.is_constant(golden):
            return self._constant_sentence(name, target, golden)
        rounding = arithmetic.noise((target, golden), place.allowed)
        if self.is_parameter(row):
            rounding = max(2 * coarser(row), arithmetic.noise(()))  # It is rounded once.
        if place.difference <= 2 * rounding:
            return NOTHING
        if arithmetic.is_reordered(target, golden):
            return Sentence(f"{name} has the same elements in another order")
        mine, theirs = arithmetic.sums(self._runs, 0, [target]), arithmetic.sums(self._runs, 1, [golden])
        if mine is None or theirs is None:
            return NOTHING
        scaled = arithmetic.factor(mine[0], theirs[0], rounding)
        if scaled is not None:
            return self._factor_sentence(place, row, scaled)
        if self.is_parameter(row) or of_gradient(place.call):
            return NOTHING
        return self._term_sentence(place, row, (target, golden), rounding)

    def other_parameter_sentence(self, place: Place, row: Row) -> Sentence:
        """The sentence on a parameter that holds the values of another parameter of the golden run."""
        if row.target is None or row.golden is None or not self._runs.same_names:
            return NOTHING
        rows = [
            other
            for call in self._runs.calls
            for other in (call.inputs if call.is_forward and call.is_of_both else ())
            if is_parameter(other) and other.golden is not None and other.golden.shape == row.target.shape
        ]
        mine = arithmetic.sums(self._runs, 0, [row.target])
        table = arithmetic.sums(self._runs, 1, [other.golden for other in rows if other.golden is not None])
        if mine is None or table is None or arithmetic.is_constant(row.target):
            return NOTHING
        for other, sums in zip(rows, table):
            if (sums == mine[0]).all() and not distance(row) <= 2.0**-23:
                call = next(call for call in self._runs.calls if any(each is other for each in call.rows))
                return Sentence(f"{self.shown(place.call, row)} has the values of {self.shown(call, other)}")
        return NOTHING

    def _constant_sentence(self, name: str, target: Item, golden: Item) -> Sentence:
        for side, (item, other) in enumerate(((target, golden), (golden, target))):
            if item.max == item.min and other.max != other.min and is_number(item.max) and item.max == item.max:
                return Sentence(f"all elements of {name} are {item.max:g} in the {SIDES[side]}")
        return NOTHING

    def _factor_sentence(self, place: Place, row: Row, scaled: arithmetic.Factor) -> Sentence:
        setting = self._setting_of(place.call, scaled.value)
        if setting is not None:
            return setting.sentence if setting.where == place.call.name else setting.sentence.inside(setting.where)
        items = [item for each in place.call.rows for item in (each.target, each.golden)]
        shapes = [item.shape or () for item in items if item is not None and item.is_tensor]
        value = arithmetic.in_words(scaled.value, shapes, scaled.rest)
        parameter = self.gradient_of(row)
        if parameter:
            clips = [side for side, tree in enumerate(self._runs.trees) if CLIP_GRAD in tree.values()]
            why = f": only the {SIDES[clips[0]]} clips gradients (clip_grad)" if len(clips) == 1 else ""
            return Sentence(f"the gradient of {parameter} is {value} times that of the golden run{why}")
        if of_gradient(place.call):
            every = gradients.one_factor(self._runs, scaled.value)
            if every:
                return every
        return Sentence(f"{self.shown(place.call, row)} is {value} times that of the golden run")

    def _setting_of(self, call: Call, factor: float) -> Setting | None:
        """The setting of a call, of the modules around it or of one without a record whose values have that ratio."""
        near = [call, *around_on_both(self._runs, call)]
        found = [setting for each in near for setting in differences_of(self._runs, each, self._design)]
        for setting in (*found, *unrecorded_settings(self._runs)):
            one, other = setting.target, setting.golden
            if is_number(one) and is_number(other) and one * other > 0 and one != other:
                power = math.log(abs(factor)) / math.log(one / other)
                if any(math.isclose(power, each, rel_tol=1e-3) for each in _POWERS):
                    return setting
        return None

    def gradient_of(self, row: Row) -> str:
        """The parameter of which an input is the gradient; empty of anything else."""
        items = (row.target, row.golden)
        sources = [graph.source(item) for graph, item in zip(self._runs.graphs, items) if item is not None]
        return next((source.name for source in sources if source.origin is Origin.GRADIENT), "")

    def _term_sentence(self, place: Place, row: Row, pair: tuple[Item, Item], rounding: float) -> Sentence:
        candidates, makers = self._in_reach(place, row, extent(pair[0].shape).elements)
        found = arithmetic.term(self._runs, pair, candidates, rounding)
        if found is None:
            return NOTHING
        record, own = makers[found.side, found.item.name]
        if goes_in(row) and record == (row.record, row.golden_record)[found.side]:
            return NOTHING  # The call adds it itself: two programs hand on the two apart, or their sum.
        is_own = record == (place.call.record, place.call.golden_record)[found.side]
        what = item_words(own) if is_own else f"{own} of {record}"
        name = self.shown(place.call, row)
        value = found.value
        if math.isclose(value, -1.0, abs_tol=1e-2):
            return Sentence(f"{what} is not added to {name} in the target")
        if math.isclose(value, 1.0, abs_tol=1e-2):
            return Sentence(f"{what} is added to {name} in the target only, or once more than in the golden run")
        return Sentence(f"{name} has {value:.4g} times {what} more than in the golden run")

    def shown(self, call: Call, row: Row) -> str:
        """An item in words; a parameter with its path."""
        name = own_name(row)
        if is_parameter(row):
            return f"parameter {'.'.join(filter(None, (path_of(call.parsed), name.partition('.')[2])))}"
        source = None if row.target is None else self._runs.graphs[0].source(row.target)
        if source is not None and source.origin in (Origin.PARAMETER, Origin.BUFFER):
            return f"{source.origin.value} {source.name}"
        is_own = any(row is each for each in call.rows)
        return item_words(name) if is_own else f"{name} of {row.record}"

    def _in_reach(
        self, place: Place, row: Row, elements: int
    ) -> tuple[tuple[list[Item], list[Item]], dict[tuple[int, str], tuple[str, str]]]:
        """The tensors of one size that may be a term: what the call takes, and what calls around it take and return."""
        call = place.call
        start = next((index for index, each in enumerate(self._runs.calls) if each is call), call.index)
        near = [call, *reversed(self._runs.calls[max(0, start - _IN_REACH) : start])]
        module = next(iter(self._runs.around(call)), None)
        if module is not None:
            near.append(module)
        candidates: tuple[list[Item], list[Item]] = [], []
        makers: dict[tuple[int, str], tuple[str, str]] = {}
        for each in near:
            if each.direction != call.direction:
                continue
            for other in each.rows:
                if each is module and not goes_in(other):
                    continue
                for side, item in enumerate((other.target, other.golden)):
                    if item is None or not item.is_tensor or arithmetic.is_constant(item) or other is row:
                        continue
                    if extent(item.shape).elements == elements:
                        candidates[side].append(item)
                        record = (each.record, each.golden_record)[side] or ""
                        makers.setdefault((side, item.name), (record, item.name[len(record) + 1 :]))
        return candidates, makers

    def is_parameter(self, row: Row) -> bool:
        """True if an item is a parameter of its module, or one that a function is given."""
        source = None if row.target is None else self._runs.graphs[0].source(row.target)
        return is_parameter(row) or (source is not None and source.origin is Origin.PARAMETER)


def around_on_both(runs: TwoRuns, call: Call) -> Iterator[Call]:
    """The module calls around a call that both runs made, the innermost first."""
    return (module for module in runs.around(call) if module.is_module and module.is_of_both)


def _whole_numbers_sentence(name: str, target: Item, golden: Item) -> Sentence:
    """The sentence on other truth values, or other whole numbers."""
    if is_boolean(target.dtype or "") and is_boolean(golden.dtype or ""):
        shares = [item.mean for item in (target, golden)]
        if all(map(is_number, shares)) and shares[0] != shares[1]:
            return Sentence(f"{name} is true in {shares[0]:.3g} of its elements (golden: {shares[1]:.3g})")
        return NOTHING
    if arithmetic.is_reordered(target, golden):
        return Sentence(f"{name} has the same elements in another order")
    return NOTHING
