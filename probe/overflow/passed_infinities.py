"""Infinities that ranks send each other: masks, or what another rank made something else of.

A rank by itself takes minus infinity that it sends or gets for a mask. Where one of them made anything but finite
values of it, it was none: for that rank, for those that it came from, and for the calls that made it there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from probe.common.collectives.collectives import Exchange
from probe.common.nonfinite.bad_record import BadRecord
from probe.overflow.scan import Communication

CallKey = tuple[int, int]
"""Rank, and the number of a record."""


def settle(
    calls: dict[CallKey, Communication],
    bad: dict[int, list[BadRecord]],
    exchanges: Mapping[CallKey, Sequence[Exchange]],
) -> None:
    """Take for not finite what was sent as a mask and was none.

    Args:
        calls: those of all ranks; what is no mask is moved to their `inputs` and `outputs`.
        bad: what is not finite on each rank; calls that made what is no mask are added, and those that communicate,
            which stand in `calls`, are taken out.
        exchanges: what each call exchanges.
    """
    waiting = deque((rank, record.number) for rank, of_rank in bad.items() for record in of_rank)
    waiting = deque(key for key in waiting if key in calls)
    own = set(waiting)
    for rank, of_rank in bad.items():
        of_rank[:] = [record for record in of_rank if (rank, record.number) not in own]
    for key, call in calls.items():
        senders = [calls[sender] for sender in _senders(calls, exchanges, key)]
        if call.masked_outputs and not any(sender.inputs or sender.masked_inputs for sender in senders):
            # All that went into it is finite, so that it arose on the way.
            waiting.append(key)
        elif call.outputs and senders and not any(sender.inputs for sender in senders):
            # Something else came of masks alone.
            waiting.append(key)
    seen = set()
    while waiting:
        key = waiting.popleft()
        if key in seen:
            continue
        seen.add(key)
        call = calls[key]
        calls[key] = call._replace(outputs=(*call.outputs, *call.masked_outputs), masked_outputs=())
        givers = [key] if key in own else []
        for sender in (*givers, *_senders(calls, exchanges, key)):
            waiting.extend(_blamed(calls, bad, sender))
    for of_rank in bad.values():
        of_rank.sort(key=lambda record: record.number)


def _blamed(calls: dict[CallKey, Communication], bad: dict[int, list[BadRecord]], sender: CallKey) -> Iterator[CallKey]:
    """Take what a call gave for no mask; the calls by which it came to that rank."""
    call = calls[sender]
    calls[sender] = call._replace(inputs=(*call.inputs, *call.masked_inputs), masked_inputs=(), masks=())
    for mask in call.masks:
        key = (sender[0], mask.number)
        if key in calls:
            yield key
        elif mask not in bad[sender[0]]:
            bad[sender[0]].append(mask)


def _senders(
    calls: Mapping[CallKey, Communication], exchanges: Mapping[CallKey, Sequence[Exchange]], key: CallKey
) -> Iterator[CallKey]:
    for exchange in exchanges.get(key, ()):
        for call in (exchange.call, *exchange.partners):
            if call.rank in exchange.sources and (call.rank, call.index) in calls:
                yield call.rank, call.index
