"""Which edges of the gradient graph lead from inside a call to its inputs; plain functions over a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Optional

from probe.backends.shared.autograd.graph import LEAF_NUMBER, Cut, Edge, Graph, Writes

_Crossed = list[tuple[int, Sequence[int], Optional[Cut]]]
"""Slots, places of the input, and the part they have."""
_End = tuple[Optional[int], Any]
"""Where a call's backward begins: the place of the output, if it is one, and in the graph."""
_Crossing = tuple[Any, int, list[int], Optional[Cut]]
"""A node inside, its slot, places of the input, and their part of what flows there."""


def _unreturned(writes: Writes, ends: list[_End]) -> list[_End]:
    """Where the gradients of what a call wrote arrive, and no gradient of what it returned."""
    returned = {place[:2] for _, place in ends}
    return [(None, edge) for edge in dict.fromkeys(writes.after) if edge not in returned]


def _crossings(graph: Graph, ends: list[_End], inputs: dict[Any, list[int]], entered_at: int) -> list[_Crossing]:
    """The edges from inside the call to its inputs."""
    found: list[_Crossing] = []
    if not inputs:
        return found
    following_of, number_of = graph.following, graph.number
    parts: dict[Edge, list[Any]] = {}
    for place in inputs:
        if len(place) == 3:
            parts.setdefault(place[:2], []).append(place)
    seen: set[Any] = set()
    # An output that is an input is where the walk ends; its gradient, with all that flows there, is seen on arrival.
    returned = {place for _, place in ends if place in inputs}
    ahead: list[Any] = [place[0] for _, place in ends if place not in returned]
    while ahead:
        node = ahead.pop()
        if node in seen:
            continue
        seen.add(node)
        for slot, edge in enumerate(following_of(node)):
            following = edge[0]
            if following is None:
                continue
            places = inputs.get(edge)
            if places is not None:
                if edge not in returned:
                    found.append((node, slot, places, None))
            # A leaf leads nowhere.
            elif following not in seen and entered_at <= number_of(following) < LEAF_NUMBER:
                ahead.append(following)
            if parts:
                found += [(node, slot, inputs[part], part[2]) for part in parts.get(edge, ()) if part not in returned]
    graph.walked(seen)
    return found


def _told_apart(crossings: list[_Crossing]) -> list[_Crossing]:
    """Where as many edges lead to an input as it has places, each edge is one place's, in their order."""
    edges: dict[int, list[int]] = {}
    for at, (_, _, places, _) in enumerate(crossings):
        edges.setdefault(id(places), []).append(at)
    for found in edges.values():
        places = crossings[found[0]][2]
        if 1 < len(places) == len(found):
            for place, at in zip(places, found):
                node, slot, _, cut = crossings[at]
                crossings[at] = node, slot, [place], cut
    return crossings


def _in_several(groups: Iterable[Sequence[int]]) -> set[int]:
    """What is in more than one of `groups`."""
    several: set[int] = set()
    seen: set[int] = set()
    for group in groups:
        several.update(seen.intersection(group))
        seen.update(group)
    return several


def _by_node(ends: list[_End]) -> dict[Any, list[_End]]:
    nodes: dict[Any, list[_End]] = {}
    for index, place in ends:
        nodes.setdefault(place[0], []).append((index, place))
    return nodes


def _crossings_by_node(crossings: list[_Crossing]) -> dict[Any, _Crossed]:
    nodes: dict[Any, _Crossed] = {}
    for node, slot, indices, cut in crossings:
        nodes.setdefault(node, []).append((slot, tuple(indices), cut))
    return nodes
