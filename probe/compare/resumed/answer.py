"""The answer to whether a run was resumed in the state that it was interrupted in: the lost parts of that state."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Optional

from probe.common.align.calls import ERROR, PASS, WARNING
from probe.common.dump.reading.runs import find_dumps
from probe.compare.comparison import PairTask, compare_pair
from probe.compare.resumed.state import LOST, UNTOLD, First, State, Step, schedule, states
from probe.compare.resumed.steps import MatchedSteps, matched_steps
from probe.compare.runner import pair_tasks
from probe.compare.summary import in_words
from probe.compare.twice.answer import call_words
from probe.compare.twice.first_bits import OtherBits, own_calls


@dataclass(frozen=True)
class ResumedAnswer:
    """A resumed run, held against one that was not interrupted."""

    first: tuple[int, int]
    """The first step of the resumed run, and that of the other one which it is."""
    how: str
    """The evidence by which the two steps were matched, in words."""
    states: list[State]
    steps: list[tuple[int, int]]
    """The steps that were compared, of the resumed and of the other run."""
    found: Optional[OtherBits] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The first call that has other bits by itself."""
    at: tuple[int, int] = (0, 0)
    """The step of this call in both runs."""
    label: str = ""
    """The rank of this call, such as ``rank1``, if there are several."""
    is_enough: bool = True
    """True if most of what one run recorded has a counterpart in the other."""

    @property
    def lost(self) -> list[State]:
        """The parts of the state that were not restored."""
        return [each for each in self.states if each.status == LOST]

    @property
    def differs(self) -> bool:
        """True if something was lost, or a call has other bits."""
        return bool(self.lost) or self.found is not None

    def as_json(self) -> dict[str, Any]:
        """The answer for machines."""
        return {
            "resumed_step": self.first[0],
            "uninterrupted_step": self.first[1],
            "states": [each._asdict() for each in self.states],
            "steps": [list(pair) for pair in self.steps],
            "first": None
            if self.found is None
            else {**asdict(self.found), "how": self.found.how.value, "step": self.at[0], "label": self.label},
        }


def compare_resumed(resumed: str, uninterrupted: str, at: int | None = None) -> ResumedAnswer:
    """Compare a resumed run with an uninterrupted one, step by step until one differs.

    Args:
        resumed: the folder of the run that was resumed from a checkpoint.
        uninterrupted: the folder of the run that went on.
        at: the step of the uninterrupted run that is the first one of the resumed run; found if it is not given.

    Raises:
        MsprobeException: the steps cannot be matched, or the dumps cannot be compared.
    """
    steps = matched_steps(resumed, uninterrupted, at)
    tasks = pair_tasks(steps.pairs, None, None)
    offset = steps.first[1] - steps.first[0]
    answer = ResumedAnswer(steps.first, _how(steps), [], [])
    for task in tasks:
        step = int(task.pair.step[len("step") :])
        here = step, step + offset
        if answer.found is not None and here != answer.at:
            break
        compared = compare_pair(task)
        found = own_calls(compared)
        if step == steps.first[0]:
            dumps = _dumps_of(uninterrupted, os.path.basename(os.path.normpath(task.pair.golden)))
            first = First(compared, found, steps.first[1], steps.earliest, dumps)
            merged = _merged(answer.states, states(first), task.pair.label)
            is_enough = answer.is_enough and compared.result.coverage.is_enough
            answer = replace(answer, states=merged, is_enough=is_enough)
        if here not in answer.steps:
            answer = replace(answer, steps=[*answer.steps, here])
        # What a rank draws otherwise reaches all others, in later calls.
        if found and (answer.found is None or _order(found[0]) < _order(answer.found)):
            answer = replace(answer, found=found[0], at=here, label=task.pair.label)
    return replace(answer, states=_with_schedule(answer, tasks, uninterrupted))


def _with_schedule(answer: ResumedAnswer, tasks: Sequence[PairTask], uninterrupted: str) -> list[State]:
    """The states with that of the schedule, before those of the generators."""
    found: list[State] = []
    same_until = math.inf if answer.found is None else answer.at[0]
    offset = answer.first[1] - answer.first[0]
    for label in dict.fromkeys(task.pair.label for task in tasks):
        pairs = [task.pair for task in tasks if task.pair.label == label]
        numbers = [int(pair.step[len("step") :]) for pair in pairs]
        steps = [Step(at, at + offset, pair.target, pair.golden) for at, pair in zip(numbers, pairs)]
        dumps = _dumps_of(uninterrupted, os.path.basename(os.path.normpath(pairs[0].golden)))
        found = _merged(found, list(schedule(steps, dumps.get(min(dumps, default=0)), same_until)), label)
    place = next((at for at, each in enumerate(answer.states) if each.name == "generators"), len(answer.states))
    return [*answer.states[:place], *found, *answer.states[place:]]


def _order(found: OtherBits) -> tuple[bool, int]:
    return found.communicates, found.place


def _merged(states: list[State], further: list[State], label: str) -> list[State]:
    """The states of the first rank, in which what a further one lost counts; that says which rank it is."""
    if not states:
        return further
    lost = {
        each.name: each._replace(text=f"{in_words('', label)}: {each.text}") for each in further if each.status == LOST
    }
    return [lost.get(each.name, each) if each.status != LOST else each for each in states]


def _dumps_of(run: str, name: str) -> dict[int, str]:
    """The paths of the dumps of one process of a run, by their steps."""
    return {each.step: each.path for each in find_dumps(run).dumps if each.step is not None and each.name == name}


def _how(steps: MatchedSteps) -> str:
    if steps.distance != steps.distance:
        return "as it was given"
    if not steps.distance:
        return "their parameters are the same"
    return f"their parameters are nearest, relative distance {steps.distance:.1e}"


# --- text


def lines(answer: ResumedAnswer) -> Iterator[tuple[str, str]]:
    """The answer line by line, each with a style."""
    lost = answer.lost
    if lost:
        yield f"not resumed in the same state: {', '.join(each.name for each in lost)} not restored", ERROR
    elif answer.found is not None:
        yield f"resumed otherwise from step {answer.at[0]} on: {call_words(answer.found)}", ERROR
    elif not answer.is_enough:
        yield "cannot be told: not enough in common", WARNING
    else:
        count = f"{len(answer.steps)} step{'s' * (len(answer.steps) != 1)}"
        yield f"resumed in the same state: {count} with the same values in both runs", PASS
    yield f"  step {answer.first[0]} of the resumed run is step {answer.first[1]} of the other: {answer.how}", ""
    for each in answer.states:
        yield f"  {each.name}: {each.status}: {each.text}", ERROR if each.status == LOST else ""
    if answer.found is not None:
        rank = f", {in_words('', answer.label)}" if answer.label else ""
        where = f"step {answer.at[0]} (step {answer.at[1]} of the other){rank}"
        yield f"  first call that differs: {where}, {call_words(answer.found)}", ""
        if answer.found.line:
            yield f"  line:   {answer.found.line}", ""
    untold = [each for each in answer.states if each.status == UNTOLD]
    if not lost and untold and answer.found is not None:
        yield f"  next:   {untold[0].text}", ""
