"""Records that correspond because they hold the same values, where position and order say otherwise or nothing."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import chain

from probe.common.align import patience_diff
from probe.common.align.calls import KeyedCall
from probe.common.align.layers.call_pairs import RecordPairs
from probe.common.align.layers.module_paths import ScopedRecords
from probe.common.align.layers.same_values import SameValues
from probe.common.align.operations import layer_kind, operation
from probe.common.dump.naming import is_module
from probe.common.dump.reading.records import INPUT, OUTPUT, PARAMETERS, Item
from probe.common.numerics.error_bounds import extent


def corrected(pairs: RecordPairs, target: ScopedRecords, golden: ScopedRecords) -> RecordPairs:
    """`pairs` where values do not contradict, and those that values show.

    A call that holds other values than its match is matched with one that computes the same and holds the same values,
    if there is one without a match that fits better. A layer with parameters keeps its match: it may be what is wrong.
    """
    keys = _Keys(target, golden)
    of_golden = {name: keys.of(call, golden) for name, call in golden.calls.items()}
    of_target = {name: keys.of(call, target) for name, call in target.calls.items()}
    found: RecordPairs = {}
    others: RecordPairs = {}
    for mine, theirs in pairs.items():
        if of_target.get(mine) is not None and of_target.get(mine) == of_golden.get(theirs):
            found[mine] = theirs
        elif mine in target.calls and theirs in golden.calls and _fit(target.calls[mine], golden.calls[theirs]):
            others[mine] = theirs
    fixed = {mine: theirs for mine, theirs in others.items() if _has_parameters(target.calls[mine])}
    taken = {*found.values(), *fixed.values()}
    left = [name for name in target.calls if name not in found and name not in fixed]
    other_left = [name for name in golden.calls if name not in taken]
    for i, j in patience_diff.align([of_target[name] for name in left], [of_golden[name] for name in other_left]):
        found[left[i]] = other_left[j]
    taken = set(found.values())
    found.update((mine, theirs) for mine, theirs in others.items() if mine not in found and theirs not in taken)
    return found


class _Keys:
    """The mark that tells a call by what it does and by the values that it took and returned."""

    def __init__(self, target: ScopedRecords, golden: ScopedRecords) -> None:
        self._tensors = {id(call): _given_and_result(call) for side in (target, golden) for call in side.calls.values()}
        sides = ([self._tensors[id(call)] for call in side.calls.values()] for side in (target, golden))
        self._same = SameValues(*(filter(None, chain.from_iterable(side)) for side in sides))

    def of(self, call: KeyedCall, side: ScopedRecords) -> Hashable | None:
        """The key of a call; ``None`` where the other run has nothing like its result."""
        given, result = map(self._same.label, self._tensors[id(call)])
        parsed = None if result is None else call.record.parsed
        if parsed is None:
            return None
        if parsed.is_module:
            class_name = parsed.base.rpartition(".")[2]
            meaning: Hashable = layer_kind(class_name) or class_name
        else:
            meaning = operation(parsed.base, side.framework).name
        return parsed.is_module, meaning, parsed.direction, given, result


def _given_and_result(call: KeyedCall) -> tuple[Item | None, Item | None]:
    """The first tensor that a call took, and the first that it returned."""
    given = None
    for item in call.items:
        if item.is_tensor:
            if item.state == OUTPUT:
                return given, item
            if given is None and item.state == INPUT:
                given = item
    return given, None


def _has_parameters(call: KeyedCall) -> bool:
    return is_module(call.record.name) and any(item.state == PARAMETERS for item in call.items)


def _fit(call: KeyedCall, other: KeyedCall) -> bool:
    """True if two functions take or return tensors of the same sizes; a fused one and one it stands for do neither."""
    if is_module(call.record.name):
        return True
    return any(_sizes(call, state) == _sizes(other, state) for state in (INPUT, OUTPUT))


def _sizes(call: KeyedCall, state: str) -> list[int]:
    return sorted(extent(item.shape).elements for item in call.items if item.state == state and item.is_tensor)
