"""The rows of a case in the drop-in table of details, judged by the rules of msProbe."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from probe.calls.arguments import Arguments
from probe.calls.cases import Case
from probe.calls.evaluation import Output, Results
from probe.calls.judged_results import JudgedResult
from probe.common.dump.frameworks import of_dump
from probe.common.dump.naming import BACKWARD
from probe.common.dump.reading.items import OUTPUT
from probe.precheck.standards.constants import RELEASE
from probe.precheck.standards.outputs import Tensor, judge_output
from probe.precheck.tables.details import ERROR, SKIP, DetailsRow


def details_rows(
    case: Case, arguments: Arguments, results: Results, reference: Results, standard: str, framework: str
) -> tuple[DetailsRow, ...]:
    """A row for each output, and one for each tensor among the arguments: its gradient, or that there is none."""
    mindspore = of_dump(framework).in_msprobe_mindspore
    prefix = f"{case.forward.name}.{OUTPUT}"
    try:
        returned = _values(results.returned), _values(reference.returned)
        rows = judge_output(case.base, *returned, prefix, standard, mindspore)
    except IndexError as error:
        # What 26.2 makes of a device that returns fewer items than the reference.
        return (DetailsRow(f"{prefix}.0", SKIP, str(error)),)
    if results.gradients:
        found, expected = _by_argument(arguments, results), _by_argument(arguments, reference)
        rows += judge_output(case.base, found, expected, f"{case.name}.{BACKWARD}.{OUTPUT}", standard, mindspore)
    return tuple(rows)


def raised_rows(rows: Iterable[JudgedResult], standard: str) -> tuple[DetailsRow, ...]:
    """The rows of directions that raised; msProbe leaves what it cannot run out of its judgement."""
    status = SKIP if standard == RELEASE else ERROR
    return tuple(DetailsRow(f"{row.name}.{OUTPUT}.0", status, row.verdict.interpretation) for row in rows)


def _values(returned: Any) -> Any:
    if isinstance(returned, Output):
        return returned.value if returned.dtype is None else Tensor(returned.value, returned.dtype)
    if isinstance(returned, dict):
        return {key: _values(each) for key, each in returned.items()}
    return [_values(each) for each in returned]


def _by_argument(arguments: Arguments, results: Results) -> list[Any]:
    gradients = {output.path: output for output in results.gradients}
    found = [gradients.get(str(leaf.number)) for leaf in arguments.leaves]
    return [None if each is None else _values(each) for each in found]
