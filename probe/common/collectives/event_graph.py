"""In which order the communication calls of several ranks happened.

`in_order` gives the beginnings and the ends of all calls in an order in which no result comes before what it is made
of: the end of a call follows the beginnings of those that it gets values from. `layers` gives the links between calls
in layers: the first layer are calls that nothing had to come before on any of their ranks, and so on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from probe.common.collectives.collectives import CollectiveCall, Exchange, exchanges


class TimedCall(NamedTuple):
    """A communication call and where its result was there."""

    call: CollectiveCall
    ends_after: int
    """The number of the record of its rank after which its result was there: its own, or a later one where it works on
    in the background."""


class Event(NamedTuple):
    """One end of a communication call."""

    call: CollectiveCall
    position: float
    """Between the numbers of which records of its rank it is."""
    is_end: bool
    exchanges: Sequence[Exchange]
    """The exchanges of the call."""
    is_forced: bool = False
    """True if it should wait for a call that waits for it: the dumps contradict each other."""


def in_order(calls: Sequence[Sequence[TimedCall]], ranks: Sequence[int]) -> Iterator[Event]:
    """The beginnings and ends of the calls of every rank.

    Args:
        calls: those of each rank that was recorded, in order.
        ranks: all ranks of the run; those of calls that name no group.
    """
    by_call: dict[tuple[int, int], list[Exchange]] = {}
    links: dict[int, _Link] = {}
    for exchange in exchanges([[timed.call for timed in of_rank] for of_rank in calls], ranks):
        by_call.setdefault(_key(exchange.call), []).append(exchange)
        link = links.setdefault(id(exchange.members), _Link(exchange.members))
        link.sources.update(exchange.sources)
    waited_for: dict[tuple[int, int], list[_Link]] = {}
    for link in links.values():
        for call in link.members:
            if call.rank in link.sources:
                link.not_begun += 1
                waited_for.setdefault(_key(call), []).append(link)
    queues = [deque(_events(of_rank, by_call)) for of_rank in calls]
    ready = deque(range(len(queues)))
    blocked: set[int] = set()
    while ready or blocked:
        is_forced = not ready
        number = min(blocked) if is_forced else ready.popleft()
        blocked.discard(number)
        queue = queues[number]
        while queue:
            event = queue[0]
            if event.is_end and not is_forced:
                needed = (links[id(each.members)] for each in event.exchanges if each.sources)
                awaited = next((one for one in needed if one.not_begun), None)
                if awaited is not None:
                    awaited.waiting.append(number)
                    blocked.add(number)
                    break
            queue.popleft()
            if not event.is_end:
                ready.extend(_begun(waited_for.get(_key(event.call), ()), blocked))
            yield event._replace(is_forced=is_forced)
            is_forced = False


@dataclass
class _Link:
    """The calls of several ranks that belong together."""

    members: Sequence[CollectiveCall]
    sources: set[int] = field(default_factory=set)
    """The ranks of whose inputs its results are made."""
    not_begun: int = 0
    """The number of their calls that have not begun."""
    waiting: list[int] = field(default_factory=list)
    """The queues that wait for these."""


def _begun(links: Sequence[_Link], blocked: set[int]) -> Iterator[int]:
    """A call has begun: the queues that may go on."""
    for link in links:
        link.not_begun -= 1
        if not link.not_begun:
            for number in link.waiting:
                if number in blocked:
                    blocked.discard(number)
                    yield number
            link.waiting.clear()


def _events(of_rank: Sequence[TimedCall], by_call: dict[tuple[int, int], list[Exchange]]) -> list[Event]:
    events = []
    for call, ends_after in of_rank:
        of_call = by_call.get(_key(call), [])
        events.append(Event(call, call.index, False, of_call))
        events.append(Event(call, max(ends_after, call.index) + 0.5, True, of_call))
    return sorted(events, key=lambda event: event.position)


def _key(call: CollectiveCall) -> tuple[int, int]:
    return call.rank, call.index


def layers(calls: Sequence[Sequence[CollectiveCall]], ranks: Sequence[int]) -> list[list[list[CollectiveCall]]]:
    """The links of the calls of every rank, layer by layer; `calls` has a list in order for each of `ranks`."""
    members = _links(calls, ranks)
    waiting = [deque(of_rank) for of_rank in calls]
    found = []
    while any(waiting):
        heads = {_key(queue[0]) for queue in waiting if queue}
        ready = {}
        for queue in waiting:
            if queue:
                link = members[_key(queue[0])]
                if all(_key(call) in heads for call in link):
                    ready[id(link)] = link
        if not ready:
            # The ranks contradict each other, as where one of them was not recorded whole; go on with what is first.
            first = next(queue[0] for queue in waiting if queue)
            for call in members[_key(first)]:
                members[_key(call)] = [call]
            ready = {id(first): members[_key(first)]}
        layer = list(ready.values())
        done = {_key(call) for link in layer for call in link}
        for queue in waiting:
            if queue and _key(queue[0]) in done:
                queue.popleft()
        found.append(layer)
    return found


def _links(
    calls: Sequence[Sequence[CollectiveCall]], ranks: Sequence[int]
) -> dict[tuple[int, int], list[CollectiveCall]]:
    """The calls that wait for each other, by each of them: those of one collective; all others are alone."""
    members = {_key(call): [call] for of_rank in calls for call in of_rank}
    of_call: dict[tuple[int, int], list[Exchange]] = {}
    for exchange in exchanges(calls, ranks):
        of_call.setdefault(_key(exchange.call), []).append(exchange)
    shared: dict[tuple[tuple[int, int], ...], list[CollectiveCall]] = {}
    for key, (exchange, *more) in of_call.items():
        # A batch exchanges with several peers, which do not wait for each other.
        if not more and "batch" not in exchange.call.record:
            link = sorted(exchange.members, key=_key)
            members[key] = shared.setdefault(tuple(map(_key, link)), link)
    return members
