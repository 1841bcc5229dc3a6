"""The first divergence between several ranks: the call that made the difference, not those that got it from a peer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from probe.common import files, log
from probe.common.align.calls import Row
from probe.common.align.dump_pairs import locate
from probe.common.collectives.collectives import CollectiveCall, is_communication
from probe.common.collectives.event_graph import layers
from probe.common.dump.reading.records import OUTPUT, Item
from probe.common.errors import MsprobeException
from probe.common.numerics.statistics import fraction
from probe.common.parallel.tasks import Outcome, ProcessDied, Where, finished
from probe.common.progress import ProgressCallback
from probe.compare import tables
from probe.compare.comparison import PairTask, compare_pair
from probe.compare.options import Options
from probe.compare.result import ComparisonResult, Mode
from probe.compare.runner import Followers, pair_tasks, run_pairs
from probe.compare.summary import Summary, first_of, is_unjudged, summarise
from probe.compare.summary_text import headline, hints

_LIMIT = 0.5
"""Relative error of an output from which on a record counts as different."""
# The results of these functions are not computed from their inputs.
_SKIPPED = ("Torch.empty", "Torch.fill", "Tensor.__setitem__")
# Two outputs of this call are seeds and offsets.
_ATTENTION, _NOT_DATA = "npu_fusion_attention", (".output.4", ".output.5")
_AS_TEXT = frozenset((*tables.HEAD, *tables.DIFFERENCES))


class RankRecord(msgspec.Struct, frozen=True):
    """One record of one rank, compared."""

    name: str
    rows: list[Row]
    differs: bool
    communicates: bool


class Rank(msgspec.Struct, frozen=True):
    """The records of one rank in order of execution."""

    number: int
    result: ComparisonResult
    records: list[RankRecord]


def of_rank(number: int, result: ComparisonResult) -> Rank:
    """The records of a comparison by statistics or checksums."""
    rows = (row for row in result.rows if row.target is not None)
    records = []
    for record, group in groupby(rows, key=attrgetter("record")):
        if not any(name in record for name in _SKIPPED):
            found = list(group)
            differs = any(_differs(row, result.mode) for row in found)
            records.append(RankRecord(record, found, differs, is_communication(record)))
    return Rank(number, result, records)


def essentials(rank: Rank) -> Rank:
    """`rank` with the rows that the search and its report can come to, which are few; it crosses processes cheaply."""
    wanted = {id(record) for segment in _segments(rank) if (record := _first(segment)) is not None}
    wanted |= {id(record) for record in rank.records if record.communicates}
    records = [record if id(record) in wanted else replace(record, rows=[]) for record in rank.records]
    stacks = rank.result.stacks or {}
    kept = {record.name: stacks[record.name] for record in records if record.rows and record.name in stacks}
    return Rank(rank.number, replace(rank.result, rows=[], stacks=kept, golden_stacks=None), records)


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


def first_differences(ranks: Sequence[Rank]) -> list[tuple[Rank, RankRecord]]:
    """The records that no other one explains, at most one a rank; empty when nothing differs.

    First what differs before the first communication of its rank. Otherwise the communication calls of all ranks are
    linked and walked in order: what differs before a call, else the call itself. Otherwise what differs after the
    last call of its rank.
    """
    before = [(rank, _first(_segments(rank)[0])) for rank in ranks]
    found = [(rank, record) for rank, record in before if record is not None]
    if found:
        return found
    found = _at_communication(ranks)
    if found:
        return found
    after = [(rank, _first(_segments(rank)[-1])) for rank in ranks]
    return [(rank, record) for rank, record in after if record is not None]


def _first(records: list[RankRecord]) -> RankRecord | None:
    return next((record for record in records if record.differs), None)


def _segments(rank: Rank) -> list[list[RankRecord]]:
    """The records of a rank before its first communication, between its communications, and after the last."""
    found: list[list[RankRecord]] = [[]]
    for record in rank.records:
        if record.communicates:
            found.append([])
        else:
            found[-1].append(record)
    return found


def _at_communication(ranks: Sequence[Rank]) -> list[tuple[Rank, RankRecord]]:
    by_number = {rank.number: rank for rank in ranks}
    calls = [
        [
            CollectiveCall(rank.number, index, record.name, _items(record))
            for index, record in enumerate(rank.records)
            if record.communicates
        ]
        for rank in ranks
    ]
    numbers = {id(call): number for of_one in calls for number, call in enumerate(of_one)}
    segments = {rank.number: _segments(rank) for rank in ranks}
    for layer in layers(calls, [rank.number for rank in ranks]):
        candidates = []
        for call in (call for link in layer for call in link):
            rank = by_number[call.rank]
            computed = segments[call.rank][numbers[id(call)]]
            own = rank.records[call.index]
            in_order = enumerate([*computed, own])
            candidates += [(position, rank, record) for position, record in in_order if record.differs][:1]
        if candidates:
            computing = [found for found in candidates if not found[2].communicates] or candidates
            earliest = min(position for position, _, _ in computing)
            return [(rank, record) for position, rank, record in computing if position == earliest]
    return []


def _items(record: RankRecord) -> tuple[Item, ...]:
    return tuple(row.target for row in record.rows if row.target is not None)


def rank_as_json(rank: Rank) -> dict[str, Any]:
    """Every record of a rank with its rows, as the file of the rank holds it."""
    columns = tables.columns(rank.result)
    stacks = rank.result.stacks
    cells = tables.rows(rank.result)
    wanted = {id(row): record for record in rank.records for row in record.rows}
    found: dict[str, Any] = {}
    for row, values in zip(rank.result.rows, cells):
        record = wanted.get(id(row))
        if record is None:
            continue
        item = {name: str(value) if name in _AS_TEXT else value for name, value in zip(columns, values)}
        item.update({"Result": "", "Err_message": ""})
        if stacks is not None:
            item[tables.STACK] = stacks.get(row.record, "N/A") if record.rows[0] is row else "N/A"
        item.update({"state": row.target.state if row.target else "", "api_origin_name": row.record})
        for index, what in enumerate(("op", "peer")):
            for side, found_item in (("NPU", row.target), ("Bench", row.golden)):
                peer = found_item.peer if found_item is not None else None
                item[f"{side} P2POp {what}"] = "None" if peer is None else str(peer[index])
        whole = found.setdefault(row.record, {"is_same": not record.differs, "op_items": []})
        whole["op_items"].append(item)
    return found


def differences_as_json(found: list[tuple[Rank, RankRecord]]) -> dict[str, Any]:
    """The first differences of every rank, with their values and stacks."""
    found_of_rank: dict[str, Any] = {}
    for rank, record in found:
        data: dict[str, dict[str, Any]] = {"input": {}, "output": {}}
        for row in record.rows:
            assert row.target is not None
            target = row.target
            kind = "output" if target.state == OUTPUT else "input"
            statistics = zip(("max", "min", "mean", "l2norm"), (target.max, target.min, target.mean, target.norm))
            values = {f"NPU {name}": tables.statistic(value) for name, value in statistics}
            peer = "None" if target.peer is None else str(target.peer[1])
            data[kind][target.name] = {**values, "NPU P2POp peer": peer}
        stack = (rank.result.stacks or {}).get(record.name, [])
        found_of_rank.setdefault(f"rank_{rank.number}", []).append(
            {"op_name": record.name, "data_info": data, "stack_info": stack}
        )
    return found_of_rank


# --- analysis


class Analysis(msgspec.Struct, frozen=True):
    """The first differences of one step, and the files that describe them."""

    step: str
    found: list[tuple[Rank, RankRecord]]
    files: list[str]
    summaries: list[Summary]
    """Summaries of the comparisons of the ranks by their statistics."""

    @property
    def answer(self) -> str:
        """The answer for a step in which no rank differs by the threshold; empty for other steps."""
        if self.found:
            return ""
        said = headline(self.summaries)[0][0]
        if first_of(self.summaries) is not None or any(each.follows is not None for each in self.summaries):
            return f"no rank differs by half; {said}"
        return said if is_unjudged(self.summaries) else "no rank differs"


def analyse(
    target: str,
    golden: str,
    output: str,
    options: Options | None = None,
    *,
    where: Where | None = None,
    watch: ProgressCallback | None = None,
) -> Generator[Analysis, None, None]:
    """Find where the ranks of each step diverge first; `where` and `watch` are those of `runner.summaries`.

    Raises:
        MsprobeException: the two cannot be compared, or a rank cannot be read: what is missing might be the cause.
    """
    tasks = pair_tasks(locate(target, golden), output, options, values=False)
    if tasks[0].options.algorithms:
        log.warning("the first difference is sought in statistics: the metrics of --algorithms are not used.")
    with closing(finished(tasks, run_pairs(where, _read_rank, tasks, watch), (ProcessDied,))) as done:
        followers = Followers()
        for step, of_step in groupby(done, key=lambda task_and_outcome: task_and_outcome[0].pair.step):
            ranks = [_whole(task, outcome) for task, outcome in of_step]
            written = [rank.file for rank in ranks]
            found = first_differences([rank.rank for rank in ranks])
            if found:
                written.append(os.path.join(output, step, f"diff_analyze_{time.time_ns()}.json"))
                _write_json(written[-1], differences_as_json(found))
            yield Analysis(step, found, written, followers.add_step([rank.summary for rank in ranks]))


class _RankRead(msgspec.Struct, frozen=True):
    rank: Rank
    file: str
    summary: Summary


def _read_rank(task: PairTask, watch: ProgressCallback | None = None) -> _RankRead:
    result = compare_pair(task, watch, values=False).result
    for hint in hints(result):
        log.warning(f"{task.pair}: {hint}.")
    rank = of_rank(task.rank, result)
    assert task.folder is not None
    files.make_folder(task.folder)
    path = os.path.join(task.folder, f"compare_result_rank{rank.number}_{task.stamp}.json")
    _write_json(path, rank_as_json(rank))
    return _RankRead(essentials(rank), path, summarise(result))


def _whole(task: PairTask, outcome: Outcome[_RankRead]) -> _RankRead:
    if outcome.value is None:
        raise MsprobeException(f"{task.pair}: {outcome.error}")
    return outcome.value


def _write_json(path: str, content: Any) -> None:
    with files.replacing(path) as stream:
        stream.write(json.dumps(content).encode())
