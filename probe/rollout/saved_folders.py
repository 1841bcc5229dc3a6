"""The folders of saved values: ``data/<key>/step<S>/rank<R>/micro_step<M>/<key>.npy`` and ``<key>.json``.

An array inside of a value adds its position to the name: ``<key>.<position>.npy``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, NamedTuple, Union

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Protocol, TypeAlias

from probe.common import files
from probe.common.containers import MAX_CONTAINERS, parts_of
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


# --- tree


_DEEPEST = 100
"""Levels of nesting. A list that holds itself ends here; a guess far above what programs have."""
_LONGEST_TEXT = 1000
"""Characters that are kept of a value that JSON does not have."""
_INLINE = 1000
"""Elements that an array may have to be written into a configuration file. A guess."""
_NUMBERS_AND_TEXTS = "biufcUS"


class HostValues(Protocol):
    """The part of a framework's adapter that brings a tensor to the host; group `Execution` has it."""

    def is_tensor(self, value: Any) -> bool:
        """True if `value` is a tensor of this framework."""

    def values(self, tensor: Any) -> NDArray[Any]:
        """A copy of the values; in float32 for a dtype that numpy lacks."""

    def dtype_name(self, tensor: Any) -> str:
        """The plain name of its dtype."""


@dataclass(frozen=True)
class Array:
    """A copy of a tensor or of a numpy array."""

    values: NDArray[Any]
    dtype: str
    """The plain name of the dtype that it had, such as ``bfloat16``."""
    name: str
    """The position of the array in the value, such as ``0.logits``, which no other has; empty for the value itself."""
    is_tensor: bool = True
    """False for an array of numpy."""


Tree: TypeAlias = Union[Array, bool, int, float, str, "list[Tree]", "dict[str, Tree]", None]


def copied(value: Any, host: HostValues) -> Tree:
    """Copy `value`, which later writes to it do not reach.

    Args:
        value: Tensors, arrays, numbers, texts and ``None`` in any nesting. Any other object becomes its class and text.
        host: The framework.

    Raises:
        Exception: a tensor has no values, or the framework fails.
    """
    return _Copy(host).of(value, (), 0)


def arrays_of(tree: Tree) -> list[Array]:
    """The arrays of a copy, in order."""
    if isinstance(tree, Array):
        return [tree]
    parts: Iterable[Tree] = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [array for part in parts for array in arrays_of(part)]


def as_json(tree: Tree, entries: Mapping[str, Any]) -> Any:
    """Return the copy as JSON has it.

    Args:
        tree: The copy.
        entries: What stands for each array, by its name.
    """
    if isinstance(tree, Array):
        return entries[tree.name]
    if isinstance(tree, dict):
        return {key: as_json(part, entries) for key, part in tree.items()}
    return [as_json(part, entries) for part in tree] if isinstance(tree, list) else tree


def inline(array: Array) -> Any:
    """The numbers of a small array as nested lists; dtype and shape of a larger one."""
    if array.values.size <= _INLINE and array.values.dtype.kind in "biufU":
        return array.values.tolist()
    return {"dtype": array.dtype, "shape": list(array.values.shape)}


class _Copy:
    def __init__(self, host: HostValues) -> None:
        self._host = host
        self._names: set[str] = set()
        self._left = MAX_CONTAINERS

    def of(self, value: Any, path: tuple[str, ...], depth: int) -> Tree:
        if value is None or isinstance(value, (bool, int, float, str)):
            # A number of numpy is one of Python's as well, and a text may be of a class with a life of its own.
            return _plain(value)
        if self._host.is_tensor(value):
            return self._array(self._host.values(value), self._host.dtype_name(value), path)
        if isinstance(value, np.generic) and not isinstance(value, (np.void, np.object_)):
            return self.of(value.item(), path, depth)
        if isinstance(value, np.ndarray):
            if value.dtype.kind in _NUMBERS_AND_TEXTS:
                return self._array(np.array(value, copy=True, order="C"), value.dtype.name, path, is_tensor=False)
            value = value.tolist()
        parts = _parts(value)
        if parts is None or depth >= _DEEPEST or self._left <= 0:
            return {"type": f"{type(value).__module__}.{type(value).__qualname__}", "value": _text(value)}
        self._left -= 1
        copies = {key: self.of(part, (*path, key), depth + 1) for key, part in _named(parts)}
        return copies if _has_keys(value) else list(copies.values())

    def _array(self, values: NDArray[Any], dtype: str, path: tuple[str, ...], is_tensor: bool = True) -> Array:
        # {"a": {"b": x}, "a.b": y} has two arrays of one name.
        name = naming.unused(".".join(path), self._names)
        self._names.add(name)
        return Array(values, dtype, name, is_tensor)


def _plain(value: Any) -> bool | int | float | str | None:
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return None


def _parts(value: Any) -> Sequence[tuple[Any, Any]] | None:
    parts = parts_of(value)
    if parts is None and isinstance(value, (Sequence, Set)) and not isinstance(value, (bytes, bytearray, memoryview)):
        return list(enumerate(value))
    return parts


def _has_keys(value: Any) -> bool:
    return isinstance(value, Mapping) or not isinstance(value, (Sequence, Set)) or hasattr(value, "_fields")


def _named(parts: Sequence[tuple[Any, Any]]) -> Iterable[tuple[str, Any]]:
    """The parts under texts that differ, as 1 and "1" do not."""
    given: set[str] = set()
    for key, part in parts:
        name = naming.unused(str(key), given)
        given.add(name)
        yield name, part


def _text(value: Any) -> str:
    try:
        return os.fspath(value) if isinstance(value, os.PathLike) else str(value)[:_LONGEST_TEXT]
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:_LONGEST_TEXT]


# --- rules


FILE, DTYPE = "file", "dtype"


class Stored(NamedTuple):
    """One array as it is written."""

    values: NDArray[Any]
    entry: Callable[[str], dict[str, Any]]
    """Makes the entry of the JSON file from the name of the array's own file; called in the thread that writes."""


class SavingRules(Protocol):
    """The form of the files."""

    def kept(self, key: str, tree: Tree) -> Tree | None:
        """The part of a value that is saved; ``None`` for nothing of it."""

    def stored(self, array: Array) -> Stored:
        """Form in which an array is written."""


class ProbeSaving:
    """Our form: values keep their dtype, and the entry names dtype and file."""

    def kept(self, key: str, tree: Tree) -> Tree | None:
        """All of it."""
        return tree

    def stored(self, array: Array) -> Stored:
        """The values as they are."""
        return Stored(array.values, partial(_entry, array))


PROBE_SAVING = ProbeSaving()


def _entry(array: Array, file: str) -> dict[str, Any]:
    entry = statistics(array.values)
    return {**entry, "shape": list(array.values.shape), DTYPE: array.dtype, FILE: file}


def statistics(values: NDArray[Any]) -> dict[str, Any]:
    """Largest and smallest value, mean and Euclidean norm, in float64; ``None`` where there is none.

    Example:
        >>> statistics(np.array([3, -4]))
        {'max': 3, 'min': -4, 'mean': -0.5, 'norm': 5.0}
    """
    kind = values.dtype.kind
    if not values.size or kind not in "biufc":
        return dict.fromkeys(("max", "min", "mean", "norm"))
    with np.errstate(all="ignore"):
        if kind == "c":
            wide = np.abs(values.astype(np.complex128))
            return {"max": None, "min": None, "mean": None, "norm": _norm(wide)}
        numbers = values.view(np.uint8) if kind == "b" else values
        largest, smallest = numbers.max().item(), numbers.min().item()
        return {"max": largest, "min": smallest, "mean": float(numbers.mean(dtype=np.float64)), "norm": _norm(numbers)}


def _norm(values: NDArray[Any]) -> float:
    # In parts, so that little memory is taken on the way.
    flat, step = values.reshape(-1), 1 << 20
    parts = (flat[start : start + step].astype(np.float64) for start in range(0, flat.size, step))
    return float(np.sqrt(sum(float(np.dot(part, part)) for part in parts)))
