"""``msprobe parse``: tensors of ATB as files that numpy or torch read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from probe.common import files
from probe.common.errors import FileCheckException, MsprobeException
from probe.kernels.atb_tensors import AtbTensor, is_atb, read, read_head

SUFFIX = ".bin"
_MOST_LOOKED_AT = 100
"""Files of a folder without tensors of ATB whose kind is looked up. A guess: a dump of kernels has nothing else."""
_ASCEND_DUMP = (
    "it is a kernel dump in Ascend's protobuf format, which is not supported; convert it with msaccucmp.py of the CANN "
    "toolkit (msaccucmp.py convert -d FILE -out DIR -t npy)."
)
_NUMPY, _ZIP = b"\x93NUMPY", b"PK\x03\x04"


@dataclass(frozen=True)
class Parsed:
    """One file, and what was made of it."""

    source: str
    target: str
    """The file that was written; empty if there is a problem."""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    problem: str = ""


Writer = Callable[[str, AtbTensor], None]
"""Writes a tensor to a path."""


def write_npy(path: str, tensor: AtbTensor) -> None:
    """Write a ``.npy`` file; bfloat16 is in it as float32, which has all its values."""
    with files.replacing(path) as stream:
        np.lib.format.write_array(stream, np.ascontiguousarray(tensor.values), allow_pickle=False)


def parse(path: str, output: str, suffix: str, write: Writer) -> Iterator[Parsed]:
    """Convert a file, or every file ``*.bin`` below a folder, whose folders are made again below `output`.

    Args:
        path: A file or a folder.
        output: The folder that gets the files.
        suffix: Of the files, ``.npy`` or ``.pt``.
        write: Writes one.

    Raises:
        MsprobeException: there is nothing to convert.
    """
    if not os.path.lexists(path):
        raise FileCheckException(f"{path} does not exist; give a file of ATB, or a folder of such files.")
    is_folder = os.path.isdir(path)
    sources = list(files.below(path, SUFFIX)) if is_folder else [path]
    if not sources:
        raise MsprobeException(_nothing_in(path))
    for source in sources:
        name = os.path.relpath(source, path) if is_folder else os.path.basename(source)
        target = os.path.join(output, (name[: -len(SUFFIX)] if name.endswith(SUFFIX) else name) + suffix)
        try:
            problem = _refused(read_head(source))
            if problem:
                yield Parsed(source, "", problem=f"{source}: {problem}")
                continue
            tensor = read(source)
            files.make_folder(os.path.dirname(target) or ".")
            write(target, tensor)
        except (MsprobeException, OSError) as error:
            text = str(error) if isinstance(error, MsprobeException) else f"{source}: {error.strerror}."
            yield Parsed(source, "", problem=text)
        else:
            yield Parsed(source, target, tensor.dtype, tuple(tensor.values.shape))


def _nothing_in(folder: str) -> str:
    """The reason why nothing in a folder is converted."""
    # Dumps of kernels have no suffix.
    for path in islice(files.below(folder), _MOST_LOOKED_AT):
        if os.path.isfile(path) and _is_ascend_dump(read_head(path)):
            return f"{path}: {_ASCEND_DUMP}"
    return f"{folder} has no file *{SUFFIX}; give a folder with tensors of ATB."


def _refused(head: bytes) -> str:
    """The reason why a file with this beginning is not converted; empty if it is a tensor of ATB."""
    if is_atb(head):
        return ""
    if head.startswith(_NUMPY):
        return "it is a .npy file already."
    if head.startswith(_ZIP):
        return "it is an archive, such as a .pt or .npz file, and no tensor of ATB."
    if _is_ascend_dump(head):
        return _ASCEND_DUMP
    return "it is no tensor of ATB: it does not begin with a header such as $Version=1.0."


def _is_ascend_dump(head: bytes) -> bool:
    """True for the length of a message in 8 bytes, and the message: its version, field 1, or its time, field 2."""
    if len(head) < 10:
        return False
    length = int.from_bytes(head[:8], "little")
    return 0 < length < 1 << 32 and head[8:9] in (b"\x0a", b"\x10")
