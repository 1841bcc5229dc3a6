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

import os
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Optional

from probe.common import files
from probe.common.dump.json_decode import with_numbers
from probe.common.dump.json_encode import encode
from probe.common.dump.layout import CONSTRUCT_FILE, DUMP_FILE, STACK_FILE, step_folder
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import Record
from probe.common.dump.update_file import Update
from probe.common.errors import MsprobeException
from probe.shards.part import Calls, MergedItem
from probe.shards.split import Split, check_ranks, numbers
from probe.shards.stages import merge_stages
from probe.shards.tensors import calls_of, merge_tensors


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
    notes = [f"Merged of ranks {numbers(ranks)} ({split}).", *calls.notes] if len(ranks) > 1 else calls.notes
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
        ranks = f"Merged of ranks {numbers([part.rank for part in how.parts])}."
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
