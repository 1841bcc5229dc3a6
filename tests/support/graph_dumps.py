"""Dumps of the graph's tests: the recorded ones, and entries for made ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import made_dumps
from made_dumps import Entry

from probe.common.dump.reading.dump import Dump, read

CASES = Path(__file__).parents[1] / "graph" / "cases"


def recorded(name: str) -> Dump:
    """The dump ``llama``, ``bert_bf16``, and so on."""
    return read(CASES / "dumps" / name)


def expected(case: str) -> dict[str, Any]:
    """What was recorded of a case."""
    found: dict[str, Any] = json.loads((CASES / f"{case}.json").read_text(encoding="utf-8"))
    return found


def tensor(norm: float = 1.0, shape: Iterable[int] = (2, 3), dtype: str = "torch.float32") -> Entry:
    """The entry of a tensor in dump.json, whose statistics are all made of one number."""
    return made_dumps.tensor(norm / 2, -norm / 3, norm / 100, norm, shape, dtype)


def call(*inputs: Any, output: Any = None, parameters: Mapping[str, Any] | None = None) -> Entry:
    """The entry of a forward call with one output or none."""
    more = {} if parameters is None else {"parameters": dict(parameters)}
    return made_dumps.call(inputs, None if output is None else [output], **more)
