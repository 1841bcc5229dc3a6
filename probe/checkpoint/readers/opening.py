"""The choice of a reader: by what a file begins with, and by what a folder holds."""

from __future__ import annotations

import json
import math
import os
import re
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from probe.checkpoint.fingerprints import file as fingerprints
from probe.checkpoint.fingerprints.entry import rests_on_fingerprint
from probe.checkpoint.fingerprints.ranks import read_folder as read_fingerprints
from probe.checkpoint.fingerprints.ranks import whole
from probe.checkpoint.readers import deepspeed, megatron, sections
from probe.checkpoint.readers.dcp import METADATA, read_dcp
from probe.checkpoint.readers.mindspore import check_sum, read_ckpt
from probe.checkpoint.readers.pickles import Inert
from probe.checkpoint.readers.ranks import rank_of, read_ranks
from probe.checkpoint.readers.torch_files import read_torch
from probe.checkpoint.report import Checkpoint, CheckpointOptions
from probe.checkpoint.stored import Array, File, Stored, Tensor
from probe.common import files
from probe.common.dump.reading.safetensors_header import read_header
from probe.common.dump.reading.tensor_reading import extent
from probe.common.errors import DumpFormatError, FileCheckException
from probe.common.numerics.rounding import word_type


class _Packed(Tensor):
    """An array that is compressed, read as a whole while it is compared."""

    def __init__(self, path: str, entry: str, dtype: str, shape: tuple[int, ...]) -> None:
        super().__init__(dtype, shape)
        self._path, self._entry = path, entry
        self._held: Array | None = None

    def rows(self, start: int, stop: int) -> Array:
        if self._held is None:
            reading = files.open_for_reading(self._path)
            with reading, zipfile.ZipFile(reading) as archive, archive.open(self._entry) as stream:
                self._held = np.lib.format.read_array(stream, allow_pickle=False)
        return self._held.reshape(self.row_count, *self.row_shape)[start:stop]

    def release(self) -> None:
        self._held = None


def read_npz(path: str, into: Checkpoint) -> None:
    """Add the arrays of a file.

    Raises:
        FileCheckException, DumpFormatError: it cannot be read, or holds something else than numbers.
    """
    file = File(path)
    try:
        with files.open_for_reading(path) as stream, zipfile.ZipFile(stream) as archive:
            for entry in archive.infolist():
                name = entry.filename[:-4] if entry.filename.endswith(".npy") else entry.filename
                if name in into.weights:
                    raise DumpFormatError(f"{path}: {name} is in it twice, and only one can be meant: save it again.")
                with archive.open(entry) as member:
                    version = np.lib.format.read_magic(member)
                    reads = (
                        np.lib.format.read_array_header_1_0
                        if version == (1, 0)
                        else np.lib.format.read_array_header_2_0
                    )
                    shape, is_fortran, dtype = reads(member)
                    header = member.tell()
                if dtype.hasobject or word_type(dtype.newbyteorder("=").name) is None:
                    raise DumpFormatError(f"{path}: {name} has dtype {dtype}; only numbers are read: save it as such.")
                kind = dtype.newbyteorder("=").name
                if entry.compress_type != zipfile.ZIP_STORED:
                    if math.prod(shape) * dtype.itemsize + header != entry.file_size:
                        raise DumpFormatError(f"{path}: {name} has another size than its shape: copy the file again.")
                    into.weights[name] = _Packed(path, entry.filename, kind, shape)
                    continue
                begin, _ = extent(stream, entry)
                strides = tuple(math.prod(shape[:index]) for index in range(len(shape))) if is_fortran else None
                into.weights[name] = Stored(file, begin + header, kind, shape, strides, dtype.byteorder == ">")
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError) as error:
        if isinstance(error, DumpFormatError):
            raise
        raise DumpFormatError(f"{path}: not an archive of numpy: {error}; copy or save it again.") from None


# --- safetensors


def read_safetensors(path: str, into: Checkpoint) -> None:
    """Add the tensors of a file.

    Raises:
        FileCheckException, DumpFormatError: it cannot be read, or its header is wrong, and how.
    """
    file = File(path)
    header = read_header(path, file.size, file.read)
    into.settings.update((f"metadata.{key}", value) for key, value in header.metadata.items())
    for name, (offset, dtype, shape) in header.tensors.items():
        if name in into.weights:
            raise DumpFormatError(
                f"{path}: {name} is in another file of the checkpoint, too; remove the file that does not belong to it."
            )
        into.weights[name] = Stored(file, offset, dtype, shape)


# --- opening


_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz")
_NO_WEIGHTS = re.compile(
    r"^(optimizer|scheduler|scaler|rng_state.*|random_states.*|training_args|scheduler.*|.*_optim_states|distrib_optim|"
    r"tokenizer.*)\.(pt|pth|bin|pkl)$"
)
_NUMBERED = re.compile(r"^(?P<stem>.*)-(?P<number>\d+)-of-(?P<count>\d+)(?P<end>\.\w+)$")
_INDEX = re.compile(r"\.(safetensors|bin|pt|pth|ckpt)\.index\.json$|^param_name_map\.json$")
_LARGEST_JSON = 256 << 20
"""Bytes of an index that are read; a guess beyond any known index."""
_QUANTISED = ("quantization_config", "quant_method")
_MOST_NAMED = 4
"""Files that an error lists; a guess."""


def open_checkpoint(path: str, options: CheckpointOptions | None = None) -> Checkpoint:
    """The content of a checkpoint, of which no tensor is read yet.

    Args:
        path: a file or a folder of any format that is known.

    Raises:
        FileCheckException, DumpFormatError: it cannot be read, and what to do.
    """
    options = options or CheckpointOptions()
    found = Checkpoint(path, "")
    if os.path.isdir(path):
        _read_folder(path, found, options)
    elif not os.path.exists(path):
        raise FileCheckException(f"{path}: there is no such file or folder; give a checkpoint.")
    elif _INDEX.search(os.path.basename(path)):
        _read_index(path, found)
    else:
        _read_file(path, found)
        _read_config(os.path.dirname(path), found)
    is_told = any(map(rests_on_fingerprint, found.weights.values()))
    if not is_told:
        sections.set_apart(found)
    if not found.weights:
        raise DumpFormatError(f"{path}: it holds no tensors of a model; give the file or folder that has its weights.")
    quantised = any(key in found.config for key in _QUANTISED)
    if not is_told and (quantised or any(name.endswith(".qweight") for name in found.weights)):
        found.notes.append(f"{path}: its weights are quantised, and compared as they are stored")
    return found


def _read_file(path: str, into: Checkpoint) -> None:
    file = File(path)
    start = file.read(0, min(64, file.size))
    if not file.size:
        raise DumpFormatError(f"{path}: the file is empty; copy it again.")
    if fingerprints.is_fingerprint(start):
        fingerprints.read(path, into)
        if into.parts:
            into.weights = whole(path, [into]).weights
    elif path.endswith(".npz"):
        read_npz(path, into)
        into.format = "npz"
    elif path.endswith(".safetensors") or (start[8:9] == b"{" and int.from_bytes(start[:8], "little") < file.size):
        read_safetensors(path, into)
        into.format = "safetensors"
    elif start[:4] == b"PK\3\4" or start[:1] == b"\x80":
        _read_pt(path, into)
        into.format = "torch"
    elif path.endswith(".ckpt"):
        read_ckpt(path, into)
        into.format = "MindSpore"
        if check_sum(path) is False:
            raise DumpFormatError(f"{path}: its checksum does not match its bytes; copy the file again.")
    else:
        raise DumpFormatError(
            f"{path}: not a known format of checkpoints: it begins with {start[:8]!r}; allowed: safetensors, files of "
            "torch.save, .npz, .ckpt of MindSpore, and folders of these."
        )


def _read_pt(path: str, into: Checkpoint) -> None:
    content = read_torch(path)
    if content.placements:
        into.notes.append(f"{path}: tensors in it are the parts of one rank (DTensor); give the folder of all ranks")
    sections.sort(content.value, into)
    for module in sections.modules_in(content.value):
        held = f"{path}: it holds a whole module ({module[:100]}), whose parameters are not read; save "
        held += "model.state_dict() instead of the model"
        if not into.weights:
            raise DumpFormatError(f"{held}.")
        into.notes.append(held)
    if content.unknown:
        into.notes.append(f"{path}: these types are not known, and left out: {', '.join(content.unknown[:5])}")
    if isinstance(content.value, dict) and isinstance(content.value.get("args"), Inert):
        into.config.update(content.value["args"].fields)


def _read_folder(path: str, into: Checkpoint, options: CheckpointOptions, depth: int = 0) -> None:
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise FileCheckException(f"{path}: cannot be read: {error.strerror or error}.") from None
    if megatron.LATEST in names and METADATA not in names:
        return _read_folder(_latest(path, megatron.LATEST), into, options, depth + 1)
    if deepspeed.LATEST in names and not deepspeed.is_deepspeed(path):
        return _read_folder(_latest(path, deepspeed.LATEST), into, options, depth + 1)
    _read_config(path, into)
    if METADATA in names:
        into.format = "DCP"
        read_dcp(path, into)
    elif deepspeed.is_deepspeed(path):
        into.format = "DeepSpeed"
        deepspeed.read_deepspeed(path, into, options.weights)
    elif megatron.rank_folders(path):
        into.format = "Megatron"
        megatron.read_megatron(path, into)
    else:
        _read_files(path, names, into, options, depth)
    return None


def _latest(path: str, name: str) -> str:
    """The folder of the newest iteration, as a file of a training says it."""
    with files.open_for_reading(os.path.join(path, name)) as stream:
        text = stream.read(200).decode("utf-8", "replace").strip()
    folder = text if name == deepspeed.LATEST or not text.isdigit() else f"iter_{int(text):07d}"
    found = os.path.join(path, folder)
    if os.path.basename(folder) != folder or not folder or not os.path.isdir(found):
        raise DumpFormatError(
            f"{os.path.join(path, name)}: it names {folder!r}, which is not there; give a folder of {path}."
        )
    return found


def _read_files(path: str, names: Sequence[str], into: Checkpoint, options: CheckpointOptions, depth: int) -> None:
    """A folder of files that lie beside each other."""
    indexes = [name for name in names if _INDEX.search(name) and name != "param_name_map.json"]
    files_ = [name for name in names if _has_weights(name)]
    rest = [name for name in files_ if not any(_belongs(name, index) for index in indexes)]
    if len(indexes) + bool(rest) > 1:
        raise DumpFormatError(_several(path, [*indexes, *rest]))
    if indexes:
        return _read_index(os.path.join(path, indexes[0]), into)
    if not files_ and any(name.endswith(fingerprints.ENDING) for name in names):
        return read_fingerprints(path, into)
    if not files_:
        return _read_below(path, names, into, options, depth)
    numbered = [match for name in files_ if (match := _NUMBERED.match(name))]
    ranks = [rank_of(name) for name in files_]
    if (
        len(files_) == 1
        and not numbered
        and not (ranks[0] is not None and "consolidated" not in files_[0] and "world" in files_[0])
    ):
        return _read_file(os.path.join(path, files_[0]), into)
    if len(numbered) == len(files_) and len({(match["stem"], match["end"], match["count"]) for match in numbered}) == 1:
        wanted, stem, end = int(numbered[0]["count"]), numbered[0]["stem"], numbered[0]["end"]
        there = {int(match["number"]) for match in numbered}
        # Counted from 0 by some, from 1 by most.
        first = 0 if 0 in there else 1
        missing = sorted(set(range(first, wanted + first)) - there)
        if missing:
            width = len(numbered[0]["number"])
            raise DumpFormatError(
                f"{path}: {stem}-{missing[0]:0{width}d}-of-{numbered[0]['count']}{end} is missing; copy it. "
                "Without it, the comparison would report its tensors as missing."
            )
        for name in files_:
            _read_file(os.path.join(path, name), into)
        into.format = f"{into.format}, {len(files_)} files"
        return None
    if all(rank is not None for rank in ranks) and len(set(ranks)) == len(ranks):
        return _read_rank_files(path, files_, into, options)
    raise DumpFormatError(_several(path, files_))


def _read_rank_files(path: str, names: Sequence[str], into: Checkpoint, options: CheckpointOptions) -> None:
    by_rank = {rank: name for name in names if (rank := rank_of(name)) is not None}
    missing = sorted(set(range(max(by_rank) + 1)) - set(by_rank))
    if missing:
        raise DumpFormatError(f"{path}: the file of rank {missing[0]} is missing; copy it from where the training ran.")
    into.format = f"{len(names)} files of ranks"
    read_ranks([os.path.join(path, by_rank[rank]) for rank in sorted(by_rank)], into, options, _read_file)


def _several(path: str, names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMED]) + (" ..." if len(names) > _MOST_NAMED else "")
    return f"{path}: it holds several checkpoints ({shown}); give one of them."


def _belongs(name: str, index: str) -> bool:
    """True if a file is a shard that an index of the same kind may list."""
    kind = _INDEX.search(index)
    return kind is not None and bool(_NUMBERED.match(name)) and name.endswith(f".{kind[1]}")


def _read_below(path: str, names: Sequence[str], into: Checkpoint, options: CheckpointOptions, depth: int) -> None:
    """A folder that has the checkpoint in another folder."""
    folders = [name for name in names if os.path.isdir(os.path.join(path, name)) and not name.startswith(".")]
    ranks = [rank_of(name) for name in folders]
    inside = [
        [name for name in sorted(os.listdir(os.path.join(path, folder))) if name.endswith(_ENDINGS)]
        for folder in folders
    ]
    if folders and all(rank is not None for rank in ranks) and all(len(each) == 1 for each in inside):
        return _read_rank_files(
            path, [os.path.join(folder, each[0]) for folder, each in zip(folders, inside)], into, options
        )
    found = [name for name in folders if _has_checkpoint(os.path.join(path, name))]
    if len(found) == 1 and depth < 3:
        return _read_folder(os.path.join(path, found[0]), into, options, depth + 1)
    if found:
        raise DumpFormatError(_several(path, found))
    if any(name == "metadata.json" for name in names) and any(
        os.path.exists(os.path.join(path, name, ".zarray")) for name in folders
    ):
        raise DumpFormatError(
            f"{path} is a distributed checkpoint in zarr; convert it to torch_dist with Megatron first."
        )
    raise DumpFormatError(
        f"{path}: there is no checkpoint in it; allowed: {', '.join(_ENDINGS)}, DCP, Megatron, DeepSpeed."
    )


def _has_weights(name: str) -> bool:
    """True of a file that may hold the weights of a model."""
    return name.endswith(_ENDINGS) and not _NO_WEIGHTS.match(name)


def _has_checkpoint(folder: str) -> bool:
    names = os.listdir(folder)
    return METADATA in names or any(
        name == megatron.LATEST
        or megatron.RANK.match(name)
        or (name.endswith(_ENDINGS) and not _NO_WEIGHTS.match(name))
        for name in names
    )


def _read_index(path: str, into: Checkpoint) -> None:
    """The shards that an index lists."""
    content = _json(path)
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not all(isinstance(each, str) for each in names.values()):
        raise DumpFormatError(f"{path}: it has no weight_map from names to files; copy it again.")
    folder = os.path.dirname(path)
    shards = list(dict.fromkeys(names.values()))
    for shard in shards:
        if os.path.isabs(shard) or ".." in shard.split("/"):
            raise DumpFormatError(f"{path}: it names the file {shard!r} outside of its folder; refused.")
        if not os.path.exists(os.path.join(folder, shard)):
            raise DumpFormatError(f"{path}: the shard {shard} is missing; copy it into {folder or '.'}.")
    for shard in shards:
        _read_file(os.path.join(folder, shard), into)
    lost = [name for name in names if name not in into.weights]
    if lost:
        raise DumpFormatError(
            f"{path}: {lost[0]} is not in {names[lost[0]]}; index and shards belong to different models."
        )
    into.format = f"{into.format}, {len(shards)} files"
    _read_config(folder, into)


def _read_config(folder: str, into: Checkpoint) -> None:
    """Description of the model, from the files next to it."""
    for name in ("config.json", "params.json"):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and not into.config:
            content = _json(path)
            if isinstance(content, dict):
                inner = content.get("text_config")
                into.config = {**content, **(inner if isinstance(inner, dict) else {})}


def _json(path: str) -> Any:
    try:
        with files.open_for_reading(path) as stream:
            data = stream.read(_LARGEST_JSON + 1)
        if len(data) > _LARGEST_JSON:
            raise DumpFormatError(f"{path}: it is larger than {_LARGEST_JSON >> 20} MiB.")
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, DumpFormatError):
            raise
        raise DumpFormatError(f"{path}: not valid JSON: {error}.") from None
    except OSError as error:
        raise FileCheckException(f"{path}: cannot be read: {error.strerror or error}.") from None
