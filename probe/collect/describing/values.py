"""The way in which a Python, numpy or framework value is written into dump.json.

Walks arguments and outputs once; what is nested deeper than `MAX_DEPTH`, and containers beyond `MAX_CONTAINERS` of one
argument or result, are ``null``. The adapter knows what is a tensor and what else belongs to the framework.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable

import numpy as np

from probe.backends.protocol import Tensors
from probe.common.containers import MAX_CONTAINERS, MAX_DEPTH
from probe.common.dump.naming import unused
from probe.common.interfaces import Entry

SaveTensor = Callable[[Any, Entry, str], None]
"""Called with a tensor, its entry and the dotted path of its file."""

_SCALARS = (bool, int, float, str)
# Not by the type itself, which would ask a subclass, an enum for example, for the text it shows.
_PLAIN_VALUE: dict[type, Callable[[Any], Any]] = {
    bool: bool,
    int: int.__index__,
    float: float.__float__,
    str: lambda value: str.__str__(value),
}


def entries_in_python(
    values: Iterable[Any], direct: Callable[[Any], Entry | None] | None, describe: Callable[..., Any]
) -> list[Any]:
    """Entries of the arguments of a call, whose tensors are not saved.

    Args:
        values: The arguments, or the results.
        direct: See `ValueDescriber`.
        describe: `ValueDescriber.describe`.
    """
    if direct is None:
        return [describe(value, None, None, None, 1) for value in values]
    return [direct(value) or describe(value, None, None, None, 1) for value in values]


try:
    from probe.collect._calls import entries
except ImportError:  # not built here
    entries = entries_in_python


class ValueDescriber:
    """Turns values into entries.

    Args:
        tensors: Those of the framework.
        tensor_entry: Describes one tensor.
        failed: Called with the error of a tensor that cannot be described; its entry is ``null``, the others are kept.
        direct: Describes most tensors, and answers ``None`` for any other value; see `Tensors.direct_describer`.
    """

    def __init__(
        self,
        tensors: Tensors,
        tensor_entry: Callable[[Any], Entry],
        failed: Callable[[Exception], None],
        direct: Callable[[Any], Entry | None] | None,
    ) -> None:
        self._failed = failed
        self._containers = 0
        self._is_tensor = tensors.is_tensor
        self._several = tensors.several_outputs
        self._describe_value = tensors.describe_value
        self._tensor_entry = tensor_entry
        self.direct = direct

    def sequence(self, values: Any, path: str | None, save: SaveTensor | None) -> list[Any]:
        """Entries of positional values. `path` is the start of tensor file names, needed with `save` only."""
        if save is None:
            return entries(values, self.direct, self.describe)
        return [self.describe(value, None, f"{path}.{i}", save, 1) for i, value in enumerate(values)]

    def mapping(self, values: Mapping[Any, Any], path: str | None, save: SaveTensor | None) -> dict[str, Any]:
        """Entries of named values."""
        describe, direct = self.describe, self.direct
        if save is None and direct is not None:
            return {str(key): direct(item) or describe(item, str(key), None, None, 1) for key, item in values.items()}
        return {
            str(key): describe(value, str(key), None if save is None else f"{path}.{key}", save, 1)
            for key, value in values.items()
        }

    def single(self, value: Any, path: str | None, save: SaveTensor | None) -> Any:
        """The entry of one value, which is nearly always a tensor."""
        entry = self.direct(value) if save is None and self.direct is not None else None
        return entry or self.describe(value, None, path, save)

    def output(self, value: Any, path: str | None, save: SaveTensor | None) -> Any:
        """The fields of a call's output: a list, but a dict by field name for a named tuple."""
        if save is None and self._is_tensor(value):
            return entries((value,), self.direct, self.describe)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self.mapping(dict(zip(value._fields, value)), path, save)
        several = isinstance(value, self._several) and not self._is_tensor(value)
        if not several or self._describe_value(value, None) is not None:
            value = (value,)
        return self.sequence(value, path, save)

    def describe(self, value: Any, key: str | None, path: str | None, save: SaveTensor | None, depth: int = 0) -> Any:
        """The entry of one value; ``None`` for what has no form in the schema.

        One frame a level, so that deep values fit into Python's own limit.
        """
        if value is None:
            return None
        if self._is_tensor(value):
            try:
                entry = self._tensor_entry(value)
                if save is not None:
                    save(value, entry, path or "")
            except Exception as error:
                self._failed(error)
                return None
            return entry
        kind = type(value)
        if kind in _SCALARS and key != "device":
            return {"type": kind.__name__, "value": value}
        if kind is not tuple and kind is not list and kind is not dict:
            try:
                entry, value = self._form(value, key, path, save)
            except Exception as error:
                # Attributes and items of a user's class run the user's code.
                self._failed(error)
                return None
            if value is None:
                return entry
            kind = type(value)
        if depth > MAX_DEPTH:
            return None
        if depth <= 1:
            self._containers = 0
        self._containers += 1
        if self._containers > MAX_CONTAINERS:
            return None
        try:
            if kind is dict:
                named: dict[str, Any] = {}
                for name, item in value.items():
                    name = str(name)
                    if name in named:
                        name = unused(name, named)
                    named[name] = self.describe(item, name, None if save is None else f"{path}.{name}", save, depth + 1)
                return named
            listed = []
            for i, item in enumerate(value):
                listed.append(self.describe(item, key, None if save is None else f"{path}.{i}", save, depth + 1))
            return listed
        except RecursionError:
            # The user's own stack left less room than usual; what is deeper is cut off like what is too deep.
            return None

    def _form(self, value: Any, key: str | None, path: str | None, save: SaveTensor | None) -> tuple[Any, Any]:
        """The entry of a value that is not plain, or else the dict or list to describe in its place."""
        entry = self._describe_value(value, key)
        if entry is not None:
            if entry.get("tensor") is not None:
                # The fields of a send or receive of a batch.
                entry["tensor"] = self.describe(entry["tensor"], None, path, save, 1)
            return entry, None
        if value is Ellipsis:
            return {"type": "ellipsis", "value": "..."}, None
        if isinstance(value, slice):
            return {"type": "slice", "value": [_bound(v) for v in (value.start, value.stop, value.step)]}, None
        if isinstance(value, np.ndarray):
            array = _array_entry(value)
            if save is not None:
                save(value, array, path or "")
            return array, None
        if isinstance(value, np.generic):
            return _numpy_scalar(value), None
        if isinstance(value, _SCALARS):
            # Subclasses such as IntEnum keep the name of the plain type they are used as.
            plain = next(kind for kind in _SCALARS if isinstance(value, kind))
            return {"type": plain.__name__, "value": _PLAIN_VALUE[plain](value)}, None
        # Before dataclass: a Hugging Face output is both, and as a mapping it leaves out the fields that are None.
        if isinstance(value, Mapping):
            return None, dict(value.items())
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return None, dict(zip(value._fields, value))
        if isinstance(value, (tuple, list)):
            return None, list(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return None, {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
        return None, None


def _bound(value: Any) -> int | None:
    """A slice bound; one held in a tensor would need a device read and is left out."""
    if value is None or isinstance(value, int):
        return value
    return int(value) if isinstance(value, np.integer) else None


def _numpy_scalar(value: np.generic) -> Entry | None:
    plain = value.item()
    if isinstance(plain, _SCALARS):
        return {"type": type(value).__name__, "value": plain}
    return None


def _array_entry(array: np.ndarray[Any, Any]) -> Entry:
    entry: Entry = {"type": "numpy.ndarray", "dtype": str(array.dtype), "shape": list(array.shape)}
    entry.update(dict.fromkeys(("Max", "Min", "Mean", "Norm")))
    if array.dtype.kind in "biuf" and array.size:
        plain = float if array.dtype.kind == "f" else int if array.dtype.kind in "iu" else bool
        # A text or a too large number would be a warning of the user's program.
        with np.errstate(all="ignore"):
            entry.update(Max=plain(array.max()), Min=plain(array.min()))
            entry.update(Mean=float(array.mean(dtype=np.float64)), Norm=_norm(array))
    return entry


def _norm(array: np.ndarray[Any, Any]) -> float:
    """The 2-norm in float64, without a copy of the whole."""
    squares = 0.0
    flags: Any = ["external_loop", "buffered"]
    for part in np.nditer(array, flags, op_dtypes=[np.float64], casting="same_kind", buffersize=1 << 16):
        squares += float(np.dot(part, part))
    return math.sqrt(squares)


# --- suspects


class Suspects:
    """The entries of one step of which something is not finite."""

    def __init__(self) -> None:
        self._waiting: list[Entry] = []
        """Entries that may not have their statistics yet."""
        self._found: list[Entry] = []

    def add(self, entry: Entry) -> None:
        """`entry` is not finite."""
        self._found.append(entry)

    def ask_later(self, entry: Entry) -> None:
        self._waiting.append(entry)

    def all(self) -> Sequence[Entry]:
        """The suspects so far; every entry must have its statistics now."""
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            if not is_finite(entry):
                self.add(entry)
        return self._found


def is_finite(entry: Entry) -> bool:
    """True if no statistic of a tensor says that a NaN or an infinity is in it; true where there are none."""
    largest, smallest, mean = entry.get("Max"), entry.get("Min"), entry.get("Mean")
    if largest is None or smallest is None:
        return True
    # A NaN compares as false. Extremes of some devices leave it out; the mean has it then.
    return bool(-math.inf < smallest and largest < math.inf and (mean is None or mean == mean))
