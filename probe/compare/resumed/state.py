"""The parts of a training's state that a checkpoint has to bring back, each held against the uninterrupted run."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from probe.common.align.calls import Row
from probe.common.dump.naming import is_forward
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.items import is_nan
from probe.common.dump.reading.records import INPUT, Item
from probe.common.dump.sketch_file import DATA, VIEW
from probe.common.dump.update_file import Update, UpdatedParameter
from probe.common.environment.environment_file import environment_of_file
from probe.common.numerics.error_bounds import ALTOGETHER
from probe.common.numerics.formats import FORMATS, nearest, plain_name
from probe.compare.comparison import ComparedDumps
from probe.compare.twice.first_bits import How, OtherBits, has_other_bits
from probe.compare.verdict.two_runs import Origin, TwoRuns

LOST, KEPT, UNTOLD = "not restored", "restored", "cannot be told"
_SHORT = ("bfloat16", "float16")
_ANYWHERE = ("numpy", "python")
"""Generators that every process has, whether the program uses them or not."""
_SHOWN = 4
_SKETCH = 2.0**-22
"""The relative error of the difference of two sketches: two roundings to float32 of each."""
_SAME_UPDATE = 1e-3
"""The relative distance of updates that are the same, of weights that a short dtype has rounded: a guess. Moments that
begin anew make it some tenths at least."""
_OF_SCHEDULE = ("lr", "initial_lr")
"""Settings that a schedule changes and that leave an optimizer's moments as they are."""
_LINEAR = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "Adagrad", "RMSprop")
"""The optimizers of torch whose update is the learning rate times what the gradients and the moments make."""
_FEWEST = 8
"""Numbers that a short dtype has to hold before it is named: one number in 2^13 of float32 is one of float16."""


class State(NamedTuple):
    """One part of the state."""

    name: str
    """``weights``, ``optimizer``, ``schedule``, ``generators``, ``data`` or ``buffers``."""
    status: str
    """`LOST`, `KEPT` or `UNTOLD`."""
    text: str
    """The evidence in words."""


@dataclass(frozen=True)
class First:
    """The first steps of both runs, compared; and what else is needed of the runs."""

    compared: ComparedDumps
    other_bits: Sequence[OtherBits]
    step: int
    """The step of the uninterrupted run."""
    earliest: int
    """The first recorded step of the uninterrupted run, of which the states of its generators are."""
    dumps: Mapping[int, str]
    """The paths of the dumps of all steps of the uninterrupted run."""


def states(first: First) -> list[State]:
    """The parts of the state but for the schedule, each with what is known of it."""
    runs = first.compared.seen.runs
    if runs is None:
        return []
    return [
        *_values(runs, Origin.PARAMETER, "weights"),
        *_values(runs, Origin.BUFFER, "buffers"),
        *_optimizer(runs),
        *(generators := list(_generators(first))),
        *_data(first, all(each.status == KEPT for each in generators)),
    ]


# --- weights and buffers


def _values(runs: TwoRuns, origin: Origin, name: str) -> Iterator[State]:
    rows = _first_rows(runs, origin)
    if not rows:
        return
    other = {key: row for key, row in rows.items() if has_other_bits(row)}
    if not other:
        yield State(name, KEPT, f"{len(rows)} with the same bits")
        return
    # Whole numbers, such as a count of batches, are never near each other.
    worst = max((apart for row in other.values() if (apart := row.relative_difference or 0.0) < ALTOGETHER), default=0)
    size = f", relative distance up to {worst:.1e}" if worst else ""
    for side, run in enumerate(("resumed", "other")):
        zeros = [name for name, row in other.items() if _is_zero(row.golden if side else row.target)]
        size += f"; {_names(zeros)} of the {run} run {'is' if len(zeros) == 1 else 'are'} 0" if zeros else ""
    short = _short_dtype(list(other.values()))
    why = (
        f": their largest and smallest elements are numbers of {short}, in which the checkpoint has them"
        if short
        else ""
    )
    yield State(name, LOST, f"{_names(list(other))} of {len(rows)} differ{size}{why}")


def _is_zero(item: Item | None) -> bool:
    return item is not None and item.max is not None and item.max == item.min == 0


def _first_rows(runs: TwoRuns, origin: Origin) -> dict[str, Row]:
    """The first row of each parameter or buffer, before anything writes to it."""
    found: dict[str, Row] = {}
    for call in runs.calls if runs.tables is not None else ():
        for row in call.inputs:
            if row.target is None or row.golden is None or not row.target.is_tensor:
                continue
            source = runs.graphs[0].source(row.target)
            if source.origin is origin and not source.is_view:
                found.setdefault(source.name, row)
    return found


def _short_dtype(rows: Sequence[Row]) -> str:
    """The short dtype whose numbers the resumed run's values are, and not those of the other run."""
    mine, theirs = ([value for row in rows for value in _extremes(row, side)] for side in (0, 1))
    for name in _SHORT:
        short = FORMATS[name]
        are_short = [all(nearest(value, short) == value for value in of_side) for of_side in (mine, theirs)]
        if len(mine) >= _FEWEST and are_short == [True, False]:
            return name
    return ""


def _extremes(row: Row, side: int) -> list[float]:
    item = row.golden if side else row.target
    if item is None or plain_name(item.dtype or "") in _SHORT:
        return []
    return [value for value in (item.max, item.min) if type(value) is float and math.isfinite(value) and value != 0]


# --- optimizer and schedule


def _optimizer(runs: TwoRuns) -> Iterator[State]:
    mine, theirs = runs.updates
    if not mine or not theirs:
        yield State("optimizer", UNTOLD, "no step of an optimizer is recorded in both runs")
        return
    for one, other in zip(mine, theirs):
        yield _of_optimizer(one, other)


def _of_optimizer(one: Update, other: Update) -> State:
    name = f"optimizer ({one.optimizer})"
    others = {each.name: each for each in other.parameters}
    pairs = [(each, others[each.name]) for each in one.parameters if each.name in others]
    counts = [(mine.state_step, theirs.state_step) for mine, theirs in pairs if mine.state_step != theirs.state_step]
    if counts:
        mine, theirs = counts[0]
        anew = ": its state begins anew" if mine == 1 else ""
        return State(
            name, LOST, f"state step {_number(mine)} and not {_number(theirs)} of {len(counts)} parameters{anew}"
        )
    same = [(mine, theirs) for mine, theirs in pairs if _is_same_gradient(mine, theirs)]
    settings = [key for key in _differing(one, other) if key not in _OF_SCHEDULE]
    if settings or len(one.groups) != len(other.groups):
        return State(name, UNTOLD, f"its settings differ ({_names(settings) or 'groups'}), so that its updates do")
    if not same:
        return State(name, UNTOLD, _counted(pairs, "no parameter has the same gradient, which would show its moments"))
    scales = [_rate(one, mine) / rate if (rate := _rate(other, theirs)) else math.nan for mine, theirs in same]
    if not all(0 < scale < math.inf for scale in scales):
        return State(name, UNTOLD, "its learning rate is 0 in one run, so that its updates do not show its moments")
    wrong = [mine.name for (mine, theirs), scale in zip(same, scales) if not _is_same_update(mine, theirs, scale)]
    by_rate = "" if all(scale == 1 for scale in scales) else " relative to the learning rate"
    if wrong and by_rate and one.optimizer not in _LINEAR:
        return State(name, UNTOLD, "its learning rate differs, so that its updates do")
    if wrong:
        text = f"{_names(wrong)}: the same gradient makes another update{by_rate}, as of moments that begin anew"
        return State(name, LOST, text)
    return State(name, KEPT, f"{len(same)} updates from the same gradients are the same{by_rate}")


def _rate(update: Update, parameter: UpdatedParameter) -> float:
    """The learning rate of a parameter; 1 where none is recorded."""
    rate = update.groups[parameter.group].get("lr") if parameter.group < len(update.groups) else None
    return float(rate) if rate is not None and _is_number(rate) else 1.0


def _differing(one: Update, other: Update) -> dict[str, tuple[Any, Any]]:
    """The settings of groups that differ, with the values of the first such group in both runs."""
    found: dict[str, tuple[Any, Any]] = {}
    for mine, theirs in zip(one.groups, other.groups):
        for key in mine:
            if mine[key] != theirs.get(key):
                found.setdefault(key, (mine[key], theirs.get(key)))
    return found


def _counted(pairs: Sequence[tuple[UpdatedParameter, UpdatedParameter]], text: str) -> str:
    known = next((mine.state_step for mine, _ in pairs if mine.state_step is not None), None)
    return text if known is None else f"its count of steps agrees ({_number(known)}); {text}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


def _is_same_gradient(mine: UpdatedParameter, theirs: UpdatedParameter) -> bool:
    if mine.gradient is None or theirs.gradient is None or mine.gradient.excluded:
        return False
    return bool((mine.gradient.sums == theirs.gradient.sums).all()) and bool(mine.gradient.sums.any())


def _is_same_update(mine: UpdatedParameter, theirs: UpdatedParameter, scale: float) -> bool:
    """True if an update is `scale` times the other but for what their sketches, differences of others, round."""
    import numpy as np

    if mine.update is None or theirs.update is None:
        return True
    sums = mine.update.sums.astype("f8"), scale * theirs.update.sums.astype("f8")
    apart = float(np.linalg.norm(sums[0] - sums[1]))
    rounding = _SKETCH * max(mine.parameter_norm, theirs.parameter_norm) * max(1.0, scale)
    largest = max(float(np.linalg.norm(each)) for each in sums)
    return apart <= rounding + _SAME_UPDATE * largest


class Step(NamedTuple):
    """A common step."""

    number: int
    """The number of the step in the resumed run."""
    other: int
    """The number of the same step in the uninterrupted run."""
    mine: str
    """The path of the resumed run's dump."""
    theirs: str


def schedule(steps: Sequence[Step], earliest: str | None, same_until: float) -> Iterator[State]:
    """The settings of all common steps, as the optimizer's state brings back those of the first one.

    Args:
        steps: the common steps of one rank, in order.
        earliest: the path of the first dump of the uninterrupted run, with whose rate a schedule begins anew.
        same_until: the step of the resumed run up to whose beginning all values are the same.
    """
    rates: list[float] = []
    for step in steps:
        pairs = list(zip(read(step.mine).updates, read(step.theirs).updates))
        differing = {key: values for one, other in pairs for key, values in _differing(one, other).items()}
        if differing:
            is_first = step is steps[0]
            shown = _settings(differing) + ("" if is_first else f" from step {step.number} (step {step.other}) on")
            if step.number > same_until:
                yield State("schedule", UNTOLD, f"{shown}; values differ before that, which a schedule may follow")
                return
            starts = read(earliest).updates if earliest is not None and is_first else []
            is_anew = "lr" in differing and differing["lr"][0] in [
                group.get("lr") for update in starts for group in update.groups
            ]
            anew = ": that of the first recorded step of the other run, the schedule begins anew" if is_anew else ""
            yield State("schedule", LOST, f"{shown}{anew}")
            return
        groups = [group for one, other in pairs for group, _ in zip(one.groups, other.groups)]
        if not groups and step is steps[0]:
            return
        rates += [float(group["lr"]) for group in groups[:1] if _is_number(group.get("lr"))]
    last = f" to {rates[-1]:.6g}" if rates and rates[-1] != rates[0] else ""
    shown = f", lr = {rates[0]:.6g}{last}" if rates else ""
    # A schedule that begins anew agrees until it next changes the rate.
    number = f"{len(steps)} step{'' if len(steps) == 1 else 's'}"
    unseen = f" in {number}; a later change by a schedule is not seen" if rates and not last else ""
    yield State("schedule", KEPT, f"all settings of the groups agree{shown}{unseen}")


def _settings(differing: Mapping[str, tuple[Any, Any]]) -> str:
    pairs = list(differing.items())[:_SHOWN]
    return ", ".join(f"{key} = {_short(str(mine))} and not {_short(str(theirs))}" for key, (mine, theirs) in pairs)


def _short(text: str) -> str:
    """A setting with six digits if it is a number."""
    try:
        return f"{float(text):.6g}"
    except ValueError:
        return text


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


# --- generators and data


def _generators(first: First) -> Iterator[State]:
    result, name = first.compared.result, "generators"
    one, other = (environment_of_file(path) or {} for path in (result.target, result.golden))
    mine, theirs = one.get("random_states"), other.get("random_states")
    if not isinstance(mine, Mapping) or not isinstance(theirs, Mapping):
        mine, theirs = {}, {}
    names = [each for each in mine if each in theirs]
    same = [each for each in names if mine[each] == theirs[each]]
    lost = [each for each in names if each not in same]
    draws = [each for each in first.other_bits if each.how is How.DRAW]
    if first.step == first.earliest and names:
        ours = [each for each in lost if each not in _ANYWHERE]
        # Without a seed these begin in another state in each process, and most programs draw nothing from them.
        beside = [each for each in lost if each in _ANYWHERE]
        if ours:
            shown = f"; {draws[0].record} draws other numbers" if draws else ""
            yield State(name, LOST, f"{_names(ours)} is in another state{shown}")
        else:
            more = f"; {_names(beside)} in another one, which matters if the program draws from it" if beside else ""
            yield State(name, KEPT, f"{_names(same)} in the same state{more}")
    elif draws:
        of_framework = [each for each in names if each not in _ANYWHERE]
        # A generator from which nothing is drawn, such as that of the CPU beside a GPU, is in the same state all along.
        is_anew = bool(of_framework) and all(each in same for each in of_framework)
        anew = (
            f"; {_names(of_framework)} is in the state of the first recorded step of the other run: it begins anew"
            if is_anew
            else ""
        )
        yield State(name, LOST, f"{draws[0].record} draws other numbers from the same arguments{anew}")
    else:
        text = "the other run has the states of its first recorded step alone; record it from step"
        yield State(name, UNTOLD, f"{text} {first.step} on: --step {first.step}-{first.step + 1}")


def _data(first: First, has_generators: bool) -> Iterator[State]:
    result = first.compared.result
    mine, theirs = (_first_batch(read(path)) for path in (result.target, result.golden))
    if not mine or not theirs:
        yield State("data", UNTOLD, "no tensor is recorded that comes from the program's data")
        return
    if mine == theirs:
        yield State("data", KEPT, "the first batch is the same")
        return
    step = next((step for step, path in first.dumps.items() if _first_batch(read(path)) == mine), None)
    if step is not None:
        anew = (
            ": the order begins anew"
            if step == 0
            else ": batches are repeated"
            if step < first.step
            else ": batches are left out"
        )
        yield State(
            "data", LOST, f"the first batch is that of step {step} of the other run, and not of step {first.step}{anew}"
        )
        return
    none = f"the first batch is none of the recorded ones of the other run ({_steps_in_words(first.dumps)})"
    anew = "" if 0 in first.dumps else "; an order that begins anew is found if that run is recorded from step 0 on"
    if has_generators:
        yield State("data", LOST, f"{none}: another order, or other data{anew}")
    else:
        why = "other random numbers in it, as the generators are not known to be restored"
        yield State("data", UNTOLD, f"{none}: another order, other data, or {why}{anew}")


def _steps_in_words(steps: Collection[int]) -> str:
    return f"steps {min(steps)} to {max(steps)}" if len(steps) > 1 else f"step {min(steps, default=0)}"


def _first_batch(dump: Dump) -> list[tuple[Any, ...]]:
    """The data of the first forward call that takes any, each tensor as `_key_of_tensor` has it."""
    for record in dump:
        if is_forward(record.name):
            given = [item for item in dump.items(record) if item.is_tensor and item.state == INPUT]
            found = [_key_of_tensor(item) for item in given if (item.made_by or "").removeprefix(VIEW).startswith(DATA)]
            if found:
                return found
    return []


def _key_of_tensor(item: Item) -> tuple[Any, ...]:
    """A key that tells a tensor from others: its shape, its checksum or its statistics, and its sketch."""
    sketch = item.sketch
    numbers = tuple("nan" if is_nan(each) else each for each in (item.max, item.min, item.mean, item.norm))
    return item.shape, item.md5, numbers, None if sketch is None else sketch.sums.tobytes()


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
