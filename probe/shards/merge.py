"""The dumps of the ranks of one step, among which a model is split, as one dump for each copy of the model.

`merged` gives dumps that are read, drawn and compared like any other: what merges is done before. `write` makes files
of them. An example, for the command line::

    target_split, golden_split = splits(2, [4, 1], [2, 1], [2, 1])
    for copy in merged({rank: read(f"run/step0/rank{rank}") for rank in range(4)}, target_split, "run/step0"):
        graph_of(copy.dump)          # and compare copy.dump with that of the golden run
        copy.sentences[record]       # how the record was made, for the page: "merged"
        copy.origins[record]         # of which ranks, and its name there: "parts"
        copy.items[item].parts       # the values of each rank
        write(copy, folder_of(copy, "out"))   # --file_type json: out/step0/rank0/{dump,construct,stack}.json
"""

from __future__ import annotations

import math
import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from probe.common import files
from probe.common.collectives.collectives import group_of, is_communication
from probe.common.dump.json_decode import number, with_numbers
from probe.common.dump.json_files import encode
from probe.common.dump.layout import CONSTRUCT_FILE, DUMP_FILE, STACK_FILE, step_folder
from probe.common.dump.naming import function_name, is_gradients
from probe.common.dump.reading import items
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.items import Shape, as_shape
from probe.common.dump.reading.records import Record
from probe.common.dump.update_file import Update
from probe.common.errors import MsprobeException
from probe.common.numerics.formats import rounds
from probe.common.ranges import ranges
from probe.shards.shapes import SplitDimensions
from probe.shards.split import Calls, MergedItem, PartOfItem, Split, check_ranks
from probe.shards.stages import merge_stages

_FORM = "type", "dtype", "shape", "requires_grad"
_STATISTICS = ("Max", "Min", "Mean", "Norm")
_PARTS = (
    ("input_args", "input"), ("input", "input"), ("input_kwargs", "input"),
    ("parameters", "parameters"), ("output", "output"),
)  # fmt: skip
_SCATTERED = ("reduce_scatter_tensor", "_reduce_scatter_base")
_GATHERED = ("all_gather_into_tensor", "_all_gather_base")
"""Functions that cut along the first dimension, and functions that join along it."""
_REDUCTIONS = {
    f"{prefix}{name}": word
    for prefix in ("", "ReduceOp.", "RedOpType.")
    for name, word in (("SUM", "sum"), ("MAX", "maximum"), ("MIN", "minimum"))
}
"""The operations of reductions, and what they return in words."""

Pieces = Sequence[dict[str, Any]]
"""The fields of one tensor on each rank."""


def calls_of(dump: Dump, rank: int) -> Calls:
    """The calls of one rank.

    Raises:
        MsprobeException: it is no dump of statistics.
    """
    if dump.task not in (None, "statistics"):
        raise MsprobeException(f'{dump.path}: "task" is "{dump.task}"; allowed for merged ranks: "statistics".')
    records = {record.name: record.fields for record in dump}
    tree = dict(dump.tree or {})
    origins = {name: [(rank, name)] for name in (*tree, *records)}
    notes = [f"{dump.path} {dump.ending}: what it lacks is not merged."] if dump.ending else []
    return Calls(tree, records, dict(dump.stacks or {}), origins, notes=notes)


def merge_tensors(ranks: Sequence[int], calls: Sequence[Calls]) -> Calls:
    """The calls of ranks that share the layers of a stage, as one."""
    if len(calls) == 1:
        return calls[0]
    return _TensorParallel(ranks, calls).merged()


class _TensorParallel:
    def __init__(self, ranks: Sequence[int], calls: Sequence[Calls]) -> None:
        self._ranks = ranks
        self._calls = calls
        self._items: dict[str, MergedItem] = {}
        self._dimensions = SplitDimensions()
        self._sums: dict[tuple[Any, ...], dict[str, Any]] = {}

    def merged(self) -> Calls:
        first = self._calls[0]
        tree, records, stacks = dict(first.tree), {}, dict(first.stacks)
        notes = [note for calls in self._calls for note in calls.notes]
        self._find_sums()
        common = [name for name in first.records if all(name in calls.records for calls in self._calls)]
        for name in common:
            records[name] = self._record(name, [calls.records[name] for calls in self._calls])
        origins = {
            name: [(rank, name) for rank, calls in zip(self._ranks, self._calls) if name in calls.origins]
            for name in first.origins
        }
        for rank, calls in zip(self._ranks, self._calls):
            alone = [name for name in calls.records if name not in records]
            for name in alone:
                records[name] = calls.records[name]
                stacks.setdefault(name, calls.stacks.get(name, []))
                origins[name] = [(other, name) for other, of in zip(self._ranks, self._calls) if name in of.records]
            if alone:
                notes.append(
                    f"{alone[0]}{f' and {len(alone) - 1} more calls' if len(alone) > 1 else ''} of rank {rank} "
                    f"are not on all of ranks {ranges(self._ranks)}: they are as on that rank."
                )
            for name, parent in calls.tree.items():
                tree.setdefault(name, parent)
                origins.setdefault(name, [(rank, name)])
        return Calls(tree, records, stacks, origins, self._items, notes)

    def _find_sums(self) -> None:
        """The sums, and other reductions, of what each rank computed a summand of, by these summands."""
        for name, fields in self._calls[0].records.items():
            reduced = self._reduction(name, fields) if is_communication(name) else ""
            if not reduced:
                continue
            pieces = [calls.records.get(name) for calls in self._calls]
            given, returned = _first_tensors(pieces, "input_args"), _first_tensors(pieces, "output")
            if given is None or returned is None or _alike(given):
                continue
            if function_name(name) in _GATHERED:
                self._dimensions.note_split(_fingerprint(given))
            elif function_name(name) in _SCATTERED:
                self._dimensions.note_split(_fingerprint(returned))
                self._sums[_fingerprint(given)] = {
                    **_merged_statistics("", returned)[0],
                    "from": name,
                    "reduced": reduced,
                }
            elif "reduce" in name and _alike(returned) and given[0].get("shape") == returned[0].get("shape"):
                self._sums[_fingerprint(given)] = {**returned[0], "from": name, "reduced": reduced}

    def _reduction(self, name: str, fields: dict[str, Any]) -> str:
        """The reduction over all ranks that a call computes, in words; empty of any other call."""
        group = group_of(items.flatten(name, fields))
        operation = (fields.get("input_kwargs") or {}).get("op") or {}
        is_of_all = group in (None, tuple(self._ranks))
        return _REDUCTIONS.get(str(operation.get("value", "SUM")), "") if is_of_all else ""

    def _record(self, name: str, pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
        self._dimensions.begin(name, pieces)
        merged = dict(pieces[0])
        if is_gradients(name):
            for key in merged:
                merged[key] = self._gradient(f"{name}.{key}", [piece.get(key) for piece in pieces])
            return merged
        for key, state in _PARTS:
            if merged.get(key) is not None:
                merged[key] = self._value(f"{name}.{state}", [piece.get(key) for piece in pieces])
        return merged

    def _gradient(self, name: str, pieces: Sequence[Any]) -> Any:
        """The gradient of a parameter, which stands in a list of its own."""
        if all(isinstance(piece, list) for piece in pieces):
            return [self._value(name, list(of_ranks)) for of_ranks in zip(*pieces)]
        return self._value(name, pieces)

    def _value(self, name: str, pieces: Sequence[Any]) -> Any:
        """The text that stands under `name` on each rank, as one."""
        first = pieces[0]
        if isinstance(first, dict) and all(isinstance(piece, dict) for piece in pieces):
            if isinstance(first.get("dtype"), str) and isinstance(first.get("type"), str):
                return self._tensor(name, pieces)
            if isinstance(first.get("tensor"), dict):
                return {**first, "tensor": self._value(name, [piece.get("tensor") for piece in pieces])}
            if isinstance(first.get("type"), str):
                return first
            return {key: self._value(f"{name}.{key}", [piece.get(key) for piece in pieces]) for key in first}
        if isinstance(first, list) and all(isinstance(piece, list) for piece in pieces):
            return [self._value(f"{name}.{position}", list(of_ranks)) for position, of_ranks in enumerate(zip(*pieces))]
        return first

    def _tensor(self, name: str, pieces: Pieces) -> Any:
        if any("Max" not in piece and "md5" in piece for piece in pieces):
            raise MsprobeException(
                f'{name} has a checksum and no statistics ("md5"); checksums of pieces do not give that of the whole: '
                'collect with "summary_mode": "statistics" to merge ranks.'
            )
        self._dimensions.see(name)
        whole = {key: value for key, value in pieces[0].items() if key not in ("md5", "data_name")}
        is_constant = number(whole.get("Max")) == number(whole.get("Min"))
        if _alike(pieces) and not (is_constant and self._dimensions.must_be_split(name, _shapes(pieces))):
            self._dimensions.note_whole(name, _shapes(pieces))
            return whole
        summed = self._sums.get(_fingerprint(pieces)) if not is_communication(name) else None
        if summed is not None:
            whole.update({key: summed[key] for key in _STATISTICS if key in summed})
            sentences = [
                f"{self._short(name)}: each of ranks {ranges(self._ranks)} has a "
                f"{'summand' if summed['reduced'] == 'sum' else 'part'}; the values are those of "
                f"their {summed['reduced']}, which {summed['from']} returned."
            ]
            self._items[name] = MergedItem("sum", sentences, self._parts(name, pieces))
            self._dimensions.note_whole(name, _shapes(pieces))
            return whole
        if self._dimensions.are_summands(name, _shapes(pieces)):
            return self._left_out(name, pieces, "a summand")
        if self._dimensions.may_be_summands(name, _shapes(pieces)):
            return self._left_out(name, pieces, "a piece or a summand")
        short = self._short(name)
        statistics, sentences = _merged_statistics(short, pieces)
        whole.update(statistics)
        is_computed = rounds(whole["dtype"])
        are_pieces = is_computed and not is_communication(name)
        shape, sentence = self._dimensions.whole(name, _shapes(pieces), _fingerprint(pieces), are_pieces)
        if shape is not None:
            whole["shape"] = list(shape)
        fields = whole if shape is None and not is_communication(name) else None
        self._items[name] = MergedItem("split", [*sentences, f"{short}: {sentence}"], self._parts(name, pieces), fields)
        return whole

    def _left_out(self, name: str, pieces: Pieces, kind: str) -> dict[str, Any]:
        """A gradient without values: of summands, or what may be that, no call returned the sum."""
        means = ", ".join(repr(number(piece.get("Mean"))) for piece in pieces)
        sentence = (
            f"{self._short(name)}: each of ranks {ranges(self._ranks)} has {kind}, of means {means}; their "
            "sum was not recorded, and the values of the gradient are left out."
        )
        form = {key: value for key, value in pieces[0].items() if key in _FORM}
        shape = f"{self._short(name)}: the shape is that on rank {self._ranks[0]}."
        self._items[name] = MergedItem("sum", [sentence, shape], self._parts(name, pieces), form)
        return form

    def _short(self, name: str) -> str:
        """``input.0`` of the item of a record."""
        return name[len(self._dimensions.record) + 1 :]

    def _parts(self, name: str, pieces: Pieces) -> list[PartOfItem]:
        return [
            PartOfItem(rank, name, as_shape(piece.get("shape")), *(number(piece.get(key)) for key in _STATISTICS))
            for rank, piece in zip(self._ranks, pieces)
        ]


def _first_tensors(pieces: Sequence[dict[str, Any] | None], key: str) -> list[dict[str, Any]] | None:
    """The first tensor under `key` of the record on each rank; an argument that is filled is none of the inputs."""
    found = []
    for piece in pieces:
        values = (piece or {}).get(key)
        first = next((value for value in values if value is not None), None) if isinstance(values, list) else None
        if not isinstance(first, dict) or "Max" not in first:
            return None
        found.append(first)
    return found


def _shapes(pieces: Pieces) -> list[Shape]:
    return [as_shape(piece.get("shape")) or () for piece in pieces]


def _fingerprint(pieces: Pieces) -> tuple[Any, ...]:
    """The mark that tells the tensors of all ranks from others."""
    return tuple((tuple(piece.get("shape") or ()), *(str(piece.get(key)) for key in _STATISTICS)) for piece in pieces)


def _alike(pieces: Pieces) -> bool:
    return len(set(_fingerprint(pieces))) == 1


def _merged_statistics(name: str, pieces: Pieces) -> tuple[dict[str, Any], list[str]]:
    """The statistics of the whole tensor, and a sentence for each."""
    found: dict[str, Any] = {}
    sentences: list[str] = []
    sizes = [math.prod(shape) for shape in _shapes(pieces)]
    for key in _STATISTICS:
        given = [(number(piece.get(key)), size) for piece, size in zip(pieces, sizes) if piece.get(key) is not None]
        values = [value for value, _ in given if isinstance(value, (int, float))]
        if not given or len(values) < len(given):
            continue
        texts = [repr(value) for value in values]
        if key in ("Max", "Min"):
            found[key] = _extreme(max if key == "Max" else min, values)
            sentence = f"{key} is the {'largest' if key == 'Max' else 'smallest'} of {', '.join(texts)}"
        elif key == "Mean":
            weights = [size for _, size in given]
            found[key] = _mean(values, weights)
            weighted = "" if len(set(weights)) == 1 else f", weighted by {', '.join(map(str, weights))} elements"
            sentence = f"Mean is the mean of {', '.join(texts)}{weighted}"
        else:
            found[key] = math.nan if any(value != value for value in values) else math.hypot(*values)
            sentence = f"Norm is the root of the sum of the squares of {', '.join(texts)}"
        sentences.append(f"{name}: {sentence}, {found[key]!r}.")
    return found, sentences


def _extreme(choose: Any, values: Sequence[float]) -> float:
    """The largest or smallest; NaN where one is, as frameworks have it."""
    extreme: float = next((value for value in values if value != value), None) or choose(values)
    return extreme


def _mean(values: Sequence[float], weights: Sequence[int]) -> float:
    total = sum(weights)
    if not total or len(set(weights)) == 1:
        return sum(values) / len(values)
    return sum(value * weight for value, weight in zip(values, weights)) / total


# --- merge


@dataclass(frozen=True)
class Merged:
    """One copy of the model."""

    dump: Dump
    """The merged dump; its `rank` is the number of the copy: 0 where there is no data parallelism."""
    ranks: list[int]
    """The dumps that it was made of."""
    origins: dict[str, list[tuple[int, str]]]
    """The ranks that have each record and call, with its name there."""
    items: dict[str, MergedItem]
    """The way in which items were made, by their names; items that all ranks have alike are not in it."""
    sentences: dict[str, list[str]] = field(default_factory=dict)
    """The way in which each record was made of those of several ranks."""
    notes: list[str] = field(default_factory=list)
    """The parts that could not be merged, a sentence each."""


def merged(dumps: Mapping[int, Dump], split: Split, path: str) -> list[Merged]:
    """One dump for each copy of the model.

    Args:
        dumps: those of all ranks of one step.
        split: which ranks hold which part of the model.
        path: the folder of the step, for messages.

    Raises:
        MsprobeException: ranks are missing, or a dump has no statistics; the message names flag or file.
        DumpFormatError: a dump is damaged.
    """
    check_ranks(split, sorted(dumps), path)
    return [_copy(dumps, split, path, dp) for dp in range(split.dp)]


def _copy(dumps: Mapping[int, Dump], split: Split, path: str, dp: int) -> Merged:
    stages = split.stages(dp)
    of_stages = []
    for ranks in stages:
        _check_alike([dumps[rank] for rank in ranks])
        of_stages.append(merge_tensors(ranks, [calls_of(dumps[rank], rank) for rank in ranks]))
    calls = merge_stages(of_stages, stages, split.vpp)
    first = dumps[stages[0][0]]
    dump = Dump(_InMemory(path, first, calls))
    dump.step, dump.rank = first.step, dp
    ranks = sorted(rank for of_stage in stages for rank in of_stage)
    notes = [f"Merged of ranks {ranges(ranks)} ({split}).", *calls.notes] if len(ranks) > 1 else calls.notes
    return Merged(dump, ranks, calls.origins, calls.items, _sentences(calls), notes)


def _check_alike(dumps: list[Dump]) -> None:
    for dump in dumps:
        for what in ("framework", "level"):
            of_first, of_other = getattr(dumps[0], what), getattr(dump, what)
            if of_first != of_other:
                raise MsprobeException(
                    f'{dump.path}: "{what}" is "{of_other}"; allowed: "{of_first}", as in {dumps[0].path}. '
                    f"Ranks are merged only if they have the same {what}."
                )


def _sentences(calls: Calls) -> dict[str, list[str]]:
    """The sentences on each record and its items."""
    found = {name: list(sentences) for name, sentences in calls.sentences.items()}
    for item, how in calls.items.items():
        record = record_of(item, calls.records)
        if record not in found:
            found[record] = []
        ranks = f"Merged of ranks {ranges([part.rank for part in how.parts])}."
        if ranks not in found[record]:
            found[record].append(ranks)
        found[record] += how.sentences
    return found


def record_of(item: str, records: Container[str]) -> str:
    """The record among `records` that has an item; empty where none has."""
    name = item
    while name and name not in records:
        name = name.rpartition(".")[0]
    return name


class _InMemory:
    """The source of a merged dump that is in memory."""

    died = False
    cut_at: int | None = None

    def __init__(self, path: str, first: Dump, calls: Calls) -> None:
        self.path = path
        self.missing: list[str] = []
        self.task: Optional[str] = "statistics"  # noqa: UP045 (evaluated, on Python 3.9 too)
        self.level: Optional[str] = first.level  # noqa: UP045
        self.framework: Optional[str] = first.framework  # noqa: UP045
        self._calls = calls
        self._records = calls.records

    def records(self) -> list[Record]:
        return [Record(name, fields, self.path) for name, fields in self._records.items()]

    def release(self) -> None:
        self._records = {}

    def tree(self) -> dict[str, Optional[str]] | None:  # noqa: UP045
        return self._calls.tree

    def stacks(self) -> dict[str, list[str]] | None:
        return self._calls.stacks

    def updates(self) -> list[Update]:
        return []  # ranks have parts of parameters

    def sketches(self) -> None:
        """Parts of a split tensor have sketches by offsets of their own."""


def folder_of(copy: Merged, output: str) -> str:
    """The folder into which `write` puts a merged dump: ``step<S>/rank<R>`` below `output`."""
    return os.path.join(output, step_folder(copy.dump.step or 0), f"rank{copy.dump.rank or 0}")


def write(copy: Merged, folder: str) -> None:
    """Write ``dump.json``, ``construct.json`` and ``stack.json`` to `folder`.

    Raises:
        FileCheckException: the folder cannot be made.
        OSError: a file cannot be written.
    """
    dump = copy.dump
    files.make_folder(folder)
    head = {"task": dump.task, "level": dump.level, "framework": dump.framework, "dump_data_dir": None}
    stacks: dict[tuple[str, ...], list[str]] = {}
    for name, lines in (dump.stacks or {}).items():
        stacks.setdefault(tuple(lines), []).append(name)
    contents = {
        DUMP_FILE: {**head, "is_merged": True, "data": {record.name: with_numbers(record.fields) for record in dump}},
        CONSTRUCT_FILE: dict(dump.tree or {}),
        STACK_FILE: {str(number): [names, list(lines)] for number, (lines, names) in enumerate(stacks.items())},
    }
    for name, content in contents.items():
        with files.replacing(os.path.join(folder, name)) as stream:
            stream.write(encode(content, 0))
