"""Dumps that tests make up: entries of tensors and numbers, records of calls, and the files of a process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probe.common.dump.journal import REPLACE, Header, JournalWriter
from probe.common.dump.layout import JOURNAL_FILE
from probe.common.dump.reading.dump import Dump, read

Entry = dict[str, Any]
"""A value or a record, as dump.json holds it."""


def tensor(
    largest: Any = 1.0,
    smallest: Any = -1.0,
    mean: Any = 0.0,
    norm: Any = 1.0,
    shape: Iterable[int] = (2,),
    dtype: str = "torch.float32",
    **more: Any,
) -> Entry:
    """The entry of a tensor with these statistics; `more` are other fields."""
    statistics = {"Max": largest, "Min": smallest, "Mean": mean, "Norm": norm}
    head = {"type": "torch.Tensor", "dtype": dtype, "shape": list(shape)}
    return {**head, **statistics, "requires_grad": False, **more}


def constant(value: Any = 1.0, **more: Any) -> Entry:
    """The entry of a tensor whose four statistics are `value`."""
    return tensor(value, value, value, value, **more)


def tensor_of(array: Any, dtype: str = "torch.float32", **more: Any) -> Entry:
    """The entry of an array, with statistics taken in float64; an empty array has none."""
    wide = np.asarray(array).astype(np.float64)
    if not wide.size:
        return constant(None, shape=wide.shape, dtype=dtype, **more)
    numbers = (float(each) for each in (wide.max(), wide.min(), wide.mean(), np.sqrt(np.square(wide).sum())))
    return tensor(*numbers, shape=wide.shape, dtype=dtype, **more)


def plain(value: Any, kind: str | None = None) -> Entry:
    """The entry of an argument that is not a tensor."""
    return {"type": kind or type(value).__name__, "value": value}


def call(
    inputs: Sequence[Any] = (), outputs: Any = None, kwargs: Mapping[str, Any] | None = None, **more: Any
) -> Entry:
    """The record of a forward call; `more` are other fields, such as parameters."""
    output = [] if outputs is None else outputs
    return {"input_args": list(inputs), "input_kwargs": dict(kwargs or {}), "output": output, **more}


def write(
    folder: Path,
    records: Mapping[str, Any],
    tree: Mapping[str, str | None] | None = None,
    stacks: Mapping[str, Any] | None = None,
    **head: Any,
) -> Path:
    """Write the dump of one process, and return its folder.

    Args:
        folder: The folder; it is made if it does not exist.
        records: The records by name.
        tree: The parent of each record for construct.json; without it, the file is not written.
        stacks: The content of stack.json; without it, the file is not written.
        head: Other fields of dump.json, or other values of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    whole = {"task": "statistics", "level": "mix", "framework": "pytorch", **head, "data": records}
    for name, content in (("dump", whole), ("construct", tree), ("stack", stacks)):
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def written(folder: Path, *content: Any, **head: Any) -> Dump:
    """Write a dump as `write` does, and read it."""
    return read(write(folder, *content, **head))


def write_journal(folder: Path, records: Mapping[str, Any], level: str = "L1") -> Path:
    """Write the journal of a process that was killed, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / JOURNAL_FILE
    writer = JournalWriter(str(path), Header("statistics", level, "pytorch", None))
    for order, (name, fields) in enumerate(records.items()):
        writer.record(name, order, -1, None, order, REPLACE, fields)
    writer.close()
    return path
