"""What a call that diverges was set to on both sides, in one vocabulary: a cause where the frameworks are two.

Frameworks pass the same setting by position, by name, or give it to a primitive when that is made, and some of them
count from the other end: a share of kept values for one of dropped values. Only what both sides say is held against
each other. Where nothing of it differs, a parameter that one side lacks may.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Optional

from probe.common.dump.naming import FORWARD, is_module, parse, record_name
from probe.common.dump.reading.dump import Dump, read
from probe.common.errors import MsprobeException
from probe.common.match.name_mapping import PARAMETER_NAMES
from probe.common.match.operations import Arguments, Operation, arguments_of, layer_kind, operation
from probe.compare.result import Unexplained

Settings = dict[str, Any]
_RUNNING = frozenset(("running_mean", "running_var", "num_batches_tracked"))


def with_settings(found: list[Unexplained], target: str, golden: str) -> list[Unexplained]:
    """The same findings, with a setting or a missing parameter as the cause of those that have none.

    Args:
        found: calls of two frameworks that diverge.
        target, golden: the paths of the dumps.
    """
    if all(each.cause for each in found):
        return found
    try:
        sides = read(target), read(golden)
        return [each if each.cause else replace(each, cause=_cause(each, sides)) for each in found]
    except MsprobeException:
        return found  # A dump that is gone, or damaged, was reported where it was read first.


def _cause(found: Unexplained, sides: tuple[Dump, Dump]) -> str:
    names = found.record, found.golden_record
    if not all(name in side for name, side in zip(names, sides)):
        return ""
    forward = _forward(names[0]), _forward(names[1])
    if not is_module(names[0]) and not is_module(names[1]):
        around = _module_around(forward[0], sides[0]), _module_around(forward[1], sides[1])
        return _of_calls(forward, sides) or _of_parameters(around, sides) or _of_other_calls(around, sides)
    if is_module(names[0]) and is_module(names[1]):
        return (
            _of_parameters(forward, sides) or _of_calls_inside(forward, sides) or _of_other_calls(forward, sides)
        )
    return ""


def _forward(name: str) -> str:
    parsed = parse(name)
    return name if parsed is None else record_name(parsed._replace(direction=FORWARD))


def _module_around(name: str, side: Dump) -> str:
    return (side.tree or {}).get(name) or ""


# --- settings


def _of_calls(names: tuple[str, str], sides: tuple[Dump, Dump]) -> str:
    """The first setting that differs between two calls of functions."""
    both = [_settings(name, side) for name, side in zip(names, sides)]
    if both[0] is None or both[1] is None or both[0][0].name != both[1][0].name:
        return ""
    mine, theirs = both[0][1], both[1][1]
    for name, value in mine.items():
        if name in theirs and not _agree(name, value, theirs[name]):
            return f"{name} is {_shown(value)} and in the golden run {_shown(theirs[name])}"
    return ""


def _of_calls_inside(names: tuple[str, str], sides: tuple[Dump, Dump]) -> str:
    """The same of the calls that two modules make themselves, where both make one of a kind."""
    by_kind: list[dict[str, str]] = []
    for module, side in zip(names, sides):
        inside = [name for name, parent in (side.tree or {}).items() if parent == module and name in side]
        kinds = [(name, _meaning(name, side)) for name in inside if not is_module(name) and name.endswith(FORWARD)]
        number = Counter(meaning.name for _, meaning in kinds if meaning is not None)
        by_kind.append({meaning.name: name for name, meaning in kinds if meaning and number[meaning.name] == 1})
    for kind, name in by_kind[0].items():
        text = _of_calls((name, by_kind[1][kind]), sides) if kind in by_kind[1] else ""
        if text:
            return text
    return ""


def _of_other_calls(names: tuple[str, str], sides: tuple[Dump, Dump]) -> str:
    """The one kind of call that two modules do not share, if it is one on a side at most."""
    if not all(names):
        return ""
    both = [_called_inside(module, side) for module, side in zip(names, sides)]
    own_layer = any(layer_kind(_called(name).rpartition(".")[2]) for name in names)
    if own_layer and any(called.startswith("Primitive.") for _, calls in both for called in calls.values()):
        return ""  # A layer that MindSpore brings is made of other functions than that of another framework.
    own = both[0][0] - both[1][0], both[1][0] - both[0][0]
    if max(map(len, own)) > 1:
        # What one side never calls it may record nowhere.
        known = _kinds_of(sides[1]), _kinds_of(sides[0])
        own = own[0] & known[0], own[1] & known[1]
    more = [[calls[kind] for kind in calls if kind in left] for left, (_, calls) in zip(own, both)]
    if sorted(map(len, more)) not in ([0, 1], [1, 1]):
        return ""
    if all(more):
        return f"the target calls {more[0][0]} where the golden run calls {more[1][0]}"
    return f"only the target calls {more[0][0]}" if more[0] else f"only the golden run calls {more[1][0]}"


def _kinds_of(side: Dump) -> Counter[str]:
    """The kinds of functions that a dump has, each often enough to be kept by an intersection."""
    bases = {parsed.base for record in side if (parsed := record.parsed) is not None and not parsed.is_module}
    meanings = [operation(base, side.framework) for base in bases]
    kinds = {kind for meaning in meanings for kind in _PARTS.get(meaning.name, (meaning.akin,))}
    return Counter({_ALIKE.get(kind, kind): len(side) for kind in kinds})


def _called_inside(module: str, side: Dump) -> tuple[Counter[str], dict[str, str]]:
    """How often a module calls which kind of function itself, and the functions by these kinds."""
    number: Counter[str] = Counter()
    functions: dict[str, str] = {}
    for name, parent in (side.tree or {}).items():
        meaning = _meaning(name, side) if parent == module and name.endswith(FORWARD) else None
        for kind in () if meaning is None else _PARTS.get(meaning.name, (meaning.akin,)):
            if kind not in _WITHOUT_MEANING:
                number[_ALIKE.get(kind, kind)] += 1
                functions.setdefault(_ALIKE.get(kind, kind), _called(name))
    return number, functions


# What one program does with a shape or a type and the other need not.
_WITHOUT_MEANING = frozenset(("reshape", "to", "contiguous", "shape", "size", "dim", "clone", "detach", "__getitem__"))
_ALIKE = {"div": "mul"}
_PARTS = {"addmm": ("matmul", "add"), "baddbmm": ("matmul", "add")}


def _called(name: str) -> str:
    parsed = parse(name)
    return name if parsed is None else parsed.base


def _meaning(name: str, side: Dump) -> Optional[Operation]:  # noqa: UP045
    parsed = parse(name)
    return None if parsed is None or parsed.is_module else operation(parsed.base, side.framework)


def _settings(name: str, side: Dump) -> Optional[tuple[Operation, Settings]]:  # noqa: UP045
    meaning = _meaning(name, side)
    if meaning is None or name not in side:
        return None
    fields = side[name].fields
    if not isinstance(fields, dict):
        return None
    known = arguments_of(meaning.name, side.framework)
    if meaning.primitive:
        found = dict(known.defaults_of_primitive) if _says_attributes(side) else {}
    else:
        found = dict(known.defaults)
    given = fields.get("input_args")
    for place, entry in enumerate(given if isinstance(given, list) else []):
        own = known.places.get(place) or (f"input.{place}" if known.numbers else "")
        _add(found, own, _plain(entry), known)
    for part in ("input_kwargs", "attributes"):
        values = fields.get(part)
        for own, entry in values.items() if isinstance(values, dict) else ():
            _add(found, own, entry if part == "attributes" else _plain(entry), known)
    _neutral(found)
    return meaning, found


def _says_attributes(side: Dump) -> bool:
    """Whether attributes of primitives are in the dump, so that a primitive without has those it has by default."""
    return any(
        record.name.startswith("Primitive.") and isinstance(record.fields, dict) and "attributes" in record.fields
        for record in side
    )


def _add(found: Settings, name: str, value: Any, known: Arguments) -> None:
    if name and value is not None:
        found[known.renamed.get(name, name)] = value


def _plain(entry: Any) -> Any:
    """The value of a plain argument, or of a list of these; ``None`` of anything else."""
    if isinstance(entry, list):
        values = [_plain(each) for each in entry]
        return None if not values or None in values else values
    return entry.get("value") if isinstance(entry, Mapping) and "dtype" not in entry else None


def _neutral(found: Settings) -> None:
    """Say all of it as PyTorch does."""
    kept = found.pop("keep_prob", None)
    if _is_number(kept):
        found["p"] = 1.0 - kept
    mode = found.pop("pad_mode", None)
    if mode in ("same", "valid"):
        found["padding"] = "same" if mode == "same" else 0
    if isinstance(found.get("approximate"), bool):
        found["approximate"] = "tanh" if found["approximate"] else "none"
    for name in ("stride", "dilation", "padding", "kernel_size"):
        value = found.get(name)
        if isinstance(value, list):
            # A primitive names all four dimensions, the first two of which have none of it.
            value = value[2:] if len(value) == 4 and value[:2] == [1, 1] and name != "padding" else value
            found[name] = value[0] if all(each == value[0] for each in value) else value


def _agree(name: str, one: Any, other: Any) -> bool:
    if _is_number(one) and _is_number(other):
        if name == "dim" and (one < 0) != (other < 0):
            return True  # The same dimension counted from both ends, as far as anyone knows here.
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-15)
    if isinstance(one, list) or isinstance(other, list):
        # One of them may name dimensions that the other leaves out.
        return one == other or not (isinstance(one, list) and isinstance(other, list) and len(one) == len(other))
    return bool(one == other)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# --- parameters


def _of_parameters(names: tuple[str, str], sides: tuple[Dump, Dump]) -> str:
    """A parameter that one of two layers lacks."""
    both = [_parameters(name, side) for name, side in zip(names, sides)]
    if both[0] is None or both[1] is None or not (both[0] or both[1]):
        return ""
    for names_there, other, side in ((both[0], both[1], "target"), (both[1], both[0], "golden run")):
        missing = [name for name in names_there if name not in other]
        if missing and other and set(other) <= set(names_there):
            return f"parameters.{missing[0]} is there in the {side} only"
    return ""


def _parameters(name: str, side: Dump) -> Optional[list[str]]:  # noqa: UP045
    fields = side[name].fields if name in side else None
    parameters = fields.get("parameters") if isinstance(fields, dict) else None
    if not isinstance(parameters, dict):
        return None
    names = [str(PARAMETER_NAMES.get(own, own)) for own, entry in parameters.items() if entry is not None]
    return [own for own in names if own not in _RUNNING]
