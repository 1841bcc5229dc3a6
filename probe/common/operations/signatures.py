"""The arguments of PyTorch's functions: their names, `eps` and not the position of it, and their defaults."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from probe.common.dump.naming import function_name
from probe.common.operations.lookup import function
from probe.common.yaml_file import load_yaml

OF_MEMORY = frozenset(("inplace", "non_blocking", "copy", "memory_format", "pin_memory"))
"""Arguments that say where a result is put and not what it is."""
OF_DIMENSIONS = frozenset(("dim", "dim0", "dim1", "start_dim", "end_dim"))
"""Arguments that number a dimension, from either end."""
_POSITIONAL = "input."


def argument_name(record: str, item: str) -> str:
    """The name of an argument of a call of PyTorch; the item as it is where nothing is known of it.

    Args:
        record: the record of the call.
        item: the name of the item in it, ``input.4`` or ``input.alpha``.
    """
    if not item.startswith(_POSITIONAL):
        return item
    position = item[len(_POSITIONAL) :]
    if not position.isdigit():
        return position if position.isidentifier() else item
    names = _signature(function_name(record).rpartition(".")[2]).positional
    name = names[int(position)] if int(position) < len(names) else "_"
    return item if name == "_" else name


def is_default(record: str, item: str, value: object, width: int | None) -> bool:
    """True if a call of PyTorch has this value of an argument without saying so.

    Args:
        record: the record of the call.
        item: the name of the item in it, ``input.4`` or ``input.alpha``.
        value: the plain value.
        width: the last size of the first tensor that it takes, if it is known.
    """
    function_called, name = function_name(record).rpartition(".")[2], argument_name(record, item)
    if (function_called, name) == ("scaled_dot_product_attention", "scale"):
        is_width = width is not None and width > 0
        return is_width and type(value) is float and math.isclose(value, (width or 1) ** -0.5, rel_tol=1e-6)
    default = _signature(function_called).defaults.get(name)
    if default is None or isinstance(value, bool) or type(value) not in (int, float):
        return default is not None and str(value) == default
    try:
        return float(default) == value
    except ValueError:
        return False


class _Signature(NamedTuple):
    positional: tuple[str, ...] = ()
    defaults: Mapping[str, str] = {}


@cache
def _signature(name: str) -> _Signature:
    known = _signatures().get(name) or _signatures().get(name.rstrip("_")) or _signatures().get(function(name).name)
    if known is None:
        return _Signature()
    arguments, _, others = known.partition(" * ")
    pairs = _parted(arguments)
    defaults = {own: default for own, is_said, default in (*pairs, *_parted(others)) if is_said}
    return _Signature(tuple(own for own, _, _ in pairs), defaults)


def _parted(arguments: str) -> list[tuple[str, str, str]]:
    return [each.partition("=") for each in arguments.split()]


@cache
def _signatures() -> dict[str, str]:
    found: dict[str, str] = load_yaml(os.path.join(os.path.dirname(os.path.abspath(__file__)), "signatures.yaml"))
    return found
