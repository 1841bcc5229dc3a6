"""A file for each rank, without a prescribed layout: DTensors say theirs, else ``--tp`` and ``--pp`` do."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

from probe.checkpoint.content import Checkpoint
from probe.checkpoint.options import CheckpointOptions
from probe.checkpoint.readers import sections
from probe.checkpoint.readers.ranks import Part, merge
from probe.checkpoint.readers.torch_files import Placement, read_torch
from probe.checkpoint.stored.tensors import Tensor, joined
from probe.common.errors import DumpFormatError

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
