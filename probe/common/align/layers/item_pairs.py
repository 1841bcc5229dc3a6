"""Items of two records that correspond, where two frameworks number and name arguments differently."""

from __future__ import annotations

from collections import Counter

from probe.common.align.calls import KeyedCall
from probe.common.align.name_mapping import PARAMETER_NAMES
from probe.common.align.operations import Operation
from probe.common.dump.naming import BACKWARD
from probe.common.dump.reading.items import Shape
from probe.common.dump.reading.records import INPUT, OUTPUT, Item

# What MindSpore calls arguments, and what PyTorch does.
_ARGUMENTS = {"axis": "dim", "keep_dims": "keepdim", "keepdims": "keepdim"}

Named = dict[str, Item]
"""Items by what follows the record in their names."""


def match_items(target: KeyedCall, golden: KeyedCall, meanings: tuple[Operation, Operation] | None) -> dict[str, str]:
    """Names of items and of their counterparts.

    Tensors are matched by their positions; where these differ and there are as many on both sides, in their order.
    Plain arguments are matched by position or name.

    Args:
        target, golden: calls that correspond.
        meanings: what they compute; ``None`` of modules.
    """
    found: dict[str, str] = {}
    by_state = _by_state(target), _by_state(golden)
    for state, mine in by_state[0].items():
        theirs = by_state[1].get(state, {})
        if state not in (INPUT, OUTPUT):
            pairs = _parameters(mine, theirs)
        else:
            gradients = state == OUTPUT and meanings is not None and target.record.name.endswith(BACKWARD)
            tensors = _tensors(mine), _tensors(theirs)
            if meanings is not None and state == INPUT and any(meaning.order for meaning in meanings):
                pairs = _reordered(*tensors, meanings)
            else:
                pairs = (_by_shape if gradients else _in_order)(*tensors)
            if meanings is None or meanings[0].name == meanings[1].name:
                _add_same(pairs, mine, theirs)
        found.update((mine[suffix].name, theirs[other].name) for suffix, other in pairs.items())
    return found


def _by_state(call: KeyedCall) -> dict[str, Named]:
    start = len(call.record.name)
    found: dict[str, Named] = {}
    for item in call.items:
        found.setdefault(item.state, {})[item.name[start:]] = item
    return found


def _tensors(items: Named) -> Named:
    return {suffix: item for suffix, item in items.items() if item.is_tensor}


def _in_order(mine: Named, theirs: Named) -> dict[str, str]:
    if mine.keys() != theirs.keys() and len(mine) == len(theirs):
        return dict(zip(mine, theirs))
    return {suffix: suffix for suffix in mine if suffix in theirs}


def _reordered(mine: Named, theirs: Named, meanings: tuple[Operation, Operation]) -> dict[str, str]:
    sides = []
    for items, meaning in zip((list(mine), list(theirs)), meanings):
        sides.append([items[index] for index in meaning.order] if len(meaning.order) == len(items) else items)
    return dict(zip(*sides)) if len(mine) == len(theirs) else {}


def _by_shape(mine: Named, theirs: Named) -> dict[str, str]:
    """Gradients of an API's inputs, which have no order that both frameworks keep.

    The engine of MindSpore hands out those of a primitive in the order in which it computes them, and where PyTorch
    builds a function of others, the dump shows the gradients of the last of these only: of a transposed weight, say,
    so that a square one is left alone.
    """
    pairs = _in_order(mine, theirs)
    if len(mine) == len(theirs) and all(mine[one].shape == theirs[other].shape for one, other in pairs.items()):
        return pairs
    counts = [Counter(item.shape for item in items.values()) for items in (mine, theirs)]
    suffixes = {item.shape: suffix for suffix, item in theirs.items()}
    return {
        suffix: suffixes[item.shape]
        for suffix, item in mine.items()
        if counts[0][item.shape] == counts[1][item.shape] == 1 and not _is_square(item.shape)
    }


def _is_square(shape: Shape | None) -> bool:
    return shape is not None and len(shape) == 2 and shape[0] == shape[1]


def _add_same(pairs: dict[str, str], mine: Named, theirs: Named) -> None:
    """Plain values, and a tensor that the other framework takes as a plain value."""
    taken = set(pairs.values())
    names = {_argument(suffix): suffix for suffix in theirs}
    for suffix, item in mine.items():
        other = names.get(_argument(suffix))
        if suffix in pairs or other is None or other in taken or (item.is_tensor and theirs[other].is_tensor):
            continue
        pairs[suffix] = other


def _argument(suffix: str) -> str:
    return ".".join(_ARGUMENTS.get(part, part) for part in suffix.split("."))


def _parameters(mine: Named, theirs: Named) -> dict[str, str]:
    names = {_parameter(suffix): suffix for suffix in theirs}
    return {suffix: names[_parameter(suffix)] for suffix in mine if _parameter(suffix) in names}


def _parameter(suffix: str) -> str:
    above, _, name = suffix.rpartition(".")
    return f"{above}.{PARAMETER_NAMES.get(name, name)}"
