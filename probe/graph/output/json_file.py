"""A comparison of graphs as JSON for scripts: every row with its status, its errors and what is said of it."""

from __future__ import annotations

from typing import Any

import msgspec

from probe._version import __version__
from probe.common import files
from probe.common.report.page.packing import as_json
from probe.graph.output.shown import ShownComparison
from probe.graph.overflow_levels import LEVELS
from probe.graph.page.columns import Columns, name_of
from probe.graph.page.manifest import FORMAT
from probe.graph.page.numbers import rounded
from probe.graph.rules.protocol import GraphRules
from probe.graph.status import REASONS

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
