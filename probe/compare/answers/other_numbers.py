"""Numbers that decide a function of one program, and that no call of the other program takes in the same layer.

One program calls `rms_norm` with an epsilon, the other adds the epsilon to a mean: the calls are no pair, so that no
argument is compared with another. The number itself has to be there on both sides.

Where two runs of one program have other types, numbers are compared exactly that the program did not compute.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from probe.common.dump.naming import function_name, is_forward, is_module
from probe.common.dump.reading.call_tree import around
from probe.common.dump.reading.records import Item
from probe.common.dump.reading.sources import Tree
from probe.common.numerics.formats import unit_roundoff
from probe.common.operations.signatures import argument_name
from probe.compare.divergence import differences
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.effects import GOLDEN, TARGET
from probe.compare.divergence.search.runs import Runs
from probe.compare.result import Difference

_SCALE = "scale"
_DECIDING = frozenset(("eps", _SCALE))
"""Arguments that programs without this function write as a number of another call."""
_SAME = 1e-6
"""The relative difference of two numbers that are one, computed in two ways. A guess, near the roundoff of float32."""
_SIDES = "target", "golden run"
_DIGITS = 6
"""The digits of a number that a program has and did not compute. A guess; a computed one has 16."""


def written_numbers(runs: Runs, known: Sequence[Difference]) -> Iterator[Difference]:
    """Numbers of a program that differ by no more than values do in a short type.

    A number that the program has computed may differ so, such as the norm of gradients. One with few digits was written
    there, and is never rounded.

    Args:
        runs: the runs.
        known: differences that are known already.
    """
    if not runs.same_names or runs.across_frameworks or runs.precision.shortest <= unit_roundoff("float32"):
        return
    seen = {(each.record, each.item) for each in known}
    for call in runs.calls:
        record, golden_record = call.record or "", call.golden_record or ""
        for row in call.rows if record and golden_record and is_forward(record) and not is_module(record) else ():
            target, golden = row.target, row.golden
            if target is None or golden is None or not is_input(row) or (record, target.name) in seen:
                continue
            values = target.value, golden.value
            if all(map(_is_written, values)) and not math.isclose(*values, rel_tol=_SAME):
                reason = differences.of_argument(row, target, golden, runs.is_torch)
                names = record, golden_record, target.name
                yield Difference(*names, reason.text, labelled_reason=reason.labelled, values=reason.values)


def _is_written(value: object) -> bool:
    return type(value) is float and math.isfinite(value) and float(f"{value:.{_DIGITS}g}") == value


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
                    width = _width(call, side)
                    if not any(_is_same(name, float(item.value), other, width) for other in others):
                        reason = f"{name} is {item.value}, and no call in this layer of the {_SIDES[1 - side]} takes it"
                        yield Difference(call.record or "", call.golden_record or "", item.name, reason)

    def _numbers_there(self, record: str, side: int) -> list[float]:
        """The numbers that calls of the other side take in the layer that corresponds to the one around `record`."""
        matched = self._counterparts[side]
        module = next((each for each in around(self._trees[side], record) if each in matched), None)
        return [] if module is None else self._numbers[1 - side].get(matched[module], [])

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
                for module in around(self._trees[side], record) if numbers else ():
                    found[side].setdefault(module, []).extend(numbers)
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


def _width(call: AlignedCall, side: int) -> int:
    """The last size of the first tensor that a call takes: the width of a head, of attention; 0 if it takes none."""
    items = ((row.target, row.golden)[side] for row in call.rows if is_input(row))
    return next((item.shape[-1] for item in items if item is not None and item.is_tensor and item.shape), 0)


def _is_same(name: str, number: float, other: float, width: int) -> bool:
    """True if two numbers are one setting of this name.

    A scale may be a divisor, and may be written as the width of a head, of which it is the inverse root: 0.125, 8, 64.
    """
    size = abs(other)
    forms = [size]
    if name == _SCALE and size:
        forms += [1 / size, *([size**-0.5] if size == width else [])]
    return any(math.isclose(abs(number), each, rel_tol=_SAME) for each in forms)
