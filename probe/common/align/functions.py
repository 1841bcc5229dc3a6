"""The calls of functions of two runs that correspond, given the calls of modules that do.

A function is looked for in the counterpart of the module call around it. There calls that take and return the same
belong together, then those of one kind, in their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Optional

from probe.common.align.call_order import Pairs, ascending, refined
from probe.common.align.operations import Operation, operation
from probe.common.align.side import Side, path_of
from probe.common.dump.naming import BACKWARD, FORWARD, is_module, parse
from probe.common.dump.reading.records import INPUT, OUTPUT, Item
from probe.common.numerics.error_bounds import extent

if TYPE_CHECKING:
    from probe.common.align.contents import Contents

Key = Optional[Hashable]
Way = Callable[[Side, int], Key]


class Found:
    """The pairs of calls so far, by their numbers."""

    def __init__(self) -> None:
        self.partner: dict[int, int] = {}
        self.how: dict[int, str] = {}
        self.back: dict[int, int] = {}

    def add(self, one: int, other: int, how: str) -> None:
        """Pair two calls, if neither has a partner yet."""
        if one not in self.partner and other not in self.back:
            self.partner[one], self.back[other], self.how[one] = other, one, how


class FunctionPairs:
    """Looks for the pairs of functions.

    Args:
        sides: the two runs.
        found: the pairs of module calls, to which those of functions are added.
        paths: the golden path of each path of the target, of layers that correspond.
        contents: the contents of what calls return, of two programs; ``None`` of one program.
    """

    def __init__(
        self, sides: tuple[Side, Side], found: Found, paths: Mapping[str, str], contents: Contents | None
    ) -> None:
        self._sides, self._found, self._contents = sides, found, contents
        golden_paths = set(paths.values())
        self._paths: tuple[Mapping[str, str], Mapping[str, str]] = paths, {path: path for path in golden_paths}
        self._acts_on: tuple[dict[int, str | None], dict[int, str | None]] = {}, {}
        self._regions: tuple[dict[str | None, Hashable], dict[str | None, Hashable]] = {}, {}

    def pair_forward(self) -> None:
        """Pair the forward calls."""
        regions: dict[Hashable, tuple[list[int], list[int]]] = {}
        for number, side in enumerate(self._sides):
            known = self._found.back if number else self._found.partner
            for call, _ in side.functions(FORWARD):
                if call not in known:
                    region = self._region(number, side.tree.get(side.calls[call].record.name))
                    regions.setdefault(region, ([], []))[number].append(call)
        if self._contents is not None:
            self._of_equal_results(
                [region[0] for region in regions.values()], [region[1] for region in regions.values()]
            )
        for mine, theirs in regions.values():
            if mine and theirs:
                self._in_region(mine, theirs)

    def pair_backward(self) -> None:
        """Pair the backward calls of forward calls that are paired, and those whose forward is not recorded."""
        backward: tuple[dict[int, int], dict[int, int]] = {}, {}
        alone: dict[Hashable, tuple[list[int], list[int]]] = {}
        for number, side in enumerate(self._sides):
            again: list[tuple[int, int]] = []
            paired = self._found.back if number else self._found.partner
            for call, parsed in side.functions(BACKWARD):
                forward = side.forward_of(call)
                if forward is None:
                    kind = operation(parsed.base, side.framework).name
                    alone.setdefault(kind, ([], []))[number].append(call)
                elif forward in paired:
                    backward[number][forward] = call
                else:
                    again.append((forward, call))
            # A forward that was computed again for the backward has the values of the one that it repeats.
            first: dict[Key, int] = {}
            for forward, _ in side.functions(FORWARD) if again else ():
                if forward in paired and forward not in backward[number]:
                    first.setdefault(_values(side, forward), forward)
            for forward, call in again:
                origin = first.pop(_values(side, forward), None)
                if origin is not None:
                    backward[number][origin] = call
        for forward, call in backward[0].items():
            other = backward[1].get(self._found.partner[forward])
            if other is not None:
                self._found.add(call, other, self._found.how[forward])
        for mine, theirs in alone.values():
            for one, other in zip(mine, theirs):
                self._found.add(one, other, "order")

    def _translate(self, parameter: str) -> str:
        """The name of a parameter on the golden side, where its layer has another path there."""
        path, _, name = parameter.rpartition(".")
        return f"{self._paths[0].get(path, path)}.{name}"

    def _region(self, number: int, around: str | None) -> Hashable:
        """The counterpart of the innermost call around a call that has one."""
        known = self._regions[number]
        if around not in known:
            known[around] = self._counterpart(number, around)
        return known[around]

    def _counterpart(self, number: int, around: str | None) -> Hashable:
        if around is None:
            return None
        side = self._sides[number]
        if not is_module(around):
            return "scope", around
        parsed = parse(around)
        path = None if parsed is None else self._paths[number].get(path_of(parsed.base))
        if parsed is None or path is None:
            return self._region(number, side.tree.get(around))
        if parsed.direction == BACKWARD:
            # A forward that ran inside of a backward computes again.
            return "backward", path
        call = side.index.get(around)
        paired = call if number else self._found.partner.get(-1 if call is None else call)
        if paired is None or (number and paired not in self._found.back):
            return "alone", number, around
        return paired

    def _of_equal_results(self, *regions: Sequence[Sequence[int]]) -> None:
        """Pair calls that compute the same and return the same, in their region if they can, else wherever."""
        where = [{call: key for key, calls in enumerate(side) for call in calls} for side in regions]
        for is_local in (True, False):
            groups: dict[Hashable, tuple[list[int], list[int]]] = {}
            for number, side in enumerate(self._sides):
                known = self._found.back if number else self._found.partner
                for call, region in where[number].items():
                    label = None if self._contents is None else self._contents.label(side.result(call))
                    if label is not None and call not in known:
                        groups.setdefault((label, region if is_local else None), ([], []))[number].append(call)
            for mine, theirs in groups.values():
                for way in (_meaning, _akin):
                    self._add(mine, theirs, way, "value")

    def _add(self, mine: Sequence[int], theirs: Sequence[int], way: Way, how: str, pairs: Pairs | None = None) -> None:
        """Pair calls of one key in their order, between `pairs` that are known."""
        keys = self._keys(0, mine, way), self._keys(1, theirs, way)
        for i, j in refined(pairs or [], *keys):
            results = self._sides[0].result(mine[i]), self._sides[1].result(theirs[j])
            if self._contents is None or not self._contents.contradict(*results):
                self._found.add(mine[i], theirs[j], how)

    def _keys(self, number: int, calls: Sequence[int], way: Way) -> list[Key]:
        known = self._found.back if number else self._found.partner
        return [None if call in known else way(self._sides[number], call) for call in calls]

    def _in_region(self, mine: Sequence[int], theirs: Sequence[int]) -> None:
        """Pair the calls in one region."""
        if self._contents is None:
            self._of_one_program(mine, theirs)
            return
        position = {call: index for index, call in enumerate(theirs)}
        for way in (_meaning_of_sizes, _meaning_of_result, _akin_of_result):
            pairs = ((i, self._found.partner.get(call, -1)) for i, call in enumerate(mine))
            anchors = ascending((i, position[other]) for i, other in pairs if other in position)
            self._add(mine, theirs, way, "order", anchors)

    def _of_one_program(self, mine: Sequence[int], theirs: Sequence[int]) -> None:
        """Pair the calls of each function: as many in their order, otherwise by what they are given, then in order."""
        self._of_equal_values(mine, theirs)
        kinds = [self._by_kind(number, calls) for number, calls in enumerate((mine, theirs))]
        shared = kinds[0].keys() & kinds[1].keys()
        marks = [self._marks(number, each) for number, each in enumerate(kinds)]
        marked = {
            kind for kind in shared if _tells(*([own[call] for call in each[kind]] for own, each in zip(marks, kinds)))
        }
        for kind in shared:
            one, other = kinds[0][kind], kinds[1][kind]
            if len(one) == len(other) and kind not in marked:
                numbers = (sorted(calls, key=side.number_of_call) for side, calls in zip(self._sides, (one, other)))
                for i, j in zip(*numbers):
                    self._found.add(i, j, "name" if _is_named_alike(self._sides, i, j) else "order")
        position = {call: index for index, call in enumerate(theirs)}
        partner = self._found.partner
        anchors = ascending(
            (i, position[partner[call]]) for i, call in enumerate(mine) if partner.get(call) in position
        )
        keys: list[list[Key]] = []
        for number, calls in enumerate((mine, theirs)):
            bases = {call: kind for kind, each in kinds[number].items() for call in each}
            keys.append(
                [
                    (bases[call], marks[number][call] if bases[call] in marked else None) if call in bases else None
                    for call in calls
                ]
            )
        for i, j in refined(anchors, *keys):
            self._found.add(mine[i], theirs[j], "order")

    def _of_equal_values(self, mine: Sequence[int], theirs: Sequence[int]) -> None:
        """Pair calls of one function that take and return the same values, the first ones first."""
        target, golden = self._sides
        there = set(theirs)
        values = {call: _values(golden, call) for call in theirs}
        own = {call: _values(target, call) for call in mine}
        for call in mine:
            other = golden.index.get(target.calls[call].record.name, -1)
            if other in there and own[call] == values[other]:
                self._found.add(call, other, "name")
        groups: dict[Hashable, list[int]] = {}
        for call in reversed(theirs):
            if call not in self._found.back:
                groups.setdefault(values[call], []).append(call)
        for call in mine:
            others = groups.get(own[call])
            if others and call not in self._found.partner:
                self._found.add(call, others.pop(), "value")

    def _by_kind(self, number: int, calls: Sequence[int]) -> dict[Key, list[int]]:
        """The calls of each function that have no partner yet."""
        known = self._found.back if number else self._found.partner
        found: dict[Key, list[int]] = {}
        for call in calls:
            if call not in known:
                found.setdefault(_base(self._sides[number], call), []).append(call)
        return found

    def _marks(self, number: int, kinds: Mapping[Key, Sequence[int]]) -> dict[int, Key]:
        """What tells calls outside of modules from each other: the parameter that each acts on, or its shapes."""
        side = self._sides[number]
        found: dict[int, Key] = {}
        for calls in kinds.values():
            for call in calls:
                is_inside = is_module(side.tree.get(side.calls[call].record.name) or "")
                shapes = None if is_inside else tuple(item.shape for item in side.given(call))
                found[call] = shapes if is_inside else self._parameter(number, call) or shapes
        return found

    def _parameter(self, number: int, call: int) -> str | None:
        """The parameter that a call acts on, or the calls before it, as the golden side calls it."""
        known = self._acts_on[number]
        if call not in known:
            known[call] = None
            side = self._sides[number]
            makers = [item.made_by or "" for item in side.calls[call].items if item.state == INPUT and item.is_tensor]
            for maker in makers:
                maker = maker.partition("view:")[2] or maker
                kind, _, name = maker.partition(":")
                if kind in ("parameter", "gradient") and name:
                    known[call] = name if number else self._translate(name)
                    break
                before = side.index.get(maker.partition(f".{OUTPUT}.")[0])
                if before is not None and before < call:
                    known[call] = self._parameter(number, before)
                    if known[call]:
                        break
        return known[call]


def _tells(mine: Sequence[Key], theirs: Sequence[Key]) -> bool:
    """True if calls have several marks, and those of the side with fewer calls are as often on the other side."""
    fewer, more = sorted((Counter(mine), Counter(theirs)), key=lambda each: sum(each.values()))
    return len(more) > 1 and None not in fewer and not fewer - more


def _values(side: Side, call: int) -> Key:
    """The function that a call is of, and the values that it takes and returns."""
    items = side.calls[call].items
    values = ((item.shape, item.max, item.min, item.mean, item.norm, item.md5) for item in items)
    return _base(side, call), *values


def _is_named_alike(sides: tuple[Side, Side], one: int, other: int) -> bool:
    return sides[0].calls[one].record.name == sides[1].calls[other].record.name


def _base(side: Side, call: int) -> Key:
    parsed = side.parsed[call]
    return None if parsed is None else parsed.base


def _operation(side: Side, call: int) -> Operation | None:
    parsed = side.parsed[call]
    return None if parsed is None else operation(parsed.base, side.framework)


def _meaning(side: Side, call: int) -> Key:
    known = _operation(side, call)
    return None if known is None else known.name


def _akin(side: Side, call: int) -> Key:
    known = _operation(side, call)
    return None if known is None else known.akin


def _meaning_of_sizes(side: Side, call: int) -> Key:
    return _meaning(side, call), tuple(sorted(extent(item.shape).elements for item in side.given(call)))


def _meaning_of_result(side: Side, call: int) -> Key:
    return _meaning(side, call), len(side.given(call)), _size(side.result(call))


def _akin_of_result(side: Side, call: int) -> Key:
    return _akin(side, call), len(side.given(call)), _size(side.result(call))


def _size(item: Item | None) -> int | None:
    return None if item is None else extent(item.shape).elements
