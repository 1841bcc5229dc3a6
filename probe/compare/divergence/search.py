"""Which call is the first whose values diverge, that is, differ by more than its inputs and its type explain.

Anything else that differs, an argument, a type, a shape, a call on one side only, is a difference. It is the cause of a
divergence where values diverge behind it, and is counted as a difference without effect where they do not.

The calls are walked in the order in which they ended. `probe.common.numerics.error_bounds` has the rule for one call,
`PropagatedError` how far the runs differed so far, so that an input which carries that is not held against the call
that gets it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter

from probe.common.align.row import Row
from probe.common.collectives.collectives import is_communication
from probe.common.dump.naming import (
    BACKWARD,
    FORWARD,
    PARAMETERS_GRAD,
    ParsedName,
    function_name,
    is_module,
    parse,
    record_name,
)
from probe.common.dump.reading.records import INPUT, PARAMETERS, Item
from probe.common.dump.reading.sources import Tree
from probe.common.numerics.error_bounds import (
    ALTOGETHER,
    GRADIENT,
    Terms,
    approximation,
    condition,
    condition_of_product,
    explained,
    extent,
    relative_difference,
    rounding,
    turned_by_division,
)
from probe.common.numerics.formats import unit_roundoff
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has
from probe.compare.divergence import differences
from probe.compare.divergence.aligned_calls import AlignedCall, Trees
from probe.compare.divergence.between_steps import BetweenSteps
from probe.compare.divergence.call_digest import CallDigest, digest, is_input
from probe.compare.divergence.differences import Differences
from probe.compare.divergence.effects import Effects, Origins
from probe.compare.divergence.judged_calls import EXPLAINED, SAME, STRUCTURE, UNEXPLAINED, JudgedCall
from probe.compare.divergence.parameters import Parameter, Parameters
from probe.compare.divergence.precision import Precision, TypePair
from probe.compare.divergence.propagated_error import PropagatedError
from probe.compare.result import Difference, Mode, Unexplained

SUSPECTS = 5
"""How many calls after the first are looked for, where nobody asks for all: the rest of the run is not looked at."""

_MOVED, _FAR = 0.01, 100.0
"""The relative difference, by itself and by what is explained, from which on two calls may do two things."""
_GROWN = 4.0
# A gradient that passes what values turned on or off differs by the root of the share of these, twice to be sure.
_OF_TURNED = 2.0
# Running statistics carry what rounding did in all steps before.
_OF_KEPT_STATE = 1e-3


@dataclass(frozen=True)
class Findings:
    """What a search found."""

    diverged: list[Unexplained]
    """The calls that nothing explains, in order of execution."""
    is_complete: bool
    """Whether all calls were looked at."""
    with_effect: list[Difference]
    without_effect: list[Difference]


@dataclass
class _Judgement:
    """What was seen of one call."""

    suspect: Unexplained | None = None
    certain: bool = True
    """Whether the two calls do the same with the same, so that an output that differs is a divergence."""
    of_own_values: bool = False
    """Whether what differs is no argument that may be made otherwise: kept statistics, or the batch."""
    of_parameter: bool = False
    """Whether it is a parameter that differs."""
    parameter: str = ""
    """Its name in its module."""
    differences: list[Difference] = field(default_factory=list)
    outputs: list[tuple[Item, Item, float, float]] = field(default_factory=list)
    """Of both sides, with their relative difference and the factor that the call may have increased it by."""
    largest: tuple[Row, float, float, float] | None = None
    """The output that differs the most: its relative difference, that of the inputs, and what is explained."""


def unexplained(
    calls: Sequence[AlignedCall],
    mode: Mode,
    level: str,
    trees: Trees,
    same_names: bool,
    types: Counter[TypePair] | None = None,
    before: tuple[str, str] | None = None,
    everything: bool = False,
    across_frameworks: bool = False,
    judged: list[JudgedCall] | None = None,
) -> Findings:
    """The calls of two runs that nothing explains, and what else differs.

    Args:
        calls: those of both runs, as `aligned_calls` gives them.
        mode: what they were compared by.
        level: ``L0``, ``L1`` or ``mix``.
        trees: the call trees of target and golden side.
        same_names: whether both sides use the same names for the same things.
        types: what `pairs_of_types` gives for all rows, where that is known.
        before: the paths of the dumps of the step before, where there is one.
        everything: look for all of them, and not for the first and `SUSPECTS` more.
        across_frameworks: whether the runs are of two frameworks.
        judged: gets what was found of each pair of calls that is looked at.
    """
    search = _Search(calls, mode, level, trees, same_names, types, before, across_frameworks, judged)
    found: dict[tuple[str, str], Unexplained] = {}
    is_complete = False
    for place, call in _causes_first(calls):
        suspect = search.judge(call)
        if suspect is not None:
            found.setdefault((suspect.record, suspect.golden_record), replace(suspect, place=place))
            if len(found) > SUSPECTS and not everything:
                break
    else:
        is_complete = True
    return Findings(list(found.values()), is_complete, search.with_effect, search.without_effect)


def _causes_first(calls: Sequence[AlignedCall]) -> list[tuple[int, AlignedCall]]:
    """The calls with their places, each after what it is computed from.

    That is their order but for gradients of parameters, which are complete before the backward that gives them is.
    """
    backwards = {call.record: place for place, call in enumerate(calls) if call.record and BACKWARD in call.record}
    found = []
    for place, call in enumerate(calls):
        after = -1
        if call.record is not None and PARAMETERS_GRAD in call.record:
            parsed = parse(call.record)
            after = -1 if parsed is None else backwards.get(_in_direction(parsed, BACKWARD), -1)
        found.append((max(place, after), after > place, place, call))
    found.sort(key=itemgetter(0, 1))
    return [(place, call) for _, _, place, call in found]


class _Search:
    """Judges one call after the other."""

    def __init__(
        self,
        calls: Sequence[AlignedCall],
        mode: Mode,
        level: str,
        trees: Trees,
        same_names: bool,
        types: Counter[TypePair] | None,
        before: tuple[str, str] | None,
        across_frameworks: bool,
        judged: list[JudgedCall] | None,
    ) -> None:
        self._calls = calls
        self._mode = mode
        self._modules_only = level == "L0"
        self._trees = trees[0] or {}, trees[1] or {}
        self._same_names = same_names
        self._across_frameworks = across_frameworks
        self._precision = Precision(calls, types)
        self._error = PropagatedError(mode, self._trees[0], self._precision, across_frameworks)
        self._differences = Differences(same_names, self._precision, self._error)
        self._effects = Effects(calls, self._trees[0], self._error)
        self._origins = Origins(calls, self._trees)
        self._parameters = Parameters(calls)
        self._before = before
        # What two frameworks round otherwise has grown by the steps before, most in elements that statistics miss.
        self._grown = _GROWN if before is not None and across_frameworks else 1.0
        self._has_diverged = False
        self._moved: set[str | None] = set()
        """Records that differ without effect, whose backward differs as they do."""
        self._of_parameters: set[str | None] = set()
        """Modules with a parameter that differed before they ended."""
        self._shown = 0.0
        """The largest relative difference of what a forward call returned."""
        self.with_effect: list[Difference] = []
        self.without_effect: list[Difference] = []
        self._gradient_noted = False
        """Whether a tensor was seen that takes a gradient on one side only, as many after it then do."""
        self._missing: AlignedCall | None = None
        """A call that one side did not make, right before this one."""
        self._judged = judged

    @cached_property
    def _between_steps(self) -> BetweenSteps | None:
        if self._before is None:
            return None
        return BetweenSteps(self._before, self._parameters.all, self._across_frameworks)

    @cached_property
    def _hidden_usually(self) -> float:
        """What parameters of two frameworks may differ by at the beginning of this step without showing it."""
        between = self._between_steps if self._across_frameworks else None
        return 0.0 if between is None else between.usually_hidden

    def _hidden_in(self, call: AlignedCall) -> float:
        """What the values of a call may differ by without showing it.

        When gradients come, the values of the whole forward pass have shown it.
        """
        if not self._hidden_usually:
            return 0.0
        return self._hidden_usually if FORWARD in (call.record or "") else min(self._hidden_usually, self._shown)

    def _note_shown(self, call: AlignedCall, difference: float) -> None:
        if FORWARD in (call.record or "") and self._shown < difference < ALTOGETHER:
            self._shown = difference

    @cached_property
    def _by_record(self) -> dict[str | None, AlignedCall]:
        return {call.record: call for call in self._calls}

    def judge(self, call: AlignedCall) -> Unexplained | None:
        """The finding on the next call, if there is one."""
        if call.record is None or call.golden_record is None:
            # Another release may make other calls for the same thing; the values after it show whether it matters.
            if self._same_names:
                self._missing = self._missing or call
            return None
        suspect = None
        summary = call.digest or digest(call.rows, self._mode)
        self._error.hidden = self._hidden_in(call)
        self._error.add_types(summary)
        one_sided = summary.gradient_on_one_side and self._same_names and not self._gradient_noted
        if self._is_backward_of_moved(call):
            self._missing = None
            if summary.differs:
                self._keep(call, STRUCTURE, "the forward call differs without effect, and its backward as it does")
            else:
                self._keep(call, SAME)
            return None
        before = self._error.largest
        if one_sided or (summary.differs and not self._is_below_any_bound(call, summary)):
            noted = len(self.without_effect)
            judged = self._judge_items(call)
            suspect = self._conclude(call, judged)
            if self._judged is not None:
                outcome, reason = self._outcome(judged, suspect, self.without_effect[noted:])
                self._keep(call, outcome, reason, suspect=suspect, parameter=judged.parameter)
        elif summary.differs:
            self._keep(call, EXPLAINED, "", before)
        else:
            self._keep(call, SAME)
        self._missing = None
        return suspect

    def _keep(
        self,
        call: AlignedCall,
        outcome: int,
        reason: str = "",
        before: float | None = None,
        suspect: Unexplained | None = None,
        parameter: str = "",
    ) -> None:
        """Tell the one who asked for every judgement of this one; `before` is what calls before it differ by."""
        if self._judged is None:
            return
        inputs, outputs = (0.0, 0.0) if outcome == SAME else self._largest_differences(call)
        if outcome == EXPLAINED and not reason:
            if not inputs and not outputs:
                outcome = SAME
            else:
                reason = differences.of_explained(inputs, outputs, before)
        self._judged.append(JudgedCall(call, outcome, inputs, outputs, reason, suspect, parameter))

    def _largest_differences(self, call: AlignedCall) -> tuple[float, float]:
        """The largest relative difference of an input or parameter, and of an output."""
        inputs = outputs = 0.0
        # Otherwise what was measured stands.
        is_other = self._across_frameworks or self._error.reshaped
        for row in call.rows:
            if row.target is row.golden and self._mode is not Mode.TENSOR:
                continue
            known = row.relative_difference
            difference = self._error.difference(row) if known is None or is_other else known
            if difference <= inputs and difference <= outputs:
                continue
            if is_input(row):
                inputs = max(inputs, difference)
            else:
                outputs = max(outputs, difference)
        return inputs, outputs

    @staticmethod
    def _outcome(judged: _Judgement, suspect: Unexplained | None, noted: list[Difference]) -> tuple[int, str]:
        """What a judgement came to, and the rule with its numbers."""
        if suspect is not None:
            return UNEXPLAINED, suspect.reason
        in_kind = [*judged.differences, *noted]
        if judged.suspect is not None:
            reason = f"{judged.suspect.reason}; what is computed from it is the same"
            # Nothing explains it, though it is without effect.
            return STRUCTURE, "; ".join([*(each.reason for each in judged.differences[:1]), reason])
        if in_kind:
            return STRUCTURE, f"{in_kind[0].reason}; no value differs by more than is explained"
        if judged.largest is None or not judged.largest[1]:
            return EXPLAINED, ""
        return EXPLAINED, differences.of_output(*judged.largest)

    def _is_backward_of_moved(self, call: AlignedCall) -> bool:
        parsed = parse(call.record or "") if self._moved else None
        return parsed is not None and parsed.direction == BACKWARD and _in_direction(parsed, FORWARD) in self._moved

    def _conclude(self, call: AlignedCall, judged: _Judgement) -> Unexplained | None:
        """What a judgement means, given what is computed from the call."""
        suspect = judged.suspect
        # A counterpart of another name may be none: what follows tells.
        certain = judged.of_own_values or (judged.certain and (self._same_names or judged.of_parameter))
        if suspect is not None and certain and self._may_be_moved(call, suspect, judged):
            certain = False
        has_effect = suspect is not None and (certain or self._effects.reach_values(call, suspect.item))
        if suspect is not None and not has_effect:
            self._moved.add(call.record)
            for target, golden, _, _ in judged.outputs:
                self._error.add_without_effect(target, golden)
            difference = Difference(suspect.record, suspect.golden_record, suspect.item, suspect.reason)
            self.without_effect += [*judged.differences, difference]
            return None
        # Looked for while nothing counts but what differed before.
        found = None if suspect is None else self._with_cause(call, suspect, judged.differences)
        for target, golden, difference_of_output, factor in judged.outputs:
            self._error.add_output(call, target, golden, difference_of_output, factor)
        if found is None:
            self.without_effect += judged.differences
            return None
        self._has_diverged = True
        self.with_effect += judged.differences
        return found

    def _may_be_moved(self, call: AlignedCall, suspect: Unexplained, judged: _Judgement) -> bool:
        """Whether the other side may do in another place what this call does, as another release of a library does.

        What is computed from it is the same then. That is asked of what differs by so much that it would show, since a
        weight that is a little wrong might not.
        """
        if self._has_diverged or judged.of_own_values or judged.of_parameter:
            return False
        if suspect.found is None or suspect.allowed is None:
            return False
        return suspect.found >= _MOVED and suspect.found >= _FAR * suspect.allowed

    def _with_cause(self, call: AlignedCall, suspect: Unexplained, differences: list[Difference]) -> Unexplained:
        if suspect.cause:
            return suspect
        if differences:
            return replace(suspect, cause=differences[0].reason)
        if self._were_gradients_kept(call):
            text = "gradients hold those of the step before as well: they were accumulated, or not zeroed (zero_grad)"
            return replace(suspect, cause=text)
        of_parameter = suspect.item.startswith(f"{suspect.record}.{PARAMETERS}.")
        maker = self._origins.made_on_one_side(call, suspect.item) if self._same_names and not of_parameter else None
        if maker is not None:
            if order := self._origins.elsewhere(maker, call):
                return replace(suspect, cause=order)
            return self._made_on_one_side(maker, suspect)
        if self._missing is not None and not of_parameter and self._is_due_to(self._missing, call, suspect):
            if order := self._origins.elsewhere(self._missing, call):
                return replace(suspect, cause=order)
            return self._made_on_one_side(self._missing, suspect)
        group = self._group_of_one_side(call)
        if group is not None:
            return self._made_on_one_side(group, suspect)
        cause = self._origins.between(call, suspect.item) if self._same_names else ""
        if not cause and not self._has_diverged and _is_on_input(call, suspect):
            cause = self._other_argument
        return replace(suspect, cause=cause)

    def _group_of_one_side(self, call: AlignedCall) -> AlignedCall | None:
        """The first call of what one side alone does around an optimizer's calls, such as clipping gradients."""
        around = self._trees[0].get(call.record or "")
        if not self._same_names or not around or is_module(around):
            return None
        groups = [_groups(tree) for tree in self._trees]
        alone = {record for own, other in (groups, groups[::-1]) for group, record in own.items() if group not in other}
        return next((each for each in self._calls if each.record in alone or each.golden_record in alone), None)

    @cached_property
    def _other_argument(self) -> str:
        """The first plain argument that differs, which steps before may have carried into parameters."""
        for call in self._calls:
            for row in call.rows if call.record and call.golden_record else ():
                reason = self._differences.in_argument(row)
                if reason:
                    other = f"in {call.record}, {reason}"
                    return f"an argument differs as well, which may have changed steps before: {other}"
        return ""

    def _were_gradients_kept(self, call: AlignedCall) -> bool:
        if self._between_steps is None or PARAMETERS_GRAD not in (call.record or ""):
            return False
        return self._between_steps.gradients_were_kept(self._calls)

    def _is_below_any_bound(self, call: AlignedCall, summary: CallDigest) -> bool:
        """Whether no row differs by more than a call before, which every bound allows whatever the call is."""
        if not summary.comparable or summary.difference > self._error.largest or call.record in self._of_parameters:
            return False
        self._error.add_outputs(call, summary)
        self._note_shown(call, summary.output_difference)
        return True

    def _judge_items(self, call: AlignedCall) -> _Judgement:
        terms, judged = Terms(), _Judgement()
        judged.suspect = self._other_batch(call)
        if judged.suspect is not None:
            judged.of_own_values = True
            return judged
        for row in call.rows:
            if is_input(row):
                self._judge_input(call, row, terms, judged)
        api = self._add_forward_inputs(call, terms)
        if has(api, Trait.UNWRITTEN) or self._is_gradient_of_a_part(call):
            return judged
        for row in call.rows:
            if not is_input(row):
                self._judge_output(call, row, api, terms, judged)
        return judged

    def _judge_input(self, call: AlignedCall, row: Row, terms: Terms, judged: _Judgement) -> None:
        target, golden = row.target, row.golden
        is_other_kind = self._note_difference(call, row, judged)
        difference = 0.0 if is_other_kind or self._is_other_order(call, row) else self._error.difference(row)
        if golden is not None:
            # Where precision was lost in this place, what was expected is what the finer type holds.
            item = min((target or golden, golden), key=lambda item: unit_roundoff(item.dtype) or 1.0)
            is_loss = target is not None and self._precision.is_loss(target.dtype, golden.dtype)
            add = terms.add if golden.state == INPUT else terms.add_operand
            add(item if is_loss else golden, 0.0 if is_loss else max(difference, self._hidden(call, row)))
        found = None if is_other_kind else self._unrecorded_origin(call, row, difference, judged)
        if found is not None and not _overwrites(call, row):
            origin = self._parameter_around(call, row)
            if origin is not None and judged.suspect is None:
                judged.of_parameter, judged.suspect = True, origin
            kept = difference > _OF_KEPT_STATE and differences.is_running_statistic(row)
            judged.of_own_values = judged.of_own_values or kept
            parameter = self._parameters.of(call, row)
            judged.of_parameter = judged.of_parameter or parameter is not None
            if judged.suspect is None and parameter is not None:
                judged.parameter = parameter.name
            judged.suspect = judged.suspect or found

    def _parameter_around(self, call: AlignedCall, row: Row) -> Unexplained | None:
        """The finding on a parameter of a module around `call`, which code that is not recorded may have used.

        Such a module is judged when it ends, after what its parameters changed.
        """
        if FORWARD not in (call.record or "") or self._parameters.of(call, row) is not None:
            return None
        tree, around, seen = self._trees[0], self._trees[0].get(call.record or ""), set[str]()
        while around and around not in seen:
            seen.add(around)
            module = self._by_record.get(around)
            for each in module.rows if module is not None and module.golden_record else ():
                if module is None or each.target is None or each.target.state != PARAMETERS:
                    continue
                found = self._unrecorded_origin(module, each, self._error.difference(each), _Judgement())
                if found is not None:
                    self._of_parameters.add(module.record)
                    return found
            around = tree.get(around)
        return None

    def _is_other_order(self, call: AlignedCall, row: Row) -> bool:
        """Whether a parameter of another program may have the same elements in another order, such as transposed.

        What the call returns tells whether it takes them in that order.
        """
        target, golden = row.target, row.golden
        if self._same_names or self._mode is not Mode.TENSOR or target is None or golden is None:
            return False
        roundoff = self._error.roundoff(target, golden) or unit_roundoff("float32")
        same = self._parameters.of(call, row) is not None and target.value is golden.value is None
        return same and relative_difference(target, golden) <= rounding(1.0, roundoff)

    def _other_batch(self, call: AlignedCall) -> Unexplained | None:
        """The finding on a call that gets and returns a part of the golden batch, before anything else differs."""
        if self._error.largest or self._error.broken or self._error.reshaped:
            return None
        around = self._trees[0].get(call.record or "")
        if around and not is_module(around):
            # An optimizer, or what clips gradients, is given parameters, which have no batch.
            return None
        texts: dict[bool, list[tuple[Row, str]]] = {True: [], False: []}
        for row in call.rows:
            if row.target is not None and row.golden is not None and row.target.is_tensor and row.golden.is_tensor:
                texts[is_input(row)].append((row, differences.of_batch(row.target, row.golden)))
        given = [(row, text) for row, text in texts[True] if text and self._parameters.of(call, row) is None]
        # Masks and positions may be made once for all rows.
        returned = {text for row, text in texts[False] if _rounds(row)}
        if not given or returned != {given[0][1]} or self._effects.is_inside_of_one_batch(call):
            return None
        row, text = given[0]
        reason = f"{differences.short_name(row)} and what is computed from it have another number of rows"
        return self._suspect(call, row, reason, ALTOGETHER, 0.0, text)

    def _hidden(self, call: AlignedCall, row: Row) -> float:
        """What a parameter may differ by though its statistics do not show it: single elements, updated otherwise."""
        if not self._across_frameworks or self._between_steps is None:
            return 0.0
        parameter = self._parameters.of(call, row)
        return 0.0 if parameter is None else self._between_steps.hidden(parameter)

    def _note_difference(self, call: AlignedCall, row: Row, judged: _Judgement) -> bool:
        """Keep what differs in an item beyond its numbers; whether these cannot be compared."""
        target, golden = row.target, row.golden
        reason = self._differences.in_kind(row)
        if not reason and differences.is_absent_on_one_side(row):
            return True
        if not reason:
            of_gradient = "" if self._gradient_noted else self._differences.in_gradient(row)
            if of_gradient:
                self._gradient_noted = True
                # It changes no value of this call, so that it is not its cause.
                self.without_effect.append(self._difference(call, row, of_gradient))
            return False
        judged.differences.append(self._difference(call, row, reason))
        if target is None or golden is None or target.shape != golden.shape:
            judged.certain = False
            return True
        if self._precision.is_loss(target.dtype, golden.dtype):
            return False
        judged.certain = False
        return True

    def _unrecorded_origin(
        self, call: AlignedCall, row: Row, difference: float, judged: _Judgement
    ) -> Unexplained | None:
        """The finding on an input that differs by more than any recorded call gave it."""
        target, golden = row.target, row.golden
        if target is None or golden is None or not difference:
            return None
        parameter = self._parameters.of(call, row)
        if parameter is not None:
            roundoff = self._error.roundoff(target, golden) or unit_roundoff("float32")
            allowed = rounding(1.0, roundoff)
        else:
            allowed = self._grown * self._error.allowed_of_unrecorded(target, golden)
        if difference <= allowed or (self._error.broken and difference >= ALTOGETHER):
            return None
        if self._error.was_output(target, golden) or self._error.is_multiple_of_output(target, golden):
            return None
        if parameter is not None:
            return self._parameter_diverged(call, row, parameter, difference, allowed)
        judged.certain = judged.certain and self._precision.is_loss(target.dtype, golden.dtype)
        around = self._around(call)
        reason = differences.of_input(row, difference, allowed, call.record if around is not call else None)
        cause = differences.of_batch(target, golden) if target.shape != golden.shape else ""
        return self._suspect(around, row, reason, difference, allowed, cause)

    def _parameter_diverged(
        self, call: AlignedCall, row: Row, parameter: Parameter, difference: float, allowed: float
    ) -> Unexplained | None:
        """The finding on a parameter, which only the optimizer, or whoever set it, can have changed."""
        cause, between = "", self._between_steps
        if between is not None:
            if between.optimizer:
                cause = f"the optimizer step before this step diverges: {between.optimizer}"
            elif side := between.side_without_update(parameter):
                cause = f"the optimizer step before this step leaves {parameter.name} as it was in the {side}"
            elif between.explains(parameter):
                return None
        reason = differences.of_parameter(row, parameter.full_name, difference)
        return self._suspect(call, row, reason, difference, allowed, cause)

    def _judge_output(self, call: AlignedCall, row: Row, api: str, terms: Terms, judged: _Judgement) -> None:
        target, golden, error = row.target, row.golden, self._error
        # Any difference can turn one whole number into another, and a turned one may have the same statistics.
        turned = bool(terms.error or error.largest or error.broken) and not _rounds(row)
        if turned and target is not None and golden is not None and target.shape != golden.shape:
            error.reshaped = True
        if self._note_difference(call, row, judged) or target is None or golden is None:
            if judged.suspect is None and self._has_other_size(call, row, terms):
                # What was noted of it last is the finding itself and not its cause.
                judged.suspect = self._suspect(call, row, judged.differences.pop().reason, ALTOGETHER, 0.0)
            return
        difference = error.difference(row)
        self._note_shown(call, difference)
        factor = condition(api, terms, target, golden)
        if self._across_frameworks:
            # Two frameworks sum in other orders, so that what cancels is rounded otherwise.
            of_parameter = PARAMETERS_GRAD in (call.record or "")
            factor = max(factor, condition_of_product(api, terms, target, golden, of_parameter))
        of_inputs = max(terms.error, error.inside(call))
        turned_off = 0.0
        if api == GRADIENT and error.hidden:
            # What values differ by turns that share of the elements of a relu on or off, and the gradient through each
            # with it: its norm differs by the root of that.
            turned_off = _OF_TURNED * math.sqrt(error.hidden)
        if math.isinf(difference):
            # Only NaN and infinities give NaN.
            allowed = math.inf if math.isinf(of_inputs) else 0.0
        elif turned:
            allowed = math.inf
        else:
            added = rounding(terms.summed(golden), max(terms.roundoff, error.roundoff(target, golden)))
            if self._across_frameworks:
                added = max(added, approximation(_last_word(call.golden_record or "")))
            largest = self._grown * max(of_inputs, error.largest)
            allowed = max(explained(largest, factor, added), turned_off * factor)
            if allowed < difference <= self._turned_by_division(call, api, golden, max(largest, terms.roundoff)):
                allowed = difference
                # Few elements differ, so that it says nothing of what is computed from others.
                factor = max(factor, difference / max(largest, terms.roundoff))
        judged.outputs.append((target, golden, difference, factor))
        if self._judged is not None and (judged.largest is None or difference > judged.largest[1]):
            judged.largest = row, difference, terms.error, allowed
        if difference > allowed and judged.suspect is None:
            reason = differences.of_output(row, difference, terms.error, allowed)
            judged.suspect = self._suspect(call, row, reason, difference, allowed)

    @staticmethod
    def _turned_by_division(call: AlignedCall, api: str, result: Item, error: float) -> float:
        """What a quotient may differ by where elements are nothing but rounding, as with Adam."""
        given = [row.golden for row in call.rows if is_input(row) and row.golden is not None and row.golden.is_tensor]
        return turned_by_division(api, given, result, error)

    def _has_other_size(self, call: AlignedCall, row: Row, terms: Terms) -> bool:
        """Whether a call returns another number of values for the same inputs, in the same program."""
        target, golden, error = row.target, row.golden, self._error
        if not self._same_names or target is None or golden is None or not _rounds(row):
            return False
        if terms.error or error.largest or error.broken or error.reshaped or target.dtype != golden.dtype:
            return False
        differs = extent(target.shape).elements != extent(golden.shape).elements
        return differs and all(_of_one_shape(each) for each in call.rows if is_input(each))

    def _is_gradient_of_a_part(self, call: AlignedCall) -> bool:
        """Whether one framework gives the gradient of the whole and the other that of its second operation."""
        if not self._across_frameworks or not has(function_name(call.record or ""), Trait.TWO_OPERATIONS):
            return False
        parsed = parse(call.record or "")
        return parsed is not None and parsed.direction == BACKWARD

    def _add_forward_inputs(self, call: AlignedCall, terms: Terms) -> str:
        """Count in what a backward, or the gradient of a parameter, is computed from besides its own inputs.

        Returns:
            The name under which `condition` knows the function.
        """
        parsed = parse(call.record or "")
        if parsed is None or parsed.direction == FORWARD:
            return function_name(call.record or "")
        if parsed.direction == PARAMETERS_GRAD:
            for row in self._inputs_of(_in_direction(parsed, BACKWARD)):
                if row.golden is not None:
                    terms.add(row.golden, self._error.difference(row))
        for row in self._inputs_of(_in_direction(parsed, FORWARD)):
            if row.golden is not None:
                terms.add_kept(row.golden, self._error.difference(row))
        return GRADIENT

    def _inputs_of(self, record: str) -> list[Row]:
        call = self._by_record.get(record)
        return [] if call is None else [row for row in call.rows if is_input(row)]

    # --- which call is named

    def _around(self, call: AlignedCall) -> AlignedCall:
        """The call to name for an input of unrecorded origin: at L0 the module whose own code made it."""
        if not self._modules_only:
            return call
        found = call
        while True:
            records = found.record, found.golden_record
            record, golden = (tree.get(name or "") for tree, name in zip(self._trees, records))
            if not record or not golden:
                return found
            module = self._by_record.get(record)
            found = AlignedCall(record, golden, call.rows)
            if module is None or module.golden_record != golden or not self._gets_what_differs(module):
                return found

    def _gets_what_differs(self, module: AlignedCall) -> bool:
        """Whether a module was called with what no recorded call returned, so that the one around it made that."""
        for row in module.rows:
            target, golden = row.target, row.golden
            if target is None or golden is None or target.state != INPUT:
                continue
            if not _rounds(row) or extent(target.shape).elements != extent(golden.shape).elements:
                continue
            if self._error.difference(row) > self._error.allowed_of_unrecorded(target, golden) and not (
                self._error.was_output(target, golden) or self._error.is_multiple_of_output(target, golden)
            ):
                return True
        return False

    def _is_due_to(self, missing: AlignedCall, call: AlignedCall, suspect: Unexplained) -> bool:
        """Whether `missing`, made right before `call`, can be what `suspect` shows."""
        tree, record, around = (
            (self._trees[0], missing.record, call.record)
            if missing.record
            else (self._trees[1], missing.golden_record, call.golden_record)
        )
        return _is_on_input(call, suspect) or tree.get(record or "") == around

    def _made_on_one_side(self, call: AlignedCall, suspect: Unexplained) -> Unexplained:
        side = "target" if call.record else "golden run"
        cause, effect = f"only the {side} makes this call", f"in {suspect.record}, {suspect.reason}"
        return Unexplained(call.record or "", call.golden_record or "", self._module(call), effect, cause)

    def _difference(self, call: AlignedCall, row: Row, reason: str) -> Difference:
        return Difference(call.record or "", call.golden_record or "", differences.item_name(row), reason)

    def _suspect(
        self, call: AlignedCall, row: Row, reason: str, difference: float, allowed: float, cause: str = ""
    ) -> Unexplained:
        measured = difference < ALTOGETHER
        return Unexplained(
            call.record or "",
            call.golden_record or "",
            self._module(call),
            reason,
            cause,
            communicates=is_communication(call.record or ""),
            item=differences.item_name(row),
            found=difference if measured else None,
            allowed=allowed if measured else None,
        )

    def _module(self, call: AlignedCall) -> str:
        name, tree = (call.record, self._trees[0]) if call.record else (call.golden_record, self._trees[1])
        return "" if name is None else name if is_module(name) else tree.get(name) or ""


def _in_direction(parsed: ParsedName, direction: str) -> str:
    """The record of the same call in another direction."""
    return record_name(ParsedName(parsed.base, parsed.number, direction, parsed.is_module))


def _is_on_input(call: AlignedCall, suspect: Unexplained) -> bool:
    return any(is_input(row) and suspect.item == differences.item_name(row) for row in call.rows)


def _groups(tree: Tree) -> dict[str, str]:
    """What is around calls and no module, such as an optimizer, with its first call."""
    found: dict[str, str] = {}
    for record, around in tree.items():
        if around and not is_module(around):
            found.setdefault(around, record)
    return found


def _last_word(record: str) -> str:
    """The name of a function, or the class of a module."""
    parsed = parse(record)
    return "" if parsed is None else parsed.base.rpartition(".")[2]


def _rounds(row: Row) -> bool:
    """Whether an item has a type that rounds."""
    target, golden = row.target, row.golden
    return bool(
        (golden is not None and unit_roundoff(golden.dtype)) or (target is not None and unit_roundoff(target.dtype))
    )


def _of_one_shape(row: Row) -> bool:
    return row.target is None or row.golden is None or row.target.shape == row.golden.shape


def _overwrites(call: AlignedCall, row: Row) -> bool:
    """Whether the call writes over this input, whose values before do not matter."""
    # What is written over may be whatever was in memory.
    overwrites = has(function_name(call.record or ""), Trait.OVERWRITES, Trait.OVERWRITES_A_PART)
    return overwrites and differences.short_name(row) == "input.0"
