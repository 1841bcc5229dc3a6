"""Where the parts of a dump come from: the files of a finished run, or the journal of one that died."""

from __future__ import annotations

import os
from functools import cache
from typing import Any, Optional, Protocol

import msgspec

from probe.common.callstack import Frame
from probe.common.dump.journal import JournalReader
from probe.common.dump.layout import CONSTRUCT_FILE, STACK_FILE
from probe.common.dump.reading import json_decode
from probe.common.dump.reading.records import Record
from probe.common.dump.stack_text import frame_text
from probe.common.errors import DumpFormatError

Tree = dict[str, Optional[str]]
"""Every call in the order of their beginnings, and the call it ran inside."""
Stacks = dict[str, list[str]]
"""The lines of every call's stack, innermost first."""


class Source(Protocol):
    """What a dump is read from."""

    path: str
    task: str | None
    level: str | None
    framework: str | None
    died: bool
    """Whether the run did not live to write its files."""

    def records(self) -> list[Record]:
        """The records in order, none decoded yet."""

    def release(self) -> None:
        """Forget the records."""

    def tree(self) -> Tree | None:
        """``None`` when there is no call tree."""

    def stacks(self) -> Stacks | None:
        """``None`` when there are no stacks."""


class _Outline(msgspec.Struct):
    """dump.json or debug.json; what old releases did not write has a default, what is new is skipped."""

    data: dict[str, msgspec.Raw]
    task: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    level: Optional[str] = None  # noqa: UP045
    framework: Optional[str] = None  # noqa: UP045


class Files:
    """dump.json or debug.json, and what stands beside it."""

    died = False

    def __init__(self, path: str) -> None:
        self.path = path
        outline = json_decode.decode(path, json_decode.load_bytes(path), _Outline)
        self.task, self.level, self.framework = outline.task, outline.level, outline.framework
        self._data = outline.data

    def records(self) -> list[Record]:
        return [Record(name, raw, self.path) for name, raw in self._data.items()]

    def release(self) -> None:
        self._data = {}

    def tree(self) -> Tree | None:
        path = self._beside(CONSTRUCT_FILE)
        return None if path is None else json_decode.decode(path, json_decode.load_bytes(path), Tree)

    def stacks(self) -> Stacks | None:
        path = self._beside(STACK_FILE)
        if path is None:
            return None
        found: Stacks = {}
        for key, entry in json_decode.decode(path, json_decode.load_bytes(path), dict[str, list[Any]]).items():
            if len(entry) == 2 and _texts(entry[0]) and _texts(entry[1]):
                found.update(dict.fromkeys(entry[0], entry[1]))
            elif _texts(entry):
                # Releases before 26 wrote every record's frames under its name.
                found[key] = entry
            else:
                raise DumpFormatError(f"{path}: entry {key!r} is not a pair of names and frames.")
        return found

    def _beside(self, name: str) -> str | None:
        path = os.path.join(os.path.dirname(self.path), name)
        return path if os.path.isfile(path) else None


class Journal:
    """A journal; its stacks keep the lines whose source is no longer found."""

    died = True

    def __init__(self, path: str) -> None:
        self.path = path
        with JournalReader(path) as reader:
            # Frames of one record may lie far apart, so all are read in one pass.
            self._records = list(reader.records())
            self._calls = reader.calls()
            self._frames = reader.stacks
            self.torn_at = reader.torn_at
        self.task: str | None = reader.header.task
        self.level: str | None = reader.header.level
        self.framework: str | None = reader.header.framework

    def records(self) -> list[Record]:
        return [Record(name, fields, self.path) for name, fields in self._records]

    def release(self) -> None:
        self._records = []

    def tree(self) -> Tree | None:
        return {name: node.parent for name, node in self._calls}

    def stacks(self) -> Stacks | None:
        line = cache(_line)
        texts = {number: [line(tuple(frame)) for frame in stack] for number, stack in self._frames.items()}
        return {name: texts[node.stack] for name, node in self._calls if node.stack in texts}


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _line(frame: Frame) -> str:
    path, line, function = frame
    return frame_text(frame) or f"File {path}, line {line}, in {function}, \n "
