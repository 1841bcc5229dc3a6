"""A run as one file to be mailed: statistics, sketches, tree, stacks and environment, without values of tensors."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from probe._version import __version__
from probe.common import archives, files
from probe.common.archives import Content
from probe.common.dump import json_files
from probe.common.dump.layout import JOURNAL_FILE, MODES, STACK_FILE, environment_file, is_of_rank, is_without_rank
from probe.common.dump.reading.dump import read
from probe.common.dump.reading.runs import DumpLocation, find_dumps, warn_of_left_out
from probe.common.dump.reading.unpacked import MANIFEST, PACKED_FILES
from probe.common.dump.stack_text import parse_frame
from probe.common.environment.gathered import without_secrets
from probe.common.errors import MsprobeException

FORMAT = 1
"""The version of the manifest. 1: the first one (2026-11)."""


@dataclass(frozen=True)
class Packed:
    """A pack that was written.

    Args:
        path: the pack.
        dumps: the location of the dumps in it.
        records: the number of all records.
        size: the bytes of the pack.
        withheld: the lines of code of which a text may be a secret, and was left out.
        endings: a sentence for each dump that is not whole.
    """

    path: str
    dumps: list[DumpLocation]
    records: int
    size: int
    withheld: int
    endings: list[str]

    @property
    def text(self) -> str:
        """The line that tells of it.

        Example:
            ``packed 4 steps of 2 ranks, 20,000 records: 3.1 MB``
        """
        steps = len({(each.mode, each.step) for each in self.dumps})
        processes = {each.process or each.name for each in self.dumps}
        is_ranks = all(map(is_of_rank, processes))
        what = f"{_counted(steps, 'step')} of {_counted(len(processes), 'rank' if is_ranks else 'process')}"
        return f"packed {what}, {_counted(self.records, 'record')}: {_size_text(self.size)}"

    @property
    def notes(self) -> list[str]:
        """The parts that are missing in it, a sentence each."""
        lines = f"{_counted(self.withheld, 'line')} of code in the stacks may hold a secret: their texts are left out."
        return [*self.endings, *([lines] if self.withheld else [])]


def pack(run: str, output: str | None = None) -> Packed:
    """Write the pack of a run, which stays as it is. Of processes that died the files are made from the journal.

    Args:
        run: a folder of steps, the folder of a step or of a process, or a file of records.
        output: the zip file, which is replaced; by default beside the run and named like it.

    Raises:
        FileCheckException: there is no dump, or a file cannot be read or written.
        DumpFormatError: a dump is damaged; the message names it.
        MsprobeException: the output is the run itself.
    """
    found = find_dumps(run)
    warn_of_left_out(found)
    output = output or _default_output(run)
    if os.path.abspath(output) == os.path.abspath(run):
        raise MsprobeException(f"{run} would be replaced by its own pack; give another file with -o.")
    archives.check_name(output)
    with contextlib.ExitStack() as stack:
        packing = _Packing(stack)
        members = [member for each in found.dumps for member in packing.of_dump(each)]
        members = sorted({**dict(members), **dict(packing.environments)}.items())
        archives.write(output, [(MANIFEST, _manifest(found.dumps, packing, members)), *members])
    return Packed(output, found.dumps, packing.records, os.path.getsize(output), packing.withheld, packing.endings)


def _default_output(run: str) -> str:
    # The path may end with a slash, or be a dot.
    whole = os.path.abspath(run)
    return f"{whole.removesuffix(archives.SUFFIX)}{archives.SUFFIX}"


class _Packing:
    """Gathers the members of a pack.

    Args:
        stack: removes temporary folders.
    """

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.records = 0
        self.withheld = 0
        self.endings: list[str] = []
        self.environments: dict[str, Content] = {}

    def of_dump(self, location: DumpLocation) -> Iterator[tuple[str, Content]]:
        """The members of the dump of one process and step."""
        dump = read(location.path)
        self.records += len(dump)
        folder = location.folder
        if os.path.basename(dump.path) == JOURNAL_FILE:
            folder = self._made_from_journal(dump.path, location.name)
        elif dump.ending:
            self.endings.append(f"{dump.path} {dump.ending}.")
        name, root = _name_and_root(location)
        environment = os.path.join(root, environment_file(location.name))
        if os.path.isfile(environment):
            self.environments[os.path.basename(environment)] = environment
        for file in PACKED_FILES:
            path = os.path.join(folder, file)
            if not os.path.isfile(path):
                path = os.path.join(location.folder, file)
            content = self._stacks(path) if file == STACK_FILE and os.path.isfile(path) else path
            if content is not None and os.path.isfile(path):
                yield "/".join(filter(None, (name, file))), content

    def _made_from_journal(self, journal: str, name: str) -> str:
        """A temporary folder with the files that the journal of a process that died gives."""
        folder = os.path.join(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="msprobe_")), name)
        files.make_folder(folder)
        with contextlib.ExitStack() as opened:
            source = opened.enter_context(files.open_for_reading(journal))
            shutil.copyfileobj(source, opened.enter_context(files.open_for_writing(os.path.join(folder, JOURNAL_FILE))))
        json_files.write(folder)
        self.endings.append(f"{journal} is of a process that died, or goes on: its files were made for the pack.")
        return folder

    def _stacks(self, path: str) -> Content | None:
        """The call stacks without texts in lines of code that may be secrets; the file itself if it has none.

        ``None`` if the file is damaged, so that nobody knows what is in it.
        """
        with files.open_for_reading(path) as stream:
            text = stream.read()
        withheld = self.withheld
        try:
            stacks = _without_secrets(json.loads(text), self)
        except (ValueError, RecursionError):
            self.endings.append(f"{path} is damaged and left out.")
            return None
        return json.dumps(stacks, indent=1).encode() if self.withheld > withheld else path

    def clean_frame(self, text: str) -> str:
        """A line of a call stack in the same way."""
        frame = parse_frame(text)
        source = text if frame is None else frame.source
        clean = without_secrets(source)
        if clean == source:
            return text
        self.withheld += 1
        return text.removesuffix(source) + clean if text.endswith(source) else clean


def _without_secrets(value: Any, packing: _Packing) -> Any:
    """The content of stack.json, of which any text may be a line."""
    if isinstance(value, str):
        return packing.clean_frame(value)
    if isinstance(value, list):
        return [_without_secrets(each, packing) for each in value]
    return {key: _without_secrets(each, packing) for key, each in value.items()} if isinstance(value, dict) else value


def _name_and_root(location: DumpLocation) -> tuple[str, str]:
    """The name of a process's folder in the pack, and the folder in which the environment of its run is."""
    folder = os.path.abspath(location.folder)
    if not (is_of_rank(location.name) or is_without_rank(location.name)):
        return "", folder
    step = os.path.dirname(folder)
    if location.step is None:
        return location.name, step
    above = os.path.dirname(step)
    is_mode = bool(location.mode) and os.path.basename(above) in MODES
    names = (location.mode if is_mode else "", os.path.basename(step), location.name)
    return "/".join(filter(None, names)), os.path.dirname(above) if is_mode else above


def _manifest(dumps: list[DumpLocation], packing: _Packing, members: list[tuple[str, Content]]) -> bytes:
    content = {
        "format": FORMAT,
        "tool": f"msprobe {__version__}",
        "dumps": len(dumps),
        "records": packing.records,
        "withheld": packing.withheld,
        "members": [name for name, _ in members],
    }
    return json.dumps(content, indent=1).encode()


def _counted(number: int, noun: str) -> str:
    plural = {"process": "processes"}.get(noun, f"{noun}s")
    return f"{number:,} {noun if number == 1 else plural}"


def _size_text(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
