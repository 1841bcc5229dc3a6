"""``msprobe code_mapping``: kernel dumps of MindSpore's graphs linked to the lines of Python that they come from.

A tensor file is named ``{op_type}.{op_name}.{task}.{stream}.{time}.…``, where the name of the node is `op_name`,
whole or its last part, with ``_`` for each slash. A ``statistic.csv`` has it in the column ``Op Name``.
"""

from __future__ import annotations

import csv
import io
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from probe.common import files
from probe.common.errors import DumpFormatError, FileCheckException, MsprobeException
from probe.common.report.csv_lines import csv_line

STATISTICS = "statistic.csv"
_NAME_COLUMN = "op name"
_KERNEL_FILE = re.compile(
    r"^(?P<type>[^.]+)\.(?P<name>.+?)\.(?P<task>\d+)\.(?P<stream>\d+)\.(?P<time>\d{6,})(?:\..*)?$"
)
NO_NODE, NO_SOURCE, AMBIGUOUS = "no node of the graph has this name", "no source line", "several nodes have this name"
_LARGEST_TABLE = 1 << 30
"""Bytes of a ``statistic.csv`` that is read; a line is some 200 bytes, so that this is 5 million tensors."""


@dataclass
class Mapped:
    """The number of tensors that were linked, and the files that were written."""

    files: list[str] = field(default_factory=list)
    linked: int = 0
    """Dumped tensors with lines of the source."""
    unlinked: Counter[str] = field(default_factory=Counter)
    """The number of others, by the reason."""


class _Index:
    """The nodes of a graph by the names that dumps have for them."""

    def __init__(self, nodes: Iterable[GraphNode]) -> None:
        self._whole: dict[str, GraphNode] = {}
        self._last: dict[str, list[GraphNode]] = {}
        for node in nodes:
            self._whole.setdefault(_flat(node.name), node)
            self._last.setdefault(_flat(node.name.rpartition("/")[2]), []).append(node)

    def stack(self, name: str) -> tuple[str, str]:
        """The stack of a node as text, or an empty text and why there is none."""
        node = self._whole.get(_flat(name))
        if node is None:
            found = self._last.get(_flat(name.rpartition("/")[2]), [])
            if not found:
                return "", NO_NODE
            if len({each.stack for each in found}) > 1:
                return "", AMBIGUOUS
            node = found[0]
        return ("; ".join(map(str, node.stack)), "") if node.stack else ("", NO_SOURCE)


def _flat(name: str) -> str:
    return name.replace("/", "_").replace(".", "_")


def map_code(ir: str, dump: str, output: str) -> Mapped:
    """Link what is dumped to the source.

    Args:
        ir: The IR file.
        dump: A tensor file, a ``statistic.csv``, or a folder in which these are looked for.
        output: The folder that gets the tables.

    Raises:
        OSError: a file cannot be read or written.
        MsprobeException: the IR file has no nodes, or nothing is dumped.
    """
    if not os.path.lexists(ir):
        raise FileCheckException(f"{ir} does not exist; give an IR file that MindSpore writes with save_graphs.")
    index = _Index(read(ir))
    if not os.path.lexists(dump):
        raise FileCheckException(f"{dump} does not exist; give a tensor file, a {STATISTICS}, or a folder of these.")
    paths = list(files.below(dump)) if os.path.isdir(dump) else [dump]
    tables = [path for path in paths if path.endswith(".csv")] if os.path.isfile(dump) else []
    tables = tables or [path for path in paths if os.path.basename(path) == STATISTICS]
    tensors = [path for path in paths if _KERNEL_FILE.match(os.path.basename(path))]
    if not tables and not tensors:
        raise MsprobeException(
            f"{dump} holds no kernel dump; expected: files named type.name.task.stream.time, or {STATISTICS}."
        )
    mapped = Mapped()
    stamp = time.strftime("%Y%m%d%H%M%S")
    files.make_folder(output)
    if tensors:
        path = os.path.join(output, f"code_mapping_{stamp}.csv")
        with files.replacing(path) as stream:
            stream.write(csv_line(("file_path", "code_stack")))
            for tensor in tensors:
                found = _KERNEL_FILE.match(os.path.basename(tensor))
                assert found is not None
                stream.write(csv_line((tensor, _counted(mapped, index.stack(found["name"])))))
        mapped.files.append(path)
    for number, table in enumerate(tables):
        # A folder of several steps has a table for each.
        end = f"_{number}" if len(tables) > 1 else ""
        path = os.path.join(output, f"statistic_code_mapping_{stamp}{end}.csv")
        with files.replacing(path) as stream:
            stream.writelines(csv_line(row) for row in _with_stacks(table, index, mapped))
        mapped.files.append(path)
    return mapped


def _counted(mapped: Mapped, found: tuple[str, str]) -> str:
    stack, why = found
    if why:
        mapped.unlinked[why] += 1
    else:
        mapped.linked += 1
    return stack


def _with_stacks(path: str, index: _Index, mapped: Mapped) -> Iterator[Sequence[str]]:
    """The rows of a table, and its header, with the stack as one more column."""
    with files.open_for_reading(path) as stream:
        if os.fstat(stream.fileno()).st_size > _LARGEST_TABLE:
            raise DumpFormatError(f"{path} has more than {_LARGEST_TABLE >> 30} GiB; give the tables of fewer steps.")
        rows = csv.reader(io.TextIOWrapper(stream, "utf-8-sig", "replace", newline=""))
        try:
            header = next(rows, [])
            names = [cell.strip().lower() for cell in header]
            if _NAME_COLUMN not in names:
                raise DumpFormatError(f'{path}: it has no column "Op Name"; expected: a {STATISTICS} of MindSpore.')
            column = names.index(_NAME_COLUMN)
            yield [*header, "code_stack"]
            for row in rows:
                stack = _counted(mapped, index.stack(row[column])) if column < len(row) else ""
                yield [*row, *("" for _ in range(len(header) - len(row))), stack]
        except csv.Error as error:
            raise DumpFormatError(f"{path}: line {rows.line_num} is no line of a table: {error}.") from None


# --- nodes of an IR file

_NODE = re.compile(r"^\s*%\d+\(")
_NAME = re.compile(r"#\s*Fullname with scope:\s*\((.*)\)\s*$")
# Releases before 2.2 write the line in parentheses.
_LINE = re.compile(r"#\s*In file (?P<file>.+?)(?::|\()(?P<line>\d+)\)?(?:~\d+)?(?:, ?\d+~\d+)?/(?P<code>.*?)/?\s*$")
_WHOLE_FUNCTION = re.compile(r"#\s*In file .+:\d+~\d+, ")
"""A span of lines, that of a function or an ``if`` in which the call is."""


@dataclass(frozen=True)
class SourceLine:
    """One line of Python."""

    file: str
    line: int
    code: str

    def __str__(self) -> str:
        return f"File {self.file}, line {self.line}, {self.code}"


@dataclass(frozen=True)
class GraphNode:
    """One node of a graph."""

    name: str
    """``Default/block1-Block/dense-Dense/MatMul-op0``."""
    stack: tuple[SourceLine, ...]
    """The innermost line first, as call stacks of a dump have it."""


def read(path: str) -> list[GraphNode]:
    """The nodes of an IR file that have a name, in its order.

    Raises:
        OSError: the file cannot be read.
        DumpFormatError: it has no such node.
    """
    with files.open_for_reading(path) as stream:
        lines = (line.decode("utf-8", "replace").rstrip("\n") for line in stream)
        nodes = list(_nodes(lines))
    if not nodes:
        raise DumpFormatError(
            f"{path}: no node with a full name is in it. Give an IR file that MindSpore writes with save_graphs after "
            "the graph is built: anf_after_graph_build*.ir, or graph_build_*.ir since release 2.7."
        )
    return nodes


def _nodes(lines: Iterator[str]) -> Iterator[GraphNode]:
    name = ""
    stack: list[SourceLine] = []
    for line in lines:
        found = _NAME.search(line) if "Fullname" in line else None
        if found is not None or _NODE.match(line):
            if name:
                yield GraphNode(name, tuple(reversed(stack)))
                name = ""
            if found is not None:
                name, stack = found.group(1), []
            continue
        called = _LINE.search(line) if "In file " in line else None
        if called is not None and not _WHOLE_FUNCTION.search(line):
            stack.append(SourceLine(called["file"], int(called["line"]), called["code"].strip()))
    if name:
        yield GraphNode(name, tuple(reversed(stack)))
