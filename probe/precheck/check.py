"""One case checked, in three steps: evaluated on the device and in float64, judged, explained; its failing values."""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from numpy.typing import NDArray

from probe.backends.protocol import FrameworkAdapter, UnknownValue, execution_of
from probe.calls.arguments import Unreadable
from probe.calls.cases import Case, unloaded
from probe.calls.evaluation import Output, Results, raise_unless_refusal
from probe.calls.judged_results import JudgedResult, are_equal, draws_random_numbers, judge_results
from probe.calls.prepared import (
    RECORDED,
    half_of_mixed,
    most_elements,
    needed,
    needed_in_parts,
    prepare,
    reason,
    why_too_much,
)
from probe.calls.verdict import dropout
from probe.calls.verdict.subject import FAILURES, SUSPECT
from probe.common import files, log
from probe.common.dump.naming import file_name
from probe.common.dump.reading.dump import Dump
from probe.common.errors import DumpFormatError
from probe.common.interfaces import TensorFile
from probe.common.numerics.formats import plain_name
from probe.precheck import in_parts
from probe.precheck.case_results import CaseResult, CaseRules, EvaluatedCase, NotRun, evaluate


@dataclass(frozen=True)
class CheckOptions:
    """The options for checking cases.

    Args:
        device: Where they are run: ``cpu``, ``cuda:0``; ``recorded`` judges the results of the dump.
        seed: The seed of generated inputs, besides the name of the record.
        rules: Rules that judge each case besides ours, for tables of their own; ``None`` for none.
        error_data: The folder for inputs and results that fail; none are written without.
        max_memory: Bytes that one case may take; one that needs more is not run.
    """

    device: str = "cpu"
    seed: int = 1234
    rules: Optional[CaseRules] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    error_data: Optional[str] = None  # noqa: UP045
    max_memory: float = math.inf


@dataclass(frozen=True)
class JudgedCase:
    """A case with the verdicts on its results."""

    evaluated: EvaluatedCase
    rows: tuple[JudgedResult, ...]

    @property
    def fails(self) -> bool:
        """True if a result is wrong or suspect."""
        return _fails(self.rows)


def check(adapter: FrameworkAdapter, dump: Dump, case: Case, options: CheckOptions) -> CaseResult:
    """Check one case. If it cannot be run, the result says why."""
    try:
        if most_elements(case) >= in_parts.LARGE:
            found = _large(adapter, dump, case, options)
            if found is not None:
                return found
        prepared = prepare(execution_of(adapter), dump, case, options.seed)
        evaluated = evaluate(execution_of(adapter), dump, prepared, options.device)
        judged = judge(adapter, evaluated, options.device)
        return explain(adapter, dump, judged, options)
    except NotRun as error:
        why = str(error)
    except (Unreadable, UnknownValue, DumpFormatError) as error:
        why = reason(error)
    except MemoryError:
        why = "there is not enough memory for it"
    except Exception as error:
        # A defect of ours concerns this case and no other.
        why = f"msprobe failed: {reason(error)}"
        log.warning(f"{case.name} is not checked: {why}\n{traceback.format_exc()}", once="precheck-failed")
    return CaseResult(case.name, case.base, not_run=why, stands_for=case.stands_for)


def _large(adapter: FrameworkAdapter, dump: Dump, case: Case, options: CheckOptions) -> CaseResult | None:
    """The result of a case on large tensors if it can be judged in parts; ``None`` if it is to be judged as a whole.

    Raises:
        NotRun: it needs more memory than it may take.
        Unreadable: it cannot be run from what the dump has.
    """
    outline = prepare(execution_of(adapter), dump, case, options.seed, load=unloaded)
    with_rules = options.rules is not None
    if in_parts.is_possible(outline, options.device):
        _check_memory(needed_in_parts(outline, with_rules), options)
        try:
            found = in_parts.judge_in_parts(
                execution_of(adapter), dump, outline, options.seed, options.device, keep_whole=with_rules
            )
            # The files of failing values are those of the worst part.
            return explain(adapter, dump, JudgedCase(found.worst, found.rows), options, found.whole)
        except Exception as error:
            raise_unless_refusal(error)
            # It is raised as a whole again, and what it means is said there.
            log.info(f"{case.name} cannot be judged in parts: {reason(error)}")
    _check_memory(needed(outline), options)
    return None


def _check_memory(need: float, options: CheckOptions) -> None:
    if need > options.max_memory:
        raise NotRun(why_too_much(need, options.max_memory))


def judge(adapter: FrameworkAdapter, evaluated: EvaluatedCase, device: str) -> JudgedCase:
    """Judge each result of a case; one that fails is looked at again under autocast.

    Raises:
        NotRun: the results depend on random numbers.
    """
    judged = _judged(evaluated, device)
    if judged.fails and not evaluated.autocast and device != RECORDED:
        judged = _under_autocast(evaluated, device) or judged
    # Dropout is judged by what it promises of its draws.
    others = [row for row in judged.rows if row.verdict.bound != dropout.BOUND]
    after = judged.evaluated
    may_draw = after.results is not None and _fails(others)
    if may_draw and draws_random_numbers(execution_of(adapter), after.prepared, device, after.autocast):
        raise NotRun("it draws random numbers")
    return judged


def _judged(evaluated: EvaluatedCase, device: str) -> JudgedCase:
    results, raised = evaluated.results, evaluated.raised
    if results is None:
        return JudgedCase(evaluated, raised)
    rows = judge_results(evaluated.prepared, results, evaluated.reference, device, evaluated.autocast)
    return JudgedCase(evaluated, (*rows, *raised))


def _fails(rows: Iterable[JudgedResult]) -> bool:
    return any(row.verdict.status in (SUSPECT, *FAILURES) for row in rows)


def _under_autocast(without: EvaluatedCase, device: str) -> JudgedCase | None:
    """The case under autocast, if it is right then: not every function shows by its dtype that it was cast.

    Where autocast changes no result, the tolerance is not that of autocast either.

    Raises:
        MemoryError: there is no memory to find out.
        RecursionError: the stack is too deep already.
    """
    half = half_of_mixed([leaf.dtype for leaf in without.prepared.arguments.leaves])
    if half is None or without.results is None:
        return None
    try:
        results = without.prepared.call.on(device, half)
    except Exception as error:
        raise_unless_refusal(error)
        # It could not have been recorded so.
        return None
    if are_equal(results, without.results):
        return None
    rows = tuple(judge_results(without.prepared, results, without.reference, device, half))
    return None if _fails(rows) else JudgedCase(replace(without, results=results, autocast=half), rows)


def explain(
    adapter: FrameworkAdapter, dump: Dump, judged: JudgedCase, options: CheckOptions, whole: EvaluatedCase | None = None
) -> CaseResult:
    """The result of a case: its verdicts, how it was run, the files of failing values, and rows of other rules.

    Args:
        adapter: The framework.
        dump: The dump of the case.
        judged: The case, or a part of it with the verdicts on all parts.
        options: The options of the run.
        whole: The case as other rules judge it, if `judged` is a part.
    """
    evaluated, prepared = judged.evaluated, judged.evaluated.prepared
    case = prepared.case
    details = None if options.rules is None else options.rules.judge(whole or evaluated, judged.rows, dump.framework)
    if evaluated.results is None:
        return CaseResult(case.name, case.base, judged.rows, stands_for=case.stands_for, details=details)
    saved: tuple[str, ...] = ()
    if options.error_data is not None and any(row.verdict.status in FAILURES for row in judged.rows):
        saved = _saved(adapter, options.error_data, evaluated)
    return CaseResult(
        case.name,
        case.base,
        judged.rows,
        backward_not_run=prepared.backward_not_run,
        stands_for=case.stands_for,
        autocast=evaluated.autocast,
        inputs="generated" if prepared.generated else "recorded",
        saved=saved,
        details=details,
    )


def _saved(adapter: FrameworkAdapter, folder: str, evaluated: EvaluatedCase) -> tuple[str, ...]:
    """The files of a failing case; none where they cannot be written, which costs no verdict."""
    prepared, results = evaluated.prepared, evaluated.results
    assert results is not None
    leaves = [(values, leaf.dtype) for values, leaf in zip(prepared.leaves, prepared.arguments.leaves)]
    output_gradients = [
        (values, plain_name(item.dtype or ""))
        for values, item in zip(prepared.output_gradients, prepared.outputs)
        if values is not None
    ]
    try:
        return write_error_data(
            adapter, folder, prepared.case.name, leaves, output_gradients, results, evaluated.reference
        )
    except Exception as error:
        log.warning(f"{prepared.case.name}: its values are not written: {error}", once="precheck-error-data")
        return ()


# --- the files of a failing case

Array = NDArray[Any]


def write_error_data(
    adapter: FrameworkAdapter,
    folder: str,
    case: str,
    inputs: Sequence[tuple[Array, str]],
    output_gradients: Sequence[tuple[Array, str]],
    results: Results,
    reference: Results,
) -> tuple[str, ...]:
    """Write what a case was run with and what came of it, on the device and in high precision (``bench``).

    Args:
        folder: The folder of the files, which is made if it is not there.
        case: ``Functional.silu.0``, with which the names of the files begin.
        inputs: Values and dtypes of the tensors that went in, in order.
        output_gradients: The values and dtypes of the gradients of the outputs.

    Returns:
        The paths of the files.

    Raises:
        OSError: they cannot be written.
        FileCheckException: the folder cannot be made.
    """
    files.make_folder(folder)
    named = [(f"forward.input.{index}", *each) for index, each in enumerate(inputs)]
    named += [(f"backward.input.{index}", *each) for index, each in enumerate(output_gradients)]
    for side, found in (("bench", reference), ("device", results)):
        named += [(f"forward.output.{side}.{index}", *each) for index, each in _arrays(found.outputs)]
        named += [(f"backward.output.{side}.{index}", *each) for index, each in _arrays(found.gradients)]
    return tuple(_write(adapter, folder, f"{case}.{name}", values, dtype) for name, values, dtype in named)


def _arrays(outputs: Sequence[Output]) -> Iterator[tuple[str, tuple[Array, str]]]:
    for output in outputs:
        if output.dtype is not None:
            yield output.path, (output.value, output.dtype)


def _write(adapter: FrameworkAdapter, folder: str, stem: str, values: Array, dtype: str) -> str:
    file = adapter.tensors.tensor_file(execution_of(adapter).tensor(values, dtype, "cpu"), True)
    if not isinstance(file, TensorFile):
        raise OSError(f"{stem}: the framework has no file for a tensor of {dtype}")
    path = os.path.join(folder, file_name(stem, file.suffix))
    with files.replacing(path) as stream:
        for part in (file.head, file.data, file.tail):
            stream.write(part)
    return path
