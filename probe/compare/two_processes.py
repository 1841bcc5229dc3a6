"""One large pair of dumps with statistics, compared by two processes that begin at its two ends.

The calls are cut into blocks. This process takes the first block that is left and a fork of it the last, until none is,
so that both end at the same time whatever else the processors do. A block depends on no other: items are matched inside
a call, and are measured, judged and written call by call. What does depend is done here afterwards: where the runs
diverge, for which a digest of most calls is enough, and what the golden side has alone. Items are not kept and not
sent; those of the few calls that are needed again are made again.

The fork shares the text of both dumps, which are read before. What it has not done is done here, and what cannot be
done block by block is done in one process, with its errors.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from functools import cached_property, partial
from itertools import chain, islice
from typing import BinaryIO, NamedTuple

import msgspec

from probe.common import files
from probe.common.align.by_name import by_name
from probe.common.align.calls import KeyedCall, keys
from probe.common.align.row import Row
from probe.common.dump.naming import FORWARD
from probe.common.dump.reading.records import Record
from probe.common.errors import MsprobeException
from probe.common.parallel.fork import CannotFork, Fork, SharedCounter, can_fork, fork
from probe.common.progress import ProgressCallback
from probe.common.report.cells import Cells
from probe.common.report.fast_csv import csv_text
from probe.compare.answers.compared_values import with_compared_values
from probe.compare.comparison import classify_records
from probe.compare.coverage import count_parameters, coverage
from probe.compare.divergence.aligned_calls import AlignedCall, module_path
from probe.compare.divergence.call_digest import CallDigest, digest
from probe.compare.divergence.precision import TypePair, pairs_of_types
from probe.compare.divergence.search.runs import Runs
from probe.compare.divergences import add_divergence, set_divergence
from probe.compare.output import tables
from probe.compare.output.summary import Tally, tally
from probe.compare.output.table_files import CSV_ROWS
from probe.compare.pairing import pairing
from probe.compare.result import ComparisonResult, Mode, Unexplained
from probe.compare.rows.matching import Matched, has_checksum
from probe.compare.rows.measuring import measure_row
from probe.compare.two_dumps import Comparison

_CALLS = 64
"""How many calls a block has: enough that what is done once for each does not count, and so few that its text is below
128 KB. Memory for larger ones is got from the system each time, which took 21,000 page faults and 60 ms of 20,000
records."""
_MOST_BLOCKS = 8192
"""Their numbers fit into a pipe, at 4 bytes each."""
_FEW_RECORDS = 4_000
"""Below this a fork does not pay."""
_ROW_BYTES = 200
"""What a row takes up in a dump, about."""

_SAME_NAMES = True
"""Dumps of two frameworks, and those with a mapping, are compared in one process."""

_GoldenOnly = dict[str, list[Row]]
"""The rows that the target does not have, by record."""


def can_be_compared(comparison: Comparison) -> bool:
    """True if `compare` is for these dumps, as far as that is known before their items are made."""
    target, golden, options = comparison.target, comparison.golden, comparison.options
    return (
        can_fork()
        and target.task == golden.task == "statistics"
        and target.level == golden.level != "debug"
        and not (comparison.across_frameworks or target.died or golden.died)
        and options.rules.is_by_record
        and options.rules.otherwise is None
        and not (options.fuzzy or options.maps_names or options.pairs)
        and len(target) >= _FEW_RECORDS
        and os.path.getsize(target.path) < CSV_ROWS * _ROW_BYTES
    )


def compare(
    comparison: Comparison, path: str, watch: ProgressCallback | None = None
) -> tuple[ComparisonResult, Tally] | None:
    """Compare two dumps and write the table `path`; the result has no rows, the tally says what they come to.

    Returns:
        ``None`` where the dumps are to be compared in one process, and nothing is written.

    Raises:
        OSError: the table cannot be written.
    """
    try:
        return _TwoProcesses(comparison).compare(path, watch)
    except (_Unsuited, CannotFork, MsprobeException):
        # One process reports what is wrong in its own order.
        return None


class _Unsuited(Exception):
    """Two dumps that are compared in one process."""


class _SameKey(NamedTuple):
    """A record of the target, and the one of the golden side with the same key."""

    key: str
    target: Record
    golden: Record


class _Block(msgspec.Struct):
    """What comes of a block besides its text."""

    tally: Tally
    digests: list[CallDigest]
    """The digest of each of its calls."""
    empty: list[int]
    """The calls that have no items, by their numbers in the block."""
    golden_only: list[int]
    """The calls of which the golden side has an item alone."""
    types: list[tuple[TypePair, int]]
    """The pairs of types of its items, and how many have each."""
    parameters: tuple[int, int]
    """What `count_parameters` says of its items."""
    size: int = 0
    """The bytes of its text."""


class _TwoProcesses:
    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._target, self._golden = comparison.target, comparison.golden
        self._rules = comparison.options.rules
        self._pairs = _side_by_side(self._target.records, self._golden.records)
        self._check_module_paths()
        self._stacks = self._target.stacks
        self._length = max(_CALLS, -(-len(self._pairs) // _MOST_BLOCKS))
        self._numbers = range(-(-len(self._pairs) // self._length))
        self._process = os.getpid()

    def _check_module_paths(self) -> None:
        """Check that the calls of functions that have one name are in one module.

        Raises:
            _Unsuited: they are not, and their counterparts are found among all rows only.
        """
        tree, golden_tree = self._target.tree, self._golden.tree
        if not tree or not golden_tree:
            return
        for _, target, golden in self._pairs:
            if FORWARD not in target.name or tree.get(target.name) == golden_tree.get(golden.name):
                continue  # A backward is where its forward is, also where recomputation has numbered it anew.
            if module_path(target.name, tree) != module_path(golden.name, golden_tree):
                raise _Unsuited

    @cached_property
    def _order(self) -> dict[str, int]:
        """The number of each golden record."""
        return {record.name: number for number, record in enumerate(self._golden.records)}

    def compare(self, path: str, watch: ProgressCallback | None) -> tuple[ComparisonResult, Tally]:
        with (
            SharedCounter(len(self._numbers)) as left,
            files.nameless(os.path.dirname(path)) as texts,
            fork(partial(self._from_the_end, left, texts)) as other,
        ):
            done, golden_only, total = self._write_table(path, left, texts, other, watch)
        result = self._result([])
        result.golden_stacks, result.tables = self._golden.stacks, [path]
        if total.target_alone or total.golden_alone:
            self._add_divergence(result)
            total.golden_alone.sort(key=self._order.__getitem__)
        else:
            result.levels = self._target.level, self._golden.level
            trees = self._target.tree, self._golden.tree
            types = sum((Counter(dict(block.types)) for block in done), Counter[TypePair]())
            calls = self._aligned_calls(done, golden_only)
            compared, parameters = (sum(counts) for counts in zip(*(block.parameters for block in done)))
            pairs = [(call.record, call.golden_record) for call in calls]
            golden = [name for _, name in pairs if name]
            result.coverage = coverage(with_compared_values(calls), golden, trees, (compared, parameters))
            result.pairing = pairing(pairs, self._comparison.options)
            before, everything = self._comparison.before, self._comparison.options.all_divergences
            of_level = Mode.STATISTICS, self._target.level or ""
            runs = Runs(calls, *of_level, trees, _SAME_NAMES, types=types, before=before, everything=everything)
            if runs.peers.are_asked:
                # Peers are compared by their rows, which blocks do not keep.
                raise _Unsuited
            set_divergence(result, runs)
        if result.divergence is not None:
            self._blame(result.divergence.first, path, total)
        return result, total

    def _write_table(
        self, path: str, left: SharedCounter, texts: BinaryIO, other: Fork, watch: ProgressCallback | None
    ) -> tuple[list[_Block], _GoldenOnly, Tally]:
        done: list[_Block] = []
        with files.replacing(path) as table:
            table.write(csv_text([Cells([tuple(tables.columns(self._result([])))])]))
            for number in self._numbers:
                taken = left.take()
                if taken is None:
                    break
                done.append(self._write(number, table))
                if watch is not None:
                    watch("records", min(taken * self._length, len(self._pairs)), len(self._pairs))
            theirs = _blocks(other.answer())
            if theirs is None:
                done += [self._write(number, table) for number in self._numbers[len(done) :]]
            else:
                done += _append(theirs, texts, table)
            golden_only, total = self._golden_only(done), tally([], Mode.STATISTICS, self._rules)
            table.write(self._text(list(chain.from_iterable(golden_only.values()))))
            for block in done:
                total.add(block.tally)
            if total.rows > CSV_ROWS:
                raise _Unsuited
        return done, golden_only, total

    # --- blocks

    def _from_the_end(self, left: SharedCounter, texts: BinaryIO) -> bytes:
        """What the fork does: the blocks, in order, and their texts from the last to the first."""
        done = []
        for number in reversed(self._numbers):
            # Nobody waits for it when this is a child of another process.
            if left.take() is None or os.getppid() != self._process:
                break
            done.append(self._write(number, texts))
        texts.flush()
        return msgspec.msgpack.encode(done[::-1])

    def _write(self, number: int, stream: BinaryIO) -> _Block:
        """Compare a block and write its rows."""
        pairs = self._block(number)
        calls, golden_only = self._rows(pairs)
        self._measure_and_judge(calls, golden_only)
        rows = list(chain.from_iterable(calls))
        text = self._text(rows)
        stream.write(text)
        alone = {row.record for row in golden_only}
        return _Block(
            tally(rows + golden_only, Mode.STATISTICS, self._rules),
            [digest(of_call, Mode.STATISTICS) for of_call in calls],
            [index for index, of_call in enumerate(calls) if not of_call],
            [index for index, pair in enumerate(pairs) if pair.golden.name in alone],
            list(pairs_of_types(rows).items()),
            count_parameters(rows + golden_only),
            len(text),
        )

    def _measure_and_judge(self, calls: list[list[Row]], golden_only: Iterable[Row] = ()) -> None:
        for row in chain(chain.from_iterable(calls), golden_only):
            measure_row(self._comparison, row, Mode.STATISTICS)
        classify_records(self._comparison, calls, Mode.STATISTICS)

    def _block(self, number: int) -> list[_SameKey]:
        return self._pairs[number * self._length : (number + 1) * self._length]

    def _rows(self, pairs: list[_SameKey]) -> tuple[list[list[Row]], list[Row]]:
        """The rows of the target's records, one by one, and what only the golden side has of them."""
        target, golden = self._calls(pairs)
        rows = by_name(target, golden)
        # Every item of the target has its row, in their order.
        return [list(islice(rows, len(call.items))) for call in target], list(rows)

    def _calls(self, pairs: list[_SameKey]) -> tuple[list[KeyedCall], list[KeyedCall]]:
        target, golden = [], []
        for key, mine, theirs in pairs:
            items = self._target.items(mine)
            target.append(KeyedCall(mine, key, items))
            is_same = mine.name == theirs.name and mine.has_same_text(theirs)
            golden.append(KeyedCall(theirs, key, items if is_same else self._golden.items(theirs)))
        if has_checksum(target) or has_checksum(golden):
            raise _Unsuited
        return target, golden

    def _text(self, rows: list[Row]) -> bytes:
        return csv_text(tables.block(self._result(rows), 0, len(rows))) if rows else b""

    def _result(self, rows: list[Row]) -> ComparisonResult:
        return ComparisonResult(self._target.path, self._golden.path, Mode.STATISTICS, False, rows, self._stacks)

    # --- all of them

    def _aligned_calls(self, done: list[_Block], golden_only: _GoldenOnly) -> list[AlignedCall]:
        """The calls that have items, where each has a match."""
        found = []
        for number, block in enumerate(done):
            empty = set(block.empty)
            for index, (pair, of_call) in enumerate(zip(self._block(number), block.digests)):
                if index not in empty:
                    name = pair.golden.name
                    more = golden_only.get(name, [])
                    rows = partial(self._made_again, pair, more)
                    found.append(AlignedCall(pair.target.name, name, rows, None if more else of_call))
        return found

    def _made_again(self, pair: _SameKey, golden_only: list[Row]) -> list[Row]:
        (rows,), _ = self._rows([pair])
        return rows + golden_only

    def _blame(self, first: Unexplained, path: str, total: Tally) -> None:
        """Say in the table, which is written, on which of its rows the runs diverge first."""
        for pair in self._pairs:
            if not first.item.startswith(f"{pair.target.name}."):
                continue
            (rows,), _ = self._rows([pair])
            self._measure_and_judge([rows])
            text, before = self._text(rows), tally(rows, Mode.STATISTICS, self._rules)
            if self._rules.blame(rows, first):
                files.replace_text(path, text, self._text(rows))
                order = {record.name: number for number, record in enumerate(self._target.records)}
                total.replace(before, tally(rows, Mode.STATISTICS, self._rules), order.__getitem__)
                return

    def _golden_only(self, done: list[_Block]) -> _GoldenOnly:
        """The rows that the target does not have, in the golden order."""
        found: _GoldenOnly = {}
        for number, block in enumerate(done):
            for index in block.golden_only:
                _, rows = self._rows([self._block(number)[index]])
                found[rows[0].record] = rows
        in_order = {record.name: found[record.name] for record in self._golden.records if record.name in found}
        self._measure_and_judge([], chain.from_iterable(in_order.values()))
        return in_order

    def _add_divergence(self, result: ComparisonResult) -> None:
        """Say where the runs end and diverge; calls that one side alone made have no place without all rows."""
        target, golden = self._calls(self._pairs)
        golden.sort(key=lambda call: self._order[call.record.name])
        result.rows = list(by_name(target, golden))
        add_divergence(self._comparison, (target, golden), Matched(result.rows, _SAME_NAMES), result)
        result.rows = []


def _side_by_side(target: list[Record], golden: list[Record]) -> list[_SameKey]:
    """The records of the target, each with the one of the golden side that has its key.

    Raises:
        _Unsuited: one side made a call that the other did not, and such a call finds its place among all rows only.
    """
    names = [record.name for record in target]
    if names == [record.name for record in golden]:
        # Both sides would be numbered in the same way.
        return list(map(_SameKey, names, target, golden))
    mine, theirs = keys(target), keys(golden)
    there = dict(zip(theirs, golden))
    if not len(mine) == len(theirs) == len(there) or there.keys() != set(mine):
        raise _Unsuited
    return [_SameKey(key, record, there[key]) for record, key in zip(target, mine)]


def _blocks(answer: bytes | None) -> list[_Block] | None:
    """What the fork answered; ``None`` if that is nothing."""
    try:
        return None if answer is None else msgspec.msgpack.decode(answer, type=list[_Block])
    except msgspec.DecodeError:
        return None


def _append(blocks: list[_Block], texts: BinaryIO, table: BinaryIO) -> list[_Block]:
    """Write the texts of `blocks`, which are those of `texts` in the opposite order."""
    end = os.fstat(texts.fileno()).st_size
    for block in blocks:
        texts.seek(end - block.size)
        text = texts.read(block.size)
        if len(text) != block.size:
            raise _Unsuited
        table.write(text)
        end -= block.size
    return blocks
