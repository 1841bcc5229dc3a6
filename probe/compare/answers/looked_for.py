"""Differences that may change values though none is seen to, and the size that their effect must have had to show.

"Without effect" is true only where the effect was looked for. An argument of a call that computes, a shape, and a
module or call with parameters on one side only decide values. Their effect is looked for in the values of the call, in
those of the module right around it, and in those of the calls that take its result; of what one side alone has, also
in what the other side makes in another place. It shows there if it is larger than
what these values differ by for other reasons, rounding at least. If the effect that such a difference is expected to
have is no larger than that, nobody can tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from probe.common.align.row import Row
from probe.common.dump.naming import (
    FORWARD,
    PARAMETERS_GRAD,
    function_name,
    is_backward,
    is_forward,
    is_module,
    parse,
    record_name,
)  # fmt: skip
from probe.common.dump.reading.records import PARAMETERS, Item
from probe.common.numerics.error_bounds import SAFETY
from probe.common.numerics.formats import unit_roundoff
from probe.common.operations.function import COMPUTING_NOTHING, Trait
from probe.common.operations.lookup import function, has
from probe.common.operations.signatures import OF_MEMORY, argument_name
from probe.compare.answers.activations import other_activations
from probe.compare.answers.expected_effects import (
    LEAST_EXPECTED,
    LEAST_OF_ARGUMENT,
    VISIBLE,
    Apart,
    Expected,
    choice_of,
    least_of_choices,
    of_numbers,
)
from probe.compare.answers.first_unequal import first_unequal
from probe.compare.answers.idle_arguments import IdleArguments, is_choice
from probe.compare.answers.other_numbers import OtherNumbers, written_numbers
from probe.compare.divergence import differences
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.causes.setting_meanings import is_one_value
from probe.compare.divergence.effects import Effects, Key, key_of
from probe.compare.divergence.same_values import SameValues
from probe.compare.divergence.search.runs import Runs
from probe.compare.divergence.two_programs.held_values import SPREAD
from probe.compare.result import GOLDEN, TARGET, Difference, Mode

_NO_COMPUTATION = (*COMPUTING_NOTHING, Trait.TELLS, Trait.BRINGS_IN, Trait.FITS)


class LookedFor(NamedTuple):
    """Differences, by what is known of their effect."""

    without_effect: list[Difference]
    """Those that change no value; each that may decide one says from which size on its effect would have shown."""
    undecided: list[Difference]
    """Those of which nobody can tell."""


def looked_for(runs: Runs, effects: Effects, without_effect: Sequence[Difference]) -> LookedFor:
    """Tell the differences whose effect would have shown from the others.

    Args:
        runs: the runs, between which nothing diverges.
        effects: follows what calls return.
        without_effect: what differs and was not seen to change a value.
    """
    search = _Search(runs, effects)
    seen: list[Difference] = []
    undecided: list[Difference] = []
    expectations = [
        (each, expected, None if expected is None else search.apart(each))
        for each, expected in search.with_expectations(without_effect)
    ]
    least = least_of_choices(expectations)
    for difference, expected, apart in expectations:
        if expected is None:
            seen.append(difference)
            continue
        apart = least.get(choice_of(difference), apart) if expected.is_choice else apart
        # Another way to go changes many elements, which all statistics show.
        ratio = 0.0 if apart is None else min(apart.ratio, SPREAD) if expected.is_choice else apart.ratio
        is_seen = apart is not None and ratio * apart.size <= expected.size
        shows_from = None if apart is None else apart.size
        (seen if is_seen else undecided).append(replace(difference, shows_from=shows_from))
    return LookedFor(seen, [*undecided, *search.beyond_rounding(), *search.of_programs()])


class _Search:
    def __init__(self, runs: Runs, effects: Effects) -> None:
        self._runs = runs
        self._effects = effects
        # Statistics show a part of an effect.
        self._ratio = VISIBLE if runs.mode is Mode.TENSOR else SAFETY
        self._idle = IdleArguments(runs)

    # --- what may decide a value

    def with_expectations(self, without_effect: Sequence[Difference]) -> Iterator[tuple[Difference, Expected | None]]:
        """Each difference with the effect that it is expected to have; ``None`` if it has none."""
        for difference in (*without_effect, *self._other_arguments(), *written_numbers(self._runs, without_effect)):
            call = self._call(difference)
            row = None if call is None else _row(call, difference.item)
            yield difference, None if call is None or row is None else self._expected(call, row)
        tree = self._runs.tree
        # A call inside of the module may take it as an argument, of whatever name.
        taken = {(tree.get(each.record), each.values) for each in without_effect} if self._runs.other_settings else ()
        for setting in self._runs.other_settings:
            around = None if setting.is_of_model else setting.call.record
            difference = setting.difference
            is_taken = difference.values is not None and (around, difference.values) in taken
            if setting.computes and not is_taken:
                yield difference, Expected(min(LEAST_OF_ARGUMENT, setting.apart))
        if self._runs.regions is not None:
            for number in OtherNumbers(self._runs).found():
                yield number, Expected(LEAST_OF_ARGUMENT)
        for activation in other_activations(self._runs):
            yield activation, Expected(LEAST_OF_ARGUMENT)
        for call in self._on_one_side:
            side, name = (TARGET, call.record) if call.record else (GOLDEN, call.golden_record)
            what = "module with parameters" if is_module(name or "") else "call with parameters"
            what = "gradient of parameters" if PARAMETERS_GRAD in (name or "") else what
            reason = f"only the {side} has this {what}"
            yield Difference(call.record or "", call.golden_record or "", "", reason), Expected(LEAST_EXPECTED)

    def _other_arguments(self) -> Iterator[Difference]:
        """Plain arguments that differ between calls of one function, where the programs have other names for them.

        The walk does not compare these then, because two calls that are paired need not be of one function.
        """
        if self._runs.same_names or self._runs.across_frameworks:
            return
        for call in self._runs.calls:
            own = function_name(call.record or "")
            if not own or own != function_name(call.golden_record or "") or not is_forward(call.record or ""):
                continue
            for row in call.rows:
                target, golden = row.target, row.golden
                if not is_input(row) or target is None or golden is None or None in (target.value, golden.value):
                    continue
                values = target.value, golden.value
                if not (is_one_value(*values) or str(values[0]) == str(values[1])):
                    reason = differences.of_argument(row, target, golden, self._runs.is_torch)
                    names = call.record or "", call.golden_record or "", target.name
                    yield Difference(*names, reason.text, labelled_reason=reason.labelled, values=reason.values)

    def _call(self, difference: Difference) -> AlignedCall | None:
        return self._by_names.get((difference.record, difference.golden_record))

    @cached_property
    def _by_names(self) -> dict[tuple[str, str], AlignedCall]:
        # Of two programs the calls of one side that decide nothing are made only.
        calls = (*self._runs.made, *self._runs.calls)
        return {(call.record or "", call.golden_record or ""): call for call in calls}

    def _expected(self, call: AlignedCall, row: Row) -> Expected | None:
        target, golden = row.target, row.golden
        # A gradient has the shape of what the forward has, and is absent where nothing of the forward asks for it.
        if not is_forward(call.record or "") or not _computes(call):
            return None
        if target is not None and golden is not None and target.is_tensor and golden.is_tensor:
            if self._runs.regions is not None and not differences.is_of_another_size(row):
                return None  # Two programs may have tokens in one dimension and in two.
            is_same = target.shape == golden.shape or differences.is_repeated(target, golden)
            return None if is_same else Expected(LEAST_EXPECTED)
        if not is_input(row) or argument_name(call.record or "", differences.short_name(row)) in OF_MEMORY:
            return None
        if self._idle.has(call, row):
            return None
        is_tensor = any(item is not None and item.is_tensor for item in (target, golden))
        if is_tensor or is_choice(call, row):
            return Expected(LEAST_EXPECTED, is_choice(call, row))
        values = [item.value for item in (target, golden) if item is not None and type(item.value) is float]
        return Expected(of_numbers(*values) if len(values) == 2 else LEAST_OF_ARGUMENT)

    @cached_property
    def _on_one_side(self) -> list[AlignedCall]:
        """The modules, calls and gradients with parameters that one side alone has.

        Without what only computes again, and without the calls and gradients of such a module.
        """
        alone = [call for call in self._runs.calls if not (call.record and call.golden_record)]
        if not alone:
            return []
        found = [call for call in alone if self._has_parameters(call) and not self._is_recomputed(call)]
        modules = {(call.record, call.golden_record) for call in found}
        return [call for call in found if self._around(call) not in modules]

    def _has_parameters(self, call: AlignedCall) -> bool:
        name = call.record or call.golden_record or ""
        parsed = parse(name)
        items = [row.target or row.golden for row in call.rows]
        if parsed is not None and parsed.direction == PARAMETERS_GRAD:
            return any(item is not None and item.is_tensor and item.norm != 0 for item in items)
        if parsed is None or parsed.direction != FORWARD:
            return False
        if parsed.is_module:
            return any(item is not None and item.state == PARAMETERS and item.is_tensor for item in items)
        given = (key_of(item) for item in items if item is not None and item.is_tensor)
        return _computes(call) and not self._parameters[call.record is None].isdisjoint(given)

    @cached_property
    def _parameters(self) -> tuple[set[Key], set[Key]]:
        """The statistics of the parameters of the modules of both sides; those of constants tell nothing."""
        found: tuple[set[Key], set[Key]] = set(), set()
        for call in self._runs.calls:
            for row in call.rows:
                for side, item in enumerate((row.target, row.golden)):
                    if item is not None and item.state == PARAMETERS and item.is_tensor and item.max != item.min:
                        found[side].add(key_of(item))
        return found

    def _is_recomputed(self, call: AlignedCall) -> bool:
        """True if a call has the results of an earlier one of its name, as checkpointing makes them."""
        side = int(call.record is None)
        results = _results(call, side)
        return results is not None and results in self._results[side]

    @cached_property
    def _results(self) -> tuple[set[Key], set[Key]]:
        found: tuple[set[Key], set[Key]] = set(), set()
        for call in self._runs.calls:
            for side in (0, 1) if call.record and call.golden_record else ():
                results = _results(call, side)
                if results is not None:
                    found[side].add(results)
        return found

    def _around(self, call: AlignedCall) -> tuple[str | None, str | None]:
        parsed = parse(call.record or call.golden_record or "")
        if parsed is not None and parsed.direction == PARAMETERS_GRAD:
            forward = record_name(parsed._replace(direction=FORWARD))
            return (forward, None) if call.record else (None, forward)
        if call.record:
            return self._runs.tree.get(call.record), None
        return None, self._runs.golden_tree.get(call.golden_record or "")

    # --- where its effect is looked for

    def apart(self, difference: Difference) -> Apart | None:
        """The size relative to which an effect would have shown; ``None`` if nothing was compared behind it."""
        call = self._call(difference)
        if call is None:
            is_of_model = (difference.record, difference.golden_record) in self._models
            return self._of_models_own_forward() if is_of_model else None
        if not (call.record and call.golden_record):
            return self._of_one_side(call)
        row = _row(call, difference.item)
        is_argument = row is not None and is_input(row) and not (row.target is not None and row.target.is_tensor)
        if is_argument and function(function_name(call.record or "")).keeps:
            return None  # What it keeps is read by the next step.
        found = self._effects.shown_from(call)
        return None if found is None else Apart(found, self._ratio)

    @cached_property
    def _models(self) -> set[tuple[str | None, str | None]]:
        """The names of the models themselves that are set otherwise."""
        return {(each.call.record, each.call.golden_record) for each in self._runs.other_settings if each.is_of_model}

    def _of_models_own_forward(self) -> Apart | None:
        """The size relative to which an effect of what a model computes itself would have shown.

        That shows in what its modules take. What it does with their results shows in gradients alone, unless calls of
        functions are recorded.
        """
        calls = [call for call in self._runs.calls if call.record and self._runs.tree.get(call.record) is None]
        has_gradients = any(is_backward(call.record or "") for call in calls)
        if self._runs.modules_only and not has_gradients:
            return None
        found = self._effects.largest_of(calls)
        return None if found is None else Apart(found, self._ratio)

    def _of_one_side(self, call: AlignedCall) -> Apart | None:
        """The same of a call that one side alone makes."""
        # Two programs have other calls and layers for one thing; what they hand on has counterparts by its values.
        regions = self._runs.regions
        of_region = None if regions is None else regions.apart(call)
        if regions is not None and of_region is not None:
            # Of a short type it is the error of elements, which statistics tell within a factor.
            return Apart(of_region, SPREAD if regions.is_coarse else self._ratio)
        found = [each for each in (self._shows_elsewhere(call), self._effects.shown_from(call)) if each is not None]
        return Apart(min(found), self._ratio) if found else None

    def _shows_elsewhere(self, call: AlignedCall) -> float | None:
        """The relative size from which on an effect of a call of one side would show where the other has its results.

        ``None`` if the other side has no tensor with the values of one of its results, or of one of its gradients.
        """
        items = [_item(row, int(call.record is None)) for row in call.rows if not is_input(row)]
        # A gradient of zeros is none.
        values = [
            item for item in items if item is not None and item.is_tensor and unit_roundoff(item.dtype) and item.norm
        ]
        if not values or any(self._same_values.label(item) is None for item in values):
            return None
        return max(self._same_values.allowed, *(unit_roundoff(item.dtype) for item in values))

    @cached_property
    def _same_values(self) -> SameValues:
        sides = (
            [item for call in self._runs.calls for row in call.rows if (item := _item(row, side)) and item.is_tensor]
            for side in (0, 1)
        )
        return SameValues(*sides)

    # --- what no difference explains, and rounding hardly

    def beyond_rounding(self) -> list[Difference]:
        """The first value of a forward pass in a short type that differs by more than that of its like usually does.

        Chance explains it, hardly.
        """
        near = self._runs.peers.nearly_leaving
        for call in self._runs.calls if near else ():
            for row in call.rows:
                found = near.get(id(row))
                if found is not None:
                    names = call.record or "", call.golden_record or "", differences.item_name(row)
                    reason = differences.of_nearly_leaving(row, found.error, found.usual, found.peers)
                    return [Difference(*names, reason, found.error, True)]
        return []

    def of_programs(self) -> list[Difference]:
        """Distances of two programs in a short type that rounding hardly explains."""
        regions = self._runs.regions
        if regions is None or not regions.is_coarse:
            return []
        first, result = first_unequal(self._runs.calls, regions), regions.result_apart()
        found = [] if first is None else [first]
        if result is not None:
            reason = differences.of_result(result.error, result.usual)
            found.append(Difference(result.record, result.golden_record, result.item, reason, result.error, True))
        rising = self._runs.rising
        if rising is not None:
            call, row = rising.layer.call, rising.layer.row
            reason = differences.of_rise(rising.behind, rising.before)
            names = call.record or "", call.golden_record or "", differences.item_name(row)
            found.append(Difference(*names, reason, rising.behind, True))
        return found


def _computes(call: AlignedCall) -> bool:
    name = call.record or call.golden_record or ""
    return is_module(name) or not has(function_name(name), *_NO_COMPUTATION)


def _row(call: AlignedCall, name: str) -> Row | None:
    return next((row for row in call.rows if differences.item_name(row) == name), None)


def _results(call: AlignedCall, side: int) -> Key | None:
    """The function or module of a forward call and the statistics of its results; ``None`` if these tell nothing."""
    parsed = parse((call.record, call.golden_record)[side] or "")
    if parsed is None or parsed.direction != FORWARD:
        return None
    items = [item for item in (_item(row, side) for row in call.rows if not is_input(row)) if item is not None]
    if not any(item.is_tensor and (item.norm, item.md5) != (None, None) for item in items):
        return None
    return (parsed.base, *(key_of(item) for item in items))


def _item(row: Row, side: int) -> Item | None:
    return row.golden if side else row.target
