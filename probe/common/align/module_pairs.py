"""The calls of modules of two runs that correspond, given the layers that do."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from probe.common.align.call_order import pairs_in_order
from probe.common.align.functions import Found
from probe.common.align.operations import layer_kind
from probe.common.align.side import Side
from probe.common.dump.naming import BACKWARD, FORWARD, PARAMETERS_GRAD

if TYPE_CHECKING:
    from probe.common.align.contents import Contents


class ModulePairs:
    """Pairs the calls of layers that correspond.

    Args:
        sides: the two runs.
        found: the pairs of calls, to which these are added.
        paths: the golden path of each path of the target, and how the two were paired.
        in_any_number: true if calls correspond in their order where their numbers do not.
    """

    def __init__(
        self,
        sides: tuple[Side, Side],
        found: Found,
        paths: Mapping[str, tuple[str, str]],
        in_any_number: bool,
    ) -> None:
        self._target, self._golden = sides
        self._found, self._paths, self._in_any_number = found, paths, in_any_number

    def pair_forward(self, contents: Contents | None) -> None:
        """Pair the forward calls: by what they return in two programs, then by their numbers."""
        for path, (other, how) in self._paths.items():
            mine, theirs = self._calls(path, other, FORWARD)
            if contents is not None and len(mine) != len(theirs):
                labels = [
                    [contents.label(side.result(call)) for call in calls]
                    for side, calls in ((self._target, mine), (self._golden, theirs))
                ]
                for i, j in pairs_in_order(*labels):
                    self._found.add(mine[i], theirs[j], "value")
            self._by_number(mine, theirs, how)
        if contents is not None:
            self._of_equal_results(contents)

    def _of_equal_results(self, contents: Contents) -> None:
        """Pair calls of layers of one kind that return the same: one side may call a layer where the other has two."""
        groups: dict[Hashable, tuple[list[int], list[int]]] = {}
        for number, side in enumerate((self._target, self._golden)):
            known = self._found.back if number else self._found.partner
            for call, parsed in enumerate(side.parsed):
                if parsed is None or not parsed.is_module or parsed.direction != FORWARD or call in known:
                    continue
                class_name = parsed.base.rpartition(".")[2]
                label = contents.label(side.result(call))
                if label is not None:
                    groups.setdefault((label, layer_kind(class_name) or class_name), ([], []))[number].append(call)
        for mine, theirs in groups.values():
            for call, other in zip(mine, theirs):
                self._found.add(call, other, "value")

    def pair_backward(self) -> None:
        """Pair the backward calls of forward calls that are paired, and the gradients of parameters.

        Numbers of backward calls say nothing where a forward was computed again: they are then in one order.
        """
        for path, (other, how) in self._paths.items():
            mine, theirs = self._calls(path, other, BACKWARD)
            partners = {}
            for call in mine:
                forward = self._target.other_way(call, FORWARD)
                partner = self._found.partner.get(-1 if forward is None else forward)
                backward = None if partner is None else self._golden.other_way(partner, BACKWARD)
                if backward is not None:
                    partners[call] = backward
            if len(mine) == len(theirs) and len(partners) != len(mine):
                partners = dict(zip(mine, theirs))
            for call, backward in partners.items():
                self._found.add(call, backward, how)
            self._by_number(*self._calls(path, other, PARAMETERS_GRAD), how)

    def _calls(self, path: str, other: str, direction: str) -> tuple[list[int], list[int]]:
        return self._target.modules[path].get(direction, []), self._golden.modules[other].get(direction, [])

    def _by_number(self, mine: Sequence[int], theirs: Sequence[int], how: str) -> None:
        numbers = {self._golden.number_of_call(call): call for call in theirs}
        for call in mine:
            other = numbers.get(self._target.number_of_call(call))
            if other is not None:
                self._found.add(call, other, how)
        if self._in_any_number:
            left = [call for call in mine if call not in self._found.partner]
            for call, other in zip(left, (each for each in theirs if each not in self._found.back)):
                self._found.add(call, other, how)
