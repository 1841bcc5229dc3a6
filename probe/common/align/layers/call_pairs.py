"""Records of two dumps that correspond, given how the paths of one read on the other side."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from probe.common.align import patience_diff
from probe.common.align.calls import KeyedCall
from probe.common.align.layers.module_paths import Path, ScopedRecords
from probe.common.align.operations import operation
from probe.common.dump.naming import BACKWARD, FORWARD, api_name, parse, record_name
from probe.common.dump.reading.records import INPUT, OUTPUT

Translate = Callable[[Path], Path]
RecordPairs = dict[str, str]
"""Records of the target, each with its match of the golden side."""


def by_position(target: ScopedRecords, golden: ScopedRecords, translate: Translate) -> RecordPairs:
    """The n-th record of a scope and the n-th of the same scope."""
    by_scope = golden.by_scope()
    found: RecordPairs = {}
    for (path, direction, module), names in target.by_scope().items():
        found.update(zip(names, by_scope.get((translate(path), direction, module), [])))
    return found


def by_meaning(target: ScopedRecords, golden: ScopedRecords, translate: Translate) -> RecordPairs:
    """Modules by their position, and inside each of them calls that compute the same, in the order of running."""
    modules = _modules(target), _modules(golden)
    found = by_position(*modules, translate)
    found.update(_by_number(found, *modules))
    mine, theirs = _calls_by_module(target, golden, translate)
    frameworks = target.framework, golden.framework
    for direction in (FORWARD, BACKWARD):
        taken = set(found.values())
        for key, names in mine.items():
            if key[1] == direction:
                left = [target.calls[name] for name in names if name not in found]
                others = [golden.calls[name] for name in theirs.get(key, ()) if name not in taken]
                found.update(_aligned(left, others, frameworks))
        if direction == FORWARD:
            found.update(_of_the_same_call(found, target, golden))
    return found


def _by_number(found: RecordPairs, target: ScopedRecords, golden: ScopedRecords) -> RecordPairs:
    """The backward calls of matched modules by the forward calls that they belong to.

    Of a module that was called several times, frameworks run the backward calls in orders of their own.
    """
    by_order: dict[str, RecordPairs] = {}
    by_forward: dict[str, RecordPairs] = {}
    for mine, theirs in found.items():
        parsed, other = parse(mine), parse(theirs)
        if parsed is None or other is None:
            continue
        if parsed.direction == BACKWARD:
            by_order.setdefault(parsed.base, {})[mine] = theirs
        elif parsed.direction == FORWARD:
            names = [record_name(each._replace(direction=BACKWARD)) for each in (parsed, other)]
            if names[0] in target.calls and names[1] in golden.calls:
                by_forward.setdefault(parsed.base, {})[names[0]] = names[1]
    more: RecordPairs = {}
    for base, pairs in by_order.items():
        others = by_forward.get(base, {})
        # Where recomputation makes forward calls again, numbers of backward calls say nothing.
        if pairs.keys() == others.keys() and set(pairs.values()) == set(others.values()):
            more.update(others)
    return more


def _modules(side: ScopedRecords) -> ScopedRecords:
    scopes = {name: scope for name, scope in side.scopes.items() if scope[2]}
    return ScopedRecords(side.framework, side.calls, scopes, side.classes)


def _calls_by_module(target: ScopedRecords, golden: ScopedRecords, translate: Translate) -> tuple[Any, Any]:
    """APIs by the innermost layer around them that has a counterpart, and direction.

    What one framework's model calls itself may be called by a small layer of the other's.
    """
    layers = {path: translate(path) for path in target.classes}
    layers = {path: other for path, other in layers.items() if other in golden.classes}
    there = set(layers.values())
    mine: dict[tuple[Path, str], list[str]] = {}
    for name, (path, direction, module) in target.scopes.items():
        if not module:
            around = _innermost(path, layers)
            mine.setdefault((layers[around] if around else translate(()), direction), []).append(name)
    theirs: dict[tuple[Path, str], list[str]] = {}
    for name, (path, direction, module) in golden.scopes.items():
        if not module:
            theirs.setdefault((_innermost(path, there), direction), []).append(name)
    return mine, theirs


def _innermost(path: Path, layers: Any) -> Path:
    # The last part of an API's scope is its own name.
    for length in range(len(path) - 1, 0, -1):
        if path[:length] in layers:
            return path[:length]
    return ()


def _of_the_same_call(found: RecordPairs, target: ScopedRecords, golden: ScopedRecords) -> RecordPairs:
    """The backward calls of matched forward calls."""
    more: RecordPairs = {}
    for mine, theirs in found.items():
        if mine.endswith(FORWARD):
            parsed, other = parse(mine), parse(theirs)
            if parsed is not None and other is not None:
                names = [api_name(each.base, each.number, BACKWARD) for each in (parsed, other)]
                if names[0] in target.calls and names[1] in golden.calls:
                    more[names[0]] = names[1]
    return more


def _aligned(target: list[KeyedCall], golden: list[KeyedCall], frameworks: tuple[str, str]) -> RecordPairs:
    """Calls inside one module that correspond; what is uncertain is left out.

    First what has the same name, number of tensors and shape of output; between these what has the same name; then
    what gives the same values if the shapes agree, such as ``view`` and ``reshape``.
    """
    if not target or not golden:
        return {}
    mine, theirs = (
        [_Tokens(call, framework) for call in calls] for calls, framework in zip((target, golden), frameworks)
    )
    pairs = patience_diff.align([token.exact for token in mine], [token.exact for token in theirs])
    pairs = patience_diff.refine(pairs, [token.name for token in mine], [token.name for token in theirs])
    pairs = patience_diff.refine(pairs, [token.akin for token in mine], [token.akin for token in theirs])
    for kind in ("exact", "akin"):
        used, taken = {i for i, _ in pairs}, {j for _, j in pairs}
        pairs += patience_diff.equally_many(
            [(i, getattr(token, kind)) for i, token in enumerate(mine) if i not in used],
            [(j, getattr(token, kind)) for j, token in enumerate(theirs) if j not in taken],
        )
    return {target[i].record.name: golden[j].record.name for i, j in pairs}


class _Tokens:
    """The tokens by which a call is compared."""

    __slots__ = ("akin", "exact", "name")

    def __init__(self, call: KeyedCall, framework: str) -> None:
        parsed = call.record.parsed
        base = "" if parsed is None else parsed.base
        meaning = operation(base, framework)
        tensors = sum(item.state == INPUT and item.is_tensor for item in call.items)
        shape = next((item.shape for item in call.items if item.state == OUTPUT), None)
        self.exact: Hashable = (meaning.name, tensors, shape)
        self.name: Hashable = None if meaning.primitive else meaning.name
        self.akin: Hashable = None if shape is None else (meaning.akin, tensors, shape)
