"""The nodes that msProbe takes for pairs."""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Sequence

from probe.common.dump.naming import parse
from probe.graph.graph import API, Graph


def msprobe_pairs(target: Graph, golden: Graph, fuzzy: bool = False) -> array[int]:
    """The golden run's node of each node of the target; -1 without one.

    Two nodes are a pair if they have the same name and so have all nodes around them. With `fuzzy`, calls of APIs that
    are directly inside of a pair are paired in the order in which each API is called, whatever their numbers.
    """
    found = array("i", [-1]) * len(target)
    found[-1] = len(golden) - 1
    # The last node is the root, and each one comes before what is inside of it.
    for node in range(len(target) - 1, -1, -1):
        other = found[node]
        if other >= 0:
            _pair_inside(found, target, target.children[node], golden, golden.children[other], fuzzy)
    return found


def _pair_inside(
    found: array[int], target: Graph, nodes: Sequence[int], golden: Graph, others: Sequence[int], fuzzy: bool
) -> None:
    left: dict[str, deque[int]] = defaultdict(deque)
    for other in others:
        left[_key(golden, other, fuzzy)].append(other)
    for node in nodes:
        same = left.get(_key(target, node, fuzzy))
        if same:
            found[node] = same.popleft()


def _key(graph: Graph, node: int, fuzzy: bool) -> str:
    """The common key of both nodes of a pair: the name, or the name of the API and its direction."""
    name = graph.names[node]
    parsed = parse(name) if fuzzy and graph.kinds[node] == API else None
    return name if parsed is None else f"{parsed.base} {parsed.direction}"
