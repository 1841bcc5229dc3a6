"""Nodes of a compiled graph with the lines of Python that they come from, as MindSpore's IR files have them.

    %1(x) = PrimFunc_MatMul(%para5_x, %0, Bool(0), Bool(1)) {instance name: matmul} ...
        # Fullname with scope: (Default/block1-Block/dense-Dense/MatMul-op0)
        # In file /src/net.py:24, 12~23/        y = self.block1(x)/
        # In file /src/net.py:17, 24~34/        return ops.relu(self.dense(x)) + x/

Each node has the full name, and below it the calls that lead to the line, the outermost first. A line ends with the
code between slashes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from probe.common import files
from probe.common.errors import DumpFormatError

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
