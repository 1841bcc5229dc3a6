"""Dumps of the graph's tests: the recorded ones, and some that are made up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from probe.common.dump.reading.dump import Dump, read

CASES = Path(__file__).parent / "cases"


def recorded(name: str) -> Dump:
    """The dump ``llama``, ``bert_bf16``, and so on."""
    return read(CASES / "dumps" / name)


def expected(case: str) -> dict[str, Any]:
    """What was recorded of a case."""
    found: dict[str, Any] = json.loads((CASES / f"{case}.json").read_text(encoding="utf-8"))
    return found


def tensor(norm: float = 1.0, shape: Iterable[int] = (2, 3), dtype: str = "torch.float32") -> dict[str, Any]:
    """The entry of a tensor in dump.json, whose statistics are all made of one number."""
    statistics = {"Max": norm / 2, "Min": -norm / 3, "Mean": norm / 100, "Norm": norm}
    return {"type": "torch.Tensor", "dtype": dtype, "shape": list(shape), **statistics, "requires_grad": False}


def call(*inputs: Any, output: Any = None, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The entry of a forward call."""
    more = {} if parameters is None else {"parameters": dict(parameters)}
    return {"input_args": list(inputs), "input_kwargs": {}, **more, "output": [] if output is None else [output]}


def written(
    folder: Path,
    records: Mapping[str, Any],
    tree: Mapping[str, str | None] | None,
    stacks: Mapping[str, Any] | None = None,
    **head: Any,
) -> Dump:
    """The dump that has these records, this tree and these stacks, read again."""
    folder.mkdir(parents=True, exist_ok=True)
    head = {"task": "statistics", "level": "mix", "framework": "pytorch", **head}
    (folder / "dump.json").write_text(json.dumps({**head, "data": records}), encoding="utf-8")
    for name, content in (("construct", tree), ("stack", stacks)):
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return read(folder)
