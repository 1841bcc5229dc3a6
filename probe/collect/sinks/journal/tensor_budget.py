"""The disk space that the tensor files of a process may take (``max_gib``), and that a step is likely to take."""

from __future__ import annotations

import math
import os
import shutil

from probe.collect.sinks.journal.dump_folder import DumpFolder
from probe.common import log
from probe.common.dump import naming

_GIB = 1 << 30
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
