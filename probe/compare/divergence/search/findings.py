"""The findings of a search, in the words of the result."""

from __future__ import annotations

from dataclasses import dataclass

from probe.common.align.row import Row
from probe.common.collectives.collectives import is_communication
from probe.common.numerics.error_bounds import ALTOGETHER
from probe.compare.divergence import differences
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.judged_calls import JudgedCall
from probe.compare.divergence.search.runs import Runs
from probe.compare.result import Difference, Unexplained
from probe.compare.sentences import Sentence


@dataclass(frozen=True)
class Findings:
    """The findings of a search."""

    diverged: list[Unexplained]
    """The calls that nothing explains, in order of execution."""
    is_complete: bool
    """True if all calls were looked at."""
    with_effect: list[Difference]
    without_effect: list[Difference]
    undecided: list[Difference]
    """Differences that may have an effect that nothing would show."""
    judged: list[JudgedCall]
    """The findings on each pair of calls, in the order in which they were judged, if they were asked for."""


def unexplained_item(
    runs: Runs, call: AlignedCall, row: Row, reason: Sentence, difference: float, allowed: float, cause: str = ""
) -> Unexplained:
    """The finding on an item of a call that differs by more than is allowed; the numbers are relative differences."""
    measured = difference < ALTOGETHER
    return Unexplained(
        call.record or "",
        call.golden_record or "",
        runs.module(call),
        reason.text,
        cause,
        communicates=is_communication(call.record or ""),
        item=differences.item_name(row),
        found=difference if measured else None,
        allowed=allowed if measured else None,
        labelled_reason=reason.labelled,
    )


def made_on_one_side(runs: Runs, call: AlignedCall, suspect: Unexplained) -> Unexplained:
    """The finding on a call that one side alone makes, of which `suspect` is the effect."""
    side = "target" if call.record else "golden run"
    cause, effect = f"only the {side} makes this call", reason_of(suspect).inside(suspect.record)
    names = call.record or "", call.golden_record or ""
    return Unexplained(*names, runs.module(call), effect.text, cause, labelled_reason=effect.labelled)


def reason_of(found: Unexplained | Difference) -> Sentence:
    """The reason in both forms."""
    return Sentence(found.reason, found.labelled_reason)


def on_the_way_to(call: AlignedCall, did: str) -> str:
    """The sentence on a call of one side alone that `did` this to what another call takes."""
    side = "target" if call.record else "golden run"
    return f"only the {side} calls {call.record or call.golden_record}, which {did}"


def difference_in(call: AlignedCall, row: Row, reason: Sentence) -> Difference:
    """A difference in an item of a call that is not one of values."""
    names = call.record or "", call.golden_record or "", differences.item_name(row)
    return Difference(*names, reason.text, labelled_reason=reason.labelled, values=reason.values)
