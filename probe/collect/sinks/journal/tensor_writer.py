"""Whole tensors on disk, one name each, written before the training can overwrite them."""

from __future__ import annotations

from typing import Any, NamedTuple

from probe.backends.protocol import Tensors
from probe.collect.describing.values import SaveTensor
from probe.collect.sinks.journal.dump_folder import DumpFolder
from probe.collect.sinks.journal.tensor_budget import TensorBudget
from probe.collect.sinks.journal.tensor_dedup import DedupWriter
from probe.common import files
from probe.common.dump import naming
from probe.common.interfaces import Entry, TensorFile


class TensorCopy(NamedTuple):
    """A tensor that is not written yet."""

    name: str
    file: TensorFile
    entry: Entry


HeldTensors = list[TensorCopy]
"""The tensors of a call whose end decides whether they are written."""


class TensorWriter:
    """Writes tensors into the ``dump_tensor_data`` of one folder.

    Args:
        folder: Of the step.
        tensors: The framework.
        later: ``None`` writes at once, from the tensor's memory. A number keeps copies of at most so many bytes, and
            writes all of them at the next flush or when one more does not fit.
        budget: What all files of the process may take.
    """

    def __init__(self, folder: DumpFolder, tensors: Tensors, later: int | None, budget: TensorBudget) -> None:
        self._folder = folder
        self._tensors = tensors
        self._most = later
        self._budget = budget
        self._folds = files.folds_names(folder.tensor_folder)
        self._written = DedupWriter(budget)
        self._waiting: HeldTensors = []
        self._size = 0

    def saving(self, held: HeldTensors | None = None) -> SaveTensor:
        """A function that saves the tensors of one value, under names of their own; their entries then name the files.

        With `held` the copies are kept there until it is known whether they are wanted.
        """
        given: set[str] = set()
        copied = held is not None or self._most is not None
        keep = self._put if held is None else held.append

        def save(value: Any, entry: Entry, path: str) -> None:
            if self._budget.stopped:
                return
            # {"a": {"b": x}, "a.b": y} has two places of one path.
            path = naming.unused(path, given)
            given.add(path)
            copy = self._copy(value, entry, path, copied)
            if copy is not None:
                keep(copy)

        return save

    def write_held(self, held: HeldTensors) -> None:
        """Write the tensors of a call that turned out to be wanted."""
        for copy in held:
            self._put(copy)

    def write_waiting(self) -> None:
        """Write what was left for later."""
        waiting, self._waiting, self._size = self._waiting, [], 0
        waiting.reverse()
        # Each copy is given back as soon as it is written.
        while waiting:
            self._write(waiting.pop())

    def _copy(self, value: Any, entry: Entry, path: str, copied: bool) -> TensorCopy | None:
        try:
            file = self._tensors.tensor_file(value, copied)
            if file is None:
                return None
            name = naming.file_name(path, file.suffix, self._folds)
        except Exception as error:
            self._folder.log_error(path, error)
            return None
        entry["data_name"] = name
        return TensorCopy(name, file, entry)

    def _put(self, copy: TensorCopy) -> None:
        if self._most is None:
            self._write(copy)
            return
        size = copy.file.size
        # What waits must fit whatever comes: its records, which name the files, will have been written.
        if self._size + size > min(self._most, self._budget.left):
            self.write_waiting()
        if size > self._most or size > self._budget.left:
            self._write(copy)
            return
        self._waiting.append(copy)
        self._size += size

    def _write(self, copy: TensorCopy) -> None:
        try:
            if self._written.write(self._folder.tensor_folder, copy.name, copy.file):
                return
        except Exception as error:
            self._folder.log_error(copy.name, error)
        # Without data_name the entry shows that there is no file, unless its record is written already.
        copy.entry.pop("data_name", None)
