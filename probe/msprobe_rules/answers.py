"""The files in which msProbe says what it found: ``anomaly_analyze_<time>.json``, and ``ckpt_similarity.json``."""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any

from probe.checkpoint.report import MISSING, SHAPE, Parameter
from probe.checkpoint.report import Report as CheckpointReport
from probe.common import files
from probe.common.dump.json_decode import with_numbers
from probe.common.dump.naming import BACKWARD, parse
from probe.overflow.details import add_details
from probe.overflow.overflow_report import Finding, Report


def write_anomalies(report: Report, output: str) -> str:
    """Write the first findings of a report; returns the path. The folder must be there.

    Raises:
        OSError: the file cannot be written.
    """
    path = os.path.join(output, f"anomaly_analyze_{time.time_ns()}.json")
    with files.replacing(path) as stream:
        # msProbe writes numbers that JSON lacks as bare words.
        stream.write(json.dumps(_anomalies(report), indent=2).encode())
    return path


def _anomalies(report: Report) -> dict[str, Any]:
    """The first findings as msProbe writes them, rank by rank."""
    found: dict[str, Any] = {}
    for finding in report.first:
        for rank, record in finding.members or [finding.key]:
            is_own = (rank, record) == finding.key and bool(finding.fields)
            entry = _entry_of_finding(record, finding) if is_own else _member(report, rank, record)
            found.setdefault(f"rank_{rank}", []).append(entry)
    return found


def _entry_of_finding(record: str, finding: Finding) -> dict[str, Any]:
    parsed = parse(record)
    is_backward = parsed is not None and parsed.direction == BACKWARD
    return {
        "op_name": record,
        "data_info": with_numbers(finding.fields),
        "construct_info": finding.around or [record],
        # That of a backward is the stack of its forward call, which msProbe does not look for.
        "stack_info": [] if is_backward else finding.stack,
    }


def _member(report: Report, rank: int, record: str) -> dict[str, Any]:
    """The entry of a record of which no details were read."""
    assert report.found is not None
    other = Finding("", rank, record)
    add_details([other], report.found.folders[rank], ())
    return _entry_of_finding(record, other)


# --- checkpoints


# In this order, on the names of Megatron.
_NAMES = (
    ("self_attention.linear_qkv.layer_norm_", "input_layernorm."), ("language_model.", ""), ("encoder", "decoder"),
    (".input_norm.", ".input_layernorm."), ("query_key_value", "linear_qkv"), (".dense.", ".linear_proj."),
    ("post_attention_norm", "pre_mlp_layernorm"), ("dense_h_to_4h", "linear_fc1"), ("dense_4h_to_h", "linear_fc2"),
    ("mlp.local_experts", "mlp.experts.local_experts"), ("final_norm", "final_layernorm"),
    ("word_embeddings_for_head", "output_layer"),
)  # fmt: skip


def similarity(report: CheckpointReport) -> dict[str, Any]:
    """Name, distance, cosine, number of elements and shape of each parameter that both sides have."""
    return {
        _name(each): _entry_of_pair(each)
        for each in report.parameters
        if each.verdict != MISSING and each.name and each.other_name
    }


def write_similarity(report: CheckpointReport, path: str) -> None:
    """Write the file."""
    with files.replacing(path) as stream:
        stream.write(json.dumps(similarity(report), indent=4, allow_nan=False).encode())


def _name(of: Parameter) -> str:
    name = of.name
    for old, new in _NAMES:
        name = name.replace(old, new)
    return name


def _entry_of_pair(of: Parameter) -> dict[str, Any]:
    shapes = [list(of.shape or ()), list(of.other_shape or ())]
    if of.verdict == SHAPE:
        return {"l2": None, "cos": None, "numel": [math.prod(shape) for shape in shapes], "shape": shapes}
    return {
        "l2": _number(of.numbers.get("l2")),
        "cos": _number(of.numbers.get("cos")),
        "numel": math.prod(shapes[0]),
        "shape": shapes[0],
    }


def _number(value: float | None) -> float | None:
    """A number; none where it is not finite, or a fingerprint does not tell it."""
    return value if value is not None and math.isfinite(value) else None
