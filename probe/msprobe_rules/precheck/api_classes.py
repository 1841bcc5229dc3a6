"""The method that judges the results of an API, by its name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from probe.common.yaml_file import load_yaml

BINARY, ABSOLUTE_THRESHOLD, ULP, DUAL_1000, BENCHMARK = (
    "binary", "absolute_threshold", "ulp", "dual_1000", "benchmark",
)  # fmt: skip

# Python's operators whose method has another name than the function, and those that have reflected and in-place forms.
_OPERATORS = {"truediv": "div", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "invert": "bitwise_not"}
_REFLECTED = frozenset(("add", "sub", "mul", "truediv", "matmul", "pow", "and", "or", "xor"))


@cache
def api_class(base: str) -> str:
    """The documented method for an API.

    Args:
        base: ``Functional.silu``, ``Tensor.__iadd__``, ``Mint.add``, ``Primitive.MatMul``.
    """
    name = _function_name(base)
    for method, listed in _tables()["classes"].items():
        for entry in listed:
            plain = _without_marks(entry)
            if name == plain or (plain.endswith("*") and name.startswith(plain[:-1])):
                return str(method)
    return BENCHMARK


@cache
def ratio_limits(base: str, as_written: bool = False) -> Mapping[str, float]:
    """Largest ratio of an NPU's metric to a GPU's, by metric.

    Args:
        base: Of the API: ``Functional.gelu``.
        as_written: Compare names as they are written, as 26.2.0 does, which so never finds GELU. The documentation
            means the function.
    """
    tables = _tables()
    name = base.rpartition(".")[2]
    for level, listed in tables["levels"].items():
        if name in listed or (not as_written and _function_name(base) in map(_without_marks, listed)):
            return dict(tables["limits"][level])
    return dict(tables["limits"]["L0"])


def _function_name(base: str) -> str:
    name = base.rpartition(".")[2]
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
        if name[:1] in ("r", "i") and name[1:] in _REFLECTED:
            name = name[1:]
        name = _OPERATORS.get(name, name)
    return _without_marks(name)


def _without_marks(name: str) -> str:
    return name.replace("_", "").lower()


@cache
def _tables() -> Mapping[str, Any]:
    tables: Mapping[str, Any] = load_yaml(os.path.join(os.path.dirname(__file__), "api_classes.yaml"))
    return tables
