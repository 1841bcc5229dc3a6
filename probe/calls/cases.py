"""Cases of a dump, one recorded call each, and the values they are run with: of files, or generated from statistics."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from probe.calls.arguments import Unreadable
from probe.common.dump.naming import BACKWARD, FORWARD, api_name, parse
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.items import Item
from probe.common.dump.reading.records import Record
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.numerics.formats import is_float, is_integer, rounding_format
from probe.common.numerics.rounding import rounded_to
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has

LEVELS = ("L1", "mix")
TASKS = ("tensor", "statistics")
# It may go to a device that is not there now. Other casts are run, because their rounding is exact.
_NOT_REPEATED = "to"
_STATISTICS = ("Max", "Min", "Mean", "Norm", "md5", "data_name", "Nonfinite", "Finite Max", "Finite Min")


@dataclass(frozen=True)
class Case:
    """One recorded call."""

    name: str
    """``Functional.silu.0``."""
    base: str
    """``Functional.silu``."""
    forward: Record
    backward: Optional[Record] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    stands_for: int = 1
    """The number of records of the dump that differ from this one in their values only, itself included."""


@dataclass(frozen=True)
class Selection:
    """The choice of the calls to check.

    Args:
        white_list: Bare names of functions, such as ``linear``; empty for all of them.
        black_list: Names of functions that are left out, also where the white list has them.
        distinct: Keep one of those calls that differ in their values only.
    """

    white_list: Collection[str] = field(default_factory=frozenset)
    black_list: Collection[str] = field(default_factory=frozenset)
    distinct: bool = False

    def leaves_out(self, base: str) -> str | None:
        """The reason why functions of this name are left out; ``None`` if they are not."""
        name = base.rpartition(".")[2]
        if name in self.black_list:
            return f"{name} is in black_list"
        if self.white_list and name not in self.white_list:
            return f"{name} is not in white_list"
        return None


def check_dump(dump: Dump) -> None:
    """Refuse a dump that has no calls of functions, or nothing to make inputs from.

    Raises:
        MsprobeException: its level or task is another one.
    """
    if dump.level not in LEVELS:
        raise MsprobeException(
            f'{dump.path}: "level" is "{dump.level}", which records no calls of functions; collect with "L1" or "mix".'
        )
    if dump.task not in TASKS:
        raise MsprobeException(
            f'{dump.path}: "task" is "{dump.task}", from which no inputs can be made; collect with "tensor", or with '
            '"statistics" for inputs that are generated.'
        )


def cases_of(dump: Dump, selection: Selection) -> list[Case]:
    """The calls of functions in `dump`, in order; modules and calls of unknown form are none.

    Raises:
        MsprobeException: the dump is not one that can be checked.
    """
    check_dump(dump)
    found = [case for case in (case_of(dump, record) for record in dump) if case is not None]
    return _distinct(found) if selection.distinct else found


def case_of(dump: Dump, record: Record) -> Case | None:
    """The call of which `record` is the forward; ``None`` where it is none of a function."""
    parsed = parse(record.name)
    if parsed is None or parsed.is_module or parsed.direction != FORWARD:
        return None
    backward = api_name(parsed.base, parsed.number, BACKWARD)
    name = record.name[: -len(f".{FORWARD}")]
    has_backward = backward in dump
    return Case(name, parsed.base, record, dump[backward] if has_backward else None)


def _distinct(cases: Iterable[Case]) -> list[Case]:
    first: dict[str, Case] = {}
    for case in cases:
        fields = [case.base, *(_without_values(record.fields) for record in (case.forward, case.backward) if record)]
        key = json.dumps(fields, sort_keys=True, default=str)
        seen = first.get(key)
        first[key] = case if seen is None else replace(seen, stands_for=seen.stands_for + 1)
    return list(first.values())


def _without_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_values(each) for key, each in value.items() if key not in _STATISTICS}
    if isinstance(value, list):
        return [_without_values(each) for each in value]
    return value


_UNCHECKED = ("Aten", "VF", "NPU")
"""Families of operators below the functions of a framework, which leave the checks of arguments to these."""


def may_end_process(case: Case) -> bool:
    """True if the function trusts its arguments with memory, so that a damaged record may end the process."""
    family, _, name = case.base.partition(".")
    is_private = name.startswith("_") and not name.startswith("__")
    return family in _UNCHECKED or is_private or has(case.base, Trait.UNCHECKED)


def unchecked(case: Case) -> str:
    """The reason why a call that asks for no checks is not run from a dump; empty if it asks for none."""
    fields: Any = case.forward.fields
    asked = fields.get("input_kwargs") if isinstance(fields, dict) else None
    entry = asked.get("unsafe") if isinstance(asked, dict) else None
    wants = entry.get("value") if isinstance(entry, dict) else entry
    return "it was called with unsafe=True, which leaves out the checks of its arguments" if wants else ""


def not_run(base: str) -> str | None:
    """The reason why no function of this name is run, on any framework; ``None`` if it is run."""
    family, _, name = base.partition(".")
    if family.endswith("Distributed") or family == "Distributed":
        return "communication needs the other ranks"
    if name.rpartition(".")[2] == _NOT_REPEATED or has(base, Trait.UNWRITTEN):
        return f"{name} computes nothing"
    return None


# --- inputs


Array = NDArray[Any]
_LEFT_OUT = -100
"""The label that losses leave out, by the default of every framework."""
_MASKED = -1e4
"""Below this a float tensor that ends at 0 is a mask that is added to scores."""


@dataclass(frozen=True)
class Values:
    """The contents of one tensor."""

    array: Array
    """In a dtype that holds its values exactly: float32 of a ``bfloat16``."""
    generated: bool = False


def unloaded(dump: Dump, item: Item, dtype: str, shape: tuple[int, ...], seed: int) -> Values:
    """In the place of the values of a tensor: zeros that take no memory."""
    return Values(np.broadcast_to(np.float32(0), shape))


def values_of(dump: Dump, item: Item, dtype: str, shape: tuple[int, ...], seed: int) -> Values:
    """The values of a recorded tensor.

    Raises:
        Unreadable: the dump has neither its file nor statistics from which it could be made.
        MissingDependency: the file is one of torch's, which is not installed.
    """
    if item.data_name is not None and item.data_name != "-1":
        try:
            array = dump.tensor(item)
        except FileCheckException as error:
            raise Unreadable(str(error)) from None
        if array is not None:
            if array.shape != shape:
                raise Unreadable(f"the file of {item.name} has the shape {list(array.shape)}, the record {list(shape)}")
            return Values(array)
    if 0 in shape:
        return Values(np.zeros(shape))
    if dump.task == "tensor":
        raise Unreadable(f"{item.name} has no file")
    return Values(rounded_as(_generated(item, dtype, shape, _draws(item.name, seed)), dtype), True)


def rounded_as(values: Array, dtype: str) -> Array:
    """The numbers that a tensor of this dtype holds, so that the reference is computed from the same ones."""
    form = rounding_format(dtype)
    return values if form is None or form.is_complex else rounded_to(values, form)


def _draws(name: str, seed: int) -> np.random.Generator:
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def _generated(item: Item, dtype: str, shape: tuple[int, ...], draws: np.random.Generator) -> Array:
    low, high = _number(item.min), _number(item.max)
    if low is None or high is None:
        raise Unreadable(f'{item.name} has no statistics; collect with "tensor"')
    if dtype == "bool":
        return draws.integers(int(low), int(high) + 1, shape).astype(bool)
    if is_integer(dtype):
        return _whole_numbers(int(low), int(high), shape, draws)
    if not is_float(dtype):
        raise Unreadable(f'{item.name} is {dtype}, and its statistics say too little; collect with "tensor"')
    return _generated_floats(item, low, high, dtype, shape, draws)


def _whole_numbers(low: int, high: int, shape: tuple[int, ...], draws: np.random.Generator) -> Array:
    if low == _LEFT_OUT and high >= 0:
        # Labels are no other negative numbers.
        labels = draws.integers(0, high, shape, np.int64, endpoint=True)
        return _ends(np.asarray(labels), low, high)
    return _ends(np.asarray(draws.integers(low, high, shape, np.int64, endpoint=True)), low, high)


def _number(value: Any) -> float | int | None:
    return value if isinstance(value, (bool, int, float)) else None


def _ends(values: Array, low: Any, high: Any) -> Array:
    """`values` with the extremes of the record in its first and last place."""
    flat = values.reshape(-1)
    flat[0], flat[-1] = low, high
    return values


def _generated_floats(
    item: Item, low: float, high: float, dtype: str, shape: tuple[int, ...], draws: np.random.Generator
) -> Array:
    special = [value for value in (low, high) if not np.isfinite(value)]
    if item.nonfinite or special:
        low, high = _finite_range(item, low, high)
    if item.max == 0 and (low <= _MASKED or -np.inf in special):
        return _mask(shape, -np.inf if special else low, draws)
    # A range as wide as all of float64 has no width in float64.
    values = _ends(np.asarray(2 * draws.uniform(low / 2, high / 2, shape)), low, high)
    for index, value in enumerate(special[: values.size]):
        values.reshape(-1)[-1 - index if value > 0 else index] = value
    return values


def _finite_range(item: Item, low: float, high: float) -> tuple[float, float]:
    """Between which values the finite elements lie, as far as the record says; otherwise next to what it says."""
    finite = [each for each in (item.finite_min, item.finite_max, low, high) if each is not None and np.isfinite(each)]
    known = finite or [0.0]
    first = item.finite_min if item.finite_min is not None else low
    last = item.finite_max if item.finite_max is not None else high
    width = max(1.0, abs(known[0]))
    first = first if np.isfinite(first) else min(known) - (width if len(set(known)) == 1 and finite else 0.0)
    return first, last if np.isfinite(last) else max(*known, first)


def _mask(shape: tuple[int, ...], low: float, draws: np.random.Generator) -> Array:
    """A mask to be added to scores: causal over two last dimensions, otherwise at the end of the last one.

    No row is masked as a whole, which would make NaN of it.
    """
    if len(shape) >= 2 and shape[-2] > 1:
        rows, columns = shape[-2:]
        allowed = np.tri(rows, columns, max(columns - rows, 0), dtype=bool)
        return np.broadcast_to(np.where(allowed, 0.0, low), shape).copy()
    values = np.zeros(shape)
    masked = int(draws.integers(0, shape[-1])) if shape else 0
    if masked:
        values[..., -masked:] = low
    return values
