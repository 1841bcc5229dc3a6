"""Numbers that decide a function of one program, and that no call of the other program takes in the same layer.

One program calls `rms_norm` with an epsilon, the other adds the epsilon to a mean: the calls are no pair, so that no
argument is compared with another. The number itself has to be there on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property

from probe.common.dump.naming import function_name, is_forward, is_module
from probe.common.dump.reading.records import Item
from probe.common.dump.reading.sources import Tree
from probe.common.operations.signatures import argument_name
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.effects import GOLDEN, TARGET
from probe.compare.divergence.search.runs import Runs
from probe.compare.result import Difference

_DECIDING = frozenset(("eps", "scale"))
"""Arguments that programs without this function write as a number of another call."""
_SAME = 1e-6
"""The relative difference of two numbers that are one, computed in two ways. A guess, near the roundoff of float32."""
_SIDES = "target", "golden run"


class OtherNumbers:
    """Finds numbers that one program alone takes.

    Args:
        runs: the runs, of two programs in one framework.
    """

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._trees: tuple[Tree, Tree] = (runs.tree, runs.golden_tree)

    def found(self) -> Iterator[Difference]:
        """A difference for each such number."""
        for call in self._runs.made:
            names = function_name(call.record or ""), function_name(call.golden_record or "")
            if names[TARGET] == names[GOLDEN]:
                continue  # Its arguments are compared one by one.
            for side in (TARGET, GOLDEN):
                record = (call.record, call.golden_record)[side]
                if record is None or not is_forward(record) or is_module(record):
                    continue
                others = self._numbers_there(record, side)
                for name, item in _deciding(call, record, side) if others else ():
                    if not any(_is_same(float(item.value), other) for other in others):
                        reason = f"{name} is {item.value}, and no call in this layer of the {_SIDES[1 - side]} takes it"
                        yield Difference(call.record or "", call.golden_record or "", item.name, reason)

    def _numbers_there(self, record: str, side: int) -> list[float]:
        """The numbers that calls of the other side take in the layer that corresponds to the one around `record`."""
        around, seen = self._trees[side].get(record), set[str]()
        while around and around not in seen:
            seen.add(around)
            if around in self._counterparts[side]:
                return self._numbers[1 - side].get(self._counterparts[side][around], [])
            around = self._trees[side].get(around)
        return []

    @cached_property
    def _counterparts(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        pairs = [
            (call.record, call.golden_record)
            for call in self._runs.calls
            if call.record and call.golden_record and is_module(call.record) and is_forward(call.record)
        ]
        return dict(pairs), {golden: target for target, golden in pairs}

    @cached_property
    def _numbers(self) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """The plain numbers that functions take, by each module around them, of both sides."""
        found: tuple[dict[str, list[float]], dict[str, list[float]]] = {}, {}
        for call in self._runs.made:
            for side, record in ((TARGET, call.record), (GOLDEN, call.golden_record)):
                if record is None or not is_forward(record) or is_module(record):
                    continue
                numbers = [float(item.value) for item in _plain(call, side)]
                around, seen = self._trees[side].get(record), set[str]()
                while around and around not in seen and numbers:
                    seen.add(around)
                    found[side].setdefault(around, []).extend(numbers)
                    around = self._trees[side].get(around)
        return found


def _plain(call: AlignedCall, side: int) -> Iterator[Item]:
    """The finite plain numbers that a call takes on one side, truth values left out."""
    for row in call.rows:
        item = (row.target, row.golden)[side]
        if item is None or item.is_tensor or not is_input(row):
            continue
        if type(item.value) in (int, float) and math.isfinite(item.value):
            yield item


def _deciding(call: AlignedCall, record: str, side: int) -> Iterator[tuple[str, Item]]:
    for item in _plain(call, side):
        name = argument_name(record, item.name[len(record) + 1 :])
        if name in _DECIDING and item.value:
            yield name, item


def _is_same(number: float, other: float) -> bool:
    """True if two numbers are one, or its reciprocal, or one is the square of the other: scales are written so."""
    if not other:
        return False
    size = abs(other)
    return any(math.isclose(abs(number), each, rel_tol=_SAME) for each in (size, 1 / size, size**0.5, size**-0.5))
