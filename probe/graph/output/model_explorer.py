"""The two files that Model Explorer opens: a collection of graphs, and what is shown on their nodes.

Both are as its public description of its JSON format has them. A dump has no edges; those that are drawn are the order
of execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from probe.common import files
from probe.common.report.page.packing import as_json
from probe.graph.graph import MODULE, refuse_long_chains
from probe.graph.output.shown import ShownComparison
from probe.graph.page.columns import Columns, name_of
from probe.graph.page.numbers import rounded
from probe.graph.rules.protocol import GraphRules

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
