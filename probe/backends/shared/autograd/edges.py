"""The edges of the gradient graph that lead from inside a call to its inputs; plain functions over a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Optional

from typing_extensions import TypeAlias

from probe.backends.shared.autograd.graph import LEAF_NUMBER, Cut, Edge, GradientGraph, Writes

End: TypeAlias = tuple[Optional[int], Any]
"""The begin of a call's backward: the index of the output, ``None`` for a tensor that was written and not returned, and
its gradient edge."""
Crossing: TypeAlias = tuple[Any, int, Sequence[int], Optional[Cut]]
"""An edge from inside a call to its inputs: the node inside, its slot, the inputs, and their part of the gradient."""
NodeCrossing: TypeAlias = tuple[int, Sequence[int], Optional[Cut]]
"""An edge from inside a call, of a known node: its slot, the inputs, and their part of the gradient."""


def unreturned(writes: Writes, ends: list[End]) -> list[End]:
    """The edges of what a call wrote that are of nothing it returned."""
    returned = {edge[:2] for _, edge in ends}
    return [(None, edge) for edge in dict.fromkeys(writes.after) if edge not in returned]


def find_crossings(
    graph: GradientGraph, ends: list[End], inputs: dict[Any, list[int]], entered_at: int
) -> list[Crossing]:
    """The edges from inside the call to its inputs."""
    found: list[Crossing] = []
    if not inputs:
        return found
    next_edges_of, number_of = graph.next_edges, graph.number
    parts: dict[Edge, list[Any]] = {}
    for given in inputs:
        if len(given) == 3:
            parts.setdefault(given[:2], []).append(given)
    seen: set[Any] = set()
    # An output that is an input is where the walk ends; all of its gradient is seen by the pre-hook there.
    returned = {edge for _, edge in ends if edge in inputs}
    ahead: list[Any] = [edge[0] for _, edge in ends if edge not in returned]
    while ahead:
        node = ahead.pop()
        if node in seen:
            continue
        seen.add(node)
        for slot, edge in enumerate(next_edges_of(node)):
            following = edge[0]
            if following is None:
                continue
            indices = inputs.get(edge)
            if indices is not None:
                if edge not in returned:
                    found.append((node, slot, indices, None))
            # A leaf leads nowhere.
            elif following not in seen and entered_at <= number_of(following) < LEAF_NUMBER:
                ahead.append(following)
            if parts:
                found += [(node, slot, inputs[part], part[2]) for part in parts.get(edge, ()) if part not in returned]
    graph.walked(seen)
    return found


def separate_arguments(crossings: list[Crossing]) -> list[Crossing]:
    """Give each argument its own edge where as many edges lead to a tensor as it was given times, in their order."""
    edges: dict[int, list[int]] = {}
    for at, (_, _, indices, _) in enumerate(crossings):
        edges.setdefault(id(indices), []).append(at)
    for found in edges.values():
        indices = crossings[found[0]][2]
        if 1 < len(indices) == len(found):
            for index, at in zip(indices, found):
                node, slot, _, cut = crossings[at]
                crossings[at] = node, slot, [index], cut
    return crossings


def in_several(groups: Iterable[Sequence[int]]) -> set[int]:
    """The members of more than one of `groups`."""
    several: set[int] = set()
    seen: set[int] = set()
    for group in groups:
        several.update(seen.intersection(group))
        seen.update(group)
    return several


def ends_by_node(ends: list[End]) -> dict[Any, list[End]]:
    nodes: dict[Any, list[End]] = {}
    for index, edge in ends:
        nodes.setdefault(edge[0], []).append((index, edge))
    return nodes


def crossings_by_node(crossings: list[Crossing]) -> dict[Any, list[NodeCrossing]]:
    nodes: dict[Any, list[NodeCrossing]] = {}
    for node, slot, indices, cut in crossings:
        nodes.setdefault(node, []).append((slot, tuple(indices), cut))
    return nodes
