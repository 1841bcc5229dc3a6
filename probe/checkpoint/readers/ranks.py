"""The parts that the ranks of a tensor-parallel or pipeline-parallel model hold, as the parameters of one model."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from probe.checkpoint.readers import sections
from probe.checkpoint.readers.torch_files import Placement, read_torch
from probe.checkpoint.report import Checkpoint, CheckpointOptions
from probe.checkpoint.stored import Slice, Tensor, joined
from probe.common.errors import DumpFormatError

# Layers whose outputs are split over ranks have their rows split, and those whose inputs are their columns. What is in
# neither is the same on each rank.
_BY_ROWS = re.compile(
    r"(linear_qkv|query_key_value|linear_q(_up)?_proj|linear_kv(_up_proj)?|linear_q|linear_fc1|dense_h_to_4h|"
    r"word_embeddings(_for_head)?|output_layer|lm_head|embed_tokens|tok_embeddings|q_proj|k_proj|v_proj|qkv_proj|"
    r"gate_proj|up_proj|gate_up_proj|\bw[qkv13]|\boutput)\.(weight|bias)\d*$"
)
_BY_COLUMNS = re.compile(
    r"(linear_proj|linear_fc2|dense_4h_to_h|(attention|attn)\.dense|o_proj|down_proj|\bw[o2])\.weight\d*$"
)
_FIRST = re.compile(r"^(?P<path>.*)(linear_fc1|dense_h_to_4h)\.(?P<kind>weight|bias)(?P<number>\d*)$")
_SECOND = {"linear_fc1": "linear_fc2", "dense_h_to_4h": "dense_4h_to_h"}
_LAYER = re.compile(r"^(?P<path>(?:.*\.)?(?:layers|blocks|h)\.)(?P<number>\d+)(?P<rest>\..*)$")
_EXPERT = re.compile(r"^(?P<path>.*\.local_experts\.)(?P<number>\d+)(?P<rest>\..*)$")
_GROUPED = re.compile(r"^(?P<path>.*\.experts\.linear_fc[12]\.(?:weight|bias))(?P<number>\d+)(?P<rest>)$")


@dataclass
class Part:
    """Content of one rank."""

    path: str
    tp: int = 0
    pp: int = 0
    ep: int = 0
    chunks: list[dict[str, Tensor]] = field(default_factory=list)
    """The parameters of each virtual stage."""


def merge(parts: Sequence[Part], into: Checkpoint, gated: bool | None = None) -> None:
    """Add the parameters of the whole model.

    Args:
        gated: True if the first linear layer of each MLP is a gate and what it is multiplied with; ``None`` if only its
            size says so.

    Raises:
        DumpFormatError: ranks are missing, or hold different parameters.
    """
    sizes = [1 + max(getattr(part, name) for part in parts) for name in ("tp", "pp", "ep")]
    at = {(part.tp, part.pp, part.ep): part for part in parts}
    missing = [
        (tp, pp, ep)
        for tp in range(sizes[0])
        for pp in range(sizes[1])
        for ep in range(sizes[2])
        if (tp, pp, ep) not in at
    ]
    if missing:
        tp, pp, ep = missing[0]
        raise DumpFormatError(
            f"{into.path}: the part of tensor-parallel rank {tp}, pipeline stage {pp}, expert rank {ep} is missing; "
            "copy it."
        )
    vpp = max(len(part.chunks) for part in parts)
    before: dict[str, int] = {}
    for chunk in range(vpp):
        for pp in range(sizes[1]):
            stage: dict[str, Tensor] = {}
            for ep in range(sizes[2]):
                ranks = [at[tp, pp, ep] for tp in range(sizes[0])]
                if any(chunk >= len(rank.chunks) for rank in ranks):
                    raise DumpFormatError(
                        f"{ranks[0].path}: it has other virtual stages than the other ranks; copy it again."
                    )
                for name, tensor in _joined_parameters(ranks, chunk, into, gated).items():
                    _add(stage, _global_expert(name, ep, at[0, pp, ep].chunks[chunk]), tensor, into, ep)
            _add_stage(stage, before, into, pp)


def _add(stage: dict[str, Tensor], name: str, tensor: Tensor, into: Checkpoint, ep: int) -> None:
    if name in stage:
        into.replicas.append((name, f"expert ranks 0 and {ep}", stage[name], tensor))
    else:
        stage[name] = tensor


def _joined_parameters(ranks: Sequence[Part], chunk: int, into: Checkpoint, gated: bool | None) -> dict[str, Tensor]:
    """The parameters of one stage: the parts of the ranks that share it, joined."""
    states = [rank.chunks[chunk] for rank in ranks]
    found: dict[str, Tensor] = {}
    for rank, state in zip(ranks, states):
        if set(state) != set(states[0]):
            name = min(set(state) ^ set(states[0]))
            raise DumpFormatError(f"{rank.path}: {name} is on this rank or on {ranks[0].path} alone; copy both again.")
    for name, first in states[0].items():
        pieces = [state[name] for state in states]
        if len(pieces) > 1:
            into.pieces[name] = pieces
        axis = split_axis(name, first)
        if len(pieces) == 1:
            found[name] = first
        elif axis is None:
            found[name] = first
            into.replicas += [
                (name, f"ranks {ranks[0].tp} and {rank.tp}", first, other) for rank, other in zip(ranks[1:], pieces[1:])
            ]
        elif _is_gated(name, states[0], gated, len(pieces)):
            half = first.shape[0] // 2
            gates = [Slice(piece, [(0, half, 1)]) for piece in pieces]
            ups = [Slice(piece, [(half, 2 * half, 1)]) for piece in pieces]
            found[name] = joined([*gates, *ups], 0)
        else:
            found[name] = joined(pieces, axis)
    return found


def split_axis(name: str, tensor: Tensor) -> int | None:
    """The dimension over which a parameter is split; ``None`` if each rank has all of it."""
    if _BY_ROWS.search(name):
        return 0
    return 1 if _BY_COLUMNS.search(name) and len(tensor.shape) > 1 else None


def _is_gated(name: str, state: Mapping[str, Tensor], gated: bool | None, ranks: int) -> bool:
    first = _FIRST.match(name)
    if first is None:
        return False
    if gated is not None:
        return gated
    second = f"{first['path']}{_SECOND[first[2]]}.weight{first['number']}"
    return second in state and state[name].shape[0] == 2 * state[second].shape[1]


def _global_expert(name: str, ep: int, state: Mapping[str, Tensor]) -> str:
    for pattern in (_EXPERT, _GROUPED):
        found = pattern.match(name)
        if found is not None:
            numbers = [
                int(other["number"])
                for each in state
                if (other := pattern.match(each)) and other["path"] == found["path"]
            ]
            return f"{found['path']}{int(found['number']) + ep * (max(numbers) + 1)}{found['rest']}"
    return name


def _add_stage(stage: dict[str, Tensor], before: dict[str, int], into: Checkpoint, pp: int) -> None:
    """Number the layers of a stage behind those of the stages before it."""
    counts: dict[str, int] = {}
    for name, tensor in stage.items():
        layer = _LAYER.match(name)
        if layer is not None:
            path = layer["path"]
            counts[path] = max(counts.get(path, 0), int(layer["number"]) + 1)
            name = f"{path}{int(layer['number']) + before.get(path, 0)}{layer['rest']}"
        if name in into.weights:
            into.replicas.append((name, f"an earlier stage and stage {pp}", into.weights[name], tensor))
        else:
            into.weights[name] = tensor
    for path, count in counts.items():
        before[path] = before.get(path, 0) + count


# --- split files


_RANK = re.compile(r"(?:^|[_.-])rank[_-]?(\d+)|^consolidated\.(\d+)\.")


def rank_of(name: str) -> int | None:
    """The rank that a file or a folder is named after."""
    found = _RANK.search(name)
    return None if found is None else int(found[1] or found[2])


def read_ranks(
    paths: Sequence[str], into: Checkpoint, options: CheckpointOptions, read: Callable[[str, Checkpoint], None]
) -> None:
    """Add the parameters of a model of which each rank has a file.

    Args:
        paths: the files, rank by rank.

    Raises:
        FileCheckException, DumpFormatError: a file is damaged, or nothing says how the model is split.
    """
    parts, placements = [], {}
    for index, path in enumerate(paths):
        one = Checkpoint(path, "")
        if path.endswith(".safetensors") or path.endswith(".ckpt") or path.endswith(".npz"):
            read(path, one)
        else:
            content = read_torch(path)
            sections.sort(content.value, one)
            placements.update(content.placements)
        parts.append(one)
        if not index:
            into.settings.update(one.settings)
    _same_names(parts)
    if placements:
        into.weights.update(_by_placement([part.weights for part in parts], placements, into))
        into.optimizer.update(_by_placement([part.optimizer for part in parts], placements, into))
        return
    tp = options.tp or (len(paths) // options.pp if "consolidated" in os.path.basename(paths[0]) else 0)
    if not tp:
        raise DumpFormatError(
            f"{into.path}: it has {len(paths)} files of ranks, and none says how the model is split; give --tp "
            "and --pp."
        )
    if tp * options.pp != len(paths):
        raise DumpFormatError(f"--tp {tp} --pp {options.pp} are {tp * options.pp} ranks; {into.path} has {len(paths)}.")
    merge(
        [Part(part.path, index % tp, index // tp, 0, [part.weights]) for index, part in enumerate(parts)], into
    )  # fmt: skip


def _same_names(parts: Sequence[Checkpoint]) -> None:
    if not any(part.weights for part in parts):
        raise DumpFormatError(f"{parts[0].path}: it has no tensors.")


def _by_placement(
    states: Sequence[dict[str, Tensor]], placements: dict[int, Placement], into: Checkpoint
) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, first in states[0].items():
        pieces = [state[name] for state in states if name in state]
        if len(pieces) != len(states):
            raise DumpFormatError(f"{into.path}: {name} is missing on a rank; copy the files again.")
        placement = placements.get(id(first))
        axes = [axis for axis in (placement.dimensions if placement else ()) if axis is not None]
        if placement is None or not axes:
            found[name] = first
            into.replicas += [(name, f"ranks 0 and {rank}", first, piece) for rank, piece in enumerate(pieces) if rank]
        elif len(axes) > 1 or len(placement.dimensions) > 1:
            raise DumpFormatError(
                f"{into.path}: {name} is split over a mesh of {len(placement.dimensions)} dimensions; save the model "
                "with torch.distributed.checkpoint instead."
            )
        else:
            whole = joined([piece for piece in pieces if piece.size or len(pieces) == 1], axes[0])
            if whole.shape != placement.shape:
                raise DumpFormatError(
                    f"{into.path}: the parts of {name} have shape {list(whole.shape)} together, and it has "
                    f"{list(placement.shape)}; a rank is missing."
                )
            found[name] = whole
    return found
