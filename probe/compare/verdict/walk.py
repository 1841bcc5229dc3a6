"""One walk over the calls of two runs: the first that leaves what explains it, and what excuses all others.

A value is explained if it is no further apart than its call's inputs and rounding make it (`bounds`), and, where dtypes
are short, than that of its like is (`bounds.Likeness`). Distances are measured, so that each call is judged by itself,
and what lies behind a divergence follows it without being told.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, Optional

import msgspec
from msgspec.structs import replace

from probe.common.align.calls import Row
from probe.common.dump.naming import FORWARD, OPTIMIZER, PARAMETERS_GRAD
from probe.common.numerics.error_bounds import ALTOGETHER, SAFETY, extent, is_same, rms, rounding
from probe.common.numerics.formats import unit_roundoff
from probe.common.operations.function import COMPUTING_NOTHING, Trait
from probe.common.operations.lookup import has
from probe.compare.result import Mode
from probe.compare.verdict import bounds, gradients
from probe.compare.verdict.all_gradients import is_in_parts
from probe.compare.verdict.bounds import Given, Judged, Likeness, Usual, role
from probe.compare.verdict.decisions import decision
from probe.compare.verdict.effects import (
    Effect,
    Effects,
    Nearby,
    draws,
    draws_another_share,
    draws_on_one_side,
    redraws,
)
from probe.compare.verdict.facts import SHORT, Call, distance, is_parameter, is_rounded
from probe.compare.verdict.findings import Excused, Finding, Kind, Walked
from probe.compare.verdict.optimizer import Between
from probe.compare.verdict.two_runs import GIVEN, Origin, TwoRuns, base_of
from probe.compare.verdict.unrecorded import UnrecordedInputs

_FLOAT32 = unit_roundoff("float32")


_TERMS = 256.0
"""The terms of a sum in a network, about: two programs add them up in other orders. A guess."""
_FAR = 0.25
"""The distance beyond which a result that both runs have tells nothing, whatever explains it: twice the 0.12 that is
the most in 94 right pairs of two precisions, programs, releases and frameworks, where faults reach 0.5."""


class _Value(msgspec.Struct, gc=False):
    """A value to be judged."""

    row: Row
    judged: Judged
    bound: float
    condition: float
    is_result: bool
    of_module: bool


class _Limit(NamedTuple):
    """The distance up to which a value is explained."""

    distance: float
    others: int
    """The calls like it that give the limit; 0 of the bound of the call itself."""


class Walk:
    """Judges every call of two runs in their order.

    Args:
        runs: the runs.
        between: the updates of parameters since the step before; ``None`` where they are not known.
        follows: true if the step before is compared as well, so that what it wrote is judged there.
    """

    def __init__(self, runs: TwoRuns, between: Between | None = None, follows: bool = False) -> None:
        self._runs = runs
        self._between = between
        self._unrecorded = UnrecordedInputs(runs, follows)
        self._nearby = Nearby(runs)
        self._effects: Effects
        self._shortest = max(runs.precision.shortest, runs.product_roundoff)
        self._is_short = self._shortest >= SHORT
        self._explained: dict[bool, list[float]] = {True: [], False: []}
        """The distances of all results so far that are explained, in their order, of the forward and of the rest."""
        self._values: dict[int, list[_Value]] = {}
        self._given: dict[int, Sequence[Row]] = {}
        """The values that each call in which something is apart computes from."""
        self._whole: dict[int, Row] = {}
        """The whole numbers that a call takes, that differ, and that code without a record made from what agrees."""

    def walked(self) -> Walked:
        """Walk over the calls."""
        if self._runs.graphs[0] is self._runs.graphs[1] and self._runs.mode is not Mode.TENSOR:
            # The records say the same of everything, and no file tells more.
            return Walked()
        self._effects = Effects(self._runs, self._agrees, self._has_near, self._agrees_behind)
        for call in self._runs.calls:
            # Between two programs the updates of parameters are judged, and not how an optimizer computes them.
            if call.is_of_both and (self._runs.same_names or self._runs.parent(call) != OPTIMIZER):
                self._values[call.index] = self._measured(call)
        self._like = Likeness(
            value.judged
            for index, values in self._values.items()
            for value in values
            if self._has_like(value.is_result) and index not in self._unrecorded.other_elements.calls
        )
        found = Walked(in_parts=self._first_part)
        for call in self._runs.calls:
            missing = self._missing_gradient_finding(call)
            if missing is not None:
                found.findings.append(missing)
            elif call.index in self._given:
                # In all other calls nothing is apart.
                self._judge(call, found)
        if not found.findings:
            found.hidden += self._far(found.excused)
        self._explain_inputs()
        # It refers to this object, so that nothing of the runs would be freed before the next search for garbage.
        del self._effects
        return found

    def _far(self, excused: Sequence[Excused]) -> list[Finding]:
        """The result that is furthest apart though it is explained, where that would hide a fault as well."""
        # Behind what is as far apart, tokens that go to another expert, the call is not what makes it so.
        far = [each for each in excused if each.call.is_forward and each.given <= _FAR < each.distance <= each.allowed]
        of_results = [each for each in far if any(each.row is row for row in each.call.outputs)]
        certain = [each for each in of_results if self._is_certain(each.call)]
        worst = max(certain, key=lambda each: each.distance, default=None)
        if worst is None:
            return []
        return [Finding(worst.call, worst.row, Kind.OUTPUT, worst.distance, worst.given, worst.allowed)]

    def _explain_inputs(self) -> None:
        """Give inputs what was explained of the results that they are."""
        for call in self._runs.calls if self._values else ():
            for row in call.inputs:
                if row.explained is None and row.relative_difference and row.target is not None:
                    made = self._runs.row_of.get(self._runs.graphs[0].source(row.target).name)
                    row.explained = None if made is None else made.explained

    def _missing_gradient_finding(self, call: Call) -> Finding | None:
        """A gradient of a parameter that both runs use and one run lacks, though it has others."""
        row = next(gradients.missing_rows(self._runs, call), None)
        return None if row is None else Finding(call, row, Kind.GRADIENT, ALTOGETHER, 0.0, 0.0)

    # --- first, what is judged of each call

    def _measured(self, call: Call) -> list[_Value]:
        if not any(row.relative_difference for row in call.rows):
            return []
        of = bounds.given(self._runs, call)
        self._given[call.index] = of.rows
        return [*self._measured_inputs(call), *self._measured_outputs(call, of)]

    def _measured_inputs(self, call: Call) -> Iterator[_Value]:
        """The inputs that no recorded call made."""
        unrecorded = self._unrecorded
        for row in call.inputs:
            apart = row.relative_difference
            if not apart:
                continue
            if apart == ALTOGETHER and unrecorded.is_of_code(call, row) and not unrecorded.base(call, row):
                self._whole.setdefault(call.index, row)
            elif is_rounded(row) and unrecorded.is_unrecorded(call, row) and not unrecorded.is_lost(row):
                known = unrecorded.known_base(call, row) if call.is_forward else None
                base = unrecorded.base(call, row) if known is None else known
                if unrecorded.takes_other_elements(call, row):
                    continue
                floor = rounding(1.0, max(self._runs.precision.unit(row), self._shortest, _FLOAT32))
                judged = Judged(role(self._runs, call, _suffix(call, row)), apart, base, floor)
                yield _Value(row, judged, SAFETY * base + floor, 1.0, False, known is None)

    def _measured_outputs(self, call: Call, of: Given) -> Iterator[_Value]:
        """The distances of what a call returns, which count for the inputs that code without a record makes from it."""
        largest = absolute = 0.0
        hidden = self._hidden(call)
        inside = self._unrecorded.inside(call.record) if call.is_module else 0.0
        for row in call.outputs:
            apart = row.relative_difference
            if apart is None or not is_rounded(row) or apart >= ALTOGETHER:
                continue
            largest = max(largest, apart)
            if row.golden is not None:
                absolute = max(absolute, apart * rms(row.golden))
            bound = bounds.bound(self._runs, call, of, row, inside, hidden)
            key = role(self._runs, call, _suffix(call, row)) if self._has_like(True) else None
            floor = max(rounding(1.0, max(self._runs.precision.unit(row), hidden)), bound.of_kernel / bound.condition)
            # Errors are relative to the terms; a result that cancels is no other kind of call.
            judged = Judged(key, apart / bound.condition, of.distance, floor)
            yield _Value(row, judged, bound.explained, bound.condition, True, call.is_module)
        if call.is_forward and self._runs.parent(call) is None:
            self._unrecorded.end(largest)
        if call.direction != PARAMETERS_GRAD and self._counts(call):
            self._unrecorded.add(call, largest, absolute)

    def _hidden(self, call: Call) -> float:
        """The unit roundoff of dtypes that no item of a call shows, because modules cast inside of their code."""
        if not self._casts:
            return 0.0
        return self._casts.get(base_of(call.name if call.is_module else self._runs.module_name(call)), 0.0)

    @cached_property
    def _casts(self) -> dict[str, float]:
        """The unit roundoff of the shortest dtype that each module casts to, by its name without a number."""
        found: dict[str, float] = {}
        for settings in self._runs.settings:
            for base, module in settings.items():
                if module.casts:
                    found[base] = max(found.get(base, 0.0), *map(unit_roundoff, module.casts))
        return found

    # --- then, call by call

    def _judge(self, call: Call, found: Walked) -> None:
        finding = self._input_finding(call, found)
        if not found.in_parts:
            finding = finding or self._discrete_finding(call, found) or self._value_finding(call, found)
        if finding is not None and (call.is_forward or not found.hidden):
            # Gradients behind a difference that is hidden in the forward are its effect.
            found.findings.append(finding)

    def _input_finding(self, call: Call, found: Walked) -> Finding | None:
        """Parameters and data that differ."""
        for row in call.inputs:
            target, golden, apart = row.target, row.golden, distance(row)
            if not apart or target is None or golden is None:
                continue
            source, other = (graph.source(item) for graph, item in zip(self._runs.graphs, (target, golden)))
            is_buffer = source.origin is Origin.BUFFER or other.origin is Origin.BUFFER
            origin = Origin.BUFFER if is_buffer and other.origin in GIVEN else source.origin
            if origin is Origin.PARAMETER and self._between is not None and self._between.excuses(source.name):
                continue
            if is_parameter(row):
                origin = Origin.PARAMETER
            elif source.origin not in GIVEN or (other.origin is not origin and not is_buffer):
                continue
            unit = max(self._runs.precision.unit(row), self._shortest if origin is not Origin.DATA else 0.0)
            allowed = rounding(1.0, unit) if unit else 0.0
            follows = self._between is not None and not found.in_parts
            is_state = follows and origin is Origin.BUFFER and (self._runs.same_names or self._is_certain(call))
            if is_state:
                allowed = max(allowed, self._state_distance(call, row))
            row.explained = allowed if apart <= allowed else None
            if apart <= allowed:
                continue
            kind = Kind.DATA if origin is Origin.DATA else Kind.PARAMETER
            if apart == math.inf:
                kind = Kind.NONFINITE
            finding = Finding(call, row, kind, apart, 0.0, allowed)
            is_own = origin is Origin.PARAMETER and self._runs.same_names
            if is_own or is_state or self._acts(call, row) or self._shown(finding, found):
                row.explained = allowed
                return finding
        return None

    def _state_distance(self, call: Call, buffer: Row) -> float:
        """The distance of a buffer that is explained: steps before wrote it from what the call takes now as well."""
        size = 0.0 if buffer.golden is None else rms(buffer.golden)
        taken = 0.0
        for row in call.inputs:
            if row.golden is not None and is_rounded(row) and not self._is_buffer(row):
                taken = max(taken, distance(row) * max(1.0, rms(row.golden) / size if size else 1.0))
        return SAFETY * taken

    def _is_buffer(self, row: Row) -> bool:
        """True of a buffer, which is a parameter that takes no gradient in MindSpore."""
        return Origin.BUFFER in map(self._runs.origin, (0, 1), (row.target, row.golden))

    def _shown(self, finding: Finding, found: Walked) -> Finding | None:
        """The finding, if it has an effect; where rounding may hide that, it is kept as hidden."""
        effect = Effect.HIDDEN if self._is_short else Effect.NONE
        if self._has_effect(finding.call):
            # Behind the first divergence nothing needs to be told apart from it.
            effect = Effect.SHOWS if found.findings and self._runs.same_names else self._effects.of(finding.call)
        if effect is Effect.HIDDEN and self._runs.same_names:
            found.hidden.append(finding)
        return finding if effect is Effect.SHOWS else None

    def _acts(self, call: Call, parameter: Row) -> bool:
        """True if a layer of two programs has a parameter with other numbers and returns what inputs do not explain.

        One program may keep a parameter in another form, an offset from 1, and return the same.
        """
        if self._runs.same_names or not is_parameter(parameter) or bounds.is_reordered(self._runs, parameter):
            return False
        return self._is_beyond(call, [row for row in call.inputs if not is_parameter(row)])

    def _is_beyond(self, call: Call, inputs: list[Row]) -> bool:
        """True if a call returns what some of its inputs and its like do not explain."""
        if any(distance(row) >= ALTOGETHER for row in call.outputs):
            return True
        of = bounds.given(self._runs, call, inputs)
        for value in self._values.get(call.index, ()):
            if not value.is_result:
                continue
            allowed = bounds.bound(self._runs, call, of, value.row, 0.0, self._hidden(call)).explained
            usual = self._usual(replace(value, judged=replace(value.judged, given=of.distance)))
            if usual is not None:
                allowed = min(allowed, value.condition * max(usual.limit, value.judged.floor))
            if distance(value.row) > allowed:
                return True
        return False

    def _has_effect(self, call: Call) -> bool:
        """True if anything that a call returns is apart, or nothing of it is compared though the program is one."""
        outputs = [row for row in call.outputs if row.relative_difference is not None]
        return any(map(distance, outputs)) if outputs else self._runs.same_names

    def _discrete_finding(self, call: Call, found: Walked) -> Finding | None:
        """Whole numbers, and values that are finite on one side alone."""
        changed = self._changed_choices(call) if self._runs.same_names else None
        if changed is not None and changed.allowed:
            found.hidden.append(changed)
        elif changed is not None:
            return changed
        made = None if changed is not None else self._whole.get(call.index)
        if made is not None:
            finding = self._shown(Finding(call, made, Kind.DATA, ALTOGETHER, 0.0, 0.0), found)
            if finding is not None:
                made.explained = 0.0
                return finding
        for row in call.outputs:
            apart = row.relative_difference or 0.0
            if apart < ALTOGETHER:
                continue
            given = [distance(each) for each in self._given.get(call.index, ())]
            if apart == math.inf:
                if not any(each == math.inf for each in given):
                    row.explained = 0.0
                    return Finding(call, row, Kind.NONFINITE, apart, max(given, default=0.0), 0.0)
                continue
            follows = call.index in self._unrecorded.other_elements.calls
            if not any(given) and not follows and not draws(self._runs, call) and self._shows(call):
                row.explained = 0.0
                return Finding(call, row, Kind.WHOLE, apart, 0.0, 0.0)
            chosen = decision(self._runs, call, row) if self._runs.same_names else None
            if chosen is not None and chosen.is_explained is False:
                row.explained = 0.0
                needed, has = ALTOGETHER if chosen.needed is None else chosen.needed, chosen.apart or 0.0
                return Finding(call, row, Kind.CHOICE, needed, has, has, chosen.differing)
        return None

    def _changed_choices(self, call: Call) -> Finding | None:
        """The choices that a call takes, if one run has changed them since they were made.

        Where those that were made differ as well, nobody can tell which make the difference; then all is allowed.
        """
        for row in call.inputs:
            target, golden, apart = row.target, row.golden, row.relative_difference or 0.0
            if apart < ALTOGETHER or is_rounded(row) or target is None or golden is None:
                continue
            items = target, golden
            taken = [graph.source(item).name for graph, item in zip(self._runs.graphs, items)]
            for side, item in enumerate(items):
                made, maker = self._runs.row_of_side(side).get(taken[side]), self._runs.maker(item, side)
                other = None if made is None else (made.golden, made.target)[side]
                if made is None or maker is None or other is None or other.name == taken[1 - side]:
                    continue
                values = [each for each in call.inputs if is_rounded(each)]
                if decision(self._runs, maker, made) is not None and self._is_beyond(call, values):
                    by = self._unrecorded.maker_alone(row) or self._changer(maker, made, side, call) or call
                    return Finding(by, row, Kind.CHOICE, ALTOGETHER, 0.0, distance(made))
        return None

    def _changer(self, maker: Call, made: Row, side: int, taker: Call) -> Call | None:
        """The call that one run alone has, and that takes choices as they were made, before others are taken.

        A call that writes in place returns nothing; what it takes is recorded as it was before.

        Args:
            maker: the call that chose.
            made: its choices.
            side: the run in which `taker` takes them as they are.
            taker: the call that takes others in the other run.
        """
        chosen = (made.target, made.golden)[1 - side]
        for call in reversed(self._runs.calls[maker.index + 1 : taker.index]):
            if call.is_of_both or not call.is_forward or chosen is None:
                continue
            for row in call.inputs:
                item = (row.target, row.golden)[1 - side]
                if item is not None and item.is_tensor and item.shape == chosen.shape and is_same(item, chosen):
                    return call
        return None

    def _agrees_behind(self, start: Call) -> bool:
        """True if the next layer agrees that two programs have and that takes what code which is not recorded made."""
        if self._runs.same_names:
            return False
        for call in self._runs.calls[start.index + 1 :]:
            if not call.is_of_both or call.is_forward != start.is_forward or not self._is_certain(call):
                continue
            rows = [row for row in call.outputs if row.relative_difference is not None and is_rounded(row)]
            if rows and any(is_rounded(row) and self._is_of_unknown(row) for row in call.inputs):
                return all(self._agrees(call, row, []) for row in rows)
        return False

    def _is_of_unknown(self, row: Row) -> bool:
        """True if nobody knows what made a tensor of the target."""
        return row.target is not None and not is_parameter(row) and self._runs.origin(0, row.target) is Origin.UNKNOWN

    def _shows(self, call: Call) -> bool:
        """True if what a call returns makes a value that stays apart further down."""
        return self._effects.of(call) is Effect.SHOWS

    def _noise(self, call: Call) -> float:
        """The usual distance of results so far: the median of those that are explained."""
        explained = self._explained[call.is_forward]
        return explained[len(explained) // 2] if explained else 0.0

    def _has_near(self, call: Call) -> bool:
        """True if the golden run holds nearly what a call of the target alone returns."""
        if call.record is None:
            return False
        noise = SAFETY * self._noise(call)
        items = [row.target for row in call.outputs if row.target is not None and row.target.is_tensor]
        for item in items:
            unit = unit_roundoff(item.dtype)
            allowed = noise + rounding(_TERMS, max(unit, self._shortest)) if unit else 0.0
            if self._nearby.distance(item) > allowed:
                return False
        return bool(items)

    def _agrees(self, call: Call, row: Row, others: list[Row]) -> bool:
        """True if an output is as near as the noise so far, and what else goes into its call, explain."""
        noise = self._noise(call)
        if row.golden is None or extent(row.golden.shape).elements == 1:
            return not distance(row)  # A sum hides what its terms differ by.
        if distance(row) <= SAFETY * noise + rounding(_TERMS, max(self._runs.precision.unit(row), self._shortest)):
            return True
        apart = max((distance(each) for each in others), default=0.0)
        if not apart:
            return False
        of = bounds.given(self._runs, call, others)
        return distance(row) <= bounds.bound(self._runs, call, of, row, 0.0, self._hidden(call)).explained

    def _value_finding(self, call: Call, found: Walked) -> Finding | None:
        values = self._values.get(call.index, ())
        if not values:
            return None
        has_whole = any(distance(row) >= ALTOGETHER for row in self._given[call.index])
        worst: Optional[Finding] = None  # noqa: UP045
        for value in values:
            if value.is_result and (has_whole or call.index in self._unrecorded.other_elements.calls):
                continue
            if value.is_result and not call.is_forward and has(call.function, *COMPUTING_NOTHING):
                # Where it is the identity, the gradient of what it returns is that of its argument with all its takers.
                continue
            limit = self._limit(value)
            if distance(value.row) > limit.distance:
                worst = worst or self._finding(call, value, limit, found)
                continue
            value.row.explained = limit.distance
            if value.is_result and call.direction != PARAMETERS_GRAD and self._counts(call):
                insort(self._explained[call.is_forward], value.judged.distance)
            found.excused.append(
                Excused(call, value.row, distance(value.row), value.judged.given, limit.distance)
            )  # fmt: skip
        is_drawn = worst is not None and worst.kind is not Kind.INPUT and draws(self._runs, call)
        is_chosen = is_drawn and (draws_on_one_side(call) or draws_another_share(self._runs, call))
        if worst is not None and is_drawn and redraws(self._runs, call):
            return worst._replace(kind=Kind.REDRAWN)
        if worst is not None and is_drawn and not is_chosen:
            found.undecided.append(worst._replace(kind=Kind.RANDOM))
            return None
        return worst

    @cached_property
    def _first_part(self) -> Finding | None:
        """The first data of which one run takes a part; what a call made may be broadcast in one run."""
        for call in self._runs.calls if self._runs.same_names else ():
            for row in call.inputs if call.is_forward else ():
                if is_in_parts(row) and Origin.DATA in map(self._runs.origin, (0, 1), (row.target, row.golden)):
                    return Finding(call, row, Kind.PARTS, ALTOGETHER, 0.0, 0.0)
        return None

    def _limit(self, value: _Value) -> _Limit:
        """The distance up to which a value is explained, by its bound or by its like."""
        usual = self._usual(value)
        if usual is not None:
            of_like = value.condition * max(usual.limit, value.judged.floor)
            if value.of_module or of_like < value.bound:
                return _Limit(of_like, usual.others)
        return _Limit(value.bound, 0)

    def _finding(self, call: Call, value: _Value, limit: _Limit, found: Walked) -> Finding | None:
        """The finding on a value that nothing explains; ``None`` if it has no effect, or one that rounding may hide."""
        judged, apart, (allowed, others) = value.judged, distance(value.row), limit
        kind = Kind.INPUT if not value.is_result else (Kind.LIKE if others else Kind.OUTPUT)
        if kind is Kind.INPUT and not (self._has_effect(call) and self._is_felt(call, value)):
            return None
        if not self._runs.same_names or not self._is_certain(call):
            effect = self._effect(call, value.row, apart, value.bound)
            if effect is Effect.HIDDEN and self._is_certain(call) and self._like.is_shared(judged):
                found.hidden.append(Finding(call, value.row, Kind.OUTPUT, apart, judged.given, allowed, others))
                return None
            if effect is Effect.NONE or (effect is Effect.HIDDEN and not self._is_certain(call)):
                return None
        if kind is Kind.INPUT and not self._runs.has_functions:
            # The code of the module around it, of which no call is recorded, made it.
            call = next((each for each in self._runs.around(call) if each.is_of_both), call)
        if kind is Kind.INPUT:
            call = self._unrecorded.maker_alone(value.row) or call
        value.row.explained = allowed
        return Finding(call, value.row, kind, apart, judged.given, allowed, others)

    def _is_felt(self, call: Call, value: _Value) -> bool:
        """True if an input that nothing explains makes what its call returns, or values further down, stay apart."""
        others = [row for row in call.inputs if row is not value.row]
        if self._runs.same_names and self._is_beyond(call, others):
            return True
        # What a recorded call made needs no more.
        return (value.of_module or not self._runs.same_names) and self._shows(call)

    def _effect(self, call: Call, row: Row, apart: float, explained: float) -> Effect:
        """The effect of a result of two programs, which may be another form of what the other program computes."""
        if not call.is_forward:
            # A gradient of two programs is the same only where a layer is.
            # What a function's backward returns is the gradient of a part of it in one program and of another in the
            # other; the modules around tell, and where there are none, what is no transposed weight.
            is_whole = call.is_module or not (
                self._runs.parent(call)
                or has(call.function, Trait.TWO_OPERATIONS)
                or bounds.is_reordered(self._runs, row, explained)
            )
            is_certain = self._is_certain(call) or self._is_of_agreed(call)
            is_same = (is_whole and is_certain) or call.direction == PARAMETERS_GRAD
            return Effect.SHOWS if is_same else Effect.NONE
        norms = [item.norm for item in (row.target, row.golden) if item is not None and type(item.norm) is float]
        return self._effects.of(call, apart * max(norms, default=0.0))

    def _is_of_agreed(self, backward: Call) -> bool:
        """True if a backward is that of a function which takes and returns the same in both programs, to rounding."""
        call = None if backward.is_module else self._runs.in_direction(backward, FORWARD)
        if call is None or not call.is_of_both:
            return False
        rows = [row for row in call.rows if any(item and item.is_tensor for item in (row.target, row.golden))]
        is_compared = all(row.relative_difference is not None and is_rounded(row) for row in rows)
        return bool(rows) and is_compared and all(self._agrees(call, row, []) for row in rows)

    def _is_certain(self, call: Call) -> bool:
        """True if two calls are one: those of one program, and of two programs those that take the same parameters."""
        if self._runs.same_names:
            return not self._takes_more(call)
        parameters = self._parameters_of(call)
        return bool(parameters) and not any(bounds.is_reordered(self._runs, row) for row in parameters)

    def _takes_more(self, call: Call) -> bool:
        """True if a module of one side takes a tensor that the other side does not give it, and does more with it.

        A backward of one side that makes more gradients is of another kernel, which orders them otherwise.
        """
        if call.is_alike:
            return False
        if not call.is_forward or not call.is_module:
            rows = [] if call.is_forward else call.outputs
        else:
            rows = [row for row in call.inputs if not is_parameter(row)]
        sides = [[item is not None and item.is_tensor for item in (row.target, row.golden)] for row in rows]
        return sum(pair[0] for pair in sides) != sum(pair[1] for pair in sides)

    def _counts(self, call: Call) -> bool:
        """True if what a call returns tells how far apart the runs are: it is no other form of something else."""
        if self._runs.same_names or self._is_certain(call):
            return True
        return call.is_module and not self._parameters_of(call)

    def _parameters_of(self, call: Call) -> list[Row]:
        """The parameters that both calls take; of a backward those of its forward."""
        forward = call if call.is_forward else self._runs.in_direction(call, FORWARD)
        found = []
        for row in () if forward is None or not forward.is_of_both else forward.inputs:
            if row.target is None or row.golden is None or row.relative_difference is None:
                continue
            if is_parameter(row) or all(each.origin is Origin.PARAMETER for each in self._runs.sources(row)):
                found.append(row)
        return found

    def _usual(self, value: _Value) -> Usual | None:
        """Ask the like of a value, where its type tells less: short dtypes, and code that is not recorded."""
        return self._like.usual(value.judged) if self._is_short or not value.is_result else None

    def _has_like(self, is_result: bool) -> bool:
        """True if the like of a value may be asked."""
        return self._is_short or not is_result or not self._runs.same_names


def _suffix(call: Call, row: Row) -> str:
    """The part of an item's name behind the record."""
    item = row.target or row.golden
    name = "" if item is None else item.name
    return name[len(call.name) :]
