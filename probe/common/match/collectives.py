"""Which communication calls of different ranks belong together, and in which order they happened.

Sends and receives are linked by peer and order, collective calls by their name, group and order. The links are given
layers: the first layer are calls that nothing had to come before on any of their ranks, and so on.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from probe.common.dump.reading.records import INPUT, Item

_PREFIXES = ("Distributed.", "MintDistributed.", "communication.comm_func.")
_NAMES = (
    "send", "recv", "broadcast", "reduce", "gather", "scatter", "all_to_all",
)  # fmt: skip
_RANKS = re.compile(r"\d+")


@dataclass(frozen=True)
class CollectiveCall:
    """One communication call of one rank."""

    rank: int
    index: int
    """The number of its record among those of its rank."""
    record: str
    inputs: tuple[Item, ...]


def is_communication(record: str) -> bool:
    """Whether the record is a call by which ranks exchange data."""
    if not record.startswith(_PREFIXES):
        return False
    return any(name in record for name in _NAMES)


def layers(calls: Sequence[Sequence[CollectiveCall]], ranks: Sequence[int]) -> list[list[list[CollectiveCall]]]:
    """The links of the calls of every rank, layer by layer; `calls` has a list in order for each of `ranks`."""
    members = _links(calls, ranks)
    waiting = [deque(of_rank) for of_rank in calls]
    found = []
    while any(waiting):
        heads = {id(queue[0]) for queue in waiting if queue}
        ready = {}
        for queue in waiting:
            if queue:
                link = members[id(queue[0])]
                if all(id(call) in heads for call in link):
                    ready[id(link)] = link
        if not ready:
            # The ranks contradict each other, as where one of them was not recorded whole; go on with what is first.
            first = next(queue[0] for queue in waiting if queue)
            for call in members[id(first)]:
                members[id(call)] = [call]
            ready = {id(first): members[id(first)]}
        layer = list(ready.values())
        done = {id(call) for link in layer for call in link}
        for queue in waiting:
            if queue and id(queue[0]) in done:
                queue.popleft()
        found.append(layer)
    return found


def _links(calls: Sequence[Sequence[CollectiveCall]], ranks: Sequence[int]) -> dict[int, list[CollectiveCall]]:
    links: dict[tuple[object, ...], list[CollectiveCall]] = {}
    members: dict[int, list[CollectiveCall]] = {}
    for of_rank in calls:
        seen: Counter[tuple[object, ...]] = Counter()
        for call in of_rank:
            kind = _kind(call, ranks)
            key = (*kind, seen[kind])
            seen[kind] += 1
            members[id(call)] = links.setdefault(key, [])
            members[id(call)].append(call)
    return members


def _kind(call: CollectiveCall, ranks: Sequence[int]) -> tuple[object, ...]:
    """What calls of one link have in common."""
    base = call.record.rpartition(".")[0].rpartition(".")[0]
    name = base.rpartition(".")[2]
    if "batch" in name:
        return base, call.rank, "alone"
    if "send" in name or "recv" in name:
        peer = _peer(call, "dst" if "send" in name else "src")
        if peer is None:
            return base, call.rank, "alone"
        return ("point to point", call.rank, peer) if "send" in name else ("point to point", peer, call.rank)
    return base, _group(call, ranks)


def _argument(call: CollectiveCall, name: str) -> Item | None:
    return next((item for item in call.inputs if item.name.rpartition(".")[2] == name), None)


def _peer(call: CollectiveCall, name: str) -> int | None:
    # The first argument is the tensor, the second one the peer.
    item = _argument(call, name) or _argument(call, f"group_{name}") or _argument(call, "1")
    text = "" if item is None else str(item.value)
    return int(text) if text.isdigit() else None


def _group(call: CollectiveCall, ranks: Sequence[int]) -> tuple[int, ...]:
    for item in call.inputs:
        if item.dtype == "torch.ProcessGroup" and item.state == INPUT:
            return tuple(int(text) for text in _RANKS.findall(str(item.value)))
    return tuple(ranks)
