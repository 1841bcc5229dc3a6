"""Settings, wherever they are written and whatever their names are in the two runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from probe.configcheck.findings import ERROR, INFO, WARNING, Check, Finding
from probe.configcheck.meanings import plain_name
from probe.configcheck.sources import ONE_PROCESS, Entry, derived, file_of, is_reference
from probe.configcheck.tables import NO_EFFECT, OTHER_HYPERPARAMETER, are_equal

_SAME_MEANING = "another name of the same setting"
_ONE_SIDE = "the other run uses its default, which is not in the pack"
_OUTSIDE = "the script takes a value from outside, so that it cannot be told"
_CONTENT = "the content of the file is compared"
_OVERRIDDEN = "an option of the launcher counts, and not this value of its file"
_REFERENCE = "another settings file, which is not in the pack"

Sides = tuple[Sequence[Entry], Sequence[Entry]]
Alike = dict[tuple[tuple[str, ...], str], tuple[list[Entry], list[Entry]]]


def check_hyperparameters(golden: Sequence[Entry], target: Sequence[Entry]) -> Check:
    """Compare the settings of two runs by what they mean; each place of a setting counts.

    Args:
        golden: The settings of the baseline.
        target: Those of the run under test.
    """
    one, other = [*golden, *derived(golden, target)], [*target, *derived(target, golden)]
    alike: Alike = {}
    for number, side in enumerate((one, other)):
        for entry in side:
            alike.setdefault(entry.key, ([], []))[number].append(entry)
    files = {entry.source.rpartition(": ")[2] for entry in (*one, *other)}
    return Check("hyperparameters", [row for pair in alike.values() for row in _compared(*pair, files)])


def _compared(golden: Sequence[Entry], target: Sequence[Entry], files: set[str]) -> Iterator[Finding]:
    """Differences of one setting: of the values in effect, then of those that options override."""
    effective = [[each for each in side if not each.is_overridden] for side in (golden, target)]
    found = list(_in_effect(effective[0], effective[1], files))
    yield from found
    for side, is_golden in ((golden, True), (target, False)):
        rest = target if is_golden else golden
        for entry in side:
            differs = rest and not found and not any(_is_equal(entry, each) for each in rest)
            if entry.is_overridden and not entry.has_no_effect and differs:
                both = (entry, rest[-1]) if is_golden else (rest[-1], entry)
                yield replace(_differing(*both, (golden, target), files), level=WARNING, why=_OVERRIDDEN)


def _in_effect(golden: Sequence[Entry], target: Sequence[Entry], files: set[str]) -> Iterator[Finding]:
    """Differences of one setting: place by place, then what is left over by its values."""
    one, other = list(golden), list(target)
    several = len({each.source for each in golden}) > 1 or len({each.source for each in target}) > 1
    sides = (golden, target) if several else None
    pairs = list(_pairs(one, other))
    pairs += list(_by_value(one, other))
    told: set[tuple[str, str]] = set()
    for mine, theirs in pairs:
        if not _is_equal(mine, theirs) and (key := (str(mine.value), str(theirs.value))) not in told:
            told.add(key)
            yield _differing(mine, theirs, sides, files)
    for left, everything, is_golden in ((one, golden, True), (other, target, False)):
        rest = target if is_golden else golden
        for entry in left:
            if any(_is_equal(entry, each) for each in rest) or (not rest and _is_default(entry, everything)):
                continue
            if not rest:
                yield _alone(entry, is_golden, files)
            else:
                yield _differing(*((entry, rest[-1]) if is_golden else (rest[-1], entry)), (golden, target), files)


def _pairs(one: list[Entry], other: list[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """Entries of the same place and name, then of the same name, then of the same kind of place; taken out of both."""
    ways = (
        lambda entry: (entry.source, entry.name),
        lambda entry: (_kind_of(entry.source), plain_name(entry.name)),
        lambda entry: _kind_of(entry.source),
    )
    for way in ways:
        waiting: dict[object, deque[Entry]] = {}
        for theirs in other:
            waiting.setdefault(way(theirs), deque()).append(theirs)
        found = [(mine, queue.popleft()) for mine in one if (queue := waiting.get(way(mine)))]
        taken = {id(each) for pair in found for each in pair}
        one[:], other[:] = ([each for each in side if id(each) not in taken] for side in (one, other))
        yield from found


def _by_value(one: list[Entry], other: list[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """Pairs of the entries that are left on both sides, equal values first."""
    for wants_equal in (True, False):
        for mine in list(one):
            theirs = next((each for each in other if not wants_equal or _is_equal(mine, each)), None)
            if theirs is not None:
                one.remove(mine)
                other.remove(theirs)
                yield mine, theirs


def _kind_of(source: str) -> str:
    """``.sh (2)`` of ``run.sh (2)``."""
    return source[source.rfind(".") :] if "." in source else source


def _is_equal(one: Entry, other: Entry) -> bool:
    return are_equal(one.value, other.value)


def _is_default(entry: Entry, all_of_side: Sequence[Entry]) -> bool:
    if entry.setting is None:
        return entry.value is False
    default = entry.setting.default
    return default is not None and are_equal(entry.value, default)


def _differing(golden: Entry, target: Entry, sides: Sides | None, files: set[str]) -> Finding:
    how = ""
    if golden.name != target.name:
        same = plain_name(golden.name).rpartition(".")[2] == plain_name(target.name).rpartition(".")[2]
        how = "" if same else f", {_SAME_MEANING}"
    title = target.name if golden.name == target.name else f"{target.name} (golden: {golden.name}{how})"
    if ONE_PROCESS in (golden.name, target.name):
        title = golden.name if target.name == ONE_PROCESS else target.name
    places = ["", ""] if sides is None else [_place(*each) for each in zip((golden, target), sides)]
    title = f"{title} in {places[1]}" if places[1] else title
    numbers = [each.partition(", ")[2] for each in places]
    where = "" if places[0] == places[1] else file_of(golden) if numbers[0] == numbers[1] else places[0]
    level, why = _judged(golden, target, files)
    place, names, how = target.source or golden.source, (golden.name, target.name), how.strip(", ")
    return Finding(title, golden.shown, target.shown, level, why, names, place, how, where)


def _place(entry: Entry, side: Sequence[Entry]) -> str:
    """The file of a setting; of several launches, turns or branches in it also the number."""
    sources = list(dict.fromkeys(each.source for each in side if file_of(each) == file_of(entry)))
    if len(sources) < 2:
        return file_of(entry)
    return f"{file_of(entry)}, value {sources.index(entry.source) + 1} of {len(sources)}"


def _judged(golden: Entry, target: Entry, files: set[str]) -> tuple[str, str]:
    if is_reference(golden) and is_reference(target):
        is_there = all(_last_part(each) in files for each in (golden, target))
        return (INFO, _CONTENT) if is_there else (ERROR, _REFERENCE)
    if golden.has_no_effect and target.has_no_effect:
        return INFO, NO_EFFECT
    if golden.is_unknown or target.is_unknown:
        return WARNING, _OUTSIDE
    return ERROR, _why(golden if golden.setting else target)


def _why(entry: Entry) -> str:
    return OTHER_HYPERPARAMETER if entry.setting is None else entry.setting.reason


def _alone(entry: Entry, is_golden: bool, files: set[str]) -> Finding:
    golden, target = (entry.shown, None) if is_golden else (None, entry.shown)
    level, why = ERROR, f"{_why(entry)}; {_ONE_SIDE}"
    if is_reference(entry) and _last_part(entry) in files:
        level, why = INFO, _CONTENT
    elif entry.has_no_effect or (entry.setting is not None and entry.setting.is_optional):
        level, why = INFO, NO_EFFECT
    elif is_reference(entry) and entry.setting is None:
        why = _REFERENCE
    elif entry.setting is None or entry.is_unknown:
        level, why = WARNING, _ONE_SIDE
    return Finding(entry.name, golden, target, level, why, (entry.name, entry.name), entry.source)


def _last_part(entry: Entry) -> str:
    return str(entry.shown).rpartition("/")[2]
