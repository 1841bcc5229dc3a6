"""The drop-in tables of a pre-check: results, details, and the two of another device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from probe.calls.arguments import RecordedArguments
from probe.calls.evaluation import Output, Results
from probe.calls.judged_results import JudgedResult
from probe.common import files
from probe.common.dump.frameworks import of_dump
from probe.common.dump.naming import BACKWARD, FORWARD
from probe.common.dump.reading.items import OUTPUT
from probe.msprobe_rules.precheck import ours, v26_2
from probe.msprobe_rules.precheck.class_metrics import Tensor
from probe.msprobe_rules.precheck.details import ERROR, SKIP, DetailsRow, ResultRow, case_and_direction, read_details
from probe.msprobe_rules.precheck.form import ComparisonRow, Form, table_paths, write
from probe.msprobe_rules.precheck.layout import LAYOUTS
from probe.msprobe_rules.precheck.ours import by_verdicts, worst_of
from probe.precheck.case_results import AgainstDevice, CaseResult, EvaluatedCase, WrittenTables


@dataclass(frozen=True)
class Method:
    """The differences between the two methods."""

    name: str
    """The name of the method for ``--rules``."""
    follows_verdicts: bool
    """True if the statuses of rows are those of our verdicts."""
    raised: str
    """The status of a direction that raised."""
    outputs: Callable[[str, Any, Any, str, bool], Iterable[DetailsRow]]
    """The rows of everything that an API returned, from its base, the result, the reference, the beginning of the names
    of the rows, and whether they are of MindSpore. 26.2.0 raises IndexError where the device returned fewer items."""
    worst_of: Callable[[list[str]], str]
    """The status of a direction of a case, given those of its rows in order."""
    compare: Callable[[Sequence[DetailsRow], Sequence[DetailsRow]], tuple[list[ComparisonRow], list[ResultRow]]]
    """The rows of one device judged by those of another; a name that is in a file twice raises MsprobeException."""


PROBE_METHOD = Method("probe", True, ERROR, ours.measured_output, ours.worst_of, ours.compare)
"""Our verdicts."""
V26_2 = Method("msprobe", False, SKIP, v26_2.classify_output, v26_2.worst_of, v26_2.compare)
"""The judgement of msProbe 26.2, which does not judge a call that it cannot run."""


# --- case tables


class DropInTables:
    """The tables of one run, which have headings at once, because scripts look for their names, and rows at the end.

    Args:
        folder: Where they are written.
        time: The time in their names.
        framework: That of the dump.
        method: By which the status of a case and the verdict on two devices are made.
        headers: What they look like.
        against: A table of details of another device.

    Raises:
        FileCheckException: the table of the other device cannot be read.
        MsprobeException: that table is damaged, or another one.
    """

    def __init__(
        self, folder: str, time: str, framework: str, method: Method, headers: str, against: str | None
    ) -> None:
        # msProbe's details of MindSpore have nine columns.
        mindspore = headers == "msprobe" and of_dump(framework).in_msprobe_mindspore
        self._form = Form(LAYOUTS[headers], mindspore=mindspore)
        self._method, self._against = method, against
        if against is not None:
            # A mistake of the user's is found before the work.
            read_details(against)
        self._result_csv, self._details_csv = table_paths(folder, time)
        if not os.path.lexists(self._result_csv):
            self._write(())

    def write(self, results: Sequence[CaseResult]) -> WrittenTables:
        """Write the rows of all cases, and the verdict on two devices, if the table of another one is given."""
        self._write(results)
        paths = [self._result_csv, self._details_csv]
        if self._against is None:
            return WrittenTables(paths)
        compared_rows, cases = self._method.compare(read_details(self._details_csv), read_details(self._against))
        paths += write(os.path.dirname(self._details_csv) or os.curdir, compared_rows, cases, self._form.layout)
        worse = [row.name for row in cases if ERROR in (row.forward, row.backward)]
        compared = sum(row.forward != SKIP for row in cases)
        return WrittenTables(paths, AgainstDevice([vars(row) for row in cases], compared, worse))

    def _write(self, results: Sequence[CaseResult]) -> None:
        form = self._form
        lines = [form.heading_of_results()]
        with files.replacing(self._details_csv) as stream:
            stream.write(form.heading_of_details())
            for result in results:
                rows = [_details_row(fields) for fields in result.details or ()]
                stream.write(form.lines(rows))
                lines.append(form.result_line(self._result_row(result, rows)))
        with files.replacing(self._result_csv) as stream:
            stream.writelines(lines)

    def _result_row(self, result: CaseResult, rows: Sequence[DetailsRow]) -> ResultRow:
        """A case in the table of results."""
        if result.not_run:
            return ResultRow(result.name, SKIP, SKIP, result.not_run)
        of = {
            direction: [row.status for row in rows if case_and_direction(row.name)[1] == direction]
            for direction in (FORWARD, BACKWARD)
        }
        worst_of = self._method.worst_of
        backward = worst_of(of[BACKWARD]) if of[BACKWARD] else None
        why = result.backward_not_run
        return ResultRow(result.name, worst_of(of[FORWARD]), SKIP if why else backward, why)


def _details_row(fields: Mapping[str, Any]) -> DetailsRow:
    shape = fields["shape"]
    return DetailsRow(**{**fields, "shape": None if shape is None else tuple(shape)})


# --- cases


@dataclass(frozen=True)
class MsprobeCases:
    """The rules of msProbe as `probe.precheck.case_results.CaseRules`.

    Args:
        method: Our verdicts, or release 26.2.
        headers: ``english`` or ``msprobe``: what the tables look like.
        against: A table of details of another device, by which the cases are judged as well.
    """

    method: Method
    headers: str = "english"
    against: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)

    @property
    def name(self) -> str:
        """``probe`` or ``msprobe``."""
        return self.method.name

    def judge(
        self, evaluated: EvaluatedCase, judged: Sequence[JudgedResult], framework: str
    ) -> tuple[Mapping[str, Any], ...]:
        """A row for each output, and one for each tensor among the arguments: its gradient, or that there is none."""
        rows: list[DetailsRow] = []
        if evaluated.results is not None:
            rows = self._result_rows(evaluated, evaluated.results, mindspore=of_dump(framework).in_msprobe_mindspore)
            rows = by_verdicts(rows, judged) if self.method.follows_verdicts else rows
        return tuple(vars(row) for row in (*rows, *self._raised_rows(evaluated.raised)))

    def _result_rows(self, evaluated: EvaluatedCase, results: Results, mindspore: bool) -> list[DetailsRow]:
        case, arguments, reference = evaluated.prepared.case, evaluated.prepared.arguments, evaluated.reference
        prefix = f"{case.forward.name}.{OUTPUT}"
        returned = results.nested(_value), reference.nested(_value)
        try:
            rows = list(self.method.outputs(case.base, *returned, prefix, mindspore))
        except IndexError as error:
            return [DetailsRow(f"{prefix}.0", SKIP, str(error))]
        if results.gradients:
            found, expected = _by_argument(arguments, results), _by_argument(arguments, reference)
            rows += self.method.outputs(case.base, found, expected, f"{case.name}.{BACKWARD}.{OUTPUT}", mindspore)
        return rows

    def _raised_rows(self, rows: Iterable[JudgedResult]) -> Iterable[DetailsRow]:
        return (DetailsRow(f"{row.name}.{OUTPUT}.0", self.method.raised, row.verdict.interpretation) for row in rows)

    def tables(self, folder: str, time: str, framework: str) -> DropInTables:
        """The drop-in tables of a run."""
        return DropInTables(folder, time, framework, self.method, self.headers, self.against)


def _value(output: Output) -> Any:
    return output.value if output.dtype is None else Tensor(output.value, output.dtype)


def _by_argument(arguments: RecordedArguments, results: Results) -> list[Any]:
    gradients = {output.path: output for output in results.gradients}
    found = [gradients.get(str(leaf.number)) for leaf in arguments.leaves]
    return [None if each is None else _value(each) for each in found]


# --- two devices


@dataclass(frozen=True)
class ComparedCase:
    """One case, as the table of results has it, and the worse of its two statuses."""

    name: str
    forward: Optional[str]  # noqa: UP045 (evaluated, on Python 3.9 too)
    backward: Optional[str]  # noqa: UP045
    message: str
    worst: str


@dataclass(frozen=True)
class TwoDevices:
    """The outcome for two tables."""

    statuses: Sequence[str]
    """The statuses of the rows of details."""
    cases: Sequence[ComparedCase]
    paths: Sequence[str]
    """The two tables that were written."""

    @property
    def is_any_judged(self) -> bool:
        """True if a row has another status than that it was left out."""
        return any(status != SKIP for status in self.statuses)


def compare_devices(npu: str, gpu: str, folder: str, method: Method, headers: str) -> TwoDevices:
    """Judge the table of an NPU by that of a GPU, and write the two tables of that.

    Args:
        npu, gpu: The two tables of details.
        folder: Where the tables are written.
        method: Ours, or that of release 26.2.
        headers: ``english`` or ``msprobe``: what the tables look like.

    Raises:
        FileCheckException: a file cannot be read, or the folder cannot be made.
        MsprobeException: a table is damaged.
    """
    rows, results = method.compare(read_details(npu), read_details(gpu))
    paths = write(folder, rows, results, LAYOUTS[headers])
    cases = [
        ComparedCase(
            row.name,
            row.forward,
            row.backward,
            row.message,
            worst_of([status for status in (row.forward, row.backward) if status]),
        )
        for row in results
    ]
    return TwoDevices([row.status for row in rows], cases, paths)
