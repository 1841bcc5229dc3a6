"""Checkpoints of MindSpore: messages of protobuf, read as they lie in the file.

A file is a row of values (field 1), each a tag (1) and a tensor (2): dimensions (1), the name of a type (2), the bytes
(3). A large parameter is several values of one tag that follow each other. After the last there may be a checksum.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

from probe.checkpoint.report import Checkpoint
from probe.checkpoint.stored import File, Segments, Stored, Tensor
from probe.common.errors import DumpFormatError
from probe.common.numerics.formats import plain_name
from probe.common.numerics.rounding import word_type

_CHECKSUM = b"crc_num"
_CHECKSUM_SIZE = len(_CHECKSUM) + 10
_LONGEST_NUMBER = 10
"""Bytes of a number of 64 bits."""
_WINDOW = 1 << 12
"""Bytes that are read at once while messages are looked through: a page of memory."""
_OPTIMIZER = (
    "moment1.", "moment2.", "moments.", "adam_m.", "adam_v.", "exp_avg.", "exp_avg_sq.", "accum.", "accumulation.",
    "learning_rate", "global_step", "beta1_power", "beta2_power", "scale_sense", "current_iterator_step",
    "last_overflow",
    "vhat.", "momentum.", "weight_decay", "state_step", "optimizer.",
)  # fmt: skip
_PROGRESS = (
    "epoch_num",
    "step_num",
    "epoch",
    "step",
    "lr",
    "loss_scale",
    "batch_num",
    "have_data_strategy",
    "global_batch_size",
)


def read_ckpt(path: str, into: Checkpoint) -> None:
    """Add the parameters of a file.

    Raises:
        FileCheckException, DumpFormatError: it cannot be read, or is no checkpoint of MindSpore.
    """
    file = File(path)
    found: dict[str, list[tuple[str, tuple[int, ...], int, int]]] = {}
    for tag, dims, kind, begin, length in _values(file):
        found.setdefault(tag, []).append((kind, dims, begin, length))
    for tag, parts in found.items():
        kind, dims = parts[0][:2]
        if kind in ("str", "dict", "list"):
            data = b"".join(file.read(begin, min(length, _WINDOW)) for _, _, begin, length in parts)
            into.settings[tag] = data.decode("utf-32-le" if kind == "str" else "utf-8", "replace")
            continue
        dtype = plain_name(kind)
        words = word_type(dtype)
        if words is None:
            raise DumpFormatError(f"{path}: {tag} has the unknown dtype {kind[:40]!r}; save it in another.")
        size = sum(length for *_, length in parts)
        shape = () if dims == (0,) and size == words.itemsize else dims
        if math.prod(shape) * words.itemsize != size:
            raise DumpFormatError(
                f"{path}: {tag}: shape {list(shape)} of {dtype} takes {math.prod(shape) * words.itemsize} bytes, and "
                f"the file has {size}; a part is missing or there twice: save it again."
            )
        pieces: list[Tensor] = [
            Stored(file, begin, dtype, (length // words.itemsize,)) for _, _, begin, length in parts
        ]
        tensor: Tensor = Stored(file, parts[0][2], dtype, shape) if len(parts) == 1 else Segments(pieces, shape)
        if tag in _PROGRESS and tensor.size == 1:
            into.settings[tag] = tensor.read().reshape(-1)[0].item()
        elif tag.startswith(_OPTIMIZER):
            into.optimizer[tag] = tensor
        else:
            into.weights[tag] = tensor


def check_sum(path: str) -> bool | None:
    """True if the checksum at the end is that of the file; ``None`` if there is none."""
    file = File(path)
    end = _end(file)
    if end == file.size:
        return None
    found = 0
    for begin in range(0, end, 1 << 22):
        found = zlib.crc32(file.read(begin, min(1 << 22, end - begin)), found)
    return found == int.from_bytes(file.read(end + len(_CHECKSUM), 10), "big")


def _end(file: File) -> int:
    """The position behind the last value."""
    if file.size > _CHECKSUM_SIZE and file.read(file.size - _CHECKSUM_SIZE, len(_CHECKSUM)) == _CHECKSUM:
        return file.size - _CHECKSUM_SIZE
    return file.size


class _Reader:
    """Reads small pieces of a file, of which a window is kept."""

    def __init__(self, file: File, end: int) -> None:
        self.file, self.end = file, end
        self._data, self._start = b"", 0

    def bytes(self, at: int, size: int) -> bytes:
        if at + size > self.end:
            raise self.damaged(at)
        if not self._start <= at <= at + size <= self._start + len(self._data):
            self._start, self._data = at, self.file.read(at, min(max(size, _WINDOW), self.end - at))
        return self._data[at - self._start : at - self._start + size]

    def number(self, at: int) -> tuple[int, int]:
        """A number of variable length, and the position behind it."""
        value = 0
        for index in range(_LONGEST_NUMBER):
            byte = self.bytes(at + index, 1)[0]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value, at + index + 1
        raise self.damaged(at)

    def fields(self, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """The fields of a message: number, wire type, value or begin, length."""
        while at < end:
            key, at = self.number(at)
            if key & 7 == 2:
                length, at = self.number(at)
                if at + length > end:
                    raise self.damaged(at)
                yield key >> 3, 2, at, length
                at += length
            elif key & 7 == 0:
                value, at = self.number(at)
                yield key >> 3, 0, value, 0
            else:
                raise self.damaged(at)

    def damaged(self, at: int) -> DumpFormatError:
        return DumpFormatError(
            f"{self.file.path}: no checkpoint of MindSpore, or cut off or encrypted (byte {at} of {self.file.size}); "
            "copy it again, or save it without encryption."
        )


def _values(file: File) -> Iterator[tuple[str, tuple[int, ...], str, int, int]]:
    """Tag, dimensions, type, begin and length of each value."""
    end = _end(file)
    reader = _Reader(file, end)
    if not end:
        raise reader.damaged(0)
    for number, wire, begin, length in reader.fields(0, end):
        if (number, wire) != (1, 2):
            raise reader.damaged(begin)
        tag, tensor = "", None
        for inner, kind, at, size in reader.fields(begin, begin + length):
            if (inner, kind) == (1, 2):
                tag = reader.bytes(at, size).decode("utf-8", "replace")
            elif (inner, kind) == (2, 2):
                tensor = (at, size)
        if tensor is None:
            raise DumpFormatError(f"{file.path}: {tag or 'a value'} is no dense tensor; save it without hash tables.")
        dims, dtype, data = [], "", (tensor[0], 0)
        for inner, kind, at, size in reader.fields(tensor[0], tensor[0] + tensor[1]):
            if (inner, kind) == (1, 0):
                dims.append(at)
            elif (inner, kind) == (2, 2):
                dtype = reader.bytes(at, size).decode("utf-8", "replace")
            elif (inner, kind) == (3, 2):
                data = (at, size)
        yield tag, tuple(dims), dtype, *data
