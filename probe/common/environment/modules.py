"""The settings of the modules of a run, as its environment file has them: what a record of a module does not show.

A module computes with the arguments of its call, its parameters, and its settings: an epsilon, a scale, a table that
was made once. The file has them once for each set of models, from the step on in which it was started first. Modules
that are set alike are one entry, and the names of equal layers are one name: ``Module.layers.[0-31].norm.LayerNorm``.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from probe.common.environment.environment_file import Environment

MOST_BYTES = 1 << 20
"""Size as JSON of all entries of one set of models. What is beyond it is left out.

Thirty thousand equal layers take some kilobytes; of layers that have a running mean each, some two thousand fit.
"""
MOST_SETS = 16
"""Sets of models, one after the other, that are described. A guess: a program with more makes one in each step.

An entry without settings follows the last one if there are more.
"""
_RANGE = re.compile(r"\[(\d{1,9})-(\d{1,9})\]\Z")
_MOST_PARTS = 64
"""Parts of a name from which on it is not folded: a guess. The work grows with the cube of the depth of a model."""
_MOST_NAMES = 1_000_000
"""Modules that one entry of a file may have; a damaged file says more."""
STATISTICS = ("Max", "Min", "Mean", "Norm")


class Buffer(NamedTuple):
    """A tensor of a module that is no parameter."""

    dtype: str
    shape: tuple[int, ...]
    statistics: tuple[Any, ...]
    """Maximum, minimum, mean and norm; empty if they were not computed."""
    is_state: bool = False
    """True if it is saved with the parameters, and may change with them."""


class ModuleSettings(NamedTuple):
    """The settings of one module."""

    kind: str
    """The class of the module with the Python module that defines it: ``torch.nn.modules.normalization.LayerNorm``."""
    is_layer: bool = False
    """True if the framework brings the class."""
    training: bool = False
    values: Mapping[str, Any] = {}
    """Public attributes that are plain values: numbers, truth values, texts, ``None``, and short lists of these."""
    hooks: tuple[str, ...] = ()
    """Hooks of the program on the forward of this module, and a forward of its own."""
    buffers: Mapping[str, Buffer] = {}
    casts: tuple[str, ...] = ()
    """Float8 dtypes, without a prefix, to which its forward cast tensors itself: ``float8_e4m3fn``."""
    is_model: bool = False
    """True if it is a model that was started, of whose own forward there is no record."""

    @property
    def class_name(self) -> str:
        """The class alone."""
        return self.kind.rpartition(".")[2]


Settings = Mapping[str, ModuleSettings]
"""Settings by the part of a module's name that all its records share."""


def folded(step: int, modules: Settings, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """The entry of a set of models that was first started in `step`, as JSON has it, in at most `most_bytes` bytes."""
    groups: dict[str, tuple[dict[str, Any], list[str]]] = {}
    left_out = 0
    for name, settings in modules.items():
        if "[" in name:
            left_out += 1  # No name of an identifier or an index has one.
            continue
        entry = _entry(settings)
        groups.setdefault(json.dumps(entry), (entry, []))[1].append(name)
    found: list[dict[str, Any]] = []
    size = 0
    for entry, names in groups.values():
        whole = {**entry, "names": _folded_names(names)}
        text = json.dumps(whole, indent=1)
        # Each line of it is indented by four more in the file.
        size += len(text) + 5 * (text.count("\n") + 1)
        if size > most_bytes:
            left_out += len(names)
        else:
            found.append(whole)
    return {"step": step, "settings": found, "left_out": left_out}


def _entry(settings: ModuleSettings) -> dict[str, Any]:
    found: dict[str, Any] = {"type": settings.kind, "training": settings.training}
    if settings.is_layer:
        found["is_layer"] = True
    if settings.values:
        found["values"] = dict(settings.values)
    if settings.hooks:
        found["hooks"] = list(settings.hooks)
    if settings.buffers:
        found["buffers"] = {name: _buffer_entry(buffer) for name, buffer in settings.buffers.items()}
    if settings.casts:
        found["casts"] = list(settings.casts)
    if settings.is_model:
        found["is_model"] = True
    return found


def _buffer_entry(buffer: Buffer) -> dict[str, Any]:
    # NaN and infinities are no JSON.
    numbers = (each if type(each) is not float or math.isfinite(each) else repr(each) for each in buffer.statistics)
    statistics = dict(zip(STATISTICS, numbers))
    return {"dtype": buffer.dtype, "shape": list(buffer.shape), **statistics, "state": buffer.is_state}


def settings_at(environment: Environment | None, step: int | None) -> Settings:
    """The settings of the modules of a run in one of its steps; empty where its environment does not have them.

    Args:
        environment: The environment of the run.
        step: The number of the step; ``None`` if it is not known, of the only set of models.
    """
    tables = (environment or {}).get("modules")
    known = [each for each in tables if _is_table(each)] if isinstance(tables, list) else []
    begun = [each for each in known if step is None or each["step"] <= step]
    if not begun or (step is None and len(known) > 1):
        return {}
    found: dict[str, ModuleSettings] = {}
    for entry in begun[-1]["settings"]:
        settings = _settings(entry)
        if settings is not None:
            found.update(dict.fromkeys(_unfolded_names(entry.get("names")), settings))
    return found


def _is_table(table: Any) -> bool:
    return isinstance(table, Mapping) and type(table.get("step")) is int and isinstance(table.get("settings"), list)


def _settings(entry: Any) -> ModuleSettings | None:
    """The settings of an entry; ``None`` of one that is damaged."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("type"), str):
        return None
    values, hooks, buffers, casts = (entry.get(key) for key in ("values", "hooks", "buffers", "casts"))
    return ModuleSettings(
        entry["type"],
        entry.get("is_layer") is True,
        entry.get("training") is True,
        {key: each for key, each in values.items() if not _is_beyond(each)} if isinstance(values, Mapping) else {},
        tuple(map(str, hooks)) if isinstance(hooks, list) else (),
        dict(_buffers(buffers)) if isinstance(buffers, Mapping) else {},
        tuple(map(str, casts)) if isinstance(casts, list) else (),
        entry.get("is_model") is True,
    )


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 1 << 63 for size in value)


def _is_beyond(value: Any) -> bool:
    """True if a whole number is larger than a program computes with; it may be no float."""
    return isinstance(value, int) and abs(value) >= 1 << 63


def _buffers(entries: Mapping[str, Any]) -> Iterator[tuple[str, Buffer]]:
    for name, each in entries.items():
        if isinstance(each, Mapping) and _is_shape(each.get("shape")):
            statistics = tuple(each[key] for key in STATISTICS if key in each)
            yield name, Buffer(str(each.get("dtype")), tuple(each["shape"]), statistics, each.get("state") is True)


# --- names of equal layers


def _folded_names(names: Sequence[str]) -> list[str]:
    """The names, those that differ in an index alone as one with the range of it."""
    short = [name for name in names if name.count(".") < _MOST_PARTS]
    rows = [tuple(name.split(".")) for name in short]
    for position in range(max(map(len, rows), default=0)):
        rows = list(_folded_at(position, rows))
    return [*map(".".join, rows), *(name for name in names if name.count(".") >= _MOST_PARTS)]


def _folded_at(position: int, rows: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        part = row[position] if position < len(row) else ""
        # ``01`` would come back as ``1``.
        is_index = part.isascii() and part.isdigit() and str(int(part)) == part
        key = (*row[:position], "", *row[position + 1 :]) if is_index else row
        alike.setdefault(key, []).append(part if is_index else "")
    for row, parts in alike.items():
        if parts == [""]:
            yield row
            continue
        numbers = sorted(map(int, parts))
        for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
            first, *rest = [number for _, number in run]
            part = f"[{first}-{rest[-1]}]" if rest else str(first)
            yield (*row[:position], part, *row[position + 1 :])


def _unfolded_names(names: Any) -> Iterator[str]:
    for name in names if isinstance(names, list) else ():
        ranges = [(part, _RANGE.match(part)) for part in str(name).split(".")]
        numbers = [range(0) if found is None else range(int(found[1]), int(found[2]) + 1) for _, found in ranges]
        if math.prod(max(len(each), 1) for each in numbers) <= _MOST_NAMES:
            parts = [list(map(str, each)) if each else [part] for (part, _), each in zip(ranges, numbers)]
            yield from map(".".join, itertools.product(*parts))
