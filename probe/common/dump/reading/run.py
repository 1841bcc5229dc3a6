"""`read` opens whatever it is given: the dump of one process, or a folder with those of several ranks and steps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from probe.common import html_table, log
from probe.common.dump.layout import holds_records, is_without_rank, step_and_rank, steps_in
from probe.common.dump.reading import conditions, dump
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.selection import Selection
from probe.common.dump.runs import processes_of
from probe.common.errors import FileCheckException


class _Place(NamedTuple):
    step: int | None
    rank: int | None
    folder: str

    @property
    def process(self) -> str | None:
        """``proc123`` of a process without a rank."""
        name = os.path.basename(os.path.abspath(self.folder))
        return name if is_without_rank(name) else None


class Run:
    """The dumps of several processes or steps, in order: step by step, and in each rank by rank.

    ``run[step]`` and ``run[step, rank]`` are one of them, ``run[step, "proc123"]`` is that of a process without a rank,
    ``len(run)`` is their number. Each is opened when it is asked for, and again when it is asked for again, so that
    only those that are in use take memory.

    Args:
        path: a ``dump_path``, which holds folders of steps, or the folder of a step.

    Raises:
        FileCheckException: it holds no dump.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        """The folder that was given."""
        self._places = _places(self.path)

    def __repr__(self) -> str:
        return f"Run({self.path!r}, {len(self)} dumps, steps {_numbers(self.steps)}, ranks {_numbers(self.ranks)})"

    @property
    def folders(self) -> list[str]:
        """The folders of the dumps."""
        return [place.folder for place in self._places]

    @property
    def steps(self) -> list[int | None]:
        """The steps there are, in order; ``None`` stands for a folder that does not say."""
        return list(dict.fromkeys(place.step for place in self._places))

    @property
    def ranks(self) -> list[int | None]:
        """The ranks there are, in order; ``None`` stands for a process without rank."""
        found = dict.fromkeys(place.rank for place in self._places)
        return sorted(found, key=lambda rank: -1 if rank is None else rank)

    @property
    def processes(self) -> list[str]:
        """The names of the processes without a rank, such as ``proc123``, in the order in which they were started."""
        return list(dict.fromkeys(place.process for place in self._places if place.process is not None))

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Dump]:
        return (dump.read(place.folder) for place in self._places)

    def __getitem__(self, index: int | tuple[int | None, int | str | None]) -> Dump:
        """The dump of a step, or of a step and a rank or a process such as ``proc123``.

        Raises:
            LookupError: there is none, or a step has several ranks or processes and none was named.
        """
        step, *rank = index if isinstance(index, tuple) else (index,)
        found = [place for place in self._places if place.step == step]
        if rank:
            found = [place for place in found if rank[0] == (place.process if isinstance(rank[0], str) else place.rank)]
        if len(found) == 1:
            return dump.read(found[0].folder)
        names = [place.process for place in found if place.process is not None]
        if len(names) > 1:
            raise LookupError(
                f"step {step} has processes {_numbers(names)}; give one of them: run[{step}, {names[0]!r}]"
            )
        if found:
            ranks = _numbers([place.rank for place in found])
            raise LookupError(f"step {step} has ranks {ranks}; give one of them: run[{step}, {found[0].rank}]")
        raise LookupError(f"{index!r} is not in the run; steps: {_numbers(self.steps)}; ranks: {_numbers(self.ranks)}")

    def where(self, condition: str) -> Selection:
        """The items of all dumps for which `condition` holds; see `Dump.where`."""
        # Before a file is read.
        conditions.condition(condition)
        return Selection(chain.from_iterable(one.where(condition).rows for one in self))

    def to_frame(self, library: str | None = None) -> Any:
        """All items of all dumps as one data frame; ``step`` and ``rank`` are columns. See `Dump.to_frame`."""
        return Selection(chain.from_iterable(one.rows(one) for one in self)).to_frame(library)

    def _repr_html_(self) -> str:
        return html_table.paragraph(repr(self)) + html_table.table(("step", "rank", "folder"), self._places[:_SHOWN])


_SHOWN = 50


def read(path: str | os.PathLike[str]) -> Dump | Run:
    """Open what was collected.

    Args:
        path: dump.json, debug.json, a journal, the folder of a process, of a step, or the ``dump_path`` of a run. Where
            a process died before it wrote its records, they come from the journal.

    Returns:
        A `Dump` where that is the dump of one process and one step, a `Run` where there are several. A script that
        wants the same of both asks `Run` itself: ``Run(path)`` is one for any folder of steps or ranks.

    Raises:
        FileCheckException: there is nothing of the kind.
        DumpFormatError: a file is damaged; the message names it and the place.

    Example:
        >>> for record in probe.read("dump_path/step0/rank0"):  # doctest: +SKIP
        ...     print(record.name, [item.shape for item in record.items()])
    """
    path = os.fspath(path)
    if not os.path.isdir(path) or holds_records(path):
        return dump.read(path)
    run = Run(path)
    return next(iter(run)) if len(run) == 1 else run


def folders_of(path: str | os.PathLike[str]) -> list[str]:
    """What `path` holds that `Dump` can be made of: itself where it is one dump, or the folders of a run.

    Raises:
        FileCheckException: it is a folder that holds no dump.
    """
    path = os.fspath(path)
    return [path] if not os.path.isdir(path) or holds_records(path) else Run(path).folders


def _places(path: str) -> list[_Place]:
    if not os.path.isdir(path):
        raise FileCheckException(f"{path} is not a folder.")
    if holds_records(path):
        return [_place(path)]
    found = [folder for step in steps_in(path) for folder in _processes(os.path.join(path, step))] or _processes(path)
    if not found:
        inside = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
        hint = f" It holds {', '.join(inside[:4])}{' ...' if len(inside) > 4 else ''}." if inside else ""
        raise FileCheckException(
            f"{path} holds no dump; give dump.json, debug.json, the folder of a rank or step, or a dump_path.{hint}"
        )
    return [_place(folder) for folder in found]


def _processes(step: str) -> list[str]:
    found = processes_of(step)
    left_out = found.left_out()
    if left_out:
        log.warning(left_out)
    return [each.path for each in found.folders]


def _place(folder: str) -> _Place:
    return _Place(*step_and_rank(os.path.join(folder, "dump.json")), folder)


def _numbers(values: Sequence[int | str | None]) -> str:
    shown = ", ".join("none" if value is None else str(value) for value in values[:6])
    return f"{shown}, ..." if len(values) > 6 else shown
