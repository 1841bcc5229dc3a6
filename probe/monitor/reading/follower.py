"""A folder that is still written, read on: only what has been added since the last look."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from probe.common import files
from probe.monitor.reading.csv_rows import Columns, parse
from probe.monitor.reading.locating import MonitorFile, RankFolder, locate
from probe.monitor.reading.run import MonitorRun


@dataclass
class _Open:
    """A file that grows."""

    position: int = 0
    header: list[str] = field(default_factory=list)


class Follower:
    """Reads the rows that a monitor adds to its files.

    Args:
        path: The output folder of the monitor.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.notes: list[str] = []
        self._open: dict[str, _Open] = {}

    def read_on(self) -> MonitorRun:
        """The rows that were added since the last call, those of all ranks.

        Raises:
            FileCheckException: the folder holds no rows yet.
        """
        located = locate(self.path)
        of_rank: dict[int, dict[str, Columns]] = {}
        for note in located.notes:
            if note not in self.notes:
                self.notes.append(note)
        for folder in located.folders:
            self._read_folder(folder, of_rank.setdefault(folder.rank, {}))
        return MonitorRun(located, of_rank, self.notes)

    def _read_folder(self, folder: RankFolder, families: dict[str, Columns]) -> None:
        for file in folder.files:
            for each in self._read_file(file):
                if each.family in families:
                    families[each.family].add(each)
                else:
                    families[each.family] = each

    def _read_file(self, file: MonitorFile) -> list[Columns]:
        opened = self._open.setdefault(file.path, _Open())
        try:
            if os.stat(file.path).st_size <= opened.position:
                return []
            with files.open_for_reading(file.path) as stream:
                stream.seek(opened.position)
                content = stream.read()
        except OSError as error:
            self._note(f"{file.path} cannot be read: {error.strerror}.")
            return []
        # The rest of a line that is being written is read next time.
        content = content[: content.rfind(b"\n") + 1]
        if not opened.position:
            opened.header = content.split(b"\n", 1)[0].decode("utf-8", "replace").strip().split(",")
        read = parse(file, content, opened.header if opened.position else None)
        opened.position += len(content)
        for note in read.notes:
            self._note(note)
        return read.families

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
