"""The optimizer between two steps: a judgement of its updates of parameters on both sides.

A dump holds no call of the optimizer unless it ran while collecting, so this is judged by what it left: how far Max,
Min and Mean of each parameter moved from the step before to this one. The movement of Mean is the mean of the update,
that of Max and Min the update of one element. Equal updates move them equally, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any, Optional

from probe.common.dump.naming import PARAMETERS_GRAD, module_name, parse, record_name
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.items import OUTPUT
from probe.common.dump.reading.records import PARAMETERS, Item
from probe.common.errors import MsprobeException
from probe.common.numerics.error_bounds import extent, relative_difference, rms
from probe.common.numerics.formats import unit_roundoff
from probe.compare.divergence.aligned_calls import AlignedCall, first_of_groups
from probe.compare.divergence.parameters import Parameter, own_name

_Key = tuple[Any, ...]

_MOST = 0.7
"""The share of parameters that speaks for all of them."""
_FEWEST = 0.2
"""The share of parameters that has to be clear, so that these can."""
_CLEAR = 30.0
"""The least movement of a statistic that is evidence, as a multiple of its rounding."""
_SAME_GRADIENT = 1e-3
"""The relative difference of gradients up to which equal optimizers make nearly equal updates."""
_NEAR_ZERO = 30.0
"""The width of the range of a gradient's elements that rounding makes uncertain, in relative differences of it."""
_FEW_STEPS, _FEW_ELEMENTS = 4.0, 4.0
"""The number of steps that may have turned updates, and the number of such elements, if these are rounding alone."""
_FEWEST_TO_RANK = 6
"""The number of parameters that it takes to say what their updates depend on."""
_SAME_UPDATE = 0.02
"""By how much two such updates may differ."""


@dataclass(frozen=True)
class _Movement:
    """The movement of one statistic of a parameter on each side."""

    target: float
    golden: float
    before: float
    """The value in the golden run before."""
    resolution: float
    """By how much rounding alone can have moved it."""
    of_element: bool
    """True if it is the update of an element, and not the mean of all."""


@dataclass(frozen=True)
class _Update:
    """The optimizer's update of one parameter on both sides."""

    parameter: Parameter
    movements: list[_Movement]
    """The statistics that moved clearly, on one side at least."""
    gradient_difference: Optional[float]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """Relative difference of the gradients; ``None`` where neither side recorded one."""
    was_equal: bool = True
    """True if the parameter was the same on both sides before."""
    before: tuple[float, ...] = ()
    """By how much its largest and smallest elements differed before."""
    elements: int = 1
    gradient: float = 0.0
    """The rms of the golden gradient."""
    mean_gradient: float = 0.0
    """The mean of the golden gradient; 0 where rounding may have made it."""

    @property
    def is_clear(self) -> bool:
        """True if equal optimizers would have made equal updates, and large enough ones to be seen."""
        gradients = self.gradient_difference
        return bool(self.movements) and self.was_equal and gradients is not None and gradients <= _SAME_GRADIENT

    def is_scaled_by(self, factor: float) -> bool:
        """True if all that moved on the golden side moved `factor` times as far on the target's."""
        gradients = self.gradient_difference or 0.0
        same = min(_SAME_UPDATE, 1e-3 + _NEAR_ZERO * gradients)
        # An update that is normalised, as Adam's, turns rounding of a few gradients near zero into whole updates. The
        # mean of many updates that cancel shows these.
        largest = max((abs(factor * each.golden) for each in self.movements if each.of_element), default=0.0)
        turned = 2.0 * largest * max(1.0 / self.elements, _NEAR_ZERO * gradients) if gradients else 0.0
        return all(
            abs(each.target - factor * each.golden)
            <= each.resolution
            + same * max(abs(each.target), abs(factor * each.golden))
            + (0.0 if each.of_element else turned)
            for each in self.movements
        )


class BetweenSteps:
    """Judges what differs at the beginning of a step by the dumps of the step before.

    Args:
        before: the paths of these dumps, of target and golden side.
        parameters: the parameters of this step.
        across_frameworks: true if the runs are of two frameworks, which round gradients otherwise where
            their statistics are the same, too.
    """

    def __init__(
        self, before: tuple[str, str], parameters: Sequence[Parameter], across_frameworks: bool = False
    ) -> None:
        self._across_frameworks = across_frameworks
        self._paths = before
        self._parameters = parameters

    @cached_property
    def _dumps(self) -> tuple[Dump, Dump] | None:
        try:
            return read(self._paths[0]), read(self._paths[1])
        except MsprobeException:
            return None  # The step before is compared too, and reported there.

    def are_kept(self, target: Item, golden: Item) -> bool:
        """True if one call of the step before returned both values, where they were judged: an optimizer's state."""
        records = [found.get(_key(item), set()) for found, item in zip(self._returned, (target, golden))]
        return not records[0].isdisjoint(records[1])

    @cached_property
    def _returned(self) -> tuple[dict[_Key, set[str]], dict[_Key, set[str]]]:
        """The records of the step before that returned values, by their statistics, on either side."""
        found: tuple[dict[_Key, set[str]], dict[_Key, set[str]]] = {}, {}
        for dump, of_side in zip(self._dumps or (), found):
            for record in dump:
                for item in dump.items(record):
                    # A value that all elements have is found anywhere.
                    if item.state == OUTPUT and item.is_tensor and item.max != item.min:
                        of_side.setdefault(_key(item), set()).add(record.name)
        return found

    @cached_property
    def _updates(self) -> dict[tuple[str, str], _Update]:
        if self._dumps is None:
            return {}
        found = {}
        for parameter in self._parameters:
            update = _update(parameter, self._dumps, unit_roundoff("float32") if self._across_frameworks else 0.0)
            if update is not None:
                found[parameter.record, parameter.name] = update
        return found

    def _update_of(self, parameter: Parameter) -> _Update | None:
        parsed = parse(parameter.record)
        # A layer that is called several times has its parameters in each record.
        first = parameter.record if parsed is None else record_name(parsed._replace(number=0))
        return self._updates.get((first, parameter.name))

    @cached_property
    def optimizer(self) -> str:
        """The difference in the optimizer's work between the sides, in words; empty if there is none, or unknown."""
        clear = [update for update in self._updates.values() if update.is_clear]
        same = sum(update.is_scaled_by(1.0) for update in clear)
        if len(clear) < max(2.0, _FEWEST * len(self._updates)) or same >= _MOST * len(clear):
            return ""
        factor = median(
            each.target / each.golden if each.golden else math.inf for update in clear for each in update.movements
        )
        scaled = sum(update.is_scaled_by(factor) for update in clear) if math.isfinite(factor) else 0
        if factor and scaled >= _MOST * len(clear):
            return (
                f"updates are {factor:.3g} times those of the golden run in {scaled} of {len(clear)} parameters: "
                "another learning rate, or gradients that were scaled (clipping, loss scale)"
                f"{self._changed_on_one_side}"
            )
        if _depends_on_gradient(clear):
            return (
                f"updates differ in {len(clear) - same} of {len(clear)} parameters, the more the smaller the gradient: "
                "another epsilon of an optimizer that normalises them, or gradients that were scaled (clipping)"
            )
        share = _share_of_parameter(clear)
        if share is not None:
            more = "less" if share > 0 else "more"
            return f"updates take {abs(share):.3g} of each parameter {more} away: another weight decay"
        return f"updates differ in {len(clear) - same} of {len(clear)} parameters"

    @cached_property
    def _changed_on_one_side(self) -> str:
        """The first call of the step before that one side alone makes outside of modules, such as clipping."""
        if self._dumps is None:
            return ""
        groups = [first_of_groups(dump.tree or {}) for dump in self._dumps]
        for side, own, other in (("target", groups[0], groups[1]), ("golden run", groups[1], groups[0])):
            for group, record in own.items():
                if group not in other:
                    return f"; only the {side} has calls of {group} in the step before, the first is {record}"
        return ""

    def explains(self, parameter: Parameter) -> bool:
        """True if a parameter may differ though optimizers did the same, because its gradient was rounded otherwise.

        An update that is normalised, as Adam's, turns rounding of a gradient near zero into a whole update.
        """
        update = self._update_of(parameter)
        if update is None:
            # It differed before already, which the step before has judged.
            return self._got_other_gradient(parameter) or self._had_few_turned(parameter)
        if not update.gradient_difference:
            return False
        if update.gradient_difference > _SAME_GRADIENT:
            return True
        differences = _differences(parameter.target, parameter.golden)
        before = update.before or (0.0,) * len(differences)
        allowed = 2.0 * self._update_size
        if self._across_frameworks and self._is_linear:
            largest = max(abs(value) for value in _elements(parameter.golden))
            near = min(2.0, 4.0 * _NEAR_ZERO * update.gradient_difference)
            allowed = near * self._update_size + 8.0 * _resolution(parameter.golden, largest)
        return all(abs(now - then) <= allowed for now, then in zip(differences, before))

    def _got_other_gradient(self, parameter: Parameter) -> bool:
        """True if a parameter is otherwise apart than before, by no more than two updates, of gradients that differ."""
        before = _before(parameter, self._dumps) if self._dumps is not None else None
        if self._dumps is None or before is None:
            return False
        gradients = [_gradient(*side) for side in _sides(parameter, self._dumps)]
        if gradients[0] is None or gradients[1] is None:
            return False
        if relative_difference(gradients[0], gradients[1]) <= _SAME_GRADIENT:
            return False
        moved = max(map(abs, _differences(before[1], parameter.golden)), default=0.0)
        then, now = _differences(*before), _differences(parameter.target, parameter.golden)
        if now == then:
            return False  # No update made it, and the step before has said so.
        allowed = 2.0 * max(moved, self._update_size)
        return all(abs(each) <= abs(earlier) + allowed for each, earlier in zip(now, then))

    def _had_few_turned(self, parameter: Parameter) -> bool:
        """True if a parameter differed before this step already, by no more than a few elements with other updates.

        Where it differed by more the step before has said so, and what was explained there is here.
        """
        before = _before(parameter, self._dumps) if self._dumps is not None else None
        if before is None or not self._update_size:
            return False
        allowed = _FEW_STEPS * 2.0 * self._update_size
        for target, golden in (before, (parameter.target, parameter.golden)):
            if type(target.mean) is not float or type(golden.mean) is not float:
                return False
            of_mean = abs(target.mean - golden.mean) * (extent(golden.shape).elements or 1)
            if of_mean > _FEW_ELEMENTS * allowed or any(abs(each) > allowed for each in _differences(target, golden)):
                return False
        return True

    def hidden(self, parameter: Parameter) -> float:
        """The relative difference of a parameter that its statistics need not show.

        Where an optimizer normalises gradients, those near zero have whole updates, with a sign that is rounding.
        """
        update = self._update_of(parameter)
        norm = parameter.golden.norm
        if update is None or not update.gradient_difference or self._is_linear or type(norm) is not float or not norm:
            return 0.0
        turned = min(1.0, _NEAR_ZERO * update.gradient_difference) * update.elements
        # Steps before the last have left as much.
        return (1.0 if update.was_equal else 2.0) * 2.0 * self._update_size * math.sqrt(turned) / norm

    @cached_property
    def usually_hidden(self) -> float:
        """The difference that half of the parameters may have, which values then differ by before any call shows it."""
        return median([self.hidden(each) for each in self._parameters] or [0.0]) if self._across_frameworks else 0.0

    @cached_property
    def _is_linear(self) -> bool:
        """True if updates are gradients times one number, as those of SGD are."""
        rates = [
            each.golden / update.mean_gradient
            for update in self._updates.values()
            for each in update.movements
            if not each.of_element and update.mean_gradient
        ]
        rate = median(rates) if len(rates) > 1 else 0.0
        return bool(rate) and sum(abs(each - rate) <= 0.05 * abs(rate) for each in rates) >= _MOST * len(rates)

    def side_without_update(self, parameter: Parameter) -> str:
        """The side, in words, on which a parameter stayed as it was though it moved on the other."""
        update = self._update_of(parameter)
        movements = update.movements if update is not None else []
        if movements and not any(each.target for each in movements):
            return "target"
        return "golden run" if movements and not any(each.golden for each in movements) else ""

    def gradients_were_kept(self, calls: Iterable[AlignedCall]) -> bool:
        """True if the gradients of the target are the golden ones and those of the step before as well."""
        if self._dumps is None:
            return False
        before, found = self._dumps[0], []
        for call in calls:
            if call.record is None or PARAMETERS_GRAD not in call.record or call.record not in before:
                continue
            earlier = {item.name: item for item in before.items(before[call.record])}
            for row in call.rows:
                if row.target is not None and row.golden is not None and row.target.name in earlier:
                    found += _is_sum(row.target, row.golden, earlier[row.target.name])
        return bool(found) and sum(found) >= _MOST * len(found)

    @cached_property
    def _update_size(self) -> float:
        """The largest movement of one element, from the largest and smallest elements of parameters."""
        movements = (each for update in self._updates.values() for each in update.movements)
        return max((abs(each.golden) for each in movements if each.of_element), default=0.0)


_ELEMENTS = ("max", "min")


def _update(parameter: Parameter, dumps: tuple[Dump, Dump], rounded: float) -> _Update | None:
    """The update of a parameter; `rounded` is what two gradients with the same statistics may differ by."""
    sides, before = _sides(parameter, dumps), _before(parameter, dumps)
    if before is None:
        return None
    # Of two types the shorter one says how far two roundings of one value are apart.
    roundoff = max(unit_roundoff(item.dtype) for item in before)
    was_equal = relative_difference(before[0], before[1]) <= 4.0 * roundoff
    if not was_equal and not rounded:
        return None  # The step before has said so.
    gradients = [_gradient(*side) for side in sides]
    difference: float | None = None
    if gradients[0] is not None and gradients[1] is not None:
        difference = max(relative_difference(gradients[0], gradients[1]), rounded)
    elif gradients[0] is not gradients[1]:
        difference = 0.0  # A gradient on one side only is no matter of rounding.
    return _Update(
        parameter,
        list(_movements(parameter, before[0], before[1])),
        difference,
        was_equal,
        _differences(before[0], before[1]),
        extent(parameter.golden.shape).elements or 1,
        0.0 if gradients[1] is None else rms(gradients[1]),
        _clear_mean(gradients[1]),
    )


_Side = tuple[Dump, str, str]
"""A dump, and what record and parameter are called in it."""


def _sides(parameter: Parameter, dumps: tuple[Dump, Dump]) -> tuple[_Side, _Side]:
    golden_name = own_name(parameter.golden_record, parameter.golden) or parameter.name
    return (dumps[0], parameter.record, parameter.name), (dumps[1], parameter.golden_record, golden_name)


def _before(parameter: Parameter, dumps: tuple[Dump, Dump]) -> tuple[Item, Item] | None:
    """The parameter on both sides at the beginning of the step before."""
    target, golden = (
        _item(dump, record, f"{record}.{PARAMETERS}.{name}") for dump, record, name in _sides(parameter, dumps)
    )
    return None if target is None or golden is None else (target, golden)


def _key(item: Item) -> _Key:
    return item.max, item.min, item.mean, item.norm, item.md5, item.shape


def _clear_mean(gradient: Item | None) -> float:
    mean = 0.0 if gradient is None or type(gradient.mean) is not float else gradient.mean
    return mean if gradient is not None and abs(mean) > _CLEAR * _resolution(gradient, mean) else 0.0


def _differences(target: Item, golden: Item) -> tuple[float, ...]:
    """By how much the largest and smallest elements differ."""
    return tuple(one - other for one, other in zip(_elements(target), _elements(golden)))


def _elements(item: Item) -> list[float]:
    values = [getattr(item, name) for name in _ELEMENTS]
    return [value if type(value) is float and math.isfinite(value) else 0.0 for value in values]


def _gradient(dump: Dump, record: str, name: str) -> Item | None:
    parsed = parse(record)
    if parsed is None:
        return None
    gradients = module_name(parsed.base, 0, PARAMETERS_GRAD)
    return _item(dump, gradients, f"{gradients}.{name}")


def _item(dump: Dump, record: str, name: str) -> Item | None:
    if record not in dump:
        return None
    return next((item for item in dump.items(dump[record]) if item.name == name), None)


def _movements(parameter: Parameter, target: Item, golden: Item) -> Iterator[_Movement]:
    for name in (*_ELEMENTS, "mean"):
        now, before, golden_now, golden_before = (
            getattr(item, name) for item in (parameter.target, target, parameter.golden, golden)
        )
        if not all(type(value) is float and math.isfinite(value) for value in (now, before, golden_now, golden_before)):
            continue
        resolution = _resolution(golden, golden_before)
        of_target, of_golden = now - before, golden_now - golden_before
        if max(abs(of_target), abs(of_golden)) > _CLEAR * resolution:
            yield _Movement(of_target, of_golden, golden_before, 4.0 * resolution, name in _ELEMENTS)


def _resolution(item: Item, value: float) -> float:
    """By how much rounding alone moves a statistic that is `value`."""
    elements = extent(item.shape).elements or 1
    rms = abs(item.norm) / math.sqrt(elements) if type(item.norm) is float else 0.0
    return max(unit_roundoff(item.dtype), unit_roundoff("float32")) * (abs(value) + rms)


def _depends_on_gradient(updates: Sequence[_Update]) -> bool:
    """True if one side's updates are smaller throughout, and the more so the smaller the gradient is."""
    found = []
    for update in updates:
        ratios = [abs(each.target / each.golden) for each in update.movements if each.of_element and each.golden]
        if ratios and update.gradient:
            found.append((update.gradient, median(ratios)))
    if len(found) < _FEWEST_TO_RANK:
        return False
    sizes = [math.log(max(ratio, 1e-30)) for _, ratio in sorted(found)]
    clear = [size for size in sizes if abs(size) > _SAME_GRADIENT]
    shrunken = sum(size < 0 for size in clear)
    if len(clear) < _FEWEST_TO_RANK or max(shrunken, len(clear) - shrunken) < 0.9 * len(clear):
        return False
    third = len(sizes) // 3
    low, high = (abs(median(part)) for part in (sizes[:third], sizes[-third:]))
    return low > 1.5 * high


def _share_of_parameter(updates: Sequence[_Update]) -> float | None:
    """The share of a parameter by which updates differ, where it is the same for most."""
    shares = [
        (each.target - each.golden) / each.before
        for update in updates
        for each in update.movements
        if abs(each.before) > 1e-3 and abs(each.target - each.golden) > each.resolution
    ]
    share = median(shares) if len(shares) > 2 else 0.0
    alike = sum(abs(each - share) <= 0.1 * abs(share) for each in shares)
    return share if share and alike >= _MOST * len(shares) else None


def _is_sum(target: Item, golden: Item, before: Item) -> list[bool]:
    """True if Mean, which is linear, is the sum of the other two; nothing where it would not show."""
    if not all(type(item.mean) is float and math.isfinite(item.mean) for item in (target, golden, before)):
        return []
    size = abs(golden.mean) + abs(before.mean)
    if size <= _CLEAR * _resolution(golden, golden.mean) or abs(before.mean) <= 0.05 * size:
        return []
    return [bool(abs(target.mean - golden.mean - before.mean) <= _SAME_UPDATE * size)]
