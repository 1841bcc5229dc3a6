"""The inputs of a call that are only written to; their former contents mean nothing."""

from __future__ import annotations

from collections.abc import Sequence

from probe.common.dump.naming import function_name
from probe.common.dump.reading.records import Item
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has

_ITEM = "__setitem__"


def reads(name: str, inputs: Sequence[Item]) -> list[Item]:
    """The inputs of a call that it reads.

    Args:
        name: of the record.
        inputs: its tensors.
    """
    written = {f"{name}.input.out"}
    function = function_name(name)
    # Of a part that is written, what is returned has the rest as well: it is read then.
    if function == _ITEM or has(function, Trait.OVERWRITES):
        written.add(f"{name}.input.0")
    prefix = f"{name}.input.out."
    return [item for item in inputs if item.name not in written and not item.name.startswith(prefix)]


def fills(name: str) -> bool:
    """True if a call writes into a tensor of which its record does not say what it holds then."""
    return _ITEM in name and function_name(name) == _ITEM
