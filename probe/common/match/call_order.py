"""Calls of two runs paired by their order, for where their numbers shift because one run makes a call more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Optional

from probe.common.dump.naming import BACKWARD, module_name, parse
from probe.common.dump.reading.sources import Tree

_LONGEST = 4000
"""Looking for the best alignment takes time with the square of this; what is longer is paired by name, and there what
the golden side has alone is left out, since it has no place."""

Aligned = tuple[Optional[str], Optional[str]]


def align(target: Sequence[str], golden: Sequence[str], trees: tuple[Tree | None, Tree | None]) -> list[Aligned]:
    """Both sequences of records in one, ``None`` where a side has no counterpart.

    Two calls correspond when they are of the same function or module and in the same call of a module.
    """
    keys = []
    for side, tree in zip((target, golden), trees):
        backwards = _backwards(side)
        keys.append([_key(name, tree, backwards) for name in side])
    start = 0
    shortest = min(map(len, keys))
    while start < shortest and keys[0][start] == keys[1][start]:
        start += 1
    end = 0
    while end < shortest - start and keys[0][-1 - end] == keys[1][-1 - end]:
        end += 1
    found: list[Aligned] = list(zip(target[:start], golden[:start]))
    middle = [side[start : len(side) - end] for side in keys]
    names = target[start : len(target) - end], golden[start : len(golden) - end]
    found += _by_order(middle, names) if max(map(len, middle)) <= _LONGEST else _by_name(names)
    found += zip(target[len(target) - end :], golden[len(golden) - end :])
    return found


def _key(name: str, tree: Tree | None, backwards: Mapping[str, str]) -> tuple[str, str]:
    """What depends neither on how many calls there were before nor on what the class of a module is called."""
    parent = (tree or {}).get(name) or ""
    return backwards.get(parent) or _kind(parent), backwards.get(name) or _kind(name)


def _backwards(side: Sequence[str]) -> dict[str, str]:
    """The backward records of modules with numbers in the order in which they appear, which recomputation changes."""
    seen: Counter[str] = Counter()
    found = {}
    for name in side:
        parsed = parse(name) if BACKWARD in name else None
        if parsed is not None and parsed.is_module and parsed.direction == BACKWARD:
            found[name] = _kind(module_name(parsed.base, seen[parsed.base], BACKWARD))
            seen[parsed.base] += 1
    return found


def _kind(name: str) -> str:
    parsed = parse(name)
    if parsed is None:
        return name
    if parsed.is_module:
        # Its number tells one pass from the next.
        return f"{parsed.base.rpartition('.')[0]}.{parsed.direction}.{parsed.number}"
    return f"{parsed.base}.{parsed.direction}"


def _by_order(keys: list[list[tuple[str, str]]], names: tuple[Sequence[str], Sequence[str]]) -> Iterator[Aligned]:
    for kind, i, end_i, j, end_j in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        if kind == "equal":
            yield from zip(names[0][i:end_i], names[1][j:end_j])
        else:
            yield from ((None, name) for name in names[1][j:end_j])
            yield from ((name, None) for name in names[0][i:end_i])


def _by_name(names: tuple[Sequence[str], Sequence[str]]) -> Iterator[Aligned]:
    there = set(names[1])
    yield from ((name, name if name in there else None) for name in names[0])
