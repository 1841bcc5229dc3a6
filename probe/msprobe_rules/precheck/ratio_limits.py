"""Largest ratios of an NPU's errors to a GPU's, by the name of the API, and the methods that judge two devices."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from probe.common.yaml_file import load_yaml

BINARY, ABSOLUTE_THRESHOLD, ULP, BENCHMARK = "binary", "absolute_threshold", "ulp", "benchmark"


@cache
def ratio_limits(base: str, as_written: bool = False) -> Mapping[str, float]:
    """Largest ratio of an NPU's metric to a GPU's, by metric.

    Args:
        base: The API: ``Functional.gelu``.
        as_written: Compare names as they are written, as 26.2.0 does, which so never finds GELU. The documentation
            means the function.
    """
    tables = _tables()
    name = base.rpartition(".")[2]
    for level, listed in tables["levels"].items():
        if name in listed or (not as_written and _function_name(name) in map(_without_marks, listed)):
            return dict(tables["limits"][level])
    return dict(tables["limits"]["L0"])


def _function_name(name: str) -> str:
    """The function of a method or an operator: ``matmul`` of ``__rmatmul__``."""
    return _without_marks("matmul" if name in ("__rmatmul__", "__imatmul__") else name)


def _without_marks(name: str) -> str:
    return name.replace("_", "").lower()


@cache
def _tables() -> Mapping[str, Any]:
    tables: Mapping[str, Any] = load_yaml(os.path.join(os.path.dirname(__file__), "ratio_limits.yaml"))
    return tables
