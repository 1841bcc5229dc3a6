"""Compare two checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Union

from probe.checkpoint.content import Checkpoint
from probe.checkpoint.holding import explain
from probe.checkpoint.judging import check_rounding, judge, tie
from probe.checkpoint.layers import summarise
from probe.checkpoint.measuring import IDENTICAL, measure
from probe.checkpoint.names.scheme import order_of
from probe.checkpoint.options import CheckpointOptions
from probe.checkpoint.pairing.matching import match
from probe.checkpoint.pairing.pairs import Pair, Side
from probe.checkpoint.readers.opening import open_checkpoint
from probe.checkpoint.report import Parameter, Replica, Report, Setting
from probe.checkpoint.stored.files import close_all
from probe.checkpoint.stored.tensors import Tensor
from probe.common.progress import ProgressCallback, with_progress

Path = Union[str, "os.PathLike[str]"]


def compare_checkpoints(
    one: Path, other: Path, options: CheckpointOptions | None = None, watch: ProgressCallback | None = None
) -> Report:
    """Compare two checkpoints of any formats, parameter by parameter.

    Args:
        one, other: Files or folders.
        options: How they are read and compared.
        watch: A callback for how far the work is.

    Raises:
        MsprobeException: one cannot be read, and what to do.
    """
    options = options or CheckpointOptions()
    try:
        left, right = open_checkpoint(os.fspath(one), options), open_checkpoint(os.fspath(other), options)
        return _compare(left, right, options, watch)
    finally:
        close_all()


def _compare(left: Checkpoint, right: Checkpoint, options: CheckpointOptions, watch: ProgressCallback | None) -> Report:
    pairs = match(left, right, options)
    order = {name: index for index, name in enumerate(left.weights)}
    pairs.sort(key=lambda pair: (order_of(pair.key), order.get(pair.one.name if pair.one else "", len(order))))
    every = pairs if watch is None else with_progress(pairs, watch, "parameters", len(pairs))
    rows = [(judge(pair), pair) for pair in every]
    tie(rows, (left.weights, right.weights))
    explain(rows)
    check_rounding([row for row, _ in rows])
    parameters = [row for row, _ in rows]
    report = Report(
        left.path, right.path, left.format, right.format, parameters, layers=summarise(parameters),
        notes=[*left.notes, *right.notes],
    )  # fmt: skip
    report.replicas = [*_replicas(left), *_replicas(right)]
    report.settings = _settings(left.settings, right.settings)
    if options.optimizer:
        report.optimizer = _optimizer(left.optimizer, right.optimizer)
    return report


def _replicas(content: Checkpoint) -> list[Replica]:
    found = []
    for name, ranks, one, other in content.replicas:
        if one.shape != other.shape:
            found.append(Replica(content.path, name, ranks, float("inf")))
            continue
        measured = measure(one, other)
        if measured.verdict != IDENTICAL:
            found.append(Replica(content.path, name, ranks, measured.max_abs))
    return found


def _settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Setting]:
    names = [*one, *(name for name in other if name not in one)]
    if not one or not other:
        return []
    return [
        Setting(name, one.get(name), other.get(name))
        for name in names
        if type(one.get(name)) is not type(other.get(name)) or one.get(name) != other.get(name)
    ]


def _optimizer(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[Parameter]:
    """The state of two optimizers, by equal names."""
    rows = []
    for name in [*one, *(name for name in other if name not in one)]:
        left, right = (Side(name, name, tensors[name]) if name in tensors else None for tensors in (one, other))
        rows.append(judge(Pair(left, right)))
    return rows
