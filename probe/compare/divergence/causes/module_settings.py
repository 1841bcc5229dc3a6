"""Settings of modules that differ: an epsilon, a scale, a table, a hook. They are the arguments of a module's call.

A record of a module has its inputs and outputs alone, so that these come from the environments of both runs. A setting
that one side alone has says nothing: releases rename their attributes. What has another name is compared where its
meaning is known (`setting_meanings`).

Of the forward of a whole model there is no record. Its settings are compared as well: a scale of logits, a table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from probe.common.dump.naming import is_forward, is_module, parse
from probe.common.environment.modules import Buffer, ModuleSettings, Settings
from probe.common.numerics.error_bounds import SAFETY, is_number
from probe.common.numerics.formats import unit_roundoff
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.causes.setting_meanings import Handled, MeantSettings, Pair, is_one_value
from probe.compare.result import GOLDEN, TARGET, Difference
from probe.compare.sentences import Sentence, other_value

SettingsPair = tuple[Settings, Settings]
"""Settings of target and golden side."""

_FILLS_MASKS = -1e4
"""The largest number with which programs fill masks; it depends on the dtype and not on the model."""
_IDLE = re.compile(
    r"training\Z|inplace\Z|name\Z|layer_(?:idx|id|number|index)\Z|gradient_checkpointing\Z|recompute"
    # Where a module is, and what it has kept; how long what it gets may be.
    r"|(?:.*_)?(?:rank|world|tp|pp|cp|ep|partition|cached?|device|version)(?:_|\Z)"
    r"|(?:.*_)?max_(?:\w+_)?(?:len|length|positions?|embeddings|tokens|batch)(?:_|\Z)"
    # What parameters begin with, and where from.
    r"|(?:.*_)?init(?:ial|ializer)?(?:_|\Z)|(?:.*_)?(?:path|file|folder|dir|url|revision|tags|prefix)\Z"
)
"""Attributes that decide no value of a call, or none that its shapes do not show."""
_OF_TRAINING = re.compile(r"p\Z|momentum\Z|.*(?:drop|jitter|noise|aux_loss)")
"""Attributes that a module uses only while it is trained."""


class OtherSetting(NamedTuple):
    """A setting that differs between two modules that belong together."""

    call: AlignedCall
    """The first call of the modules."""
    name: str
    sentence: Sentence
    apart: float
    """The distance of two numbers, absolute or relative, whichever is less; infinity if no number tells."""
    computes: bool
    """True if it decides values in any case."""
    is_of_model: bool = False
    """True if a model itself has it, of whose call there is no record; the call has its name then, and no rows."""

    @property
    def difference(self) -> Difference:
        """It as a difference of the call."""
        record = self.call.record or ""
        return Difference(
            record,
            self.call.golden_record or "",
            f"{record}.settings.{self.name}",
            self.sentence.text,
            labelled_reason=self.sentence.labelled,
            values=self.sentence.values,
        )


def other_settings(
    calls: Iterable[AlignedCall], settings: SettingsPair, same_names: bool, across_frameworks: bool
) -> list[OtherSetting]:
    """Settings that differ between modules that belong together, in the order of their first calls.

    Args:
        calls: the calls of both runs side by side.
        settings: those of the modules of both sides; empty where they are not known.
        same_names: true if both sides use the same names for the same things.
        across_frameworks: true if the runs are of two frameworks.
    """
    if not all(settings):
        return []
    by_pair = {**_of_models(settings), **_first_calls(calls, settings)}
    found: list[OtherSetting] = []
    handled: set[tuple[int, str, str]] = set()
    for pair, call in by_pair.items():
        target, golden = (side[name] for side, name in zip(settings, pair))
        if target == golden or across_frameworks:
            continue
        # Two programs have classes of one name that do other things.
        is_one_class = target.class_name == golden.class_name if same_names else target.kind == golden.kind
        is_model = target.is_model and golden.is_model
        own = list(_of_values(call, target, golden, is_one_class))
        if is_one_class:
            own += _of_buffers(call, target, golden)
            own += _of_hooks(call, target, golden) if same_names else ()
        found += (each._replace(is_of_model=is_model) for each in own)
        handled |= {(side, name, each.name) for each in own for side, name in enumerate(pair)}
    found += _by_meaning(by_pair, settings, handled)
    order = {call: index for index, call in enumerate(map(id, by_pair.values()))}
    return sorted(found, key=lambda each: order[id(each.call)])


def _first_calls(calls: Iterable[AlignedCall], settings: SettingsPair) -> dict[Pair, AlignedCall]:
    """The first calls of the modules that belong together, by their names."""
    found: dict[Pair, AlignedCall] = {}
    for call in calls:
        if not (call.record and call.golden_record) or not is_forward(call.record) or not is_module(call.record):
            continue
        target, golden = parse(call.record), parse(call.golden_record)
        if target is not None and golden is not None:
            pair = target.base, golden.base
            if pair not in found and all(name in side for name, side in zip(pair, settings)):
                found[pair] = call
    return found


def _of_models(settings: SettingsPair) -> dict[Pair, AlignedCall]:
    """The models themselves, those of one prefix together, and two that are the only ones; each as a call without rows.

    They have no call in a dump.
    """
    sides = [{_beginning(name): name for name, each in side.items() if each.is_model} for side in settings]
    pairs = [(name, sides[1][prefix]) for prefix, name in sides[0].items() if prefix in sides[1]]
    if not pairs and len(sides[0]) == len(sides[1]) == 1:
        pairs = list(zip(sides[0].values(), sides[1].values()))
    return {pair: AlignedCall(*pair, []) for pair in pairs}


def _beginning(name: str) -> str:
    return name.rpartition(".")[0]


def _by_meaning(
    by_pair: Mapping[Pair, AlignedCall], settings: SettingsPair, handled: Handled
) -> Iterator[OtherSetting]:
    for number in MeantSettings(list(by_pair), settings, handled).found() if by_pair else ():
        pair = number.pair if number.pair in by_pair else next(iter(by_pair))
        is_of_model = settings[0][pair[0]].is_model
        yield OtherSetting(by_pair[pair], number.name, number.sentence, _distance(*number.values), True, is_of_model)


def _of_values(
    call: AlignedCall, target: ModuleSettings, golden: ModuleSettings, is_one_class: bool
) -> Iterator[OtherSetting]:
    is_layer = target.is_layer and golden.is_layer
    if is_layer and target.is_model:
        return  # What holds layers, or is around a model to train it on several devices.
    is_trained = target.training or golden.training
    for name, value in target.values.items():
        other = golden.values.get(name)
        if value is None or other is None or is_one_value(value, other) or _IDLE.match(name):
            continue
        if not (is_one_class or (type(value) is float and type(other) is float)):
            continue  # Whole numbers and texts of other classes mean other things.
        if is_trained or not _OF_TRAINING.match(name):
            # Of a layer of the framework it is an argument; a truth value or a text may as well choose a kernel.
            computes = is_layer or (is_number(value) and is_number(other))
            yield _of_two(call, name, value, other, computes)
    if is_one_class and target.training != golden.training:
        yield _of_two(call, "training", target.training, golden.training, False)


def _of_two(call: AlignedCall, name: str, value: Any, other: Any, computes: bool) -> OtherSetting:
    return OtherSetting(call, name, other_value(name, value, other), _distance(value, other), computes)


def _distance(value: Any, other: Any) -> float:
    if not (type(value) is float and type(other) is float):
        return math.inf
    size = max(abs(value), abs(other))
    return min(abs(value - other), abs(value - other) / size)


def _of_hooks(call: AlignedCall, target: ModuleSettings, golden: ModuleSettings) -> Iterator[OtherSetting]:
    for hooks, others, side in ((target.hooks, golden.hooks, TARGET), (golden.hooks, target.hooks, GOLDEN)):
        for hook in hooks:
            if hook not in others:
                yield OtherSetting(call, "hooks", Sentence(f"the {hook} is there in the {side} only"), math.inf, True)


# --- buffers


def _of_buffers(call: AlignedCall, target: ModuleSettings, golden: ModuleSettings) -> Iterator[OtherSetting]:
    is_trained = target.training or golden.training
    for name, mine in target.buffers.items():
        other = golden.buffers.get(name)
        if other is None or mine.shape != other.shape or ((mine.is_state or other.is_state) and is_trained):
            continue  # What is saved with the parameters moves with them.
        apart = _apart(mine, other)
        if apart > _rounding(mine, other):
            size = f"differs by {apart:.1e} of its size" if math.isfinite(apart) else "has other values"
            yield OtherSetting(call, name, Sentence(f"buffer {name} {size}"), apart, True)


def _apart(mine: Buffer, other: Buffer) -> float:
    """The largest relative difference of two statistics; 0 if too little is known."""
    if len(mine.statistics) != len(other.statistics):
        return 0.0
    pairs = list(zip(mine.statistics, other.statistics))
    if not all(is_number(value) and math.isfinite(value) for pair in pairs for value in pair):
        return 0.0 if any(None in pair for pair in pairs) or mine.statistics == other.statistics else math.inf
    if max(pairs[1]) <= _FILLS_MASKS:
        return 0.0
    # The mean may be the rest of what cancels.
    sizes = [max(map(abs, pair)) for pair in pairs]
    largest = max(sizes[:2])
    sizes[2] = largest
    return max((abs(one - two) / size for (one, two), size in zip(pairs, sizes) if size), default=0.0)


def _rounding(mine: Buffer, other: Buffer) -> float:
    """The relative difference of two buffers that were computed alike, and rounded to their types."""
    roundoffs = [unit_roundoff(each.dtype) for each in (mine, other)]
    if not all(roundoffs):
        return 0.0  # Whole numbers are not rounded.
    return max(2 * max(roundoffs), SAFETY * unit_roundoff("float32"))
