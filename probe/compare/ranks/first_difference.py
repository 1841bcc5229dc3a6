"""Where several ranks part first: the call that made the difference, and not those that received it from a peer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from probe.common.dump.reading.records import OUTPUT
from probe.common.match.collectives import Call, is_communication, layers
from probe.common.match.row import Row
from probe.common.metrics.statistics import fraction
from probe.compare.output import tables
from probe.compare.result import ComparisonResult, Mode

_LIMIT = 0.5
"""Relative error of an output from which on a record counts as different."""
# What these return is not computed from what goes in.
_SKIPPED = ("Torch.empty", "Torch.fill", "Tensor.__setitem__")
# Two outputs of this call are seeds and offsets.
_ATTENTION, _NOT_DATA = "npu_fusion_attention", (".output.4", ".output.5")
_AS_TEXT = frozenset((*tables.HEAD, *tables.DIFFERENCES))


@dataclass(frozen=True)
class Entry:
    """One record of one rank."""

    record: str
    rows: list[Row]
    differs: bool
    communicates: bool


@dataclass(frozen=True)
class Rank:
    """The records of one rank in order of execution."""

    number: int
    result: ComparisonResult
    entries: list[Entry]


def of_rank(number: int, result: ComparisonResult) -> Rank:
    """The records of a comparison by statistics or checksums."""
    rows = (row for row in result.rows if row.target is not None)
    entries = []
    for record, group in groupby(rows, key=attrgetter("record")):
        if not any(name in record for name in _SKIPPED):
            found = list(group)
            differs = any(_differs(row, result.mode) for row in found)
            entries.append(Entry(record, found, differs, is_communication(record)))
    return Rank(number, result, entries)


def essentials(rank: Rank) -> Rank:
    """`rank` with the rows that the search and its report can come to, which are few; it crosses processes cheaply."""
    wanted = {id(entry) for segment in _segments(rank) if (entry := _first(segment)) is not None}
    wanted |= {id(entry) for entry in rank.entries if entry.communicates}
    entries = [entry if id(entry) in wanted else replace(entry, rows=[]) for entry in rank.entries]
    stacks = rank.result.stacks or {}
    kept = {entry.record: stacks[entry.record] for entry in entries if entry.rows and entry.record in stacks}
    return Rank(rank.number, replace(rank.result, rows=[], stacks=kept, golden_stacks=None), entries)


def _differs(row: Row, mode: Mode) -> bool:
    assert row.target is not None
    if row.target.state != OUTPUT or row.golden is None:
        return False
    if _ATTENTION in row.record and row.target.name.endswith(_NOT_DATA):
        return False
    if mode is Mode.CHECKSUM:
        return bool(row.metrics[0] != row.metrics[1])
    return any(_is_large(cell) for cell in row.metrics[4:])


def _is_large(cell: Any) -> bool:
    error = fraction(cell)
    return cell in ("inf", "-inf", "Nan") if error is None else error > _LIMIT


def first_differences(ranks: Sequence[Rank]) -> list[tuple[Rank, Entry]]:
    """The records that no other one explains, at most one a rank; empty when nothing differs.

    First what differs before the first communication of its rank. Otherwise the communication calls of all ranks are
    linked and walked in order: what differs before a call, else the call itself. Otherwise what differs after the
    last call of its rank.
    """
    before = [(rank, _first(_segments(rank)[0])) for rank in ranks]
    found = [(rank, entry) for rank, entry in before if entry is not None]
    if found:
        return found
    found = _at_communication(ranks)
    if found:
        return found
    after = [(rank, _first(_segments(rank)[-1])) for rank in ranks]
    return [(rank, entry) for rank, entry in after if entry is not None]


def _first(entries: list[Entry]) -> Entry | None:
    return next((entry for entry in entries if entry.differs), None)


def _segments(rank: Rank) -> list[list[Entry]]:
    """What a rank computes before its first communication, between its communications, and after the last."""
    found: list[list[Entry]] = [[]]
    for entry in rank.entries:
        if entry.communicates:
            found.append([])
        else:
            found[-1].append(entry)
    return found


def _at_communication(ranks: Sequence[Rank]) -> list[tuple[Rank, Entry]]:
    by_number = {rank.number: rank for rank in ranks}
    calls = [
        [
            Call(rank.number, place, entry.record, tuple(row.target for row in entry.rows if row.target is not None))
            for place, entry in enumerate(rank.entries)
            if entry.communicates
        ]
        for rank in ranks
    ]
    places = {id(call): number for of_one in calls for number, call in enumerate(of_one)}
    segments = {rank.number: _segments(rank) for rank in ranks}
    for layer in layers(calls, [rank.number for rank in ranks]):
        candidates = []
        for call in (call for link in layer for call in link):
            rank = by_number[call.rank]
            computed = segments[call.rank][places[id(call)]]
            own = rank.entries[call.place]
            steps = enumerate([*computed, own])
            candidates += [(position, rank, entry) for position, entry in steps if entry.differs][:1]
        if candidates:
            computing = [found for found in candidates if not found[2].communicates] or candidates
            earliest = min(position for position, _, _ in computing)
            return [(rank, entry) for position, rank, entry in computing if position == earliest]
    return []


def rank_as_json(rank: Rank) -> dict[str, Any]:
    """Every record of a rank with its rows, as the file of the rank holds it."""
    columns = tables.columns(rank.result)
    stacks = rank.result.stacks
    cells = tables.rows(rank.result)
    wanted = {id(row): entry for entry in rank.entries for row in entry.rows}
    found: dict[str, Any] = {}
    for row, values in zip(rank.result.rows, cells):
        entry = wanted.get(id(row))
        if entry is None:
            continue
        item = {name: str(value) if name in _AS_TEXT else value for name, value in zip(columns, values)}
        item.update({"Result": "", "Err_message": ""})
        if stacks is not None:
            item[tables.STACK] = stacks.get(row.record, "N/A") if entry.rows[0] is row else "N/A"
        item.update({"state": row.target.state if row.target else "", "api_origin_name": row.record})
        for place, what in enumerate(("op", "peer")):
            for side, found_item in (("NPU", row.target), ("Bench", row.golden)):
                peer = found_item.peer if found_item is not None else None
                item[f"{side} P2POp {what}"] = "None" if peer is None else str(peer[place])
        whole = found.setdefault(row.record, {"is_same": not entry.differs, "op_items": []})
        whole["op_items"].append(item)
    return found


def differences_as_json(found: list[tuple[Rank, Entry]]) -> dict[str, Any]:
    """The first differences of every rank, with their values and stacks."""
    told: dict[str, Any] = {}
    for rank, entry in found:
        data: dict[str, dict[str, Any]] = {"input": {}, "output": {}}
        for row in entry.rows:
            assert row.target is not None
            n = row.target
            kind = "output" if n.state == OUTPUT else "input"
            statistics = zip(("max", "min", "mean", "l2norm"), (n.max, n.min, n.mean, n.norm))
            values = {f"NPU {name}": tables.statistic(value) for name, value in statistics}
            data[kind][n.name] = {**values, "NPU P2POp peer": "None" if n.peer is None else str(n.peer[1])}
        stack = (rank.result.stacks or {}).get(entry.record, [])
        told.setdefault(f"rank_{rank.number}", []).append(
            {"op_name": entry.record, "data_info": data, "stack_info": stack}
        )
    return told
