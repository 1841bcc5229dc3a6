"""The rows of a comparison: the nodes of the target in their order, and between them those of the golden run alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from probe.graph.graph import Graph

Integers = NDArray[np.int64]


def merged_order(target: Graph, golden: Graph | None, pairs: Sequence[int]) -> tuple[Integers, Integers]:
    """The target's and the golden run's node of each row, -1 where a side has none; the roots share the last row.

    What the golden run has alone stands where it would be: inside of the node that its parent is paired with, behind
    what its predecessor is paired with.

    Args:
        pairs: the golden node of each node of the target, or -1.
    """
    rows = np.arange(len(target), dtype=np.int64)
    if golden is None:
        return rows, np.full(len(target), -1, dtype=np.int64)
    golden_rows = np.array(pairs, dtype=np.int64)
    root = len(golden) - 1
    golden_rows[golden_rows == root] = -1
    golden_rows[-1] = root
    partners = np.full(len(golden), -1, dtype=np.int64)
    paired = np.flatnonzero(golden_rows >= 0)
    partners[golden_rows[paired]] = paired
    alone = np.flatnonzero(partners < 0)
    if not len(alone):
        return rows, golden_rows
    sort_keys = _sort_keys(target, golden, partners.tolist(), alone.tolist())
    before = np.array([sort_keys[node][0] for node in sorted(sort_keys, key=sort_keys.__getitem__)], dtype=np.int64)
    inserted = np.array(sorted(sort_keys, key=sort_keys.__getitem__), dtype=np.int64)
    return np.insert(rows, before, -1), np.insert(golden_rows, before, inserted)


def _sort_keys(
    target: Graph, golden: Graph, partners: Sequence[int], alone: Sequence[int]
) -> dict[int, tuple[int, int, int, int]]:
    """Before which node of the target each node of the golden run alone stands, and in which order there.

    A node and what is inside of it, of the golden run alone too, stand together.
    """
    sort_keys: dict[int, tuple[int, int, int, int]] = {}
    predecessors: dict[int, dict[int, int]] = {}
    for node in reversed(alone):
        parent = golden.parents[node]
        if parent in sort_keys:
            sort_keys[node] = (*sort_keys[parent][:3], node)
            continue
        around = partners[parent]
        if parent not in predecessors:
            predecessors[parent] = _predecessors(target, golden, partners, parent)
        behind = predecessors[parent][node]
        if behind >= 0:
            # A node's successors come before the first node inside the next one.
            sort_keys[node] = behind + 1, -1, node, node
        else:
            sort_keys[node] = target.firsts[around], target.depths[around], node, node
    return sort_keys


def _predecessors(target: Graph, golden: Graph, partners: Sequence[int], parent: int) -> dict[int, int]:
    """The target's node after which each golden-only node inside `parent` comes; -1 if it is the first."""
    found: dict[int, int] = {}
    behind, around = -1, partners[parent]
    for child in golden.children[parent]:
        partner = partners[child]
        if partner < 0:
            found[child] = behind
        elif target.parents[partner] == around:
            behind = partner
    return found


def parent_offsets(target: Graph, golden: Graph | None, targets: Integers, goldens: Integers) -> Integers:
    """The number of rows from the parent down to each row; 0 of the root."""
    rows = np.arange(len(targets), dtype=np.int64)
    has_target = targets >= 0
    row_of_target = rows[has_target]
    above = np.array(target.parents, dtype=np.int64)[targets[has_target]]
    parents = rows.copy()
    parents[has_target] = np.where(above >= 0, row_of_target[above], row_of_target)
    if golden is not None and not has_target.all():
        row_of_golden = np.full(len(golden), -1, dtype=np.int64)
        has_golden = goldens >= 0
        row_of_golden[goldens[has_golden]] = rows[has_golden]
        alone = ~has_target
        parents[alone] = row_of_golden[np.array(golden.parents, dtype=np.int64)[goldens[alone]]]
    return parents - rows
