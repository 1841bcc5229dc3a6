"""The cause of a divergence: backwards from the place, the nearest thing that differs in kind.

In this order: the arguments and items of the call; the calls on the way of the value, between the call and the last
tensors that agree; the module around it; and what arithmetic on sketches shows. A cause lies on the way of the value,
and differs nowhere where nothing diverges. None is named rather than a wrong one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cached_property

from probe.common.align.calls import Row
from probe.common.align.operations import layer_kind
from probe.common.dump.naming import FORWARD, OPTIMIZER, is_module
from probe.common.dump.reading.call_tree import around
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import extent, is_number
from probe.common.numerics.formats import FORMATS, unit_roundoff
from probe.common.operations.function import Trait
from probe.common.operations.lookup import canonical, function
from probe.compare.judgement import NOTHING, Sentence, item_words
from probe.compare.result import SIDES
from probe.compare.verdict import arithmetic, gradients
from probe.compare.verdict.facts import Call, coarser, distance, goes_in, is_compared, is_parameter, of_gradient
from probe.compare.verdict.findings import kinds_of, own_name
from probe.compare.verdict.optimizer import convention_cause, settings_cause
from probe.compare.verdict.settings import Design, Setting, differences_of
from probe.compare.verdict.two_runs import Origin, TwoRuns
from probe.compare.verdict.value_causes import Place, ValueCauses, around_on_both

_MOST_CLASSES = 0.8
"""The share of modules of one class from which on another class tells something; a guess."""
_MOST_CALLS = 200
"""Calls on the way that are looked at; a guess."""


class Causes:
    """Looks for causes.

    Args:
        runs: both runs.
        design: dtypes that are meant to be other ones.
        before: the paths of the dumps of the step before.
    """

    def __init__(self, runs: TwoRuns, design: Design = frozenset(), before: tuple[str, str] | None = None) -> None:
        self._runs = runs
        self._design = design
        self._before = before
        self._values = ValueCauses(runs, design)

    def of(self, place: Place) -> Sentence:
        """The cause of a divergence; `NOTHING` if there is none."""
        call, row = place.call, place.row
        if not call.is_of_both:
            forward = self._runs.in_direction(call, FORWARD) if of_gradient(call) else None
            if forward is not None and not forward.is_of_both:
                side = int(forward.record is None)
                return self._only(forward, side)
            return gradients.missing(self._runs, call, row) if of_gradient(call) else self._one_sided_sentence(place)
        found = gradients.kept(self._runs, call, row, self._before)
        if found:
            return found
        if self._runs.parent(call) == OPTIMIZER and not (
            row is not None and goes_in(row) and self._values.gradient_of(row)
        ):
            found = settings_cause(self._runs.updates) or convention_cause(self._runs.updates, self._runs.frameworks)
            if found:
                return found
        if of_gradient(call):
            found = gradients.missing(self._runs, call, row) or gradients.tied(self._runs, call, row)
            found = found or (gradients.lost(self._runs, call) if place.difference > 2 * place.allowed else NOTHING)
            if found:
                return found
        if row is not None and self._values.is_parameter(row):
            return self._in_kind(call, only=row) or self._between(place, row) or self._parameter_sentence(place, row)
        if row is not None and goes_in(row):
            return self._input_sentence(place, row)
        return self._output_sentence(place)

    def _output_sentence(self, place: Place) -> Sentence:
        call = place.call
        settings = self._settings(place)
        if settings and settings[0].decides:
            return self._said(settings[0], place)
        found = self._other_mask(call) or self._weights_sentence(place)
        if found:
            return found
        # What makes an input another one is nearer to the fault than the input.
        rows = [row for row, _ in kinds_of(self._runs, call, self._design)]
        return (
            (self._on_the_way(place, rows) if rows else NOTHING)
            or self._in_kind(call)
            or self._on_the_way(place, [row for row in call.outputs if row is place.row] or call.outputs)
            or (self._values.of(place, place.row) if place.row is not None else NOTHING)
            or self._unchanged(call)
            or self._class_sentence(call)
            or (settings[0].sentence if settings else NOTHING)
        )

    def _input_sentence(self, place: Place, row: Row) -> Sentence:
        found = self._on_the_way(place, [row]) or self._in_kind(place.call, only=row) or self._between(place, row)
        if found:
            return found
        if self._is_state(row) or not any(row is each for each in place.call.rows):
            # A step before wrote it, or the module's own code did, with these settings.
            settings = self._settings(place)
            if settings:
                return self._said(settings[0], place)
        return self._values.of(place, row)

    def _is_state(self, row: Row) -> bool:
        item = row.target
        return item is not None and self._runs.graphs[0].source(item).origin is Origin.BUFFER

    def _weights_sentence(self, place: Place) -> Sentence:
        """The sentence on a parameter that the call takes and that differs."""
        for row in place.call.inputs:
            source = None if row.target is None else self._runs.graphs[0].source(row.target)
            if source is None or source.origin is not Origin.PARAMETER or not is_compared(row):
                continue
            if distance(row) > 2 * max(unit_roundoff("float32"), coarser(row)):
                return self._parameter_sentence(Place(place.call, row, distance(row), 0.0), row)
        return NOTHING

    def _parameter_sentence(self, place: Place, row: Row) -> Sentence:
        found = self._values.other_parameter_sentence(place, row) or self._values.of(place, row)
        if found or any(row is each and is_parameter(row) for each in place.call.rows):
            return found
        return Sentence(f"{self._values.shown(place.call, row)} has a relative error of {distance(row):.1e}")

    def _other_mask(self, call: Call) -> Sentence:
        """The sentence on an input of which other elements are masked with numbers that no sketch holds."""
        for row in call.inputs if self._runs.tables is not None else ():
            items = row.target, row.golden
            sketches = [
                None if item is None or table is None else table.sketch(item.name)
                for table, item in zip(self._runs.tables or (), items)
            ]
            if None in sketches or len(sketches) != 2:
                continue
            mine, theirs = sketches
            if mine is None or theirs is None or mine.marks is None or theirs.marks is None:
                continue
            if mine.excluded != theirs.excluded or not (mine.marks == theirs.marks).all():
                counts = f"{mine.excluded} elements (golden: {theirs.excluded}"
                counts += ")" if mine.excluded != theirs.excluded else ", other ones)"
                return Sentence(f"{self._values.shown(call, row)} is another mask: it masks {counts}")
        return NOTHING

    def _one_sided_sentence(self, place: Place) -> Sentence:
        """The cause at a call that one side alone makes: what the other side does with the same tensors."""
        side = int(place.call.record is None)
        sibling = self._sibling(place.call, side)
        if sibling is not None:
            mine, theirs = (place.call, sibling) if side == 0 else (sibling, place.call)
            if _kind(mine) != _kind(theirs):
                return _instead(mine, theirs)
            setting = next((each for each in self._settings_of_two(mine, theirs) if each.decides), None)
            if setting is not None:
                return setting.sentence
        record = (place.call.record, place.call.golden_record)[side] or ""
        of_side = (self._runs.by_record, self._runs.by_golden_record)[side]
        waiting, seen = [record], {record}
        while waiting and len(seen) < _MOST_CALLS:
            for taker in self._runs.graphs[side].takers(waiting.pop(0)):
                call = of_side.get(taker)
                if call is None or taker in seen:
                    continue
                if call.is_of_both:
                    found = self._on_the_way(Place(call, None, place.difference, place.allowed), call.inputs)
                    if found:
                        return found
                seen.add(taker)
                waiting += [] if call.is_of_both else [taker]
        return NOTHING

    def _settings_of_two(self, mine: Call, theirs: Call) -> list[Setting]:
        """The settings that differ between two calls of one function that are not paired."""
        pair = Call(mine.index, mine.record, theirs.golden_record, mine.rows + theirs.rows, mine.parsed)
        return differences_of(self._runs, pair, self._design)

    def _sibling(self, call: Call, side: int) -> Call | None:
        """The call of the other side alone that takes the same tensor, the one of the same function first."""
        item = next((item for row in call.inputs if (item := (row.target, row.golden)[side]) and item.is_tensor), None)
        given = None if item is None else arithmetic.sums(self._runs, side, [item])
        if item is None or given is None:
            return None
        found: list[tuple[Call, Item]] = []
        for other in self._runs.calls:
            if other.is_of_both or other.direction != call.direction or other.is_module != call.is_module:
                continue
            if (other.record is None) == (side == 0) and _kind(other):
                theirs = (
                    taken
                    for row in other.inputs
                    if (taken := (row.target, row.golden)[1 - side]) is not None and taken.is_tensor
                )
                found += [(other, taken) for taken in theirs if extent(taken.shape) == extent(item.shape)]
        table = arithmetic.sums(self._runs, 1 - side, [taken for _, taken in found])
        if table is None:
            return None
        import numpy as np

        size = float(np.linalg.norm(given))
        near = np.linalg.norm(table - given, axis=1) <= arithmetic.noise([item]) * size
        alike = [other for (other, _), is_near in zip(found, near) if is_near]
        alike.sort(key=lambda other: (_kind(other) != _kind(call), abs(other.index - call.index)))
        return alike[0] if alike else None

    # --- the call itself

    def _in_kind(self, call: Call, only: Row | None = None) -> Sentence:
        for row, sentence in kinds_of(self._runs, call, self._design):
            if only is None or row is only:
                return sentence
        return NOTHING

    def _settings(self, place: Place) -> list[Setting]:
        """The settings of the call that differ, those that decide first."""
        return sorted(differences_of(self._runs, place.call, self._design), key=lambda each: not each.decides)

    def _said(self, setting: Setting, place: Place) -> Sentence:
        """The setting in words; with the name that the module around has for the number, if it is there."""
        if not setting.is_of_module and not place.call.is_module:
            for module in around_on_both(self._runs, place.call):
                for own in differences_of(self._runs, module, self._design):
                    if own.is_of_module and _are_of_one_value(own, setting):
                        return own.sentence
                break
        return setting.sentence

    # --- the way of the value

    def _on_the_way(self, place: Place, rows: Sequence[Row]) -> Sentence:
        """The nearest difference in calls that some tensors come from, up to those whose results agree."""
        alone: tuple[list[Call], list[Call]] = [], []
        small = place.allowed
        waiting = [(side, row, 0) for row in rows for side in (0, 1)]
        seen: set[tuple[int, int]] = set()
        direct: set[int] = set()
        number = 0
        while waiting and number < _MOST_CALLS:
            side, row, depth = waiting.pop(0)
            number += 1
            item = (row.target, row.golden)[side]
            maker = None if item is None or not item.is_tensor else self._runs.maker(item, side)
            if maker is None or maker is place.call or (maker.index, side) in seen:
                continue
            seen.add((maker.index, side))
            if not maker.is_of_both:
                alone[side].append(maker)
                if not depth:
                    direct.add(maker.index)
                waiting += [(side, each, depth + bool(_kind(maker))) for each in maker.inputs]
                continue
            if _agrees_in_outputs(maker, small):
                continue
            found = self._in_kind(maker)
            if not found:
                of_maker = Place(maker, None, place.difference, place.allowed)
                found = next((each.sentence for each in self._settings(of_maker)), NOTHING)
            if found:
                # What one side alone does behind it is nearer.
                return self._calls_of_one_side(alone, direct, rows) or found.inside(maker.name, maker.records)
            waiting += [(side, each, depth + 1) for each in maker.inputs if distance(each) > small]
        return self._calls_of_one_side(alone, direct, rows) or self._transposed(alone)

    def _transposed(self, alone: tuple[list[Call], list[Call]]) -> Sentence:
        """The sentence on a parameter that one side alone transposes; `linear` does it itself."""
        if any(canonical(call.function) == "linear" for calls in alone for call in calls):
            return NOTHING
        found: list[list[tuple[Call, str]]] = [[], []]
        for side, calls in enumerate(alone):
            for call in calls:
                item = next((item for row in call.inputs if (item := (row.target, row.golden)[side])), None)
                source = None if item is None else self._runs.graphs[side].source(item)
                moves = function(call.function).has(Trait.HANDS_ON, Trait.FITS)
                if source is not None and source.origin is Origin.PARAMETER and moves:
                    found[side].append((call, source.name))
        if bool(found[0]) == bool(found[1]):
            return NOTHING
        side = 0 if found[0] else 1
        call, parameter = found[side][0]
        return Sentence(f"only the {SIDES[side]} calls {call.name}, on parameter {parameter}", calls=call.records)

    def _calls_of_one_side(
        self, alone: tuple[list[Call], list[Call]], direct: Collection[int], rows: Sequence[Row]
    ) -> Sentence:
        """The sentence on calls that one side alone makes on the way of the value.

        Two programs make many such calls. There, what a call takes must be what the other side has in the end, or what
        the call of the other side takes.

        Args:
            alone: the calls of each side alone, the nearest first.
            direct: the indexes of those between which and the value nothing is computed.
            rows: the values.
        """
        kinds = tuple(
            [(call, kind) for call in calls for kind in _parts(call) if not self._has_equal(call, side)]
            for side, calls in enumerate(alone)
        )
        counts = Counter(kind for _, kind in kinds[0]), Counter(kind for _, kind in kinds[1])
        own = tuple(
            [call for call, kind in kinds[side] if counts[side][kind] > counts[1 - side][kind]] for side in (0, 1)
        )
        if own[0] and own[1]:
            is_one_kind = all(len({_kind(call) for call in calls}) == 1 for calls in own)
            mine, theirs = own[0][0], own[1][0]
            is_certain = self._runs.same_names or self._take_the_same(mine, theirs)
            if is_one_kind and len(own[0]) == len(own[1]) and is_certain:
                return _instead(mine, theirs)
        for side in (0, 1):
            certain = [call for call in own[side] if call.index in direct and self._is_bypassed(call, side, rows)]
            if not certain and self._runs.same_names and not own[1 - side]:
                certain = own[side]
            if certain:
                return self._only(certain[0], side)
        # The same kinds of calls without being paired: their settings may differ.
        for (mine, kind), (theirs, golden_kind) in zip(*kinds):
            if kind == golden_kind:
                setting = next((each for each in self._settings_of_two(mine, theirs) if each.decides), None)
                if setting is not None:
                    return setting.sentence.inside(mine.name, (mine.records[0], theirs.records[1]))
        return NOTHING

    def _is_bypassed(self, call: Call, side: int, rows: Sequence[Row]) -> bool:
        """True if a call of one side takes what the other side has behind it."""
        others = [item for row in rows if (item := (row.target, row.golden)[1 - side]) is not None and item.is_tensor]
        return any(self._is_near(item, other, side) for item in _tensors(call, side) for other in others)

    def _take_the_same(self, mine: Call, theirs: Call) -> bool:
        return any(self._is_near(item, other, 0) for item in _tensors(mine, 0) for other in _tensors(theirs, 1))

    def _is_near(self, item: Item, other: Item, side: int) -> bool:
        """True if a tensor of one side is one of the other side to rounding."""
        if extent(item.shape).elements != extent(other.shape).elements or arithmetic.is_constant(item):
            return False
        mine, theirs = arithmetic.sums(self._runs, side, [item]), arithmetic.sums(self._runs, 1 - side, [other])
        if mine is None or theirs is None:
            return False
        size, left = float(theirs[0] @ theirs[0]), mine[0] - theirs[0]
        return math.sqrt(float(left @ left)) <= arithmetic.noise([item, other]) * math.sqrt(size)

    def _only(self, call: Call, side: int) -> Sentence:
        return Sentence(f"only the {SIDES[side]} calls {call.name}{self._given(call, side)}", calls=call.records)

    def _given(self, call: Call, side: int) -> str:
        """The plain numbers that a call is given."""
        values = []
        for row in call.inputs:
            item = (row.target, row.golden)[side]
            if item is not None and is_number(item.value):
                values.append(str(item.value))
        return f" ({', '.join(values)})" if 0 < len(values) <= 3 else ""

    def _has_equal(self, call: Call, side: int) -> bool:
        """True if the other side alone makes such a call as well, with an equal result, only elsewhere."""
        returned = [item for row in call.outputs if (item := (row.target, row.golden)[side]) is not None]
        return any(
            self._is_near(returned[0], item, side)
            for other in (self._alone[1 - side].get(_kind(call), ()) if returned else ())
            for row in other.outputs[:1]
            if (item := (row.target, row.golden)[1 - side]) is not None and item.is_tensor
        )

    @cached_property
    def _alone(self) -> tuple[dict[str, list[Call]], dict[str, list[Call]]]:
        """The calls of each side alone by their kinds."""
        found: tuple[dict[str, list[Call]], dict[str, list[Call]]] = {}, {}
        for call in self._runs.calls:
            if not call.is_of_both:
                found[int(call.record is None)].setdefault(_kind(call), []).append(call)
        return found

    def _between(self, place: Place, row: Row) -> Sentence:
        """The fate of a tensor between the call that returned it and the one that takes it."""
        target, golden = row.target, row.golden
        if target is None or golden is None:
            return NOTHING
        sources = [graph.source(item) for graph, item in zip(self._runs.graphs, (target, golden))]
        makers = [self._runs.maker(item, side) for side, item in enumerate((target, golden))]
        origins = {source.origin for source in sources}
        if origins <= {Origin.PARAMETER, Origin.BUFFER} and sources[0].name != sources[1].name:
            if not self._runs.same_names:
                return NOTHING
            kind = sources[0].origin.value
            text = f"{own_name(row)} is {kind} {sources[0].name} and in the golden run {sources[1].name}"
            labelled = f"{item_words(own_name(row))} is {kind} {sources[0].name} (golden: {sources[1].name})"
            return Sentence(text, labelled)
        mine, theirs = makers
        if mine is not None and theirs is not None and mine is not theirs and mine.is_of_both and theirs.is_of_both:
            names = self._call_name(mine, 0), self._call_name(theirs, 1)
            text = f"{own_name(row)} is the result of {names[0]} and in the golden run of {names[1]}"
            return Sentence(text, f"{item_words(own_name(row))} is the result of {names[0]} (golden: {names[1]})")
        if sources[0][:2] == sources[1][:2] and sources[0].origin is Origin.DATA and sources[0].is_view:
            given = sources[0].name
            found = self._runs.row_of.get(given)
            if found is not None and is_compared(found) and not distance(found):
                said = f"is another part of {given} than in the golden run"
                return Sentence(f"{own_name(row)} {said}", f"{item_words(own_name(row))} {said}")
        sides = [side for side in (0, 1) if makers[side] is not None]
        returned = next((self._returned(makers[side], sources[side].name, side) for side in sides), None)
        if returned is None or not is_compared(returned) or distance(returned) > place.allowed:
            return NOTHING
        maker = makers[0] or makers[1]
        for side, (item, other) in enumerate(((target, returned.target), (golden, returned.golden))):
            did = "" if item is None or other is None else self._change(item, other, side)
            if did and maker is not None:
                what = did.format(f"the output of {maker.name}")
                return Sentence(f"unrecorded code of the {SIDES[side]} {what}")
        return NOTHING

    def _call_name(self, call: Call, side: int) -> str:
        """A call, with the module around it, whose name tells more than a number."""
        record = (call.record, call.golden_record)[side] or ""
        module = next((name for name in around(self._runs.trees[side], record) if is_module(name)), "")
        return f"{record} in {module}" if module and not call.is_module else record

    def _returned(self, maker: Call | None, name: str, side: int) -> Row | None:
        for row in () if maker is None else maker.outputs:
            item = (row.target, row.golden)[side]
            if item is not None and item.name == name:
                return row
        return None

    def _change(self, taken: Item, returned: Item, side: int) -> str:
        """The fate of a tensor from its call to the one that takes it, with a gap for it; empty if it is the same."""
        mine, theirs = arithmetic.sums(self._runs, side, [taken]), arithmetic.sums(self._runs, side, [returned])
        if mine is None or theirs is None or extent(taken.shape).elements != extent(returned.shape).elements:
            return ""
        import numpy as np

        size = float(np.linalg.norm(theirs))
        apart = float(np.linalg.norm(mine - theirs)) / size if size else 0.0
        if apart <= arithmetic.noise([taken, returned]):
            return ""
        scaled = arithmetic.factor(mine[0], theirs[0], arithmetic.noise([taken, returned]))
        if scaled is not None:
            return f"multiplies {{}} by {arithmetic.in_words(scaled.value, [taken.shape or ()], scaled.rest)}"
        if arithmetic.is_reordered(taken, returned):
            return "puts the elements of {} into another order"
        for name in ("float16", "bfloat16"):
            # The error of one rounding is at most the roundoff, and half of it in the mean.
            if unit_roundoff(name) / 8 < apart < unit_roundoff(name) and name in FORMATS:
                return f"rounds {{}} to {name}"
        return ""

    def _class_sentence(self, call: Call) -> Sentence:
        """The sentence on a module of another class, where nearly all modules have the classes of the golden run."""
        names = _class_of(call.record), _class_of(call.golden_record)
        if not call.is_module or names[0] == names[1] or self._share_of_classes < _MOST_CLASSES:
            return NOTHING
        text = f"the module is a {names[0]} and in the golden run a {names[1]}"
        return Sentence(text, f"the module has class {names[0]} (golden: {names[1]})")

    @cached_property
    def _share_of_classes(self) -> float:
        """The share of modules that have the class of the golden run."""
        same = number = 0
        for call in self._runs.calls:
            if call.is_module and call.is_of_both and call.is_forward:
                number += 1
                same += _class_of(call.record) == _class_of(call.golden_record)
        return same / number if number else 0.0

    def _unchanged(self, call: Call) -> Sentence:
        """The sentence on a call that returns its input as it is on one side only, as dropout does in evaluation."""
        given, returned = next(iter(call.inputs), None), next(iter(call.outputs), None)
        if given is None or returned is None or not is_compared(given) or not is_compared(returned):
            return NOTHING
        unchanged = []
        for side in (0, 1):
            pair = [(row.target, row.golden)[side] for row in (given, returned)]
            tables = [None if item is None else arithmetic.sums(self._runs, side, [item]) for item in pair]
            if tables[0] is None or tables[1] is None:
                return NOTHING
            unchanged.append(bool((tables[0] == tables[1]).all()))
        if unchanged[0] == unchanged[1]:
            return NOTHING
        side = 0 if unchanged[0] else 1
        why = ": training = False, or p = 0" if "dropout" in call.function.lower() else ""
        return Sentence(f"{own_name(given)} comes back unchanged in the {SIDES[side]} only{why}")


def _instead(mine: Call, theirs: Call) -> Sentence:
    text = f"the target calls {mine.name} where the golden run calls {theirs.name}"
    return Sentence(text, calls=(mine.records[0], theirs.records[1]))


def _tensors(call: Call, side: int) -> list[Item]:
    """The tensors that a call takes on one side."""
    items = ((row.target, row.golden)[side] for row in call.inputs)
    return [item for item in items if item is not None and item.is_tensor]


def _class_of(record: str | None) -> str:
    return (record or "").rpartition(".")[0].rpartition(".")[0].rpartition(".")[2]


def _agrees_in_outputs(call: Call, small: float) -> bool:
    return all(distance(row) <= small for row in call.outputs) and any(is_compared(row) for row in call.outputs)


_ALIKE = {"div": "mul", "pow": "mul", "square": "mul", "true_divide": "mul", "sub": "add"}
"""Functions that are often one: a quotient has a reciprocal as a factor, a square is ``x * x``. A guess."""


def _kind(call: Call) -> str:
    """The kind of function that a call is; empty if it changes no value and no order."""
    if call.is_module:
        return layer_kind(call.function) or call.function
    known = function(call.function)
    if known.has(Trait.FITS) or known.has(Trait.TELLS):
        return ""
    name = canonical(call.function).rstrip("_")
    return _ALIKE.get(name, name)


def _parts(call: Call) -> tuple[str, ...]:
    """The kinds of functions that a call may be made of in another program."""
    kind = _kind(call)
    if not kind:
        return ()
    parts = function(call.function).parts if not call.is_module else ()
    return tuple(_ALIKE.get(part, part) for part in parts) or (kind,)


def _are_of_one_value(one: Setting, other: Setting) -> bool:
    pairs = list(zip(one.values, other.values))
    return all(is_number(value) for pair in pairs for value in pair) and all(
        math.isclose(mine, theirs, rel_tol=1e-6) for mine, theirs in pairs
    )
