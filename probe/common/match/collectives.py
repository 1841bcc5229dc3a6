"""Which communication calls of different ranks belong together, and in which order they happened.

Sends and receives belong together by peer, tag and order, collective calls by their name, group and order. `exchanges`
says what each call exchanges with which others. `layers` gives the links between calls in layers: the first layer are
calls that nothing had to come before on any of their ranks, and so on.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Union

from probe.common.dump.naming import function_name
from probe.common.dump.reading.records import INPUT, Item

_PREFIXES = ("Distributed.", "MintDistributed.", "communication.comm_func.")
_NAMES = (
    "send", "recv", "broadcast", "reduce", "gather", "scatter", "all_to_all",
)  # fmt: skip
_RANKS = re.compile(r"\d+")
_WORLD = ("hccl_world_group", "nccl_world_group", "mccl_world_group")
"""What MindSpore calls the group of all ranks."""
_ANYONE = -1
"""The peer of a receive that takes what comes first."""

Group = Union[tuple[int, ...], str]
"""The ranks of a group, or its name where a dump has no more."""


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
    (end, *more) = _ends(call, ranks)
    # A batch exchanges with several peers, which do not wait for each other.
    if more or "batch" in call.record or end.key[0] in ("send", "recv"):
        return function_name(call.record), call.rank, "alone"
    return end.key


@dataclass(frozen=True)
class Exchange:
    """What one call does with others: a collective call does one thing, a batch of sends and receives several."""

    call: CollectiveCall
    what: str
    """``send``, ``recv``, or the name of the collective: ``all_reduce``."""
    ranks: tuple[int, ...]
    """The ranks that take part as far as the call says, its own one too."""
    partners: tuple[CollectiveCall, ...]
    """The calls of other ranks that belong to it, in the order of ranks."""

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that should have a call that belongs to this one, and have none."""
        there = {self.call.rank, *(partner.rank for partner in self.partners)}
        return tuple(rank for rank in self.ranks if rank not in there)


def exchanges(calls: Sequence[Sequence[CollectiveCall]], ranks: Sequence[int]) -> list[Exchange]:
    """What every call exchanges, and with which calls of other ranks, rank by rank in order.

    The n-th send to a rank with a tag belongs to the n-th receive from there with this tag, the n-th call of a
    collective in a group to the n-th of the other ranks of the group. Asynchronous calls belong together in the order
    in which they were begun, whenever they are waited for.

    Args:
        calls: a list in order for each rank that was recorded.
        ranks: all ranks of the run; those of calls that name no group.
    """
    links: dict[tuple[object, ...], list[_End]] = {}
    ends: list[tuple[_End, tuple[object, ...]]] = []
    for of_rank in calls:
        seen: Counter[tuple[object, ...]] = Counter()
        for end in (end for call in of_rank for end in _ends(call, ranks)):
            key = (*end.key, seen[end.key])
            seen[end.key] += 1
            ends.append((end, key))
            links.setdefault(key, []).append(end)
    taken = _taken_from_anyone(links)
    return [_exchange(end, links[taken.get(key, key)], key in taken) for end, key in ends]


def _taken_from_anyone(links: dict[tuple[object, ...], list[_End]]) -> dict[tuple[object, ...], tuple[object, ...]]:
    """The links of receives from anyone, and those of the sends that they took, which nobody else waited for."""
    taken: dict[tuple[object, ...], tuple[object, ...]] = {}
    for key, (end, *_) in list(links.items()):
        if end.peer != _ANYONE:
            continue
        for other, (send, *more) in links.items():
            is_for_it = send.peer == end.call.rank and (send.tag, send.group) == (end.tag, end.group)
            if send.what == "send" and not more and is_for_it:
                links[other].append(end)
                taken[key] = other
                break
    return taken


def _exchange(end: _End, link: Sequence[_End], is_from_anyone: bool) -> Exchange:
    partners = sorted((other.call for other in link if other is not end), key=lambda call: (call.rank, call.index))
    ranks = tuple(sorted({other.call.rank for other in link})) if is_from_anyone else end.ranks
    return Exchange(end.call, end.what, ranks, tuple(partners))


@dataclass(frozen=True, eq=False)
class _End:
    """The part of one call in one exchange."""

    call: CollectiveCall
    what: str
    key: tuple[object, ...]
    """What the parts of all ranks have in common, and other exchanges have not, but for their order."""
    ranks: tuple[int, ...]
    peer: int | None = None
    tag: int = 0
    group: str = ""
    """The group of a send or receive, as `_identity` has it."""


def _ends(call: CollectiveCall, ranks: Sequence[int]) -> list[_End]:
    name = function_name(call.record)
    group = group_of(call.inputs)
    in_batch = [item.peer for item in call.inputs if item.peer is not None and item.state == INPUT]
    if in_batch:
        world = (None, _id_of(ranks))
        return [
            _point_to_point(
                call, str(what), _whole_number(peer), _whole_number(tag) or 0, "" if named in world else str(named)
            )
            for what, peer, tag, named, *_ in in_batch
        ]
    if "send" in name or "recv" in name:
        peer = _peer(call, "dst" if "send" in name else "src", group)
        return [_point_to_point(call, name, peer, _tag(call), _identity(group, ranks))]
    members = tuple(ranks) if group is None else group
    return [_End(call, name, (name, members), members if isinstance(members, tuple) else (call.rank,))]


def _point_to_point(call: CollectiveCall, name: str, peer: int | None, tag: int, group: str) -> _End:
    # Messages of different groups do not overtake each other, so that they may have the same tag.
    is_send = "send" in name
    what = "send" if is_send else "recv"
    if peer is None or peer == _ANYONE:
        key: tuple[object, ...] = (what, call.rank, "anyone", tag, group)
        return _End(call, what, key, (call.rank,), None if is_send else _ANYONE, tag, group)
    source, destination = (call.rank, peer) if is_send else (peer, call.rank)
    key = ("point to point", source, destination, tag, group)
    return _End(call, what, key, tuple(sorted((call.rank, peer))), peer, tag, group)


def _identity(group: Group | None, ranks: Sequence[int]) -> str:
    """The group as calls tell it, whether they name it or its ranks; empty of the group of all ranks."""
    if isinstance(group, tuple):
        return "" if set(group) >= set(ranks) else _id_of(group)
    return group or ""


def _id_of(ranks: Sequence[int]) -> str:
    """What a dump calls the group of these ranks."""
    return f"{zlib.crc32(str(list(ranks)).encode()):08x}"


def group_of(items: Iterable[Item]) -> Group | None:
    """The group that a call names among its inputs; ``None`` where it names none, and means all ranks."""
    for item in items:
        if item.state != INPUT:
            continue
        if item.dtype == "torch.ProcessGroup":
            return tuple(int(text) for text in _RANKS.findall(str(item.value)))
        if item.name.endswith(".input.group") and isinstance(item.value, str):
            return None if item.value in _WORLD else item.value
    return None


def _argument(call: CollectiveCall, name: str) -> Item | None:
    return next((item for item in call.inputs if item.name.rpartition(".")[2] == name), None)


def _peer(call: CollectiveCall, name: str, group: Group | None) -> int | None:
    # The first argument is the tensor, the second one the peer.
    item = _argument(call, name) or _argument(call, "1")
    if item is not None:
        return _whole_number(item.value)
    in_group = _argument(call, f"group_{name}")
    number = None if in_group is None else _whole_number(in_group.value)
    if number is not None and isinstance(group, tuple) and number < len(group):
        return group[number]
    # The peer that a call leaves out is rank 0 in MindSpore, and anyone in PyTorch.
    return 0 if number is None and call.record.startswith("MintDistributed.") else number


def _tag(call: CollectiveCall) -> int:
    # The fourth argument, after the group.
    item = _argument(call, "tag") or _argument(call, "3")
    return (_whole_number(item.value) if item is not None else None) or 0


def _whole_number(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isdigit() else None
