"""Recovery: the files of a run that died, made from the journals that it left."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from probe.common.dump.journal import JournalReader, is_journal
from probe.common.dump.json_files import write
from probe.common.dump.layout import JOURNAL_FILE, MADE_FILES, RECORD_FILES, TENSOR_FOLDER
from probe.common.dump.reading.dump import read
from probe.common.dump.reading.runs import check_exists
from probe.common.errors import DumpFormatError, FileCheckException
from probe.common.files import in_use, remove_left


@dataclass(frozen=True)
class RecoveredFolder:
    """The result for one journal, or for files that have none and cannot be read."""

    folder: str
    file_name: str
    records: int
    torn_at: int | None
    """The byte at which the records end that can be read, if something follows that cannot."""
    problem: str | None = None
    """The reason why the files could not be made, if so: a sentence that names the folder or the file."""
    unwritten: int = 0
    """Tensors that were still to be written (``async_dump``): their entries name no file."""
    lost: int = 0
    """The bytes from a damaged place to the end of the journal; 0 where the process died in the last record."""


def recover(directory: str, remove: bool = False) -> Iterator[RecoveredFolder]:
    """Make the files of every folder below `directory` that holds a journal. Doing so again changes nothing.

    A journal that cannot be read does not keep the others from being used. One that a living process writes is left to
    it: files made from the journal could replace those that it makes in the meantime, of more records. Of files that
    cannot be read and have no journal it is said that nothing can make them again.

    Raises:
        FileCheckException: `directory` does not exist, is a link, or holds neither a journal nor a dump.
    """
    check_exists(directory)
    if not os.path.isdir(directory):
        raise FileCheckException(f"{directory} is not a folder; give that of a process, a step or a run.")
    if os.path.islink(os.path.normpath(directory)):
        raise FileCheckException(f"{directory} is a symbolic link; give the folder it points to instead.")
    folders = _with_journal(directory)
    if not folders and not set_aside(directory) and not _holds(directory, *RECORD_FILES):
        raise FileCheckException(f"{directory} holds no {JOURNAL_FILE}, and no dump either.")
    for folder in folders:
        try:
            yield _recover_one(folder, remove)
        except (DumpFormatError, OSError) as error:
            yield RecoveredFolder(folder, "", 0, None, _problem(folder, error))
    for folder, name in _without_journal(directory):
        try:
            read(os.path.join(folder, name))
        except (DumpFormatError, FileCheckException, OSError) as error:
            problem = f"{_problem(folder, error)} There is no journal to make it from."
            yield RecoveredFolder(folder, name, 0, None, problem)


def _problem(folder: str, error: Exception) -> str:
    """The error as a sentence that names the folder; most errors of files name their file themselves."""
    text = str(error)
    return text if folder in text else f"{folder}: {text}"


def set_aside(directory: str) -> list[str]:
    """The journals below `directory` that a new run into the folder of a dead one kept under another name."""
    numbered = re.compile(re.escape(JOURNAL_FILE) + r"\.([0-9]+)").fullmatch
    found = [
        (folder, int(match[1]), os.path.join(folder, match[0]))
        for folder, _, names in os.walk(directory)
        for match in map(numbered, names)
        if match is not None
    ]
    return [path for _, _, path in sorted(found) if is_journal(path)]


def _recover_one(folder: str, remove: bool) -> RecoveredFolder:
    journal = os.path.join(folder, JOURNAL_FILE)
    if in_use(journal):
        return RecoveredFolder(
            folder, "", 0, None, f"{folder}: a process is still collecting here; its files come when it ends."
        )
    tensor_files = _TensorFiles(os.path.join(folder, TENSOR_FOLDER))
    header = write(folder, tensor_files.forget_unwritten)
    with JournalReader(journal) as reader:
        found = RecoveredFolder(
            folder,
            header.file_name,
            reader.records_count,
            reader.torn_at,
            unwritten=tensor_files.unwritten,
            lost=reader.lost,
        )
    remove_left(folder, MADE_FILES)
    if remove:
        os.unlink(journal)
    return found


class _TensorFiles:
    """The tensor files of a run that died; its journal can name some that it had no time to write."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.unwritten = 0

    def forget_unwritten(self, value: Any) -> None:
        """Take the names of files that are not there, or not whole, out of the entries in `value`."""
        ahead = [value]
        while ahead:
            part = ahead.pop()
            if isinstance(part, list):
                ahead += part
            elif isinstance(part, dict):
                name = part.get("data_name")
                if isinstance(name, str) and not self._whole(name):
                    del part["data_name"]
                    self.unwritten += 1
                ahead += part.values()

    def _whole(self, name: str) -> bool:
        if os.path.basename(name) != name:
            return False  # no name that the tool gives
        path = os.path.join(self._folder, name)
        if not name.endswith(".npy"):
            # The end of a zip file is written last.
            return zipfile.is_zipfile(path)
        try:
            np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return False
        return True


def _with_journal(directory: str) -> list[str]:
    return sorted(folder for folder, _, names in os.walk(directory) if JOURNAL_FILE in names)


def _without_journal(directory: str) -> list[tuple[str, str]]:
    """The record files in folders without a journal: ``(folder, file name)``."""
    return sorted(
        (folder, name)
        for folder, _, names in os.walk(directory)
        if JOURNAL_FILE not in names
        for name in RECORD_FILES
        if name in names
    )


def _holds(directory: str, *wanted: str) -> bool:
    """True if a file of one of these names is there or below."""
    return any(name in names for _, _, names in os.walk(directory) for name in wanted)
