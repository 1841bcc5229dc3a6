"""`read` gives a typed, lazy view of the dump of one process: its folder, a file of it, or the journal if it died.

Only the outline of dump.json is decoded at once, that is where each record begins and ends; a record is decoded when
it is looked at, the call tree, the stacks and tensors when they are asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from probe.common import harmless_text, log
from probe.common.dump.layout import (
    CONSTRUCT_FILE,
    JOURNAL_FILE,
    RECORD_FILES,
    TENSOR_FOLDER,
    process_and_mode,
    step_and_rank,
)
from probe.common.dump.naming import nearest
from probe.common.dump.reading import selected_items
from probe.common.dump.reading.call_tree import CallTree, circle_in
from probe.common.dump.reading.records import INPUT, PARAMETERS, Item, Record
from probe.common.dump.reading.selected_items import Selected, Selection
from probe.common.dump.reading.sources import DumpSource, Files, JournalSource, SomeRecords, Stacks
from probe.common.dump.sketch_file import SketchTable
from probe.common.dump.update_file import Update
from probe.common.errors import DumpFormatError, FileCheckException

if TYPE_CHECKING:
    # Statistics and checksums are compared without numpy.
    from numpy.typing import NDArray

_SHOWN = 30
"""Records in a table for notebooks; a guess."""


class Dump:
    """The records of one process and one step, in order.

    Iterating gives `Record`; ``dump[name]`` is the one of that name, ``len(dump)`` their number.
    """

    def __init__(self, source: DumpSource) -> None:
        self._source = source
        self.path = source.path
        """The file that was read."""
        self.step, self.rank = step_and_rank(self.path)
        """The training step and the rank, from the names of the folders; ``None`` where these do not say."""
        self.process, self.mode = process_and_mode(self.path)
        """``proc123`` of a process without a rank, and ``graph`` or ``pynative`` of MindSpore, in the same way."""
        self.task = source.task
        """``statistics``, ``tensor`` or ``structure``."""
        self.level = source.level
        """``L0``, ``L1``, ``mix`` or ``debug``."""
        self.framework = source.framework or "pytorch"
        """``pytorch``, ``mindspore`` or ``mindtorch``; files that do not say are PyTorch's."""
        self.is_released = False
        """True if the records were released, so that names are left of them."""
        self.died = source.died
        """True if this is the journal of a run that died before it wrote its files, or a file that is cut short."""
        self.cut_at = source.cut_at
        """The byte at which the file is cut off; ``None`` where it is whole, and of a journal."""

    def __repr__(self) -> str:
        return f"Dump({self.path!r}, {self.framework}, {self.task}, {self.level}, {len(self)} records)"

    @property
    def ending(self) -> str:
        """The reason why what ran last is missing, as the end of a sentence; empty where nothing is."""
        if self.cut_at is not None:
            number = f"{len(self)} record{'' if len(self) == 1 else 's'}"
            return f"is cut off at byte {self.cut_at} of which {number} {'was' if len(self) == 1 else 'were'} read"
        return "is the journal of a run that died" if self.died else ""

    @cached_property
    def records(self) -> list[Record]:
        return self._source.records()

    @cached_property
    def _by_name(self) -> dict[str, Record]:
        return {record.name: record for record in self.records}

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Record:
        try:
            return self._by_name[name]
        except KeyError:
            raise KeyError(self._no_record(name)) from None

    def _no_record(self, name: object) -> str:
        near = nearest(name, self._by_name) if isinstance(name, str) else []
        hint = f"; nearest names: {', '.join(near)}" if near else ""
        return f"{self.path} has no record {name!r}{hint}"

    def release(self) -> None:
        """Give the memory of the records back, which is that of the file, for one who has all the items; names stay."""
        self.is_released = True
        for record in self.records:
            record.release()
        self._source.release()

    def of_records(self, wanted: Callable[[str], bool]) -> Dump:
        """The dump with those records alone of whose names `wanted` is true, and without steps of optimizers."""
        return Dump(SomeRecords(self._source, wanted))

    def items(self, record: Record) -> list[Item]:
        """The items of `record`.

        Raises:
            DumpFormatError: the record is damaged; the message names file, record and place.
        """
        try:
            return record.items()
        except DumpFormatError as error:
            if str(error).startswith(self.path):
                raise
            raise DumpFormatError(f"{self.path}: {error}") from None

    def where(self, condition: str) -> Selection:
        """The items for which `condition` holds, in order.

        Args:
            condition: such as ``Max > 1e4 or nan``; `probe.common.dump.reading.selected_items` lists what is allowed.

        Raises:
            MsprobeException: it is no condition; the message names what is allowed.
            DumpFormatError: a record is damaged.

        Example:
            >>> for item in dump.where("nan or inf"):  # doctest: +SKIP
            ...     print(item.name, item.max)
        """
        fits = selected_items.condition(condition)
        return Selection(row for row in self.rows(self) if fits(row.item))

    def to_frame(self, library: str | None = None) -> Any:
        """All items as a data frame of polars or pandas, a row for each; the columns are those of a `Selection`.

        Args:
            library: ``polars`` or ``pandas``; by default the first of them that is installed.

        Raises:
            MissingDependency: it is not installed.
        """
        return Selection(self.rows(self)).to_frame(library)

    def rows(self, records: Iterable[Record]) -> Iterator[Selected]:
        """The items of `records`, each with its place."""
        tree = CallTree() if self.tree is None else self.tree
        for record in records:
            module = tree.module(record.name)
            for item in self.items(record):
                yield Selected(self.step, self.rank, self.process, self.mode, record.name, module, item)

    def nonfinite(self) -> Iterator[tuple[Record, Item]]:
        """The tensors that hold a NaN or an infinity, in order; records without one are not decoded."""
        for record in self:
            if record.may_be_nonfinite:
                yield from ((record, item) for item in self.items(record) if item.has_nan or item.has_inf)

    def _repr_html_(self) -> str:
        first = next(iter(self.nonfinite()), None)
        found = "no NaN and no infinity" if first is None else f"first NaN or infinity: {first[1].name}"
        more = f"; the first {_SHOWN} records" if len(self) > _SHOWN else ""
        rows = self.rows(islice(self, _SHOWN))
        outputs = Selection(row for row in rows if row.item.is_tensor and row.item.state not in (INPUT, PARAMETERS))
        return harmless_text.paragraph(f"{self!r}: {found}{more}") + outputs.html_rows()

    @cached_property
    def tree(self) -> CallTree | None:
        """Every call and the one it ran inside, from construct.json; ``None`` without that file."""
        found = self._source.tree()
        return None if found is None else CallTree(found)

    def refuse_circles(self) -> None:
        """Check that no call is inside of itself, as a damaged construct.json may say.

        Raises:
            DumpFormatError: calls are inside of each other; the message names them and the file.
        """
        if self._circle:
            path = os.path.join(os.path.dirname(self.path), CONSTRUCT_FILE)
            raise DumpFormatError(f"{path}: {self._circle}. The file is damaged; collect the dump again.")

    @cached_property
    def _circle(self) -> str:
        # A comparison asks, and the page of it again.
        return circle_in(self.tree or {})

    @cached_property
    def stacks(self) -> Stacks | None:
        """The call stack of every record, innermost line first; ``None`` without stack.json."""
        return self._source.stacks()

    @cached_property
    def updates(self) -> list[Update]:
        """The steps that optimizers made in this step, in order; none where they were not recorded.

        Example:
            >>> for update in dump.updates:  # doctest: +SKIP
            ...     for parameter in update.parameters:
            ...         print(parameter.name, parameter.gradient_norm, parameter.update_norm)
        """
        return self._source.updates()

    @cached_property
    def sketches(self) -> SketchTable | None:
        """The sketches and makers of all tensors by the names of items; ``None`` without any."""
        return self._source.sketches()

    @property
    def missing(self) -> list[str]:
        """Missing parts of the other files, which are cut short, a sentence each."""
        # It is known when they were read.
        _ = self.tree, self.stacks
        return self._source.missing

    def tensor_path(self, item: Item) -> str | None:
        """Path of the values of `item`; ``None`` if it has no file."""
        if item.data_name is None or item.data_name == "-1":
            return None
        # A name from a file that anyone may have written does not lead out of the folder.
        if os.path.basename(item.data_name) != item.data_name:
            raise DumpFormatError(f"{self.path}: {item.name}: data_name {item.data_name!r} is not a file name.")
        return os.path.join(os.path.dirname(self.path), TENSOR_FOLDER, item.data_name)

    def tensor(self, item: Item) -> NDArray[Any] | None:
        """The values of `item`, types that numpy lacks widened to float32; ``None`` when it has no file.

        Raises:
            FileCheckException: the file is missing or cannot be read.
            MissingDependency: a ``.pt`` file, and torch is not installed.
        """
        from probe.common.dump.reading.tensor_reading import read_tensor

        path = self.tensor_path(item)
        return None if path is None else read_tensor(path)


def read(path: str | os.PathLike[str]) -> Dump:
    """Open the dump of one process.

    Args:
        path: dump.json or debug.json, a journal, or the folder that holds one of them. Where the process died before
            it wrote its records, or while it did, they come from the journal; a file that is cut short and has no
            journal beside it is read as far as its records are whole.

    Raises:
        FileCheckException: there is nothing of the kind.
        DumpFormatError: a file is damaged; the message names it and the place.

    """
    path = os.fspath(path)
    if os.path.isdir(path):
        return _read_folder(path)
    if not os.path.isfile(path):
        raise FileCheckException(f"{path} does not exist; give dump.json, debug.json, or the folder that holds it.")
    if os.path.basename(path) == JOURNAL_FILE:
        return Dump(JournalSource(path))
    return _finished_or_journal(path)


def _read_folder(folder: str) -> Dump:
    for name in RECORD_FILES:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return _finished_or_journal(path)
    path = os.path.join(folder, JOURNAL_FILE)
    if os.path.isfile(path):
        return Dump(JournalSource(path))
    inside = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    hint = f", but the folders {', '.join(inside[:4])}" if inside else ""
    raise FileCheckException(
        f"{folder} has no {', '.join(RECORD_FILES)} or {JOURNAL_FILE}{hint}; give the folder of a process, such as "
        "step0/rank0."
    )


def _finished_or_journal(path: str) -> Dump:
    journal = os.path.join(os.path.dirname(path), JOURNAL_FILE)
    if not os.path.isfile(journal):
        return Dump(Files(path))
    try:
        dump = Dump(Files(path))
    except DumpFormatError as error:
        found = Dump(JournalSource(journal))
        log.warning(f"{error} The journal next to it is read instead.")
        return found
    # A run begins by writing files without records, and a run that is killed leaves them so.
    return Dump(JournalSource(journal)) if dump.died or not dump.records else dump
