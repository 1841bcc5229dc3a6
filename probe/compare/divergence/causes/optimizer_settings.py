"""The settings of an optimizer, as its calls show them: learning rate, betas, epsilon, weight decay, momentum.

An optimizer's calls take plain numbers that are made of its settings: ``param.add_(grad, alpha=-lr)``. The meaning of a
number follows from the function and from what it is called on: a parameter, a gradient, or state that the optimizer
keeps. Parameters and gradients are recognised by their statistics, and followed through calls that write in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, Optional

from probe.common.dump.naming import PARAMETERS_GRAD, function_name, is_module
from probe.common.dump.reading.records import INPUT, PARAMETERS, Item
from probe.common.dump.reading.sources import Tree
from probe.common.numerics.error_bounds import is_number
from probe.common.operations.lookup import writes_in_place
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.effects import GOLDEN, TARGET, Key, key_of, returned_by
from probe.compare.divergence.parameters import own_name, parameter_name
from probe.compare.sentences import NOTHING, Sentence, other_setting

_PARAMETER, _GRADIENT, _STATE = "parameter", "gradient", "state"
_FOREACH = "_foreach_"
_SAME = 1e-12


class _Role(NamedTuple):
    """The part that a tensor has in an optimizer."""

    kind: str
    parameter: str
    """The name of the parameter that it belongs to; empty if it is not known."""


class _Setting(NamedTuple):
    """A setting that a call shows."""

    name: str
    value: float
    parameter: str


_NOTHING = _Role(_STATE, "")


class OptimizerSettings:
    """Reads settings of the optimizer from its calls.

    Args:
        calls: all calls of both runs, in order.
        trees: the call trees of target and golden side.
    """

    def __init__(self, calls: Sequence[AlignedCall], trees: tuple[Tree, Tree]) -> None:
        self._calls = calls
        self._trees = trees

    def differing(self, call: AlignedCall) -> Sentence:
        """The settings that differ in the optimizer around `call`; without words if it is in none."""
        around = self._around(call, TARGET)
        if not around or call.record not in self._settings[TARGET]:
            return NOTHING
        found: dict[str, Sentence] = {}
        for each in self._calls:
            mine = self._settings[TARGET].get(each.record or "")
            theirs = self._settings[GOLDEN].get(each.golden_record or "")
            if mine is None or theirs is None or mine.name != theirs.name or self._around(each, TARGET) != around:
                continue
            if abs(mine.value - theirs.value) > _SAME * max(abs(mine.value), abs(theirs.value)):
                values = f"{mine.value:.6g}", f"{theirs.value:.6g}"
                # Of several the first one says of which parameter it is.
                found.setdefault(mine.name, other_setting(mine.name, *values, "" if found else mine.parameter))
        if not found:
            return NOTHING
        texts, labelled = ("; ".join(forms) for forms in zip(*((each.text, each.shown) for each in found.values())))
        return Sentence(texts, labelled)

    def of_one_side(self, call: AlignedCall) -> str:
        """The setting that a call shows which one side alone makes, in words."""
        side = TARGET if call.record else GOLDEN
        setting = self._settings[side].get((call.record, call.golden_record)[side] or "")
        if setting is None:
            return ""
        of = f" of parameter {setting.parameter}" if setting.parameter else ""
        return f"{setting.name} {setting.value:.6g}{of}"

    def _around(self, call: AlignedCall, side: int) -> str:
        around = self._trees[side].get((call.record, call.golden_record)[side] or "")
        return "" if around is None or is_module(around) else around

    @cached_property
    def _settings(self) -> tuple[dict[str, _Setting], dict[str, _Setting]]:
        return self._settings_of(TARGET), self._settings_of(GOLDEN)

    def _settings_of(self, side: int) -> dict[str, _Setting]:
        """The settings that the calls of one side show, by their records."""
        calls = [call for call in self._calls if self._around(call, side)]
        if not calls:
            return {}
        roles = self._recorded_roles(side)
        names = [_function((call.record, call.golden_record)[side] or "") for call in calls]
        takes_signs = bool({"sign", "sign_"}.intersection(names))
        found: dict[str, _Setting] = {}
        unnamed: list[str] = []
        for index, (call, name) in enumerate(zip(calls, names)):
            given = [roles.get(key_of(item), _NOTHING) for item in _tensors(call, side)]
            self._follow(call, name, side, given, roles)
            parameter = next((role.parameter for role in given if role.parameter), "")
            after = names[index + 1] if index + 1 < len(names) else ""
            setting = _setting(name, given, _number(call, side), after, takes_signs, "lerp_" in names)
            record = (call.record, call.golden_record)[side] or ""
            if setting is not None:
                found[record] = _Setting(*setting, parameter)
                unnamed += [] if parameter else [record]
            if parameter:
                # The calls for one parameter come together, and end with its update.
                for each in unnamed:
                    found[each] = found[each]._replace(parameter=parameter)
                unnamed = []
        return found

    def _recorded_roles(self, side: int) -> dict[Key, _Role]:
        found: dict[Key, _Role] = {}
        for call in self._calls:
            record = (call.record, call.golden_record)[side]
            if record is None or not is_module(record):
                continue
            for row in call.rows:
                item = (row.target, row.golden)[side]
                if item is None or not item.is_tensor or item.max == item.min:
                    continue
                if item.state == PARAMETERS:
                    found[key_of(item)] = _Role(_PARAMETER, parameter_name(record, own_name(record, item)))
                elif PARAMETERS_GRAD in record:
                    found[key_of(item)] = _Role(_GRADIENT, parameter_name(record, item.name[len(record) + 1 :]))
        return found

    def _follow(self, call: AlignedCall, name: str, side: int, given: list[_Role], roles: dict[Key, _Role]) -> None:
        """Keep the role of what a call returns: of what it wrote into, or of a gradient with something added."""
        if not given:
            return
        kept = writes_in_place(name) or given[0].kind == _GRADIENT
        for item in returned_by(call, side)[:1] if kept and given[0] is not _NOTHING else ():
            roles[key_of(item)] = given[0]


def _function(record: str) -> str:
    return function_name(record).rpartition(".")[2].replace(_FOREACH, "")


def _tensors(call: AlignedCall, side: int) -> list[Item]:
    items = ((row.target, row.golden)[side] for row in call.rows if (row.target or row.golden) is not None)
    return [item for item in items if item is not None and item.is_tensor and item.state == INPUT]


def _number(call: AlignedCall, side: int) -> Optional[float]:  # noqa: UP045
    """The last plain number that a call is given."""
    items = ((row.target, row.golden)[side] for row in call.rows)
    numbers = [item.value for item in items if item is not None and item.state == INPUT and is_number(item.value)]
    return float(numbers[-1]) if numbers else None


def _setting(
    name: str, given: list[_Role], number: float | None, after: str, takes_signs: bool, has_betas: bool
) -> tuple[str, float] | None:
    """The name and the value of the setting that a call shows; ``None`` if it shows none.

    Args:
        name: the function.
        given: the roles of its tensors.
        number: its plain number.
        after: the function that the optimizer calls next.
        takes_signs: true if the optimizer's update is a sign.
        has_betas: true if the optimizer keeps a mean of gradients.
    """
    if number is None or not given:
        return None
    first, second = given[0].kind, given[1].kind if len(given) > 1 else ""
    if first == _PARAMETER:
        of_parameter = {
            "mul_": ("weight decay times lr", 1.0 - number),
            "add_": ("lr", -number),
            "sub_": ("lr", number),
            "addcdiv_": ("lr over the bias correction" if has_betas else "lr", -number),
        }
        return of_parameter.get(name)
    if name in ("add", "add_") and not second:
        return "eps", number
    if name in ("add", "add_") and first == _GRADIENT:
        return ("weight decay", number) if second == _PARAMETER else ("Nesterov momentum", number)
    of_state = {
        "add": ("beta1", 1.0 - number),
        "add_": ("dampening", 1.0 - number),
        "lerp_": ("beta2" if takes_signs else "beta1", 1.0 - number),
        "addcmul_": ("beta2", 1.0 - number),
        "mul_": ("beta2" if after == "addcmul_" else "beta1" if takes_signs else "momentum", number),
    }
    if name == "mul_" and has_betas and after != "addcmul_" and not takes_signs:
        return None  # The weight decay of a parameter of which nothing is known: Adam has no momentum.
    found = of_state.get(name)
    # A tensor of equal elements, such as the weight of a new norm, has no role. ``add_(grad, alpha=-lr)`` would make of
    # it a dampening of 1 + lr.
    return found if found is not None and 0.0 <= found[1] <= 1.0 else None
