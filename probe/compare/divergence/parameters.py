"""The parameters of two runs, as the forward records of modules list them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from probe.common.align.row import Row
from probe.common.dump.naming import FORWARD, PARAMETERS_GRAD, module_name, parse
from probe.common.dump.reading.records import PARAMETERS, Item
from probe.common.numerics.error_bounds import is_same
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.result import Carried


class Parameter(NamedTuple):
    """A parameter at the beginning of a step, on both sides."""

    record: str
    """The target's forward record of its module."""
    golden_record: str
    name: str
    target: Item
    golden: Item

    @property
    def full_name(self) -> str:
        """Its name in the model of the target."""
        return parameter_name(self.record, self.name)


class Parameters:
    """Finds the parameter that an item is.

    Args:
        calls: all calls of both runs.
    """

    def __init__(self, calls: Sequence[AlignedCall]) -> None:
        self._calls = calls

    @cached_property
    def all(self) -> list[Parameter]:
        """Those that both sides have, once each."""
        return [
            Parameter(call.record, call.golden_record, own_name(call.record, row.target), row.target, row.golden)
            for call in self._calls
            if call.record and call.golden_record and _is_first_forward(call.record)
            for row in call.rows
            if row.target is not None and row.golden is not None and row.target.state == PARAMETERS
        ]

    def of(self, call: AlignedCall, row: Row) -> Parameter | None:
        """The parameter that a row holds: a module's own, or one that a function was given, known by its statistics."""
        target, golden = row.target, row.golden
        if target is None or golden is None:
            return None
        if target.state == PARAMETERS:
            record = call.record or ""
            return Parameter(record, call.golden_record or "", own_name(record, target), target, golden)
        return self._by_statistics.get((_statistics(target), _statistics(golden)))

    def carried(self) -> Carried | None:
        """The parameters that they carry into this step; ``None`` where none are recorded."""
        if not self.all:
            return None
        target, golden = (
            [_statistics(item) for item in side] for side in zip(*((p.target, p.golden) for p in self.all))
        )
        differ = any(
            mine != theirs and not is_same(p.target, p.golden) for p, mine, theirs in zip(self.all, target, golden)
        )
        return Carried(_checksum(target), _checksum(golden), differ)

    def gradients_of(self, parameter: Parameter) -> tuple[Item | None, Item | None]:
        """The gradients of a parameter on both sides, as far as they are recorded."""
        golden_name = own_name(parameter.golden_record, parameter.golden) or parameter.name
        names = _gradient_name(parameter.record, parameter.name), _gradient_name(parameter.golden_record, golden_name)
        return self._gradients[0].get(names[0]), self._gradients[1].get(names[1])

    def of_gradient(self, gradient: Item) -> Parameter | None:
        """The parameter whose gradient on the side of the target this is."""
        return next((each for each in self.all if _gradient_name(each.record, each.name) == gradient.name), None)

    def side_without_gradient(self, parameter: Parameter) -> str:
        """The side, in words, on which a parameter alone has no gradient; empty if there is none."""
        gradients = self.gradients_of(parameter)
        if all(self._gradients) and (gradients[0] is None) != (gradients[1] is None):
            return "target" if gradients[0] is None else "golden run"
        return ""

    @cached_property
    def _gradients(self) -> tuple[dict[str, Item], dict[str, Item]]:
        """The gradients of parameters of both sides by the names of their items."""
        found: tuple[dict[str, Item], dict[str, Item]] = {}, {}
        for call in self._calls:
            if PARAMETERS_GRAD in (call.record or call.golden_record or ""):
                for row in call.rows:
                    for side, item in zip(found, (row.target, row.golden)):
                        if item is not None and item.is_tensor:
                            side[item.name] = item
        return found

    @cached_property
    def _by_statistics(self) -> Mapping[tuple[Any, Any], Parameter]:
        return {(_statistics(each.target), _statistics(each.golden)): each for each in self.all}


def parameter_name(record: str, name: str) -> str:
    """The name in the model of what a module's record calls `name`."""
    parsed = parse(record)
    path = "" if parsed is None else parsed.base.rpartition(".")[0].partition(".")[2]
    return f"{path}.{name}" if path else name


def own_name(record: str, item: Item) -> str:
    """The name of a parameter on its side; the item is in a record of the name `record`."""
    # A module may be called "parameters" as well.
    return item.name[len(record) :].partition(f".{PARAMETERS}.")[2]


def _gradient_name(record: str, name: str) -> str:
    """The name of the item that holds the gradient of a parameter, which a module's forward record has as `name`."""
    parsed = parse(record)
    return "" if parsed is None else f"{module_name(parsed.base, 0, PARAMETERS_GRAD)}.{name}"


def _is_first_forward(record: str) -> bool:
    parsed = parse(record)
    return parsed is not None and parsed.is_module and parsed.direction == FORWARD and parsed.number == 0


def _checksum(statistics: Sequence[tuple[Any, ...]]) -> int:
    """The same in every process, which a hash of texts is not."""
    return zlib.crc32(repr(statistics).encode())


def _statistics(item: Item) -> tuple[Any, ...]:
    return item.max, item.min, item.mean, item.norm, item.md5
