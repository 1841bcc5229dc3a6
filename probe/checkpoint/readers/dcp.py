"""Distributed checkpoints of PyTorch (DCP): also those of FSDP, of accelerate, and of Megatron's ``torch_dist``.

`torch.distributed.checkpoint` itself executes ``.metadata`` as a pickle, so that it is read here, as data. Each chunk
is an archive of `torch.save` in a file of a rank.
"""

from __future__ import annotations

import io
import os
import re
from typing import Any

from probe.checkpoint.readers import pickles, sections
from probe.checkpoint.readers.pickles import Inert, Name
from probe.checkpoint.readers.torch_files import read_archive, read_torch
from probe.checkpoint.report import Checkpoint
from probe.checkpoint.stored import Array, File, Regions, Reshaped, Shape, Tensor
from probe.common.errors import DumpFormatError
from probe.common.numerics.formats import plain_name
from probe.common.numerics.rounding import word_type

METADATA = ".metadata"
_LARGEST = 1 << 30
"""Bytes of the metadata that are read; a guess: 10^5 parameters on 10^3 ranks take less."""
_LAYERS = re.compile(r"^(.*(?:decoder|encoder)\.layers\.)(?!\d)(.+)$")
_EXPERTS = re.compile(r"^(.*mlp\.experts\.)experts\.(.+)$")
_OPTIMIZER = ("optim", "opt.")


class _Chunk(Tensor):
    """A tensor in an archive within a file, which is opened when the tensor is needed."""

    def __init__(self, file: File, offset: int, length: int, dtype: str, shape: Shape) -> None:
        super().__init__(dtype, shape)
        self._file, self._offset, self._length = file, offset, length
        self._inner: Tensor | None = None

    def _opened(self) -> Tensor:
        if self._inner is None:
            value = read_archive(self._file, self._offset, self._length).value
            if not isinstance(value, Tensor) or value.size != self.size or value.dtype != self.dtype:
                raise DumpFormatError(
                    f"{self._file.path}: the chunk at byte {self._offset} is not what {METADATA} says (shape "
                    f"{list(self.shape)}, {self.dtype}); the files belong to different checkpoints, or are damaged."
                )
            self._inner = value if value.shape == self.shape else Reshaped(value, self.shape)
        return self._inner

    def rows(self, start: int, stop: int) -> Array:
        return self._opened().rows(start, stop)

    def release(self) -> None:
        self._inner = None


def read_dcp(folder: str, into: Checkpoint) -> None:
    """Add the tensors of a folder.

    Raises:
        FileCheckException, DumpFormatError: it cannot be read, is damaged, or lacks a file.
    """
    path = os.path.join(folder, METADATA)
    file = File(path)
    if file.size > _LARGEST:
        raise DumpFormatError(f"{path}: it has {file.size} bytes, more than that of any checkpoint.")
    metadata = pickles.load(io.BytesIO(file.read(0, file.size)), path)
    try:
        named, stored = metadata.fields["state_dict_metadata"], metadata.fields["storage_data"]
        opened: dict[str, File] = {}
        places = {_index(index): _place(path, folder, info, opened) for index, info in stored.items()}
        found = {name: _tensor(path, name, about, places) for name, about in named.items()}
        small = [name for name, about in named.items() if not about.name.endswith("TensorStorageMetadata")]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, DumpFormatError):
            raise
        raise DumpFormatError(
            f"{path}: not the metadata of a distributed checkpoint ({error}); copy it again."
        ) from None
    _sort({name: tensor for name, tensor in found.items() if tensor is not None}, into)
    for name in small:
        if not name.endswith("_extra_state") and (name, None) in places and not _is_shard(name):
            into.settings.update(sections.plain_settings(_small(places[(name, None)]), _without_container(name)))
    common = os.path.join(folder, "common.pt")
    if os.path.exists(common):
        into.format = "Megatron distributed checkpoint"
        value = read_torch(common).value
        if isinstance(value, dict):
            into.settings.update(
                sections.plain_settings({key: each for key, each in value.items() if key != "optimizer"}, "")
            )
            args = value.get("args")
            into.config.update(args.fields if isinstance(args, Inert) else {})
        _unstack(into)


def _is_shard(name: str) -> bool:
    return "/shard_" in name


def _small(place: tuple[File, int, int]) -> Any:
    """A value that is no tensor."""
    file, offset, length = place
    try:
        return read_archive(file, offset, length).value
    except DumpFormatError:
        # Older releases write a pickle.
        return pickles.load(io.BytesIO(file.read(offset, length)), file.path)


def _sort(found: dict[str, Tensor], into: Checkpoint) -> None:
    for name, tensor in found.items():
        if name.lower().startswith(_OPTIMIZER):
            into.optimizer[name] = tensor
        elif not name.endswith("_extra_state"):
            into.weights[_without_container(name)] = tensor


def _without_container(name: str) -> str:
    """The name without the key under which a training keeps its model, where that is one of the usual."""
    first, dot, rest = name.partition(".")
    return rest if dot and first in ("app", "state_dict", "module") else name


def _index(index: Any) -> tuple[str, Shape | None]:
    fields = index.fields
    offset = fields.get("offset")
    return fields["fqn"], None if offset is None else tuple(offset)


def _place(path: str, folder: str, info: Any, opened: dict[str, File]) -> tuple[File, int, int]:
    fields = info.fields
    name = str(fields["relative_path"])
    target = os.path.join(folder, name)
    if os.path.isabs(name) or ".." in name.split("/"):
        raise DumpFormatError(f"{path}: it names the file {name!r} outside of its folder; refused.")
    if fields.get("transform_descriptors"):
        raise DumpFormatError(f"{path}: its chunks are compressed ({fields['transform_descriptors']}); save without.")
    if not os.path.exists(target):
        raise DumpFormatError(f"{target}: this file of the checkpoint is missing; copy it, {METADATA} names it.")
    if target not in opened:
        opened[target] = File(target)
    return opened[target], int(fields["offset"]), int(fields["length"])


def _tensor(path: str, name: str, about: Inert, places: dict[Any, tuple[File, int, int]]) -> Tensor | None:
    if not about.name.endswith("TensorStorageMetadata"):
        return None
    fields = about.fields
    state = fields["properties"].state
    written = state[0] if isinstance(state, tuple) else state["dtype"]
    dtype = plain_name(written.name) if isinstance(written, Name) else str(written)
    if word_type(dtype) is None:
        raise DumpFormatError(f"{path}: {name} has the unknown dtype {dtype}.")
    shape = tuple(fields["size"])
    parts: list[tuple[Shape, Tensor]] = []
    for chunk in fields["chunks"]:
        offsets, sizes = tuple(chunk.fields["offsets"]), tuple(chunk.fields["sizes"])
        place = places.get((name, offsets)) or places.get((name, None))
        if place is None:
            raise DumpFormatError(f"{path}: the chunk of {name} at {list(offsets)} is in no file; copy it again.")
        parts.append((offsets, _Chunk(*place, dtype, sizes)))
    covered = sum(part.size for _, part in parts)
    size = 1
    for length in shape:
        size *= length
    if covered != size:
        raise DumpFormatError(
            f"{path}: the chunks of {name} have {covered} elements, and its shape {size}; save it again."
        )
    if not parts:
        return None
    return parts[0][1] if len(parts) == 1 and parts[0][1].shape == shape else Regions(parts, shape)


def _unstack(into: Checkpoint) -> None:
    """Give each layer its own parameters where Megatron keeps those of all layers as one."""
    found: dict[str, Tensor] = {}
    for name, tensor in into.weights.items():
        layers = _LAYERS.match(name)
        if layers is None:
            found[name] = tensor
            continue
        for number in range(tensor.shape[0]):
            _add_experts(found, f"{layers[1]}{number}.{layers[2]}", tensor.element(number))
    into.weights = found


def _add_experts(found: dict[str, Tensor], name: str, tensor: Tensor) -> None:
    experts = _EXPERTS.match(name)
    if experts is None:
        found[name] = tensor
        return
    for number in range(tensor.shape[0]):
        found[f"{experts[1]}local_experts.{number}.{experts[2]}"] = tensor.element(number)
