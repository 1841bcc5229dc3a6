"""Metrics of the user's own for real data, each a column behind the built-in ones.

A metric is a module, or any object, with two functions: ``column_name()`` gives the name of its column, and
``compare(n_value, b_value)`` gives a cell, that is a number or a text, for two arrays. It comes from a file named on
the command line, or from an installed package that has it as an entry point of the group `GROUP`.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from probe.common import log
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.report.csv_lines import harmless

GROUP = "msprobe.compare.algorithms"
FAILED = "failed"
"""The cell of a metric that raised an error."""

Cell = Union[int, float, str]
Array = NDArray[Any]

_LONGEST_NOTE = 200
"""Characters of an error that are shown; a guess."""
# Exceptions that the user's code may raise; sys.exit() in it does not end the command.
_ITS_OWN = (Exception, SystemExit)


@dataclass(frozen=True)
class Algorithm:
    """One metric.

    Args:
        source: the file or entry point it is from, for messages.
        column: the name of its column.
        compare: gives the cell for two arrays.
    """

    source: str
    column: str
    compare: Callable[[Array, Array], Any]

    def measure(self, target: Array, golden: Array, item: str) -> tuple[Cell, str]:
        """The cell, and a note where there is none because the metric failed.

        Args:
            target, golden: of one floating type and one shape; the metric cannot write to them.
            item: what is measured, for the log.
        """
        try:
            with np.errstate(all="ignore"):
                return _cell(self.compare(_read_only(target), _read_only(golden))), ""
        except _ITS_OWN as error:
            # Whatever it is, it says nothing about the tensors, and the other metrics go on.
            what = _in_one_line(error)[:_LONGEST_NOTE]
            log.warning(f"{self.source}: {self.column!r} failed, first at {item}: {what}", once=self.source)
            return FAILED, f"note: {self.column} failed: {what}"


def _read_only(values: Array) -> Array:
    view = values.view()
    view.flags.writeable = False
    return view


def _cell(value: Any) -> Cell:
    if not isinstance(value, (int, float, str)) and getattr(value, "ndim", None) == 0:
        value = value.item()  # numpy's numbers, and arrays without dimensions
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, float):
        return "Nan" if value != value else value
    if isinstance(value, int):
        return value
    raise TypeError(f"it returned {type(value).__name__}; allowed: int, float, str")


def load(files: Sequence[str], reserved: Collection[str]) -> list[Algorithm]:
    """The metrics of installed packages in order of their names, then those of `files` in their order.

    Args:
        files: Python files that the user names; they are executed.
        reserved: the columns that the table has without them.

    Raises:
        FileCheckException: a file cannot be read.
        MsprobeException: one cannot be loaded, is no metric, or its column is one of the table's or another's.
    """
    found = [*_installed(), *map(_from_file, files)]
    by_column: dict[str, Algorithm] = {}
    for algorithm in found:
        if algorithm.column in reserved:
            text = f"the table has a column {algorithm.column!r} of its own; return another name from column_name"
            raise MsprobeException(f"{algorithm.source}: {text}.")
        other = by_column.setdefault(algorithm.column, algorithm)
        if other is not algorithm:
            raise MsprobeException(f"{algorithm.source} and {other.source}: both call their column {other.column!r}.")
    return found


@cache
def _installed() -> tuple[Algorithm, ...]:
    found = []
    for name, value, point in sorted((point.name, point.value, point) for point in _entry_points()):
        source = f"entry point {name} = {value} of {GROUP}"
        try:
            content = point.load()
        except _ITS_OWN as error:
            raise _not_loaded(source, error) from None
        found.append(_algorithm(source, content))
    return tuple(found)


def _entry_points() -> Iterator[Any]:
    from importlib import metadata

    if sys.version_info >= (3, 10):
        yield from metadata.entry_points(group=GROUP)
    else:
        yield from metadata.entry_points().get(GROUP, ())


def _from_file(path: str) -> Algorithm:
    try:
        status = os.stat(path)
        return _executed(path, os.path.abspath(path), status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise FileCheckException(f"{path}: cannot be read: {error.strerror}.") from None


@cache
def _executed(path: str, *version: object) -> Algorithm:
    """The metric in a file, which is executed once a process, and again when it is another `version`."""
    with open(path, "rb") as stream:
        source = stream.read()
    module = ModuleType(f"msprobe_algorithm_{os.path.splitext(os.path.basename(path))[0]}")
    module.__file__ = path
    # Dataclasses look there for the module of a class.
    sys.modules[module.__name__] = module
    try:
        # Not by the import system, which would leave its cache beside the file.
        exec(compile(source, path, "exec"), module.__dict__)
    except _ITS_OWN as error:
        raise _not_loaded(path, error) from None
    return _algorithm(path, module)


def _not_loaded(source: str, error: BaseException) -> MsprobeException:
    line = None
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == source:
            line = step.tb_lineno
        step = step.tb_next
    where = "" if line is None else f"line {line}: "
    return MsprobeException(f"{source}: cannot be loaded: {where}{_in_one_line(error)}.")


def _in_one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".:")


def _algorithm(source: str, content: Any) -> Algorithm:
    column_name = _function(source, content, "column_name", "column_name()")
    compare = _function(source, content, "compare", "compare(n_value, b_value)")
    try:
        inspect.signature(compare).bind(None, None)
    except TypeError:
        raise MsprobeException(f"{source}: compare() has to take two arrays: compare(n_value, b_value).") from None
    except ValueError:
        pass  # A function that does not say what it takes.
    try:
        column = column_name()
    except _ITS_OWN as error:
        raise MsprobeException(f"{source}: column_name() failed: {_in_one_line(error)}.") from None
    named = isinstance(column, str) and column.isprintable() and column.strip()
    if not named or harmless(column) != column:
        raise MsprobeException(f"{source}: column_name() is {column!r}; expected the name of a column, as a text.")
    return Algorithm(source, column, compare)


def _function(source: str, content: Any, name: str, form: str) -> Callable[..., Any]:
    function = getattr(content, name, None)
    if not callable(function):
        raise MsprobeException(f"{source}: a metric has a function {form}; this one has none.")
    return function  # type: ignore[no-any-return]
