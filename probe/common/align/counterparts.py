"""The calls of two dumps that belong together, and their items: one alignment for whatever is said of the two.

What the user says comes first. Calls of two runs of one program have the same names. Where one run makes a call more,
or the layers of one have other numbers, calls correspond by the module around them, by what they take and return, and
in their order. Calls of two programs, or of two frameworks, correspond by the values of parameters and results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from probe.common.align.calls import NAMES_DIFFER, OF_PARAMETERS, CallPair, Calls, Found, KeyedCall, Row, Side
from probe.common.align.items import alone, by_name, rows_of
from probe.common.align.layers import translated_paths
from probe.common.align.mapping import Dumps, MatchOptions, layer_mapping, name_mapping
from probe.common.dump.naming import BACKWARD, FORWARD, PARAMETERS_GRAD, both_record, is_module, parse
from probe.common.dump.naming import differ as levels_differ
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import INPUT, OUTPUT, Item
from probe.common.dump.reading.sources import Tree
from probe.common.numerics.error_bounds import relative_difference

if TYPE_CHECKING:
    from probe.common.align.contents import Contents

__all__ = ["CallPair", "are_two_programs", "call_pairs", "table"]

_NEAR = 0.02
"""The relative difference up to which statistics are of the same values, also in a short type: a guess."""
_OF_FUNCTION = f".{FORWARD}"
"""The end of the names of calls of functions."""
_MOST = 64
"""The calls of one function in one module of which all pairs are looked at; those behind keep their numbers."""


def exchanged(both: Calls, trees: tuple[Tree, Tree]) -> list[tuple[int, int]]:
    """The numbers of calls that are far from their namesakes and near to one call alone that is far from its own."""
    index = {call.record.name: number for number, call in enumerate(both[1])}
    groups: dict[tuple[str | None, str], list[tuple[int, int]]] = {}
    for number, call in enumerate(both[0]):
        name = call.record.name
        namesake, around = index.get(name), trees[0].get(name)
        if namesake is None or call.items is both[1][namesake].items:
            continue
        if name.endswith(_OF_FUNCTION) and around == trees[1].get(name):
            groups.setdefault((around, name.rsplit(".", 2)[0]), []).append((number, namesake))
    found = []
    for group in groups.values():
        several = group if len(group) > 1 else []
        far = [(one, other) for one, other in several if not are_near(both[0][one], both[1][other])][:_MOST]
        near = [[other for _, other in far if are_near(both[0][one], both[1][other])] for one, _ in far]
        every = [other for others in near for other in others]
        found += [(one, near[0]) for (one, _), near in zip(far, near) if len(near) == 1 == every.count(near[0])]
    return found


def are_near(call: KeyedCall, other: KeyedCall) -> bool:
    """True if what two calls take and return differs by no more than rounding."""
    mine, theirs = ([item for item in each.items if item.is_tensor] for each in (call, other))
    return len(mine) == len(theirs) and all(
        one.shape == another.shape and relative_difference(one, another) <= _NEAR for one, another in zip(mine, theirs)
    )


# --- one sided


LEVEL, END, FRAMEWORK, RECOMPUTED = "level", "end", "framework", "recomputed"
"""The level of the other side does not record the call; the other side ended before; the other framework has no such
calls; the call computes again what a paired call has."""
LEFT_OUT = frozenset((LEVEL, END, FRAMEWORK))
"""Calls for these reasons count for nothing."""


def note_reasons(pairs: Sequence[CallPair], dumps: tuple[Dump, Dump], both: Calls) -> None:
    """Set `how` of the pairs of one side to the reason, if there is one."""
    levels = dumps[0].level, dumps[1].level
    ends = _ends(pairs, dumps)
    paired = [pair for pair in pairs if pair.record and pair.golden_record]
    again = [recomputed(side, {_name(pair, number) or "" for pair in paired}) for number, side in enumerate(both)]
    across = dumps[0].framework != dumps[1].framework
    for index, pair in enumerate(pairs):
        if pair.record and pair.golden_record:
            continue
        number = 0 if pair.record else 1
        record = _name(pair, number) or ""
        if not both_record(record, levels):
            pair.how = LEVEL
        elif across and is_in_scope(dumps[number].tree, record):
            pair.how = FRAMEWORK
        elif index > ends[number] or (ends[number] < len(pairs) and f".{PARAMETERS_GRAD}" in record):
            pair.how = END
        elif record in again[number]:
            pair.how = RECOMPUTED


def _name(pair: CallPair, number: int) -> str | None:
    return pair.golden_record if number else pair.record


def _ends(pairs: Sequence[CallPair], dumps: tuple[Dump, Dump]) -> list[int]:
    """The last pair that each side's calls are compared up to, since the other side ends there.

    A side ends where its run died, or where it lacks the last calls of the other one and nothing else. One that has
    gradients and lacks the last of them does not end there: nothing makes them.
    """
    has_gradients = any(pair.record and pair.golden_record and _is_gradient(pair) for pair in pairs)
    last = max((index for index, pair in enumerate(pairs) if pair.record and pair.golden_record), default=-1)
    found = [len(pairs), len(pairs)]
    for number, other in ((0, 1), (1, 0)):
        lacking = [index for index, pair in enumerate(pairs) if _name(pair, other) is None]
        has_more = any(_name(pair, number) is None for pair in pairs)
        lacks_gradients = has_gradients and all(_is_gradient(pairs[index]) for index in lacking)
        is_at_end = lacking and not has_more and lacking[0] > last >= 0
        if dumps[other].died or (is_at_end and not lacks_gradients):
            found[number] = last
    return found


def _is_gradient(pair: CallPair) -> bool:
    parsed = parse(pair.record or pair.golden_record or "")
    return parsed is not None and parsed.direction in (BACKWARD, PARAMETERS_GRAD)


def is_in_scope(tree: Tree | None, record: str) -> bool:
    """True if a call ran inside of something that is no module, such as an optimizer."""
    around = None if tree is None else tree.get(record)
    return around is not None and not is_module(around)


def recomputed(calls: Iterable[KeyedCall], paired: set[str]) -> set[str]:
    """The forward records that have the tensors of an earlier record of the same function or module.

    Checkpointing makes them: a forward is run once more for its backward.

    Args:
        calls: the calls of one side.
        paired: the records of that side with a counterpart.
    """
    earlier: set[tuple[Any, ...]] = set()
    found: set[str] = set()
    for call in calls:
        parsed = call.record.parsed
        if parsed is None or parsed.direction != FORWARD:
            continue
        tensors = [item for item in call.items if item.is_tensor and item.state in (INPUT, OUTPUT)]
        if not any(item.state == OUTPUT and (item.norm, item.md5) != (None, None) for item in tensors):
            continue
        key = (parsed.base, *((item.max, item.min, item.norm, item.md5, item.shape) for item in tensors))
        if call.record.name in paired:
            earlier.add(key)
        elif key in earlier:
            found.add(call.record.name)
    return found


# --- counterparts


_ENOUGH = 0.8
"""The share of modules that two runs of one program have under the same names, at least; a guess."""


def call_pairs(target: Dump, golden: Dump, both: Calls, options: MatchOptions) -> list[CallPair]:
    """The calls of two dumps side by side, in the order of the target.

    What the golden side alone did stands before the next golden call with a counterpart.

    Args:
        target, golden: the dumps.
        both: their calls.
        options: what the user says of names.

    Raises:
        MsprobeException: the options do not fit the dumps, or one of their files holds something else.
    """
    dumps = target, golden
    found = Found()
    index = {call.record.name: number for number, call in enumerate(both[1])} if options.pairs else {}
    own = {call.record.name: number for number, call in enumerate(both[0])} if options.pairs else {}
    for one, other in options.pairs:
        if one in own and other in index:
            found.add(own[one], index[other])
    contents = None
    if options.maps_names and options.layer_mapping is None:
        return _ordered(both, found, dumps, rows=_mapped(dumps, both, found, options))
    is_by_name = _have_same_names(both) and not found.partner and not options.maps_names
    if target.level != "debug" and not are_two_programs(both, dumps):
        for number, partner in exchanged(both, (target.tree or {}, golden.tree or {})):
            found.add(number, partner)
    if target.level == "debug" or (is_by_name and not found.partner and not _act_on_others(both, dumps)):
        _by_key(both, found)
    else:
        trees = target.tree, golden.tree
        if None in trees or (levels_differ((target.level, golden.level)) and "L1" in (target.level, golden.level)):
            trees = None, None  # At L1 no function has a module around it, and at mix each has.
        sides = Side(both[0], trees[0], target.framework), Side(both[1], trees[1], golden.framework)
        contents = _search(sides, both, found, dumps, options)
    pairs = _ordered(both, found, dumps, contents)
    for row in table(pairs) if options.fuzzy else ():
        if row.golden_record not in (None, row.record) and row.target is not None:
            row.notes = (NAMES_DIFFER,)
    return pairs


def _have_same_names(both: Calls) -> bool:
    target, golden = both
    return len(target) == len(golden) and all(one.record.name == other.record.name for one, other in zip(*both))


def _act_on_others(both: Calls, dumps: Dumps) -> bool:
    """True if an optimizer of one side takes the parameters in another order."""
    for call, other in zip(*both):
        if call.items is not other.items and is_in_scope(dumps[0].tree, call.record.name):
            for item, another in zip(call.items, other.items):
                maker = item.made_by or ""
                if maker.startswith(OF_PARAMETERS) and maker != another.made_by:
                    return True
    return False


_Rows = dict[int, list[Row]]
"""The items of calls of one side by the number of the call."""


def _mapped(dumps: Dumps, both: Calls, found: Found, options: MatchOptions) -> tuple[_Rows, _Rows]:
    """The items as mapping files pair them, of the calls that were not paired by hand; their calls are paired, too."""
    indexes = tuple({call.record.name: number for number, call in enumerate(side)} for side in both)
    target = [call for number, call in enumerate(both[0]) if number not in found.partner]
    golden = [call for number, call in enumerate(both[1]) if number not in found.back]
    rows: tuple[_Rows, _Rows] = {}, {}
    for row in by_name(target, golden, name_mapping(dumps, (target, golden), options)):
        if row.target is None:
            rows[1].setdefault(indexes[1][row.record], []).append(row)
            continue
        number = indexes[0][row.record]
        rows[0].setdefault(number, []).append(row)
        if row.golden_record is not None:
            found.add(number, indexes[1][row.golden_record])
    for number, partner in found.partner.items():
        if number in rows[0]:
            rows[0][number] += rows[1].pop(partner, ())
    return rows


def _by_key(both: Calls, found: Found) -> None:
    index = {call.key: number for number, call in enumerate(both[1])}
    for number, call in enumerate(both[0]):
        other = index.get(call.key)
        if other is not None:
            found.add(number, other)


def _search(
    sides: tuple[Side, Side], both: Calls, found: Found, dumps: Dumps, options: MatchOptions
) -> Contents | None:
    """Find the pairs where names do not say them; returns the contents of the tensors of two programs."""
    # Numbers of tensors are looked at only here, so that most comparisons need no numpy.
    from probe.common.align.contents import Contents
    from probe.common.align.layers import moved_layers, paired_layers
    from probe.common.align.search import CallSearch

    contents = None
    if options.layer_mapping is not None or (not options.fuzzy and are_two_programs(both, dumps)):
        contents = Contents(_tensors(both[0]), _tensors(both[1]), in_any_order=True)
    if options.layer_mapping is not None:
        target, golden, rules = layer_mapping(dumps, both, options)
        paths = translated_paths(target, golden, rules)
    elif contents is not None:
        paths = paired_layers(sides, contents)
    else:
        paths = moved_layers(sides)
    paths = {path: other for path, other in paths.items() if other in sides[1].modules}
    search = CallSearch(sides, found, paths, contents, options.fuzzy or contents is not None)
    search.pair_forward()
    search.pair_backward()
    return contents


def are_two_programs(both: Calls, dumps: Dumps) -> bool:
    """True if two runs are of two frameworks, or few of their calls have one name."""
    if dumps[0].framework != dumps[1].framework:
        return True
    keys = [[call.key for call in side] for side in both]
    if keys[0] == keys[1]:
        return False
    names = [set(filter(is_module, side)) for side in keys]
    if not all(names):
        names = list(map(set, keys))
    return len(names[0] & names[1]) < _ENOUGH * min(map(len, names))


def _tensors(calls: Sequence[KeyedCall]) -> list[Item]:
    """The tensors that calls take and return."""
    return [item for call in calls for item in call.items if item.is_tensor and item.state in (INPUT, OUTPUT)]


# --- the pairs in their order


def _ordered(
    both: Calls,
    found: Found,
    dumps: Dumps,
    contents: Contents | None = None,
    rows: tuple[_Rows, _Rows] | None = None,
) -> list[CallPair]:
    """The pairs in the order of the target, and what the golden side alone did before its next call with a partner."""
    target, golden = both
    frameworks = dumps[0].framework, dumps[1].framework
    waiting: list[CallPair] = []
    before: dict[int, list[CallPair]] = {}
    for number, other in enumerate(golden):
        if number not in found.back:
            items = alone(other, is_target=False) if rows is None else rows[1].get(number, [])
            waiting.append(CallPair(None, other.record.name, items))
        elif waiting:
            before[number], waiting = waiting, []
    pairs: list[CallPair] = []
    for number, call in enumerate(target):
        partner = found.partner.get(number)
        if partner is None:
            items = alone(call, is_target=True) if rows is None else rows[0].get(number, [])
            pairs.append(CallPair(call.record.name, None, items))
            continue
        pairs += before.get(partner, ())
        other = golden[partner]
        mapped = None if rows is None else rows[0].get(number)
        items = rows_of(call, other, frameworks, contents) if mapped is None else mapped
        pairs.append(CallPair(call.record.name, other.record.name, items))
    pairs += waiting
    if any(pair.record is None or pair.golden_record is None for pair in pairs):
        note_reasons(pairs, dumps, both)
    return pairs


def table(pairs: Sequence[CallPair]) -> list[Row]:
    """The items of all calls: those of the target in order, then those that the golden side has alone."""
    rows = [row for pair in pairs for row in pair.rows]
    of_golden = [row for row in rows if row.target is None]
    return [row for row in rows if row.target is not None] + of_golden if of_golden else rows
