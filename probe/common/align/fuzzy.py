"""Matching for networks whose call numbers shift: records are matched by their kinds, in order."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from typing import Optional

from probe.common.align.call_order import match_in_order, pairs_in_order
from probe.common.align.calls import KeyedCall
from probe.common.align.row import Row
from probe.common.dump.naming import parse
from probe.common.dump.reading.sources import Tree

NAMES_DIFFER = "note: The names differ; accuracy of fuzzily matched data may be affected."


Trees = tuple[Optional[Tree], Optional[Tree]]
Marks = tuple[Mapping[str, Hashable], Mapping[str, Hashable]]


def kind(record: str) -> str:
    """The name of a record without the number of its call."""
    parsed = parse(record)
    return record if parsed is None else f"{parsed.base} {parsed.direction}"


def _module_paths(side: list[KeyedCall], tree: Tree | None) -> list[str]:
    """The path of the module around each call, or what else the tree has there."""
    around = (tree or {}).get
    found = []
    for call in side:
        parent = around(call.record.name) or ""
        parsed = parse(parent)
        # Of a module neither its class nor the number of its call.
        found.append(parent if parsed is None else parsed.base.rpartition(".")[0])
    return found


def _kinds_in_modules(
    target: list[KeyedCall], golden: list[KeyedCall], trees: Trees, marks: Marks
) -> tuple[list[Hashable], list[Hashable]]:
    """The kinds of calls, with the module around each where both sides have it, and their marks.

    A call in a module that both sides have is in none that only one of them has.
    """
    paths = _module_paths(target, trees[0]), _module_paths(golden, trees[1])
    shared = set(paths[0]) & set(paths[1])
    mine, theirs = (
        [
            (kind(call.key), path if path in shared else "", known.get(call.record.name))
            for call, path in zip(side, of_side)
        ]
        for side, of_side, known in zip((target, golden), paths, marks)
    )
    return list(mine), list(theirs)


def _kinds_around(
    target: list[KeyedCall], golden: list[KeyedCall], trees: Trees, marks: Marks
) -> tuple[list[Hashable], list[Hashable]]:
    """The same for calls that have no match yet: of modules without their class, the modules around both sides have.

    One side may have put a module around another, or in its place.
    """
    paths = _module_paths(target, trees[0]), _module_paths(golden, trees[1])
    shared = set(paths[0]) & set(paths[1])
    mine, theirs = (
        [
            (_without_class(call.key), _innermost(path, shared), known.get(call.record.name))
            for call, path in zip(side, of_side)
        ]
        for side, of_side, known in zip((target, golden), paths, marks)
    )
    return list(mine), list(theirs)


def _without_class(record: str) -> str:
    parsed = parse(record)
    if parsed is None or not parsed.is_module:
        return kind(record)
    return f"{parsed.base.rpartition('.')[0]} {parsed.direction}"


def _innermost(path: str, shared: Container[str]) -> str:
    while path and path not in shared:
        path = path.rpartition(".")[0]
    return path


def _between(
    pairs: Sequence[tuple[int, int]], target: Sequence[Hashable], golden: Sequence[Hashable]
) -> dict[int, int]:
    """`pairs`, which are ascending, and between them the indexes of equal keys that correspond in order."""
    found = dict(pairs)
    start = other_start = 0
    for i, j in [*pairs, (len(target), len(golden))]:
        if start < i and other_start < j:
            more = pairs_in_order(target[start:i], golden[other_start:j], leave_long=False)
            found.update((start + one, other_start + other) for one, other in more)
        start, other_start = i + 1, j + 1
    return found


def by_kind(
    target: list[KeyedCall],
    golden: list[KeyedCall],
    trees: Trees = (None, None),
    marks: Marks = ({}, {}),
    next_of_kind: bool = False,
) -> Iterator[Row]:
    """Every item of the target in its order, then every item that only the golden side has in its order.

    The rows say what belongs together, with a note, and nothing else.

    Args:
        target, golden: the calls of both sides; their keys say of which kind they are.
        trees: their call trees, where calls of modules that both sides have are matched inside of these alone.
        marks: what else has to be the same in calls that are matched, by their records.
        next_of_kind: match a call with the next one of its kind, wherever that is, and not as many as can be.
    """
    kinds = _kinds_in_modules(target, golden, trees, marks)
    if next_of_kind:
        matched = dict(match_in_order(*kinds))
    else:
        matched = _between(pairs_in_order(*kinds, leave_long=False), *_kinds_around(target, golden, trees, marks))
    used: set[int] = set()
    for index, call in enumerate(target):
        name = call.record.name
        other = golden[matched[index]] if index in matched else None
        if other is None:
            for item in call.items:
                yield Row(name, item, None)
            continue
        golden_name = other.record.name
        notes = (NAMES_DIFFER,) if name != golden_name else ()
        by_suffix = {item.name[len(golden_name) :]: item for item in other.items}
        for item in call.items:
            match = by_suffix.get(item.name[len(name) :])
            if match is None:
                yield Row(name, item, None)
            else:
                used.add(id(match))
                yield Row(name, item, match, golden_name, (), notes)
    for call in golden:
        for item in call.items:
            if id(item) not in used:
                yield Row(call.record.name, None, item, call.record.name)
