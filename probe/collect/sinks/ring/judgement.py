"""Which record of a step returned the first value that is not finite, and was not asked for.

Not every such value is a fault: attention is masked by minus infinity, the logarithm of zero is minus infinity, and
memory that was never written holds anything until it is. So what a call returns decides, unless it only hands on what
it was given: of a value that matters others are computed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from probe.common.dump import naming
from probe.common.interfaces import Entry
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has

_INPUTS = ("input_args", "input_kwargs", "input")
_NOT_EXPLAINED = 0


@dataclass(frozen=True)
class Found:
    """A record with a value that is not finite."""

    name: str
    where: str
    """``output``, ``parameters`` or ``gradient``."""

    @property
    def is_of_backward(self) -> bool:
        """Whether it is a gradient: what a loss that is scaled too much makes infinite."""
        return _is_of_backward(self.name)


class Judgement:
    """Follows one step record by record, in the order in which they were made."""

    def __init__(self) -> None:
        self.forward: Found | None = None
        """The first record outside of the backward pass."""
        self.behind: Found | None = None
        """The first record outside of it that stands behind one of the backward pass, and was given such a value."""
        self.backward: Found | None = None
        self._in_backward = False
        """Whether a record of the backward pass was seen."""
        self._signs: set[int] = set()
        """Of the infinities that were asked for or came in from outside."""

    @property
    def first(self) -> Found | None:
        """The first record; one of the forward pass comes before any of the backward pass."""
        # Nothing is looked for once there is one of the forward pass.
        return self.behind or self.forward or self.backward

    def leave_out_backward(self) -> None:
        """Gradients may be infinite in this step, and what clips or measures them with them."""
        self.backward = self.behind = None

    def look_at(self, records: Iterable[tuple[str, Any]], suspects: Sequence[Entry]) -> None:
        """Go through further records, given as name and fields; `suspects` are the entries that are not finite."""
        if not suspects:
            self._in_backward = self._in_backward or any(_is_of_backward(name) for name, _ in records)
            return
        bad = {id(entry) for entry in suspects}
        for name, fields in records:
            self._in_backward = self._in_backward or _is_of_backward(name)
            if self.forward is not None:
                return
            if isinstance(fields, dict):
                self._look_at(name, fields, bad)

    def _look_at(self, name: str, fields: dict[str, Any], bad: Collection[int]) -> None:
        if naming.is_gradients(name):
            if any(id(entry) in bad for entry in _entries(fields)):
                self._find(Found(name, "gradient"))
            return
        outputs = _bad(fields.get("output"), bad)
        parameters = _bad(fields.get("parameters"), bad)
        if not outputs and not parameters:
            return
        function = naming.function_name(name)
        if has(function, Trait.UNWRITTEN):
            return
        if any(_sign(entry) >= 0 for entry in parameters):
            self._find(Found(name, "parameters"))
        elif outputs and not self._is_explained(function, name, fields, outputs, bad):
            self._find(Found(name, "output"), self._is_given_any(fields, bad))

    def _is_given_any(self, fields: dict[str, Any], bad: Collection[int]) -> bool:
        return any(id(entry) in bad for field in _INPUTS for entry in _entries(fields.get(field)))

    def _is_explained(
        self, function: str, name: str, fields: dict[str, Any], outputs: Sequence[Entry], bad: Collection[int]
    ) -> bool:
        inputs = [entry for field in (*_INPUTS, "parameters") for entry in _entries(fields.get(field))]
        bad_inputs = [entry for entry in inputs if id(entry) in bad]
        signs = {_sign(entry) for entry in outputs}
        if len(signs) == 1 and _NOT_EXPLAINED not in signs:
            (sign,) = signs
            if bad_inputs:
                # A mask that was made where nothing is recorded, and what is passed on.
                explained = all(_sign(entry) == sign for entry in bad_inputs) and (sign < 0 or sign in self._signs)
            else:
                explained = (
                    (sign < 0 and has(function, Trait.INFINITE))
                    or (naming.is_module(name) and sign in self._signs)
                    or sign * math.inf in _numbers(fields)
                )
            if explained:
                self._signs.add(sign)
                return True
        return bool(bad_inputs) and has(function, Trait.HANDS_ON)

    def _find(self, found: Found, is_given: bool = False) -> None:
        if found.is_of_backward:
            self.backward = self.backward or found
        elif is_given and self._in_backward:
            self.behind = self.behind or found
        else:
            self.forward = self.forward or found


def _is_of_backward(name: str) -> bool:
    if naming.is_gradients(name):
        return True
    if naming.BACKWARD not in name:
        return False
    parsed = naming.parse(name)
    return parsed is not None and parsed.direction == naming.BACKWARD


def _bad(value: Any, bad: Collection[int]) -> list[Entry]:
    """The tensors among the values of a record that are not finite."""
    if not value:
        return []
    found = []
    # Nearly always these are the tensors themselves, and this is asked of every record.
    for item in value if type(value) is list else value.values():
        if id(item) in bad:
            found.append(item)
        elif type(item) is list or (type(item) is dict and "Max" not in item):
            found += [entry for entry in _entries(item) if id(entry) in bad]
    return found


def _entries(value: Any) -> Iterator[Entry]:
    """Every tensor among the values of a record."""
    if isinstance(value, dict):
        if "Max" in value and "shape" in value:
            yield value
            return
        value = value.values()
    elif not isinstance(value, list):
        return
    for item in value:
        if item is not None:
            yield from _entries(item)


def _numbers(fields: dict[str, Any]) -> Iterator[float]:
    """Every plain number among the arguments."""
    ahead = [fields.get(field) for field in _INPUTS]
    while ahead:
        value = ahead.pop()
        if isinstance(value, dict):
            if type(value.get("value")) in (float, int):
                yield value["value"]
            else:
                ahead += value.values()
        elif isinstance(value, list):
            ahead += value


def _sign(entry: Entry) -> int:
    """1 or -1 where infinities of this sign may be all that is not finite in a tensor, else `_NOT_EXPLAINED`."""
    largest, smallest = entry["Max"], entry["Min"]
    if smallest == -math.inf and (largest == -math.inf or math.isfinite(largest)):
        return -1
    if largest == math.inf and (smallest == math.inf or math.isfinite(smallest)):
        return 1
    return _NOT_EXPLAINED
