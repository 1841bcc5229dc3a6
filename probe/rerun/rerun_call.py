"""One recorded call, selected by its name and run again.

The result of the dump, that of this device now and that of high precision are compared with each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from probe.backends.protocol import Execution, UnknownValue
from probe.calls.arguments import Unreadable
from probe.calls.cases import Case, case_of, check_dump, unloaded
from probe.calls.evaluation import Output, Results
from probe.calls.judged_results import JudgedResult, draws_random_numbers, judge_results
from probe.calls.prepared import (
    RECORDED,
    PreparedCall,
    needed,
    prepare,
    reason,
    recorded_results,
    run_as_recorded,
    why_too_much,
)
from probe.calls.verdict import dropout
from probe.calls.verdict.subject import FAILURES, NONFINITE, SUSPECT, KernelVerdict, worst_of
from probe.common.dump.naming import BACKWARD, FORWARD, api_name, is_module, nearest, parse
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.items import OUTPUT
from probe.common.errors import DumpFormatError, FileCheckException, MsprobeException
from probe.common.numerics.formats import rounding_format
from probe.common.numerics.rounding import spacing


class SelectedCall(NamedTuple):
    """A call, and which part of it was asked for."""

    case: Case
    direction: str
    """``forward`` or ``backward``; empty for both."""


def select(dump: Dump, record: str) -> SelectedCall:
    """The call whose record, or whose name without a direction, `record` is.

    Raises:
        MsprobeException: the dump has none of this name, or none that could be run; the message names the nearest ones.
    """
    check_dump(dump)
    if is_module(record):
        raise MsprobeException(f"{record} is a module; only functions can be run again, such as {_example(dump)}.")
    given = parse(record)
    named = given or parse(f"{record}.{FORWARD}")
    forward = "" if named is None else api_name(named.base, named.number, FORWARD)
    case = case_of(dump, dump[forward]) if forward in dump else None
    if case is None:
        raise MsprobeException(f"{dump.path} has no call {record!r}{_near(dump, record)}.")
    direction = "" if given is None else given.direction
    if direction == BACKWARD and case.backward is None:
        raise MsprobeException(f"{dump.path} has no backward of {case.name}; give {forward}.")
    return SelectedCall(case, direction)


def _near(dump: Dump, record: str) -> str:
    names = [each.name for each in dump if not is_module(each.name)]
    found = nearest(record if parse(record) else f"{record}.{FORWARD}", names)
    return f"; nearest names: {', '.join(found)}" if found else f"; it has {_example(dump)}"


def _example(dump: Dump) -> str:
    """The first call of a function."""
    names = (each.name for each in dump if not is_module(each.name) and each.name.endswith(f".{FORWARD}"))
    return next(names, "no call of a function")


@dataclass(frozen=True)
class ElementDifference:
    """The difference between two results of one call."""

    count: int
    """Elements that differ, if only in the sign of a zero; NaN equals NaN."""
    size: int
    form: str = ""
    """In words how dtype or shape differ; then nothing else is known."""
    index: Optional[tuple[int, ...]] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The element that is furthest off in units of the last place, one of them NaN first; ``None`` if all are equal."""
    recorded: Any = None
    now: Any = None
    max_ulp: Optional[float] = None  # noqa: UP045
    """The distance there; ``None`` of whole numbers, and of what is not finite."""

    @property
    def is_same(self) -> bool:
        """True if both have the same values."""
        return not self.count and not self.form


def difference(recorded: Array, recorded_dtype: str, now: Array, dtype: str) -> ElementDifference:
    """The difference between `recorded` and `now`.

    Args:
        recorded: The values of the dump.
        recorded_dtype: The plain name of their dtype.
        now: The values of the new run.
        dtype: The plain name of their dtype.
    """
    if recorded.shape != now.shape:
        return ElementDifference(0, now.size, f"recorded with the shape {list(recorded.shape)}, now {list(now.shape)}")
    if recorded_dtype != dtype:
        return ElementDifference(0, now.size, f"recorded as {recorded_dtype}, now {dtype}")
    differs = np.asarray(recorded != now)
    if now.dtype.kind == "f":
        differs |= np.signbit(recorded) != np.signbit(now)
    if now.dtype.kind in "fc":
        differs &= ~(np.isnan(recorded) & np.isnan(now))
    count = int(np.count_nonzero(differs))
    if not count:
        return ElementDifference(0, now.size)
    distance = _ulps(recorded, now, dtype, differs)
    worst = int(np.argmax(np.where(differs, np.nan_to_num(distance, nan=np.inf), -1.0)))
    furthest = float(distance.flat[worst])
    return ElementDifference(
        count, now.size, "", tuple(map(int, np.unravel_index(worst, now.shape))), recorded.flat[worst].item(),
        now.flat[worst].item(), furthest if rounding_format(dtype) is not None and np.isfinite(furthest) else None,
    )  # fmt: skip


def _ulps(recorded: Array, now: Array, dtype: str, differs: Array) -> Array:
    """The distance of each pair that differs, in units of the last place of the recorded one."""
    of = rounding_format(dtype)
    if of is None:
        return np.asarray(differs, np.float64)
    wide: Any = np.complex128 if now.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        magnitude = np.abs(recorded.astype(wide))
        units = spacing(np.where(np.isfinite(magnitude), magnitude, 0.0), of)
        return np.asarray(np.abs(now.astype(wide) - recorded.astype(wide)) / units)


Array = NDArray[Any]
NORMAL_OVERFLOW = "normal overflow: the exact result does not fit the dtype either"
KERNEL_OVERFLOW = "the kernel's: the exact result is finite"
INPUT_OVERFLOW = "its inputs are not finite already"


@dataclass(frozen=True)
class ComparedResult:
    """One output, or the gradient of one input, in three comparisons."""

    row: JudgedResult
    """Now against high precision."""
    recorded: Optional[KernelVerdict]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """Recorded against high precision; ``None`` where nothing is recorded."""
    difference: Optional[ElementDifference]  # noqa: UP045
    """Recorded against now."""
    overflow: str = ""
    """The origin of a result that is not finite, in words."""

    @property
    def verdicts(self) -> list[KernelVerdict]:
        """The verdict of this run, and that of the dump if there is one."""
        return [self.row.verdict] if self.recorded is None else [self.row.verdict, self.recorded]


@dataclass(frozen=True)
class Rerun:
    """A call that was run again."""

    path: str
    """The dump."""
    device: str
    direction: str
    """``forward`` or ``backward``; empty for both."""
    autocast: str
    """The dtype of the autocast under which it was run; empty without."""
    results: Sequence[ComparedResult]
    prepared: PreparedCall
    values: Results
    """The results of this run."""
    recorded_values: Optional[Results]  # noqa: UP045 (evaluated, on Python 3.9 too)
    notes: Sequence[str] = ()
    """The parts that the comparisons lack, and the reasons."""
    is_random: bool = False
    """True if the call draws random numbers, of which high precision does not say which ones are right."""

    @property
    def name(self) -> str:
        """``Functional.silu.0``."""
        return self.prepared.case.name

    @property
    def now(self) -> str:
        """The worst status of now."""
        return worst_of(each.row.verdict.status for each in self.results)

    @property
    def recorded(self) -> str:
        """The worst status of what is recorded; empty where nothing is."""
        found = [each.recorded.status for each in self.results if each.recorded is not None]
        return worst_of(found) if found else ""

    @property
    def is_wrong(self) -> bool:
        """True if a result of now or of the dump is wrong."""
        return not self.is_random and (self.now in FAILURES or self.recorded in FAILURES)

    @property
    def is_suspect(self) -> bool:
        """True if none is wrong, and one of now or of the dump has an error above what the operation should reach."""
        return not (self.is_wrong or self.is_random) and SUSPECT in (self.now, self.recorded)

    @property
    def worst(self) -> ComparedResult:
        """The first result with the worst status of now, or with that of the dump where now is not wrong."""
        if self.now in FAILURES or self.recorded not in FAILURES:
            return next(each for each in self.results if each.row.verdict.status == self.now)
        return next(each for each in self.results if each.recorded and each.recorded.status == self.recorded)


def rerun_call(
    execution: Execution, dump: Dump, selected: SelectedCall, device: str, seed: int, max_memory: float = math.inf
) -> Rerun:
    """Run a recorded call again.

    Args:
        execution: The framework of the dump.
        dump: Where the call is recorded.
        selected: The call, and which direction of it.
        device: Where it is run, such as ``cpu``.
        seed: The seed of generated inputs.
        max_memory: Bytes that it may take; a call that needs more is not run.

    Raises:
        MsprobeException: it cannot be run.
    """
    try:
        check_memory(execution, dump, selected, max_memory)
        prepared = prepare(execution, dump, selected.case, seed)
        if selected.direction == BACKWARD and prepared.backward_not_run:
            raise Unreadable(f"its backward is not run: {prepared.backward_not_run}")
        if selected.direction == FORWARD:
            prepared = prepared.forward_alone()
        return run_prepared(execution, dump, prepared, device, selected.direction)
    except (Unreadable, UnknownValue) as error:
        raise MsprobeException(f"{selected.case.name} of {dump.path}: {reason(error)}.") from None


def check_memory(execution: Execution, dump: Dump, selected: SelectedCall, max_memory: float, times: int = 1) -> None:
    """Refuse a call that takes too much memory, before its values are read.

    Args:
        times: How many runs of the call are held at once.

    Raises:
        Unreadable: it needs more than `max_memory`, or cannot be run from what the dump has.
    """
    outline = prepare(execution, dump, selected.case, 0, load=unloaded)
    need = times * needed(outline.forward_alone() if selected.direction == FORWARD else outline)
    if need > max_memory:
        raise Unreadable(why_too_much(need, max_memory))


def run_prepared(
    execution: Execution, dump: Dump, prepared: PreparedCall, device: str, direction: str, with_recorded: bool = True
) -> Rerun:
    """Run a call that is ready, and compare; without `with_recorded` its inputs are not those of the dump.

    Raises:
        Unreadable: the framework refuses it.
    """
    notes = [f"its backward is not run: {prepared.backward_not_run}"] if prepared.backward_not_run else []
    exact: Results = _run("in high precision", lambda: prepared.call.reference)
    results, autocast = _run(f"on {device}", lambda: run_as_recorded(execution, prepared, device))
    recorded = _recorded(dump, prepared, results, notes) if with_recorded else None

    def verdicts_of(found: Results, where: str) -> list[JudgedResult]:
        return list(judge_results(prepared, found, exact, where, autocast))

    rows = verdicts_of(results, device)
    before = {} if recorded is None else {row.name: row.verdict for row in verdicts_of(recorded, RECORDED)}
    values = [dict(_named(prepared, each)) if each else {} for each in (results, recorded, exact)]
    compared = [_compared(prepared, row, before, *(each.get(row.name) for each in values)) for row in rows]
    found = [each for each in compared if each.row.of or direction != BACKWARD]
    if not found:
        raise Unreadable("it has no gradient" if direction == BACKWARD else "it returns nothing that could be compared")
    # Dropout is judged by what it promises of its draws.
    verdicts = [verdict for each in found for verdict in each.verdicts if verdict.bound != dropout.BOUND]
    wrong = any(verdict.status in FAILURES for verdict in verdicts)
    drawn = wrong and draws_random_numbers(execution, prepared, device, autocast)
    return Rerun(dump.path, device, direction, autocast, found, prepared, results, recorded, tuple(notes), drawn)


def _run(where: str, run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:
        # A framework raises what it likes.
        raise Unreadable(f"it cannot be run {where}: {reason(error)}") from error


def _recorded(dump: Dump, prepared: PreparedCall, like: Results, notes: list[str]) -> Results | None:
    """The results of the dump, or a note why there are none."""
    if prepared.generated:
        notes.append("its inputs are generated from statistics, so there are no recorded values to compare with")
        return None
    try:
        found = recorded_results(dump, prepared, like)
    except (Unreadable, FileCheckException, DumpFormatError) as error:
        notes.append(f"nothing recorded to compare with: {str(error).rstrip('.')}")
        return None
    if any(now.value is not None and then.value is None for now, then in zip(like.gradients, found.gradients)):
        notes.append("the recorded gradients belong to steps inside the function and are not compared")
    return found


def _named(prepared: PreparedCall, results: Results) -> Iterator[tuple[str, Output]]:
    """Each result under the name of its row."""
    for output in results.outputs:
        yield f"{prepared.case.forward.name}.{OUTPUT}.{output.path}", output
    for output in results.gradients:
        yield f"{prepared.case.name}.{BACKWARD}.{OUTPUT}.{output.path}", output


def _compared(
    prepared: PreparedCall,
    row: JudgedResult,
    before: dict[str, KernelVerdict],
    now: Output | None,
    recorded: Output | None,
    exact: Output | None,
) -> ComparedResult:
    found = None
    values = [each.value for each in (now, recorded) if each is not None and isinstance(each.value, np.ndarray)]
    if now is not None and recorded is not None and len(values) == 2:
        found = difference(values[1], recorded.dtype or "", values[0], now.dtype or "")
    right = None if exact is None else exact.value
    verdict = before.get(row.name) if found is not None else None
    overflow = "" if all(map(_is_finite, values)) else _overflow(prepared, right, [row.verdict, verdict])
    return ComparedResult(row, verdict, found, overflow)


def _overflow(prepared: PreparedCall, exact: Any, verdicts: Sequence[KernelVerdict | None]) -> str:
    """The origin of a value that is not finite."""
    if any(verdict is not None and verdict.status == NONFINITE for verdict in verdicts):
        return KERNEL_OVERFLOW if _is_finite(exact) else ""
    given = [*prepared.leaves, *(each for each in prepared.output_gradients if each is not None)]
    return NORMAL_OVERFLOW if all(map(_is_finite, given)) else INPUT_OVERFLOW


def _is_finite(values: Any) -> bool:
    return not isinstance(values, np.ndarray) or values.dtype.kind not in "fc" or bool(np.isfinite(values).all())
