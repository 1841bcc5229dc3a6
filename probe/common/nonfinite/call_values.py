"""The tensors of one call by what they are to it, and which of them are not finite.

A tensor whose values that are not finite are infinities of one sign may be what was asked for: attention is masked by
minus infinity. `infinite_sign` tells it from one with a NaN, as far as statistics can.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from probe.common.dump.naming import function_name
from probe.common.dump.reading.records import INPUT, PARAMETERS, PARAMETERS_GRAD, Item
from probe.common.numerics.formats import rounding_format
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has

_ITEM = "__setitem__"


@dataclass
class CallValues:
    """The tensors of one call, and its plain numbers."""

    inputs: list[Item]
    parameters: list[Item]
    outputs: list[Item]
    """Gradients of parameters, too."""
    numbers: list[float]
    """Plain numbers among the inputs."""

    @classmethod
    def of(cls, items: Iterable[Item]) -> CallValues:
        """The values of a call, given all its items."""
        values = cls([], [], [], [])
        for item in items:
            if item.is_tensor:
                values.add(item)
            elif item.state == INPUT and (type(item.value) is float or is_number(item.value)):
                values.numbers.append(item.value)
        return values

    def add(self, item: Item) -> None:
        """Add a tensor to the inputs, the parameters or the outputs."""
        item = with_numbers(item)
        if item.state == INPUT:
            self.inputs.append(item)
        elif item.state == PARAMETERS:
            self.parameters.append(item)
        else:
            self.outputs.append(item)

    @property
    def is_gradients(self) -> bool:
        """True if these are gradients that were added up, of which nobody says where they came from."""
        return any(item.state == PARAMETERS_GRAD for item in self.outputs)


def with_numbers(item: Item) -> Item:
    """The item; that of a dump which writes the numbers that JSON lacks as texts has numbers then."""
    if str not in (type(item.max), type(item.min)):
        return item
    numbered = copy(item)
    statistics = item.max, item.min, item.mean, item.norm
    numbered.max, numbered.min, numbered.mean, numbered.norm = map(as_number, statistics)
    return numbered


def as_number(value: Any) -> Any:
    """A statistic; the text of a number that JSON lacks as that number."""
    return float(value) if type(value) is str and value.lower() in ("nan", "inf", "-inf") else value


def is_nonfinite(item: Item) -> bool:
    """True if a NaN or an infinity is in a tensor; a norm alone is infinite because its type ends before it."""
    return item.has_nan or item.has_inf


def infinite_sign(item: Item) -> int:
    """1 or -1 where infinities of this sign may be all that is not finite in a tensor, else 0.

    Of its mean and norm that says nothing.
    """
    if item.min == -math.inf and (item.max == -math.inf or is_number(item.max)):
        return -1
    if item.max == math.inf and (item.min == math.inf or is_number(item.min)):
        return 1
    return 0


def is_number(value: Any) -> bool:
    """True if a statistic is a finite number."""
    # A whole number may have more digits than any float.
    return (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) < 1 << 1023)


def memory(item: Item) -> tuple[object, int]:
    """The common property of two views of one tensor: the dtype, and the number of elements they hold."""
    return item.dtype, math.prod(item.shape or ())


def extremes(item: Item) -> Any:
    """The common property of tensors with the same infinities: moving, reshaping and masking keep both extremes."""
    return item.max, item.min


def mark_of(item: Item) -> Any:
    """The common property of a tensor and its views: the extremes if they are numbers, otherwise dtype and size."""
    return extremes(item) if infinite_sign(item) else memory(item)


def limit_of(item: Item) -> float | None:
    """The largest number of the type of a tensor; ``None`` where it is none of floating-point numbers."""
    form = rounding_format(item.dtype or "")
    return None if form is None else form.largest


def part_of_limit(item: Item) -> float:
    """The largest absolute value of a finite tensor as a part of what its type can hold; 0 where that is not known."""
    limit = limit_of(item)
    if limit is None or not is_number(item.max) or not is_number(item.min):
        return 0.0
    # A maximum is written with as many digits as its type has, and compares as what it was.
    return float(max(abs(item.max), abs(item.min)) / limit)


def is_masked_by_lowest(item: Item) -> bool:
    """True if the smallest number of its type stands in a tensor, and none near the largest: masks are made of it."""
    limit = limit_of(item)
    if limit is None or not is_number(item.max) or not is_number(item.min):
        return False
    return bool(item.min == -limit and item.max < limit / 2)


def reads(name: str, inputs: Sequence[Item]) -> list[Item]:
    """The inputs of a call that it reads; the former contents of those that it only writes to mean nothing.

    Args:
        name: of the record.
        inputs: its tensors.
    """
    written = {f"{name}.input.out"}
    function = function_name(name)
    # Of a part that is written, what is returned has the rest as well: it is read then.
    if function == _ITEM or has(function, Trait.OVERWRITES):
        written.add(f"{name}.input.0")
    prefix = f"{name}.input.out."
    return [item for item in inputs if item.name not in written and not item.name.startswith(prefix)]


def fills(name: str) -> bool:
    """True if a call writes into a tensor of which its record does not say what it holds then."""
    return _ITEM in name and function_name(name) == _ITEM
