"""Checkpoints that are written without any framework: safetensors and MindSpore's format by their descriptions."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Weights = dict[str, Any]
_NAMES = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int8": "I8", "bool": "BOOL"}


def write_safetensors(path: Path, weights: Mapping[str, Any], header: Mapping[str, Any] | None = None) -> str:
    """A file of arrays; those of ``uint16`` are bits of bfloat16."""
    entries: dict[str, Any] = {}
    data = b""
    for name, array in weights.items():
        dtype = "BF16" if array.dtype == np.uint16 else _NAMES[str(array.dtype)]
        entries[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    text = json.dumps({**entries, **(header or {})}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return str(path)


def llama(layers: int = 3, hidden: int = 16, heads: int = 4, groups: int = 2, seed: int = 0) -> Weights:
    """A small model with the names of Transformers."""
    random = np.random.default_rng(seed)

    def matrix(*shape: int) -> Any:
        return random.standard_normal(shape).astype(np.float32)

    size = hidden // heads
    found = {"model.embed_tokens.weight": matrix(24, hidden)}
    for number in range(layers):
        path = f"model.layers.{number}"
        for name, rows, columns in (
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", groups * size, hidden),
            ("self_attn.v_proj", groups * size, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", 28, hidden),
            ("mlp.up_proj", 28, hidden),
            ("mlp.down_proj", hidden, 28),
        ):
            found[f"{path}.{name}.weight"] = matrix(rows, columns)
        found[f"{path}.input_layernorm.weight"] = np.ones(hidden, np.float32)
        found[f"{path}.post_attention_layernorm.weight"] = np.ones(hidden, np.float32)
    found["model.norm.weight"] = np.ones(hidden, np.float32)
    found["lm_head.weight"] = matrix(24, hidden)
    return found


def bfloat16_bits(array: Any) -> Any:
    """The bits of the nearest numbers of bfloat16, by the definition: half of the last unit is added, ties to even."""
    bits = array.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
