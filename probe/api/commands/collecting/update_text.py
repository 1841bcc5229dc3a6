"""Text of ``msprobe show --updates``: the steps of optimizers, with a line for each parameter."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from probe.api.commands.collecting.show_text import ShownLine, json_safe
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.selection import number_text
from probe.common.dump.update_file import Update, UpdatedParameter

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
        rows = [_COLUMNS, *map(_cells, update.parameters)]
        widths = [max(map(len, column)) for column in zip(*rows)]
        for at, row in enumerate(rows if update.parameters else ()):
            text = "  ".join(cell.ljust(width) for cell, width in zip(row, widths))
            yield ShownLine(f"  {text.rstrip()}", "dim" if at == 0 else "", counts=at > 0)


def _cells(row: UpdatedParameter) -> tuple[str, ...]:
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
        head = {each.name: getattr(update, each.name) for each in dataclasses.fields(update)}
        found.append(json_safe({**head, "parameters": rows}))
    return found


_SAME = ("name", "group", "state_step", "elements", "gradient_norm", "parameter_norm", "note")
