"""The cases of a dump: one recorded call each, its forward record and its backward record if there is one."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from probe.common.dump.naming import BACKWARD, FORWARD, api_name, parse
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import Record
from probe.common.errors import MsprobeException
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
