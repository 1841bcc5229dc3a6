"""Making the fingerprint of a checkpoint: every tensor is read once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from probe.backends.protocol.trends import StoredWeight
from probe.checkpoint.comparison import replicas_that_differ
from probe.checkpoint.fingerprints import file
from probe.checkpoint.fingerprints.entry import Fingerprinted, entry_of, part_of
from probe.checkpoint.readers.opening import open_checkpoint
from probe.checkpoint.report import Checkpoint, CheckpointOptions, counted
from probe.checkpoint.scheme import in_scheme
from probe.checkpoint.stored import InMemory, Tensor, close_all, joined
from probe.common.errors import MsprobeException
from probe.common.numerics.rounding import word_type
from probe.common.progress import ProgressCallback, with_progress

_THREADS = 4
"""Tensors that are read at once, at most as many as there are processors. A guess: more than the disks of a machine
gain by."""
_STACK = re.compile(r"experts\.(fc1|fc2|gate|up)\.(weight|bias)$")


def fingerprint_checkpoint(
    path: str,
    output: str | None = None,
    options: CheckpointOptions | None = None,
    watch: ProgressCallback | None = None,
) -> str:
    """Write the fingerprint of a checkpoint of any format.

    Args:
        path: a file or a folder.
        output: the file; by default ``<path>.fingerprint``. One that is there is replaced.
        options: how the checkpoint is read; with `optimizer` the state of the optimizer is taken as well.

    Returns: the path of the file.

    Raises:
        MsprobeException: the checkpoint cannot be read, or the file not be written.
    """
    options = options or CheckpointOptions()
    plain = os.path.normpath(path)
    # A folder that is named by dots has a name of its own all the same.
    to = output or (os.path.abspath(path) if os.path.basename(plain) in (".", "..") else plain) + file.ENDING
    if os.path.isdir(to):
        raise MsprobeException(f"{to} is a folder; give the name of a file with -o.")
    try:
        content = open_checkpoint(path, options)
        file.write(to, fingerprinted(content, options.optimizer, watch))
    finally:
        close_all()
    return to


def fingerprinted(content: Checkpoint, optimizer: bool = False, watch: ProgressCallback | None = None) -> Checkpoint:
    """A checkpoint with fingerprints for tensors."""
    keys = in_scheme(list(content.weights))
    either = dict(_joined_otherwise(content, [name for name in content.pieces if keys[name].startswith("embed")]))
    kinds = (content.weights, content.optimizer if optimizer else {}, either)
    work = [
        (tensor, _STACK.search(keys.get(name, "")) is not None) for tensors in kinds for name, tensor in tensors.items()
    ]
    done = iter(_in_threads(lambda each: _made(*each), work, watch))
    weights, state, otherwise = ({name: next(done) for name in tensors} for tensors in kinds)
    # What is sent to others has no folders of this machine.
    name = os.path.basename(os.path.normpath(content.path))
    notes = [note.replace(content.path, name) for note in content.notes]
    found = Checkpoint(
        content.path, content.format, dict(weights), dict(state), content.settings, content.config, notes,
        joined_otherwise=dict(otherwise),
    )  # fmt: skip
    found.told_replicas = [*content.told_replicas, *replicas_that_differ(content)]
    return found


def _joined_otherwise(content: Checkpoint, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """The parameters whose parts ranks may hold along another dimension than their names say, joined along that one.

    Llama's own files have an embedding that is split by columns, later ones by rows, under one name.
    """
    for name in names:
        pieces, shape = content.pieces[name], content.weights[name].shape
        wholes = [joined(pieces, axis) for axis in range(len(shape)) if len(pieces) > 1]
        yield from ((name, whole) for whole in wholes if whole.shape != shape)


def _made(tensor: Tensor, is_stack: bool) -> Fingerprinted:
    if isinstance(tensor, Fingerprinted):
        return tensor
    several = range(tensor.row_count if is_stack and len(tensor.shape) > 1 else 0)
    return Fingerprinted(entry_of(tensor), [Fingerprinted(entry_of(tensor.element(at))) for at in several])


def _in_threads(
    make: Callable[[tuple[Tensor, bool]], Fingerprinted],
    work: list[tuple[Tensor, bool]],
    watch: ProgressCallback | None,
) -> list[Fingerprinted]:
    """The fingerprints of tensors, in their order."""
    count = min(_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(count) as pool:
        made = pool.map(make, work)
        return list(made if watch is None else with_progress(made, watch, "tensors", len(work)))


# --- weights in memory


def of_weights(
    weights: Iterable[tuple[str, StoredWeight | None]], step: int | None = None, rank: int | None = None
) -> Checkpoint:
    """The fingerprint of weights that a process holds, one after the other.

    Args:
        weights: names and elements; ``None`` for one that has none.

    Raises:
        MsprobeException: a weight is a part of another one that does not begin or end with 64 elements, or two have
            one name.
    """
    found = Checkpoint("", "memory", step=step, rank=rank)
    absent = []
    for name, stored in weights:
        if stored is None or word_type(stored.dtype) is None:
            absent.append(name)
            continue
        if name in found.weights:
            raise MsprobeException(f"{name}: two weights have this name.")
        tensor = _in_memory(stored)
        if not stored.whole:
            found.weights[name] = _made(tensor, _STACK.search(in_scheme([name])[name]) is not None)
            continue
        entry = part_of(tensor, stored.starts, stored.whole) if tensor.size else None
        if entry is None and tensor.size:
            raise MsprobeException(
                f"{name}: its part of shape {list(stored.shape)} at {list(stored.starts)} of {list(stored.whole)} does "
                "not begin and end with rows of 64 elements; give the whole tensor, such as with full_tensor()."
            )
        found.parts[name] = file.Part(stored.starts, stored.shape)
        if entry is not None:
            found.weights[name] = Fingerprinted(entry)
    if absent:
        found.notes.append(f"{counted(len(absent), 'weight')} without elements here, the first {absent[0]}")
    return found


def _in_memory(stored: StoredWeight) -> Tensor:
    words = word_type(stored.dtype)
    assert words is not None
    return InMemory(stored.data.view(words).reshape(stored.shape), stored.dtype)
