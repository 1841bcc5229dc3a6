"""The file that msProbe writes of two checkpoints: ``ckpt_similarity.json``."""

from __future__ import annotations

import json
import math
from typing import Any

from probe.checkpoint.report import MISSING, SHAPE, Parameter, Report
from probe.common import files

# In this order, on the names of Megatron.
_NAMES = (
    ("self_attention.linear_qkv.layer_norm_", "input_layernorm."), ("language_model.", ""), ("encoder", "decoder"),
    (".input_norm.", ".input_layernorm."), ("query_key_value", "linear_qkv"), (".dense.", ".linear_proj."),
    ("post_attention_norm", "pre_mlp_layernorm"), ("dense_h_to_4h", "linear_fc1"), ("dense_4h_to_h", "linear_fc2"),
    ("mlp.local_experts", "mlp.experts.local_experts"), ("final_norm", "final_layernorm"),
    ("word_embeddings_for_head", "output_layer"),
)  # fmt: skip


def similarity(report: Report) -> dict[str, Any]:
    """Name, distance, cosine, number of elements and shape of each parameter that both sides have."""
    return {
        _name(each): _entry(each)
        for each in report.parameters
        if each.verdict != MISSING and each.name and each.other_name
    }


def write_similarity(report: Report, path: str) -> None:
    """Write the file."""
    with files.replacing(path) as stream:
        stream.write(json.dumps(similarity(report), indent=4, allow_nan=False).encode())


def _name(of: Parameter) -> str:
    name = of.name
    for old, new in _NAMES:
        name = name.replace(old, new)
    return name


def _entry(of: Parameter) -> dict[str, Any]:
    shapes = [list(of.shape or ()), list(of.other_shape or ())]
    if of.verdict == SHAPE:
        return {"l2": None, "cos": None, "numel": [math.prod(shape) for shape in shapes], "shape": shapes}
    return {
        "l2": _number(of.numbers["l2"]),
        "cos": _number(of.numbers["cos"]),
        "numel": math.prod(shapes[0]),
        "shape": shapes[0],
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
