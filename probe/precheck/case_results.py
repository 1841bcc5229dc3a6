"""A case evaluated on the device and in float64, as far as it can be run, and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from typing_extensions import Protocol

from probe.backends.protocol import Execution
from probe.calls.evaluation import Results, is_out_of_memory
from probe.calls.judged_results import JudgedResult
from probe.calls.prepared import RECORDED, PreparedCall, reason, recorded_results, run_as_recorded
from probe.calls.verdict.subject import ERROR, NOT_RUN, KernelVerdict, worst_of
from probe.common.dump.naming import BACKWARD, FORWARD
from probe.common.dump.reading.dump import Dump
from probe.common.numerics.formats import rounding_format

_NO_KERNEL = ("not implemented", "not support", "unsupported", "not available", "no kernel")
_NO_RECORDED_GRADIENTS = "a record has the gradients of autograd nodes, which are not always those of the arguments"


class NotRun(Exception):
    """A case cannot be run or judged, for the reason that the text gives."""


@dataclass(frozen=True)
class EvaluatedCase:
    """One case with its results."""

    prepared: PreparedCall
    """The case as far as it was run: without its backward, where that could not be."""
    reference: Results
    """In float64."""
    results: Optional[Results] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """On the device; ``None`` where the forward raised."""
    autocast: str = ""
    """The dtype of the autocast under which it was run; empty without."""
    raised: tuple[JudgedResult, ...] = ()
    """A row for the direction that raised on the device and not in float64."""


def evaluate(execution: Execution, dump: Dump, prepared: PreparedCall, device: str) -> EvaluatedCase:
    """Run a case on a device and in float64.

    Args:
        execution: The framework.
        dump: The dump, whose results are taken for the device ``recorded``.
        prepared: The case.
        device: ``cpu``, ``cuda:0``, ``recorded``.

    Raises:
        NotRun: it cannot be run.
    """
    prepared, reference = _with_reference(prepared)
    if device == RECORDED:
        return _recorded(dump, prepared, reference)
    try:
        return EvaluatedCase(prepared, reference, *run_as_recorded(execution, prepared, device))
    except Exception as error:
        if _is_no_fault(error) or _is_of_short_floats(prepared):
            raise _cannot_be_run(device, error) from None
        # The reference has no trouble with these inputs, and the recorded run had none.
        if not prepared.output_gradients:
            return EvaluatedCase(prepared, reference, raised=(_raised(f"{prepared.case.name}.{FORWARD}", error),))
        of_backward = _raised(f"{prepared.case.name}.{BACKWARD}", error)
    prepared, reference = prepared.forward_alone(), replace(reference, gradients=[])
    try:
        return EvaluatedCase(prepared, reference, *run_as_recorded(execution, prepared, device), (of_backward,))
    except Exception as error:
        return EvaluatedCase(prepared, reference, raised=(_raised(prepared.case.forward.name, error),))


def _with_reference(prepared: PreparedCall) -> tuple[PreparedCall, Results]:
    """The case with its reference; without its backward where the framework has none in float64."""
    try:
        return prepared, prepared.call.reference
    except Exception as error:
        why = f"the reference cannot be computed: {reason(error)}"
        if not prepared.output_gradients:
            raise NotRun(why) from None
    prepared = prepared.forward_alone(why)
    try:
        return prepared, prepared.call.reference
    except Exception as error:
        raise NotRun(f"the reference cannot be computed: {reason(error)}") from None


def _recorded(dump: Dump, prepared: PreparedCall, reference: Results) -> EvaluatedCase:
    """The results of the dump, and the reference without the gradients that the dump lacks."""
    try:
        results = recorded_results(dump, prepared, reference)
    except Exception as error:
        raise _cannot_be_run(RECORDED, error) from None
    gradients = [
        expected if found.value is not None else replace(expected, value=None, dtype=None)
        for found, expected in zip(results.gradients, reference.gradients)
    ]
    if prepared.output_gradients and not any(each.value is not None for each in results.gradients):
        prepared = replace(prepared, backward_not_run=prepared.backward_not_run or _NO_RECORDED_GRADIENTS)
    return EvaluatedCase(prepared, replace(reference, gradients=gradients), results)


def _cannot_be_run(device: str, error: Exception) -> NotRun:
    return NotRun(f"it cannot be run on {device}: {reason(error)}")


def _is_no_fault(error: BaseException) -> bool:
    """True if there is no kernel for the dtype or the device, or no memory for the call."""
    text = str(error).lower()
    has_no_kernel = isinstance(error, NotImplementedError) or any(words in text for words in _NO_KERNEL)
    return has_no_kernel or is_out_of_memory(error)


def _is_of_short_floats(prepared: PreparedCall) -> bool:
    """True if a tensor has less than 16 bits a number: few devices compute with those, and each says so differently."""
    dtypes = (*(leaf.dtype for leaf in prepared.arguments.leaves), *(item.dtype or "" for item in prepared.outputs))
    formats = [rounding_format(dtype) for dtype in dtypes]
    return any(each is not None and each.bits < 16 for each in formats)


def _raised(name: str, error: Exception) -> JudgedResult:
    """The row of a direction that could not be run, though its reference was."""
    of = "" if name.endswith(FORWARD) else "every input"
    return JudgedResult(name, of, "", "", (), KernelVerdict(ERROR, f"it raises {reason(error)}"))


@dataclass(frozen=True)
class CaseResult:
    """One case."""

    name: str
    base: str
    rows: tuple[JudgedResult, ...] = ()
    not_run: str = ""
    """The reason why it was not run; empty if it was."""
    backward_not_run: str = ""
    """The reason why its backward was not run, if the dump has one."""
    stands_for: int = 1
    autocast: str = ""
    """The dtype of the autocast under which it was run; empty without."""
    inputs: str = "recorded"
    """``recorded`` values, or ``generated`` ones."""
    saved: tuple[str, ...] = field(default=())
    """Files of failing values."""
    details: Optional[tuple[Mapping[str, Any], ...]] = field(default=(), compare=False)  # noqa: UP045 (evaluated)
    """The rows of the case by the rules of another tool; ``None`` where no such rules have judged it."""

    @property
    def forward(self) -> str:
        """The worst status of its outputs."""
        return NOT_RUN if self.not_run else worst_of(row.verdict.status for row in self.rows if not row.of)

    @property
    def backward(self) -> str:
        """The worst status of its gradients; empty where there are none."""
        if self.not_run or self.backward_not_run:
            return NOT_RUN
        found = [row.verdict.status for row in self.rows if row.of]
        return worst_of(found) if found else ""

    @property
    def status(self) -> str:
        """The worse of both."""
        return worst_of(status for status in (self.forward, self.backward) if status)


# --- rules


@dataclass(frozen=True)
class AgainstDevice:
    """The cases of one device judged by those of another device."""

    rows: Sequence[dict[str, Any]]
    """A row for each case, in values of JSON."""
    compared: int
    worse: Sequence[str]
    """The names of the cases that are worse than on the other device."""


@dataclass(frozen=True)
class WrittenTables:
    """The tables of a run that has ended."""

    paths: Sequence[str]
    against: Optional[AgainstDevice] = None  # noqa: UP045 (evaluated, on Python 3.9 too)


class CaseTables(Protocol):
    """The tables of one run."""

    def write(self, results: Sequence[CaseResult]) -> WrittenTables:
        """Write the rows of all cases, which are their `details`, and the tables that sum them up."""


class CaseRules(Protocol):
    """Rules for the tables of another tool."""

    @property
    def name(self) -> str:
        """The name by which users choose these rules; a run goes on under the same ones only."""

    def judge(
        self, evaluated: EvaluatedCase, judged: Sequence[JudgedResult], framework: str
    ) -> tuple[Mapping[str, Any], ...]:
        """The rows of a case in values of JSON, also tuples and floats that are not finite; the journal keeps them.

        Args:
            evaluated: The case with its results.
            judged: Our verdicts on the results.
            framework: That of the dump.
        """

    def tables(self, folder: str, time: str, framework: str) -> CaseTables:
        """Begin the tables of a run, or go on with them.

        Args:
            folder: Where they are written.
            time: The time in the names of all files of the run.
            framework: That of the dump.

        Raises:
            FileCheckException: a table that they need cannot be read.
            MsprobeException: that table is damaged, or another one.
        """
