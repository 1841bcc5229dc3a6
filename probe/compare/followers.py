"""Later steps and other ranks that a divergence has reached: they follow it and are not judged anew.

A divergence reaches the next step through its parameters, and another rank through a communication that carried the
value. What it did not reach is judged as ever: two batches of an evaluation have the same parameters, and each may
diverge by itself. Where no parameters are recorded, the values that differ tell: an input carries what was before, and
an output is made anew.

A difference of which nobody can tell whether it has an effect may have reached the next step in the same way. Values
that part there may be its effect, so that they accuse no call but the one that has the difference. Data, arguments and
the optimizer are judged as ever, since no parameter changes these.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, Optional

from probe.common.dump.naming import parse
from probe.common.dump.reading.records import INPUT, PARAMETERS
from probe.common.numerics.error_bounds import ALTOGETHER
from probe.compare.output.summary import Summary
from probe.compare.result import Carried, Difference, Origin, Unexplained


class Followers:
    """Finds the steps and ranks that follow others, given one step after the other."""

    def __init__(self) -> None:
        self._origins: dict[str, tuple[Origin, Carried | None]] = {}
        """The steps that diverged by themselves, by rank, with the parameters that they had."""
        self._doubts: list[_Doubt] = []
        """The steps of which nobody can tell, because of differences of their own."""

    def add_step(self, of_step: Sequence[Summary]) -> list[Summary]:
        """The summaries of the ranks of a step; those that follow a divergence say which, and no other one."""
        found = [self._after_steps(summary) for summary in of_step]
        own = [
            (summary.divergence.first, summary)
            for summary in found
            if summary.divergence is not None and not summary.divergence.first.communicates
        ]
        if own:
            _, first = min(own, key=lambda each: each[0].place)
            found = [_after_communication(summary, _origin(first)) for summary in found]
        for summary in found:
            if summary.divergence is None and summary.follows is None and summary.undecided:
                self._doubts.append(_Doubt(_origin(summary), summary.carried, summary.undecided))
            if summary.divergence is not None:
                self._origins.setdefault(summary.label, (_origin(summary), summary.carried))
        return found

    def _after_steps(self, summary: Summary) -> Summary:
        if summary.follows is not None:
            return summary
        of_rank = self._origins.get(summary.label)
        if of_rank is not None and _is_reached(summary, of_rank[1]):
            return _following(summary, of_rank[0])
        for origin, carried in self._origins.values():
            # Gradients of all ranks are summed where nothing records it; parameters that differ afterwards tell.
            if summary.carried is not None and _is_reached(summary, carried):
                return _following(summary, origin)
        return self._after_doubts(summary)

    def _after_doubts(self, summary: Summary) -> Summary:
        """The summary without a divergence that may be the effect of what nobody can tell of steps before."""
        found = summary.divergence
        if found is None or summary.carried is None or found.first.communicates:
            return summary
        for doubt in self._doubts:
            if doubt.carried is not None and _is_reached(summary, doubt.carried):
                if _is_judged_after(found.first, summary.with_effect, self._doubts):
                    return summary
                return _following(summary, doubt.origin)
        return summary


class _Doubt(NamedTuple):
    """A step of which nobody can tell whether it diverges."""

    origin: Origin
    carried: Optional[Carried]  # noqa: UP045 (evaluated, on Python 3.9 too)
    undecided: Sequence[Difference]


def _is_judged_after(found: Unexplained, differences: Iterable[Difference], doubts: Iterable[_Doubt]) -> bool:
    """True if what diverges is no effect of parameters that may be other ones, or is at the place of a doubt.

    Args:
        found: what diverges.
        differences: those of the calls that diverge.
        doubts: the steps before of which nobody can tell.
    """
    if found.item.startswith(f"{found.record}.{PARAMETERS}."):
        # The optimizer is the cause. Elements in another order were so before as well.
        return bool(found.cause and not found.reordered)
    if found.of_inputs == 0 and not _is_of_input(found):
        # What it takes is equal, its parameters included.
        return True
    is_data = _is_of_input(found) and (found.place == 0 or found.found is None or found.found >= ALTOGETHER)
    of_call = any((each.record, each.golden_record) == (found.record, found.golden_record) for each in differences)
    return is_data or of_call or any(_is_at(found, each) for doubt in doubts for each in doubt.undecided)


def _is_at(found: Unexplained, difference: Difference) -> bool:
    """True if what diverges is the call that has a difference, or is inside of the module that has it."""
    if found.record == difference.record:
        return True
    of_difference, of_found = parse(difference.record or difference.golden_record), parse(found.module)
    if of_difference is None or of_found is None or not of_difference.is_module:
        return False
    path, inside = (each.base.rpartition(".")[0] for each in (of_difference, of_found))
    return inside == path or inside.startswith(f"{path}.")


def followed(found: Iterable[Summary]) -> Generator[Summary, None, None]:
    """The summaries, step by step; those that a divergence has reached follow it."""
    followers = Followers()
    for _, of_step in groupby(found, key=attrgetter("step")):
        yield from followers.add_step(list(of_step))


def _is_reached(summary: Summary, earlier: Carried | None) -> bool:
    now = summary.carried
    if now is None or earlier is None:
        first = None if summary.divergence is None else summary.divergence.first
        return first is None or _is_of_input(first)
    return now.differ and (now.target != earlier.target or now.golden != earlier.golden)


def _after_communication(summary: Summary, origin: Origin) -> Summary:
    if summary.divergence is None or not summary.divergence.first.communicates:
        return summary
    return _following(summary, origin)


def _following(summary: Summary, origin: Origin) -> Summary:
    """The summary without a divergence; inputs that nothing recorded explains, such as data, are still differences."""
    found = summary.divergence
    diverged = [] if found is None else [found.first, *found.suspects]
    data = [
        Difference(each.record, each.golden_record, each.item, each.reason, labelled_reason=each.labelled_reason)
        for each in diverged
        if _is_of_input(each)
    ]
    return replace(summary, divergence=None, follows=origin, with_effect=[*summary.with_effect, *data])


def _is_of_input(found: Unexplained) -> bool:
    return found.item.startswith(f"{found.record}.{INPUT}.")


def _origin(summary: Summary) -> Origin:
    return Origin(summary.step, summary.label)
