"""Files of each format, from arrays."""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from checkpoint_pairs.families import Model

_NAMES = {"float32": "F32", "float16": "F16", "uint16": "BF16", "int64": "I64", "int32": "I32", "float64": "F64"}


def bfloat16_bits(array: Any) -> Any:
    """The bits of the nearest numbers of bfloat16, ties to even."""
    bits = array.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def rounded(array: Any) -> Any:
    """The nearest numbers of bfloat16, in float32."""
    return (bfloat16_bits(array).astype(np.uint32) << 16).view(np.float32)


def _config(folder: Path, model: Model) -> None:
    if model.config:
        (folder / "config.json").write_text(json.dumps(model.config))


def _one(path: Path, weights: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    data = b""
    for name, array in weights.items():
        begin = len(data)
        data += np.ascontiguousarray(array).tobytes()
        entries[name] = {
            "dtype": _NAMES[str(array.dtype)], "shape": list(array.shape), "data_offsets": [begin, len(data)]
        }  # fmt: skip
    text = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def safetensors(folder: Path, model: Model) -> Path:
    """A folder with one file."""
    folder.mkdir(parents=True)
    _one(folder / "model.safetensors", model.weights, {"format": "pt"})
    _config(folder, model)
    return folder


def single(folder: Path, model: Model) -> Path:
    """A file alone."""
    folder.mkdir(parents=True)
    _one(folder / "a.safetensors", model.weights)
    return folder / "a.safetensors"


def sharded(folder: Path, model: Model) -> Path:
    """Two shards and their index."""
    folder.mkdir(parents=True)
    names = list(model.weights)
    half = len(names) // 2
    where = {}
    for number, part in enumerate((names[:half], names[half:]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        _one(folder / file, {name: model.weights[name] for name in part})
        where.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    _config(folder, model)
    return folder


def tensors(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors of torch; arrays of uint16 are bits of bfloat16."""
    return {
        name: torch.from_numpy(each.view(np.int16).copy()).view(torch.bfloat16)
        if each.dtype == np.uint16
        else torch.from_numpy(np.array(each))
        for name, each in weights.items()
    }


def pth(folder: Path, model: Model) -> Path:
    """An archive of torch.save."""
    folder.mkdir(parents=True)
    torch.save(tensors(model.weights), folder / "model.pth")
    _config(folder, model)
    return folder / "model.pth"


def training(folder: Path, model: Model) -> Path:
    """A checkpoint of a training: the model among other values."""
    folder.mkdir(parents=True)
    value = {
        "model": tensors(model.weights), "global_step": torch.tensor(7), "epoch": 2,
        "optimizer": {"state": {0: {"step": torch.tensor(7.0), "exp_avg": torch.ones(3)}}, "param_groups": []},
        "rng_state": torch.arange(16, dtype=torch.uint8),
    }  # fmt: skip
    torch.save(value, folder / "training.pt")
    return folder / "training.pt"


def legacy(folder: Path, model: Model) -> Path:
    """A file of before PyTorch 1.6."""
    folder.mkdir(parents=True)
    torch.save(tensors(model.weights), folder / "model.bin", _use_new_zipfile_serialization=False)
    return folder / "model.bin"


def npz(folder: Path, model: Model) -> Path:
    """An archive of numpy."""
    folder.mkdir(parents=True)
    np.savez(folder / "model.npz", **model.weights)
    return folder / "model.npz"


def consolidated(embedding_axis: int) -> Callable[[Path, Model], Path]:
    """Meta's files of two ranks."""

    def write(folder: Path, model: Model) -> Path:
        folder.mkdir(parents=True)
        for rank in range(2):
            held = {}
            for name, each in model.weights.items():
                axis = 0 if any(part in name for part in (".wq.", ".wk.", ".wv.", ".w1.", ".w3.", "output.")) else 1
                if "tok_embeddings" in name:
                    axis = embedding_axis
                held[name] = each if each.ndim < 2 else np.ascontiguousarray(np.split(each, 2, axis)[rank])
            torch.save(tensors(held), folder / f"consolidated.{rank:02d}.pth")
        (folder / "params.json").write_text(json.dumps(model.config))
        return folder

    return write


def megatron_ranks(tp: int, pp: int = 1) -> Callable[[Path, Model], Path]:
    """Folders of Megatron's ranks."""

    def write(folder: Path, model: Model) -> Path:
        args = argparse.Namespace(
            tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=1, swiglu=True,
            num_attention_heads=model.heads, num_query_groups=model.groups,
        )  # fmt: skip
        each_stage = model.layers // pp
        for rank in range(tp):
            for stage in range(pp):
                held = {}
                for name, each in model.weights.items():
                    if ".layers." in name:
                        number = int(name.split(".")[2])
                        if number // each_stage != stage:
                            continue
                        name = name.replace(f".{number}.", f".{number - stage * each_stage}.", 1)
                    elif stage != (0 if name.startswith("embedding") else pp - 1):
                        continue
                    held[name] = _part(name, each, rank, tp)
                path = folder / "iter_0000010" / (f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if pp > 1 else ""))
                path.mkdir(parents=True)
                value = {"args": args, "iteration": 10, "checkpoint_version": 3.0, "model": tensors(held)}
                torch.save(value, path / "model_optim_rng.pt")
        (folder / "latest_checkpointed_iteration.txt").write_text("10")
        return folder

    return write


def _part(name: str, each: Any, rank: int, tp: int) -> Any:
    if "norm" in name:
        return each
    if "linear_fc1" in name:
        return np.concatenate([np.split(half, tp)[rank] for half in np.split(each, 2)])
    return np.split(each, tp, 1 if "linear_proj" in name or "linear_fc2" in name else 0)[rank]
