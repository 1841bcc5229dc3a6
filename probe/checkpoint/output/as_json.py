"""The answer as JSON has it."""

from __future__ import annotations

import math
from typing import Any

from probe.checkpoint.report import Parameter, Report

_NUMBERS = ("max_abs", "max_rel", "ulp_max", "ulp_mean", "l2", "relative_l2", "cos")


def as_json(report: Report) -> dict[str, Any]:
    """The keys of ``ckpt_compare --json``."""
    return {
        "answer": report.answer,
        "why": report.why,
        "checkpoints": [
            {"path": report.path, "format": report.format}, {"path": report.other_path, "format": report.other_format}
        ],
        "layers": report.layers,
        "parameters": [_parameter(each) for each in report.parameters],
        "optimizer": [_parameter(each) for each in report.optimizer],
        "replicas": [
            {"path": each.path, "name": each.name, "ranks": each.ranks, "max_abs": _number(each.max_abs)}
            for each in report.replicas
        ],
        "settings": [
            {"name": each.name, "value": each.value, "other_value": each.other_value} for each in report.settings
        ],
        "notes": report.notes,
    }  # fmt: skip


def _parameter(of: Parameter) -> dict[str, Any]:
    return {
        "name": of.name or None,
        "other_name": of.other_name or None,
        "verdict": of.verdict,
        **{name: _number(of.numbers[name]) if name in of.numbers else None for name in _NUMBERS},
        "shape": None if of.shape is None else list(of.shape),
        "other_shape": None if of.other_shape is None else list(of.other_shape),
        "dtype": of.dtype or None,
        "other_dtype": of.other_dtype or None,
        "how": of.how,
        "counts": not of.is_fine,
    }


def _number(value: float) -> float | None:
    """A number; none where it is not defined, such as the cosine of a vector of zeros."""
    return None if math.isnan(value) else value
