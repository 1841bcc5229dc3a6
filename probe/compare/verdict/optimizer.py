"""The cause of updates that differ in the words of the optimizer: its class, its settings, its state, its gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from probe.common.align import conventions
from probe.common.dump import update_file
from probe.compare.result import SIDES
from probe.compare.sentences import NOTHING, Sentence, other_setting
from probe.compare.verdict import arithmetic
from probe.compare.verdict.settings import are_one

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
        (_of_settings(steps, list(moved), names) if all(steps) else NOTHING)
        or convention_cause(steps, frameworks)
        or _of_gradients(moved)
        or _of_updates(moved)
    )


# --- what the optimizers say


def settings_cause(steps: tuple[Steps, Steps]) -> Sentence:
    """The settings that differ in the optimizers of one step; `NOTHING` if none does, or they are not recorded."""
    names = {each.name: each.name for update in steps[0] for each in update.parameters}
    return _of_settings(steps, (), names) if all(steps) else NOTHING


def convention_cause(steps: tuple[Steps, Steps], frameworks: tuple[str, str]) -> Sentence:
    """The convention by which the optimizer of one framework computes another update with the same settings."""
    updates = [next(iter(side), None) for side in steps]
    without = [
        update is not None and (framework, update.optimizer) in conventions.WITHOUT_CORRECTION
        for framework, update in zip(frameworks, updates)
    ]
    mine = updates[0]
    eps = None if mine is None or not mine.parameters else _settings(mine, mine.parameters[0]).get("eps")
    if without[0] == without[1] or eps is None:
        return NOTHING
    side = SIDES[without.index(True)]
    return Sentence(f"eps = {eps} is added without bias correction by the optimizer of the {side}")


def _of_settings(steps: tuple[Steps, Steps], apart: Sequence[str], names: Mapping[str, str]) -> Sentence:
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
        classes = [conventions.OPTIMIZER_NAMES.get(each.optimizer, each.optimizer) for each in (mine, theirs)]
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
        name = conventions.setting_name(name)
        if name in _IDLE or value is None:
            continue
        if isinstance(value, (list, tuple)):
            found.update({f"{name.rstrip('s')}{index}": each for index, each in enumerate(value, 1)})
        else:
            found[name] = value
    return found


# --- what gradients and updates tell


def _of_gradients(moved: Mapping[str, Moved]) -> Sentence:
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


def _of_updates(moved: Mapping[str, Moved]) -> Sentence:
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
    return _of_epsilon(moved)


def _share(each: Moved, of: NDArray[Any]) -> float | None:
    """The multiple of a tensor that the difference of two updates is; ``None`` if it is none."""
    difference = each.updates[0] - each.updates[1]
    size, square = math.sqrt(float(difference @ difference)), float(of @ of)
    if not size or not square:
        return None
    value = float(difference @ of) / square
    left = difference - value * of
    return value if math.sqrt(float(left @ left)) <= 10 * _NEAR * size else None


def _of_epsilon(moved: Mapping[str, Moved]) -> Sentence:
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
