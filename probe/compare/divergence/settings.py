"""The settings of a diverging call on both sides, in one vocabulary: a cause if the frameworks are two.

Frameworks pass the same setting by position, by name, or give it to a primitive when that is made, and some of them
count from the other end: a share of kept values for one of dropped values. Only what both sides say is held against
each other. Where nothing of it differs, a parameter that one side lacks may.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Optional

from probe.common.align.name_mapping import PARAMETER_NAMES
from probe.common.align.operations import (
    DECIDING_ATTRIBUTES,
    Operation,
    arguments_of,
    layer_kind,
    operation,
    setting,
)
from probe.common.dump.naming import FORWARD, is_module, parse, record_name
from probe.common.dump.reading.call_tree import around
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.sources import Tree
from probe.common.errors import MsprobeException
from probe.common.numerics.error_bounds import is_number
from probe.common.operations.function import Trait
from probe.common.operations.lookup import function, has
from probe.compare.result import Unexplained
from probe.compare.sentences import NOTHING, Sentence, other_value

Settings = dict[str, Any]
_RUNNING = frozenset(("running_mean", "running_var", "num_batches_tracked"))


def with_settings(found: list[Unexplained], target: Dump, golden: Dump) -> list[Unexplained]:
    """The same findings, with a setting or a missing parameter as the cause of those that have none.

    Args:
        found: calls of two frameworks that diverge.
        target, golden: the dumps; they are read again where their records were released.
    """
    if all(each.cause for each in found):
        return found
    try:
        sides = _SettingsSide(target), _SettingsSide(golden)
        return [each if each.cause else each.because(_cause(each, sides)) for each in found]
    except MsprobeException:
        return found  # A dump that is gone, or damaged, was reported where it was read first.


class _SettingsSide:
    """A dump, and what is asked of it for each finding."""

    def __init__(self, dump: Dump) -> None:
        self._dump = read(dump.path) if dump.is_released else dump
        self.framework = dump.framework
        self._tree: Tree = self._dump.tree or {}

    def __contains__(self, name: str) -> bool:
        return name in self._dump

    def fields(self, name: str) -> Any:
        """A record as it stands in the file; ``None`` where there is none."""
        return self._dump[name].fields if name in self._dump else None

    def around(self, name: str) -> str:
        """The module in which a call ran; empty where there is none."""
        return self._tree.get(name) or ""

    @cached_property
    def _inside(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, parent in self._tree.items():
            if parent and name.endswith(FORWARD) and not is_module(name):
                found.setdefault(parent, []).append(name)
        return found

    def inside(self, module: str) -> list[str]:
        """The calls of functions that a module makes itself."""
        return self._inside.get(module, [])

    def all_inside(self, module: str) -> list[str]:
        """The calls of functions that a module makes, those of the modules inside of it as well."""
        return self._all_inside.get(module, [])

    @cached_property
    def _all_inside(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self._tree:
            for module in around(self._tree, name) if name.endswith(FORWARD) and not is_module(name) else ():
                found.setdefault(module, []).append(name)
        return found

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The kinds of functions that it has."""
        bases = {parsed.base for record in self._dump if (parsed := record.parsed) and not parsed.is_module}
        meanings = [operation(base, self.framework) for base in bases]
        kinds = {kind for meaning in meanings for kind in _kinds(meaning)}
        return frozenset(_ALIKE.get(kind, kind) for kind in kinds)

    @cached_property
    def says_attributes(self) -> bool:
        """True if attributes of primitives would be in it, so that a primitive without has those it has by default.

        Dumps that say of inputs whether they take gradients do, those of msProbe say neither.
        """
        primitives = (record.fields for record in self._dump if record.name.startswith("Primitive."))
        return any(isinstance(fields, dict) and _is_of_this_tool(fields) for fields in primitives)


def _is_of_this_tool(fields: Mapping[str, Any]) -> bool:
    given = fields.get("input_args")
    entries = given if isinstance(given, list) else []
    return "attributes" in fields or any(isinstance(each, Mapping) and "requires_grad" in each for each in entries)


_Sides = tuple[_SettingsSide, _SettingsSide]


def _cause(found: Unexplained, sides: _Sides) -> Sentence:
    names = found.record, found.golden_record
    if not all(name in side for name, side in zip(names, sides)):
        return NOTHING
    forward = _forward(names[0]), _forward(names[1])
    if not is_module(names[0]) and not is_module(names[1]):
        modules = sides[0].around(forward[0]), sides[1].around(forward[1])
        return _of_calls(forward, sides) or _of_parameters(modules, sides) or _of_other_calls(modules, sides)
    if is_module(names[0]) and is_module(names[1]):
        return _of_parameters(forward, sides) or _of_calls_inside(forward, sides) or _of_other_calls(forward, sides)
    return NOTHING


def _forward(name: str) -> str:
    parsed = parse(name)
    return name if parsed is None else record_name(parsed._replace(direction=FORWARD))


# --- calls


def _of_calls(names: tuple[str, str], sides: _Sides) -> Sentence:
    """The first setting that differs between two calls of functions."""
    both = [_settings(name, side) for name, side in zip(names, sides)]
    if both[0] is None or both[1] is None or both[0][0].name != both[1][0].name:
        return NOTHING
    mine, theirs = both[0][1], both[1][1]
    for name, value in mine.items():
        if name in theirs and not _agree(name, value, theirs[name]):
            return other_value(name, _shown(value), _shown(theirs[name]))
    return NOTHING


def _of_calls_inside(names: tuple[str, str], sides: _Sides) -> Sentence:
    """The same of the calls that two modules make themselves, where both make one of a kind."""
    by_kind: list[dict[str, str]] = []
    for module, side in zip(names, sides):
        kinds = [(name, _meaning(name, side)) for name in side.inside(module) if name in side]
        number = Counter(meaning.name for _, meaning in kinds if meaning is not None)
        by_kind.append({meaning.name: name for name, meaning in kinds if meaning and number[meaning.name] == 1})
    for kind, name in by_kind[0].items():
        found = _of_calls((name, by_kind[1][kind]), sides) if kind in by_kind[1] else NOTHING
        if found:
            return found
    return NOTHING


def _of_other_calls(names: tuple[str, str], sides: _Sides) -> Sentence:
    """The one kind of call that two modules do not share, if it is one on a side at most."""
    if not all(names):
        return NOTHING
    both = [_called_in(side.inside(module), side) for module, side in zip(names, sides)]
    own_layer = any(layer_kind(_called(name).rpartition(".")[2]) for name in names)
    if own_layer and any(called.startswith("Primitive.") for _, calls in both for called in calls.values()):
        return NOTHING  # A layer that MindSpore brings is made of other functions than that of another framework.
    own = both[0][0] - both[1][0], both[1][0] - both[0][0]
    if any(own) and sides[0].framework == sides[1].framework:
        # The other side may make a call in a smaller module.
        both = [_called_in(side.all_inside(module), side) for module, side in zip(names, sides)]
        everywhere = both[0][0] - both[1][0], both[1][0] - both[0][0]
        own = everywhere if any(one & other for one, other in zip(own, everywhere)) else (Counter(), Counter())
    elif max(map(len, own)) > 1:
        # What one side never calls it may record nowhere.
        own = _only(own[0], sides[1].kinds), _only(own[1], sides[0].kinds)
    # A function that is made of several counts for each of them.
    more = [list(dict.fromkeys(calls[kind] for kind in calls if kind in left)) for left, (_, calls) in zip(own, both)]
    if sorted(map(len, more)) not in ([0, 1], [1, 1]):
        return NOTHING
    if all(more):
        return Sentence(f"the target calls {more[0][0]} where the golden run calls {more[1][0]}")
    return Sentence(f"only the target calls {more[0][0]}" if more[0] else f"only the golden run calls {more[1][0]}")


def _only(number: Counter[str], kinds: frozenset[str]) -> Counter[str]:
    return Counter({kind: count for kind, count in number.items() if kind in kinds})


def _called_in(calls: Sequence[str], side: _SettingsSide) -> tuple[Counter[str], dict[str, str]]:
    """The number of calls of each kind of function among some calls, and the functions by these kinds."""
    number: Counter[str] = Counter()
    functions: dict[str, str] = {}
    for name in calls:
        meaning = _meaning(name, side)
        for kind in () if meaning is None else _kinds(meaning):
            if not has(kind, Trait.FITS):
                number[_ALIKE.get(kind, kind)] += 1
                functions.setdefault(_ALIKE.get(kind, kind), _called(name))
    return number, functions


_ALIKE = {"div": "mul", "pow": "mul", "square": "mul"}
"""Functions that are often products: a quotient has a reciprocal as a factor, and a square is ``x * x``.

A guess: ``x ** 0.5`` is no product.
"""


def _kinds(meaning: Operation) -> tuple[str, ...]:
    """The kinds of functions that a call may be made of in another program."""
    return function(meaning.name).parts or (meaning.akin,)


def _called(name: str) -> str:
    parsed = parse(name)
    return name if parsed is None else parsed.base


def _meaning(name: str, side: _SettingsSide) -> Optional[Operation]:  # noqa: UP045
    parsed = parse(name)
    return None if parsed is None or parsed.is_module else operation(parsed.base, side.framework)


def _settings(name: str, side: _SettingsSide) -> Optional[tuple[Operation, Settings]]:  # noqa: UP045
    meaning = _meaning(name, side)
    fields = side.fields(name)
    if meaning is None or not isinstance(fields, dict):
        return None
    known = arguments_of(meaning.name, side.framework)
    if meaning.primitive:
        found = dict(known.defaults_of_primitive) if side.says_attributes else {}
    else:
        found = dict(known.defaults)
    given = fields.get("input_args")
    for index, entry in enumerate(given if isinstance(given, list) else []):
        own = known.names_by_index.get(index) or (f"input.{index}" if known.numbers else "")
        _add(found, own, _plain(entry))
    kwargs, attributes = fields.get("input_kwargs"), fields.get("attributes")
    for own, entry in kwargs.items() if isinstance(kwargs, dict) else ():
        _add(found, own, _plain(entry))
    for own, value in attributes.items() if isinstance(attributes, dict) else ():
        if own in DECIDING_ATTRIBUTES:
            _add(found, own, value)
    _neutral(found)
    if found.get("padding") == "same":
        _work_out_padding(found, fields)
    return meaning, found


def _add(found: Settings, name: str, value: Any) -> None:
    if name and value is not None and value != []:
        found[setting(name)] = value


def _plain(entry: Any) -> Any:
    """The value of a plain argument, or of a list of these; ``None`` of anything else."""
    if isinstance(entry, list):
        values = [_plain(each) for each in entry]
        return None if not values or None in values else values
    return entry.get("value") if isinstance(entry, Mapping) and "dtype" not in entry else None


def _neutral(found: Settings) -> None:
    """Say all of it as PyTorch does."""
    kept = found.pop("keep_prob", None)
    if is_number(kept):
        found["p"] = 1.0 - kept
    mode = found.pop("pad_mode", None)
    if mode in ("same", "valid"):
        found["padding"] = "same" if mode == "same" else 0
    if found.get("padding") == "valid":
        found["padding"] = 0
    if isinstance(found.get("approximate"), bool):
        found["approximate"] = "tanh" if found["approximate"] else "none"
    for name in ("stride", "dilation", "padding", "kernel_size"):
        value = found.get(name)
        if value and isinstance(value, list):
            # A primitive names all four dimensions, the first two of which have none of it.
            value = value[2:] if len(value) == 4 and value[:2] == [1, 1] and name != "padding" else value
            found[name] = value[0] if all(each == value[0] for each in value) else value


def _work_out_padding(found: Settings, fields: Mapping[str, Any]) -> None:
    """Say "same" as a number; as nothing where the dump does not tell, and as it is where both ends get unlike ones."""
    given = fields.get("input_args")
    image, weight = (_sizes(given, index) for index in (0, 1))
    # Only a convolution has a weight as its second argument.
    kernel = _for_each(found["kernel_size"], len(image)) if "kernel_size" in found else weight
    stride, dilation = _for_each(found.get("stride"), len(kernel)), _for_each(found.get("dilation", 1), len(kernel))
    padding: list[int] = []
    for index, (size, step, apart) in enumerate(zip(kernel, stride, dilation)):
        missing = apart * (size - 1)
        if step > 1 and len(image) != len(kernel):
            break
        if step > 1:
            missing = max((-(-image[index] // step) - 1) * step + missing + 1 - image[index], 0)
        if missing % 2:
            return
        padding.append(missing // 2)
    del found["padding"]
    if padding and len(padding) == len(kernel):
        found["padding"] = padding[0] if len(set(padding)) == 1 else padding


def _sizes(given: Any, index: int) -> list[int]:
    """The sizes of an image or a kernel, without those of channels."""
    entry = given[index] if isinstance(given, list) and index < len(given) else None
    shape = entry.get("shape") if isinstance(entry, Mapping) else None
    return [size for size in shape[2:] if type(size) is int] if isinstance(shape, list) else []


def _for_each(value: Any, number: int) -> list[int]:
    values = value if isinstance(value, list) else [value] * number
    return values if len(values) == number and all(type(each) is int and each > 0 for each in values) else []


def _agree(name: str, one: Any, other: Any) -> bool:
    if is_number(one) and is_number(other):
        if name == "dim" and (one < 0) != (other < 0):
            return True  # The same dimension counted from both ends, as far as anyone knows here.
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-15)
    if isinstance(one, list) or isinstance(other, list):
        # One of them may name dimensions that the other leaves out.
        return one == other or not (isinstance(one, list) and isinstance(other, list) and len(one) == len(other))
    return bool(one == other)


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# --- parameters


def _of_parameters(names: tuple[str, str], sides: _Sides) -> Sentence:
    """A parameter that one of two layers lacks."""
    both = [_parameters(name, side) for name, side in zip(names, sides)]
    if both[0] is None or both[1] is None or not (both[0] or both[1]):
        return NOTHING
    for names_there, other, side in ((both[0], both[1], "target"), (both[1], both[0], "golden run")):
        missing = [name for name in names_there if name not in other]
        if missing and other and set(other) <= set(names_there):
            return Sentence(f"parameters.{missing[0]} is there in the {side} only")
    return NOTHING


def _parameters(name: str, side: _SettingsSide) -> Optional[list[str]]:  # noqa: UP045
    fields = side.fields(name)
    parameters = fields.get("parameters") if isinstance(fields, dict) else None
    if not isinstance(parameters, dict):
        return None
    names = [str(PARAMETER_NAMES.get(own, own)) for own, entry in parameters.items() if entry is not None]
    return [own for own in names if own not in _RUNNING]
