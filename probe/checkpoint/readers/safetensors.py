"""Safetensors files of a checkpoint."""

from __future__ import annotations

from probe.checkpoint.content import Checkpoint
from probe.checkpoint.stored.files import File
from probe.checkpoint.stored.tensors import Stored
from probe.common.dump.reading.safetensors_header import read_header
from probe.common.errors import DumpFormatError


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
