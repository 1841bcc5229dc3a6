"""The choices of calls: the indices that top-k, argmax, or a router returned, noted beside their statistics."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from probe.backends.protocol import Source, Tensors
from probe.collect.active_calls import ActiveCall
from probe.common.interfaces import Entry
from probe.common.numerics.formats import is_boolean, is_integer
from probe.common.operations.function import Trait
from probe.common.operations.lookup import function


class _Function(NamedTuple):
    """A function that chooses."""

    position: int
    """The index of the argument `dim` among those by position; -1 if there are no values to look at."""
    default: int | None
    takes_several: bool
    largest: bool
    result: int
    """The position of the indices among the results."""


class Chooser:
    """Notes the choices of calls.

    Args:
        tensors: The tensors of the framework.
        failed: Told of the error of choices that cannot be noted.
    """

    def __init__(self, tensors: Tensors, failed: Callable[[Exception], None]) -> None:
        self._tensors, self._failed = tensors, failed
        self.idle: set[str] = set()
        """The bases of records that choose nothing, as their first call tells; these need not be reported."""
        self._known: dict[str, _Function] = {}
        """By the base of a record, the function that chooses."""

    def enter(self, call: ActiveCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A call begins; the arguments of a function that chooses are kept until it returns."""
        if call.api is None:
            return
        if call.base not in self._known:
            found = _function_of(call.base)
            if found is None:
                self.idle.add(call.base)
                return
            self._known[call.base] = found
        call.arguments = args, kwargs

    def leave(self, call: ActiveCall, output: Any, described: Any) -> None:
        """A call has returned.

        Args:
            output: The result.
            described: Its entries: a list, or of a named tuple a dict by field names.
        """
        try:
            if call.api is None:
                self._of_module(call, output, described)
            elif call.arguments is not None:
                (args, kwargs), call.arguments = call.arguments, None
                self._of_function(self._known[call.base], args, kwargs, output, described)
        except Exception as error:
            self._failed(error)

    def _of_module(self, call: ActiveCall, output: Any, described: Any) -> None:
        """Note the whole numbers among the results of a module, such as the experts that a router names."""
        is_idle = True
        for value, entry in zip(output if isinstance(output, (tuple, list)) else (output,), _listed(described)):
            if type(entry) is dict and _is_whole(entry.get("dtype")):
                is_idle = False
                self._tensors.note_choices(entry, value, None)
        if is_idle:
            self.idle.add(call.base)

    def _of_function(
        self, known: _Function, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any, described: Any
    ) -> None:
        values, entries = output if isinstance(output, (tuple, list)) else (output,), _listed(described)
        # ``max`` without a dimension returns a value.
        if known.result >= min(len(values), len(entries)):
            return
        indices, entry = values[known.result], entries[known.result]
        if type(entry) is not dict or not _is_whole(entry.get("dtype")):
            return
        source = None
        given = args[0] if args else kwargs.get("input")
        if known.position >= 0 and self._tensors.is_tensor(given):
            dim = kwargs.get("dim", kwargs.get("axis", _at(args, known.position, known.default)))
            largest = known.largest and bool(kwargs.get("largest", _at(args, known.position + 1, True)))
            if not known.takes_several:
                largest = known.largest
            elif dim is None:
                dim = known.default  # MindSpore's for the last dimension
            source = Source(given, dim, known.takes_several, largest)
        self._tensors.note_choices(entry, indices, source)


def _is_whole(dtype: Any) -> bool:
    return type(dtype) is str and is_integer(dtype) and not is_boolean(dtype)


@functools.cache
def _function_of(base: str) -> _Function | None:
    line = function(base)
    if not line.has(Trait.CHOOSES):
        return None
    position, default = line.dim or (-1, None)
    several, smallest = line.has(Trait.CHOOSES_SEVERAL), line.has(Trait.CHOOSES_SMALLEST)
    return _Function(position, default, several, not smallest, int(line.has(Trait.INDICES_SECOND)))


def _at(args: Sequence[Any], index: int, default: Any) -> Any:
    return args[index] if index < len(args) else default


def _listed(described: Any) -> list[Entry]:
    if type(described) is dict:
        return list(described.values())
    return described if type(described) is list else []
