"""The decision if every difference of a call is explained, made after both runs were walked.

An argument may change what its call returns by less than rounding, and a whole pass of two programs may return another
thing though each call of it may be right by itself.
"""

from __future__ import annotations

from dataclasses import replace

from probe.common.align.row import Row
from probe.common.numerics.error_bounds import relative_difference
from probe.compare.answers.first_unequal import first_by_argument, first_unequal
from probe.compare.answers.looked_for import LookedFor
from probe.compare.divergence import differences
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.search.findings import reason_of, unexplained_item
from probe.compare.divergence.search.runs import Runs
from probe.compare.divergence.two_programs.frontier import Frontier, frontier
from probe.compare.result import Difference, Unexplained
from probe.compare.sentences import NOTHING, Sentence

_MOST_BETWEEN = 3
"""The largest number of modules that are named as the region before a call. A guess: more are no place."""


def decided_late(runs: Runs, known: LookedFor) -> Unexplained | None:
    """The finding on two runs of which no call was found by itself; ``None`` if nothing decides.

    Args:
        runs: the runs.
        known: the differences by what is known of their effect.
    """
    argument = first_by_argument(runs.calls, known.undecided)
    if argument is not None:
        difference, row = argument
        apart = _apart(row)
        reason = differences.of_output(row, apart, 0.0, 0.0)
        return _at(runs, difference.record, row, reason, apart, 0.0, reason_of(difference))
    if runs.regions is None:
        return None
    result, rising = runs.regions.result_apart(), runs.rising
    if result is None and rising is None:
        return None
    # What the pass returns, or many layers of it, leaves no doubt that something diverges.
    unequal = first_unequal(runs.calls, runs.regions)
    if unequal is not None:
        return _at_first_unequal(runs, unequal, known)
    seen = frontier(runs.calls, runs.regions, runs.tree)
    if seen is None:
        return None
    behind = differences.of_layers_behind(rising.behind) if rising is not None else ""
    return _at_frontier(runs, seen, behind if result is None else differences.of_result_behind(result.error), known)


def _apart(row: Row) -> float:
    return 0.0 if row.target is None or row.golden is None else relative_difference(row.target, row.golden)


def _at_first_unequal(runs: Runs, unequal: Difference, known: LookedFor) -> Unexplained:
    rows = runs.by_record[unequal.record].rows
    row = next(row for row in rows if differences.item_name(row) == unequal.item)
    cause = _argument_before(runs, unequal.record, known) if is_input(row) else NOTHING
    return _at(runs, unequal.record, row, reason_of(unequal), unequal.shows_from or 0.0, None, cause)


def _at_frontier(runs: Runs, seen: Frontier, behind: str, known: LookedFor) -> Unexplained:
    record = seen.call.record or ""
    reason = Sentence(differences.of_frontier(seen.row, seen.error, seen.usual, behind))
    between = seen.between if len(seen.between) <= _MOST_BETWEEN else []
    cause = _argument_before(runs, record, known)
    if not cause and (seen.equal or between):
        cause = Sentence(differences.of_region(seen.equal, between))
    return _at(runs, record, seen.row, reason, seen.error, seen.allowed, cause)


def _argument_before(runs: Runs, record: str, known: LookedFor) -> Sentence:
    """The last argument before a call of which nobody can tell by itself whether it has an effect."""
    places = {call.record: place for place, call in enumerate(runs.calls)}
    found = [
        each
        for each in known.undecided
        if each.record and each.golden_record and not each.is_value
        if places.get(each.record, places[record]) < places[record]
    ]
    return reason_of(found[-1]).inside(found[-1].record) if found else NOTHING


def _at(
    runs: Runs, record: str, row: Row, reason: Sentence, found: float, allowed: float | None = None,
    cause: Sentence = NOTHING,
) -> Unexplained:  # fmt: skip
    place, call = next((place, call) for place, call in enumerate(runs.calls) if call.record == record)
    named = unexplained_item(runs, call, row, reason, found, allowed or 0.0).because(cause)
    return replace(named, allowed=allowed, place=place)
