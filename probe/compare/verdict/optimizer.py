"""The cause of updates that differ in the words of the optimizer: its class, its settings, its state, its gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from probe.common.align import name_mapping
from probe.common.align.calls import Row
from probe.common.dump import update_file
from probe.common.dump.naming import PARAMETERS_GRAD, parse
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.sketch_file import SketchTable
from probe.common.numerics.error_bounds import SAFETY, extent
from probe.common.numerics.formats import unit_roundoff
from probe.compare.judgement import NOTHING, Sentence, other_setting
from probe.compare.result import SIDES
from probe.compare.verdict import arithmetic
from probe.compare.verdict.settings import are_one
from probe.compare.verdict.two_runs import TwoRuns, path_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

Steps = Sequence[update_file.Update]
_IDLE = frozenset((
    "capturable", "differentiable", "foreach", "fused", "initial_lr", "name", "param_names", "parameters", "params",
))  # fmt: skip
"""Settings that choose a way to compute."""
_NEAR = 0.02
"""The rest, relative to a difference of two updates, up to which a term explains it. Rounding of parameters to float32
makes 1e-3 of an update that is 1e-4 of the parameter."""
_NEARLY_ONE = 1.5
"""The ratio of the updates of the largest gradients up to which an epsilon does not show in them; a guess."""
_RANKS = 0.8
"""The rank correlation from which on sizes of updates follow those of gradients; a guess."""


class Moved(NamedTuple):
    """The move of one parameter in both runs, as sketches."""

    updates: tuple[NDArray[Any], NDArray[Any]]
    parameter: NDArray[Any]
    """The parameter of the golden run."""
    gradients: Optional[tuple[NDArray[Any], NDArray[Any]]]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The gradients that were recorded or taken; ``None`` where they are not known."""
    elements: int = 0


def optimizer_cause(
    steps: tuple[Steps, Steps],
    moved: Mapping[str, Moved],
    names: Mapping[str, str],
    frameworks: tuple[str, str] = ("", ""),
) -> Sentence:
    """The cause of updates that differ; `NOTHING` if nothing tells.

    Args:
        steps: the steps of the optimizers of target and golden run between two steps.
        moved: the parameters whose updates differ, by the target's names.
        names: the golden names of all parameters, by the target's names.
        frameworks: the frameworks of both runs.
    """
    return (
        (_settings_sentence(steps, list(moved), names) if all(steps) else NOTHING)
        or convention_cause(steps, frameworks)
        or _gradients_sentence(moved)
        or _updates_sentence(moved)
    )


# --- what the optimizers say


def settings_cause(steps: tuple[Steps, Steps]) -> Sentence:
    """The settings that differ in the optimizers of one step; `NOTHING` if none does, or they are not recorded."""
    names = {each.name: each.name for update in steps[0] for each in update.parameters}
    return _settings_sentence(steps, (), names) if all(steps) else NOTHING


def convention_cause(steps: tuple[Steps, Steps], frameworks: tuple[str, str]) -> Sentence:
    """The convention by which the optimizer of one framework computes another update with the same settings."""
    updates = [next(iter(side), None) for side in steps]
    without = [
        update is not None and (framework, update.optimizer) in name_mapping.WITHOUT_CORRECTION
        for framework, update in zip(frameworks, updates)
    ]
    mine = updates[0]
    eps = None if mine is None or not mine.parameters else _settings(mine, mine.parameters[0]).get("eps")
    if without[0] == without[1] or eps is None:
        return NOTHING
    side = SIDES[without.index(True)]
    return Sentence(f"eps = {eps} is added without bias correction by the optimizer of the {side}")


def _settings_sentence(steps: tuple[Steps, Steps], apart: Sequence[str], names: Mapping[str, str]) -> Sentence:
    skipped = [all(update.skipped for update in side) for side in steps]
    if skipped[0] != skipped[1]:
        return Sentence(f"the update is skipped in the {SIDES[skipped.index(True)]} (a gradient was not finite)")
    sides = [{each.name: (update, each) for update in side for each in update.parameters} for side in steps]
    pairs = {
        name: (sides[0][name], sides[1][names.get(name, name)])
        for name in dict.fromkeys((*apart, *names))
        if name in sides[0] and names.get(name, name) in sides[1]
    }
    alone = [
        [name for name in apart if (names.get(name, name) if side else name) not in sides[side]] for side in (0, 1)
    ]
    for side in (0, 1):
        if alone[side] and not alone[1 - side]:
            more = f" and {len(alone[side]) - 1} more" if len(alone[side]) > 1 else ""
            return Sentence(f"the optimizer of the {SIDES[side]} does not update {alone[side][0]}{more}")
    found: dict[str, list[tuple[str, Any, Any]]] = {}
    for name, ((mine, one), (theirs, other)) in pairs.items():
        classes = [name_mapping.OPTIMIZER_NAMES.get(each.optimizer, each.optimizer) for each in (mine, theirs)]
        if classes[0].lower() != classes[1].lower():
            found.setdefault("optimizer", []).append((name, mine.optimizer, theirs.optimizer))
        groups = _settings(mine, one), _settings(theirs, other)
        for setting, value in groups[0].items():
            golden = groups[1].get(setting)
            if golden is not None and not are_one(value, golden):
                found.setdefault(setting, []).append((name, value, golden))
        if one.state_step is not None and other.state_step is not None and one.state_step != other.state_step:
            found.setdefault("step", []).append((name, one.state_step, other.state_step))
    sentences = []
    for setting, differing in found.items():
        name, value, golden = differing[0]
        of = "" if len(differing) == len(pairs) else name
        if setting == "step":
            sentences.append(Sentence(f"the state of the optimizer is at step {value:g} (golden: {golden:g})"))
        else:
            sentences.append(other_setting(setting, value, golden, of))
        if setting == "optimizer":
            break  # Its settings mean other things.
    if not sentences:
        return NOTHING
    return Sentence("; ".join(each.text for each in sentences), "; ".join(each.shown for each in sentences))


def _settings(update: update_file.Update, parameter: update_file.UpdatedParameter) -> dict[str, Any]:
    """The settings of a parameter's group, in the names of PyTorch."""
    group = update.groups[parameter.group] if parameter.group < len(update.groups) else {}
    found: dict[str, Any] = {}
    for name, value in group.items():
        name = name_mapping.setting_name(name)
        if name in _IDLE or value is None:
            continue
        if isinstance(value, (list, tuple)):
            found.update({f"{name.rstrip('s')}{index}": each for index, each in enumerate(value, 1)})
        else:
            found[name] = value
    return found


# --- what gradients and updates tell


def _gradients_sentence(moved: Mapping[str, Moved]) -> Sentence:
    """The sentence on gradients that all are one multiple: clipped, scaled, or accumulated."""
    factors = [
        arithmetic.factor(*each.gradients, rounding=1e-4) for each in moved.values() if each.gradients is not None
    ]
    found = _one_of_all([None if each is None else each.value for each in factors])
    if found is None:
        return NOTHING
    why = "clipped or scaled before the optimizer takes them"
    if math.isclose(found, round(found), rel_tol=1e-3) and round(found) > 1:
        why = f"accumulated over {round(found)} backward passes, or not zeroed (zero_grad)"
    value = arithmetic.in_words(found, (), 1e-4)
    return Sentence(f"gradients are {value} times those of the golden run: {why}")


def _updates_sentence(moved: Mapping[str, Moved]) -> Sentence:
    """The sentence on updates that are one multiple, or take more of the parameter or of the gradient."""
    for side in (0, 1):
        still = [name for name, each in moved.items() if not each.updates[side].any()]
        if still and len(still) == len(moved):
            more = f" and {len(still) - 1} more" if len(still) > 1 else ""
            return Sentence(f"{still[0]}{more} stays as it was in the {SIDES[side]}")
    factors = [arithmetic.factor(*each.updates, rounding=_NEAR) for each in moved.values()]
    found = _one_of_all([None if each is None else each.value for each in factors])
    if found is not None:
        value = arithmetic.in_words(found, (), 1e-3)
        why = "one run maximizes" if found < 0 else "another learning rate, or gradients that are scaled or clipped"
        return Sentence(f"updates are {value} times those of the golden run: {why}")
    decay = _one_of_all([_share(each, each.parameter) for each in moved.values()])
    if decay is not None:
        more = "more" if decay < 0 else "less"
        text = f"updates take {abs(decay):.3g} of the parameter {more} away: another weight decay"
        return Sentence(text)
    return _epsilon_sentence(moved)


def _share(each: Moved, of: NDArray[Any]) -> float | None:
    """The multiple of a tensor that the difference of two updates is; ``None`` if it is none."""
    difference = each.updates[0] - each.updates[1]
    size, square = math.sqrt(float(difference @ difference)), float(of @ of)
    if not size or not square:
        return None
    value = float(difference @ of) / square
    left = difference - value * of
    return value if math.sqrt(float(left @ left)) <= 10 * _NEAR * size else None


def _epsilon_sentence(moved: Mapping[str, Moved]) -> Sentence:
    """The sentence on updates that are the smaller, the smaller the gradients: an epsilon that is added to them."""
    points = []
    for each in moved.values():
        sizes = [math.sqrt(float(update @ update)) for update in each.updates]
        if each.gradients is not None and all(sizes) and each.elements:
            gradient = each.gradients[1]
            points.append((math.sqrt(float(gradient @ gradient) / each.elements), sizes[0] / sizes[1]))
    if len(points) < 5:
        return NOTHING
    largest = sorted(points)[-1][1]
    is_near = 1 / _NEARLY_ONE <= largest <= _NEARLY_ONE
    correlation = _rank_correlation(points)
    if abs(correlation) < _RANKS:
        return NOTHING
    # Another kind of optimizer takes gradients otherwise, whatever their size is.
    or_kind = "" if is_near else ", or another kind of optimizer"
    return Sentence(f"updates of small gradients differ most: another epsilon{or_kind}")


def _rank_correlation(points: Sequence[tuple[float, float]]) -> float:
    """Spearman's correlation of the ranks of two numbers."""
    ranks = []
    for axis in (0, 1):
        order = sorted(range(len(points)), key=lambda index, axis=axis: points[index][axis])  # type: ignore[misc]
        of_axis = [0] * len(points)
        for rank, index in enumerate(order):
            of_axis[index] = rank
        ranks.append(of_axis)
    number = len(points)
    squares: int = sum((one - other) * (one - other) for one, other in zip(*ranks))
    return 1.0 - 6.0 * squares / (number * (number * number - 1))


def _one_of_all(values: Sequence[float | None]) -> float | None:
    """The number that nearly all of several are; ``None`` if they are not one number."""
    known = sorted(value for value in values if value is not None)
    if len(known) < max(1, 0.8 * len(values)):
        return None
    middle = known[len(known) // 2]
    alike = sum(math.isclose(value, middle, rel_tol=0.05) for value in known)
    return middle if alike >= 0.8 * len(values) else None


# --- between


_PARAMETER = "parameter:"
_NORMALISED = 4.0
"""An optimizer that normalises gradients moves an element by its sign. With a relative error e of Gaussian gradients a
share of 0.8 e of the elements turns, and the updates are 1.8 sqrt(e) apart; twice that, for gradients with more
elements near zero."""
_OF_NORMS = 1.3
"""By how much the norms of two updates may seem to differ though they are one: three times the 9 % of a sketch."""
_OF_ROUNDING = 2.0**-23
"""The unit of float32 at 1: weights are written in float32 at most."""
_OF_SUMS = 2.0**-16
"""The rounding of the sums that make a gradient, about, relative to the gradient; a guess."""


class Update(NamedTuple):
    """The update of one parameter in both runs."""

    name: str
    golden_name: str
    distance: float
    """The distance of the two updates."""
    of_gradients: Optional[float]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The distance of the gradients; ``None`` where they are not recorded."""
    ratio: float
    """The norm of the target's update divided by that of the golden run's."""
    allowed: float
    moved: Moved
    """The sketches."""

    @property
    def is_explained(self) -> bool:
        """True if the gradients explain the update."""
        return self.distance <= self.allowed

    @property
    def has_other_size(self) -> bool:
        """True if one update is larger than the other by more than sketches leave open."""
        return not 1 / _OF_NORMS <= self.ratio <= _OF_NORMS


class Between(NamedTuple):
    """The updates of all parameters between two steps."""

    updates: Mapping[str, Update]
    """By the target's names of the parameters."""
    steps: tuple[Steps, Steps] = ((), ())
    """The steps of the optimizers in target and golden run."""
    frameworks: tuple[str, str] = ("", "")
    sides: Sequence[_Side] = ()
    """The parameters and gradients of target and golden run."""

    def accumulated(self, row: Row) -> Sentence:
        """The sentence on a gradient to which that of the step before is added; `NOTHING` if it is not."""
        import numpy as np

        if row.target is None or row.golden is None or len(self.sides) < 2:
            return NOTHING
        names = row.target.name, row.golden.name
        now = [side.now(name) for side, name in zip(self.sides, names)]
        for index, run in enumerate(("target", "golden run")):
            mine, theirs, kept = now[index], now[1 - index], self.sides[index].then(names[index])
            if mine is None or theirs is None or kept is None or not kept.any():
                continue
            rest = float(np.linalg.norm(mine - theirs - kept))
            unit = max(unit_roundoff(row.target.dtype), unit_roundoff(row.golden.dtype))
            if rest <= SAFETY * max(unit, _OF_SUMS) * float(np.linalg.norm(mine)) < float(np.linalg.norm(kept)):
                text = f"gradients are accumulated in the {run}"
                return Sentence(f"{text}: that of the step before is added, not zeroed (zero_grad)")
        return NOTHING

    @property
    def is_of_all(self) -> bool:
        """True if most updates are unexplained: it is the optimizer and not a parameter."""
        return 2 * sum(not each.is_explained for each in self.updates.values()) > len(self.updates)

    def in_words(self) -> Sentence:
        """The difference of the optimizers, where nothing says why; `NOTHING` if it is no more than one parameter."""
        apart = [each for each in self.updates.values() if not each.is_explained]
        names = {each.name: each.golden_name for each in self.updates.values()}
        cause = optimizer_cause(self.steps, {each.name: each.moved for each in apart}, names, self.frameworks)
        if cause:
            start = "the optimizer step before this step diverges"
            return Sentence(f"{start}: {cause.text}", f"{start}: {cause.shown}")
        if 2 * len(apart) <= len(self.updates):
            return NOTHING
        ratios = sorted(each.ratio for each in apart)
        middle = ratios[len(ratios) // 2]
        alike = sum(math.isclose(each, middle, rel_tol=_OF_NORMS - 1.0) for each in ratios)
        what = f"updates are {middle:.3g} times those of the golden run in {alike} of {len(self.updates)} parameters"
        if math.isclose(middle, 1.0, rel_tol=_OF_NORMS - 1.0):
            what = f"updates differ in {len(apart)} of {len(self.updates)} parameters"
        return Sentence(f"the optimizer step before this step diverges: {what}")

    def excuses(self, name: str) -> bool:
        """True if a parameter that differs does so by its gradient, which is rounding in some of its elements."""
        update = self.updates.get(name)
        if update is None:
            return False
        return update.is_explained or not (update.has_other_size or self.is_of_all)


def between(runs: TwoRuns, before: tuple[str, str] | None) -> Between | None:
    """The updates between the step before and this one; ``None`` where they are not known.

    Args:
        runs: the runs in this step.
        before: the paths of their dumps of the step before.
    """
    if before is None or runs.tables is None:
        return None
    dumps = tuple(map(read, before))
    of_before = tuple(dump.sketches for dump in dumps)
    if None in of_before:
        return None
    pairs = _pairs(runs)
    elements = _elements(runs)
    updates: dict[str, Update] = {}
    sides = [_Side(now, then, dump) for now, then, dump in zip(runs.tables, of_before, dumps) if then is not None]
    for name, golden_name in pairs.items():
        found = _update(name, golden_name, sides, runs.precision.shortest, elements.get(name, 0))
        if found is not None:
            updates[name] = found
    steps = dumps[0].updates, dumps[1].updates
    return Between(updates, steps, runs.frameworks, sides) if updates else None


def _pairs(runs: TwoRuns) -> dict[str, str]:
    """The names of the parameters that both runs have, in the order in which calls take them."""
    found: dict[str, str] = {}
    for call in runs.calls:
        if not call.is_of_both or not call.is_forward:
            continue
        for row in call.inputs:
            if row.target is None or row.golden is None or row.relative_difference is None:
                continue
            sources = runs.sources(row)
            if all(each.origin.value == "parameter" and not each.is_view for each in sources):
                found.setdefault(sources[0].name, sources[1].name)
    return found


def _elements(runs: TwoRuns) -> dict[str, int]:
    found: dict[str, int] = {}
    for call in runs.calls:
        for row in call.inputs if call.is_forward else ():
            if row.target is not None and row.target.is_tensor:
                source = runs.graphs[0].source(row.target)
                if source.origin.value == "parameter" and not source.is_view:
                    found.setdefault(source.name, extent(row.target.shape).elements)
    return found


class _Side:
    """The parameters and gradients of one run, at the beginning of two steps."""

    def __init__(self, now: SketchTable, then: SketchTable, before: Dump) -> None:
        self._now, self._then = now, then
        self._items = now.first_of(_PARAMETER), then.first_of(_PARAMETER)
        self._gradients = {_parameter_of(name): name for name in then.names() if PARAMETERS_GRAD in name}
        self._taken = {each.name: each.gradient for update in before.updates for each in update.parameters}

    def now(self, item: str) -> NDArray[Any] | None:
        """The sketch of an item in this step; ``None`` where it has none."""
        return _array_of_item(self._now, item)

    def then(self, item: str) -> NDArray[Any] | None:
        """The sketch of an item of this name in the step before; ``None`` where it has none."""
        return _array_of_item(self._then, item)

    def update(self, name: str) -> tuple[NDArray[Any], float] | None:
        """The sketch of the update of a parameter, and the norm of the parameter; ``None`` where it is not known."""
        import numpy as np

        items = [of_step.get(name) for of_step in self._items]
        if None in items:
            return None
        after, earlier = (
            table.sums([item])[0].astype(np.float64) for table, item in zip((self._now, self._then), items) if item
        )
        return after - earlier, float(np.linalg.norm(after))

    def parameter(self, name: str) -> NDArray[Any]:
        """The sketch of a parameter before the update."""
        import numpy as np

        found: NDArray[Any] = self._then.sums([self._items[1][name]])[0].astype(np.float64)
        return found

    def gradient(self, name: str) -> NDArray[Any] | None:
        """The sketch of the gradient that a parameter had; ``None`` where it is not known."""
        taken = self._taken.get(name)
        if taken is not None:
            return taken.sums
        item = self._gradients.get(name)
        return None if item is None else self._then.sums([item])[0]


def _array_of_item(table: SketchTable, item: str) -> NDArray[Any] | None:
    import numpy as np

    found: NDArray[Any] = table.sums([item])[0].astype(np.float64)
    return found if np.isfinite(found).all() else None


def _parameter_of(item: str) -> str:
    """The name of the parameter whose gradient an item is."""
    record, _, name = item.rpartition(".")
    path = path_of(parse(record))
    return f"{path}.{name}" if path else name


def _update(name: str, golden_name: str, sides: list[_Side], roundoff: float, elements: int) -> Update | None:
    import numpy as np

    of_target, of_golden = (side.update(own) for side, own in zip(sides, (name, golden_name)))
    if of_target is None or of_golden is None:
        return None
    (mine, size), (theirs, golden_size) = of_target, of_golden
    parameter = sides[1].parameter(golden_name)
    sizes = float(np.linalg.norm(mine)), float(np.linalg.norm(theirs))
    largest = max(sizes)
    if not largest or largest != largest:
        return None
    gradient, golden_gradient = (side.gradient(own) for side, own in zip(sides, (name, golden_name)))
    of_gradients: float | None = None
    both: tuple[NDArray[Any], NDArray[Any]] | None = None
    if gradient is not None and golden_gradient is not None:
        both = one, other = gradient.astype(np.float64), golden_gradient.astype(np.float64)
        norm = max(float(np.linalg.norm(one)), float(np.linalg.norm(other)))
        of_gradients = float(np.linalg.norm(one - other)) / norm if norm else 0.0
    lost = max(roundoff, _OF_ROUNDING) * 2.0 * max(size, golden_size) / largest
    explained = 0.0 if of_gradients is None else max(SAFETY * of_gradients, _NORMALISED * math.sqrt(of_gradients))
    distance = float(np.linalg.norm(mine - theirs)) / largest
    ratio = sizes[0] / sizes[1] if sizes[1] else math.inf
    moved = Moved((mine, theirs), parameter, both, elements)
    return Update(name, golden_name, distance, of_gradients, ratio, explained + lost, moved)
