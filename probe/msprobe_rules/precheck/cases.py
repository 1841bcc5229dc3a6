"""The rules of msProbe for a case: its rows in the drop-in table of details, and the tables of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from probe.calls.arguments import RecordedArguments
from probe.calls.evaluation import Output, Results
from probe.calls.judged_results import JudgedResult
from probe.common.dump.frameworks import of_dump
from probe.common.dump.naming import BACKWARD
from probe.common.dump.reading.items import OUTPUT
from probe.msprobe_rules.output.details import SKIP, DetailsRow
from probe.msprobe_rules.precheck.case_tables import DropInTables
from probe.msprobe_rules.precheck.methods import Method
from probe.msprobe_rules.precheck.our_outputs import by_verdicts
from probe.msprobe_rules.precheck.outputs import Tensor
from probe.precheck.case_results import EvaluatedCase


@dataclass(frozen=True)
class MsprobeCases:
    """The rules of msProbe as `probe.precheck.rules.CaseRules`.

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
            rows = self._of_results(evaluated, evaluated.results, mindspore=of_dump(framework).in_msprobe_mindspore)
            rows = by_verdicts(rows, judged) if self.method.follows_verdicts else rows
        return tuple(vars(row) for row in (*rows, *self._of_raised(evaluated.raised)))

    def _of_results(self, evaluated: EvaluatedCase, results: Results, mindspore: bool) -> list[DetailsRow]:
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

    def _of_raised(self, rows: Iterable[JudgedResult]) -> Iterable[DetailsRow]:
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
