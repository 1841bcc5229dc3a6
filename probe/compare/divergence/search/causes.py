"""The cause of a diverging call: looked for on the call, on the way to it, and on the calls around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from probe.common.dump.naming import PARAMETERS_GRAD, is_forward, is_module
from probe.common.dump.reading.records import PARAMETERS
from probe.common.numerics.error_bounds import extent
from probe.compare.divergence.aligned_calls import AlignedCall, first_of_groups
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.causes.optimizer_settings import OptimizerSettings
from probe.compare.divergence.causes.origins import Origins
from probe.compare.divergence.causes.reordering import (
    MAY_BE_REORDERED,
    Reorderings,
    given_to,
    has_same_elements,
    is_shown,
    is_taken_by,
)
from probe.compare.divergence.causes.setting_causes import SettingCauses
from probe.compare.divergence.differences import Differences, item_name
from probe.compare.divergence.effects import GOLDEN, TARGET
from probe.compare.divergence.search.findings import made_on_one_side, on_the_way_to, reason_of
from probe.compare.divergence.search.gradient_causes import GradientCauses
from probe.compare.divergence.search.items import is_on_input, last_word
from probe.compare.divergence.search.runs import Runs
from probe.compare.divergence.search.walk import Walk
from probe.compare.result import Difference, Unexplained

_KEPT_GRADIENTS = "gradients hold those of the step before as well: they were accumulated, or not zeroed (zero_grad)"

_REDUCTIONS = ("sum", "mean")


class Causes:
    """Finds what made a call diverge.

    Args:
        runs: the runs that are walked.
        walk: what is known so far; it is not changed.
        differences: says in words what differs in an item.
    """

    def __init__(self, runs: Runs, walk: Walk, differences: Differences) -> None:
        self._runs = runs
        self._walk = walk
        self._differences = differences
        self._origins = Origins(runs.made, (runs.tree, runs.golden_tree))
        self._optimizer = OptimizerSettings(runs.made, (runs.tree, runs.golden_tree))
        self._settings = SettingCauses(runs.other_settings, runs.calls, runs.tree)
        self._reorderings = Reorderings(runs.made)
        self._of_gradients = GradientCauses(runs, walk)

    def added(self, call: AlignedCall, suspect: Unexplained, of_call: Sequence[Difference]) -> Unexplained:
        """The finding with its cause, and with a setting that differs near it where no other cause is found."""
        found = self._added(call, suspect, of_call)
        return found if found.cause else found.because(self._settings.near(found, call))

    def _added(self, call: AlignedCall, suspect: Unexplained, of_call: Sequence[Difference]) -> Unexplained:
        """The finding with its cause, as far as one is found; it may be another call that is to be named.

        Args:
            call: the call that diverges.
            suspect: the finding on it.
            of_call: what differs in the call beside numbers.
        """
        if suspect.cause:
            return suspect
        if of_call:
            return suspect.because(self._optimizer.differing(call) or reason_of(of_call[0]))
        if setting := self._settings.of_module(suspect, is_on_input(call, suspect) and suspect.record == call.record):
            return suspect.because(setting)
        if not self._runs.same_names and (settings := self._optimizer.differing(call)):
            return suspect.because(settings)
        if self._were_gradients_kept(call):
            return replace(suspect, cause=_KEPT_GRADIENTS)
        if one_side := self._of_gradients.of_one_side(call):
            return suspect.because(one_side)
        if tied := self._of_gradients.of_tied(call, suspect):
            return replace(suspect, cause=tied)
        if left_out := self.left_out_of_sum(call, suspect):
            return replace(suspect, cause=left_out)
        # The first one is tried first, and the others are not made then.
        for maker in self._made_on_one_side(call, suspect):
            if order := self._origins.elsewhere(maker, call):
                return replace(suspect, cause=order)
            if not self._runs.same_names:
                # Another program has its calls in other places; the call with a counterpart is the place.
                return replace(suspect, cause=on_the_way_to(maker, f"makes {_own_name(call, suspect)}"))
            return self._with_counterpart(maker, made_on_one_side(self._runs, maker, suspect))
        group = self._group_of_one_side(call)
        if group is not None:
            return made_on_one_side(self._runs, group, suspect)
        if cause := self._on_the_way(call, suspect) or self._of_gradients.of_scale(call, suspect):
            return replace(suspect, cause=cause)
        return self._with_other_order(call, suspect)

    def left_out_of_sum(self, call: AlignedCall, suspect: Unexplained) -> str:
        """The sentence on a sum that one program alone makes of an item, such as a residual; empty without one."""
        regions = self._runs.regions
        rows = [row for row in call.rows if is_input(row) or item_name(row) == suspect.item]
        for row in rows if regions is not None and is_forward(call.record or "") else ():
            summed = None if regions is None else regions.summed_on_one_side(row)
            if summed is not None:
                has_it, lacks_it = ("target", "golden run") if summed.side == TARGET else ("golden run", "target")
                name = item_name(row)[len(call.record or "") + 1 :]
                is_, of = ("is made of", "of ") if summed.is_before else ("is", "")
                return f"{name} {is_} a sum in the {has_it} ({summed.maker}) and {of}one of its terms in the {lacks_it}"
        return ""

    def _with_counterpart(self, maker: AlignedCall, found: Unexplained) -> Unexplained:
        """The finding, with the optimizer's setting, or with the call that the other side makes instead.

        The latter if one is a sum and the other a mean.
        """
        if setting := self._optimizer.of_one_side(maker):
            return replace(found, cause=f"{found.cause}: {setting}")
        side = TARGET if maker.record else GOLDEN
        given = given_to(maker, side)
        kind = last_word(maker.record or maker.golden_record or "")
        for call in self._runs.made if kind in _REDUCTIONS and given else ():
            other = (call.record, call.golden_record)[1 - side]
            if (call.record, call.golden_record)[side] is not None or other is None or not is_forward(other):
                continue
            taken = given_to(call, 1 - side)
            if last_word(other) in _REDUCTIONS and taken and has_same_elements(taken[0], given[0]):
                where = "golden run" if side == TARGET else "target"
                number = extent(given[0].shape).elements
                return replace(found, cause=f"{found.cause}; the {where} calls {other}, of {number} elements")
        return found

    def _with_other_order(self, call: AlignedCall, suspect: Unexplained) -> Unexplained:
        """The finding, with what may have put elements in another order, which their statistics do not show."""
        if is_on_input(call, suspect) or not is_forward(call.record or ""):
            return suspect
        for row in call.rows:
            target, golden, parameter = row.target, row.golden, self._runs.parameter(call, row)
            if target is None or golden is None or parameter is None or not has_same_elements(target, golden):
                continue
            is_other = (target.mean, target.norm) != (golden.mean, golden.norm)
            if is_other and is_shown(target, call, self._runs.calls):
                why = "its mean and norm differ by rounding alone"
                return replace(suspect, cause=f"parameter {parameter.full_name} {MAY_BE_REORDERED}: {why}")
        maker = self._reorderings.before(call)
        if maker is not None:
            if not self._runs.same_names or not is_taken_by(call, maker):
                did = "may return what it takes in another order"
                return replace(suspect, cause=on_the_way_to(maker, did))
            return made_on_one_side(self._runs, maker, suspect)
        operand = self._reorderings.operand(call, suspect.found or 0.0, self._runs.tree)
        if operand is not None:
            module = self._runs.module(operand)
            inside = f", in {module}," if module not in ("", operand.record) else ""
            agree = "its statistics agree"
            return replace(suspect, cause=f"what {operand.record}{inside} returns {MAY_BE_REORDERED}: {agree}")
        return suspect

    def _were_gradients_kept(self, call: AlignedCall) -> bool:
        if PARAMETERS_GRAD not in (call.record or "") or self._runs.between_steps is None:
            return False
        return self._runs.between_steps.gradients_were_kept(self._runs.calls)

    def _made_on_one_side(self, call: AlignedCall, suspect: Unexplained) -> Iterator[AlignedCall]:
        """The calls of one side alone that can be what `suspect` shows, the likeliest first."""
        if suspect.item.startswith(f"{suspect.record}.{PARAMETERS}."):
            return
        maker = None if self._runs.across_frameworks else self._origins.made_on_one_side(call, suspect.item)
        if maker is not None:
            yield maker
        missing = self._walk.missing
        if missing is not None and self._is_due_to(missing, call, suspect):
            yield missing

    def _is_due_to(self, missing: AlignedCall, call: AlignedCall, suspect: Unexplained) -> bool:
        """True if `missing`, made right before `call`, can be what `suspect` shows."""
        if missing.record:
            is_inside = self._runs.tree.get(missing.record) == call.record
        else:
            is_inside = self._runs.golden_tree.get(missing.golden_record or "") == call.golden_record
        return is_on_input(call, suspect) or is_inside

    def _group_of_one_side(self, call: AlignedCall) -> AlignedCall | None:
        """The first call of what one side alone does around an optimizer's calls, such as clipping gradients."""
        around = self._runs.tree.get(call.record or "")
        if not self._runs.same_names or not around or is_module(around):
            return None
        groups = [first_of_groups(tree) for tree in (self._runs.tree, self._runs.golden_tree)]
        alone = {record for own, other in (groups, groups[::-1]) for group, record in own.items() if group not in other}
        return next((each for each in self._runs.calls if each.record in alone or each.golden_record in alone), None)

    def _on_the_way(self, call: AlignedCall, suspect: Unexplained) -> str:
        """The fate of the item between the call that returned it and this one; empty if it is unknown."""
        cause = "" if self._runs.across_frameworks else self._origins.between(call, suspect.item)
        if not cause and not self._walk.has_diverged and is_on_input(call, suspect):
            return self._other_argument
        return cause

    @cached_property
    def _other_argument(self) -> str:
        """The first plain argument that differs, which steps before may have carried into parameters."""
        for call in self._runs.calls:
            for row in call.rows if call.record and call.golden_record else ():
                reason = self._differences.in_argument(row)
                if reason:
                    other = f"in {call.record}, {reason.text}"
                    return f"an argument differs as well, which may have changed steps before: {other}"
        return ""


def _own_name(call: AlignedCall, suspect: Unexplained) -> str:
    """The item of the finding without the record."""
    return suspect.item[len(call.record or "") + 1 :]
