"""The calls of functions of two runs that correspond, given the calls of modules that do.

A function is looked for in the counterpart of the module call around it. There calls that take and return the same
belong together, then those of one kind, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Optional

from probe.common.align.call_order import Pairs, ascending, refined
from probe.common.align.exchanged import are_far, nearest_calls
from probe.common.align.operations import Operation, operation
from probe.common.align.side import Side, path_of
from probe.common.dump.naming import BACKWARD, FORWARD, is_module, parse
from probe.common.dump.reading.records import OUTPUT
from probe.common.numerics.error_bounds import extent

if TYPE_CHECKING:
    from probe.common.align.contents import Contents

OF_PARAMETERS = ("parameter:", "gradient:")
"""The beginnings of makers that are a parameter or its gradient."""

Key = Optional[Hashable]
Way = Callable[[int, int], Key]
"""A property of a call, given the number of its side and its own."""


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
        self._regions: tuple[dict[str | None, Hashable], dict[str | None, Hashable]] = {}, {}

    def pair_forward(self) -> None:
        """Pair the forward calls."""
        regions: dict[Hashable, tuple[list[int], list[int]]] = {}
        for number, side in enumerate(self._sides):
            for call, _ in side.functions(FORWARD):
                if not self._is_paired(number, call):
                    region = self._region(number, side.tree.get(side.calls[call].record.name))
                    regions.setdefault(region, ([], []))[number].append(call)
        if self._contents is not None:
            self._of_equal_results(
                [region[0] for region in regions.values()], [region[1] for region in regions.values()]
            )
        for mine, theirs in regions.values():
            if mine and theirs:
                self._in_region(mine, theirs)
        self._moved()

    def _moved(self) -> None:
        """Pair calls of one name that take and return the same in modules that do not correspond."""
        target, golden = self._sides
        for call, _ in target.functions(FORWARD):
            other = golden.index.get(target.calls[call].record.name) if call not in self._found.partner else None
            if other is not None and not are_far(target.calls[call], golden.calls[other]):
                self._found.add(call, other, "name")

    def pair_backward(self) -> None:
        """Pair the backward calls of forward calls that are paired, and those whose forward is not recorded."""
        backward: tuple[dict[int, int], dict[int, int]] = {}, {}
        alone: dict[Hashable, tuple[list[int], list[int]]] = {}
        for number, side in enumerate(self._sides):
            again: list[tuple[int, int]] = []
            paired = self._found.back if number else self._found.partner
            for call, parsed in side.functions(BACKWARD):
                forward = side.other_way(call, FORWARD)
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
        path, dot, name = parameter.rpartition(".")
        return f"{self._paths[0].get(path, path)}{dot}{name}"

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
                for call, region in where[number].items():
                    label = None if self._contents is None else self._contents.label(side.result(call))
                    if label is not None and not self._is_paired(number, call):
                        groups.setdefault((label, region if is_local else None), ([], []))[number].append(call)
            for mine, theirs in groups.values():
                for way in (self._meaning, self._akin):
                    self._add(mine, theirs, way, "value")

    def _add(self, mine: Sequence[int], theirs: Sequence[int], way: Way, how: str, pairs: Pairs | None = None) -> None:
        """Pair calls that are equal in their order, between `pairs` that are known."""
        keys = [
            [None if self._is_paired(number, call) else way(number, call) for call in calls]
            for number, calls in enumerate((mine, theirs))
        ]
        for i, j in refined(pairs or [], keys[0], keys[1], as_many=self._contents is not None):
            results = self._sides[0].result(mine[i]), self._sides[1].result(theirs[j])
            if self._contents is None or not self._contents.contradict(*results):
                self._found.add(mine[i], theirs[j], how)

    def _in_region(self, mine: Sequence[int], theirs: Sequence[int]) -> None:
        """Pair the calls in one region."""
        if self._contents is None:
            self._of_one_program(mine, theirs)
        else:
            for way in (self._meaning_of_sizes, self._akin_of_result):
                self._add(mine, theirs, way, "order", self._anchors(mine, theirs))

    def _operation(self, number: int, call: int) -> Operation | None:
        side = self._sides[number]
        parsed = side.parsed[call]
        return None if parsed is None else operation(parsed.base, side.framework)

    def _meaning(self, number: int, call: int) -> Key:
        known = self._operation(number, call)
        return None if known is None else known.name

    def _akin(self, number: int, call: int) -> Key:
        known = self._operation(number, call)
        return None if known is None else known.akin

    def _meaning_of_sizes(self, number: int, call: int) -> Key:
        given = self._sides[number].given(call)
        return self._meaning(number, call), tuple(sorted(extent(item.shape).elements for item in given))

    def _akin_of_result(self, number: int, call: int) -> Key:
        side = self._sides[number]
        result = side.result(call)
        size = None if result is None else extent(result.shape).elements
        return self._akin(number, call), len(side.given(call)), size

    def _of_one_program(self, mine: Sequence[int], theirs: Sequence[int]) -> None:
        """Pair calls by their values; as many of one function and mark by their numbers; then in their order."""
        self._of_equal_values(mine, theirs)
        marks = [self._marks(number, calls) for number, calls in enumerate((mine, theirs))]
        for has_mark in (True, False):
            groups: dict[Key, tuple[list[int], list[int]]] = {}
            for number, calls in enumerate((mine, theirs)):
                for call in calls:
                    if not self._is_paired(number, call):
                        kind, mark = marks[number][call]
                        groups.setdefault((kind, mark if has_mark else None), ([], []))[number].append(call)
            for one, other in groups.values():
                if one and other and (not has_mark or len(one) == len(other)):
                    self._in_one_order(one, other)
        self._add(mine, theirs, lambda number, call: marks[number][call], "order", self._anchors(mine, theirs))

    def _anchors(self, mine: Sequence[int], theirs: Sequence[int]) -> Pairs:
        """The positions of calls that are a pair already, as far as these do not cross."""
        position = {call: index for index, call in enumerate(theirs)}
        pairs = ((i, position.get(self._found.partner.get(call, -1), -1)) for i, call in enumerate(mine))
        return ascending((i, j) for i, j in pairs if j >= 0)

    def _is_paired(self, number: int, call: int) -> bool:
        return call in (self._found.back if number else self._found.partner)

    def _in_one_order(self, mine: Sequence[int], theirs: Sequence[int]) -> None:
        """Pair calls of one function: by their values where these contradict the numbers, or one side has more."""
        one, other = (sorted(calls, key=side.number_of_call) for side, calls in zip(self._sides, (mine, theirs)))
        calls, others = ([side.calls[call] for call in each] for side, each in zip(self._sides, (one, other)))
        if len(one) != len(other) or sum(map(are_far, calls, others)) > 1:
            for i, j in nearest_calls(calls, others):
                self._found.add(one[i], other[j], "value")
        if len(one) == len(other):
            rest = (call for call in other if call not in self._found.back)
            for i, j in zip((call for call in one if call not in self._found.partner), rest):
                self._found.add(i, j, "name" if _is_named_alike(self._sides, i, j) else "order")

    def _of_equal_values(self, mine: Sequence[int], theirs: Sequence[int]) -> None:
        """Pair calls that take and return the same: those of one name, then the first ones first."""
        target, golden = self._sides
        keys = [
            {call: _values(self._sides[n], call) for call in calls if not self._is_paired(n, call)}
            for n, calls in enumerate((mine, theirs))
        ]
        for call, key in keys[0].items():
            other = golden.index.get(target.calls[call].record.name, -1)
            if other in keys[1] and keys[1][other] == key:
                self._found.add(call, other, "name")
        left: dict[Key, list[int]] = {}
        for call in reversed([call for call in keys[1] if call not in self._found.back]):
            left.setdefault(keys[1][call], []).append(call)
        for call, key in keys[0].items():
            if call not in self._found.partner and left.get(key):
                self._found.add(call, left[key].pop(), "value")

    def _marks(self, number: int, calls: Sequence[int]) -> dict[int, tuple[Key, Key]]:
        """The function of each call, and what tells it from others: the parameter that it acts on, or the shapes given.

        A call acts on the parameter that it gets, or its gradient, or what a call before made of these.
        """
        side = self._sides[number]
        acts_on: dict[str, str] = {}
        found: dict[int, tuple[Key, Key]] = {}
        for call in calls:
            name, given = side.calls[call].record.name, side.given(call)
            found[call] = _base(side, call), tuple(item.shape for item in given)
            if is_module(side.tree.get(name) or ""):
                continue
            makers = [(item.made_by or "").rpartition("view:")[2].partition(":") for item in given]
            own = [of for kind, mark, of in makers if kind + mark in OF_PARAMETERS]
            of_makers = (acts_on.get(kind.partition(f".{OUTPUT}.")[0], "") for kind, _, _ in makers)
            parameter = next(filter(None, (*own, *of_makers)), "")
            if parameter:
                acts_on[name] = parameter
                named = parameter if number else self._translate(parameter)
                found[call] = _base(side, call), (named, *(kind if of else "" for kind, _, of in makers))
        return found


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
