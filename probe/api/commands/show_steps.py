"""Text and JSON of ``msprobe show --timeline``, modules over the steps, and of ``--updates``, steps of optimizers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Optional

from probe.api.commands.show_text import ShownLine, Wanted, json_safe, names_there_are
from probe.common.dump import naming
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.items import INPUT, Item
from probe.common.dump.reading.records import PARAMETERS
from probe.common.dump.reading.selected_items import number_text, statistics
from probe.common.dump.update_file import Update, UpdatedParameter
from probe.common.errors import MsprobeException

_BAD, _HEAD = "bold red", "bold"
_COLUMNS = (
    "parameter",
    "group",
    "state step",
    "gradient norm",
    "update norm",
    "99 % interval",
    "parameter norm",
    "note",
)
"""Columns of the table of an optimizer's step."""
_SAME = ("name", "group", "state_step", "elements", "gradient_norm", "parameter_norm", "note")
"""Fields of an updated parameter that JSON has as they are."""


# --- modules over the steps


class TimelineRow(NamedTuple):
    """The first output of one call in one step; in the backward, its first gradient."""

    record: str
    step: Optional[int]  # noqa: UP045 (evaluated, on Python 3.9 too)
    process: str
    """``rank0`` or ``proc123``."""
    largest: Optional[float]  # noqa: UP045
    norm: Optional[float]  # noqa: UP045
    growth: Optional[float]  # noqa: UP045
    """The norm divided by that of the same call in the step before; ``None`` in the first step, or if one is zero."""
    is_finite: bool

    def as_json(self) -> dict[str, Any]:
        return {
            "record": self.record,
            "step": self.step,
            "process": self.process,
            "Max": json_safe(self.largest),
            "Norm": json_safe(self.norm),
            "growth": self.growth,
        }


def timeline(dumps: Iterable[Dump], wanted: Wanted) -> list[TimelineRow]:
    """A row for each module and step, module by module in the order of the first step.

    Where no module was collected, at level L1, the rows are those of functions.

    Raises:
        MsprobeException: no call that is asked for has statistics.
    """
    modules: dict[tuple[str, str], list[TimelineRow]] = {}
    functions: dict[tuple[str, str], list[TimelineRow]] = {}
    first: Dump | None = None
    fits = False
    for dump in dumps:
        first = dump if first is None else first
        for record in wanted.records(dump):
            fits = True
            parsed = naming.parse(record.name)
            if parsed is None or naming.is_gradients(record.name):
                continue
            item = _measured(dump.items(record))
            if item is not None:
                rows = (modules if parsed.is_module else functions).setdefault((record.name, _process(dump)), [])
                rows.append(_row(record.name, dump, item, rows[-1] if rows else None))
    found = modules or functions
    if first is not None and not fits and not wanted.everything:
        raise MsprobeException(f"no record matches{names_there_are(first, wanted)}")
    if not found:
        raise MsprobeException("no selected call has statistics; --timeline needs a dump of task statistics or tensor.")
    return [row for rows in found.values() for row in rows]


def _measured(items: list[Item]) -> Item | None:
    outputs = (item for item in items if item.state not in (INPUT, PARAMETERS))
    return next((item for item in outputs if item.is_tensor and item.norm is not None), None)


def _process(dump: Dump) -> str:
    return f"rank{dump.rank}" if dump.rank is not None else dump.process or ""


def _row(record: str, dump: Dump, item: Item, before: TimelineRow | None) -> TimelineRow:
    largest, _, _, norm = statistics(item)
    is_finite = not (item.has_nan or item.has_inf)
    growth = None
    if before is not None and before.is_finite and is_finite and before.norm and norm:
        growth = norm / before.norm
    return TimelineRow(record, dump.step, _process(dump), largest, norm, growth, is_finite)


def timeline_lines(rows: list[TimelineRow]) -> Iterator[ShownLine]:
    """The table; of several rows of one call the first one has its name."""
    processes = dict.fromkeys(row.process for row in rows)
    width = max(len(process) for process in processes)
    yield ShownLine(f"{'step':>6} {'':{width}} {'Max':>10} {'Norm':>10} {'growth':>8}  record", _HEAD)
    shown = ("", "")
    for row in rows:
        call = row.record, row.process
        name = row.record if call != shown else ""
        shown = call
        step = "" if row.step is None else row.step
        growth = "" if row.growth is None else f"x{row.growth:.3g}"
        numbers = f"{number_text(row.largest):>10} {number_text(row.norm):>10} {growth:>8}"
        text = f"{step:>6} {row.process:{width}} {numbers}  {name}"
        yield ShownLine(text.rstrip(), "" if row.is_finite else _BAD, counts=True)


# --- steps of optimizers


def update_lines(dump: Dump) -> Iterator[ShownLine]:
    """The updates of one dump; the norms have the unit of the elements.

    Raises:
        DumpFormatError: the file is damaged.
    """
    if not dump.updates:
        yield ShownLine(f"{dump.path}: no step of an optimizer was recorded")
        return
    yield ShownLine(f"{dump.path}: steps of optimizers: {len(dump.updates)}", "bold")
    for update in dump.updates:
        skipped = ": skipped, a gradient was not finite" if update.skipped else ""
        yield ShownLine(f"optimizer {update.index}: {update.optimizer}{skipped}", "bold")
        for index, group in enumerate(update.groups):
            settings = ", ".join(f"{name} = {value}" for name, value in group.items())
            yield ShownLine(f"  group {index}: {settings}")
        rows = [_COLUMNS, *map(_update_cells, update.parameters)]
        widths = [max(map(len, column)) for column in zip(*rows)]
        for at, row in enumerate(rows if update.parameters else ()):
            text = "  ".join(cell.ljust(width) for cell, width in zip(row, widths))
            yield ShownLine(f"  {text.rstrip()}", "dim" if at == 0 else "", counts=at > 0)


def _update_cells(row: UpdatedParameter) -> tuple[str, ...]:
    norm = row.update_norm
    counted = "" if row.state_step is None else number_text(row.state_step)
    change = ("", "") if norm is None else (number_text(norm.estimate), f"{norm.low:.4g} to {norm.high:.4g}")
    gradient, parameter = (
        "" if math.isnan(each) else number_text(each) for each in (row.gradient_norm, row.parameter_norm)
    )
    return (row.name, str(row.group), counted, gradient, *change, parameter, row.note or "")


def updates_as_json(updates: list[Update]) -> list[Any]:
    """The updates as values that JSON has, without their sketches."""
    found = []
    for update in updates:
        rows = []
        for row in update.parameters:
            norm = row.update_norm
            rows.append(
                {
                    **{key: getattr(row, key) for key in _SAME},
                    "update_norm": None if norm is None else norm._asdict(),
                }
            )
        head = {name: getattr(update, name) for name in update.__struct_fields__}
        found.append(json_safe({**head, "parameters": rows}))
    return found
