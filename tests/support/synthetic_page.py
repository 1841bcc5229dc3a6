"""Pages of any size without a dump: a transformer of made-up numbers, written as the contract of the page says."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probe.graph.output import PageData, write_page

STATUSES = [
    {"key": "none", "letter": "·", "name": "no data", "hint": "No values.", "colour": "none", "problem": False},
    {"key": "same", "letter": "=", "name": "same", "hint": "Equal.", "colour": "good", "problem": False},
    {
        "key": "explained",
        "letter": "~",
        "name": "explained",
        "hint": "By its inputs.",
        "colour": "neutral",
        "problem": False,
    },
    {
        "key": "structure",
        "letter": "#",
        "name": "structure",
        "hint": "Shapes differ.",
        "colour": "info",
        "problem": True,
    },
    {"key": "alone", "letter": "1", "name": "one side only", "hint": "No partner.", "colour": "alone", "problem": True},
    {"key": "suspect", "letter": "?", "name": "suspect", "hint": "Not explained.", "colour": "warn", "problem": True},
    {"key": "diverged", "letter": "!", "name": "diverged", "hint": "The first one.", "colour": "bad", "problem": True},
]
SAME, EXPLAINED, ALONE, DIVERGED = 1, 2, 4, 6
_DETAILS, _TENSORS = 512, 8192
_APIS = ("linear", "mul", "add", "softmax", "silu", "reshape", "transpose", "dropout")


@dataclass
class _Rows:
    """The rows in order of execution; `parents` are filled when a module ends."""

    names: list[str] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)

    def add(self, name: str, kind: int, inside: list[int]) -> int:
        row = len(self.names)
        self.names.append(name)
        self.kinds.append(kind)
        self.parents.append(0)
        for child in inside:
            self.parents[child] = row - child
        return row


def _rows(count: int) -> _Rows:
    """A model of layers with eight modules of eight APIs each, with exactly `count` rows."""
    rows = _Rows()
    top: list[int] = []
    layer = 0
    while len(rows.names) + 1 + 8 * 9 + 1 < count:
        modules = []
        for module in range(8):
            place = f"model.layers.{layer}.block.{module}"
            apis = [rows.add(f"Functional.{api}.{layer * 8 + module}.forward", 1, []) for api in _APIS]
            modules.append(rows.add(f"Module.{place}.Linear.forward.0", 0, apis))
        top.append(rows.add(f"Module.model.layers.{layer}.Layer.forward.0", 0, modules))
        layer += 1
    while len(rows.names) + 1 < count:
        top.append(rows.add(f"Torch.tail.{len(rows.names)}.backward", 1, []))
    rows.add("DefaultModel", 0, top)
    return rows


def synthetic(count: int, golden: bool = True, hostile: str | None = None) -> PageData:
    """A page of `count` rows that diverges at two thirds; with `hostile` as the name of its first row."""
    rows = _rows(count)
    if hostile is not None:
        rows.names[0] = hostile
    first = next(row for row in range(2 * count // 3, count) if rows.kinds[row] == 1)
    status = [SAME if row < first else DIVERGED if row == first else EXPLAINED for row in range(count)]
    if not golden:
        status = [0] * count
    texts = [*rows.names, "input.0", "output.0", "torch.float32", "[2, 16]"]
    side = {
        "path": "run/step0/rank0/dump.json",
        "framework": "pytorch",
        "task": "statistics",
        "level": "mix",
        "nodes": count,
    }
    info: dict[str, Any] = {
        "target": side,
        "golden": {**side, "path": "golden/dump.json"} if golden else None,
        "run": "",
        "step": 0,
        "rank": 0,
        "mode": "statistics",
        "measured": golden,
        "verdict": [f"first divergence: {rows.names[first]}"] if golden else [],
        "first": first if golden else None,
        "chain": [],
        "suspects": [],
        "nonfinite": None,
        "worst": max(status),
        "counts": [status.count(one) for one in range(len(STATUSES))],
        "micro_steps": 1,
        "notes": [],
        "rows": count,
        "tensors": 2 * count,
    }
    errors: list[float | None] = [0.0 if row < first else 0.1 + row % 7 / 10 for row in range(count)]
    columns = {
        "name": list(range(count)),
        "golden": list(range(count)) if golden else 0,
        "parent": rows.parents,
        "kind": rows.kinds,
        "status": status,
        "reason": [1 if golden else 0] * count,
        "level": [0] * count,
        "golden_level": [0] * count,
        "in": errors if golden else [None] * count,
        "out": errors if golden else [None] * count,
        "arguments": [],
        "micro": 0,
        "stack": [row % 2 for row in range(count)],
        "golden_stack": 0,
        "has": [3 if golden else 1] * count,
        "tensors": [0] * count,
        "types": [[[count, count + 2, count + 3], [count + 1, count + 2, count + 3]]],
    }
    blocks = {
        "names": packed(texts),
        "frames": packed(
            [
                "File train.py, line 7, in step, loss = model(x)",
                "File site-packages/torch/nn/modules/linear.py, line 134, in forward, F.linear(x)",
            ]
        ),
        "stacks": packed([[1, 0], [0]]),
        "c0": packed(columns),
        "c0f": packed([[1, 0] if row else 0 for row in range(count)]),
    }
    for start in range(0, count, _DETAILS):
        blocks[f"c0d{start // _DETAILS}"] = packed(
            [
                {
                    "i": [
                        [count, row, row if golden else -1, 0.0 if golden else None, 0, SAME, "", None],
                        [
                            count + 1,
                            count + row,
                            row if golden else -1,
                            errors[row] if golden else None,
                            0,
                            status[row],
                            "",
                            1e-6 if golden else None,
                        ],
                    ],
                    "why": "output.0 differs by 0.1 of its size.",
                }
                for row in range(start, min(start + _DETAILS, count))
            ]
        )
    for start in range(0, 2 * count, _TENSORS):
        part = range(start, min(start + _TENSORS, 2 * count))
        blocks[f"c0t{start // _TENSORS}"] = packed(
            {
                "dtype": [count + 2 for _ in part],
                "shape": [count + 3 for _ in part],
                "grad": [0 for _ in part],
                "max": [1 + tensor / 1000 for tensor in part],
                "min": [-1 for _ in part],
                "mean": [0 for _ in part],
                "norm": [3.25 for _ in part],
                "excluded": 0,
                "sum": 0,
                "value": [None for _ in part],
            }
        )
    manifest = {
        "format": 1,
        "tool": "msprobe",
        "title": "synthetic",
        "rules": "probe",
        "statuses": STATUSES,
        "reasons": ["", "exact", "aligned", "fuzzy", "mapping", "manual"],
        "levels": ["", "saturated", "growth", "medium", "high", "critical"],
        "metrics": [],
        "files": 0,
        "unpaired": [],
        "comparisons": [info],
    }
    return PageData(manifest, blocks)


def write(folder: Path, count: int, golden: bool = True, hostile: str | None = None, megabytes: float = 40) -> Path:
    """Write such a page.

    Returns:
        The file to open.
    """
    return Path(write_page(synthetic(count, golden, hostile), str(folder / "page"), megabytes))


def packed(value: object) -> bytes:
    return base64.b64encode(gzip.compress(json.dumps(value, separators=(",", ":")).encode("utf-8"), 6, mtime=0))


def unpacked(block: bytes) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(block)))
