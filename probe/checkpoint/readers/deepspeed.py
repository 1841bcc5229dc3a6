"""Checkpoints of DeepSpeed: the model of each rank, and the parts of the optimizer of ZeRO with weights in float32."""

from __future__ import annotations

import math
import os
import re
from typing import Any

from probe.checkpoint.readers import sections
from probe.checkpoint.readers.torch_files import read_torch
from probe.checkpoint.report import Checkpoint
from probe.checkpoint.stored import Segments, Slice, Tensor
from probe.common.errors import DumpFormatError

LATEST = "latest"
_MODEL = re.compile(r"^(?:zero_pp_rank_(?P<dp>\d+)_)?mp_rank_(?P<mp>\d+)_model_states\.pt$")
_OPTIMIZER = re.compile(r"^(?:bf16_|fp16_)?zero_pp_rank_(?P<dp>\d+)_mp_rank_(?P<mp>\d+)_optim_states\.pt$")
_STAGE_3 = 3
"""The stage of ZeRO from which on parameters are split, too, by the documentation of DeepSpeed."""


def is_deepspeed(folder: str) -> bool:
    """True if a folder has files of DeepSpeed."""
    return any(_MODEL.match(name) for name in os.listdir(folder))


def read_deepspeed(folder: str, into: Checkpoint, weights: str) -> None:
    """Add the parameters.

    Args:
        weights: ``master`` for those in float32 that the optimizer has, where there are some, or ``model``.

    Raises:
        FileCheckException, DumpFormatError: a file is missing or damaged.
    """
    names = sorted(os.listdir(folder))
    models = {(int(m["mp"]), int(m["dp"] or 0)): name for name in names if (m := _MODEL.match(name))}
    optimizers = {(int(m["mp"]), int(m["dp"])): name for name in names if (m := _OPTIMIZER.match(name))}
    if len({mp for mp, _ in models}) > 1:
        raise DumpFormatError(
            f"{folder}: the model is split over {len({mp for mp, _ in models})} tensor-parallel ranks; convert it to a "
            "universal checkpoint or to safetensors first."
        )
    first = os.path.join(folder, models[min(models)])
    content = read_torch(first)
    state = content.value
    if not isinstance(state, dict) or "module" not in state:
        raise DumpFormatError(f"{first}: it has no module in it; allowed: model states of DeepSpeed.")
    if content.unknown:
        into.notes.append(f"{first}: these types are not known, and left out: {', '.join(content.unknown[:5])}")
    held = Checkpoint(folder, "")
    sections.sort({"module": {name: each for name, each in state["module"].items() if getattr(each, "size", 0)}}, held)
    rest = {key: each for key, each in state.items() if key not in ("module", "param_shapes", "optimizer")}
    into.settings.update(sections.plain_settings(rest, ""))
    ranks = [os.path.join(folder, optimizers[key]) for key in sorted(optimizers)]
    if weights == "master" and ranks and state.get("param_shapes"):
        _check_ranks(folder, sorted(optimizers), models)
        into.weights.update(_masters(ranks, state, into, folder, models))
        shared = state.get("shared_params")
        for name, other in (shared or {}).items():
            if other in into.weights:
                into.weights[name] = into.weights[other]
        into.notes.append(
            f"{folder}: weights are the float32 masters of the optimizer (--weights model for the others)"
        )
    elif state.get("param_shapes") and len(held.weights) < _count(state["param_shapes"]):
        raise DumpFormatError(
            f"{folder}: with ZeRO stage 3 the weights are in the files *_optim_states.pt; copy them, or leave out "
            "--weights model."
        )
    for name, tensor in held.weights.items():
        into.weights.setdefault(name, tensor)


def _count(shapes: Any) -> int:
    return sum(len(group) for group in (shapes if isinstance(shapes, list) else [shapes]))


def _check_ranks(folder: str, found: list[tuple[int, int]], models: dict[Any, str]) -> None:
    missing = sorted(set(range(max(dp for _, dp in found) + 1)) - {dp for _, dp in found})
    if missing:
        raise DumpFormatError(
            f"{folder}: zero_pp_rank_{missing[0]}_mp_rank_00_optim_states.pt is missing; copy it from where the "
            "training ran."
        )


def _masters(
    ranks: list[str], state: dict[str, Any], into: Checkpoint, folder: str, models: dict[Any, str]
) -> dict[str, Tensor]:
    """The weights in float32, from the flat parts of all ranks."""
    optimizers = [_optimizer(path) for path in ranks]
    # The stage itself is an enumeration of DeepSpeed.
    stage = _STAGE_3 if "fp32_flat_groups" in optimizers[0] else 2
    count = optimizers[0].get("partition_count", len(ranks))
    wanted = max(count) if isinstance(count, (list, tuple)) else int(count)
    if wanted > len(ranks):
        raise DumpFormatError(
            f"{folder}: ZeRO has {wanted} parts, and there are {len(ranks)} files; copy the missing ones."
        )
    key = "fp32_flat_groups" if stage >= _STAGE_3 else "single_partition_of_fp32_groups"
    groups = [one.get(key) for one in optimizers]
    if any(not isinstance(group, (list, tuple)) for group in groups):
        raise DumpFormatError(f"{ranks[0]}: it has no {key}, so no weights in float32; give --weights model.")
    shapes = state["param_shapes"] if isinstance(state["param_shapes"], list) else [state["param_shapes"]]
    for rank, one in zip(ranks, optimizers):
        base = one.get("base_optimizer_state")
        into.optimizer.update(_moments(base, os.path.basename(rank)))
    found = (_stage_3 if stage >= _STAGE_3 else _stage_2)(groups, shapes, ranks[0])
    found.update(_frozen(state, folder, models, stage))
    return found


def _optimizer(path: str) -> dict[str, Any]:
    value = read_torch(path).value
    state = value.get("optimizer_state_dict") if isinstance(value, dict) else None
    if not isinstance(state, dict):
        raise DumpFormatError(f"{path}: it has no optimizer_state_dict; allowed: optimizer states of DeepSpeed.")
    return state


def _moments(value: Any, prefix: str) -> dict[str, Tensor]:
    found = Checkpoint("", "")
    sections.sort({"optimizer": value}, found)
    return {f"{prefix}.{name}": tensor for name, tensor in found.optimizer.items()}


def _stage_2(groups: list[Any], shapes: list[dict[str, Any]], path: str) -> dict[str, Tensor]:
    """Stages 1 and 2: the parts of a group follow each other, and hold its parameters one after the other."""
    found: dict[str, Tensor] = {}
    for index, group in enumerate(shapes):
        parts = [rank[index] for rank in groups]
        begin = 0
        for name, shape in group.items():
            size = math.prod(shape)
            found[name] = _between(parts, begin, begin + size, tuple(shape), path, name)
            begin += size
    return found


def _stage_3(groups: list[Any], shapes: list[dict[str, Any]], path: str) -> dict[str, Tensor]:
    """Stage 3: each rank holds an equal part of each parameter, the last of which are filled up."""
    found: dict[str, Tensor] = {}
    flat = [_line(rank, path) for rank in groups]
    begin = 0
    for group in shapes:
        for name, shape in group.items():
            size = math.prod(shape)
            part = -(-size // len(flat))
            pieces: list[Tensor] = []
            for index, rank in enumerate(flat):
                length = min(part, max(size - index * part, 0))
                if length:
                    pieces += _pieces(rank, begin, begin + length, path, name)
            found[name] = Segments(pieces, tuple(shape))
            begin += part
    return found


def _line(rank: Any, path: str) -> list[Tensor]:
    if not all(isinstance(each, Tensor) and len(each.shape) == 1 for each in rank):
        raise DumpFormatError(f"{path}: its flat groups are no vectors; the release of DeepSpeed is not known.")
    return list(rank)


def _between(parts: list[Tensor], begin: int, end: int, shape: tuple[int, ...], path: str, name: str) -> Tensor:
    return Segments(_pieces(parts, begin, end, path, name), shape)


def _pieces(parts: list[Tensor], begin: int, end: int, path: str, name: str) -> list[Tensor]:
    """The elements from `begin` to `end` of vectors that follow each other."""
    found: list[Tensor] = []
    at = 0
    for part in parts:
        low, high = max(begin, at), min(end, at + part.size)
        if low < high:
            found.append(Slice(part, [(low - at, high - at, 1)]))
        at += part.size
    if at < end:
        raise DumpFormatError(
            f"{path}: {name} ends at element {end} of the flat weights, which have {at}; a rank is missing."
        )
    return found


def _frozen(state: dict[str, Any], folder: str, models: dict[Any, str], stage: int) -> dict[str, Tensor]:
    """Parameters that are not trained, which the optimizer does not have."""
    shapes = state.get("frozen_param_shapes") or {}
    if not shapes or stage < _STAGE_3:
        fragments = state.get("frozen_param_fragments") or {}
        return {name: fragments[name] for name in shapes if isinstance(fragments.get(name), Tensor)}
    ranks = [read_torch(os.path.join(folder, models[key])).value for key in sorted(models)]
    found: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        pieces = [rank["frozen_param_fragments"][name] for rank in ranks]
        found[name] = Segments(_pieces(pieces, 0, math.prod(shape), folder, name), tuple(shape))
    return found
