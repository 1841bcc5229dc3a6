"""One case checked: evaluated on the device and in float64, and every output and gradient judged."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from numpy.typing import NDArray

from probe.backends.protocol import FrameworkAdapter, UnknownValue
from probe.calls.arguments import Unreadable
from probe.calls.cases import Case
from probe.calls.evaluation import Results
from probe.calls.judged_results import JudgedResult, are_equal, draws_random_numbers, judge_results
from probe.calls.prepared import (
    RECORDED,
    Prepared,
    half_of_mixed,
    prepare,
    reason,
    recorded_results,
    run_as_recorded,
)
from probe.calls.verdict import dropout
from probe.calls.verdict.subject import ERROR, FAILURES, SUSPECT, Verdict
from probe.common import log
from probe.common.dump.naming import BACKWARD, FORWARD
from probe.common.dump.reading.dump import Dump
from probe.common.errors import DumpFormatError
from probe.common.numerics.formats import plain_name
from probe.precheck.first_stage import details_rows, raised_rows
from probe.precheck.output.error_data import write_error_data
from probe.precheck.result import CaseResult
from probe.precheck.standards.constants import DOCUMENTED

Array = NDArray[Any]
_NO_FAULT = (
    "not implemented", "not support", "unsupported", "not available", "no kernel", "out of memory", "can't allocate",
)  # fmt: skip
_NO_RECORDED_GRADIENTS = "a record has the gradients of autograd nodes, which are not always those of the arguments"


@dataclass(frozen=True)
class CheckOptions:
    """How cases are checked.

    Args:
        device: Where they are run: ``cpu``, ``cuda:0``; ``recorded`` judges the results of the dump.
        seed: What generated inputs are drawn from, besides the name of the record.
        standard: By which rules of msProbe the drop-in columns are judged.
        error_data: The folder for inputs and results that fail; none are written without.
    """

    device: str = "cpu"
    seed: int = 1234
    standard: str = DOCUMENTED
    error_data: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)


def check(adapter: FrameworkAdapter, dump: Dump, case: Case, options: CheckOptions) -> CaseResult:
    """Check one case. What cannot be run is a result too, with the reason."""
    try:
        prepared = prepare(adapter.execution, dump, case, options.seed)
        return _checked(adapter, dump, prepared, options)
    except (Unreadable, UnknownValue, DumpFormatError) as error:
        why = reason(error)
    except MemoryError:
        why = "there is not enough memory for it"
    except Exception as error:
        # A defect of ours concerns this case and no other.
        why = f"msprobe failed: {reason(error)}"
        log.warning(f"{case.name} is not checked: {why}\n{traceback.format_exc()}", once="precheck-failed")
    return CaseResult(case.name, case.base, not_run=why, stands_for=case.stands_for)


def _checked(adapter: FrameworkAdapter, dump: Dump, prepared: Prepared, options: CheckOptions) -> CaseResult:
    case, call = prepared.case, prepared.call
    autocast, why = "", prepared.backward_not_run
    try:
        reference = call.reference
    except Exception as error:
        if not call.of_outputs:
            return _not_run(prepared, f"the reference cannot be computed: {reason(error)}")
        # A backward that the framework does not have is no reason to leave the forward out.
        call.of_outputs, why = [], f"the reference cannot be computed: {reason(error)}"
        return _checked(adapter, dump, _without_backward(prepared, why), options)
    raised: list[JudgedResult] = []
    try:
        if options.device == RECORDED:
            results = recorded_results(dump, prepared, reference)
            reference = _as_far_as_recorded(reference, results)
            if call.of_outputs and not any(each.value is not None for each in results.gradients):
                why = why or _NO_RECORDED_GRADIENTS
        else:
            results, autocast = run_as_recorded(adapter.execution, prepared, options.device)
    except Exception as error:
        if options.device == RECORDED or _is_no_fault(error):
            return _not_run(prepared, f"it cannot be run on {options.device}: {reason(error)}")
        # The reference has no trouble with these inputs, and the recorded run had none.
        direction = BACKWARD if call.of_outputs else FORWARD
        raised = [_raised(f"{case.name}.{direction}", f"it raises {reason(error)}")]
        if not call.of_outputs:
            return _without_results(prepared, raised, options)
        prepared, reference = _without_backward(prepared, ""), replace(reference, gradients=[])
        call.of_outputs = []
        try:
            results, autocast = run_as_recorded(adapter.execution, prepared, options.device)
        except Exception as of_forward:
            return _without_results(prepared, [_raised(case.forward.name, f"it raises {reason(of_forward)}")], options)
    rows = (*judge_results(prepared, results, reference, options.device, autocast), *raised)
    if _fails(rows) and not autocast and options.device != RECORDED:
        half = half_of_mixed([leaf.dtype for leaf in prepared.arguments.leaves])
        cast = None if half is None else _under_autocast(prepared, results, reference, options.device, half)
        if half is not None and cast is not None:
            (results, rows), autocast = cast, half
    # Dropout is judged by what it promises of its draws.
    others = [row for row in rows if row.verdict.bound != dropout.BOUND]
    if _fails(others) and draws_random_numbers(adapter.execution, prepared, options.device, autocast):
        return _not_run(prepared, "it draws random numbers")
    inputs = "generated" if prepared.generated else "recorded"
    saved: tuple[str, ...] = ()
    if options.error_data is not None and any(row.verdict.status in FAILURES for row in rows):
        saved = _saved(adapter, options.error_data, prepared, results, reference)
    details = details_rows(case, prepared.arguments, results, reference, options.standard, dump.framework)
    details += raised_rows(raised, options.standard)
    return CaseResult(case.name, case.base, rows, "", why, case.stands_for, autocast, inputs, saved, details)


def _fails(rows: Iterable[JudgedResult]) -> bool:
    return any(row.verdict.status in (SUSPECT, *FAILURES) for row in rows)


def _under_autocast(
    prepared: Prepared, without: Results, reference: Results, device: str, half: str
) -> tuple[Results, tuple[JudgedResult, ...]] | None:
    """The call under autocast, if it is right then: not every function shows by its dtype that it was cast.

    What autocast changes nothing of (`without` it the results are the same) has no other tolerance for its sake.
    """
    try:
        results = prepared.call.on(device, half)
    except Exception:
        # It could not have been recorded so.
        return None
    if are_equal(results, without):
        return None
    rows = tuple(judge_results(prepared, results, reference, device, half))
    return None if _fails(rows) else (results, rows)


def _is_no_fault(error: BaseException) -> bool:
    """Whether there is no kernel for the dtype or the device, or no memory for the call."""
    text = str(error).lower()
    return isinstance(error, (NotImplementedError, MemoryError)) or any(words in text for words in _NO_FAULT)


def _raised(name: str, text: str) -> JudgedResult:
    """The row of a direction that could not be run, though its reference was."""
    of = "" if name.endswith(FORWARD) else "every input"
    return JudgedResult(name, of, "", "", (), Verdict(ERROR, text))


def _without_results(prepared: Prepared, raised: Sequence[JudgedResult], options: CheckOptions) -> CaseResult:
    case = prepared.case
    details = raised_rows(raised, options.standard)
    return CaseResult(case.name, case.base, tuple(raised), stands_for=case.stands_for, details=details)


def _saved(
    adapter: FrameworkAdapter, folder: str, prepared: Prepared, results: Results, reference: Results
) -> tuple[str, ...]:
    """The files of what failed; none where they cannot be written, which costs no verdict."""
    leaves = [(values, leaf.dtype) for values, leaf in zip(prepared.leaves, prepared.arguments.leaves)]
    of_outputs = [
        (values, plain_name(item.dtype or ""))
        for values, item in zip(prepared.of_outputs, prepared.outputs)
        if values is not None
    ]
    try:
        return write_error_data(adapter, folder, prepared.case.name, leaves, of_outputs, results, reference)
    except Exception as error:
        log.warning(f"{prepared.case.name}: its values are not written: {error}", once="precheck-error-data")
        return ()


def _as_far_as_recorded(reference: Results, results: Results) -> Results:
    """`reference` without the gradients that the dump does not have."""
    gradients = [
        expected if found.value is not None else replace(expected, value=None, dtype=None)
        for found, expected in zip(results.gradients, reference.gradients)
    ]
    return replace(reference, gradients=gradients)


def _without_backward(prepared: Prepared, why: str) -> Prepared:
    return replace(prepared, of_outputs=[], backward_not_run=why)


def _not_run(prepared: Prepared, why: str) -> CaseResult:
    return CaseResult(prepared.case.name, prepared.case.base, not_run=why, stands_for=prepared.case.stands_for)
