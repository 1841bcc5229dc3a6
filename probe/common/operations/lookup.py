"""The line of a function, whichever framework spelled its name, and in whichever way.

A name may have the prefix of records (``Functional.relu``), be the operator of a tensor (``__iadd__``), a form that
writes in place (``relu_``), an operator of ATen with its overload (``Aten.add.Tensor``) or the class of a primitive
(``Primitive.act.ReLU``).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from probe.common.data_files import load_yaml
from probe.common.dump.naming import function_name
from probe.common.operations.function import Function, Trait
from probe.common.operations.table import FUNCTIONS

_ATEN = "Aten"

_BY_NAME = {name: each for each in FUNCTIONS for name in (*each.primitive, *each.also, each.name)}
_BY_PRIMITIVE = {name: each for each in FUNCTIONS for name in each.primitive}


@cache
def function(name: str) -> Function:
    """The line of a function; a function that has none has no trait.

    Args:
        name: with or without a prefix, but without the number of a call.
    """
    bare = _without_prefix(name)
    found = (_BY_NAME[each] for each in _spellings(bare) if each in _BY_NAME)
    return next(found, Function(_without_underscores(bare).rstrip("_")))


@cache
def primitive(kind: str) -> Function | None:
    """The function that a primitive of MindSpore computes, given the primitive's class."""
    return _BY_PRIMITIVE.get(kind)


@cache
def has(name: str, *traits: Trait) -> bool:
    """True if a function has one of `traits`."""
    return function(name).has(*traits)


@cache
def names_with(*traits: Trait) -> tuple[str, ...]:
    """Every name, in any framework, of the functions that have one of `traits`."""
    return tuple(name for each in FUNCTIONS if each.has(*traits) for name in (each.name, *each.also))


@cache
def writes_in_place(name: str) -> bool:
    """True if a function writes what it computes into its first argument, as ``add_`` and ``__iadd__`` do."""
    bare = _without_prefix(name)
    if _is_operator(bare):
        plain = _without_underscores(bare)
        return plain not in _BY_NAME and plain[0] == "i" and plain[1:] in _BY_NAME
    return bare.endswith("_")


@cache
def canonical(name: str) -> str:
    """PyTorch's name of a function; a form that writes in place stays one."""
    plain = _without_underscores(name)
    return _BY_NAME[plain].name if plain in _BY_NAME else plain


def _without_prefix(name: str) -> str:
    family, _, rest = name.partition(".")
    return rest.partition(".")[0] if family == _ATEN else name.rpartition(".")[2]


def _is_operator(name: str) -> bool:
    return len(name) > 4 and name.startswith("__") and name.endswith("__")


def _without_underscores(name: str) -> str:
    return name[2:-2] if _is_operator(name) else name


def _spellings(name: str) -> Iterator[str]:
    """The names under which the table may have a function, the most special one first."""
    yield name
    plain = _without_underscores(name)
    yield plain
    if plain == name:
        yield name.rstrip("_")
    elif plain[0] == "i":
        # `__iadd__` writes what `__add__` returns.
        yield plain[1:]
    elif plain[0] == "r" and function(plain[1:]).has(Trait.COMMUTES):
        yield plain[1:]


# --- signatures


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
