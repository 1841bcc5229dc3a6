"""The rows of real data: the files of both sides are read and held against each other, several pairs at once.

numpy lets other threads run while it computes and torch while it reads, so that threads are as good as processes here
and nothing has to be sent from one to another.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probe.common import log
from probe.common.align.calls import Row
from probe.common.data_files import load_yaml
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.items import shape_text
from probe.common.dump.reading.records import Item
from probe.common.dump.reading.tensor_reading import Array, read_tensor
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.harmless_text import show
from probe.common.numerics.error_bounds import extent
from probe.common.numerics.formats import plain_name
from probe.common.numerics.statistics import NOT_MEASURED, SHAPE_UNMATCHED, UNSUPPORTED
from probe.common.numerics.user_metrics import Algorithm
from probe.common.numerics.values import as_measured, compare_values
from probe.common.parallel.tasks import processors
from probe.compare.judgement import Otherwise

_MOST_KEYS_SHOWN = 10
"""Keys that an error lists; a guess."""
LEFT, RIGHT = "left", "right"
# Section of the file -> the key of each map, which side of the product its matrix stands on, which dump it is for.
_MAPS = {
    "right_matmul": (("target_tensor_map", RIGHT, "target"), ("golden_tensor_map", RIGHT, "golden")),
    "left_matmul": (("target_tensor_map", LEFT, "target"), ("golden_tensor_map", LEFT, "golden")),
    "left_right_matmul": tuple(
        (f"{side}_{dump}_tensor_map", side, dump) for dump in ("target", "golden") for side in (LEFT, RIGHT)
    ),
}


@dataclass
class PostProcessing:
    """Matrices by dump and tensor.

    Args:
        products: for ``target`` and ``golden``, from the name of a tensor's file to sides and matrix files.
    """

    products: dict[str, dict[str, list[tuple[str, str]]]] = field(default_factory=lambda: {"target": {}, "golden": {}})
    _matrices: dict[str, Array] = field(default_factory=dict)

    def apply(self, values: Array, dump: str, data_name: str) -> Array:
        """`values` multiplied as the file says; where that fails they are left as they are, and a line says why."""
        of_dump = self.products[dump]
        products = of_dump.get(data_name) or of_dump.get(os.path.splitext(data_name)[0])
        if not products:
            return values
        result = np.squeeze(values)
        try:
            for side, path in products:
                matrix = self._matrix(path)
                result = matrix @ result if side == LEFT else result @ matrix
        except (MsprobeException, ValueError, TypeError) as error:
            log.warning(f"{data_name} of the {dump} dump is compared as it is: {error}")
            return values
        return result

    def _matrix(self, path: str) -> Array:
        if path not in self._matrices:
            self._matrices[path] = read_tensor(path)
        return self._matrices[path]


def load_post_processing(path: str) -> PostProcessing:
    """Read the file of ``--config``; matrices are looked for where it lies, unless their paths are absolute.

    Raises:
        FileCheckException: it cannot be read.
        MsprobeException: it holds something else.
    """
    content = load_yaml(path)
    if not isinstance(content, dict) or not content.keys() <= _MAPS.keys():
        raise MsprobeException(f"{path}: expected {', '.join(_MAPS)}.")
    found = PostProcessing()
    for section, maps in content.items():
        if not isinstance(maps, dict):
            raise MsprobeException(f"{path}: {section} is {show(maps)}; expected {_keys(section)}.")
        unknown = maps.keys() - {key for key, _, _ in _MAPS[section]}
        if unknown:
            some = ", ".join(sorted(map(show, unknown))[:_MOST_KEYS_SHOWN])
            raise MsprobeException(f"{path}: {section} has {some}; expected {_keys(section)}.")
        for key, side, dump in _MAPS[section]:
            for matrix, names in _tensor_map(path, section, key, maps.get(key)).items():
                file = matrix if os.path.exists(matrix) else os.path.join(os.path.dirname(path), matrix)
                for name in names:
                    found.products[dump].setdefault(name, []).append((side, file))
    return found


def _keys(section: str) -> str:
    return ", ".join(key for key, _, _ in _MAPS[section])


def _tensor_map(path: str, section: str, key: str, value: Any) -> dict[str, list[str]]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(
        isinstance(matrix, str) and isinstance(names, list) and all(isinstance(name, str) for name in names)
        for matrix, names in value.items()
    ):
        raise MsprobeException(f"{path}: {section}.{key}: expected files of matrices, each with a list of tensors.")
    return value


_MOST_THREADS = 8
"""More of them wait for the memory, which they share, or for the interpreter."""


@dataclass(frozen=True)
class TensorValues:
    """The real data of two dumps.

    Args:
        target, golden: the dumps.
        otherwise: measuring as another tool does, where that is asked for.
        algorithms: the user's own metrics.
        post_processing: what is done to tensors before.
    """

    target: Dump
    golden: Dump
    otherwise: Otherwise | None = None
    algorithms: Sequence[Algorithm] = ()
    post_processing: PostProcessing | None = None

    def measured(self, rows: Sequence[Row]) -> Iterator[Row]:
        """All of `rows` in their order, each with its metrics as soon as it has them; only pairs have any."""
        # The user's metrics need not be fit for threads, and a process that is one of several has a processor.
        alone = self.algorithms or multiprocessing.parent_process() is not None
        return _in_threads(self._measure, rows, 1 if alone else min(processors(), _MOST_THREADS))

    def _measure(self, row: Row) -> None:
        if row.target is None or row.golden is None:
            return
        row.metrics = UNSUPPORTED
        sides = (self.target, row.target), (self.golden, row.golden)
        paths = [dump.tensor_path(item) for dump, item in sides]
        if None in paths:
            of_tensors = row.target.is_tensor and row.golden.is_tensor
            # A tensor without elements, such as a weight that an engine packs elsewhere, has no values to read: its
            # shape differs, and what is computed from it tells.
            has_nothing = any(
                path is None and extent(item.shape).elements == 0 for path, (_, item) in zip(paths, sides)
            )
            row.judged = paths == [None, None] or not of_tensors or has_nothing
            for path, (_, item), who in zip(paths, sides, ("target", "golden")):
                # A tensor without elements has nothing to save.
                if path is None and item.is_tensor and (self.otherwise is not None or extent(item.shape).elements):
                    row.notes += (f"warning: The {who} side does not have a data file.",)
            return
        values: list[Array] = []
        types: list[str] = []
        for path, (_, item), side in zip(paths, sides, ("target", "golden")):
            try:
                found = read_tensor(path or "", mapped=True)
            except FileCheckException as error:
                row.notes += (f"error: Dump file not found or read failed: {error}",)
                row.judged = False
                return
            types.append(found.dtype.name)
            if self.post_processing is not None:
                found = self.post_processing.apply(found, side, item.data_name or "")
            values.append(found)
        measured = (compare_values if self.otherwise is None else self.otherwise.values)(values[0], values[1])
        row.metrics = measured.metrics
        if measured.note:
            row.notes += (measured.note,)
        if measured.special_values_differ:
            # Statistics may say the same of both.
            row.relative_difference = math.inf
        belied = _belied(row.target, row.golden, types, measured.metrics == SHAPE_UNMATCHED)
        if belied:
            row.notes += (belied,)
            row.judged = False
        if self.algorithms and measured.metrics not in NOT_MEASURED:
            self._measure_further(row, *as_measured(values[0], values[1]))

    def _measure_further(self, row: Row, target: Array, golden: Array) -> None:
        assert row.target is not None
        for algorithm in self.algorithms:
            cell, note = algorithm.measure(target, golden, row.target.name)
            row.metrics += (cell,)
            if note:
                row.notes += (note,)


def _belied(target: Item, golden: Item, types: Sequence[str], shapes_differ: bool) -> str:
    """A contradiction between two files and their records, which agree; empty if there is none.

    A file alone is not held against its record: that of a tensor in shards holds one of them, and types that numpy
    lacks are widened.
    """
    if shapes_differ and target.shape == golden.shape:
        said = "none" if target.shape is None else shape_text(target.shape)
        return f"error: the files of target and golden hold tensors of two shapes, and both records say {said}."
    if types[0] != types[1] and target.dtype and golden.dtype and plain_name(target.dtype) == plain_name(golden.dtype):
        return f"error: the files of target and golden hold {' and '.join(types)}, and both records say {target.dtype}."
    return ""


def _in_threads(work: Callable[[Row], None], rows: Sequence[Row], threads: int) -> Iterator[Row]:
    if threads == 1:
        for row in rows:
            work(row)
            yield row
        return
    waiting: deque[tuple[Row, Future[None]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for row in rows:
            waiting.append((row, pool.submit(work, row)))
            # So few at a time that an error is known before much work was done in vain.
            if len(waiting) > 4 * threads:
                done, future = waiting.popleft()
                future.result()
                yield done
        for done, future in waiting:
            future.result()
            yield done
