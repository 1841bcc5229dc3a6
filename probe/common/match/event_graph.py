"""In which order the communication calls of several ranks happened.

`in_order` gives the beginnings and the ends of all calls in an order in which no result comes before what it is made
of: the end of a call follows the beginnings of those that it gets values from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from probe.common.match.collectives import CollectiveCall, Exchange, exchanges


class TimedCall(NamedTuple):
    """A communication call and where its result was there."""

    call: CollectiveCall
    ends_after: int
    """The number of the record of its rank after which its result was there: its own, or a later one where it works on
    in the background."""


class Event(NamedTuple):
    """One end of a communication call."""

    call: CollectiveCall
    place: float
    """Between the numbers of which records of its rank it is."""
    is_end: bool
    exchanges: Sequence[Exchange]
    """What the call exchanges."""
    is_forced: bool = False
    """Whether it should wait for a call that waits for it: the dumps contradict each other."""


def in_order(calls: Sequence[Sequence[TimedCall]], ranks: Sequence[int]) -> Iterator[Event]:
    """The beginnings and ends of the calls of every rank.

    Args:
        calls: those of each rank that was recorded, in order.
        ranks: all ranks of the run; those of calls that name no group.
    """
    by_call: dict[tuple[int, int], list[Exchange]] = {}
    for exchange in exchanges([[timed.call for timed in of_rank] for of_rank in calls], ranks):
        by_call.setdefault(_key(exchange.call), []).append(exchange)
    queues = [deque(_events(of_rank, by_call)) for of_rank in calls]
    begun: set[tuple[int, int]] = set()
    waiting = deque(range(len(queues)))
    idle = 0
    while waiting:
        number = waiting.popleft()
        queue = queues[number]
        is_forced = idle > len(waiting)
        idle += 1
        while queue and (is_forced or _is_ready(queue[0], begun)):
            event = queue.popleft()._replace(is_forced=is_forced)
            if not event.is_end:
                begun.add(_key(event.call))
            is_forced = False
            idle = 0
            yield event
        if queue:
            waiting.append(number)


def _events(of_rank: Sequence[TimedCall], by_call: dict[tuple[int, int], list[Exchange]]) -> list[Event]:
    events = []
    for call, ends_after in of_rank:
        of_call = by_call.get(_key(call), [])
        events.append(Event(call, call.index, False, of_call))
        events.append(Event(call, max(ends_after, call.index) + 0.5, True, of_call))
    return sorted(events, key=lambda event: event.place)


def _is_ready(event: Event, begun: set[tuple[int, int]]) -> bool:
    if not event.is_end:
        return True
    return all(
        _key(partner) in begun
        for exchange in event.exchanges
        for partner in exchange.partners
        if partner.rank in exchange.sources
    )


def _key(call: CollectiveCall) -> tuple[int, int]:
    return call.rank, call.index
