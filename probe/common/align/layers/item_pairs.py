"""Items of two records that correspond, where two frameworks number and name arguments differently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from probe.common.align.calls import KeyedCall
from probe.common.align.name_mapping import PARAMETER_NAMES
from probe.common.align.operations import Operation
from probe.common.dump.naming import BACKWARD
from probe.common.dump.reading.items import Shape
from probe.common.dump.reading.records import INPUT, OUTPUT, PARAMETERS, PARAMETERS_GRAD, Item
from probe.common.numerics.error_bounds import extent, relative_difference
from probe.common.numerics.formats import unit_roundoff

# Names of arguments: MindSpore's, and PyTorch's.
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


def by_value(target: KeyedCall, golden: KeyedCall) -> dict[str, str]:
    """Names of items and of their counterparts, in two programs whose arguments may have another order.

    Tensors that a call takes or returns are matched by what they hold. The others are matched by their positions, as
    far as they are of one size; what is of another size is another thing.
    """
    start, other_start = len(target.record.name), len(golden.record.name)
    found: dict[str, str] = {}
    taken: set[str] = set()
    there = {item.name[other_start:]: item for item in golden.items}
    moved = [item for item in target.items if not _is_same(item, there.get(item.name[start:]))]
    for item in moved:
        # Those at their own position are not given away.
        for other in golden.items if item.is_tensor and item.state in (INPUT, OUTPUT) else ():
            mine = item.name[start:]
            if other.state != item.state or other.name in taken or mine == other.name[other_start:]:
                continue
            own = next((each for each in target.items if each.name[start:] == other.name[other_start:]), None)
            if _is_same(item, other) and not (own is not None and _is_same(own, other)):
                found[item.name] = other.name
                taken.add(other.name)
                break
    for item in target.items:
        match = there.get(item.name[start:])
        if item.name not in found and match is not None and match.name not in taken and _may_be_same(item, match):
            found[item.name] = match.name
            taken.add(match.name)
    found.update(_under_other_names(target, golden, found))
    return found


def _under_other_names(target: KeyedCall, golden: KeyedCall, found: Mapping[str, str]) -> dict[str, str]:
    """The parameters of one layer, and their gradients, that two programs give other names.

    Those that hold the same values are matched, and then those that are left if a size leaves no choice.
    """
    taken = set(found.values())
    sides = [
        [item for item in call.items if item.state in (PARAMETERS, PARAMETERS_GRAD) and item.is_tensor]
        for call in (target, golden)
    ]
    mine = [item for item in sides[0] if item.name not in found]
    theirs = [item for item in sides[1] if item.name not in taken]
    more: dict[str, str] = {}
    for is_match in (_is_same, _are_alone(mine, theirs)) if mine and theirs else ():
        pairs = [(item, other) for item in mine for other in theirs if is_match(item, other)]
        # The nearest first: parameters of one size and one way to be drawn differ by little more than short types show.
        for item, other in sorted(pairs, key=lambda pair: relative_difference(*pair)):
            if item.name not in more and other.name not in more.values():
                more[item.name] = other.name
    return more


def _are_alone(mine: Sequence[Item], theirs: Sequence[Item]) -> Callable[[Item, Item], bool]:
    """Tells if two tensors have a size that no other one of either side has."""
    counts = [Counter(extent(item.shape).elements for item in side) for side in (mine, theirs)]

    def are_alone(item: Item, other: Item) -> bool:
        size = extent(item.shape).elements
        return size == extent(other.shape).elements and all(count[size] == 1 for count in counts)

    return are_alone


_SAME = 2e-5
"""The relative difference up to which two tensors hold the same values, as in `same_values`."""


def _is_same(item: Item, other: Item | None) -> bool:
    """True if two tensors have the same elements, as far as statistics tell; constants do not."""
    if other is None or not item.is_tensor or not other.is_tensor:
        return False
    if extent(item.shape).elements != extent(other.shape).elements or not unit_roundoff(item.dtype):
        return False
    if item.norm is None or other.norm is None:
        return item.md5 is not None and item.md5 == other.md5
    return item.max != item.min and relative_difference(item, other) <= max(_SAME, 6 * unit_roundoff(item.dtype))


def _may_be_same(item: Item, other: Item) -> bool:
    """True if two items at one position can be the same thing."""
    if not item.is_tensor or not other.is_tensor or item.state not in (INPUT, OUTPUT):
        return True
    if bool(unit_roundoff(item.dtype)) != bool(unit_roundoff(other.dtype)):
        return False
    return extent(item.shape).elements == extent(other.shape).elements


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
