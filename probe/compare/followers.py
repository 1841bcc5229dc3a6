"""Later steps and other ranks that a divergence has reached: they follow it and are not judged anew.

A divergence reaches the next step through its parameters, and another rank through a communication that carried the
value. What it did not reach is judged as ever: two batches of an evaluation have the same parameters, and each may
diverge by itself. Where no parameters are recorded, the values that differ tell: an input carries what was before, and
an output is made anew.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from probe.common.dump.reading.records import INPUT
from probe.compare.output.summary import Summary
from probe.compare.result import Carried, Difference, Origin, Unexplained


class Followers:
    """Finds the steps and ranks that follow others, given one step after the other."""

    def __init__(self) -> None:
        self._origins: dict[str, tuple[Origin, Carried | None]] = {}
        """The steps that diverged by themselves, by rank, with the parameters that they had."""

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
        return summary


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
