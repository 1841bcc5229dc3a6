"""The communication calls of different ranks that belong together.

Sends and receives belong together by peer, tag, group and order, collective calls by their name, group and order.
`exchanges` says what each call exchanges with which others, and which values travel. In which order they happened says
`probe.common.collectives.event_graph`.
"""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from probe.common.collectives.calls import (
    BARRIER,
    BATCH,
    FROM_ONE,
    MINT,
    PRIMITIVES,
    RECV,
    SEND,
    TO_ONE,
    CollectiveCall,
    Flow,
    Group,
    argument,
    collective_call,
    flow_of,
    flow_of_operation,
    forward_of,
    group_of,
    is_among,
    is_backward,
    is_communication,
    named_group,
    without_statistics,
)
from probe.common.dump.reading.records import INPUT, Item

__all__ = [
    "CollectiveCall", "Exchange", "Flow", "Group", "collective_call", "exchanges", "group_of", "is_among",
    "is_communication", "meaningful", "receives", "undefined", "without_statistics",
]  # fmt: skip

_ANYONE = -1
"""The peer of a receive that takes what comes first."""


@dataclass(frozen=True)
class Exchange:
    """One exchange with other ranks: a collective call does one, a batch of sends and receives several."""

    call: CollectiveCall
    what: str
    """``send``, ``recv``, or the name of the collective: ``all_reduce``."""
    ranks: tuple[int, ...]
    """The ranks that take part as far as the call says, its own one too."""
    members: tuple[CollectiveCall, ...]
    """The calls of all ranks that belong to it, its own one too, in the order of ranks; one object for all of them."""
    sources: tuple[int, ...] = ()
    """The ranks of whose inputs its result is made, its own one too where it gives some; none where it has no result
    on its rank, as a send or a reduce to another rank."""
    flow: Flow = field(default_factory=Flow)
    """The values of it that travel."""

    @property
    def partners(self) -> tuple[CollectiveCall, ...]:
        """The calls of other ranks that belong to it, in the order of ranks."""
        at = next((index for index, call in enumerate(self.members) if call is self.call), len(self.members))
        return (*self.members[:at], *self.members[at + 1 :])

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that should have a call that belongs to this one, and have none."""
        there = {call.rank for call in self.members}
        return tuple(rank for rank in self.ranks if rank not in there)


def receives(call: CollectiveCall) -> frozenset[str]:
    """The names of the inputs of a call whose content before it means nothing, such as the buffer of a receive."""
    begins = [name for end in _ends(call, _Ranks.of([[call]], ())) for name in end.flow.receives]
    return frozenset(item.name for item in call.inputs if is_among(item.name, begins))


def undefined(call: CollectiveCall, outputs: Iterable[Item]) -> frozenset[str]:
    """The names of those `outputs` of a call whose content means nothing, as of a reduce to another rank."""
    begins = [name for end in _ends(call, _Ranks.of([[call]], ())) for name in end.flow.undefined]
    return frozenset(item.name for item in outputs if is_among(item.name, begins))


def meaningful(call: CollectiveCall) -> list[Item]:
    """The items of a call but for those whose content means nothing."""
    ignored = receives(call) | undefined(call, call.inputs)
    return [item for item in call.inputs if item.name not in ignored]


def exchanges(calls: Sequence[Sequence[CollectiveCall]], ranks: Sequence[int]) -> list[Exchange]:
    """The exchanges of every call, and the calls of other ranks in them, rank by rank in order.

    The n-th send to a rank with a tag belongs to the n-th receive from there with this tag, the n-th call of a
    collective in a group to the n-th of the other ranks of the group. Asynchronous calls belong together in the order
    in which they were begun, whenever they are waited for. A call in a group that its rank is not in exchanges nothing.

    Args:
        calls: a list in order for each rank that was recorded.
        ranks: all ranks of the run as far as they are known; with those that calls name they are meant by calls that
            name no group.
    """
    known = _Ranks.of(calls, ranks)
    links: dict[tuple[object, ...], list[_End]] = {}
    ends: list[tuple[_End, tuple[object, ...]]] = []
    for of_rank in calls:
        seen: Counter[tuple[object, ...]] = Counter()
        for end in _ends_of_rank(of_rank, known):
            key = (*end.key, seen[end.key])
            seen[end.key] += 1
            ends.append((end, key))
            links.setdefault(key, []).append(end)
    taken = _taken_from_anyone(links)
    for link in links.values():
        link.sort(key=_by_rank)
    members = {key: tuple(end.call for end in link) for key, link in links.items()}
    return [_exchange(end, members[taken.get(key, key)], key in taken) for end, key in ends]


def _ends_of_rank(calls: Sequence[CollectiveCall], ranks: _Ranks) -> Iterator[_End]:
    forward: dict[str, CollectiveCall] = {}
    for call in calls:
        if is_backward(call.record):
            yield from _ends_of_backward(call, forward.get(forward_of(call.record)), ranks)
        else:
            forward[call.record] = call
            yield from _ends(call, ranks)


def _taken_from_anyone(links: dict[tuple[object, ...], list[_End]]) -> dict[tuple[object, ...], tuple[object, ...]]:
    """The links of receives from anyone, and those of the sends that they took, which nobody else waited for."""
    taken: dict[tuple[object, ...], tuple[object, ...]] = {}
    waiting = [(key, ends[0]) for key, ends in links.items() if ends[0].peer == _ANYONE]
    sends: dict[tuple[object, ...], deque[tuple[object, ...]]] = {}
    for key, (send, *more) in links.items() if waiting else ():
        if send.what == SEND and not more:
            sends.setdefault((send.peer, send.tag, send.group), deque()).append(key)
    for key, end in waiting:
        found = sends.get((end.call.rank, end.tag, end.group))
        if found:
            taken[key] = found.popleft()
            links[taken[key]].append(end)
    return taken


def _exchange(end: _End, members: tuple[CollectiveCall, ...], is_from_anyone: bool) -> Exchange:
    if not is_from_anyone:
        return Exchange(end.call, end.what, end.ranks, members, end.sources, end.flow)
    ranks = tuple(sorted({call.rank for call in members}))
    sources = tuple(call.rank for call in members if call is not end.call)
    return Exchange(end.call, end.what, ranks, members, sources, end.flow)


def _by_rank(end: _End) -> tuple[int, int]:
    return end.call.rank, end.call.index


@dataclass(frozen=True)
class _Ranks:
    """All ranks, and those of the groups of which dumps have the name only."""

    world: tuple[int, ...]
    named: Mapping[str, tuple[int, ...]]
    by_id: Mapping[str, tuple[int, ...]]
    """By the text that stands for a group in sends and receives of a batch."""

    @classmethod
    def of(cls, calls: Sequence[Sequence[CollectiveCall]], ranks: Sequence[int]) -> _Ranks:
        world = set(ranks)
        named: dict[str, set[int]] = {}
        groups: set[tuple[int, ...]] = set()
        for call in (call for of_rank in calls for call in of_rank):
            world.add(call.rank)
            group = call.group
            if isinstance(group, str):
                # Whoever calls it is in it, and dumps say no more.
                named.setdefault(group, set()).add(call.rank)
            elif group:
                groups.add(group)
                world.update(group)
        everyone = tuple(sorted(world))
        by_id = {_group_id(group): group for group in (*groups, everyone)}
        return cls(everyone, {name: tuple(sorted(members)) for name, members in named.items()}, by_id)

    def members(self, group: Group | None) -> tuple[int, ...]:
        if isinstance(group, str):
            return self.named.get(group, ())
        return self.world if group is None else group

    def group_of_id(self, group_id: object) -> Group | None:
        """The group of a send or receive in a batch."""
        named = named_group(group_id)
        return self.by_id.get(named, named) if isinstance(named, str) else named


def _group_id(group: tuple[int, ...]) -> str:
    return f"{zlib.crc32(str(list(group)).encode()):08x}"


@dataclass(frozen=True, eq=False)
class _End:
    """The part of one call in one exchange."""

    call: CollectiveCall
    what: str
    key: tuple[object, ...]
    """The key that the parts of all ranks share, apart from their order, and other exchanges do not."""
    ranks: tuple[int, ...]
    sources: tuple[int, ...]
    flow: Flow
    peer: int | None = None
    tag: int = 0
    group: Group = ()
    """The group of a send or receive."""


def _ends(call: CollectiveCall, ranks: _Ranks) -> list[_End]:
    in_batch = [item for item in call.inputs if item.peer is not None and item.state == INPUT]
    if in_batch:
        return [_end_in_batch(call, item.name, item.peer or (), ranks) for item in in_batch]
    group = call.group
    if group == ():
        return []
    members = ranks.members(group)
    function = call.function
    root = _root(call, None if group is None else members)
    if function.kind in (SEND, RECV):
        return [_point_to_point(call, function.kind == SEND, root, _tag(call), group, flow_of(call, None), ranks)]
    return [_collective(call, members, group, root)]


def _collective(call: CollectiveCall, members: tuple[int, ...], group: Group | None, root: int | None) -> _End:
    function = call.function
    if function.kind == BATCH:
        # Older dumps have nothing of its sends and receives. Not all ranks need to call it.
        what = call.api
        return _End(call, what, (what, call.rank), (call.rank,), members, flow_of(call, None))
    is_root = None if root is None else root == call.rank
    if function.kind == BARRIER or (function.kind in TO_ONE and is_root is False):
        sources: tuple[int, ...] = ()
    elif function.kind in FROM_ONE and root is not None:
        sources = (root,)
    else:
        sources = members
    name = call.api
    what = function.kind if name in PRIMITIVES else name
    key = (what, group if isinstance(group, str) else members)
    return _End(call, what, key, members, sources, flow_of(call, is_root))


def _end_in_batch(call: CollectiveCall, name: str, operation: Sequence[object], ranks: _Ranks) -> _End:
    what, peer, tag, group_id = (*operation, None, None, None, None)[:4]
    is_send = "send" in str(what)
    flow = flow_of_operation(call, name, is_send)
    group = ranks.group_of_id(group_id)
    return _point_to_point(call, is_send, _whole_number(peer), _whole_number(tag) or 0, group, flow, ranks)


def _point_to_point(
    call: CollectiveCall, is_send: bool, peer: int | None, tag: int, group: Group | None, flow: Flow, ranks: _Ranks
) -> _End:
    what = SEND if is_send else RECV
    # Messages of two groups never meet, even where they have the same tag.
    channel = group if isinstance(group, str) else ranks.members(group)
    if peer is None:
        key: tuple[object, ...] = (what, call.rank, "anyone", tag, channel)
        return _End(call, what, key, (call.rank,), (), flow, None if is_send else _ANYONE, tag, channel)
    source, destination = (call.rank, peer) if is_send else (peer, call.rank)
    key = ("point to point", source, destination, tag, channel)
    sources = () if is_send else (peer,)
    return _End(call, what, key, tuple(sorted({call.rank, peer})), sources, flow, peer, tag, channel)


def _ends_of_backward(call: CollectiveCall, forward: CollectiveCall | None, ranks: _Ranks) -> list[_End]:
    """Gradients travel the other way."""
    of_forward = _ends(forward, ranks) if forward is not None else []
    if forward is not None and not of_forward:
        return []
    flow = flow_of(call, None)
    what = f"{call.api} backward"
    if not of_forward:
        return [_End(call, what, (what, ranks.world), ranks.world, ranks.world, flow)]
    ends = []
    for end in of_forward:
        key = ("backward", *end.key)
        if end.what not in (SEND, RECV):
            ends.append(_End(call, what, key, end.ranks, () if end.key[0] == BARRIER else end.ranks, flow))
        else:
            sources = (end.peer,) if end.what == SEND and end.peer is not None else ()
            turned = RECV if end.what == SEND else SEND
            ends.append(_End(call, turned, key, end.ranks, sources, flow))
    return ends


def _root(call: CollectiveCall, members: tuple[int, ...] | None) -> int | None:
    """The rank that gives or gets, or the peer; without `members` the group is that of all ranks."""
    function = call.function
    if not function.root:
        return _guessed_root(call)
    item = argument(call, function.root)
    value = item.value if item is not None else call.attributes.get(function.root)
    number = _whole_number(value)
    if number is not None:
        return _in_group(number, members) if function.is_root_in_group else number
    in_group = argument(call, f"group_{function.root}")
    number = None if in_group is None else _whole_number(in_group.value)
    if number is not None:
        return _in_group(number, members)
    # In mindspore.mint a receive without a source is one from rank 0, in torch one from anyone.
    default = 0 if call.record.startswith(MINT) else function.default_root
    return default if default is None or not function.is_root_in_group else _in_group(default, members)


def _in_group(index: int, members: tuple[int, ...] | None) -> int | None:
    if members is None:
        return index
    return members[index] if index < len(members) else None


def _guessed_root(call: CollectiveCall) -> int | None:
    items = (argument(call, name) for name in ("src", "dst"))
    return next((_whole_number(item.value) for item in items if item is not None), None)


def _tag(call: CollectiveCall) -> int:
    item = argument(call, "tag")
    value = item.value if item is not None else call.attributes.get("sr_tag")
    return _whole_number(value) or 0


def _whole_number(value: object) -> int | None:
    text = str(value)
    # Whatever stands in a dump: other digits than ours, or more than a rank can have.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
