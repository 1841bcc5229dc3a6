"""The calls of two runs that correspond, where their names do not say it, given the layers that do.

Calls of a layer correspond to those of its counterpart. A function is looked for in the counterpart of the module call
around it. There calls with the same arguments correspond if there are as many, then those that return the same; of one
program those up to the first that one run alone makes; and those of one kind, in their order. Backward calls follow
their forward calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping

from probe.common.align.calls import OF_PARAMETERS, Found, Side, path_of
from probe.common.align.contents import Contents, Key, ascending, refined
from probe.common.align.operations import layer_kind, operation
from probe.common.dump.naming import BACKWARD, FORWARD, PARAMETERS_GRAD, is_module, parse
from probe.common.dump.reading.records import INPUT, OUTPUT, Item
from probe.common.numerics.error_bounds import extent

Group = tuple[list[int], list[int]]
"""Calls of both sides, by their numbers."""
Way = Callable[[int, int], Key]
"""A property of a call, given the number of its side and its own."""


class CallSearch:
    """Looks for the calls that correspond.

    Args:
        sides: the two runs.
        found: the pairs so far, to which these are added.
        paths: the golden path of each path of the target, of layers that correspond.
        contents: the contents of what calls return, of two programs; ``None`` of one program.
        in_any_number: true if calls of a layer correspond in their order and not by their numbers.
    """

    def __init__(
        self,
        sides: tuple[Side, Side],
        found: Found,
        paths: Mapping[str, str],
        contents: Contents | None,
        in_any_number: bool,
    ) -> None:
        self._sides, self._found, self._in_any_number = sides, found, in_any_number
        self._paths: tuple[Mapping[str, str], Mapping[str, str]] = paths, {path: path for path in paths.values()}
        self._are_two_programs = contents is not None
        self._contents = contents
        self._acted_on = _acted_on(sides[0]), _acted_on(sides[1])

    def pair_forward(self) -> None:
        """Pair the forward calls."""
        self._calls_of_layers(FORWARD)
        regions: dict[Hashable, Group] = {}
        for number, side in enumerate(self._sides):
            for call, parsed in side.of_direction(FORWARD):
                if not self._found.has(number, call) and (self._are_two_programs or not parsed.is_module):
                    region = "layers" if parsed.is_module else self._region(number, call)
                    regions.setdefault(region, ([], []))[number].append(call)
        for group in regions.values():
            self._pair_in_order(group, self._arguments)
        self._pair_equal_results(regions)
        for group in regions.values():
            if not self._are_two_programs:
                self._pair_beginning(group)
                self._pair_in_order(group, self._base)
            self._in_order(group, self._kind_and_sizes, as_many=True)

    def pair_backward(self) -> None:
        """Pair the backward calls of forward calls that are paired, gradients, and calls whose forward is not recorded.

        In one program a forward may have been computed again for the backward, so that its number is another one.
        """
        left: dict[Hashable, Group] = {}
        partners: tuple[Mapping[int, int], Mapping[int, int]] = self._found.partner.copy(), self._found.back.copy()
        for number, side in enumerate(self._sides):
            for call, parsed in side.of_direction(BACKWARD):
                forward = side.other_way(call, FORWARD)
                partner = None if forward is None else partners[number].get(forward)
                other = None if partner is None else self._sides[1 - number].other_way(partner, BACKWARD)
                if other is not None:
                    self._found.add(*((other, call) if number else (call, other)))
                elif parsed.is_module:
                    path = self._paths[number].get(path_of(parsed.base))
                    left.setdefault(("layer", path or (number, call)), ([], []))[number].append(call)
                elif forward is None or partner is not None or not self._are_two_programs:
                    left.setdefault(self._kind(number, call), ([], []))[number].append(call)
        for mine, theirs in left.values():
            for call, other in zip(mine, theirs) if len(mine) == len(theirs) else ():
                self._found.add(call, other)
        self._calls_of_layers(PARAMETERS_GRAD)

    def _calls_of_layers(self, direction: str) -> None:
        target, golden = self._sides
        for path, other in self._paths[0].items():
            mine, theirs = target.modules[path].get(direction, []), golden.modules[other].get(direction, [])
            if self._in_any_number:
                pairs: Iterable[tuple[int, int | None]] = zip(mine, theirs)
            else:
                numbers = {golden.number_of_call(call): call for call in theirs}
                pairs = ((call, numbers.get(target.number_of_call(call))) for call in mine)
            for call, partner in pairs:
                if partner is not None:
                    self._found.add(call, partner)

    # --- functions

    def _region(self, number: int, call: int) -> Hashable:
        """The counterpart of the innermost call around a call that has one."""
        side = self._sides[number]
        for around in side.around(side.calls[call].record.name):
            parsed = parse(around)
            if parsed is None or not is_module(around):
                return "scope", around
            path = self._paths[number].get(path_of(parsed.base))
            if path is not None and parsed.direction == BACKWARD:
                # A forward that ran inside of a backward computes again.
                return "backward", path
            index = side.index.get(around, -1)
            if path is not None and self._found.has(number, index):
                return index if number else self._found.partner[index]
        return None

    def _pair_beginning(self, group: Group) -> None:
        """Pair the calls of one program as long as both runs call the same."""
        for call, other in zip(*group):
            kinds = [(self._base(n, each), self._parameter(n, each)) for n, each in enumerate((call, other))]
            if kinds[0] != kinds[1] or self._found.partner.get(call, other) != other:
                break
            self._found.add(call, other)

    def _pair_equal_results(self, regions: Mapping[Hashable, Group]) -> None:
        """Pair calls that compute the same and return the same, in their region if they can, else wherever."""
        left = [
            [(region, call) for region, group in regions.items() for call in group[n] if not self._found.has(n, call)]
            for n in (0, 1)
        ]
        if not all(left):
            return
        contents = self._contents or Contents(self._results(0, left[0]), self._results(1, left[1]))
        for is_local in (True, False):
            found: dict[Hashable, Group] = {}
            for number, calls in enumerate(left):
                for region, call in calls:
                    label = contents.label(self._sides[number].result(call))
                    if label is not None:
                        found.setdefault((label, region if is_local else None), ([], []))[number].append(call)
            for group in found.values():
                # A reshape returns the same numbers again and again: those of one shape correspond.
                self._in_order(group, self._kind_and_shape, as_many=self._are_two_programs)
                self._in_order(group, self._kind, as_many=self._are_two_programs)

    def _results(self, number: int, calls: Iterable[tuple[Hashable, int]]) -> list[Item]:
        found = (self._sides[number].result(call) for _, call in calls)
        return [item for item in found if item is not None]

    def _pair_in_order(self, group: Group, way: Way) -> None:
        """Pair calls that are equal in their order, if there are as many on both sides, whatever is between them."""
        found: dict[Key, Group] = {}
        for number, calls in enumerate(group):
            for call in calls:
                key = None if self._found.has(number, call) else way(number, call)
                if key is not None:
                    found.setdefault(key, ([], []))[number].append(call)
        for mine, theirs in found.values():
            for call, other in zip(mine, theirs) if len(mine) == len(theirs) else ():
                self._found.add(call, other)

    def _in_order(self, group: Group, way: Way, as_many: bool) -> None:
        """Pair calls that are equal in their order, between those that are paired and do not cross.

        Of more than the other side has there, nothing says which one is meant: `as_many` leaves those alone.
        """
        position = {call: index for index, call in enumerate(group[1])}
        known = ((i, position.get(self._found.partner.get(call, -1), -1)) for i, call in enumerate(group[0]))
        keys = [
            [None if self._found.has(number, call) else way(number, call) for call in calls]
            for number, calls in enumerate(group)
        ]
        anchors = ascending((i, j) for i, j in known if j >= 0)
        for i, j in refined(anchors, keys[0], keys[1], as_many, ends_early=not self._are_two_programs):
            call, other = group[0][i], group[1][j]
            results = self._sides[0].result(call), self._sides[1].result(other)
            if self._contents is None or not self._contents.contradict(*results):
                self._found.add(call, other)

    # --- properties of a call

    def _base(self, number: int, call: int) -> Key:
        parsed = self._sides[number].parsed[call]
        return None if parsed is None else parsed.base

    def _kind(self, number: int, call: int) -> Key:
        """The values that a function computes, or the kind of a layer."""
        side = self._sides[number]
        parsed = side.parsed[call]
        if parsed is None:
            return None
        if parsed.is_module:
            class_name = parsed.base.rpartition(".")[2]
            return "layer", layer_kind(class_name) or class_name
        return operation(parsed.base, side.framework).akin

    def _parameter(self, number: int, call: int) -> str | None:
        """The golden name of the parameter that a call of an optimizer acts on."""
        parameter = self._acted_on[number].get(call)
        if parameter is None or number:
            return parameter
        path, dot, name = parameter.rpartition(".")
        return f"{self._paths[0].get(path, path)}{dot}{name}"

    def _arguments(self, number: int, call: int) -> Key:
        """The function and the parameter that it acts on; of one program that acts on none the arguments."""
        parameter = self._parameter(number, call)
        if parameter is not None or self._are_two_programs:
            return None if parameter is None else (self._base(number, call), parameter)
        given = (item for item in self._sides[number].calls[call].items if item.state == INPUT)
        return self._base(number, call), *(item.shape if item.is_tensor else repr(item.value) for item in given)

    def _kind_and_shape(self, number: int, call: int) -> Key:
        """The kind of function, and the shape of what it returns."""
        result = self._sides[number].result(call)
        return None if result is None else (self._kind(number, call), result.shape)

    def _kind_and_sizes(self, number: int, call: int) -> Key:
        """The kind of function, of one program its name, and the sizes of what it takes."""
        given = self._sides[number].given(call)
        kind = self._kind(number, call) if self._are_two_programs else self._base(number, call)
        return kind, *sorted(extent(item.shape).elements for item in given)


def _acted_on(side: Side) -> dict[int, str]:
    """The parameter that each call outside of modules acts on: it takes it, its gradient, or what was made of these."""
    of_records: dict[str, str] = {}
    found: dict[int, str] = {}
    for call, _ in side.of_direction(FORWARD):
        name = side.calls[call].record.name
        if is_module(name) or is_module(side.tree.get(name) or ""):
            continue
        for item in side.given(call):
            maker = (item.made_by or "").rpartition("view:")[2]
            own = maker.partition(":")[2] if maker.startswith(OF_PARAMETERS) else ""
            parameter = own or of_records.get(maker.partition(f".{OUTPUT}.")[0])
            if parameter:
                of_records[name] = found[call] = parameter
                break
    return found
