"""The source of the parts of a dump: the files of a finished run, or the journal of one that died."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import cache
from typing import Any, Optional, Protocol, TypeVar

import msgspec

from probe.common import log
from probe.common.callstack import Frame
from probe.common.dump import json_decode, update_file
from probe.common.dump.journal import JournalReader
from probe.common.dump.json_decode import whole_parts
from probe.common.dump.layout import CONSTRUCT_FILE, STACK_FILE
from probe.common.dump.reading.records import Record
from probe.common.dump.sketch_file import SketchTable, table_in
from probe.common.dump.stack_text import frame_text
from probe.common.dump.update_file import Update
from probe.common.errors import DumpFormatError

T = TypeVar("T")
V = TypeVar("V")

Tree = dict[str, Optional[str]]
"""Every call in the order of their beginnings, and the call it ran inside."""
Stacks = dict[str, list[str]]
"""The lines of every call's stack, innermost first."""


class DumpSource(Protocol):
    """The files from which a dump is read."""

    path: str
    task: str | None
    level: str | None
    framework: str | None
    died: bool
    """True if the run did not live to write its files."""
    cut_at: int | None
    """The byte at which the file of the records is cut off."""
    missing: list[str]
    """The parts that the tree and the stacks lack, a sentence each; known when these were asked for."""

    def records(self) -> list[Record]:
        """The records in order, none decoded yet."""

    def release(self) -> None:
        """Forget the records."""

    def tree(self) -> Tree | None:
        """``None`` when there is no call tree."""

    def stacks(self) -> Stacks | None:
        """``None`` when there are no stacks."""

    def updates(self) -> list[Update]:
        """The steps of optimizers."""

    def sketches(self) -> SketchTable | None:
        """The sketches and makers of tensors; ``None`` without any."""


class _Outline(msgspec.Struct):
    """dump.json or debug.json; what old releases did not write has a default, what is new is skipped."""

    data: dict[str, msgspec.Raw]
    task: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    level: Optional[str] = None  # noqa: UP045
    framework: Optional[str] = None  # noqa: UP045


class Files:
    """dump.json or debug.json, and what stands beside it."""

    def __init__(self, path: str) -> None:
        self.path = path
        outline, self.cut_at = _decoded(path, _Outline, 2, lambda found: bool(found.data))
        self.died = self.cut_at is not None
        self.missing: list[str] = []
        self.task, self.level, self.framework = outline.task, outline.level, outline.framework
        self._data = outline.data
        self._sketches: SketchTable | None = None

    def records(self) -> list[Record]:
        sketches = self.sketches()
        return [Record(name, raw, self.path, sketches) for name, raw in self._data.items()]

    def sketches(self) -> SketchTable | None:
        if self._sketches is None:
            self._sketches = table_in(os.path.dirname(self.path))
        return self._sketches

    def release(self) -> None:
        self._data = {}

    def tree(self) -> Tree | None:
        path = self._beside(CONSTRUCT_FILE)
        return None if path is None else self._decoded_beside(path, Tree, "calls")

    def stacks(self) -> Stacks | None:
        path = self._beside(STACK_FILE)
        if path is None:
            return None
        found: Stacks = {}
        for key, entry in self._decoded_beside(path, dict[str, list[Any]], "stacks").items():
            if len(entry) == 2 and _texts(entry[0]) and _texts(entry[1]):
                found.update(dict.fromkeys(entry[0], entry[1]))
            elif _texts(entry):
                # Releases before 26 wrote every record's frames under its name.
                found[key] = entry
            else:
                raise DumpFormatError(f"{path}: entry {key!r} is not a pair of names and frames.")
        return found

    def updates(self) -> list[Update]:
        return update_file.read(os.path.dirname(self.path))

    def _decoded_beside(self, path: str, kind: type[dict[str, V]], what: str) -> dict[str, V]:
        """The content of a file beside the records; what is cut off is missing, and said to be."""
        found, cut_at = _decoded(path, kind, 1, bool)
        if cut_at is not None:
            lacks = f"{path} is cut off at byte {cut_at}: {what} after the {len(found)} that were read are missing."
            self.missing.append(lacks)
            log.warning(lacks)
        return found

    def _beside(self, name: str) -> str | None:
        path = os.path.join(os.path.dirname(self.path), name)
        return path if os.path.isfile(path) else None


def _decoded(path: str, kind: type[T], depth: int, is_enough: Callable[[T], bool]) -> tuple[T, int | None]:
    """The content of a file, or what is whole of it where it is cut short, and the byte at which it is cut.

    Raises:
        DumpFormatError: it is damaged, or nothing of it is whole.
    """
    content = json_decode.load_bytes(path)
    try:
        return json_decode.decode(path, content, kind), None
    except DumpFormatError as error:
        for part in whole_parts(content, depth):
            with contextlib.suppress(DumpFormatError):
                found = json_decode.decode(path, part, kind)
                if is_enough(found):
                    return found, len(content)
        raise error


class SomeRecords:
    """Some records of a dump, without the steps of its optimizers.

    Args:
        source: the dump.
        wanted: true of the names of its records that stay.
    """

    def __init__(self, source: DumpSource, wanted: Callable[[str], bool]) -> None:
        self._source, self._wanted = source, wanted
        self.path, self.level, self.framework = source.path, source.level, source.framework
        self.died, self.missing = False, source.missing
        self.cut_at: int | None = None
        self.task = source.task

    def records(self) -> list[Record]:
        return [record for record in self._source.records() if self._wanted(record.name)]

    def release(self) -> None:
        self._source.release()

    def tree(self) -> Tree | None:
        return self._source.tree()

    def stacks(self) -> Stacks | None:
        return self._source.stacks()

    def updates(self) -> list[Update]:
        return []

    def sketches(self) -> SketchTable | None:
        return self._source.sketches()


class JournalSource:
    """A journal; its stacks keep the lines whose source is no longer found."""

    died = True
    cut_at: int | None = None

    def __init__(self, path: str) -> None:
        # Few dumps are read from a journal, and each import counts in the time of a small comparison.
        from probe.common.dump.sketch_writer import table_of

        self.path = path
        # The tree and the stacks are in the journal itself.
        self.missing: list[str] = []
        with JournalReader(path) as reader:
            # Frames of one record may lie far apart, so all are read in one pass.
            self._records = list(reader.records())
            self._sketches = table_of(reader.sketches, path)
            self._updates = reader.updates
            self._calls = reader.calls()
            self._stack = reader.stack
            self.torn_at = reader.torn_at
        self.task: str | None = reader.header.task
        self.level: str | None = reader.header.level
        self.framework: str | None = reader.header.framework

    def records(self) -> list[Record]:
        return [Record(name, fields, self.path, self._sketches) for name, fields in self._records]

    def sketches(self) -> SketchTable | None:
        return self._sketches

    def release(self) -> None:
        self._records = []

    def tree(self) -> Tree | None:
        return {name: node.parent for name, node in self._calls}

    def updates(self) -> list[Update]:
        try:
            return update_file.updates_of_frames(self._updates)
        except (KeyError, TypeError, ValueError) as error:
            raise DumpFormatError(f"{self.path}: a step of an optimizer is not readable: {error!r}.") from None

    def stacks(self) -> Stacks | None:
        line = cache(_line)
        texts: dict[int, list[str]] = {}
        found: Stacks = {}
        for name, node in self._calls:
            frames = () if node.stack in texts else self._stack(node.stack)
            if frames is not None:
                found[name] = texts.setdefault(node.stack, [line(tuple(frame)) for frame in frames])
        return found


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _line(frame: Frame) -> str:
    path, line, function = frame
    return frame_text(frame) or f"File {path}, line {line}, in {function}, \n "
