"""Every operation inside of a block checked while it runs: against float64 on the CPU, by what it can reach."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Optional

from probe.backends.protocol import FrameworkAdapter, execution_of
from probe.calls.evaluation import outputs_of
from probe.calls.prepared import reason
from probe.calls.verdict.subject import FAILURES, SEVERITY, SUSPECT, KernelVerdict, Value
from probe.common import files, log
from probe.common.errors import MsprobeException
from probe.common.interfaces import Handle
from probe.common.numerics.formats import is_float, rounding_format
from probe.common.report.csv_lines import Cell, csv_line
from probe.runtime_checks.running_call import RunningCall, exact_call, kept_random_states

HEADER = (
    "operation", "output_index", "dtype", "shape", "verdict", "ratio", "tolerance", "worst_index", "worst_result",
    "worst_reference", "max_ulp", "interpretation",
)  # fmt: skip
_MOST_SHOWN = 20
"""Operators that are printed; a guess."""


@dataclass(frozen=True)
class Budget:
    """The limits on what is checked.

    Args:
        every: Each operator's first call, and every so many after it.
        most_elements: Calls whose tensors have more elements together are left out.
        share: The part of the program's own time that checking may take; ``None`` for any.
    """

    every: int = 1
    most_elements: int = 1 << 22
    share: Optional[float] = None  # noqa: UP045 (evaluated, on Python 3.9 too)

    def __post_init__(self) -> None:
        for name in ("every", "most_elements"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise MsprobeException(f"online_check: {name} is {value!r}; allowed: an integer from 1.")
        if self.share is not None and (not isinstance(self.share, (int, float)) or not self.share > 0):
            raise MsprobeException(f"online_check: share is {self.share!r}; allowed: a number above 0, or None.")


@dataclass(frozen=True)
class OperatorResult:
    """One result of an operator that is not what it can be."""

    name: str
    """``Aten.mm.0``: the operator, and which of its calls it was."""
    output: int
    dtype: str
    shape: tuple[int, ...]
    verdict: KernelVerdict


@dataclass
class OnlineCheck:
    """A context manager inside of which every operator of this thread is checked, and of the backward that it begins.

    The program's results are what they are without it, bitwise.

    Args:
        adapter: The framework.
        budget: How much is checked.
        names: Operators, as ``mm``; empty for all.
        folder: Gets a table of the failing results; ``None`` for no file.
    """

    adapter: FrameworkAdapter
    budget: Budget = field(default_factory=Budget)
    names: Collection[str] = ()
    folder: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    checked: int = 0
    """Calls that were checked."""
    failures: list[OperatorResult] = field(default_factory=list)
    suspects: list[OperatorResult] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """The number of calls that were not checked, by the reason."""
    counts: Counter[str] = field(default_factory=Counter)
    """The number of times that each operator was called."""
    seconds: float = 0.0
    """The seconds that checking took."""

    def __post_init__(self) -> None:
        self._handle: Handle | None = None

    # --- the block

    def __enter__(self) -> OnlineCheck:
        self._handle = execution_of(self.adapter).attach_operators(self)
        if self._handle is None:
            raise MsprobeException(
                f"online_check: {self.adapter.framework} offers no way to see its operators while they run; use task "
                '"free_benchmark", or record the step and run msprobe acc_check.'
            )
        self._begun = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._handle is not None:
                self._handle.remove()
        except Exception as problem:
            self.failed("the end of online_check", problem)
        try:
            for line in self.lines():
                (log.warning if self.failures else log.info)(line)
            if self.folder is not None and self.failures:
                log.info(f"online_check: written: {self._write(self.folder)}.")
        except Exception as problem:
            self.failed("the table of online_check", problem)

    # --- operators

    def enter_operator(
        self, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> RunningCall | None:
        if self.names and name.split(".")[1] not in self.names:
            return None
        number = self.counts[name]
        self.counts[name] += 1
        if number % self.budget.every:
            return None
        begun = time.monotonic()
        if self.budget.share is not None and self.seconds > self.budget.share * (begun - self._begun - self.seconds):
            self.left_out["the share of time is used up"] += 1
            return None
        call = None
        try:
            call = RunningCall.of(self.adapter, f"{name}.{number}", function, args, kwargs, self.budget.most_elements)
        except Exception as error:
            self.left_out[reason(error)] += 1
        self.seconds += time.monotonic() - begun
        return call if call is not None and call.inputs else None

    def leave_operator(self, entered: Any, output: Any) -> None:
        begun = time.monotonic()
        try:
            with kept_random_states(execution_of(self.adapter)):
                results = self._results(entered, output)
        finally:
            self.seconds += time.monotonic() - begun
        self.failures += [each for each in results if each.verdict.status in FAILURES]
        self.suspects += [each for each in results if each.verdict.status == SUSPECT]

    def _results(self, call: RunningCall, output: Any) -> list[OperatorResult]:
        try:
            results = list(self._judged(call, output))
        except Exception as error:
            self.left_out[reason(error)] += 1
            return []
        self.checked += 1
        return results

    def _judged(self, call: RunningCall, output: Any) -> Iterator[OperatorResult]:
        outputs = outputs_of(call.execution, output)
        exact = exact_call(call, call.values())
        for index, result in enumerate(outputs):
            if result.dtype is None or not is_float(result.dtype) or not result.value.size:
                continue
            # What an operator keeps for its backward beside its result, the sums of softmax say, has a wider dtype than
            # what it was computed in.
            precision = _lowest(call.dtypes) if index else ""
            verdict = exact.verdict(index, result, precision=precision)
            yield OperatorResult(call.name, index, result.dtype, result.value.shape, verdict)

    def failed(self, about: Any, error: Exception) -> None:
        text = f"online_check: {about}: {type(error).__name__}: {error}; the program goes on."
        log.warning(text, once=f"online_check {type(error).__name__}: {error}")

    # --- what was found

    def lines(self) -> Iterator[str]:
        """The answer: a line for each operator that fails, the worst first."""
        summary = f"online_check: {self.checked} operations checked, {len(self.failures)} results wrong"
        summary += f", {len(self.suspects)} suspect" if self.suspects else ""
        yield f"{summary}; {self.seconds:.1f} s."
        worst: dict[str, OperatorResult] = {}
        counts: Counter[str] = Counter()
        for each in sorted(self.failures, key=_badness, reverse=True):
            operator = each.name.rpartition(".")[0]
            worst.setdefault(operator, each)
            counts[operator] += 1
        for operator, each in list(worst.items())[:_MOST_SHOWN]:
            times = f", {counts[operator]} results" if counts[operator] > 1 else ""
            text = each.verdict.interpretation
            yield f"{each.verdict.status}: {each.name} {each.dtype} {list(each.shape)}{times}: {text}"
        if len(worst) > _MOST_SHOWN:
            yield f"... and {len(worst) - _MOST_SHOWN} more operators."
        for why, count in self.left_out.most_common(3):
            yield f"not checked, {count}: {why}"

    def _write(self, folder: str) -> str:
        rank = self.adapter.rank()
        stamp = f"rank{0 if rank is None else rank}_{time.strftime('%Y%m%d%H%M%S')}"
        inner = os.path.join(folder, f"msprobe_{stamp}")
        files.make_folder(inner)
        path = os.path.join(inner, f"compare_result_{stamp}.csv")
        with files.replacing(path) as stream:
            stream.write(csv_line(HEADER))
            stream.writelines(csv_line(_cells(each)) for each in self.failures)
        return path


def _cells(result: OperatorResult) -> list[Cell]:
    said = result.verdict
    index = None if said.worst_index is None else str(said.worst_index)
    return [
        result.name, result.output, result.dtype, str(list(result.shape)), said.status, said.ratio, said.tolerance,
        index, _number(said.worst_result), _number(said.worst_reference), said.max_ulp, said.interpretation,
    ]  # fmt: skip


def _number(value: Value) -> Cell:
    return str(value) if isinstance(value, (bool, complex)) else value


def _lowest(dtypes: Sequence[str]) -> str:
    """The one of fewest digits; empty where none is one of floating-point numbers."""
    forms = [form for form in map(rounding_format, dtypes) if form is not None]
    return min(forms, key=lambda form: form.digits).name if forms else ""


def _badness(result: OperatorResult) -> tuple[int, float]:
    return SEVERITY[result.verdict.status], result.verdict.ratio or 0.0
