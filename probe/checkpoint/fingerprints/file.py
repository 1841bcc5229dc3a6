"""The file of a fingerprint: an archive that ``numpy.load`` opens without pickles.

    fingerprint.json  the text of an object, whose keys `_Index` has
    digests           uint64, a row for each tensor: bits, value, bfloat16, cut, float16, elements
    statistics        float64, a row for each tensor: largest, smallest, mean, norm
    sketch            float32, a row of 64 sums for each tensor
    sample            float32, the samples of all tensors, one after the other
    cuts              uint64, the digests before certain rows of all tensors, one after the other

`probe.common.numerics.digests` and `probe.common.numerics.sketch` define the numbers, and `rows_of_cuts` those rows.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import tokenize
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal, Optional

import msgspec
import numpy as np
from numpy.typing import NDArray

from probe.checkpoint.fingerprints.entry import Entry, Fingerprinted, rows_of_cuts
from probe.checkpoint.report import Checkpoint, Replica
from probe.checkpoint.sampling import size_of_sample
from probe.checkpoint.stored import Tensor
from probe.common import files
from probe.common.dump.sketch_file import DAMAGED, member_of, read_member
from probe.common.environment.gathered import clean_settings
from probe.common.errors import DumpFormatError, FileCheckException
from probe.common.numerics import digests, sketch
from probe.common.numerics.digests import Digested
from probe.common.numerics.rounding import word_type
from probe.common.numerics.sketch import LANES, Sketch
from probe.common.report.json_values import from_json, to_json

ENDING = ".fingerprint"
INDEX = "fingerprint.json"
VERSION = 1
"""1 (2026-11): first version."""
_MOST_BYTES = 4 << 30
"""Bytes of a file that is read; a guess: that of four million tensors."""
_LONGEST_REASON = 200
"""Characters of an error that are shown; a guess."""
_MOST_DIMENSIONS = 64
"""The most that numpy allows."""
_DIGESTS = digests.COUNT + 1
_ARRAYS = {"digests": "<u8", "statistics": "<f8", "sketch": "<f4", "sample": "<f4", "cuts": "<u8"}


_Kind = Literal["", "optimizer", "joined otherwise"]


class _Tensor(msgspec.Struct, omit_defaults=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: _Kind = ""
    """See `Checkpoint`: of its weights, its optimizer, or `joined_otherwise`."""
    of: int = -1
    """The number of the tensor of which it is a part, such as an expert of a stack."""
    inexact: bool = False
    nonfinite: int = 0
    excluded: int = 0
    marks: tuple[float, ...] = ()


class _Replica(msgspec.Struct):
    name: str
    ranks: str
    max_abs: Any


class Part(msgspec.Struct, frozen=True):
    """The part of a parameter that a rank has, whose fingerprint stands at its place in the whole.

    Args:
        starts: the index of its first element in the whole parameter.
        shape: its own.
    """

    starts: tuple[int, ...]
    shape: tuple[int, ...]


class _Index(msgspec.Struct, omit_defaults=True):
    version: int
    digest_version: int
    sketch_version: int
    format: str
    tensors: list[_Tensor]
    config: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    notes: list[str] = []
    replicas: list[_Replica] = []
    step: Optional[int] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    rank: Optional[int] = None  # noqa: UP045
    parts: dict[str, Part] = {}


def write(path: str, content: Checkpoint) -> None:
    """Write the fingerprints that `content` holds; `path` is replaced, and never through a link.

    Raises:
        OSError: it cannot be written.
    """
    if os.path.islink(path):
        raise FileCheckException(f"{path} is a symbolic link; give another file with -o.")
    with files.replacing(path) as stream:
        write_to(stream, content)


def write_to(stream: BinaryIO, content: Checkpoint) -> None:
    """Write the archive."""
    rows = list(_flat(content))
    entries = [tensor.entry for _, tensor, _, _ in rows]
    index = _Index(
        VERSION, digests.VERSION, sketch.VERSION, content.format,
        [_described(name, tensor.entry, kind, of) for name, tensor, kind, of in rows],
        _sent(content.config), _sent(content.settings), content.notes,
        [_Replica(each.name, each.ranks, to_json(each.max_abs)) for each in content.told_replicas],
        content.step, content.rank, content.parts,
    )  # fmt: skip
    told = [each.told for each in entries]
    arrays: dict[str, NDArray[Any]] = {
        "digests": np.array([(*each.digests, each.elements) for each in told], "<u8").reshape(-1, _DIGESTS),
        "statistics": np.array([(each.most, each.least, each.mean, each.norm) for each in told], "<f8").reshape(-1, 4),
        "sketch": np.array([each.sketch.sums for each in told], "<f4").reshape(-1, LANES),
        "sample": np.concatenate([np.zeros(0, "<f4"), *(each.sample.astype("<f4") for each in entries)]),
        "cuts": np.array([cut for each in entries for cut in each.cuts], "<u8"),
    }
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(member_of(INDEX), msgspec.json.encode(index))
        for name, array in arrays.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, array, (1, 0), allow_pickle=False)
            archive.writestr(member_of(f"{name}.npy"), data.getvalue())


def _flat(content: Checkpoint) -> Iterator[tuple[str, Fingerprinted, _Kind, int]]:
    """Every tensor with its name, its kind, and the number of that of which it is a part."""
    count = 0
    for kind, tensors in _by_kind(content).items():
        for name, tensor in tensors.items():
            assert isinstance(tensor, Fingerprinted)
            yield name, tensor, kind, -1
            for part in tensor.parts:
                yield "", part, kind, count
            count += 1 + len(tensor.parts)


def _by_kind(content: Checkpoint) -> dict[_Kind, dict[str, Tensor]]:
    return {"": content.weights, "optimizer": content.optimizer, "joined otherwise": content.joined_otherwise}


def _described(name: str, entry: Entry, kind: _Kind, of: int) -> _Tensor:
    found = entry.told
    marks = () if found.sketch.marks is None else tuple(found.sketch.marks.tolist())
    return _Tensor(
        name, entry.dtype, entry.shape, kind, of, not found.is_exact, found.nonfinite, found.sketch.excluded, marks
    )  # fmt: skip


def _sent(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without those that may be secrets, since a fingerprint is sent to others, and without paths."""
    found: dict[str, Any] = _plain(clean_settings(settings)[0])
    return found


def _plain(values: Any) -> Any:
    """Settings as JSON has them; what is none of its values is a text."""
    if isinstance(values, dict):
        return {str(key): _plain(each) for key, each in values.items()}
    if isinstance(values, (list, tuple)):
        return [_plain(each) for each in values]
    if values is None or isinstance(values, (bool, int, str)):
        return values
    return to_json(values) if isinstance(values, float) else str(values)


# --- reading


def is_fingerprint(start: bytes) -> bool:
    """True if a file that begins with these bytes, 46 or more, is a fingerprint."""
    return start[:4] == b"PK\3\4" and start[30 : 30 + len(INDEX)] == INDEX.encode()


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[zipfile.ZipFile, BinaryIO]]:
    """A file that is read; what goes wrong is said in one line.

    Raises:
        FileCheckException, DumpFormatError: see `read`.
    """
    try:
        with files.open_for_reading(path) as stream:
            if stream.seek(0, os.SEEK_END) > _MOST_BYTES:
                raise DumpFormatError(f"{path}: it is larger than {_MOST_BYTES >> 30} GiB, as no fingerprint is.")
            with zipfile.ZipFile(stream) as archive:
                yield archive, stream
    except DumpFormatError:
        raise
    except (*DAMAGED, msgspec.MsgspecError, RecursionError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise FileCheckException(f"{path}: cannot be read: {error.strerror or error}.") from None
        reason = str(error)[:_LONGEST_REASON]
        raise DumpFormatError(f"{path}: a damaged fingerprint: {reason}; copy it again.") from None


class _Step(msgspec.Struct):
    step: Optional[int] = None  # noqa: UP045 (evaluated, on Python 3.9 too)


def step_of(path: str) -> int | None:
    """The step that a file is of; nothing else of it is kept.

    Raises:
        FileCheckException, DumpFormatError: see `read`.
    """
    with _opened(path) as (archive, stream):
        return msgspec.json.decode(read_member(archive, stream, INDEX), type=_Step).step


def read(path: str, into: Checkpoint) -> None:
    """Add the tensors of a fingerprint.

    Raises:
        FileCheckException: it cannot be read.
        DumpFormatError: it is damaged, or of another version; the message names it.
    """
    with _opened(path) as (archive, stream):
        index = msgspec.json.decode(read_member(archive, stream, INDEX), type=_Index)
        _check(path, index)
        arrays = {name: _array(read_member(archive, stream, f"{name}.npy"), kind) for name, kind in _ARRAYS.items()}
        tensors = _tensors(index, arrays)
    for described, tensor in zip(index.tensors, tensors):
        if described.of < 0:
            _by_kind(into)[described.kind][described.name] = tensor
    into.format, into.notes = index.format, [*into.notes, *index.notes]
    into.config, into.settings = from_json(index.config), from_json(index.settings)
    into.told_replicas += [Replica(path, each.name, each.ranks, from_json(each.max_abs)) for each in index.replicas]
    into.step, into.rank, into.parts = index.step, index.rank, index.parts


def _check(path: str, index: _Index) -> None:
    versions = index.version, index.digest_version, index.sketch_version
    if versions != (VERSION, digests.VERSION, sketch.VERSION):
        raise DumpFormatError(
            f"{path}: a fingerprint of version {'.'.join(map(str, versions))}, and this msprobe reads "
            f"{VERSION}.{digests.VERSION}.{sketch.VERSION}; make both fingerprints with one release."
        )
    names = [(each.name, each.kind) for each in index.tensors if each.of < 0]
    if len(set(names)) != len(names):
        raise ValueError("a name is in it twice")
    for number, each in enumerate(index.tensors):
        if word_type(each.dtype) is None:
            raise ValueError(f"the dtype {each.dtype[:50]!r} is not known")
        if len(each.shape) > _MOST_DIMENSIONS or any(length < 0 for length in each.shape):
            raise ValueError(f"the shape of {each.name[:100]!r} is none")
        if math.prod(each.shape) >= 1 << 62:
            raise ValueError(f"the shape of {each.name[:100]!r} is too large")
        if len(each.marks) not in (0, sketch.MARKS) or bool(each.marks) != bool(each.excluded):
            raise ValueError("marks of excluded elements are missing")
        if each.of >= 0 and not (each.of < number and index.tensors[each.of].of < 0):
            raise ValueError("a part comes before its whole")


def _array(data: bytes, kind: str) -> NDArray[Any]:
    """The array of an .npy file that is in memory, whose size is checked before it is used."""
    stream = io.BytesIO(data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("an array of another version of .npy")
    try:
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    except (SyntaxError, tokenize.TokenError) as error:
        raise ValueError(f"the header of an array: {error}") from None
    if is_fortran or dtype != np.dtype(kind) or math.prod(shape) * dtype.itemsize != len(data) - stream.tell():
        raise ValueError("an array has another type or size than its header says")
    return np.frombuffer(data, kind, offset=stream.tell()).reshape(shape)


def _tensors(index: _Index, arrays: dict[str, NDArray[Any]]) -> list[Fingerprinted]:
    count = len(index.tensors)
    samples = [size_of_sample(each.shape, each.dtype) for each in index.tensors]
    cuts = [len(rows_of_cuts(each.shape)) for each in index.tensors]
    wanted = {
        "digests": (count, _DIGESTS), "statistics": (count, 4), "sketch": (count, LANES), "sample": (sum(samples),),
        "cuts": (sum(cuts),),
    }  # fmt: skip
    for name, shape in wanted.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{name} has shape {arrays[name].shape}, and {count} tensors need {shape}")
    found: list[Fingerprinted] = []
    sample_at = cut_at = 0
    for number, each in enumerate(index.tensors):
        *of_each, elements = arrays["digests"][number].tolist()
        most, least, mean, norm = arrays["statistics"][number].tolist()
        marks = np.array(each.marks, np.float32) if each.marks else None
        told = Digested(
            tuple(of_each), elements, not each.inexact, each.nonfinite, most, least, mean, norm,
            Sketch(arrays["sketch"][number], each.excluded, marks),
        )  # fmt: skip
        sample = arrays["sample"][sample_at : sample_at + samples[number]]
        at = tuple(arrays["cuts"][cut_at : cut_at + cuts[number]].tolist())
        sample_at, cut_at = sample_at + samples[number], cut_at + cuts[number]
        found.append(Fingerprinted(Entry(each.dtype, each.shape, told, sample, at)))
        if each.of >= 0:
            found[each.of].parts.append(found[-1])
    return found
