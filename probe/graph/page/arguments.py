"""The names of arguments on a page: ``weight`` beside ``input.1``, as the signature of the function has it."""

from __future__ import annotations

from probe.common.dump.frameworks import of_dump
from probe.common.dump.naming import FORWARD
from probe.common.operations.signatures import argument_name
from probe.graph.page.columns import Columns


def arguments_of(columns: Columns) -> dict[str, list[str]]:
    """The names of the positional arguments of each function that the target calls, as far as they are known.

    The keys are records without their number and direction: ``Functional.linear``.
    """
    if of_dump(columns.target.framework).has_own_names:
        return {}
    found: dict[str, list[str]] = {}
    for index in columns.name.tolist():
        base, _, end = columns.texts[index].rpartition(f".{FORWARD}") if index >= 0 else ("", "", "")
        function, _, number = base.rpartition(".")
        if function and not end and number.isdigit() and function not in found:
            found[function] = _names(base)
    return {function: names for function, names in found.items() if names}


def _names(call: str) -> list[str]:
    names: list[str] = []
    while True:
        item = f"input.{len(names)}"
        name = argument_name(f"{call}.{FORWARD}", item)
        if name == item:
            return names
        names.append(name)
