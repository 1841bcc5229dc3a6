"""A golden run of which each call is held against the call of this name while the program runs.

One mechanism for ``bench_path``, which asks if two tensors are the same, and for ``against``, which asks how far they
are apart.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from probe.common import log
from probe.common.dump import naming
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.items import INPUT, PARAMETERS, Item, flatten
from probe.common.dump.reading.runs import DumpLocation, find_dumps
from probe.common.dump.sketch_file import NO_SKETCH, ROW, SKETCH, SketchTable, table_in
from probe.common.dump.sketch_writer import each_entry
from probe.common.errors import DumpFormatError, FileCheckException, MsprobeException
from probe.common.interfaces import Entry
from probe.common.numerics.error_bounds import are_comparable, is_same, relative_difference

if TYPE_CHECKING:
    from probe.collect.sinks.journal.dump_folder import DumpFolder


class Differing(NamedTuple):
    """The tensors of a call that are not those of its counterpart."""

    are_returned: list[bool]
    """False of an input or a parameter."""
    mine: list[bytes]
    """The sketches of each; empty where the sizes are known."""
    theirs: list[bytes]
    sizes: Sequence[float] = ()
    """The distances."""


class Apart(NamedTuple):
    """The largest distances of a call from its counterpart: norms of differences, relative to the larger norm.

    Infinite where tensors are not the same and nothing tells by how much.
    """

    given: float
    """The distance of its inputs and parameters."""
    returned: float
    """The distance of its results."""


def distances(calls: Sequence[Differing]) -> list[Apart]:
    """The distances of some calls; those of sketches are taken together."""
    mine, theirs = ([row for call in calls for row in rows(call)] for rows in (_mine, _theirs))
    measured = iter(_relative(mine, theirs))
    found = []
    for call in calls:
        largest = [0.0, 0.0]
        for size, is_returned in zip(call.sizes or islice(measured, len(call.mine)), call.are_returned):
            largest[is_returned] = max(largest[is_returned], size)
        found.append(Apart(*largest))
    return found


_mine, _theirs = attrgetter("mine"), attrgetter("theirs")


class GoldenRun:
    """The golden run, step by step.

    Args:
        path: a run, or the dump of one step or process.
        key: the key of the configuration that names it, for messages.
        by_checksum: true if tensors are the same when their checksums are.

    Raises:
        MsprobeException: it holds no dump, or no values.
    """

    def __init__(self, path: str, key: str, by_checksum: bool) -> None:
        self.path, self._key = path, key
        self._by_checksum = by_checksum
        self._found = find_dumps(path)
        first = read(self._found.dumps[0].path)
        if first.task == "structure":
            raise MsprobeException(f'{key} {path}: its task is "structure", without values; give one with statistics.')
        self._step = 0
        self._first: int | None = None
        """The first step that was compared with a dump which does not say its step."""
        self._folder: DumpFolder | None = None
        """The folder of the step, as long as nothing of it was compared."""
        self.location: DumpLocation | None = None
        """The dump of this step and process in the golden run, once a record was compared."""
        self._dump: Dump | None = None
        self._sketches: SketchTable | None = None
        self._compared = 0
        """The calls of this step that the golden run has as well."""
        self._other_inputs: list[str] = []
        """The calls of this step that have other inputs or parameters."""
        self._is_alone_told = False

    def begin_step(self, step: int, folder: DumpFolder) -> None:
        """Hold what follows against the step of this number, and the same process.

        Args:
            step: the number.
            folder: the folder of the step and the process, whose rank may be known later.
        """
        self._dump = self._sketches = self.location = None
        self._compared, self._other_inputs, self._is_alone_told = 0, [], False
        self._step, self._folder = step, folder

    def _open(self, folder: DumpFolder) -> None:
        self._folder = None
        location = self._counterpart(self._step, os.path.basename(folder.path))
        if location is None:
            log.warning(f"{self._key} {self.path} has no dump of {folder.relative}: nothing to compare this step with.")
            return
        try:
            self._dump = read(location.path)
        except (DumpFormatError, FileCheckException) as error:
            log.warning(f"{error} There is nothing to compare this step with.")
            return
        self.location = location
        self._sketches = None if self._by_checksum else self._dump.sketches

    def _counterpart(self, step: int, process: str) -> DumpLocation | None:
        """The dump of this process; numbers of processes differ between runs, so that a lone one stands for any."""
        if self._found.is_one:
            (one,) = self._found.dumps
            # A dump that does not say its step is that of the first one.
            is_its_step = one.step == step or (one.step is None and self._first in (None, step))
            self._first = step if self._first is None else self._first
            return one if is_its_step else None
        found = [each for each in self._found.dumps if each.step in (step, None)]
        same = [each for each in found if each.name == process and not each.process]
        alone = [each for each in found if each.process] if process.startswith("proc") else []
        return next(iter(same or (alone if len(alone) == 1 else [])), None)

    def has(self, name: str) -> bool:
        """True if the golden run has this record; the first one that it lacks is logged once a step."""
        if self._folder is not None:
            self._open(self._folder)
        if self._dump is None:
            return False
        if name in self._dump:
            return True
        if not self._is_alone_told:
            self._is_alone_told = True
            log.info(f"{self._key}: the golden run has no {name}; calls of one run alone are not compared.")
        return False

    def differing(self, name: str, fields: Any) -> Differing | None:
        """The tensors of a call that differ; ``None`` where the golden run lacks it, or nothing is seen to differ."""
        if not self.has(name):
            return None
        found = (
            self._differing_items(name, fields) if self._sketches is None else self._differing_sketches(name, fields)
        )
        self._compared += 1
        if found is not None and not all(found.are_returned):
            self._other_inputs.append(name)
        return found

    def _differing_sketches(self, name: str, fields: Any) -> Differing | None:
        assert self._sketches is not None
        packed = self._sketches.packed
        # Of a backward and of gradients of parameters as well, results are named so.
        output, all_returned = f"{name}.output", naming.is_gradients(name)
        found = Differing([], [], [])
        unsketched: list[str] = []

        def add(item: str, entry: Entry) -> None:
            sketch, other = entry.get(SKETCH), packed(item)
            if type(sketch) is not bytes or other == NO_SKETCH:
                if "dtype" in entry:
                    unsketched.append(item)
            elif other is not None and other != sketch:
                found.are_returned.append(all_returned or item.startswith(output))
                found.mine.append(sketch[:ROW])
                found.theirs.append(other[:ROW])

        each_entry(name, fields, add)
        if unsketched:
            # Arrays of numpy have none, nor has a run that is recorded without.
            return self._differing_items(name, fields)
        return found if found.mine else None

    def _differing_items(self, name: str, fields: Any) -> Differing | None:
        """The tensors that are not the same by checksums, or without sketches by statistics, each with its distance."""
        assert self._dump is not None
        golden = {item.name: item for item in self._dump.items(self._dump[name]) if item.is_tensor}
        states, sizes = [], []
        for item in flatten(name, fields):
            other = golden.pop(item.name, None)
            if item.is_tensor and other is not None and not self._are_same(item, other):
                size = math.inf if self._by_checksum else relative_difference(item, other)
                states.append(item.state)
                sizes.append(size if size == size else math.inf)
        # A tensor that one run alone gives to a call.
        states += [item.state for item in golden.values() if self._by_checksum and item.state in (INPUT, PARAMETERS)]
        sizes += [math.inf] * (len(states) - len(sizes))
        return Differing([state not in (INPUT, PARAMETERS) for state in states], [], [], sizes) if states else None

    def _are_same(self, item: Item, other: Item) -> bool:
        if self._by_checksum:
            return item.md5 == other.md5
        return is_same(item, other) or not are_comparable(item, other)

    def has_other_items(self, folder: str) -> bool:
        """True if the files of this step have other tensors, by their names, than the golden run, or other calls."""
        if self._dump is None:
            return False
        mine = table_in(folder)
        if mine is None or self._sketches is None:
            return {record.name for record in read(folder)} != {record.name for record in self._dump}
        return set(mine.names()) != set(self._sketches.names())

    def log_other_inputs(self, step: str) -> None:
        """Log how many calls of the step have other inputs or parameters, and the first of them."""
        if self._other_inputs:
            count, first = len(self._other_inputs), self._other_inputs[0]
            log.info(
                f"{step}: {count} of {self._compared} calls have other inputs than in {self._key}, so their outputs "
                f"are not compared; the first is {first}."
            )
        self._compared, self._other_inputs = 0, []


def _relative(mine: list[bytes], theirs: list[bytes]) -> list[float]:
    """The relative distances of sketches, infinite where one is none, or elements differ that they leave out."""
    if not mine:
        return []
    one, other = (np.frombuffer(b"".join(each), "<f4").reshape(len(each), -1) for each in (mine, theirs))
    one, other = one.astype(np.float64), other.astype(np.float64)
    differences = np.sqrt(np.square(one - other).sum(1))
    norms = np.sqrt(np.maximum(np.square(one).sum(1), np.square(other).sum(1)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return [each or math.inf if each == each else math.inf for each in (differences / norms).tolist()]
