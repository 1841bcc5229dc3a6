"""Pairs of nodes of the target and the golden run.

Calls with values are paired as ``compare`` pairs them. What has no values, a call below the chosen level, a group, is
paired inside of nodes that are a pair: by the same name first, and what is left by the order of its kinds.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from probe.graph.graph import Graph
from probe.graph.manual_pairs import in_order
from probe.graph.status import ALIGNED, ALONE, EXACT, MANUAL


class Pairs(NamedTuple):
    """The pairs of two graphs, an entry for each node of the target."""

    golden: array[int]
    """The node of the golden run; -1 where there is none."""
    reasons: bytearray


def paired(
    target: Graph,
    golden: Graph,
    calls: Iterable[tuple[str, str]],
    judged: tuple[set[str], set[str]],
    reason: int = ALIGNED,
    manual: Mapping[int, int] | None = None,
) -> Pairs:
    """The pairs of two graphs.

    Args:
        target, golden: the graphs.
        calls: the names of the calls that ``compare`` holds against each other.
        judged: the names of the calls of both sides of which it has decided: those without a partner stay without.
        reason: why calls of other names are a pair.
        manual: pairs made by hand, of nodes whether or not they have values.
    """
    pairs = _Pairs(target, golden, judged)
    for mine, theirs in (manual or {}).items():
        pairs.add(mine, theirs)
    mine_of, theirs_of = target.index.get, golden.index.get
    for name, golden_name in calls:
        pairs.add(mine_of(name, -1), theirs_of(golden_name, -1))
    pairs.add(len(target) - 1, len(golden) - 1)
    pairs.add_modules_around()
    pairs.add_inside()
    return Pairs(pairs.golden_of, _reasons(target, golden, pairs.golden_of, reason, set(manual or ())))


class _Pairs:
    def __init__(self, target: Graph, golden: Graph, judged: tuple[set[str], set[str]]) -> None:
        self._target, self._golden = target, golden
        self.golden_of = array("i", [-1]) * len(target)
        self._target_of = array("i", [-1]) * len(golden)
        self._decided = tuple(
            bytearray(name in names for name in graph.names) for graph, names in zip((target, golden), judged)
        )

    def add(self, mine: int, theirs: int) -> None:
        """Make two nodes a pair, if both are there and neither has a partner."""
        if mine >= 0 and theirs >= 0 and self.golden_of[mine] < 0 and self._target_of[theirs] < 0:
            self.golden_of[mine] = theirs
            self._target_of[theirs] = mine

    def _is_open(self, side: int, node: int) -> bool:
        partners = self._target_of if side else self.golden_of
        return partners[node] < 0 and not self._decided[side][node]

    def add_modules_around(self) -> None:
        """Pair nodes without values that are around calls which are pairs, with the one around most of the partners."""
        votes: dict[int, Counter[int]] = {}
        is_open = self._open(0)
        golden_of, around = self.golden_of, self._golden.parents
        # Inside comes before around, so that each node knows of all that is inside when its turn comes.
        for mine, parent in enumerate(self._target.parents):
            if mine in votes:
                found = votes.pop(mine)
                theirs = max(found, key=lambda node: (found[node], -node))
                if self._is_open(1, theirs) and self._target.kinds[mine] == self._golden.kinds[theirs]:
                    self.add(mine, theirs)
            theirs = golden_of[mine]
            if theirs >= 0 and parent >= 0 and is_open[parent] and around[theirs] >= 0:
                votes.setdefault(parent, Counter())[around[theirs]] += 1

    def _open(self, side: int) -> bytearray:
        partners = self._target_of if side else self.golden_of
        return bytearray([other < 0 and not decided for other, decided in zip(partners, self._decided[side])])

    def add_inside(self) -> None:
        """Pair what is left inside of each pair."""
        is_open, is_other_open = self._open(0), self._open(1)
        # Most nodes have nothing inside that is left.
        around = {self._target.parents[node] for node, left in enumerate(is_open) if left}
        for mine in sorted(around, reverse=True):
            theirs = self.golden_of[mine] if mine >= 0 else -1
            if theirs < 0:
                continue
            left = [node for node in self._target.children[mine] if is_open[node]]
            other_left = [node for node in self._golden.children[theirs] if is_other_open[node]] if left else []
            if left and other_left:
                self._add_by_name(left, other_left)
                left = [node for node in left if self.golden_of[node] < 0]
                other_left = [node for node in other_left if self._target_of[node] < 0]
                for node, other in in_order(self._target, left, self._golden, other_left):
                    self.add(node, other)

    def _add_by_name(self, nodes: Sequence[int], others: Sequence[int]) -> None:
        there = {self._golden.names[node]: node for node in others}
        for node in nodes:
            self.add(node, there.get(self._target.names[node], -1))


def _reasons(target: Graph, golden: Graph, golden_of: array[int], reason: int, manual: set[int]) -> bytearray:
    found = bytearray(len(target))
    for node in range(len(target) - 1, -1, -1):
        other, parent = golden_of[node], target.parents[node]
        if other < 0:
            found[node] = ALONE
        elif node in manual:
            found[node] = MANUAL
        elif target.names[node] != golden.names[other]:
            found[node] = reason
        elif parent < 0 or (found[parent] == EXACT and golden_of[parent] == golden.parents[other]):
            found[node] = EXACT
        else:
            found[node] = reason
    return found
