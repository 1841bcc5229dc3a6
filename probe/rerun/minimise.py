"""A failing call with inputs as small as it still fails with.

Which lengths belong together is found by trial: all of one length are halved at once, since those of a product are
equal, and then each alone. A candidate that the framework refuses, or of which another verdict comes, is not taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probe.backends.protocol import Execution
from probe.calls.arguments import RecordedArguments
from probe.calls.evaluation import raise_unless_refusal
from probe.calls.judged_results import judge_results
from probe.calls.prepared import PreparedCall, run_as_recorded
from probe.calls.verdict.subject import FAILURES
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.items import shape_text
from probe.common.dump.reading.records import Record
from probe.common.errors import MsprobeException
from probe.rerun.rerun_call import Rerun, run_prepared

Array = NDArray[Any]
MOST_TRIES = 300
"""Candidates that are tried; a guess: ten axes that are halved ten times take two hundred."""


@dataclass(frozen=True)
class MinimisedCall:
    """A call whose inputs were made smaller."""

    replayed: Rerun
    """The small one."""
    before: Sequence[tuple[int, ...]]
    """The shapes of the inputs as they were recorded."""
    after: Sequence[tuple[int, ...]]
    tries: int

    @property
    def sentence(self) -> str:
        """From which shapes to which."""
        pairs = [
            f"input {number} from {shape_text(before)} to {shape_text(after)}"
            for number, (before, after) in enumerate(zip(self.before, self.after)) if before != after
        ]  # fmt: skip
        return f"Made smaller in {self.tries} tries: {', '.join(pairs) if pairs else 'nothing'}."


class _Cut(NamedTuple):
    """Some axes of the inputs, all of one length, of which a half is kept."""

    axes: tuple[tuple[int, int], ...]
    """Input and axis."""
    length: int
    is_first: bool
    """True if the first half is kept."""

    @property
    def left(self) -> int:
        return (self.length + 1) // 2

    @property
    def part(self) -> slice:
        return slice(0, self.left) if self.is_first else slice(self.length - self.left, self.length)


def minimise(execution: Execution, dump: Dump, rerun: Rerun, tries: int = MOST_TRIES) -> MinimisedCall:
    """Make the inputs of a call that fails now smaller while the same result fails in the same way.

    Args:
        execution: The framework.
        dump: Where the call is recorded.
        rerun: The call.
        tries: How many candidates are tried at most.

    Raises:
        MsprobeException: no result of now is wrong.
        MemoryError: there is no memory for a candidate.
        RecursionError: the stack is too deep already.
    """
    if rerun.now not in FAILURES or rerun.is_random:
        raise MsprobeException(f"{rerun.name} is not wrong on {rerun.device} now; there is nothing to minimise.")
    search = _SmallerSearch(execution, dump.framework, rerun, tries)
    small = search.run()
    found = run_prepared(execution, dump, small, rerun.device, rerun.direction, with_recorded=False)
    before, after = ([each.shape for each in prepared.leaves] for prepared in (rerun.prepared, small))
    return MinimisedCall(found, before, after, search.tried)


class _SmallerSearch:
    def __init__(self, execution: Execution, framework: str, rerun: Rerun, tries: int) -> None:
        self._execution, self._rerun, self._tries = execution, rerun, tries
        self._target, self._status = rerun.worst.row.name, rerun.worst.row.verdict.status
        self._framework = framework
        self._refused: set[tuple[_Cut, bool]] = set()
        self.tried = 0

    def run(self) -> PreparedCall:
        """The smallest call that was found."""
        current = self._rerun.prepared
        while True:
            smaller = self._smaller(current)
            if smaller is None:
                return current
            current = smaller

    def _smaller(self, current: PreparedCall) -> PreparedCall | None:
        for cut in _cuts([each.shape for each in current.leaves]):
            for with_numbers in (False, True):
                if (cut, with_numbers) in self._refused:
                    continue
                if self.tried >= self._tries:
                    return None
                self.tried += 1
                candidate = self._fails(current, cut, with_numbers)
                if candidate is not None:
                    return candidate
                self._refused.add((cut, with_numbers))
        return None

    def _fails(self, current: PreparedCall, cut: _Cut, with_numbers: bool) -> PreparedCall | None:
        """The call with less of its inputs; ``None`` where that does not fail in the same way."""
        try:
            candidate = self._cut(current, cut, with_numbers)
            if candidate is None:
                return None
            results, autocast = run_as_recorded(self._execution, candidate, self._rerun.device)
            exact = candidate.call.reference
            rows = judge_results(candidate, results, exact, self._rerun.device, autocast)
            status = next((row.verdict.status for row in rows if row.name == self._target), None)
        except Exception as error:
            raise_unless_refusal(error)
            # A framework says what it likes to inputs that do not go together.
            return None
        return candidate if status == self._status else None

    def _cut(self, current: PreparedCall, cut: _Cut, with_numbers: bool) -> PreparedCall | None:
        leaves = list(current.leaves)
        for number, axis in cut.axes:
            leaves[number] = np.ascontiguousarray(leaves[number][(slice(None),) * axis + (cut.part,)])
        case = current.case
        if with_numbers:
            fields = _with_length(case.forward.fields, cut)
            if fields == case.forward.fields:
                return None
            case = replace(case, forward=Record(case.forward.name, fields, self._rerun.path))
        small = replace(
            current, case=case, leaves=leaves, arguments=RecordedArguments(case.forward.name, case.forward.fields)
        )
        if not current.output_gradients:
            return self._with_call(small, [])
        returned = self._with_call(small, []).call.reference.outputs
        shapes = [each.value.shape for each in returned if each.dtype is not None]
        return self._with_call(
            small,
            [
                None if each is None else _fitting(each, shape, cut)
                for each, shape in zip(current.output_gradients, shapes)
            ],
        )

    def _with_call(self, small: PreparedCall, output_gradients: list[Array | None]) -> PreparedCall:
        call = small.call.with_inputs(small.arguments, small.leaves, output_gradients)
        return replace(small, output_gradients=output_gradients, call=call)


def _cuts(shapes: Sequence[tuple[int, ...]]) -> Iterator[_Cut]:
    """The cuts that can be tried: all axes of a length together, the longest first, and then each alone."""
    by_length: dict[int, list[tuple[int, int]]] = {}
    for number, shape in enumerate(shapes):
        for axis, length in enumerate(shape):
            if length > 1:
                by_length.setdefault(length, []).append((number, axis))
    for length in sorted(by_length, reverse=True):
        axes = by_length[length]
        together = [tuple(axes), *((axis,) for axis in axes)] if len(axes) > 1 else [tuple(axes)]
        for group in together:
            yield from (_Cut(group, length, is_first) for is_first in (True, False))


def _with_length(fields: Any, cut: _Cut) -> Any:
    """A record whose arguments name the shorter length where they named the longer one."""
    if isinstance(fields, dict):
        return {key: each if key in ("shape", "output") else _with_length(each, cut) for key, each in fields.items()}
    if isinstance(fields, list):
        return [_with_length(each, cut) for each in fields]
    return cut.left if type(fields) is int and fields == cut.length else fields


def _fitting(values: Array, shape: tuple[int, ...], cut: _Cut) -> Array:
    """The gradient of an output that has become smaller.

    Raises:
        ValueError: it has become another one.
    """
    part = tuple(
        slice(0, now) if cut.is_first else slice(before - now, before) for before, now in zip(values.shape, shape)
    )
    found = np.ascontiguousarray(values[part]) if values.ndim else values
    if found.shape != shape:
        raise ValueError("the output has another form now")
    return found
