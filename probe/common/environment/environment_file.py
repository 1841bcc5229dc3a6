"""The file with the environment of a process: written next to the steps of a dump, found from a record, and read.

Python's json reads it and not msgspec, because a setting may be infinite.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from probe.common import files
from probe.common.dump.layout import MODES, environment_file, environments_in
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.numerics.formats import unit_roundoff

FORMAT = 1
"""The version of the file. 1: the first one (2026-11)."""
_LARGEST = 4 << 20
"""Bytes of a file that can be one of ours."""

Environment = Mapping[str, Any]
"""The content of the file; docs/reference/output.md describes the keys."""


def write(root: str, process: str, content: Environment) -> str:
    """Write the environment of `process` (``rank0``, ``proc123``) into the folder of the dump; gives the path.

    Raises:
        OSError: the file cannot be written.
    """
    path = os.path.join(root, environment_file(process))
    with files.replacing(path) as stream:
        stream.write(json.dumps({"format": FORMAT, **content}, indent=1).encode())
    return path


def read(path: str) -> Environment:
    """The content of such a file.

    Raises:
        FileCheckException: it cannot be read.
        MsprobeException: it holds something else.
    """
    try:
        with files.open_for_reading(path) as stream:
            content = json.loads(stream.read(_LARGEST))
    except OSError as error:
        raise FileCheckException(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise MsprobeException(f"{path} is no environment of a dump: it is not valid JSON.") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise MsprobeException(f'{path} is no environment of a dump: "format" is not {FORMAT}.')
    return content


def environment_of_file(path: str) -> Environment | None:
    """The environment of the process that wrote a file of records; ``None`` if there is none, or none to be read."""
    folder = os.path.dirname(os.path.abspath(path))
    above = os.path.dirname(os.path.dirname(folder))
    if os.path.basename(above) in MODES:
        above = os.path.dirname(above)
    try:
        return read(os.path.join(above, environment_file(os.path.basename(folder))))
    except MsprobeException:
        return None  # an older dump, or one without: nothing is known of its run


def all_in(root: str) -> dict[str, Environment]:
    """The environments in the folder of a dump, by the names of their files; those that cannot be read raise.

    Raises:
        MsprobeException: there is none, or one cannot be read.
    """
    if not os.path.isdir(root):
        raise FileCheckException(f"{root} is not a folder; give the dump_path of a run.")
    names = environments_in(root)
    if not names:
        raise FileCheckException(
            f'{root} holds no environment_rank<R>.json; the run was collected with "environment": false, or before '
            "this file was written."
        )
    return {name: read(os.path.join(root, name)) for name in names}


# --- what an environment says of products

_TF32 = 2.0**-11
"""The unit roundoff of TF32, whose significand has 11 bits, as that of float16 has."""
_NAMED = {"high": _TF32, "medium": unit_roundoff("bfloat16")}
"""The unit roundoff of the values of `torch.set_float32_matmul_precision`, at worst; ``highest`` is float32."""


def product_roundoff(environments: Iterable[Environment | None]) -> float:
    """The coarsest unit roundoff of products of float32 in these runs; 0 if they are computed in float32.

    A switch that is on counts on any device: a device that does not obey it rounds less.
    """
    found = [0.0]
    for environment in environments:
        switches = (environment or {}).get("switches")
        if isinstance(switches, Mapping):
            found.append(_TF32 if switches.get("matmul_tf32") is True else 0.0)
            found.append(_NAMED.get(str(switches.get("float32_matmul_precision")), 0.0))
    return max(found)


# --- modules


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
