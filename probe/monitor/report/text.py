"""A judged run, and two runs beside each other, in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from probe.monitor.alerts.families import module_of
from probe.monitor.report.coverage import coverage_lines
from probe.monitor.report.judging import JudgedRun
from probe.monitor.report.two_runs import TwoRuns

_MOST_SHOWN, _MOST_INCIDENTS = 10, 3
_FROM_OUTSIDE = {
    "actv": "the value belongs to the whole model: look at the batch, and at calls outside of modules",
    "actv_grad": "the gradient enters the model here: look at the loss, its scale, and the batch",
}
_FED_BY_NO_MODULE = {
    "actv": "no recorded output of a module feeds it: look at the batch, and at calls outside of modules",
    "actv_grad": "no recorded gradient of a module feeds it: look at the loss, its scale, and the batch",
}
BAD, SOFT = "bold red", "dim"


class TextLine(NamedTuple):
    """A line of text, with a style of rich."""

    text: str
    style: str = ""


def run_lines(judged: JudgedRun) -> Iterator[TextLine]:
    """The row that began, the rows that fed it, the ranks that followed, and the first alerts."""
    run = judged.run
    yield from (TextLine(note, SOFT) for note in run.notes)
    steps = run.steps
    span = f"steps {steps[0]} to {steps[-1]}" if steps else "no steps"
    worst = judged.worst
    if worst is None:
        yield TextLine(f"no alert: {run.path}: {span}, {_count(len(run.ranks), 'rank')}")
        yield from (TextLine(line, SOFT) for line in coverage_lines(judged.watched))
        return
    first = worst.first
    yield TextLine(judged.headline, BAD)
    yield TextLine(f"  {first.op} {first.value:.6g}, expected {first.expected}")
    for each in judged.feeding:
        size = "not recorded" if each.size is None else f"{each.size:.6g}"
        state = "abnormal" if each.is_abnormal else "as usual"
        yield TextLine(f"  fed by {each.name} ({each.family}): norm {size}, {state}")
    if worst.names_a_cause:
        pass
    elif first.family in _FROM_OUTSIDE and module_of(first.name) == "":
        yield TextLine(f"  {_FROM_OUTSIDE[first.family]}")
    elif first.family in _FED_BY_NO_MODULE and not any(each.family == first.family for each in judged.feeding):
        yield TextLine(f"  {_FED_BY_NO_MODULE[first.family]}")
    elif not any(each.is_abnormal for each in judged.feeding) and judged.feeding:
        yield TextLine("  the rows that fed it are as usual: the fault is in this module, or in its weights")
    for rank, step in sorted(judged.followed.items()):
        yield TextLine(f"  rank {rank} follows at step {step}")
    others = [each for each in judged.incidents if each is not worst]
    for incident in others[:_MOST_INCIDENTS]:
        alerts = _count(len(incident.findings), "alert")
        yield TextLine(f"other incident ({alerts}): {incident.first.text()}")
    if len(others) > _MOST_INCIDENTS:
        yield TextLine(f"{_count(len(others) - _MOST_INCIDENTS, 'more incident')}; --json has all of them")
    yield TextLine(f"{_count(len(judged.findings), 'alert')} in {run.path}, {span}, {_count(len(run.ranks), 'rank')}:")
    shown = worst.findings[:_MOST_SHOWN]
    yield from (TextLine(f"  {found.text()}") for found in shown)
    if len(judged.findings) > len(shown):
        yield TextLine(f"  {len(judged.findings) - len(shown)} more; --json has all of them")


def two_runs_lines(judged: JudgedRun, other: JudgedRun, difference: TwoRuns) -> Iterator[TextLine]:
    """The answer about each run, and the first value that differs."""
    yield from run_lines(judged)
    yield from run_lines(other)
    first = difference.first
    if first is None:
        yield TextLine(
            f"no difference beyond rounding in {difference.compared} rows of {difference.steps} common steps"
        )
        return
    yield TextLine(f"first difference: {first.text()}", BAD)
    yield TextLine(f"  {_count(first.rows, 'row')} part in this step")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
