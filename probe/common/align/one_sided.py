"""The reason why one side alone made a call, where there is one that says nothing of the two programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from probe.common.align.calls import Calls, KeyedCall
from probe.common.align.row import CallPair
from probe.common.dump.levels import both_record
from probe.common.dump.naming import BACKWARD, FORWARD, PARAMETERS_GRAD, is_module, parse
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import INPUT, OUTPUT
from probe.common.dump.reading.sources import Tree

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
