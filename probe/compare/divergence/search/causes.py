"""What made a call diverge: looked for on the call, on the way to it, and on the calls around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from probe.common.dump.naming import PARAMETERS_GRAD, is_module
from probe.common.dump.reading.records import PARAMETERS
from probe.common.dump.reading.sources import Tree
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.differences import Differences
from probe.compare.divergence.origins import Origins
from probe.compare.divergence.search.findings import made_on_one_side
from probe.compare.divergence.search.items import is_on_input
from probe.compare.divergence.search.runs import Runs
from probe.compare.divergence.search.walk import Walk
from probe.compare.result import Difference, Unexplained

_KEPT_GRADIENTS = "gradients hold those of the step before as well: they were accumulated, or not zeroed (zero_grad)"


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
        self._origins = Origins(runs.calls, (runs.tree, runs.golden_tree))

    def added(self, call: AlignedCall, suspect: Unexplained, of_call: Sequence[Difference]) -> Unexplained:
        """The finding with its cause, as far as one is found; it may be another call that is to be named.

        Args:
            call: the call that diverges.
            suspect: the finding on it.
            of_call: what differs in the call beside numbers.
        """
        if suspect.cause:
            return suspect
        if of_call:
            return replace(suspect, cause=of_call[0].reason)
        if self._were_gradients_kept(call):
            return replace(suspect, cause=_KEPT_GRADIENTS)
        # The first one is tried first, and the others are not made then.
        for maker in self._made_on_one_side(call, suspect):
            if order := self._origins.elsewhere(maker, call):
                return replace(suspect, cause=order)
            return made_on_one_side(self._runs, maker, suspect)
        group = self._group_of_one_side(call)
        if group is not None:
            return made_on_one_side(self._runs, group, suspect)
        return replace(suspect, cause=self._on_the_way(call, suspect))

    def _were_gradients_kept(self, call: AlignedCall) -> bool:
        if PARAMETERS_GRAD not in (call.record or "") or self._runs.between_steps is None:
            return False
        return self._runs.between_steps.gradients_were_kept(self._runs.calls)

    def _made_on_one_side(self, call: AlignedCall, suspect: Unexplained) -> Iterator[AlignedCall]:
        """The calls of one side alone that can be what `suspect` shows, the likeliest first."""
        if suspect.item.startswith(f"{suspect.record}.{PARAMETERS}."):
            return
        maker = self._origins.made_on_one_side(call, suspect.item) if self._runs.same_names else None
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
        groups = [_groups(tree) for tree in (self._runs.tree, self._runs.golden_tree)]
        alone = {record for own, other in (groups, groups[::-1]) for group, record in own.items() if group not in other}
        return next((each for each in self._runs.calls if each.record in alone or each.golden_record in alone), None)

    def _on_the_way(self, call: AlignedCall, suspect: Unexplained) -> str:
        """What became of the item between the call that returned it and this one; empty where nobody knows."""
        cause = self._origins.between(call, suspect.item) if self._runs.same_names else ""
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
                    other = f"in {call.record}, {reason}"
                    return f"an argument differs as well, which may have changed steps before: {other}"
        return ""


def _groups(tree: Tree) -> dict[str, str]:
    """What is around calls and no module, such as an optimizer, with its first call."""
    found: dict[str, str] = {}
    for record, around in tree.items():
        if around and not is_module(around):
            found.setdefault(around, record)
    return found
