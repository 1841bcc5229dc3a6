"""Settings of modules that differ: an epsilon, a scale, a table, a hook. They are the arguments of a module's call.

A record of a module has its inputs and outputs alone, so that these come from the environments of both runs. A setting
that one side alone has, or that the other has under another name, says nothing: releases rename their attributes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from probe.common.dump.naming import is_forward, is_module, parse
from probe.common.environment.modules import Buffer, ModuleSettings, Settings
from probe.common.numerics.error_bounds import SAFETY, is_number
from probe.common.numerics.formats import unit_roundoff
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.result import GOLDEN, TARGET, Difference
from probe.compare.sentences import Sentence, other_value

SettingsPair = tuple[Settings, Settings]
"""Settings of target and golden side."""

_EPSILON = re.compile(r"(?:\w+_)?eps(?:ilon)?\Z")
"""The names that programs have for the number which a norm adds to a variance."""
_SAME = 1e-6
"""The relative difference of two numbers that are one, one of them rounded to float32. A guess, near its roundoff."""
_FILLS_MASKS = -1e4
"""The largest number with which programs fill masks; it depends on the dtype and not on the model."""
_IDLE = re.compile(
    r"training\Z|inplace\Z|name\Z|layer_(?:idx|id|number|index)\Z|gradient_checkpointing\Z|recompute"
    # Where a module is, and what it has kept; how long what it gets may be.
    r"|(?:.*_)?(?:rank|world|tp|pp|cp|ep|partition|cached?|device|version)(?:_|\Z)"
    r"|(?:.*_)?max_(?:\w+_)?(?:len|length|positions?|embeddings|tokens|batch)(?:_|\Z)"
    # What parameters begin with.
    r"|(?:.*_)?init(?:ial|ializer)?(?:_|\Z)"
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
    found: list[OtherSetting] = []
    seen: set[tuple[str, ...]] = set()
    for call in calls if all(settings) else ():
        if not (call.record and call.golden_record) or not is_forward(call.record) or not is_module(call.record):
            continue
        parsed = parse(call.record), parse(call.golden_record)
        bases = tuple("" if each is None else each.base for each in parsed)
        if bases in seen:
            continue
        seen.add(bases)
        target, golden = (side.get(base) for side, base in zip(settings, bases))
        if target is None or golden is None or (target == golden and not across_frameworks):
            continue
        # Two programs have classes of one name that do other things.
        is_one_class = target.class_name == golden.class_name if same_names else target.kind == golden.kind
        if not across_frameworks and is_one_class:
            found += _of_values(call, target, golden)
            found += _of_buffers(call, target, golden)
            found += _of_hooks(call, target, golden) if same_names else ()
        else:
            found += _of_epsilon(call, target, golden)
    return found


def _of_values(call: AlignedCall, target: ModuleSettings, golden: ModuleSettings) -> Iterator[OtherSetting]:
    is_layer = target.is_layer and golden.is_layer
    is_trained = target.training or golden.training
    for name, value in target.values.items():
        other = golden.values.get(name)
        if value is None or other is None or _agree(value, other) or _IDLE.match(name):
            continue
        if is_trained or not _OF_TRAINING.match(name):
            # Of a layer of the framework it is an argument; a truth value or a text may as well choose a kernel.
            computes = is_layer or (is_number(value) and is_number(other))
            yield _of_two(call, name, value, other, computes)
    if target.training != golden.training:
        yield _of_two(call, "training", target.training, golden.training, False)


def _of_epsilon(call: AlignedCall, target: ModuleSettings, golden: ModuleSettings) -> Iterator[OtherSetting]:
    """The one epsilon that two modules of other classes have, whatever they call it."""
    both = [
        [(name, value) for name, value in each.values.items() if _EPSILON.match(name) and is_number(value)]
        for each in (target, golden)
    ]
    if all(len(each) == 1 for each in both):
        ((name, value),), ((golden_name, other),) = both
        if not _agree(value, other):
            found = _of_two(call, name, value, other, True)
            called = "" if name == golden_name else f" ({golden_name})"
            text, labelled = found.sentence.text, found.sentence.labelled
            yield found._replace(sentence=Sentence(text + called, labelled + called))


def _of_two(call: AlignedCall, name: str, value: Any, other: Any, computes: bool) -> OtherSetting:
    apart = math.inf
    if type(value) is float and type(other) is float:
        size = max(abs(value), abs(other))
        apart = min(abs(value - other), abs(value - other) / size)
    return OtherSetting(call, name, other_value(name, value, other), apart, computes)


def _agree(value: Any, other: Any) -> bool:
    if is_number(value) and is_number(other):
        return math.isclose(value, other, rel_tol=_SAME)
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


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
