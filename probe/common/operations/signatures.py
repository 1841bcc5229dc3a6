"""The names of the arguments of PyTorch's functions, for messages: `eps` and not the position of it."""

from __future__ import annotations

import os
from functools import cache

from probe.common.dump.naming import function_name
from probe.common.operations.lookup import function
from probe.common.yaml_file import load_yaml

OF_MEMORY = frozenset(("inplace", "non_blocking", "copy", "memory_format", "pin_memory"))
"""Arguments that say where a result is put and not what it is."""
_POSITIONAL = "input."


def argument_name(record: str, item: str) -> str:
    """The name of an argument of a call of PyTorch; the item as it is where nothing is known of it.

    Args:
        record: the record of the call.
        item: the name of the item in it, ``input.4`` or ``input.alpha``.
    """
    if not item.startswith(_POSITIONAL):
        return item
    place = item[len(_POSITIONAL) :]
    if not place.isdigit():
        return place if place.isidentifier() else item
    names = _signature(function_name(record).rpartition(".")[2])
    name = names[int(place)] if int(place) < len(names) else "_"
    return item if name == "_" else name


@cache
def _signature(name: str) -> tuple[str, ...]:
    known = _signatures().get(name) or _signatures().get(name.rstrip("_")) or _signatures().get(function(name).name)
    return tuple(known.split()) if known is not None else ()


@cache
def _signatures() -> dict[str, str]:
    found: dict[str, str] = load_yaml(os.path.join(os.path.dirname(os.path.abspath(__file__)), "signatures.yaml"))
    return found
