"""Where the fault of a case goes, drawn from what every rank did in a step without one, and what is then true."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from generated.cases import Case
from generated.communication import NOTHING, Event, Plant
from generated.planting import BACKWARD, FORWARD, MASKED, RECORDED_FORWARD, UNINITIALISED, UNRECORDED

BAD = (float("nan"), float("inf"), float("-inf"))


@dataclass
class Choice:
    """Where the faults of a case are."""

    plants: dict[int, Plant] = field(default_factory=dict)
    """By rank."""
    value: float = 0.0
    """What stands in the batch or in a weight."""
    fault: str = ""
    required: list[int] = field(default_factory=list)
    """The ranks that the first findings have to name, each the record at fault."""
    allowed: list[int] = field(default_factory=list)
    """Ranks whose record at fault may be named as well, and need not."""
    kinds: tuple[str, ...] = ()
    """Of what kind the findings are."""
    is_backward: bool = False
    """Whether the record at fault is the backward of the call that was marked."""
    picked: str = "innermost"
    """Which of the records that bear the mark: see `truth`."""

    def plant(self, rank: int) -> Plant:
        return self.plants.get(rank, NOTHING)


def choose(case: Case, events: Sequence[Sequence[Event]], modules: Sequence[Sequence[int]]) -> Choice:
    """Draw the place of the fault.

    Args:
        case: the training.
        events: what each rank did in a step without fault.
        modules: of each rank, which module each use was of.
    """
    draw = case.draw("place")
    if case.kind in ("forward", "backward", "uninitialised"):
        return _at_a_site(case, events, draw)
    if case.kind == "communication":
        return _overflow(events, draw)
    if case.kind == "data":
        return _data(case, draw)
    if case.kind in ("parameter", "optimizer"):
        return _parameter(case, modules, draw)
    if case.kind == "two":
        return _two(case, events, draw)
    if case.kind == "masked":
        return _masked(case, events, draw)
    return Choice(fault="nothing")


def _sites(case: Case, of_rank: Sequence[Event], needs_backward: bool = False) -> list[int]:
    """The numbers of the sites of a rank that a record of this level shows."""
    sites = (event[1:] for event in of_rank if event[0] == "site")
    return [
        number
        for number, is_module, has_backward in sites
        if (is_module or case.level != "L0") and (has_backward or not needs_backward)
    ]


def _drawn_site(
    case: Case, events: Sequence[Sequence[Event]], draw: random.Random, needs_backward: bool = False
) -> tuple[int, int]:
    """A rank and a site of it."""
    found = {rank: _sites(case, of_rank, needs_backward) for rank, of_rank in enumerate(events)}
    rank = draw.choice([rank for rank, sites in found.items() if sites])
    return rank, draw.choice(found[rank])


def _faults_at(of_rank: Sequence[Event], site: int) -> list[str]:
    """The forward faults that show at a site: where nothing comes of a value, the logarithm of 0 is a number."""
    is_used = any(event[:2] == ("site", site) and event[3] for event in of_rank)
    return [name for name in FORWARD if is_used or name != "log_of_one_zero"]


def _at_a_site(case: Case, events: Sequence[Sequence[Event]], draw: random.Random) -> Choice:
    rank, site = _drawn_site(case, events, draw, case.kind == "backward")
    if case.kind == "uninitialised":
        name = draw.choice(list(UNINITIALISED))
        return Choice(
            {rank: Plant({site: (case.kind, name)})}, fault=name, required=[rank],
            kinds=("uninitialised", "outside"), picked="any",
        )  # fmt: skip
    name = draw.choice(_faults_at(events[rank], site) if case.kind == "forward" else list(BACKWARD))
    if case.level == "L0" and name in RECORDED_FORWARD:
        name = "root_of_zero"
    kinds = ("outside",) if name in UNRECORDED and case.level != "L0" else ("origin",)
    is_backward = case.kind == "backward" and name not in RECORDED_FORWARD
    return Choice(
        {rank: Plant({site: (case.kind, name)})}, fault=name, required=[rank], kinds=kinds, is_backward=is_backward
    )


def _overflow(events: Sequence[Sequence[Event]], draw: random.Random) -> Choice:
    keys = sorted({event[1] for of_rank in events for event in of_rank if event[0] == "begin" and event[1][2]})
    # Kinds that there are few of are drawn as often as gradients.
    kind = draw.choice(sorted({key[0] for key in keys}))
    key = draw.choice([key for key in keys if key[0] == kind])
    ranks = list(key[1])
    # Only the destination of a reduction has the sum.
    required = ranks[:1] if kind == "reduce" else ranks
    return Choice(
        {rank: Plant(overflow=key) for rank in ranks}, fault=kind, required=required,
        allowed=[rank for rank in ranks if rank not in required], kinds=("communication",),
    )  # fmt: skip


def _data(case: Case, draw: random.Random) -> Choice:
    layout = case.layout
    replica = draw.randrange(layout.replicas)
    shard = 0 if case.broadcasts_input else draw.randrange(layout.shards)
    rank = layout.rank(0, replica, shard)
    value = draw.choice(BAD)
    return Choice(
        {rank: Plant(is_in_data=True)}, value, f"batch with {value}", [rank], kinds=("outside",), picked="first"
    )


def _parameter(case: Case, modules: Sequence[Sequence[int]], draw: random.Random) -> Choice:
    rank = draw.choice([number for number, of_rank in enumerate(modules) if of_rank])
    module = draw.choice(modules[rank])
    # The same step of the optimizer goes wrong on all replicas.
    ranks = list(case.layout.replica_group(rank)) if case.kind == "optimizer" or draw.random() < 0.4 else [rank]
    used = frozenset(number for number, other in enumerate(modules[rank]) if other == module)
    value = draw.choice(BAD)
    fault = "Adam" if case.kind == "optimizer" else f"weight with {value}"
    # Without modules nothing says what is a parameter.
    kinds = ("parameter", "outside") if case.level == "L1" else ("parameter",)
    return Choice({each: Plant(used=used) for each in ranks}, value, fault, ranks, kinds=kinds, picked="first")


def _two(case: Case, events: Sequence[Sequence[Event]], draw: random.Random) -> Choice:
    """Two faults on two ranks; the second has to be named where it can have nothing of the first."""
    first, site = _drawn_site(case, events, draw)
    others = [rank for rank, of_rank in enumerate(events) if rank != first and _sites(case, of_rank)]
    if not others:
        return _at_a_site(case, events, draw)
    reached = _reached(events, first, site)
    apart = [
        (rank, number)
        for rank in others
        for number in _sites(case, events[rank])
        if ("site", rank, number) not in reached and ("site", first, site) not in _reached(events, rank, number)
    ]
    second, other = draw.choice(apart or [(rank, number) for rank in others for number in _sites(case, events[rank])])
    names = draw.choice(_faults_at(events[first], site)), draw.choice(_faults_at(events[second], other))
    choice = Choice(
        {first: Plant({site: ("forward", names[0])}), second: Plant({other: ("forward", names[1])})},
        fault=" and ".join(names), required=[first, second], kinds=("origin", "outside"),
    )  # fmt: skip
    if not apart:
        # What came of the first may have reached the second, and is then all that is to be named.
        later = second if ("site", second, other) in reached else first
        choice.required, choice.allowed = [rank for rank in (first, second) if rank != later], [later]
    return choice


def _masked(case: Case, events: Sequence[Sequence[Event]], draw: random.Random) -> Choice:
    """A value of which nothing is left, alone or before a fault that shows."""
    rank, site = _drawn_site(case, events, draw)
    name = draw.choice(list(MASKED))
    choice = Choice({rank: Plant({site: ("masked", name)})}, fault=name, allowed=[rank], kinds=("origin", "outside"))
    others = [number for number in range(len(events)) if number != rank and _sites(case, events[number])]
    if others and draw.random() < 0.6:
        real = draw.choice(others)
        place = draw.choice(_sites(case, events[real]))
        fault = draw.choice(_faults_at(events[real], place))
        choice.plants[real] = Plant({place: ("forward", fault)})
        choice.required, choice.fault = [real], f"{name}, and {fault}"
    return choice


def _reached(events: Sequence[Sequence[Event]], rank: int, site: int) -> set[tuple[Any, ...]]:
    """The sites that can have something of what happened at a site, by what the ranks exchanged after it."""
    members: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for other, of_rank in enumerate(events):
        for index, event in enumerate(of_rank):
            if event[0] in ("end", "take"):
                members[event[1]].append((other, index))
    start = next(index for index, event in enumerate(events[rank]) if event[:2] == ("site", site))
    waiting, seen, found = deque([(rank, start)]), {(rank, start)}, set()
    while waiting:
        at, index = waiting.popleft()
        event = events[at][index]
        if event[0] == "site":
            found.add(("site", at, event[1]))
        for following in _following(events, members, at, index):
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


def _following(
    events: Sequence[Sequence[Event]], members: dict[Any, list[tuple[int, int]]], rank: int, index: int
) -> Iterator[tuple[int, int]]:
    if index + 1 < len(events[rank]):
        yield rank, index + 1
    event = events[rank][index]
    if event[0] in ("begin", "put"):
        yield from members[event[1]]


def plan_of(case: Case, choice: Choice) -> dict[str, Any]:
    """What `truth` reads."""
    return {
        "kind": case.kind, "fault": choice.fault, "level": case.level, "world": case.layout.world,
        "step": None if case.kind == "healthy" else case.fault_step, "required": choice.required,
        "allowed": choice.allowed, "kinds": choice.kinds, "is_backward": choice.is_backward, "picked": choice.picked,
    }  # fmt: skip


def bad_module(choice: Choice, rank: int) -> int | None:
    """The first use of the module whose weight is bad on this rank."""
    return min(choice.plant(rank).used, default=None)
