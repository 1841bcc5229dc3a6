"""Checkpoints of Megatron-LM and MindSpeed-LLM, a folder for each rank: ``mp_rank_<tp>[_<pp>[_<ep>]]``."""

from __future__ import annotations

import os
import re
from typing import Any

from probe.checkpoint.readers import sections
from probe.checkpoint.readers.pickles import Inert
from probe.checkpoint.readers.ranks import Part, merge
from probe.checkpoint.readers.torch_files import read_torch
from probe.checkpoint.report import Checkpoint
from probe.checkpoint.stored import Tensor
from probe.common.errors import DumpFormatError

LATEST = "latest_checkpointed_iteration.txt"
RANK = re.compile(r"^mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?$")
_FILES = ("model_optim_rng.pt", "model_rng.pt")
_MODEL = re.compile(r"^model\d*$")
_GATED = ("swiglu", "gated_linear_unit", "glu_activation")


def rank_folders(folder: str) -> list[str]:
    """The folders of ranks in a folder that hold a model of Megatron."""
    names = sorted(name for name in os.listdir(folder) if RANK.match(name))
    return [name for name in names if os.path.isdir(os.path.join(folder, name))]


def read_megatron(folder: str, into: Checkpoint) -> None:
    """Add the parameters of all ranks.

    Raises:
        FileCheckException, DumpFormatError: a file is missing or damaged.
    """
    parts: list[Part] = []
    args: dict[str, Any] = {}
    for name in rank_folders(folder):
        path = next((path for each in _FILES if os.path.exists(path := os.path.join(folder, name, each))), None)
        if path is None:
            raise DumpFormatError(
                f"{os.path.join(folder, name)}: {_FILES[0]} is missing; copy it, or remove the folder."
            )
        content = read_torch(path)
        value = content.value
        if not isinstance(value, dict) or not any(_MODEL.match(str(key)) for key in value):
            raise DumpFormatError(f"{path}: it has no model in it; allowed: checkpoints of Megatron.")
        first = not parts
        if first:
            held = value.get("args")
            args = held.fields if isinstance(held, Inert) else {}
            if content.unknown:
                into.notes.append(f"{path}: these types are not known, and left out: {', '.join(content.unknown[:5])}")
        parts.append(_part(path, name, value))
        _others(value, name, into, first)
    into.config.update(args)
    _place_experts(parts, args)
    merge(parts, into, _gated(args))


def _gated(args: dict[str, Any]) -> bool | None:
    said = [bool(args[name]) for name in _GATED if name in args]
    return any(said) if said else None


def _part(path: str, name: str, value: dict[Any, Any]) -> Part:
    match = RANK.match(name)
    assert match is not None
    tp, pp, ep = (int(number or 0) for number in match.groups())
    part = Part(path, tp, pp, ep)
    for key in sorted((key for key in value if _MODEL.match(str(key))), key=lambda key: int(str(key)[5:] or 0)):
        chunk = Checkpoint(path, "")
        sections.sort({"model": _flat(value[key])}, chunk)
        part.chunks.append(chunk.weights)
    return part


def _flat(state: Any) -> dict[str, Tensor]:
    """Parameters by dotted names; older releases nest them."""
    found: dict[str, Tensor] = {}
    waiting = [("", state)]
    while waiting:
        prefix, one = waiting.pop(0)
        for key, value in one.items() if isinstance(one, dict) else ():
            if isinstance(value, Tensor):
                found[f"{prefix}{key}"] = value
            elif isinstance(value, dict):
                waiting.append((f"{prefix}{key}.", value))
    return found


def _others(value: dict[Any, Any], name: str, into: Checkpoint, first: bool) -> None:
    """The optimizer of each rank; arguments and iteration of the first."""
    rest = Checkpoint(into.path, "")
    wanted = {key: each for key, each in value.items() if not _MODEL.match(str(key))}
    sections.sort({"model": {}, **wanted}, rest)
    into.optimizer.update((f"{name}.{key}", tensor) for key, tensor in {**rest.optimizer, **rest.weights}.items())
    if first:
        into.settings.update(rest.settings)


def _place_experts(parts: list[Part], args: dict[str, Any]) -> None:
    """Take the second number of a folder for the expert rank where there is one stage and several expert ranks."""
    stages, experts = (args.get(f"{name}_model_parallel_size") for name in ("pipeline", "expert"))
    if stages == 1 and isinstance(experts, int) and experts > 1:
        for part in parts:
            if part.pp and not part.ep:
                part.pp, part.ep = 0, part.pp
