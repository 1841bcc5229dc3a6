"""Making the files of runs that died, from the journals they left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from probe.common import output
from probe.common.errors import DumpFormatError, FileCheckException
from probe.common.journal import FILE_NAME, JournalReader


@dataclass(frozen=True)
class Recovered:
    """What came of one journal."""

    folder: str
    file_name: str
    records: int
    torn_at: int | None
    """The byte at which the process died in the middle of a record, if it did."""
    problem: str | None = None
    """Why the files could not be made, if so."""


def recover(directory: str, remove: bool = False) -> Iterator[Recovered]:
    """Make the files of every folder below `directory` that holds a journal. Doing so again changes nothing.

    A journal that cannot be read does not keep the others from being used.

    Raises:
        FileCheckException: `directory` does not exist, or holds no journal.
    """
    if not os.path.isdir(directory):
        raise FileCheckException(f"{directory} is not a folder.")
    folders = _with_journal(directory)
    if not folders:
        raise FileCheckException(f"{directory} holds no {FILE_NAME}: its runs ended normally, or it is no dump.")
    for folder in folders:
        try:
            yield _recover_one(folder, remove)
        except (DumpFormatError, OSError) as error:
            yield Recovered(folder, "", 0, None, str(error))


def _recover_one(folder: str, remove: bool) -> Recovered:
    journal = os.path.join(folder, FILE_NAME)
    header = output.write(folder)
    with JournalReader(journal) as reader:
        found = Recovered(folder, header.file_name, reader.records_count, reader.torn_at)
    if remove:
        os.unlink(journal)
    return found


def _with_journal(directory: str) -> list[str]:
    return sorted(folder for folder, _, names in os.walk(directory) if FILE_NAME in names)
