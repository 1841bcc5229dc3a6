"""Whole tensors on disk, one name each, written before the training can overwrite them."""

from __future__ import annotations

import errno
import functools
import math
import os
import shutil
from typing import Any, Callable, NamedTuple

from probe.backends.protocol import Tensors
from probe.collect.describing.values import SaveTensor
from probe.collect.sinks.journal.dump_folder import DumpFolder
from probe.common import files, log
from probe.common.dump import naming
from probe.common.interfaces import MOST_ON_DEVICE, DeviceFile, Entry, TensorFile

_GIB = 1 << 30
"""Bytes of one GiB."""
_FORWARD, _BACKWARD = f".{naming.FORWARD}.", f".{naming.BACKWARD}."


class TensorBudget:
    """Counts the bytes of the tensor files that are written, in all steps.

    A file that is a further name of one before takes nothing.
    """

    def __init__(self) -> None:
        self.written = 0
        """Bytes."""
        self.stopped = False
        """True if no further file may be written."""
        self._most = math.inf
        self._limit = ""
        self._estimated = False
        self._folder: DumpFolder | None = None
        self._before = 0

    def allow(self, gib: float) -> None:
        """Let all files together take so many GiB, or with -1 any number."""
        self._most = math.inf if gib == -1 else gib * _GIB
        self._limit = f"{gib:.10g}"
        self.stopped = self.written >= self._most

    def estimate_nothing(self) -> None:
        """Log no size of a step: what is written are the tensors of a few calls."""
        self._estimated = True

    def begin_step(self, folder: DumpFolder) -> None:
        """Write the following files into `folder`."""
        self._folder = folder
        self._before = self.written

    @property
    def saved_in_step(self) -> bool:
        """True if a tensor of this step was saved, or would have been."""
        return self.written > self._before or self.stopped

    @property
    def left(self) -> float:
        """The bytes that may still be written."""
        return self._most - self.written

    def allows(self, size: int) -> bool:
        """True if a file of `size` bytes may be written; the first that may not ends the saving of tensors."""
        if self.stopped:
            return False
        if size <= self.left:
            return True
        self.stopped = True
        where = "" if self._folder is None else f", the last in {self._folder.path}"
        log.warning(
            f'"max_gib" is reached: the tensor files of this process take {size_text(self.written)}{where}. No further '
            f"tensors are saved; statistics and the training go on. To save more, set it above {self._limit}, or to -1 "
            "for no limit."
        )
        return False

    def add(self, name: str, size: int) -> None:
        """The file `name` was written, which takes `size` bytes."""
        if not self._estimated and name.rfind(_BACKWARD) > name.rfind(_FORWARD):
            # A part of a model may be called so as well; the direction comes last.
            forward = self.written - self._before
            # Gradients are of the same tensors, but for those that take none.
            self._log_estimate(f"about {size_text(2 * forward)}, of which {size_text(forward)} are the forward pass")
        self.written += size

    def end_step(self) -> None:
        """The files of the step are complete."""
        size = self.written - self._before
        if size and not self._estimated:
            self._log_estimate(size_text(size))
        self._folder = None

    def _log_estimate(self, sizes: str) -> None:
        self._estimated = True
        if self._folder is None:
            return
        ends = '"max_gib" is -1, so there is no limit'
        if self._most != math.inf:
            ends = f'at {self._limit} GiB ("max_gib") no more tensors are saved, and the training goes on'
        try:
            free = f"; {size_text(shutil.disk_usage(self._folder.path).free)} are free on the disk"
        except OSError:
            free = ""
        step = os.path.basename(self._folder.step_path)
        log.info(f"The tensor files of {step} take {sizes}. Each further step takes about as much; {ends}{free}.")


def size_text(size: int) -> str:
    """An amount of bytes for people.

    Example:
        >>> size_text(480 << 20)
        '480 MiB'
    """
    value, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 999.5:
            break
        value, unit = value / 1024, larger
    return f"{value:.3g} {unit}"


# --- tensor dedup


@functools.cache
def digest_function() -> Callable[[Any], bytes] | None:
    """The function of 128 bits that stand for a content, where they are cheaper than to compare it with the disk's."""
    try:
        # 45 GB/s (100 KB in the cache, AMD EPYC); hashlib's fastest reads 2, which is slower than to write the file.
        import xxhash  # at the first tensor that is saved
    except ImportError:
        return None
    found: Callable[[Any], bytes] = xxhash.xxh3_128_digest
    return found


_MOST_KNOWN = 1 << 16
"""Files that are kept in mind: 20 to 40 MB."""
_CHUNK = 1 << 16
"""Bytes, so that what is read is compared while it is in the processor's cache."""
# Here, or for this user, files have one name each.
_NO_LINKS = frozenset((errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV))


class _WrittenFile(NamedTuple):
    """A file that was written."""

    name: str
    digest: bytes | None
    state: tuple[int, int, int]
    """The state at that time; that of a tensor written to since is another."""


class DedupWriter:
    """Writes files which are equal to one before as another name of that one.

    It looks at what a file holds and not at which tensor that was: two tensors that share memory, and one that was
    written to between two calls, make no difference.

    Args:
        budget: What all files may take; a further name takes nothing.
    """

    def __init__(self, budget: TensorBudget) -> None:
        self._budget = budget
        self._known: dict[tuple[bytes, int, int], _WrittenFile] = {}
        self._can_link = True

    def write(self, folder: str, name: str, file: TensorFile) -> bool:
        """Bring `file` under `name`; what had this name before is another file and is left alone.

        Returns:
            Whether that was done: not where it would take more than is left.

        Raises:
            OSError: among others when `name` is a symbolic link. Nothing is left under the name then.
        """
        path = os.path.join(folder, name)
        if not self._can_link:
            return self._write_anew(path, name, file) is not None
        key = (file.head, file.crc, file.data.nbytes)
        digest_of = digest_function()
        digest = digest_of(file.data) if digest_of is not None else None
        known = self._known.get(key)
        if known is not None and self._linked(os.path.join(folder, known.name), path, known, digest, file):
            return True
        replaced = self._write_anew(path, name, file)
        if replaced is None:
            return False
        if replaced:
            # A name has another content than it had.
            self._known.clear()
        if len(self._known) >= _MOST_KNOWN:
            self._known.pop(next(iter(self._known)), None)
        self._known[key] = _WrittenFile(name, digest, _state(path))
        return True

    def _write_anew(self, path: str, name: str, file: TensorFile) -> bool | None:
        """True if there was a file of this name; ``None`` where none was written, for it would take too much."""
        if not self._budget.allows(file.size):
            return None
        replaced = files.write_anew(path, (file.head, file.data, file.tail))
        self._budget.add(name, file.size)
        return replaced

    def _linked(self, source: str, path: str, known: _WrittenFile, digest: bytes | None, file: TensorFile) -> bool:
        """True if `path` is a further name of `source` now."""
        if digest != known.digest:
            return False
        try:
            if _state(source) != known.state or (digest is None and not _holds(source, file)):
                return False
            os.link(source, path, follow_symlinks=False)
        except OSError as error:
            # The name is taken, the file is gone, or it has as many names as it can have: not worth a word.
            if error.errno in _NO_LINKS:
                self._can_link = False
                self._known.clear()
            return False
        return True


def _state(path: str) -> tuple[int, int, int]:
    # After it was closed: a server's clock has the last word then.
    status = os.lstat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def _holds(path: str, file: TensorFile) -> bool:
    """True if the elements in the file are those of `file`, byte by byte."""
    descriptor = os.open(path, os.O_RDONLY | files.NO_FOLLOW)
    try:
        os.lseek(descriptor, len(file.head), os.SEEK_SET)
        chunk = bytearray(min(_CHUNK, file.data.nbytes))
        for at in range(0, file.data.nbytes, _CHUNK):
            part = file.data[at : at + _CHUNK]
            # A bytearray is compared as fast as memory is read, a memoryview byte by byte.
            buffer = chunk if part.nbytes == len(chunk) else bytearray(part.nbytes)
            if os.readv(descriptor, [buffer]) != part.nbytes or buffer != part:
                return False
        return True
    finally:
        os.close(descriptor)


# --- tensor writer


class TensorCopy(NamedTuple):
    """A tensor that is not written yet."""

    name: str
    file: TensorFile | DeviceFile
    entry: Entry


HeldTensors = list[TensorCopy]
"""The tensors of a call whose end decides whether they are written."""


class TensorWriter:
    """Writes tensors into the ``dump_tensor_data`` of one folder.

    Args:
        folder: Of the step.
        tensors: The framework.
        later: ``None`` writes at once, from the tensor's memory. A number keeps copies of at most so many bytes, and
            writes all of them at the next flush or when one more does not fit.
        budget: What all files of the process may take.
    """

    def __init__(self, folder: DumpFolder, tensors: Tensors, later: int | None, budget: TensorBudget) -> None:
        self._folder = folder
        self._tensors = tensors
        self._most = later
        self._budget = budget
        self._folds = files.folds_names(folder.tensor_folder)
        self._written = DedupWriter(budget)
        self._waiting: list[tuple[str, TensorFile, Entry]] = []
        self._size = 0
        self._on_device: list[tuple[str, DeviceFile, Entry]] = []
        self._size_on_device = 0

    def saving(self, held: HeldTensors | None = None) -> SaveTensor:
        """A function that saves the tensors of one value, under names of their own; their entries then name the files.

        With `held` the copies are kept there until it is known whether they are wanted.
        """
        given: set[str] = set()
        copied = held is not None or self._most is not None
        keep = self._put if held is None else held.append

        def save(value: Any, entry: Entry, path: str) -> None:
            if self._budget.stopped:
                return
            # {"a": {"b": x}, "a.b": y} has two places of one path.
            path = naming.unused(path, given)
            given.add(path)
            copy = self._copy(value, entry, path, copied)
            if copy is not None:
                keep(copy)

        return save

    def write_held(self, held: HeldTensors) -> None:
        """Write the tensors of a call that turned out to be wanted."""
        for copy in held:
            self._put(copy)

    def fetch(self) -> None:
        """Read what devices keep, in one transfer, and go on with it as with what is on the host."""
        there, self._on_device, self._size_on_device = self._on_device, [], 0
        if not there:
            return
        files_there = [file for _, file, _ in there]
        try:
            read = files_there[0].read(files_there)
        except Exception as error:
            for name, _, entry in there:
                self._folder.log_error(name, error)
                entry.pop("data_name", None)
            return
        for (name, _, entry), file in zip(there, read):
            self._put(TensorCopy(name, file, entry))

    def write_waiting(self) -> None:
        """Write what was left for later."""
        waiting, self._waiting, self._size = self._waiting, [], 0
        waiting.reverse()
        # Each copy is given back as soon as it is written.
        while waiting:
            self._write(*waiting.pop())

    def _copy(self, value: Any, entry: Entry, path: str, copied: bool) -> TensorCopy | None:
        try:
            file = self._tensors.tensor_file(value, copied)
            if file is None:
                return None
            name = naming.file_name(path, file.suffix, self._folds)
        except Exception as error:
            self._folder.log_error(path, error)
            return None
        entry["data_name"] = name
        return TensorCopy(name, file, entry)

    def _put(self, copy: TensorCopy) -> None:
        name, file, entry = copy
        if isinstance(file, DeviceFile):
            self._on_device.append((name, file, entry))
            self._size_on_device += file.size
            if self._size_on_device > MOST_ON_DEVICE:
                self.fetch()
            return
        if self._most is None:
            self._write(name, file, entry)
            return
        size = file.size
        # What waits must fit whatever comes: its records, which name the files, will have been written.
        if self._size + size > min(self._most, self._budget.left):
            self.write_waiting()
        if size > self._most or size > self._budget.left:
            self._write(name, file, entry)
            return
        self._waiting.append((name, file, entry))
        self._size += size

    def _write(self, name: str, file: TensorFile, entry: Entry) -> None:
        try:
            if self._written.write(self._folder.tensor_folder, name, file):
                return
        except Exception as error:
            self._folder.log_error(name, error)
        # Without data_name the entry shows that there is no file, unless its record is written already.
        entry.pop("data_name", None)
