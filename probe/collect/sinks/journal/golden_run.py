"""A golden run of which each call is held against the call of this name while the program runs.

One mechanism for ``bench_path``, which asks if two tensors are the same, and for ``against``, which asks how far they
are apart.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from probe.common import log
from probe.common.dump import naming
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.items import INPUT, PARAMETERS, Item, flatten
from probe.common.dump.reading.runs import DumpLocation, find_dumps
from probe.common.dump.sketch_file import ROW, SKETCH, SketchTable
from probe.common.dump.sketch_writer import each_entry
from probe.common.errors import DumpFormatError, FileCheckException
from probe.common.interfaces import Entry
from probe.common.numerics.error_bounds import are_comparable, is_same, relative_difference

if TYPE_CHECKING:
    from probe.collect.sinks.journal.dump_folder import DumpFolder


class Apart(NamedTuple):
    """The largest distances of a call from its counterpart: norms of differences, relative to the larger norm.

    Infinite where tensors are not the same and nothing tells by how much.
    """

    given: float
    """The distance of its inputs and parameters."""
    returned: float
    """The distance of its results."""


class GoldenRun:
    """The golden run, step by step.

    Args:
        path: a run, or the dump of one step or process.
        key: the key of the configuration that names it, for messages.
        by_checksum: true if tensors are the same when their checksums are.

    Raises:
        FileCheckException: it holds no dump.
    """

    def __init__(self, path: str, key: str, by_checksum: bool) -> None:
        self.path, self._key = path, key
        self._by_checksum = by_checksum
        self._found = find_dumps(path)
        self._step = 0
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
            return self._found.dumps[0]
        found = [each for each in self._found.dumps if each.step in (step, None)]
        same = [each for each in found if each.name == process and not each.process]
        alone = [each for each in found if each.process] if process.startswith("proc") else []
        return (same or (alone if len(alone) == 1 else []) or [None])[0]

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

    def distances(self, name: str, fields: Any) -> Apart | None:
        """The distances of a call; ``None`` if the golden run lacks it, or it is the same there in all that is seen."""
        if not self.has(name):
            return None
        given = returned = 0.0
        # Of a backward and of gradients of parameters as well, results are named so.
        output, all_returned = f"{name}.output", naming.is_gradients(name)
        for item, size in self._differing(name, fields):
            if all_returned or item.startswith(output):
                returned = max(returned, size)
            else:
                given = max(given, size)
        self._compared += 1
        if given:
            self._other_inputs.append(name)
        return Apart(given, returned) if given or returned else None

    def _differing(self, name: str, fields: Any) -> list[tuple[str, float]]:
        """The tensors that are not the same, each with its distance."""
        table = self._sketches
        if table is None:
            return self._differing_items(name, fields)
        names: list[str] = []
        mine: list[bytes] = []
        theirs: list[bytes] = []

        def add(item: str, entry: Entry) -> None:
            sketch = entry.get(SKETCH)
            if type(sketch) is not bytes:
                return
            other = table.sums_of(item)
            if other is not None and other != (sketch if len(sketch) == ROW else sketch[:ROW]):
                names.append(item)
                mine.append(sketch[:ROW])
                theirs.append(other)

        each_entry(name, fields, add)
        return list(zip(names, _relative(mine, theirs))) if names else []

    def _differing_items(self, name: str, fields: Any) -> list[tuple[str, float]]:
        """The same by checksums, or where there are no sketches by statistics."""
        assert self._dump is not None
        golden = {item.name: item for item in self._dump.items(self._dump[name]) if item.is_tensor}
        found = []
        for item in flatten(name, fields):
            other = golden.pop(item.name, None)
            if item.is_tensor and other is not None and not self._are_same(item, other):
                size = math.inf if self._by_checksum else relative_difference(item, other)
                found.append((item.name, size if size == size else math.inf))
        if self._by_checksum:
            # A tensor that one run alone gives to a call.
            found += [(item.name, math.inf) for item in golden.values() if item.state in (INPUT, PARAMETERS)]
        return found

    def _are_same(self, item: Item, other: Item) -> bool:
        if self._by_checksum:
            return item.md5 == other.md5
        return is_same(item, other) or not are_comparable(item, other)

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
    """The relative distances of some sketches, infinite where one is none."""
    one, other = (np.frombuffer(b"".join(each), "<f4").reshape(len(each), -1) for each in (mine, theirs))
    one, other = one.astype(np.float64), other.astype(np.float64)
    differences = np.sqrt(np.square(one - other).sum(1))
    norms = np.sqrt(np.maximum(np.square(one).sum(1), np.square(other).sum(1)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return [each if each == each else math.inf for each in (differences / norms).tolist()]
