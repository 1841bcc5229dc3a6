"""Calls of two runs paired by their order, for where their numbers shift because one run makes a call more."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Optional

from probe.common.align import patience_diff
from probe.common.dump.naming import BACKWARD, FORWARD, module_name, parse, record_name
from probe.common.dump.reading.sources import Tree

_LONGEST = 4000
"""Looking for the best alignment takes time with the square of this. What is longer is cut where keys correspond for
certain; of a stretch that stays longer, calls of the same name are paired, and those that the golden side has alone are
left out, since they have no index."""
_COMPARISONS = 20_000_000
"""The number of pairs of equal calls that are looked at for the best alignment, all stretches together. After that the
next equal call is taken."""

Aligned = tuple[Optional[str], Optional[str]]
Key = Hashable


def align(
    target: Sequence[str],
    golden: Sequence[str],
    trees: tuple[Tree | None, Tree | None],
    marks: tuple[Mapping[str, Hashable], Mapping[str, Hashable]] | None = None,
    on_golden_side: Callable[[str], str] | None = None,
) -> list[Aligned]:
    """Both sequences of records in one, ``None`` where a side has no counterpart.

    Two calls correspond when they are of the same function or module and in the same call of a module.

    Args:
        target, golden: the records of both sides.
        trees: their call trees.
        marks: what else has to be the same in calls that correspond, by their records.
        on_golden_side: the name that a record of the target has on the golden side, if that is another one.
    """
    keys: list[list[Key]] = []
    for side, tree, known, named in zip((target, golden), trees, marks or ({}, {}), (on_golden_side, None)):
        # Most modules are around many calls.
        kinds = _Kinds(_backwards(side), named)
        parent = (tree or {}).get
        keys.append([(kinds[parent(name) or ""], kinds.of(name), known.get(name)) for name in side])
    found: list[Aligned] = []
    start = other_start = 0
    for i, j in [*pairs_in_order(keys[0], keys[1]), (len(target), len(golden))]:
        gap = target[start:i], golden[other_start:j]
        if max(map(len, gap)) > _LONGEST:
            found += _by_name(gap)
        else:
            found += ((None, name) for name in gap[1])
            found += ((name, None) for name in gap[0])
        found += zip(target[i : i + 1], golden[j : j + 1])
        start, other_start = i + 1, j + 1
    return _as_their_forward(found)


def _as_their_forward(aligned: list[Aligned]) -> list[Aligned]:
    """Backward calls of functions with the counterparts that their forward calls have.

    What one side does more often moves backward calls against those of the other side, and where no module is around
    them nothing else tells one from the next. Calls that were made again for the backward have no pair of the forward.
    """
    partners = {name: other for name, other in aligned if name and other}
    if all(name == other for name, other in partners.items()):
        return aligned
    there = {other for _, other in aligned if other}
    moved: dict[str, str] = {}
    for name, _ in aligned:
        parsed = parse(name) if name and BACKWARD in name else None
        if name is None or parsed is None or parsed.is_module or parsed.direction != BACKWARD:
            continue
        forward = parse(partners.get(record_name(parsed._replace(direction=FORWARD)), ""))
        own = "" if forward is None else record_name(forward._replace(direction=BACKWARD))
        if own in there and partners.get(name) != own:
            moved[name] = own
    if not moved:
        return aligned
    taken = set(moved.values())
    partners = {name: other for name, other in partners.items() if other not in taken and name not in moved}
    partners.update(moved)
    of_both = set(partners.values())
    found: list[Aligned] = []
    for name, other in aligned:
        if other and other not in of_both:
            found.append((None, other))
        if name:
            found.append((name, partners.get(name)))
    return found


def pairs_in_order(target: Sequence[Key], golden: Sequence[Key], leave_long: bool = True) -> list[tuple[int, int]]:
    """The indexes of equal keys that correspond, both ascending.

    Args:
        target, golden: what says of each call what it is, and neither how many there were before nor where.
        leave_long: find nothing in a stretch that stays long, as names tell more there.
    """
    start = 0
    shortest = min(len(target), len(golden))
    while start < shortest and target[start] == golden[start]:
        start += 1
    end = 0
    while end < shortest - start and target[-1 - end] == golden[-1 - end]:
        end += 1
    found = [(index, index) for index in range(start)]
    found += _between(target, golden, (start, len(target) - end, start, len(golden) - end), leave_long)
    found += ((len(target) - index, len(golden) - index) for index in range(end, 0, -1))
    return found


_Stretch = tuple[int, int, int, int]
"""Begin and end in the first and in the second sequence."""


def _between(
    target: Sequence[Key], golden: Sequence[Key], stretch: _Stretch, leave_long: bool
) -> Iterator[tuple[int, int]]:
    start, end, other_start, other_end = stretch
    mine, theirs = target[start:end], golden[other_start:other_end]
    matching = _Matching(_COMPARISONS)
    if max(len(mine), len(theirs)) <= _LONGEST:
        yield from ((start + i, other_start + j) for i, j in matching.of(mine, theirs))
        return
    last, other_last = 0, 0
    for i, j in [*patience_diff.align(mine, theirs), (len(mine), len(theirs))]:
        gap = mine[last:i], theirs[other_last:j]
        if all(gap) and not (leave_long and max(map(len, gap)) > _LONGEST):
            yield from ((start + last + k, other_start + other_last + n) for k, n in matching.of(*gap))
        if i < len(mine):
            yield start + i, other_start + j
        last, other_last = i + 1, j + 1


class _Matching:
    """Looks for the longest equal stretches, and between these for the next ones, as long as `left` lasts."""

    def __init__(self, left: int) -> None:
        self.left = left
        """The number of comparisons that it may still make."""

    def of(self, mine: Sequence[Key], theirs: Sequence[Key]) -> list[tuple[int, int]]:
        """The indexes of equal keys that correspond, both ascending."""
        matcher = SequenceMatcher(None, mine, theirs, autojunk=False)
        number = Counter(theirs)
        found: list[tuple[int, int]] = []
        ahead: list[_Stretch] = [(0, len(mine), 0, len(theirs))]
        while ahead:
            start, end, other_start, other_end = ahead.pop()
            comparisons = sum(number[key] for key in mine[start:end])
            if comparisons > self.left:
                pairs = match_in_order(mine[start:end], theirs[other_start:other_end])
                found += ((start + i, other_start + j) for i, j in pairs)
                continue
            self.left -= comparisons
            i, j, size = matcher.find_longest_match(start, end, other_start, other_end)
            if size:
                found += zip(range(i, i + size), range(j, j + size))
                ahead += (start, i, other_start, j), (i + size, end, j + size, other_end)
        return sorted(found)


class _Unmatched:
    """The records of one side that were read and have no match yet."""

    def __init__(self) -> None:
        self._first = 0
        self._indexes: dict[Hashable, deque[int]] = {}

    def add(self, key: Hashable, index: int) -> None:
        self._indexes.setdefault(key, deque()).append(index)

    def oldest(self, key: Hashable) -> int | None:
        indexes = self._indexes.get(key)
        while indexes and indexes[0] < self._first:
            indexes.popleft()
        return indexes[0] if indexes else None

    def leave_up_to(self, index: int) -> None:
        self._first = index + 1


def match_in_order(target: Sequence[Hashable], golden: Sequence[Hashable]) -> list[tuple[int, int]]:
    """The indexes of keys that correspond, each the next of its kind, both ascending.

    Both are walked side by side. A key is looked for among those of the other side that are still waiting, the oldest
    first; once two correspond, what waited before them on either side does not any more.
    """
    waiting_target, waiting_golden = _Unmatched(), _Unmatched()
    found = []
    for index in range(max(len(target), len(golden))):
        target_kind = target[index] if index < len(target) else None
        golden_kind = golden[index] if index < len(golden) else None
        if target_kind is not None:
            waiting_target.add(target_kind, index)
        if golden_kind is not None:
            waiting_golden.add(golden_kind, index)
        pair = None
        if target_kind is not None and (older := waiting_golden.oldest(target_kind)) is not None:
            pair = index, older
        elif golden_kind is not None and (older := waiting_target.oldest(golden_kind)) is not None:
            pair = older, index
        if pair is not None:
            found.append(pair)
            waiting_target.leave_up_to(pair[0])
            waiting_golden.leave_up_to(pair[1])
    return found


class _Kinds(dict[str, str]):
    """Kinds of calls that depend neither on the number of calls before nor on the class name of a module."""

    def __init__(self, backwards: Mapping[str, str], named: Callable[[str], str] | None) -> None:
        super().__init__()
        self._backwards = backwards
        self._named = named

    def __missing__(self, name: str) -> str:
        self[name] = found = self.of(name)
        return found

    def of(self, name: str) -> str:
        """The same of one record, which is not kept."""
        name = self._backwards.get(name) or name
        return _kind(name if self._named is None else self._named(name))


def _backwards(side: Sequence[str]) -> dict[str, str]:
    """The backward records of modules with numbers in the order in which they appear, which recomputation changes."""
    seen: Counter[str] = Counter()
    found = {}
    for name in side:
        parsed = parse(name) if BACKWARD in name else None
        if parsed is not None and parsed.is_module and parsed.direction == BACKWARD:
            found[name] = module_name(parsed.base, seen[parsed.base], BACKWARD)
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


def _by_name(names: tuple[Sequence[str], Sequence[str]]) -> Iterator[Aligned]:
    there = set(names[1])
    yield from ((name, name if name in there else None) for name in names[0])
