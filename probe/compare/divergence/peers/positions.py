"""The position of a call in its layer, by which calls of several layers are peers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from probe.common.dump.naming import FORWARD, ParsedName, parse, record_name
from probe.common.dump.reading.sources import Tree
from probe.compare.divergence.aligned_calls import AlignedCall

_NUMBER = re.compile(r"\.\d+(?=\.|$)")


class Positions:
    """The position of a call in its layer, which is the same in every layer.

    Args:
        calls: all calls of both runs, in order.
        tree: the call tree of the target.
    """

    def __init__(self, calls: Sequence[AlignedCall], tree: Tree) -> None:
        self._tree = tree
        self._ordinals: dict[str, int] = {}
        counts: dict[tuple[str | None, str], int] = {}
        for call in calls:
            parsed = parse(call.record or "")
            if call.record is None or parsed is None or parsed.is_module or parsed.direction != FORWARD:
                continue
            key = self._tree.get(call.record), parsed.base
            counts[key] = counts.get(key, -1) + 1
            self._ordinals[call.record] = counts[key]

    def of(self, call: AlignedCall, parsed: ParsedName) -> str:
        """The position of a call, its direction included."""
        if parsed.is_module:
            # Without its class: another one in one layer is just what leaves its peers.
            return f"{without_numbers(parsed.base.rpartition('.')[0])} {parsed.direction}"
        forward = _forward_of(parsed)
        around = parse(self._tree.get(forward) or "")
        module = without_numbers(around.base) if around is not None else ""
        return f"{module} {parsed.base}.{self._ordinals.get(forward, 0)} {parsed.direction}"


def _forward_of(parsed: ParsedName) -> str:
    """The record of the forward of a call."""
    return record_name(ParsedName(parsed.base, parsed.number, FORWARD, parsed.is_module))


@cache
def without_numbers(path: str) -> str:
    """The path of a module, where the numbers of layers are left out."""
    return _NUMBER.sub(".#", path)
