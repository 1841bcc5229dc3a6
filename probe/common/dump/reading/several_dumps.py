"""`read` opens whatever it is given: the dump of one process, or a folder with those of several ranks and steps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from probe.common import harmless_text
from probe.common.dump.reading import dump, selected_items
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.runs import DumpLocation, find_dumps, warn_of_left_out
from probe.common.dump.reading.selected_items import Selection


class Run:
    """The dumps of several processes or steps, in order: step by step, and in each rank by rank.

    ``run[step]`` and ``run[step, rank]`` are one of them, ``run[step, "proc123"]`` is that of a process without a rank,
    ``run[step, rank, "graph"]`` one of two modes of MindSpore, ``len(run)`` is their number. Each is opened when it is
    asked for, and again when it is asked for again, so that only those that are in use take memory.

    Args:
        path: a ``dump_path``, which holds folders of steps, the folder of a step, a pack, or what is one dump.

    Raises:
        FileCheckException: it holds no dump.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        """The path that was given."""
        found = find_dumps(self.path)
        warn_of_left_out(found)
        self.root = found.path
        """The folder in which the dumps are: the path, or of a pack the folder into which it was unpacked."""
        self.locations: list[DumpLocation] = found.dumps
        """The location of the dumps, in order."""

    def __repr__(self) -> str:
        modes = f", {' and '.join(self.modes)}" if self.modes else ""
        text = f"{len(self)} dumps, steps {_numbers(self.steps)}, ranks {_numbers(self.ranks)}"
        return f"Run({self.path!r}, {text}{modes})"

    @property
    def folders(self) -> list[str]:
        """The folders of the dumps."""
        return [each.folder for each in self.locations]

    @property
    def steps(self) -> list[int | None]:
        """The steps there are, in order; ``None`` stands for a folder that does not say."""
        return list(dict.fromkeys(each.step for each in self.locations))

    @property
    def ranks(self) -> list[int | None]:
        """The ranks there are, in order; ``None`` stands for a process without rank."""
        found = dict.fromkeys(each.rank for each in self.locations)
        return sorted(found, key=lambda rank: -1 if rank is None else rank)

    @property
    def processes(self) -> list[str]:
        """The names of the processes without a rank, such as ``proc123``, in the order in which they were started."""
        return list(dict.fromkeys(each.process for each in self.locations if each.process))

    @property
    def modes(self) -> list[str]:
        """``graph`` and ``pynative``, where MindSpore wrote folders of these names."""
        return list(dict.fromkeys(each.mode for each in self.locations if each.mode))

    def __len__(self) -> int:
        return len(self.locations)

    def __iter__(self) -> Iterator[Dump]:
        return (dump.read(each.path) for each in self.locations)

    def __getitem__(self, index: int | tuple[int | str | None, ...] | None) -> Dump:
        """The dump of a step, or of a step and a rank or a process such as ``proc123``, or of these and a mode.

        Raises:
            LookupError: there is none, or there are several and more has to be named.
        """
        step, *rest = index if isinstance(index, tuple) else (index,)
        found = [each for each in self.locations if each.step == step]
        if rest:
            found = [each for each in found if rest[0] == (each.process if isinstance(rest[0], str) else each.rank)]
        if len(rest) > 1:
            found = [each for each in found if rest[1] == each.mode]
        if len(found) == 1:
            return dump.read(found[0].path)
        if not found:
            raise LookupError(
                f"{index!r} is not in the run; steps: {_numbers(self.steps)}; ranks: {_numbers(self.ranks)}"
            )
        raise LookupError(f"step {step} has {_choice(found)}")

    def where(self, condition: str) -> Selection:
        """The items of all dumps for which `condition` holds; see `Dump.where`."""
        # Before a file is read.
        selected_items.condition(condition)
        return Selection(chain.from_iterable(one.where(condition).rows for one in self))

    def to_frame(self, library: str | None = None) -> Any:
        """All items of all dumps as one data frame; ``step`` and ``rank`` are columns. See `Dump.to_frame`."""
        return Selection(chain.from_iterable(one.rows(one) for one in self)).to_frame(library)

    def _repr_html_(self) -> str:
        return harmless_text.paragraph(repr(self)) + harmless_text.table(
            ("step", "rank", "folder"), [(each.step, each.rank, each.folder) for each in self.locations[:_SHOWN]]
        )


_SHOWN = 50
"""Rows in a table for notebooks; a guess."""


def read(path: str | os.PathLike[str]) -> Dump | Run:
    """Open what was collected.

    Args:
        path: dump.json, debug.json, a journal, the folder of a process, of a step, or the ``dump_path`` of a run, or
            its pack. Where a process died before it wrote its records, they come from the journal.

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
    run = Run(path)
    return next(iter(run)) if len(run) == 1 else run


def _choice(found: Sequence[DumpLocation]) -> str:
    """The mark that tells several dumps of a step from each other, and how one of them is asked for."""
    first = found[0]
    whose = first.process or first.rank
    processes = [each.process for each in found if each.process]
    ranks = list(dict.fromkeys(each.rank for each in found))
    if len(set(processes)) > 1:
        names = _numbers(list(dict.fromkeys(processes)))
        return f"processes {names}; give one of them: run[{first.step}, {processes[0]!r}]"
    if len(ranks) > 1:
        return f"ranks {_numbers(ranks)}; give one of them: run[{first.step}, {first.rank}]"
    modes = _numbers([each.mode or None for each in found])
    return f"modes {modes}; give one of them: run[{first.step}, {whose!r}, {first.mode!r}]"


def _numbers(values: Sequence[int | str | None]) -> str:
    shown = ", ".join("none" if value is None else str(value) for value in values[:6])
    return f"{shown}, ..." if len(values) > 6 else shown
