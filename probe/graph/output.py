"""Comparisons of graphs as files: the page, JSON, Model Explorer."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Optional, Protocol

import msgspec
import numpy as np

from probe._version import __version__
from probe.common import files
from probe.common.errors import MsprobeException
from probe.common.report.page import filling
from probe.common.report.page.filling import as_json
from probe.graph import page
from probe.graph.diff import GraphDiff
from probe.graph.graph import MODULE, refuse_long_chains
from probe.graph.options import HTML, JSON, MODEL_EXPLORER, GraphOptions
from probe.graph.overflow_levels import LEVELS
from probe.graph.page.blocks import Blocks
from probe.graph.page.columns import Columns, name_of
from probe.graph.page.manifest import FORMAT, Manifest
from probe.graph.page.tensors import rounded
from probe.graph.pairing import REASONS
from probe.graph.rules import GraphRules


@dataclass(frozen=True)
class ShownComparison:
    """A comparison as it is written."""

    columns: Columns
    diff: Optional[GraphDiff] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The comparison itself, where a writer needs it."""
    exchanged: dict[int, Any] = field(default_factory=dict)
    """With what nodes of the target exchange data, as msProbe says it; where a writer needs it."""
    is_part: bool = False
    """True if it is one of the ranks that another comparison was merged of."""


# --- stamps


@contextlib.contextmanager
def stamped(folder: str) -> Iterator[datetime]:
    """The time for the names of the files that are written to `folder` inside of the context.

    It is now, or the next second of which nothing is there: whatever else writes to this folder at the same time gets
    another one, and nothing is overwritten.

    Raises:
        OSError: the folder cannot be written to.
    """
    files.make_folder(folder)
    when = datetime.now().replace(microsecond=0)
    while not (claim := _claim(folder, when)):
        when += timedelta(seconds=1)
    try:
        yield when
    finally:
        # Behind the files: whoever may claim it now sees them.
        os.unlink(claim)


def in_words(when: datetime) -> str:
    """The time as names of files have it."""
    return f"{when:%Y%m%d%H%M%S}"


def _claim(folder: str, when: datetime) -> str:
    """The file that keeps others from taking this time; empty where it is taken."""
    path = os.path.join(folder, f".graph_{in_words(when)}.claim")
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | files.NO_FOLLOW, files.FILE_MODE))
    except FileExistsError:
        return ""
    escaped = glob.escape(folder)
    if any(glob.glob(os.path.join(escaped, *within, f"*_{in_words(when)}*")) for within in ([], ["run*"])):
        os.unlink(path)
        return ""
    return path


# --- json file


_KINDS = {0: "module", 1: "api", 9: "group"}


class JsonWriter:
    """Takes comparisons one after the other."""

    def __init__(self, path: str, rules: GraphRules, unpaired: list[str]) -> None:
        self._path, self._rules, self._unpaired = path, rules, unpaired
        self._comparisons: list[msgspec.Raw] = []

    def add(self, shown: ShownComparison, comparison: dict[str, Any]) -> None:
        columns = shown.columns
        statuses = [status.key for status in self._rules.statuses]
        found = {
            **comparison,
            "first": _name(columns, comparison["first"]),
            "chain": [name_of(columns, row) for row in comparison["chain"]],
            "suspects": [name_of(columns, row) for row in comparison["suspects"]],
            "nonfinite": _name(columns, comparison["nonfinite"]),
            "golden_nonfinite": _name(columns, comparison["golden_nonfinite"]),
            "origin": _origin(columns),
            "worst": statuses[comparison["worst"]],
            "counts": dict(zip(statuses, comparison["counts"])),
            "rows": _rows(columns, statuses),
        }
        # As text, which takes a tenth of the memory.
        self._comparisons.append(msgspec.Raw(as_json(found)))

    def finish(self) -> list[str]:
        """Write the file; returns its path."""
        content = {
            "format": FORMAT,
            "tool": f"msprobe {__version__}",
            "rules": self._rules.name,
            "unpaired": self._unpaired,
            "comparisons": self._comparisons,
        }
        path = f"{self._path}.json"
        with files.replacing(path) as stream:
            stream.write(as_json(content))
        return [path]


def _name(columns: Columns, row: int | None) -> str | None:
    return None if row is None else name_of(columns, row)


def _origin(columns: Columns) -> dict[str, Any] | None:
    origin = columns.origin
    return None if origin is None else {**origin, "module": _name(columns, origin["module"])}


def _rows(columns: Columns, statuses: list[str]) -> list[dict[str, Any]]:
    names, details = columns.texts, columns.details
    cells = zip(
        columns.name.tolist(),
        columns.golden_name.tolist(),
        columns.parent.tolist(),
        columns.kind.tolist(),
        columns.status.tolist(),
        columns.reason.tolist(),
        columns.level.tolist(),
        rounded(columns.in_error),
        rounded(columns.out_error),
    )
    return [
        {
            "target": names[name] if name >= 0 else None,
            "golden": names[golden] if golden >= 0 else None,
            "parent": name_of(columns, row + parent) if parent else None,
            "kind": _KINDS[kind],
            "status": statuses[status],
            "reason": REASONS[reason],
            "overflow": LEVELS[level],
            "in_error": before,
            "out_error": after,
            "why": details.why.get(row),
            "cause": details.cause.get(row),
        }
        for row, (name, golden, parent, kind, status, reason, level, before, after) in enumerate(cells)
    ]


# --- model explorer


_COLOURS = {
    "none": "#e0e0e0",
    "good": "#cfe8d5",
    "neutral": "#dce3ee",
    "info": "#bcd9f2",
    "alone": "#d9c9ea",
    "warn": "#f7d08a",
    "bad": "#e8776b",
}


class ModelExplorerWriter:
    """Takes comparisons one after the other."""

    def __init__(self, path: str, rules: GraphRules) -> None:
        self._path, self._statuses = path, rules.statuses
        self._graphs: list[Any] = []
        self._shown: dict[str, Any] = {}

    def add(self, shown: ShownComparison, comparison: dict[str, Any]) -> None:
        columns = shown.columns
        name = f"{len(self._graphs)}: {columns.target.path}"
        nodes, attributes = _nodes(columns)
        self._graphs.append({"id": name, "nodes": nodes, "groupNodeAttributes": attributes})
        self._shown[name] = {"results": self._results(columns)}

    def finish(self) -> list[str]:
        """Write both files; returns their paths."""
        collection = [{"label": "msprobe", "graphs": self._graphs}]
        paths = [f"{self._path}.model_explorer.json", f"{self._path}.model_explorer_status.json"]
        for path, content in zip(paths, (collection, self._shown)):
            with files.replacing(path) as stream:
                stream.write(as_json(content))
        return paths

    def _results(self, columns: Columns) -> dict[str, Any]:
        found = {}
        for row, status in enumerate(columns.status.tolist()):
            shown = self._statuses[status]
            found[str(row)] = {"value": shown.name, "bgColor": _COLOURS[shown.colour]}
        return found


def _nodes(columns: Columns) -> tuple[list[Any], dict[str, dict[str, str]]]:
    """The nodes of a graph, and what is said of those that hold others, which are drawn as layers."""
    parents = np.arange(len(columns)) + columns.parent
    holds = np.zeros(len(columns), dtype=bool)
    holds[parents[columns.parent > 0]] = True
    names = [name_of(columns, row) for row in range(len(columns))]
    layers = _layers(names, parents.tolist())
    attributes = [_attributes(columns, row, each) for row, each in enumerate(_errors(columns))]
    nodes: list[Any] = []
    before = ""
    for row, name in enumerate(names):
        # A call that holds others is a layer, and stands as a node at its end too, so that its values are shown.
        if holds[row] and not columns.has[row]:
            continue
        layer = layers[row] if holds[row] else layers[int(parents[row])]
        node: dict[str, Any] = {"id": str(row), "label": _label(name), "namespace": layer}
        node["attrs"] = [{"key": "name", "value": name}, *attributes[row]]
        if before:
            node["incomingEdges"] = [{"sourceNodeId": before, "sourceNodeOutputId": "0", "targetNodeInputId": "0"}]
        before = str(row)
        nodes.append(node)
    said = {
        layers[row]: {each["key"]: each["value"] for each in attributes[row]}
        for row in np.flatnonzero(holds).tolist()
        if layers[row] and columns.kind[row] == MODULE
    }
    return nodes, said


def _layers(names: Sequence[str], parents: Sequence[int]) -> list[str]:
    """The path of each row as a layer: the names of the rows around it, and its own."""
    refuse_long_chains("model-explorer", names, parents)
    found = [""] * len(names)
    # Behind what is inside of it: whoever is around comes later, and is looked at first.
    for row in range(len(names) - 2, -1, -1):
        around = found[parents[row]]
        own = names[row].replace("/", "_").replace(";", "_")
        found[row] = f"{around}/{own}" if around else own
    return found


def _label(name: str) -> str:
    """The name of a node in short: without the kind, the direction and numbers."""
    parts = name.split(".")
    words = [part for part in parts[1:] if not part.isdigit() and part not in ("forward", "backward")]
    return words[-1] if words else name


def _errors(columns: Columns) -> list[tuple[Any, Any]]:
    return list(zip(rounded(columns.in_error), rounded(columns.out_error)))


def _attributes(columns: Columns, row: int, errors: tuple[Any, Any]) -> list[dict[str, str]]:
    said = {
        "golden": columns.texts[int(columns.golden_name[row])] if columns.golden_name[row] >= 0 else None,
        "input error": errors[0],
        "output error": errors[1],
        "why": columns.details.why.get(row),
        "cause": columns.details.cause.get(row),
    }
    return [{"key": key, "value": str(value)} for key, value in said.items() if value is not None]


# --- page


_VIEWER = os.path.join(os.path.dirname(page.__file__), "viewer")
# Files that the page of a folder may load: those next to it, from a disk or from a server.
_BESIDE = " 'self' file:"

_OF_SEVERAL = ("views/matrix.js", "views/several.js")
"""The table of ranks and steps, which also lists what has no partner, and the columns of several targets."""
MEGABYTE = 1_000_000
"""Bytes of a megabyte, as browsers count them."""
_BLOCKS_IN_FILE = 16 * MEGABYTE
"""The part of a page in a folder that is in one file: a browser reads it at once when any of it is wanted."""


@dataclass(frozen=True)
class PageData:
    """A page without its viewer."""

    manifest: Mapping[str, Any]
    blocks: Mapping[str, bytes]
    """Base64, by their names in the order in which they are needed."""

    @property
    def size(self) -> int:
        """The number of bytes that its blocks have."""
        return sum(map(len, self.blocks.values()))


def html(data: PageData) -> str:
    """The page as one file."""
    elements = filling.data_elements(data.manifest, data.blocks)
    return filling.page(_VIEWER, str(data.manifest["title"]), elements, without=_not_needed(data.manifest))


def _not_needed(manifest: Mapping[str, Any]) -> Sequence[str]:
    """The scripts of views that a page does not have: those of several comparisons where there is one."""
    return () if len(manifest["comparisons"]) > 1 or manifest["unpaired"] else _OF_SEVERAL


def write_page(data: PageData, path: str, max_megabytes: float) -> str:
    """Write a page to `path`.html, or where that would be larger than it may be, to the folder `path`.

    Returns:
        The file to open.

    Raises:
        OSError: it cannot be written.
    """
    if data.size <= max_megabytes * MEGABYTE:
        _write(f"{path}.html", html(data).encode("utf-8"))
        return f"{path}.html"
    files.make_folder(path)
    groups = list(_grouped(data.blocks))
    for number, group in enumerate(groups):
        lines = [b'probeBlock("%s", "%s");\n' % (name.encode("ascii"), data.blocks[name]) for name in group]
        _write(os.path.join(path, f"block{number}.js"), b"".join(lines))
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    manifest = {**data.manifest, "files": len(groups), "blocks": group_of}
    # Last, so that a page that is there is whole.
    index = os.path.join(path, "index.html")
    elements = filling.data_elements(manifest, {})
    content = filling.page(_VIEWER, str(manifest["title"]), elements, _BESIDE, without=_not_needed(manifest))
    _write(index, content.encode("utf-8"))
    return index


def _grouped(blocks: Mapping[str, bytes]) -> Iterator[list[str]]:
    """The names of the blocks that stand in one file."""
    group: list[str] = []
    size = 0
    for name, block in blocks.items():
        if group and size + len(block) > _BLOCKS_IN_FILE:
            yield group
            group, size = [], 0
        group.append(name)
        size += len(block)
    yield group


def _write(path: str, content: bytes) -> None:
    with files.replacing(path) as stream:
        stream.write(content)


def viewer_file(name: str) -> str:
    """A file of the viewer, or one that all pages share.

    Raises:
        MsprobeException: it is not there.
    """
    return filling.viewer_file(_VIEWER, name)


# --- formats


class Writer(Protocol):
    """Makes files of comparisons."""

    def add(self, shown: ShownComparison, comparison: dict[str, Any]) -> None:
        """Take the next one; `comparison` is what the manifest says of it."""

    def finish(self) -> list[str]:
        """Write the files; returns their paths."""


MakeWriter = Callable[[str, GraphOptions, datetime], Writer]
"""Makes a writer of a folder, the options and the time in the names of its files."""


class PageWriter:
    """Puts comparisons on a page; without a path no file is written."""

    def __init__(self, manifest: Manifest, path: str = "", max_megabytes: float = 0) -> None:
        self._path, self._manifest, self._max_megabytes = path, manifest, max_megabytes
        self._blocks = Blocks()
        self._comparisons: list[dict[str, Any]] = []

    def add(self, shown: ShownComparison, comparison: dict[str, Any]) -> None:
        self._blocks.add(shown.columns)
        self._comparisons.append(comparison)

    def finish(self) -> list[str]:
        return [write_page(self.page(), self._path, self._max_megabytes)] if self._path else []

    def page(self) -> PageData:
        """The page so far; it can be asked for once."""
        return PageData(self._manifest.as_json(self._comparisons), self._blocks.finished())


def stem_of(folder: str, when: datetime) -> str:
    """The beginning of the names of all files but the database."""
    return os.path.join(folder, f"graph_{in_words(when)}")


def writers_of(
    formats: Sequence[str],
    folder: str,
    when: datetime,
    manifest: Manifest,
    options: GraphOptions,
    max_megabytes: float,
    others: Mapping[str, MakeWriter],
) -> list[Writer]:
    """The writers of these formats, whose files are named after `when`; the page comes last.

    Args:
        others: what makes the writers of formats that are not ours, by format.

    Raises:
        MsprobeException: nothing writes one of the formats.
    """
    unknown = [name for name in formats if name not in (HTML, JSON, MODEL_EXPLORER, *others)]
    if unknown:
        raise MsprobeException(f"{unknown[0]!r} is a format that nothing here writes.")
    stem = stem_of(folder, when)
    found = [make(folder, options, when) for make in others.values()]
    if MODEL_EXPLORER in formats:
        found.append(ModelExplorerWriter(stem, options.rules))
    if JSON in formats:
        found.append(JsonWriter(stem, options.rules, manifest.unpaired))
    if HTML in formats:
        found.append(PageWriter(manifest, stem, max_megabytes))
    return found
