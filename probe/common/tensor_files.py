"""Whole tensors on disk, one file each, written before the training can overwrite them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from probe.common import files, naming
from probe.common.contract import Entry, Tensors
from probe.common.run_folder import RunFolder
from probe.common.values import SaveTensor


class TensorFiles:
    """Writes tensors into the ``dump_tensor_data`` of one folder.

    Args:
        later: Keep copies in memory and write them at the next flush.
    """

    def __init__(self, folder: RunFolder, tensors: Tensors, later: bool) -> None:
        self._folder = folder
        self._tensors = tensors
        self._later = later
        self._waiting: list[tuple[str, Any]] = []

    def now(self, value: Any, entry: Entry, path: str) -> None:
        """Save `value`; its entry then names the file."""
        self._save(value, entry, path, self._waiting if self._later else None)

    def held_in(self, snapshots: list[tuple[str, Any]]) -> SaveTensor:
        """Like `now`, but keep the copies in `snapshots` until it is known whether they are wanted."""
        return lambda value, entry, path: self._save(value, entry, path, snapshots)

    def write_held(self, snapshots: list[tuple[str, Any]]) -> None:
        if self._later:
            self._waiting += snapshots
            return
        for name, snapshot in snapshots:
            self._write(name, snapshot)

    def write_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for name, snapshot in waiting:
            try:
                self._write(name, snapshot)
            except Exception as error:
                self._folder.log_error(name, error)

    def _save(self, value: Any, entry: Entry, path: str, hold: Any) -> None:
        try:
            snapshot = self._tensors.snapshot(value)
            if snapshot is None:
                return
            suffix = ".npy" if isinstance(snapshot, np.ndarray) else self._tensors.tensor_suffix
            name = naming.file_name(path, suffix)
            if hold is None:
                self._write(name, snapshot)
            else:
                hold.append((name, snapshot))
        except Exception as error:
            # Without data_name the entry says truthfully that there is no file.
            self._folder.log_error(path, error)
            return
        entry["data_name"] = name

    def _write(self, name: str, snapshot: Any) -> None:
        with files.open_for_writing(os.path.join(self._folder.tensor_folder, name)) as stream:
            if isinstance(snapshot, np.ndarray):
                np.save(stream, snapshot, allow_pickle=False)
            else:
                self._tensors.save_tensor(snapshot, stream)
