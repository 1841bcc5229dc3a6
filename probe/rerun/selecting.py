"""The one call that is run again, by the name of its record."""

from __future__ import annotations

from typing import NamedTuple

from probe.calls.cases import Case, case_of, check_dump
from probe.common.dump.naming import BACKWARD, FORWARD, api_name, is_module, parse
from probe.common.dump.nearest_names import nearest
from probe.common.dump.reading.dump import Dump
from probe.common.errors import MsprobeException


class SelectedCall(NamedTuple):
    """A call, and which part of it was asked for."""

    case: Case
    direction: str
    """``forward`` or ``backward``; empty for both."""


def select(dump: Dump, record: str) -> SelectedCall:
    """The call whose record, or whose name without a direction, `record` is.

    Raises:
        MsprobeException: the dump has none of this name, or none that could be run; the message names the nearest ones.
    """
    check_dump(dump)
    if is_module(record):
        raise MsprobeException(f"{record} is a module; only functions can be run again, such as {_example(dump)}.")
    given = parse(record)
    named = given or parse(f"{record}.{FORWARD}")
    forward = "" if named is None else api_name(named.base, named.number, FORWARD)
    case = case_of(dump, dump[forward]) if forward in dump else None
    if case is None:
        raise MsprobeException(f"{dump.path} has no call {record!r}{_near(dump, record)}.")
    direction = "" if given is None else given.direction
    if direction == BACKWARD and case.backward is None:
        raise MsprobeException(f"{dump.path} has no backward of {case.name}; give {forward}.")
    return SelectedCall(case, direction)


def _near(dump: Dump, record: str) -> str:
    names = [each.name for each in dump if not is_module(each.name)]
    found = nearest(record if parse(record) else f"{record}.{FORWARD}", names)
    return f"; nearest names: {', '.join(found)}" if found else f"; it has {_example(dump)}"


def _example(dump: Dump) -> str:
    """The first call of a function."""
    names = (each.name for each in dump if not is_module(each.name) and each.name.endswith(f".{FORWARD}"))
    return next(names, "no call of a function")
