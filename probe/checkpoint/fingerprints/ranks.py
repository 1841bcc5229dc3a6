"""The fingerprints that several ranks wrote of one model, put together."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from probe.checkpoint.fingerprints import file
from probe.checkpoint.fingerprints.entry import Fingerprinted, entry_of, together
from probe.checkpoint.fingerprints.file import ENDING, Part
from probe.checkpoint.report import Checkpoint, Replica
from probe.checkpoint.stored import Shape, Tensor
from probe.common.errors import DumpFormatError, FileCheckException
from probe.common.numerics.digests import BITS


def files_in(path: str) -> list[str]:
    """The files of fingerprints in a folder, or the file that `path` is.

    Raises:
        FileCheckException: the folder cannot be read, or has none.
    """
    if not os.path.isdir(path):
        return [path]
    try:
        names = sorted(name for name in os.listdir(path) if name.endswith(ENDING))
    except OSError as error:
        raise FileCheckException(f"{path}: cannot be read: {error.strerror or error}.") from None
    if not names:
        raise FileCheckException(f"{path}: no file in it ends with {ENDING}; give the folder of fingerprints.")
    return [os.path.join(path, name) for name in names]


class Steps:
    """The fingerprints in a folder or file by their steps, each of which is read when it is asked for.

    Raises:
        FileCheckException, DumpFormatError: one is damaged, or the part of a rank is missing.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: dict[int | None, list[str]] = {}
        for each in files_in(path):
            self._files.setdefault(file.step_of(each), []).append(each)
        self._latest: tuple[int | None, Checkpoint] | None = None

    @property
    def numbers(self) -> list[int | None]:
        """The steps in their order; ``None`` for files without one."""
        return sorted(self._files, key=lambda step: -1 if step is None else step)

    def read(self, step: int | None) -> Checkpoint:
        """The fingerprint of a step, those of its ranks as one; the latest that was read is kept."""
        if self._latest is None or self._latest[0] != step:
            contents = [Checkpoint(each, "") for each in self._files[step]]
            for content in contents:
                file.read(content.path, content)
            self._latest = step, whole(self._path, contents)
        return self._latest[1]


def read_folder(path: str, into: Checkpoint) -> None:
    """Add the fingerprint of the one step that a folder has."""
    steps = Steps(path)
    if len(steps.numbers) > 1:
        shown = ", ".join(map(str, steps.numbers[:4]))
        raise DumpFormatError(
            f"{path}: it holds fingerprints of {len(steps.numbers)} steps ({shown}, ...); give the file of one."
        )
    found = steps.read(steps.numbers[0])
    vars(into).update({**vars(found), "path": path})


def whole(path: str, contents: Sequence[Checkpoint]) -> Checkpoint:
    """The fingerprints of ranks as that of the model: parts added up, copies compared.

    Raises:
        DumpFormatError: a part is missing, or is one of another parameter.
    """
    first = contents[0]
    found = Checkpoint(
        path if len(contents) > 1 else first.path, first.format, {}, dict(first.optimizer), first.settings,
        first.config, list(dict.fromkeys(note for each in contents for note in each.notes)),
        joined_otherwise=first.joined_otherwise, told_replicas=[one for each in contents for one in each.told_replicas],
        step=first.step,
    )  # fmt: skip
    if len(contents) > 1:
        found.format = f"{first.format}, {len(contents)} ranks"
    parts: dict[str, list[tuple[Part, Fingerprinted]]] = {}
    ranks: dict[str, int | None] = {}
    for content in contents:
        for name, tensor in content.weights.items():
            assert isinstance(tensor, Fingerprinted)
            if name in content.parts:
                parts.setdefault(name, []).append((content.parts[name], tensor))
            elif name not in found.weights:
                found.weights[name], ranks[name] = tensor, content.rank
            elif _form_and_bits(found.weights[name]) != _form_and_bits(tensor):
                both = f"ranks {ranks[name]} and {content.rank}"
                found.told_replicas.append(Replica(found.path, name, both, math.nan))
    for name, of_name in parts.items():
        found.weights[name] = _put_together(found, name, of_name)
    return found


def _form_and_bits(tensor: Tensor) -> tuple[str, Shape, int]:
    return tensor.dtype, tensor.shape, entry_of(tensor).told.digests[BITS]


def _put_together(found: Checkpoint, name: str, parts: Sequence[tuple[Part, Fingerprinted]]) -> Fingerprinted:
    places = {part.starts: (part, tensor) for part, tensor in parts}
    form = parts[0][1].dtype, parts[0][1].shape
    for part, tensor in parts:
        if (tensor.dtype, tensor.shape) != form:
            raise DumpFormatError(
                f"{found.path}: {name} is {form[0]} of shape {list(form[1])} on a rank, and {tensor.dtype} of shape "
                f"{list(tensor.shape)} on another; give the files of one model."
            )
        if tensor.entry.told.digests[BITS] != places[part.starts][1].entry.told.digests[BITS]:
            found.told_replicas.append(Replica(found.path, name, "ranks that have the same part", math.nan))
    entries = [(tensor.entry, math.prod(part.shape)) for part, tensor in places.values()]
    size, wanted = sum(elements for _, elements in entries), math.prod(entries[0][0].shape)
    if size != wanted:
        raise DumpFormatError(
            f"{found.path}: the parts of {name} have {size} of {wanted} elements; give the folder with the files of "
            "all ranks."
        )
    return Fingerprinted(together(entries))
