"""Calls that take other elements, or other numbers of them, because a choice before differs.

An index or a mask is followed from the call that chose to those that take it. Where it takes elements of a tensor in
code that is not recorded, as ``h[t]``, the result has the length of the index.
"""

from __future__ import annotations

from probe.common.align.calls import Row
from probe.common.dump.naming import FORWARD
from probe.common.dump.reading.records import Item
from probe.compare.verdict.decisions import decisions
from probe.compare.verdict.facts import Call, distance, is_compared, is_rounded
from probe.compare.verdict.two_runs import Origin, TwoRuns, base_of

_Sizes = tuple[int, int]
"""The sizes of one axis in the target and in the golden run."""


class OtherElements:
    """Follows the choices of one program that differ in two runs, for all that is known because of the values.

    What a call with other elements returns cannot be told from its inputs. A result that both runs have in one size is
    compared again, so that calls behind it are judged by how far apart it is.

    Args:
        runs: the runs.
    """

    def __init__(self, runs: TwoRuns) -> None:
        self._runs = runs
        chosen = list(decisions(runs))
        self._choosing = {runs.by_record[each.record].index for each in chosen}
        turned = (each for each in chosen if each.differing and each.is_explained is not False)
        self._turned = {runs.by_record[each.record].index for each in turned}
        self._modules: dict[str, int] = {}
        """By module, by its name without a number: the index of the first call in it that has chosen otherwise."""
        for index in sorted(self._turned):
            self._modules.setdefault(base_of(runs.parent(runs.calls[index]) or ""), index)
        self.calls: set[int] = set()
        """The calls, by their indexes, that take other elements or the index of them, and their backwards."""
        self.inputs: set[str] = set()
        """The inputs in the target whose elements code without a record took by an index that differs."""
        self._reached: tuple[set[str], set[str]] = (set(), set())
        """The items of target and golden run that hold other choices or, in another shape, other elements."""
        self._lengths: set[_Sizes] = set()
        """The lengths of the indices that follow from the last choices."""
        for call in runs.calls if self._turned and runs.same_names else ():
            self._follow(call)

    def is_behind_a_choice(self, call: Call, parent: str) -> bool:
        """True if a call in the module `parent` has chosen otherwise before this one."""
        return bool(parent) and self._modules.get(base_of(parent), call.index) < call.index

    def _follow(self, call: Call) -> None:
        if not call.is_forward:
            forward = self._runs.in_direction(call, FORWARD)
            if forward is not None and (forward.index in self.calls or forward.index in self._turned):
                self.calls.add(call.index)
            return
        if call.index in self._choosing:
            self._lengths.clear()
        are_of_others = [self._is_of_others(call, row) for row in call.inputs]
        if any(are_of_others):
            self.calls.add(call.index)
        elif call.index not in self._turned:
            return
        for row in call.outputs:
            if not is_compared(row) or (distance(row) and not is_rounded(row)):
                self._reach(row)

    def _reach(self, row: Row) -> None:
        for names, item in zip(self._reached, _tensors(row)):
            if item is not None:
                names.add(item.name)
        sizes = _sizes(row)
        if not is_rounded(row) and len(sizes) == 1:
            self._lengths.update(sizes)

    def _is_of_others(self, call: Call, row: Row) -> bool:
        """True if an input holds other choices, or has another shape because of them."""
        sides = zip(self._runs.graphs, _tensors(row))
        sources = [None if item is None else graph.source(item) for graph, item in sides]
        if any(each is not None and each.name in names for each, names in zip(sources, self._reached)):
            return True
        if any(each is None or each.origin is not Origin.UNKNOWN for each in sources):
            return False
        sizes = _sizes(row)
        others = {each for each in sizes if each[0] != each[1]}
        if others:
            around = (self.is_behind_a_choice(call, each.record or "") for each in self._runs.around(call))
            return others <= self._lengths or any(around)
        if row.target is not None and distance(row) and sizes and sizes[0] in self._lengths:
            self.inputs.add(row.target.name)
        return False


def _tensors(row: Row) -> tuple[Item | None, Item | None]:
    """The tensors of target and golden run."""
    target, golden = (item if item is not None and item.is_tensor else None for item in (row.target, row.golden))
    return target, golden


def _sizes(row: Row) -> list[_Sizes]:
    """The sizes of each axis in both runs; empty where one run has no such tensor, or the axes are not as many."""
    mine, theirs = (() if item is None else item.shape or () for item in _tensors(row))
    return list(zip(mine, theirs)) if len(mine) == len(theirs) else []
