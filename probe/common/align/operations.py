"""The meaning of the name of a call or of a layer's class, in the words of PyTorch, for every framework."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from probe.common.align.name_mapping import translated_names
from probe.common.data_files import load_yaml
from probe.common.dump.frameworks import of_dump
from probe.common.operations.function import Trait
from probe.common.operations.lookup import canonical, function, primitive

_PRIMITIVE = "Primitive"
# Families in which a name means the same, so that x.add(y) is torch.add(x, y).
_ARITHMETIC = ("Functional", "Torch", "Tensor", "Mint", "MintFunctional")
_MIRRORS = {"MintDistributed": "Distributed"}
# Normalisation over several devices has the weights and the output of that over one.
_SINGLE_DEVICE = {"syncbatchnorm": "batchnorm2d"}


class Operation(NamedTuple):
    """The operation that a call computes."""

    name: str
    akin: str
    """Shared with operations that give the same values whenever the shapes agree."""
    primitive: bool


@cache
def operation(base: str, framework: str) -> Operation:
    """The operation that ``Prefix.api`` computes; names of an unknown family mean only themselves."""
    family, _, name = base.partition(".")
    family = _MIRRORS.get(family, family)
    if family == _PRIMITIVE:
        # The attribute that holds a primitive says nothing of what it does.
        known = primitive(name.rpartition(".")[2])
        return Operation(base, base, True) if known is None else _computed(known.name, True)
    if family not in _ARITHMETIC:
        return Operation(f"{family}.{name}", f"{family}.{name}", False)
    # Only mindspore.ops and its Tensor have names of their own.
    name = translated_names(framework).get(base, base).partition(".")[2]
    return _computed(name, False)


def _computed(name: str, is_primitive: bool) -> Operation:
    known = function(name)
    return Operation(canonical(name), known.akin or known.name, is_primitive)


class OperationArguments(NamedTuple):
    """The way in which the settings of an operation are called."""

    names_by_index: Mapping[int, str]
    """The names of positional arguments."""
    defaults: Mapping[str, Any]
    defaults_of_primitive: Mapping[str, Any]
    numbers: bool
    """True if a plain number at any index means the same in both frameworks."""


@cache
def arguments_of(name: str, framework: str) -> OperationArguments:
    """The way in which the settings are called of the operation that `operation` calls `name`."""
    known = function(name)
    names = (known.in_mindspore if of_dump(framework).has_own_names else ()) or known.arguments
    names_by_index = {index: own for index, own in enumerate(names) if own != "_"}
    return OperationArguments(names_by_index, known.defaults, known.of_primitive, known.has(Trait.SAME_NUMBERS))


DECIDING_ATTRIBUTES = frozenset((
    "alpha", "approximate", "ceil_mode", "count_include_pad", "dilation", "eps", "epsilon", "group", "is_training",
    "keep_prob", "momentum", "negative_slope", "pad", "pad_mode", "stride", "strides",
))  # fmt: skip
"""The attributes of primitives that decide values, where neither inputs nor outputs show it."""


@cache
def layer_kind(class_name: str) -> str | None:
    """A word for a layer's class that is the same in both frameworks; ``None`` of a class that neither brings."""
    kind = _layers().get(class_name.lower())
    return None if kind is None else _SINGLE_DEVICE.get(kind, kind)


@cache
def _layers() -> dict[str, str]:
    words = load_yaml(os.path.join(os.path.dirname(os.path.abspath(__file__)), "layers.yaml"))
    renamed = {mine.lower(): theirs.lower() for mine, theirs in words["renamed"].items()}
    same = {name.lower(): name.lower() for name in (*words["same"], *renamed.values())}
    return {**same, **renamed}
