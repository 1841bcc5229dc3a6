"""The first call whose values diverge, that is, differ by more than its inputs and its type explain.

Anything else that differs, an argument, a type, a shape, a call on one side only, is a difference. It is the cause of a
divergence where values diverge behind it, and is counted as a difference without effect where they do not.

The calls are walked in the order in which they ended. `Runs` are what is walked, `Walk` is what is known after the
calls so far. `probe.common.numerics.error_bounds` has the rule for one call, `PropagatedError` how far the runs
differed so far, so that an input which carries that is not held against the call that gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from operator import itemgetter
from typing import NamedTuple, Optional

from probe.common.dump.naming import (
    BACKWARD,
    PARAMETERS_GRAD,
    function_name,
    is_backward,
    is_forward,
    is_module,
    kind_name,
    parse,
)
from probe.common.dump.reading.call_tree import around
from probe.common.numerics.formats import unit_roundoff
from probe.common.operations.function import COMPUTING_NOTHING
from probe.common.operations.lookup import has
from probe.compare.answers.decided_late import decided_late
from probe.compare.answers.looked_for import LookedFor, looked_for
from probe.compare.answers.not_judged import not_judged
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import CallDigest, digest, is_input
from probe.compare.divergence.differences import Differences, item_name, of_hidden, of_nearly_leaving
from probe.compare.divergence.effects import Agreement, Effects, Key, key_of
from probe.compare.divergence.search.call_items import CallItems
from probe.compare.divergence.search.causes import Causes
from probe.compare.divergence.search.findings import Findings, unexplained_item
from probe.compare.divergence.search.items import in_direction, is_on_input, rounds
from probe.compare.divergence.search.judged_log import JudgedLog
from probe.compare.divergence.search.observed import Observed
from probe.compare.divergence.search.runs import Runs
from probe.compare.divergence.search.unrecorded import of_other_thing
from probe.compare.divergence.search.walk import Walk
from probe.compare.divergence.two_programs.crossed import Crossed
from probe.compare.divergence.two_programs.following import Outcome
from probe.compare.divergence.two_programs.regions import Regions
from probe.compare.result import Difference, Unexplained
from probe.compare.sentences import Sentence

SUSPECTS = 5
"""The number of calls after the first that are looked for, where nobody asks for all: the rest of the run is not
looked at."""

_HIDDEN_BY_ROUNDING = "the values computed from it agree within rounding error, which may hide an effect"
_OF_ITS_LIKE = "a layer like it has its parameter in another form, and what this one takes differs"
_SEEN_OF = {
    Outcome.UNKNOWN: "no recorded call takes it, or what is computed from it",
    Outcome.JOINED: "it reaches the end of the pass only together with other differences",
}
"""The state of what was looked for between two programs, where nobody can tell."""

_MOVED, _FAR = 0.01, 100.0
"""The relative difference, by itself and by what is explained, from which on two calls may do two things."""


def unexplained(runs: Runs) -> Findings:
    """The calls of two runs that nothing explains, and what else differs."""
    search = _Search(runs)
    found: dict[tuple[str, str], Unexplained] = {}
    is_complete = False
    for index, call in _causes_first(runs.calls):
        suspect = search.explain_call(call)
        if suspect is not None:
            found.setdefault((suspect.record, suspect.golden_record), replace(suspect, place=index))
            if len(found) > SUSPECTS and not runs.everything:
                break
    else:
        is_complete = True
    walk = search.walk
    first = next(iter(found.values()), None)
    joined = search.first_joined()
    if joined is not None and (first is None or (joined.place < first.place and search.is_behind(first))):
        found = {(joined.record, joined.golden_record): joined, **found}
    # Where values diverge, the answer is known, and differences are its causes.
    known = LookedFor(walk.without_effect, []) if found else search.looked_for()
    suspect = None if found else decided_late(runs, known)
    if suspect is not None:
        found[suspect.record, suspect.golden_record] = suspect
        known = LookedFor(walk.without_effect, [])
    return Findings(list(found.values()), is_complete, walk.with_effect, *known, search.log.calls)


def _causes_first(calls: Sequence[AlignedCall]) -> list[tuple[int, AlignedCall]]:
    """The calls with their indexes, each after what it is computed from.

    That is their order but for gradients of parameters, which are complete before the backward that gives them is.
    """
    backwards = {call.record: index for index, call in enumerate(calls) if call.record and is_backward(call.record)}
    found = []
    for index, call in enumerate(calls):
        after = -1
        if call.record is not None and PARAMETERS_GRAD in call.record:
            parsed = parse(call.record)
            after = -1 if parsed is None else backwards.get(in_direction(parsed, BACKWARD), -1)
        found.append((max(index, after), after > index, index, call))
    found.sort(key=itemgetter(0, 1))
    return [(index, call) for _, _, index, call in found]


class _Conclusion(NamedTuple):
    """The result of a judgement."""

    found: Optional[Unexplained]  # noqa: UP045 (evaluated, on Python 3.9 too)
    with_effect: list[Difference]
    without_effect: list[Difference]


class _Search:
    """Explains one call after the other.

    Args:
        runs: the runs that are walked.
    """

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self.walk = Walk(runs)
        """The facts after the calls so far."""
        self.log = JudgedLog(runs, self.walk)
        """The findings on each pair."""
        differences = Differences(runs.same_names, runs.precision, self.walk.error, runs.is_torch)
        self._effects = Effects(runs.calls, (runs.tree, runs.golden_tree), self.walk.error)
        self._items = CallItems(runs, self.walk, self._effects, differences)
        self._causes = Causes(runs, self.walk, differences)
        self._crossed = Crossed(runs)
        self._in_another_form: set[tuple[str, ...]] = set()
        """The classes of layers on both sides, and the parameter, that one was seen to have in another form."""
        self.joined: list[tuple[AlignedCall, Unexplained]] = []
        """Findings that reach the end of the pass with other differences; divergences where nothing before them is."""
        self._of_other_input: set[tuple[str, str]] = set()
        """The records of calls that are named for what they take, and that is another tensor in the other run."""

    def looked_for(self) -> LookedFor:
        """The differences by their effect, where nothing diverges."""
        known = looked_for(self._runs, self._effects, self.walk.without_effect)
        known = known._replace(undecided=[*known.undecided, *not_judged(self._runs, self.walk.unjudged)])
        # What may be a cause comes before values, which may be its effect.
        undecided = sorted([*self.walk.undecided, *known.undecided], key=lambda each: each.is_value)
        return known._replace(undecided=undecided)

    def first_joined(self) -> Unexplained | None:
        """The first finding that reaches the end of the pass with other differences."""
        if not self.joined:
            return None
        call, suspect = self.joined[0]
        place = next(index for index, each in enumerate(self._runs.calls) if each is call)
        # After the walk nothing is known any more of what is on the way to a call: other causes are not looked for.
        return replace(suspect, cause=suspect.cause or self._causes.left_out_of_sum(call, suspect), place=place)

    def is_behind(self, found: Unexplained) -> bool:
        """True if what a finding shows was made before its call: in the forward pass, or as its input."""
        is_of_gradient = not is_forward(found.record or found.golden_record)
        return is_of_gradient or (found.record, found.golden_record) in self._of_other_input

    def explain_call(self, call: AlignedCall) -> Unexplained | None:
        """The finding on the next call, if there is one."""
        if call.record is None or call.golden_record is None:
            self.walk.pass_one_sided(call)
            return None
        summary = digest(call.rows, self._runs.mode)
        self.walk.enter(call, summary)
        found = self._found(call, summary)
        self.walk.leave()
        return found

    def _found(self, call: AlignedCall, summary: CallDigest) -> Unexplained | None:
        is_moved = self.walk.is_backward_of_moved(call)
        takes_gradient = summary.gradient_on_one_side and self._runs.same_names and self.walk.gradient is None
        if not summary.differs and (is_moved or not takes_gradient):
            self.log.add_same(call)
        elif is_moved:
            self.log.add_moved(call)
        elif self._crossed.has(call):
            self.walk.add_moved(call, ())
            self.log.add_crossed(call)
        elif self._is_below_any_bound(call, summary) and not takes_gradient:
            before = self.walk.error.largest
            self.walk.add_explained(call, summary)
            self.log.add_explained(call, before)
        else:
            return self._judged(call)
        return None

    def _is_below_any_bound(self, call: AlignedCall, summary: CallDigest) -> bool:
        """True if every tolerance allows what differs in a call, whatever the call is."""
        peers = self._runs.peers
        return self.walk.is_below_any_bound(call, summary) and not (peers.has_left(call) or peers.is_unjudged(call))

    def _judged(self, call: AlignedCall) -> Unexplained | None:
        """The finding on a call of which every item is looked at."""
        observed = self._items.observe(call)
        self.walk.add_seen(call, observed)
        found, with_effect, without_effect = self._conclusion(call, observed)
        self.walk.with_effect += with_effect
        self.walk.without_effect += without_effect
        self.log.add_judged(call, observed, found, without_effect)
        return found

    def _conclusion(self, call: AlignedCall, observed: Observed) -> _Conclusion:
        """The meaning of a judgement, given the calls that are computed from this one."""
        suspect, differences = observed.suspect, observed.differences
        # It changes no value of this call.
        without_effect = [] if observed.gradient is None else [observed.gradient]
        undecided = len(self.walk.undecided)
        if suspect is not None and not self._has_effect(call, suspect, observed):
            self.walk.add_moved(call, observed.outputs)
            without_effect += differences
            if undecided == len(self.walk.undecided):
                if self._may_be_hidden(call, suspect):
                    self._add_undecided(suspect, _HIDDEN_BY_ROUNDING)
                else:
                    names = suspect.record, suspect.golden_record, suspect.item
                    labelled = suspect.labelled_reason
                    without_effect.append(Difference(*names, suspect.reason, labelled_reason=labelled))
            return _Conclusion(None, [], without_effect)
        # Looked for while nothing counts but what differed before.
        found = None if suspect is None else self._inside(call, suspect)
        if found is None and suspect is not None:
            found = self._causes.added(call, suspect, differences)
        self.walk.add_outputs(call, observed.outputs)
        if found is None:
            return _Conclusion(None, [], [*without_effect, *differences])
        self.walk.has_diverged = True
        of_input = self._at_its_input(call, found, observed)
        is_of_other_input = of_input is not found
        found = self._at_its_makers(call, of_input)
        if is_of_other_input:
            self._of_other_input.add((found.record, found.golden_record))
        return _Conclusion(found, differences, without_effect)

    def _has_effect(self, call: AlignedCall, suspect: Unexplained, observed: Observed) -> bool:
        """True if what is suspect reaches a value, which is asked where two calls may do two things."""
        # A counterpart of another name may be none: what follows tells.
        is_counterpart = observed.certain and (self._runs.same_names or observed.of_parameter)
        is_certain = observed.of_own_values or is_counterpart
        if observed.of_parameter and self._is_in_another_form(call, suspect):
            return False
        if is_certain and not self._may_be_moved(suspect, observed):
            return True
        if self._runs.regions is not None:
            return self._has_effect_in_programs(self._runs.regions, call, suspect, observed)
        if self._is_of_whole_numbers(call, suspect):
            return self._do_whole_numbers_reach_values(call, suspect)
        return self._effects.reach_values(call, suspect.item)

    def _is_in_another_form(self, call: AlignedCall, suspect: Unexplained) -> bool:
        """True if a layer of two programs has another parameter and returns the values of the other side.

        One program keeps the weight of a norm, the other a distance from 1; rows of a table may be used by neither.
        """
        regions = self._runs.regions
        if regions is None or suspect.found is None:
            return False
        names = (call.record or "", suspect.item), (call.golden_record or "", "")
        kinds = tuple(kind_name(record) + item[len(record) :] for record, item in names)
        if regions.returns_the_same(call, suspect.found):
            self._in_another_form.add(kinds)
            return True
        if kinds not in self._in_another_form or regions.takes_the_same(call):
            return False
        # Behind a difference its results do not tell; those of its like did.
        self._add_undecided(suspect, _OF_ITS_LIKE)
        return True

    def _may_be_hidden(self, call: AlignedCall, suspect: Unexplained) -> bool:
        """True if an input that nothing explains may have an effect that rounding in a short type hides.

        What agrees within that rounding does not show that they have none: of a branch that is added to something
        larger a share alone is seen. Values known to be equal do.
        """
        is_short = self._runs.precision.shortest > unit_roundoff("float32")
        is_value = suspect.found is not None and suspect.allowed is not None
        if not (is_short and is_value and self._runs.same_names and is_on_input(call, suspect)):
            return False
        # Casts and reshapes of other tensors are easily paired, and differ by any amount then.
        if has(function_name(call.record or ""), *COMPUTING_NOTHING):
            return False
        return self._effects.reach_values(call, suspect.item, Agreement.PROVEN)

    def _is_of_whole_numbers(self, call: AlignedCall, suspect: Unexplained) -> bool:
        """True if the item that shows a finding has no type that rounds, and is no result of a call of one side alone.

        A rank that has some rows of a table alone counts tokens in another way, say.
        """
        row = next((row for row in call.rows if item_name(row) == suspect.item), None)
        if row is None or rounds(row):
            return False
        sides = zip((row.target, row.golden), self._made_on_one_side)
        return not any(item is not None and key_of(item) in made for item, made in sides)

    @cached_property
    def _made_on_one_side(self) -> tuple[set[Key], set[Key]]:
        """The results of calls that one side alone makes."""
        found: tuple[set[Key], set[Key]] = set(), set()
        for call in self._runs.made:
            if not (call.record and call.golden_record):
                for row in call.rows:
                    for item, made in zip((row.target, row.golden), found):
                        if item is not None and not is_input(row):
                            made.add(key_of(item))
        return found

    def _do_whole_numbers_reach_values(self, call: AlignedCall, suspect: Unexplained) -> bool:
        """True if other whole numbers, such as tokens, positions and labels, make other values.

        They have no rounding error, so that rounding excuses nothing that is made of them: only values that are known
        to be equal show that they have no effect. If values differ by no more than rounding makes, whole numbers are
        the reason where there is no other, and undecided where there may be.
        """
        reach = partial(self._effects.reach_values, call, suspect.item)
        if not reach(Agreement.PROVEN):
            return False
        is_only_reason = not (self.walk.error.largest or self._runs.precision.design or self._runs.across_frameworks)
        if reach(Agreement.SHOWN if is_only_reason else Agreement.NEARLY):
            return True
        self._add_undecided(suspect, _HIDDEN_BY_ROUNDING)
        return False

    def _add_undecided(self, suspect: Unexplained, seen: str) -> None:
        """Add a finding whose effect nobody can tell; `seen` says what was looked for, and what was found."""
        names = suspect.record, suspect.golden_record, suspect.item
        self.walk.undecided.append(Difference(*names, f"{suspect.reason}; {seen}", is_value=True))

    def _has_effect_in_programs(
        self, regions: Regions, call: AlignedCall, suspect: Unexplained, observed: Observed
    ) -> bool:
        """True if what is suspect in one of two programs reaches the end of the pass.

        What a call of the same inputs returns is judged strictly. What may be another thing is a divergence only if it
        is seen further down; where that is not known, it is undecided.
        """
        outcome, hidden = regions.outcome(call, suspect.item, suspect.found)
        if outcome in (Outcome.AGREES, Outcome.PARTS):
            return outcome is Outcome.PARTS
        is_hidden = outcome is Outcome.HIDDEN and regions.is_coarse
        is_same = regions.is_same_computation(call)
        if is_same and is_hidden and not self._runs.modules_only and regions.is_factor_left(call, suspect.item):
            # All of its elements have the factor, as rounding would not make them.
            return True
        if is_same and self._is_of_whole_numbers(call, suspect):
            return self._do_whole_numbers_reach_values(call, suspect)
        if is_same and not is_hidden:
            return outcome is not Outcome.UNKNOWN or self._effects.reach_values(call, suspect.item)
        if self._is_of_whole_numbers(call, suspect):
            # Whole numbers of two programs count other things: positions, tokens with padding.
            return False
        if outcome is Outcome.JOINED:
            self.joined.append((call, self._at_its_input(call, suspect, observed)))
        seen = _SEEN_OF.get(outcome, _HIDDEN_BY_ROUNDING)
        self._add_undecided(suspect, seen if hidden is None or outcome is not Outcome.HIDDEN else of_hidden(*hidden))
        return False

    def _inside(self, call: AlignedCall, suspect: Unexplained) -> Unexplained | None:
        """The finding on a module that leaves its like, at the first call inside of it that nearly does.

        What chance may explain of that call alone, it does not explain of both.
        """
        leaving = self._runs.peers.leaving if self._runs.peers.are_asked and is_module(call.record or "") else {}
        row = next((row for row in call.rows if item_name(row) == suspect.item), None)
        if row is None or id(row) not in leaving:
            return None
        near = self._runs.peers.nearly_leaving
        for each in self._runs.calls if near else ():
            rows = [row for row in each.rows if id(row) in near] if self._is_inside(each, call) else []
            if rows:
                seen = near[id(rows[0])]
                reason = of_nearly_leaving(rows[0], seen.error, seen.usual, seen.peers)
                reason = f"{reason}; in {call.record} around it, {suspect.reason}"
                found = unexplained_item(self._runs, each, rows[0], Sentence(reason), seen.error, seen.allowed)
                return self._causes.added(each, found, [])
        return None

    def _is_inside(self, call: AlignedCall, module: AlignedCall) -> bool:
        if call.record is None or call.golden_record is None or module.record is None:
            return False
        return module.record in around(self._runs.tree, call.record)

    def _at_its_input(self, call: AlignedCall, found: Unexplained, observed: Observed) -> Unexplained:
        """The finding on what a call returns, at what it takes if that is another tensor."""
        has_other_cause = found.cause and found.cause != self._causes.left_out_of_sum(call, found)
        # What is not finite is told of the output, whatever the call takes.
        if found.record != call.record or has_other_cause or is_on_input(call, found) or found.found is None:
            return found
        of_input = of_other_thing(self._runs, call, found, observed.elsewhere)
        if of_input is None:
            return found
        return replace(of_input, cause=found.cause or of_input.cause)

    def _at_its_makers(self, call: AlignedCall, found: Unexplained) -> Unexplained:
        """The finding on an input at the calls that made it, where each side has one without a counterpart."""
        regions = self._runs.regions
        row = next((row for row in call.rows if is_input(row) and item_name(row) == found.item), None)
        if regions is None or row is None or self._causes.left_out_of_sum(call, found):
            return found  # The calls between a sum and this one do the same.
        makers = regions.makers(row)
        if makers is None or makers[0] in self._paired[0] or makers[1] in self._paired[1]:
            return found
        if found.record != call.record and found.record in around(self._runs.tree, makers[0]):
            return found  # The module that is named for it has made it.
        made = AlignedCall(*makers, [])
        reason = f"what it returns differs where {call.record} takes it: {found.reason}"
        made_by = replace(found, record=makers[0], golden_record=makers[1], module=self._runs.module(made))
        return replace(made_by, reason=reason, labelled_reason="")

    @cached_property
    def _paired(self) -> tuple[set[str | None], set[str | None]]:
        """The records of both sides of which a result has a counterpart."""
        pairs = [(call, [row for row in call.rows if not is_input(row)]) for call in self._runs.calls]
        both = [call for call, rows in pairs if any(row.target is not None and row.golden is not None for row in rows)]
        return {call.record for call in both}, {call.golden_record for call in both}

    def _may_be_moved(self, suspect: Unexplained, observed: Observed) -> bool:
        """True if the other side may do in another place what this call does, as another release of a library does.

        What is computed from it is the same then. That is asked of what differs by so much that it would show, since a
        weight that is a little wrong might not.
        """
        if self.walk.has_diverged or observed.of_own_values or observed.of_parameter:
            return False
        if suspect.found is None or suspect.allowed is None:
            return False
        return suspect.found >= _MOVED and suspect.found >= _FAR * suspect.allowed
