"""One table of settings, {meaning: value}, of each call and of each module, and the settings that differ.

The arguments of a call come from its record, the attributes of a module from the environment file. An argument by
position and by keyword is one thing, and a default counts as given. Other names and other conventions of frameworks are
data (`common.align.name_mapping`); settings that two programs call differently have a meaning (`meanings.MEANINGS`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, Optional

from probe.common.align.calls import Row
from probe.common.align.name_mapping import as_torch
from probe.common.align.operations import arguments_of, operation
from probe.common.dump.naming import FORWARD, function_name
from probe.common.dump.reading.records import INPUT, Item
from probe.common.environment.environment_file import Buffer, ModuleSettings
from probe.common.numerics.error_bounds import SAFETY, is_number
from probe.common.numerics.formats import FORMATS, plain_name, unit_roundoff
from probe.common.numerics.statistics import is_device
from probe.common.operations.function import Trait
from probe.common.operations.lookup import OF_DIMENSIONS, OF_MEMORY, argument_name, function, is_default
from probe.compare.judgement import Sentence, on_one_side, other_value
from probe.compare.result import SIDES
from probe.compare.verdict.facts import Call, coarser, is_one_value
from probe.compare.verdict.meanings import SAME, Number, other_numbers
from probe.compare.verdict.two_runs import TwoRuns, base_of

Design = Collection[tuple[str, str]]
"""Pairs of dtypes of target and golden run that are meant to be other ones, in plain names: ``bfloat16, float32``."""

_NOT_GIVEN = object()
_NO_PADDING = "valid"


class Setting(NamedTuple):
    """A setting that differs."""

    name: str
    target: Any
    """The value in the target; ``None`` if the target does not give it."""
    golden: Any
    where: str
    """The record of the call that has it, or of the module."""
    is_of_module: bool = False
    text: str = ""
    """The sentence where it is no value."""
    decides: bool = True
    """True if it decides values in any case: a number, or an argument of a function."""
    item: str = ""
    """The item that is the argument; empty of an attribute."""

    @property
    def sentence(self) -> Sentence:
        if self.text:
            return Sentence(self.text)
        if self.target is None or self.golden is None:
            value = self.golden if self.target is None else self.target
            return on_one_side(self.name, str(value), SIDES[self.target is None])
        return other_value(self.name, self.target, self.golden)

    @property
    def values(self) -> tuple[Any, Any]:
        return self.target, self.golden


def differences_of(runs: TwoRuns, call: Call, design: Design = frozenset()) -> list[Setting]:
    """The settings that differ in a call: its arguments, and for a module its attributes.

    Args:
        runs: both runs.
        call: the call; of a backward the settings of its forward.
        design: dtypes that are meant to be other ones.
    """
    if not call.is_of_both:
        return []
    forward = call if call.is_forward else runs.in_direction(call, FORWARD)
    found = [] if forward is None or not forward.is_of_both else list(_argument_settings(runs, forward, design))
    return found + list(_module_settings(runs, call)) if call.is_module else found


def are_one(one: Any, other: Any, tolerance: float = SAME) -> bool:
    """True if two plain values mean the same.

    Numbers with many digits were computed, and may differ by rounding.
    """
    if is_number(one) and is_number(other):
        if float not in (type(one), type(other)):
            return bool(one == other)
        many = max(tolerance, SAME) if _was_computed(one) and _was_computed(other) else SAME
        return math.isclose(one, other, rel_tol=many)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(are_one(*pair, tolerance) for pair in zip(one, other))
    if _NO_PADDING in (one, other):
        return _is_no_padding(one) and _is_no_padding(other)
    if is_device(one) and is_device(other):
        return True
    return str(one) == str(other) and isinstance(one, bool) == isinstance(other, bool)


def _was_computed(value: float) -> bool:
    return len(f"{value:.12g}".partition("e")[0].strip("-0.").replace(".", "")) > 6


def _is_no_padding(value: object) -> bool:
    sizes = value if isinstance(value, (list, tuple)) else [value]
    return value == _NO_PADDING or (len(sizes) > 0 and all(type(each) is int and each == 0 for each in sizes))


# --- arguments of a call


def _argument_settings(runs: TwoRuns, call: Call, design: Design) -> Iterator[Setting]:
    if not call.is_module and runs.across_frameworks:
        yield from _across_frameworks(runs, call)
        return
    if call.is_alike or all(_has_one_value(row) for row in call.rows):
        return
    known = function(call.function)
    if known.has(Trait.FITS) and not call.is_module:
        return
    mine, theirs = (_arguments(call, side) for side in (0, 1))
    items = {name: item.name for side in (1, 0) for name, _, item in _named(call, side)}
    if call.is_module:
        mine, theirs = _without_shared(mine, theirs), _without_shared(theirs, mine)
        if runs.across_frameworks:
            mine = {name: value for name, value in mine.items() if name in theirs}
    tolerance = 4 * max(map(coarser, call.rows), default=0.0)
    shape = _first_shape(call)
    rank = len(shape) + known.has(Trait.ADDS_A_DIMENSION)
    for name in dict.fromkeys((*mine, *theirs)):
        if name in OF_MEMORY or name in ("generator", "device", "name"):
            continue
        pair = mine.get(name, _NOT_GIVEN), theirs.get(name, _NOT_GIVEN)
        if name in OF_DIMENSIONS and rank:
            pair = _counted(pair[0], rank), _counted(pair[1], rank)
        if _NOT_GIVEN in pair:
            if not runs.same_names and call.is_module:
                continue
            side = int(pair[0] is _NOT_GIVEN)
            record = (call.record, call.golden_record)[side] or ""
            given = (mine, theirs)[side][name]
            if not call.is_module and is_default(record, f"{INPUT}.{name}", given, shape[-1] if shape else None):
                continue
            if is_device(given) or _dtype(given):
                continue
            mine_only, golden_only = (None if each is _NOT_GIVEN else given for each in pair)
            yield Setting(name, mine_only, golden_only, call.name, item=items[name])
        elif not are_one(*pair, tolerance) and _by_design(pair, design) is False:
            decides = not call.is_module or all(type(each) is float for each in pair)
            yield Setting(name, mine[name], theirs[name], call.name, decides=decides, item=items[name])


def _has_one_value(row: Row) -> bool:
    target, golden = row.target, row.golden
    if target is golden:
        return True
    return is_one_value(target and target.value, golden and golden.value)


def _by_design(pair: tuple[Any, Any], design: Design) -> bool:
    types = _dtype(pair[0]), _dtype(pair[1])
    return all(types) and types in design


def _dtype(value: Any) -> str:
    """The plain name of a dtype that is an argument; empty of anything else."""
    name = plain_name(value) if isinstance(value, str) else ""
    return name if name in FORMATS else ""


def _without_shared(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a module, those by position named as the other side names an equal one.

    The names of a module's arguments are not known.
    """
    found = dict(mine)
    for name, value in mine.items():
        if name not in theirs and any(
            other not in mine and str(value) == str(given) and _is_by_position(name) != _is_by_position(other)
            for other, given in theirs.items()
        ):
            del found[name]
    return found


def _is_by_position(name: str) -> bool:
    return name.startswith(f"{INPUT}.") or name.isdigit()


def _counted(value: Any, rank: int) -> Any:
    if isinstance(value, list):
        return [_counted(each, rank) for each in value]
    return value % rank if type(value) is int and -rank <= value < rank else value


def _first_shape(call: Call) -> tuple[int, ...]:
    items = (row.target or row.golden for row in call.inputs)
    return next((item.shape or () for item in items if item is not None and item.is_tensor), ())


def _given(call: Call, side: int) -> Iterator[tuple[str, Item]]:
    record = (call.record, call.golden_record)[side] or ""
    for row in call.rows:
        item = (row.target, row.golden)[side]
        if item is not None and item.state == INPUT and item.value is not None:
            yield item.name[len(record) + 1 :], item


def _named(call: Call, side: int) -> Iterator[tuple[str, str, Item]]:
    """The plain arguments of a call: the name, the place in it if it is a list, and the item."""
    record = (call.record, call.golden_record)[side] or ""
    for own, item in _given(call, side):
        state, place, rest = (*own.split(".", 2), "")[:3]
        name = argument_name(record, f"{state}.{place}") if not call.is_module else f"{state}.{place}"
        yield name[len(INPUT) + 1 :] if name.startswith(f"{INPUT}.") and not place.isdigit() else name, rest, item


def _arguments(call: Call, side: int) -> dict[str, Any]:
    """The plain arguments of a call by name; of a list of them, a list."""
    found: dict[str, Any] = {}
    for name, rest, item in _named(call, side):
        if rest:
            kept = found.setdefault(name, [])
            if isinstance(kept, list):
                kept.append(item.value)
        else:
            found[name] = item.value
    return found


def _across_frameworks(runs: TwoRuns, call: Call) -> Iterator[Setting]:
    mine, theirs = (_in_one_vocabulary(runs, call, side) for side in (0, 1))
    if mine is None or theirs is None or mine[0] != theirs[0]:
        return
    for name, value in mine[1].items():
        other = theirs[1].get(name)
        if other is None or are_one(value, other):
            continue
        # One of them may name dimensions that the other leaves out.
        if isinstance(value, list) != isinstance(other, list) or (isinstance(value, list) and len(value) != len(other)):
            continue
        if name == "padding" and "same" in (value, other):
            continue  # It may be the number that the other side has.
        yield Setting(name, value, other, call.name)


def _in_one_vocabulary(runs: TwoRuns, call: Call, side: int) -> Optional[tuple[str, dict[str, Any]]]:  # noqa: UP045
    """The operation that a call is, and its settings in the words of PyTorch."""
    record = (call.record, call.golden_record)[side] or ""
    base = record.rpartition(".")[0].rpartition(".")[0]
    meaning = operation(base, runs.frameworks[side])
    known = arguments_of(meaning.name, runs.frameworks[side])
    attributes = runs.attributes[side].get(record, {})
    given: dict[str, Any] = {}
    lists: dict[str, list[Any]] = {}
    for own, item in _given(call, side):
        place, _, rest = own[len(INPUT) + 1 :].partition(".")
        if place.isdigit():
            place = known.names_by_index.get(int(place)) or (own if known.numbers else "")
        if place and rest:
            lists.setdefault(place, []).append(item.value)
        elif place:
            given[place] = item.value
    given.update(lists)
    defaults = known.defaults_of_primitive if meaning.primitive else known.defaults
    said = {**as_torch(defaults), **as_torch({**given, **attributes}, function_name(record))}
    shape = _first_shape(call)
    for name in OF_DIMENSIONS & said.keys():
        said[name] = _counted(said[name], len(shape))
    return meaning.name, said


# --- attributes of a module

_FILLS_MASKS = -1e4
"""The largest number with which programs fill masks; it depends on the dtype and not on the model."""
_IDLE = re.compile(
    r"training\Z|inplace\Z|name\Z|layer_(?:idx|id|number|index)\Z|gradient_checkpointing\Z|recompute"
    # Where a module is, and what it has kept; how long what it gets may be.
    r"|(?:.*_)?(?:rank|world|tp|pp|cp|ep|partition|cached?|device|version)(?:_|\Z)"
    r"|(?:.*_)?max_(?:\w+_)?(?:len|length|positions?|embeddings|tokens|batch)(?:_|\Z)"
    # What shapes show.
    r"|(?:in|out|num)_(?:features|channels)\Z|normalized_shape\Z|num_embeddings\Z|(?:embedding|embed)_dim\Z"
    r"|(?:input|hidden)_size\Z|normalized_ndim\Z"
    # What parameters begin with, and where from.
    r"|(?:.*_)?init(?:ial|ializer)?(?:_|\Z)|(?:.*_)?(?:path|file|folder|dir|url|revision|tags|prefix)\Z"
)
"""Attributes that decide no value of a call, or none that its shapes do not show."""
_OF_TRAINING = re.compile(r"p\Z|momentum\Z|.*(?:drop|jitter|noise|aux_loss)")
"""Attributes that a module uses only while it is trained."""


def settings_of(runs: TwoRuns, call: Call) -> tuple[ModuleSettings, ModuleSettings] | None:
    """The settings of a module in both runs; ``None`` if one of them has none."""
    bases = base_of(call.record), base_of(call.golden_record)
    mine, theirs = runs.settings[0].get(bases[0]), runs.settings[1].get(bases[1])
    return None if mine is None or theirs is None else (mine, theirs)


def unrecorded_settings(runs: TwoRuns) -> Iterator[Setting]:
    """The numbers and buffers that differ in modules without a record, such as the model, which use them anywhere."""
    recorded = {base_of(name) for call in runs.calls if call.is_module for name in (call.record, call.golden_record)}
    paths = [{base.rpartition(".")[0]: base for base in of_side if base not in recorded} for of_side in runs.settings]
    for path, base in paths[0].items():
        if path in paths[1]:
            target, golden = runs.settings[0][base], runs.settings[1][paths[1][path]]
            yield from (each for each in of_attributes(target, golden, base, runs) if each.decides)


def _module_settings(runs: TwoRuns, call: Call) -> Iterator[Setting]:
    both = settings_of(runs, call)
    if both is None:
        return
    target, golden = both
    bases = base_of(call.record), base_of(call.golden_record)
    seen = set()
    for each in of_attributes(target, golden, call.name, runs) if target != golden else ():
        seen.add(each.name)
        yield each
    if not runs.same_names:
        numbers = (_in_two_names(mine, theirs, bases, call.name) for mine, theirs in other_numbers(runs, bases))
        yield from (each for each in numbers if each.name not in seen)


def _in_two_names(mine: Number, theirs: Number, bases: tuple[str, str], where: str) -> Setting:
    name, own = mine.path_in(bases[0]), theirs.path_in(bases[1])
    text = "" if name == own else f"{name} = {mine.value} (golden: {theirs.value} ({own}))"
    return Setting(name, mine.value, theirs.value, where, True, text)


def of_attributes(target: ModuleSettings, golden: ModuleSettings, where: str, runs: TwoRuns) -> Iterator[Setting]:
    """The attributes, buffers, hooks and casts that differ between two modules."""
    across = runs.across_frameworks
    is_layer = target.is_layer and golden.is_layer
    if is_layer and target.is_model:
        return  # What holds layers, or is around a model to train it on several devices.
    # Two programs have classes of one name that do other things.
    is_one_class = target.class_name == golden.class_name if runs.same_names else target.kind == golden.kind
    is_one_class |= across and is_layer
    is_trained = target.training or golden.training
    sides = target.values, golden.values
    if across:
        sides = as_torch(target.values, target.class_name), as_torch(golden.values, golden.class_name)
    for name, value in sides[0].items():
        other = sides[1].get(name)
        if value is None or other is None or are_one(value, other) or _IDLE.match(name):
            continue
        if not (is_one_class or (type(value) is float and type(other) is float)):
            continue  # Whole numbers and texts of other classes mean other things.
        if across and (isinstance(value, (list, str)) != isinstance(other, (list, str)) or isinstance(value, list)):
            continue
        if is_trained or not _OF_TRAINING.match(name):
            # Of a layer of the framework it is an argument; a truth value or a text may as well choose a kernel.
            decides = is_layer or (is_number(value) and is_number(other))
            yield Setting(name, value, other, where, True, decides=decides)
    if is_one_class and target.training != golden.training:
        yield Setting("training", target.training, golden.training, where, True, decides=is_layer)
    if is_one_class and not across:
        yield from _buffer_settings(target, golden, where, runs.precision.design)
        if runs.same_names:
            for hooks, others, side in (
                (target.hooks, golden.hooks, SIDES[0]), (golden.hooks, target.hooks, SIDES[1])
            ):  # fmt: skip
                for hook in hooks:
                    if hook not in others:
                        text = f"the {hook} is there in the {side} only"
                        yield Setting("hooks", None, None, where, True, text, decides=False)
    for casts, others, side in ((target.casts, golden.casts, SIDES[0]), (golden.casts, target.casts, SIDES[1])):
        if casts and not others:
            yield Setting("casts", None, None, where, True, f"only the {side} casts tensors to {casts[0]} in it")


def _buffer_settings(target: ModuleSettings, golden: ModuleSettings, where: str, design: Design) -> Iterator[Setting]:
    is_trained = target.training or golden.training
    for name, mine in target.buffers.items():
        other = golden.buffers.get(name)
        if other is None or mine.shape != other.shape or ((mine.is_state or other.is_state) and is_trained):
            continue  # What is saved with the parameters moves with them.
        apart = _apart(mine, other)
        types = plain_name(mine.dtype), plain_name(other.dtype)
        if types[0] != types[1]:
            text = f"buffer {name} is {types[0]} (golden: {types[1]})"
            yield Setting(name, *types, where, True, text, decides=apart > 0 and types not in design)
        elif apart > _rounding(mine, other):
            size = f"differs by {apart:.1e} of its size" if math.isfinite(apart) else "has other values"
            yield Setting(name, None, None, where, True, f"buffer {name} {size}")


def _apart(mine: Buffer, other: Buffer) -> float:
    """The largest relative difference of two statistics; 0 if too little is known."""
    if len(mine.statistics) != len(other.statistics):
        return 0.0
    pairs = list(zip(mine.statistics, other.statistics))
    if not all(is_number(value) and math.isfinite(value) for pair in pairs for value in pair):
        return 0.0 if any(None in pair for pair in pairs) or mine.statistics == other.statistics else math.inf
    if not pairs or max(pairs[1]) <= _FILLS_MASKS:
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
