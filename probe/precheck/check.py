"""One case checked: evaluated on the device and in float64, and every output and gradient judged."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from probe.backends.protocol import FrameworkAdapter, UnknownValue
from probe.common import log
from probe.common.dump.naming import BACKWARD, FORWARD
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.items import OUTPUT
from probe.common.errors import DumpFormatError
from probe.common.numerics.formats import is_float, plain_name
from probe.precheck.calls.arguments import Unreadable
from probe.precheck.calls.cases import Case
from probe.precheck.calls.evaluation import Results
from probe.precheck.calls.prepared import (
    RECORDED,
    Prepared,
    half_of_mixed,
    prepare,
    reason,
    recorded_results,
    run_as_recorded,
)
from probe.precheck.first_stage import details_rows, raised_rows
from probe.precheck.output.error_data import write_error_data
from probe.precheck.result import CaseResult, Row
from probe.precheck.standards.constants import DOCUMENTED
from probe.precheck.verdict import dropout
from probe.precheck.verdict.subject import ERROR, EXACT, FAILURES, STRUCTURE, SUSPECT, Subject, Verdict
from probe.precheck.verdict.verdict import judge

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
        prepared = prepare(adapter, dump, case, options.seed)
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
    raised: list[Row] = []
    try:
        if options.device == RECORDED:
            results = recorded_results(dump, prepared, reference)
            reference = _as_far_as_recorded(reference, results)
            if call.of_outputs and not any(each.value is not None for each in results.gradients):
                why = why or _NO_RECORDED_GRADIENTS
        else:
            results, autocast = run_as_recorded(adapter, prepared, options.device)
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
            results, autocast = run_as_recorded(adapter, prepared, options.device)
        except Exception as of_forward:
            return _without_results(prepared, [_raised(case.forward.name, f"it raises {reason(of_forward)}")], options)
    rows = (*judged(prepared, results, reference, options.device, autocast), *raised)
    if _fails(rows) and not autocast and options.device != RECORDED:
        half = half_of_mixed([leaf.dtype for leaf in prepared.arguments.leaves])
        cast = None if half is None else _under_autocast(prepared, results, reference, options.device, half)
        if half is not None and cast is not None:
            (results, rows), autocast = cast, half
    # Dropout is judged by what it promises of its draws.
    others = [row for row in rows if row.verdict.bound != dropout.BOUND]
    if _fails(others) and is_random(adapter, prepared, options.device, autocast):
        return _not_run(prepared, "it draws random numbers")
    inputs = "generated" if prepared.generated else "recorded"
    saved: tuple[str, ...] = ()
    if options.error_data is not None and any(row.verdict.status in FAILURES for row in rows):
        saved = _saved(adapter, options.error_data, prepared, results, reference)
    details = details_rows(case, prepared.arguments, results, reference, options.standard, dump.framework)
    details += raised_rows(raised, options.standard)
    return CaseResult(case.name, case.base, rows, "", why, case.stands_for, autocast, inputs, saved, details)


def _fails(rows: Iterable[Row]) -> bool:
    return any(row.verdict.status in (SUSPECT, *FAILURES) for row in rows)


def _under_autocast(
    prepared: Prepared, without: Results, reference: Results, device: str, half: str
) -> tuple[Results, tuple[Row, ...]] | None:
    """The call under autocast, if it is right then: not every function shows by its dtype that it was cast.

    What autocast changes nothing of (`without` it the results are the same) has no other tolerance for its sake.
    """
    try:
        results = prepared.call.on(device, half)
    except Exception:
        # It could not have been recorded so.
        return None
    if _same(results, without):
        return None
    rows = tuple(judged(prepared, results, reference, device, half))
    return None if _fails(rows) else (results, rows)


def _is_no_fault(error: BaseException) -> bool:
    """Whether there is no kernel for the dtype or the device, or no memory for the call."""
    text = str(error).lower()
    return isinstance(error, (NotImplementedError, MemoryError)) or any(words in text for words in _NO_FAULT)


def _raised(name: str, text: str) -> Row:
    """The row of a direction that could not be run, though its reference was."""
    of = "" if name.endswith(FORWARD) else "every input"
    return Row(name, of, "", "", (), Verdict(ERROR, text))


def _without_results(prepared: Prepared, raised: Sequence[Row], options: CheckOptions) -> CaseResult:
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


def is_random(adapter: FrameworkAdapter, prepared: Prepared, device: str, autocast: str) -> bool:
    """Whether the function draws random numbers: another seed gives something else, the same seed does not."""
    where = "cpu" if device == RECORDED else device
    found = []
    for seed in (0, 0, 1):
        adapter.seed_draws(seed)
        try:
            found.append(prepared.call.on(where, autocast or None))
        except Exception:
            # What was recorded elsewhere may have no kernel here.
            return False
    first, again, other = found
    return _same(first, again) and not _same(first, other)


def _same(one: Results, other: Results) -> bool:
    pairs = zip([*one.outputs, *one.gradients], [*other.outputs, *other.gradients])
    return all(
        np.array_equal(first.value, second.value, equal_nan=first.value.dtype.kind in "fc")
        if isinstance(first.value, np.ndarray) and isinstance(second.value, np.ndarray)
        else first.value is second.value or bool(first.value == second.value)
        for first, second in pairs
    )


def judged(
    prepared: Prepared, results: Results, reference: Results, device: str, autocast: str
) -> Iterator[Row]:
    """A row for each of `results`, and for each gradient that there is."""
    return _Judge(prepared, results, reference, device, autocast).rows()


class _Judge:
    """Judges the results of one case."""

    def __init__(self, prepared: Prepared, results: Results, reference: Results, device: str, autocast: str) -> None:
        self._prepared, self._results, self._reference = prepared, results, reference
        self._autocast = autocast
        # On the CPU the kernel under test would be its own yardstick.
        self._has_yardstick = device not in ("cpu", RECORDED)
        self._yardstick: Results | None = None

    def rows(self) -> Iterator[Row]:
        """A row for each output, and for each gradient that there is."""
        case = self._prepared.case
        given, wanted = len(self._results.outputs), len(self._reference.outputs)
        if given != wanted:
            text = f"it returns {given} values where the reference has {wanted}"
            yield Row(f"{case.forward.name}.{OUTPUT}", "", "", "", (), Verdict(STRUCTURE, text))
            return
        for place, result in enumerate(self._results.outputs):
            yield self._row(f"{case.forward.name}.{OUTPUT}.{result.path}", "", "outputs", place)
        differentiated = [leaf for leaf in self._prepared.arguments.leaves if leaf.is_differentiated]
        for place, leaf in enumerate(differentiated if self._results.gradients else ()):
            found = self._results.gradients[place], self._reference.gradients[place]
            # The gradient of an input on which nothing depends is none in both.
            if any(each.value is not None for each in found):
                yield self._row(f"{case.name}.backward.{OUTPUT}.{leaf.number}", leaf.item.name, "gradients", place)

    def _row(self, name: str, of: str, part: str, place: int) -> Row:
        result, expected = getattr(self._results, part)[place], getattr(self._reference, part)[place]
        dtype = result.dtype or ""
        prepared, call = self._prepared, self._prepared.call
        inputs, dtypes = list(prepared.leaves), [leaf.dtype for leaf in prepared.arguments.leaves]
        if of:
            inputs += [each for each in prepared.of_outputs if each is not None]
            dtypes += [plain_name(item.dtype or "") for item in prepared.outputs][: len(inputs) - len(dtypes)]

        def pick(results: Results | None) -> Array | None:
            value = None if results is None else getattr(results, part)[place].value
            return value if isinstance(value, np.ndarray) else None

        if not isinstance(result.value, np.ndarray) or not isinstance(expected.value, np.ndarray):
            return _plain_row(name, of, result.value, expected.value)
        wanted = self._recorded_dtype(of, part, place)
        if wanted != dtype and is_float(wanted) and is_float(dtype):
            verdict = Verdict(STRUCTURE, f"{dtype} where {wanted} was recorded")
            return Row(name, of, dtype, expected.dtype or dtype, result.value.shape, verdict)
        verdict = judge(
            Subject(
                base=prepared.case.base,
                direction="backward" if of else "forward",
                result=result.value,
                reference=expected.value,
                dtype=dtype,
                inputs=inputs,
                input_dtypes=dtypes,
                moved=lambda unit, inside: pick(call.moved(unit, inside)),
                rounded=lambda precision: pick(call.rounded(precision)),
                yardstick=lambda: pick(self._on_cpu()),
                settings=prepared.arguments.settings,
                precision=self._autocast,
            )
        )
        return Row(name, of, dtype, expected.dtype or dtype, result.value.shape, verdict)

    def _recorded_dtype(self, of: str, part: str, place: int) -> str:
        """The dtype that the result had when it was recorded; that of a gradient is the dtype of its input."""
        if of:
            return self._prepared.arguments.leaves[int(getattr(self._results, part)[place].path)].dtype
        tensors = [number for number, output in enumerate(self._results.outputs) if output.dtype is not None]
        recorded = self._prepared.outputs
        fits = len(tensors) == len(recorded)
        return plain_name(recorded[tensors.index(place)].dtype or "") if fits else ""

    def _on_cpu(self) -> Results | None:
        """What the CPU's own kernel of the device's dtype makes of the case."""
        if self._has_yardstick:
            self._has_yardstick = False
            # Kernels of half precision are missing on CPUs; the other tolerances stay.
            with contextlib.suppress(Exception):
                self._yardstick = self._prepared.call.on("cpu", self._autocast or None)
        return self._yardstick


def _plain_row(name: str, of: str, result: Any, expected: Any) -> Row:
    """The row of what is no tensor on one side: a number, a text, a gradient that is not there."""
    kind, expected_kind = type(result).__name__, type(expected).__name__
    if isinstance(result, np.ndarray) or isinstance(expected, np.ndarray) or kind != expected_kind:
        verdict = Verdict(STRUCTURE, f"{_spoken(result)} where the reference has {_spoken(expected)}")
    elif result == expected or result != result:
        verdict = Verdict(EXACT, "equal", "exact")
    else:
        verdict = Verdict(ERROR, f"{result!r} where the reference has {expected!r}", "exact")
    return Row(name, of, kind, expected_kind, (), verdict)


def _spoken(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"a tensor of shape {list(value.shape)}"
    return "nothing" if value is None else f"a value of type {type(value).__name__}"
