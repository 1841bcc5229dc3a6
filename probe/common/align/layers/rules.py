"""Two networks matched by where in the module tree a call stands, given only what layers are called differently.

Every record has a scope: of a module its own path, of an API the path of the module it ran inside. A target's scope is
translated part by part from the root, by the rules for the class of the layer reached so far, and what stands there on
the golden side is the counterpart.
"""

from __future__ import annotations

from typing import Any

from probe.common.align.calls import KeyedCall
from probe.common.align.layers import by_value, call_pairs, item_pairs
from probe.common.align.layers.module_paths import Path, ScopedRecords
from probe.common.align.mapping_files import load_mapping
from probe.common.align.operations import Operation, is_container, layer_kind, operation
from probe.common.dump.naming import is_backward, is_forward
from probe.common.dump.reading.records import INPUT, OUTPUT
from probe.common.errors import MsprobeException
from probe.common.show import show

TOP = "TopLayer"
UNMATCHED = "N/A"

Rules = dict[str, dict[Path, Path]]
"""Paths below a layer and their names on the golden side, by the class of the layer."""


def load_rules(path: str) -> Rules:
    """Read a file of layer names.

    Raises:
        FileCheckException: it cannot be read.
        MsprobeException: it holds something else.
    """
    rules: Rules = {}
    for layer, names in load_mapping(path, "classes of layers, each with lines of the form `name: name`").items():
        if not isinstance(names, dict):
            raise MsprobeException(f"{path}: {show(layer)}: expected lines of the form `name: name`.")
        # Old files say Cell for the top.
        of_layer = rules.setdefault(TOP if layer == "Cell" else str(layer), {})
        for mine, theirs in names.items():
            of_layer[_parts(mine)] = _parts(theirs)
    return rules


def _parts(name: Any) -> Path:
    # Nothing stands for a level that the other side does not have.
    text = "" if name is None else str(name)
    return tuple(part for part in text.partition("(")[0].strip().split(".") if part)


def translate(path: Path, classes: dict[Path, str], rules: Rules) -> Path:
    """`path` as the golden side calls it; of several rules that fit the longest is taken."""
    found: list[str] = []
    start = 0
    while start < len(path):
        names = rules.get(classes.get(path[:start], "") if start else TOP, {})
        fits = (path[start:end] for end in range(len(path), start, -1)) if names else ()
        best = next((part for part in fits if part in names), ())
        found += names[best] if best else path[start : start + 1]
        start += len(best) or 1
    return tuple(found)


def map_items(
    target: list[KeyedCall], golden: list[KeyedCall], sides: tuple[ScopedRecords, ScopedRecords], rules: Rules, *,
    by_position: bool = False, values_decide: bool = False,
) -> dict[str, str]:  # fmt: skip
    """Every item of the target and its counterpart's name, or ``N/A``.

    Args:
        target, golden: the records.
        sides: where they stand.
        rules: what is called differently.
        by_position: match calls by their position in the tree and their order alone, and items by their suffix.
        values_decide: match by values where they say otherwise than the position, as `by_value` does.
    """
    mine, theirs = sides
    pair = call_pairs.by_position if by_position else call_pairs.by_meaning
    counterpart = pair(mine, theirs, lambda path: translate(path, mine.classes, rules))
    if values_decide:
        counterpart = by_value.corrected(counterpart, mine, theirs)
    # Saved values are not in a tree.
    counterpart.update({call.record.name: call.record.name for call in target if call.record.name not in mine.calls})
    by_name = {call.record.name: call for call in golden}
    by_suffix = by_position or mine.framework == theirs.framework
    around = _around(mine), _around(theirs)
    found: dict[str, str] = {}
    for call in target:
        other = by_name.get(counterpart.get(call.record.name, UNMATCHED))
        found.update(dict.fromkeys((item.name for item in call.items), UNMATCHED))
        if other is not None:
            if by_suffix:
                pairs = item_pairs.by_value(call, other) if values_decide else _same_suffix(call, other)
            else:
                pairs = _matched_items(call, other, mine, theirs)
            if not by_suffix and _returns_more(call, mine, around[0]) != _returns_more(other, theirs, around[1]):
                pairs = {one: another for one, another in pairs.items() if not _is_of_result(call.record.name, one)}
            found.update(pairs)
    return found


def _around(side: ScopedRecords) -> set[Path]:
    """The paths of layers with others inside."""
    return {path[:length] for path in side.classes for length in range(1, len(path))}


def _returns_more(call: KeyedCall, side: ScopedRecords, around: set[Path]) -> bool:
    """True if a layer of the framework holds another one, which computes on what it alone would return.

    ``nn.Dense`` takes its activation along.
    """
    path, _, module = side.scopes.get(call.record.name, ((), "", False))
    name = side.classes.get(path, "")
    return module and path in around and layer_kind(name) is not None and not is_container(name)


def _is_of_result(record: str, item: str) -> bool:
    """True if an item is what a layer returns, or the gradient of that."""
    kind = item[len(record) + 1 :].partition(".")[0]
    return kind == OUTPUT if is_forward(record) else is_backward(record) and kind == INPUT


def _same_suffix(call: KeyedCall, other: KeyedCall) -> dict[str, str]:
    start, name = len(call.record.name), other.record.name
    there = {item.name for item in other.items}
    names = {item.name: name + item.name[start:] for item in call.items}
    return {mine: theirs for mine, theirs in names.items() if theirs in there}


def _matched_items(call: KeyedCall, other: KeyedCall, mine: ScopedRecords, theirs: ScopedRecords) -> dict[str, str]:
    meanings = _meaning(call, mine), _meaning(other, theirs)
    if meanings[0] is None or meanings[1] is None:
        return item_pairs.match_items(call, other, None)
    return item_pairs.match_items(call, other, (meanings[0], meanings[1]))


def _meaning(call: KeyedCall, side: ScopedRecords) -> Operation | None:
    parsed = call.record.parsed
    return None if parsed is None or parsed.is_module else operation(parsed.base, side.framework)
