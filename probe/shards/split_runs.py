"""The steps and ranks of runs that are split, as their folders have them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

from probe.common.align.dump_pairs import beside_one_step
from probe.common.collectives.collectives import CollectiveCall, Exchange, exchanges, is_communication
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.items import Shape, shape_text
from probe.common.dump.reading.runs import find_dumps, warn_of_left_out
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.ranges import ranges
from probe.shards.merge import Merged, record_of


class StepFolders(NamedTuple):
    """The folders of one step, whose ranks are merged."""

    target: str
    golden: Optional[str]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """``None`` where there is one run."""
    name: str
    """The name of the step below the folder of the target; empty where that is the step itself."""


def check_folders(paths: Sequence[str]) -> None:
    """Check that ranks can be below these paths.

    Raises:
        FileCheckException: one is a file.
    """
    for path in paths:
        if os.path.isfile(path):
            raise FileCheckException(f"{path} is not a folder; give that of a step with its ranks, or of all steps.")


def common_steps(target: str, golden: str | None) -> tuple[list[StepFolders], list[str]]:
    """The steps of two runs that are merged, or those of one, and a sentence for each that is left alone.

    Raises:
        MsprobeException: the runs have no step in common, or one path is the folder of a step and the other holds
            several.
    """
    if golden is None:
        return [StepFolders(step, None, name) for name, step in _steps(target).items()], []
    steps, others = beside_one_step((target, golden), (_steps(target), _steps(golden)))
    if len(steps) == len(others) == 1:
        # One step of each, whatever its number.
        others = dict(zip(steps, others.values()))
    found = [StepFolders(step, others[name], name) for name, step in steps.items() if name in others]
    if not found:
        raise MsprobeException(f"{target} and {golden} have no step in common.")
    alone = [
        f"{step} has no counterpart in the {side} {path}: it is not compared."
        for mine, theirs, side, path in ((steps, others, "golden run", golden), (others, steps, "target", target))
        for name, step in mine.items()
        if name not in theirs
    ]
    return found, alone


def _steps(path: str) -> Mapping[str, str]:
    """The folder of each step at a path, by its name below it."""
    found = find_dumps(path)
    warn_of_left_out(found)
    return {"": found.path} if found.is_one else {found.name_of_step(each): each.step_folder for each in found.dumps}


def dumps_of(step: str) -> dict[int, Dump]:
    """The dumps of all ranks of a step.

    Raises:
        MsprobeException: there is none.
    """
    dumps = {rank: read(path) for rank, path in rank_folders(step).items()}
    if not dumps:
        raise MsprobeException(f"{step} holds no rank folders; give the folder of a step with its ranks.")
    return dumps


def rank_folders(step: str) -> dict[int, str]:
    """The folder of each rank of a step; that of a run of one process, which has no rank, is the one of rank 0."""
    found = find_dumps(step)
    if found.is_one:
        return {}
    # A folder ``rank`` without a number is that of rank 0.
    ranks = {each.rank or 0: each.path for each in found.dumps if not each.process}
    return ranks if ranks or len(found.dumps) > 1 else {0: found.dumps[0].path}


def fit_shapes(copy: Merged, other: Merged) -> None:
    """Give tensors of which it is not known along which dimension they are split the shape that fits the other run.

    A tensor keeps the shape of one piece where none fits or several do, and where both runs have the same pieces.
    """
    runs = (copy, other)
    for name in dict.fromkeys(name for run in runs for name, how in run.items.items() if how.fields is not None):
        if _pieces(copy, name) == _pieces(other, name):
            continue
        common = _possible_shapes(copy, name) & _possible_shapes(other, name)
        if len(common) == 1:
            (shape,) = common
            for run in runs:
                _set_shape(run, name, shape)


def _possible_shapes(run: Merged, name: str) -> set[Shape]:
    """The shapes that an item can have as a whole."""
    how = run.items.get(name)
    if how is not None and how.fields is not None:
        pieces = _pieces(run, name)
        return {_joined(pieces, axis) for axis in range(len(pieces[0])) if _differ_in_no_other(pieces, axis)}
    record = record_of(name, run.dump)
    items = run.dump.items(run.dump[record]) if record else []
    return {item.shape for item in items if item.name == name and item.shape is not None}


def _pieces(run: Merged, name: str) -> list[Shape]:
    """The shapes of the pieces of an item; none of one that every rank has whole."""
    how = run.items.get(name)
    return [] if how is None else [part.shape or () for part in how.parts]


def _differ_in_no_other(pieces: Sequence[Shape], axis: int) -> bool:
    return len({(piece[:axis], piece[axis + 1 :]) for piece in pieces}) == 1


def _joined(pieces: Sequence[Shape], axis: int) -> Shape:
    first = pieces[0]
    return (*first[:axis], sum(piece[axis] for piece in pieces), *first[axis + 1 :])


def _set_shape(run: Merged, name: str, shape: Shape) -> None:
    how = run.items.get(name)
    if how is None or how.fields is None:
        return
    pieces = _pieces(run, name)
    how.fields["shape"] = list(shape)
    (axis,) = (axis for axis, size in enumerate(shape) if size != pieces[0][axis])
    record = record_of(name, run.dump)
    sentence = (
        f"{name[len(record) + 1 :]}: pieces {', '.join(map(shape_text, pieces))} along dimension {axis} are "
        f"{shape_text(shape)}, which fits the other run."
    )
    said = run.sentences[record]
    said[said.index(how.sentences[-1])] = sentence
    how.sentences[-1] = sentence


# --- partners


@dataclass(frozen=True)
class Partner:
    """A call of another rank that belongs to a call."""

    rank: int
    name: str
    text: str
    """The use of it by the call: ``send to rank 1``, ``all_reduce with ranks 0-3``."""


@dataclass(frozen=True)
class Partners:
    """The partners of all calls of a step."""

    of_calls: dict[tuple[int, str], list[Partner]] = field(default_factory=dict)
    """By rank and name of a call."""
    unpaired: list[tuple[int, str]] = field(default_factory=list)
    """Rank and a sentence for each call that lacks a partner, in the order of ranks and calls."""

    def unpaired_of(self, ranks: Collection[int]) -> list[str]:
        """The sentences on the calls of these ranks."""
        return [sentence for rank, sentence in self.unpaired if rank in ranks]

    def matched_distributed(self, rank: int, name: str) -> dict[str, Any]:
        """The fields of the drop-in database for a call; empty if it has no partner."""
        found = self.of_calls.get((rank, name), [])
        # The second text would be the status of the partner, of which the ranks beside it know nothing.
        nodes = {str(partner.rank): ["Nan", partner.name] for partner in found}
        return {"communications_type": "send_receive", "nodes_info": nodes} if nodes else {}


def partners(dumps: Mapping[int, Dump], rank_size: int = 0) -> Partners:
    """Pair the communication calls of the ranks of one step by group, kind, order, peer and tag.

    Args:
        dumps: of each rank that was recorded.
        rank_size: how many ranks the run had, where some were not recorded; those of calls that name no group.

    Raises:
        DumpFormatError: a record of a communication call is damaged.
    """
    ranks = sorted({*dumps, *range(rank_size)})
    calls = [list(_calls(rank, dumps[rank])) for rank in sorted(dumps)]
    found = Partners()
    for exchange in exchanges(calls, ranks):
        call = exchange.call
        of_call = found.of_calls.setdefault((call.rank, call.record), [])
        text = _text(exchange)
        of_call += (Partner(partner.rank, partner.record, text) for partner in exchange.partners)
        sentence = _unpaired(exchange, text, dumps)
        if sentence:
            found.unpaired.append((call.rank, sentence))
    return found


def _calls(rank: int, dump: Dump) -> Iterable[CollectiveCall]:
    for index, record in enumerate(dump):
        if is_communication(record.name):
            yield CollectiveCall(rank, index, record.name, tuple(dump.items(record)))


def _text(exchange: Exchange) -> str:
    others = [rank for rank in exchange.ranks if rank != exchange.call.rank]
    if exchange.what == "send":
        return f"send to rank {ranges(others)}" if others else "send"
    if exchange.what == "recv":
        return f"receive from rank {ranges(others)}" if others else "receive from any rank"
    return f"{exchange.what} with {'ranks' if len(exchange.ranks) > 1 else 'rank'} {ranges(sorted(exchange.ranks))}"


def _unpaired(exchange: Exchange, text: str, dumps: Mapping[int, Dump]) -> str:
    call = exchange.call
    begin = f"{call.record} of rank {call.rank} ({text})"
    lost = [rank for rank in exchange.missing if rank not in dumps]
    silent = [rank for rank in exchange.missing if rank in dumps]
    if silent:
        return f"{begin} has no call that belongs to it on rank {ranges(silent)}."
    if lost:
        return f"{begin} cannot be paired: rank {ranges(lost)} was not recorded."
    if not exchange.partners and exchange.what in ("send", "recv"):
        return f"{begin} has no call that belongs to it."
    return ""
