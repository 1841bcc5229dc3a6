"""Cases of which only the drop-in tables are left, as results of the pre-check with the statuses of these tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from probe.calls.judged_results import JudgedResult
from probe.calls.verdict import subject
from probe.calls.verdict.subject import KernelVerdict
from probe.common.dump.naming import BACKWARD, FORWARD
from probe.msprobe_rules.output.details import ERROR, PASS, SKIP, WARNING, DetailsRow, case_and_direction
from probe.msprobe_rules.output.results import ResultRow
from probe.msprobe_rules.output.run_files import Resumed
from probe.precheck.result import CaseResult

_STATUSES = {PASS: subject.PASS, WARNING: subject.SUSPECT, ERROR: subject.ERROR, SKIP: subject.NOT_RUN}
_SKIPPED = "skipped by the run that began this table"


def finished_cases(resumed: Resumed) -> dict[str, CaseResult]:
    """The finished cases by name."""
    of_case: dict[str, list[DetailsRow]] = {}
    for row in resumed.details:
        of_case.setdefault(row.case, []).append(row)
    return {row.name: _case(row, of_case.get(row.name, ())) for row in resumed.results}


def _case(result: ResultRow, details: Sequence[DetailsRow]) -> CaseResult:
    name = result.name
    base = name.rpartition(".")[0]
    why = result.message or _SKIPPED
    if result.forward == SKIP:
        return CaseResult(name, base, not_run=why)
    rows = (*_rows(result, FORWARD, result.forward, details), *_rows(result, BACKWARD, result.backward, details))
    return CaseResult(name, base, rows, backward_not_run=why if result.backward == SKIP else "")


def _rows(
    result: ResultRow, direction: str, status: str | None, details: Sequence[DetailsRow]
) -> Iterator[JudgedResult]:
    """The rows of a direction; if none of the details has its status, one more row has it."""
    found = [row for row in details if case_and_direction(row.name)[1] == direction]
    if status is not None and status not in (SKIP, *(row.status for row in found)):
        found.append(DetailsRow(f"{result.name}.{direction}.output", status, result.message))
    for row in found:
        suffix = row.name.partition(".output")[2]
        of = f"{result.name}.{FORWARD}.input{suffix}" if direction == BACKWARD else ""
        text = f"{row.status} in the table of the earlier run{f': {row.message}' if row.message else ''}"
        verdict = KernelVerdict(_STATUSES[row.status], text)
        yield JudgedResult(row.name, of, row.device_dtype, row.bench_dtype, row.shape or (), verdict)
