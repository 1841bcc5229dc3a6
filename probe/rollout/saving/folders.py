"""The folders of saved values: ``data/<key>/step<S>/rank<R>/micro_step<M>/<key>.npy`` and ``<key>.json``.

An array inside of a value adds its position to the name: ``<key>.<position>.npy``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Union

from probe.common import files
from probe.common.dump import naming
from probe.common.dump.layout import is_of_rank, processes_in, ranks_in, steps_in
from probe.common.errors import FileCheckException, MsprobeException

DATA_FOLDER = "data"
CONFIGURATION_FILE = "configurations.json"
SUFFIX = ".npy"
_MICRO_STEP = re.compile(r"micro_step(\d+)\Z")
_TEMPORARY = len(".4194304.tmp")
_LARGEST_JSON = 64 << 20
"""Bytes. A file of statistics and numbers is not so large."""


def folder_of(key: str, step: str, process: str, micro_step: int) -> str:
    """The path of one save below the folder of data."""
    return os.path.join(folder_name(key), step, process, f"micro_step{micro_step}")


def folder_name(key: str) -> str:
    """The name of the folder of a value, in which a key is escaped where file systems ask for it."""
    return _file_name(key, "")


def array_file(key: str, position: str) -> str:
    """The name of the file of an array at `position` in the value of `key`."""
    return _file_name(f"{key}.{position}" if position else key, SUFFIX)


def json_file(key: str) -> str:
    """The name of the JSON file of a value."""
    return _file_name(key, ".json")


def _file_name(stem: str, suffix: str) -> str:
    """A name that leaves some bytes for the one under which a file is written first."""
    if stem in ("", ".", ".."):
        # No other name has such an escape.
        return f"%{stem.replace('.', '%2E')}{suffix}"
    return naming.file_name(stem, suffix + " " * _TEMPORARY)[:-_TEMPORARY]


class SaveNumber(NamedTuple):
    """The step, the rank and the micro step of a save."""

    step: int
    rank: Union[int, str]  # noqa: UP007 (evaluated, on Python 3.9 too)
    """``proc<N>`` for the `N`-th process without a rank."""
    micro_step: int


@dataclass(frozen=True)
class SavedRun:
    """A folder that `SingleSave` wrote.

    Raises:
        MsprobeException: it has no saved values.
    """

    path: str

    def __post_init__(self) -> None:
        if not os.path.isdir(self.path):
            raise FileCheckException(f"{self.path} is not a folder; give the dump_path of SingleSave.")
        if not self.keys():
            raise MsprobeException(
                f"{self.path} has no saved values ({DATA_FOLDER}/<key>/step<S>); give the dump_path of SingleSave."
            )

    @property
    def _data(self) -> str:
        inside = os.path.join(self.path, DATA_FOLDER)
        return inside if os.path.isdir(inside) else self.path

    def keys(self) -> list[str]:
        """The names of the values, as their folders have them."""
        with os.scandir(self._data) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and steps_in(entry.path))

    def saves(self, key: str) -> dict[SaveNumber, str]:
        """The folders of the saves of `key`, in order."""
        return dict(self._saves(os.path.join(self._data, key)))

    def _saves(self, folder: str) -> Iterator[tuple[SaveNumber, str]]:
        for step in steps_in(folder) if os.path.isdir(folder) else ():
            of_step = os.path.join(folder, step)
            for number, process in enumerate((*ranks_in(of_step), *processes_in(of_step))):
                rank: int | str = int(process[4:] or 0) if is_of_rank(process) else f"proc{number}"
                of_process = os.path.join(of_step, process)
                found = ((_MICRO_STEP.match(name), name) for name in os.listdir(of_process))
                for micro, name in sorted((int(match[1]), name) for match, name in found if match):
                    yield SaveNumber(int(step[4:]), rank, micro), os.path.join(of_process, name)


Position = Union[int, str]
"""The index in a list, or the name in a mapping; 0 for the value itself."""


def arrays_in(folder: str, key: str) -> dict[Position, str]:
    """The files of the arrays of one save, by their position in the value.

    Args:
        folder: A folder of `SavedRun.saves`.
        key: The name of its value, as `SavedRun.keys` has it.
    """
    found: dict[Position, str] = {}
    for name in os.listdir(folder):
        # A name that was cut has lost its end, and is the position itself.
        inside = name[: -len(SUFFIX)] if name.endswith(SUFFIX) else None
        if inside is None:
            continue
        position = inside[len(key) + 1 :] if inside.startswith(f"{key}.") else "" if inside == key else inside
        path = os.path.join(folder, name)
        found[int(position) if position.isdecimal() else position or 0] = path
    return dict(sorted(found.items(), key=_order))


def _order(item: tuple[Position, str]) -> tuple[tuple[bool, int, str], ...]:
    parts = str(item[0]).split(".")
    return tuple((not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts)


def plain_values_in(folder: str, key: str) -> dict[Position, Any]:
    """The numbers, texts and ``None`` of one save, by their position in the value.

    Raises:
        FileCheckException: its JSON file cannot be read.
    """
    return {position: value for position, value in _values_in(folder, key) if not _is_array(value)}


def dtypes_in(folder: str, key: str) -> set[str]:
    """The dtypes that the arrays of one save had; empty for what msProbe wrote, which does not say it.

    Raises:
        FileCheckException: its JSON file cannot be read.
    """
    return {str(value["dtype"]) for _, value in _values_in(folder, key) if _is_array(value) and "dtype" in value}


def _values_in(folder: str, key: str) -> list[tuple[Position, Any]]:
    path = os.path.join(folder, f"{key}.json")
    if not os.path.exists(path):
        return []
    try:
        with files.open_for_reading(path) as stream:
            content = json.loads(stream.read(_LARGEST_JSON))
        return list(_leaves(content["data"], ()))
    except OSError as error:
        raise FileCheckException(f"{path}: cannot be read: {error.strerror or error}.") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileCheckException(
            f"{path} is no file of a value that save() wrote, or is damaged: {type(error).__name__}: {error}. "
            "Copy it again."
        ) from None


def _is_array(value: Any) -> bool:
    """True for the statistics of an array, which has a file."""
    return isinstance(value, dict) and {"max", "min", "mean", "norm", "shape"} <= value.keys()


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[Position, Any]]:
    if isinstance(value, dict) and not _is_array(value):
        parts = list(value.items())
    elif isinstance(value, list):
        parts = [(str(index), part) for index, part in enumerate(value)]
    else:
        position = ".".join(path)
        yield (int(position) if position.isdecimal() else position or 0), value
        return
    for name, part in parts:
        yield from _leaves(part, (*path, name))
