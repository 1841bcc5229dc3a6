"""The records of a step that is watched: in memory, as many as the configuration allows, and written if need be."""

from __future__ import annotations

import threading

from probe.backends.protocol import Tensors
from probe.collect.describing.suspects import Suspects
from probe.collect.sinks.journal.dump_folder import DumpFolder
from probe.collect.sinks.ring.judgement import FirstRecord, Frame, Judgement
from probe.common.callstack import CallStacks


class StepRing:
    """Keeps the records of one step.

    While all is well the oldest records make room for new ones; once there is one to report, those around it stay.

    Args:
        step: The step's number.
        most: The records that are kept.
        tensors: The framework.
        suspects: What is not finite in the records.
        stacks: What the records refer to by number.
        rank: The rank of this process.
    """

    def __init__(
        self, step: int, most: int, tensors: Tensors, suspects: Suspects, stacks: CallStacks, rank: int = 0
    ) -> None:
        self.step = step
        self.frames: list[Frame] = []
        self.left_out = 0
        """Records that had to make room, or found none."""
        self.judgement = Judgement(rank)
        self._most = most
        self._tensors = tensors
        self._suspects = suspects
        self._stacks = stacks
        self._judged = 0
        """The number of frames that were looked at."""
        # Not a plain lock: a signal's function can come here in the middle.
        self._one_at_a_time = threading.RLock()
        self._part = (most + 1) // 2
        self._reported: FirstRecord | None = None
        """The finding to report, and the end of the frames that are kept for it."""
        self._end = 0

    # --- while the step goes on

    def add(self, frame: Frame) -> None:
        self.frames.append(frame)
        if len(self.frames) >= self._most:
            with self._one_at_a_time:
                self._make_room()

    def _make_room(self) -> None:
        if len(self.frames) < self._most:
            return  # another thread has made it
        self.look_at_new()
        first = self.judgement.first
        if first is None:
            self._leave_out(0, self._part)
        elif first != self._reported:
            # What led there, and half as many records of what came of it; others are still looked at.
            self._reported, self._end = first, len(self.frames) + self._part
            self._most = self._end + self._part
        else:
            self._leave_out(self._end, len(self.frames))

    def _leave_out(self, begin: int, end: int) -> None:
        left_out = max(end - begin, 0)
        self.left_out += left_out
        self._judged -= left_out
        del self.frames[begin:end]

    def look_at_new(self) -> None:
        """Look at every record so far, which on a device waits for the statistics."""
        if self._tensors.pending():
            self._tensors.resolve()
        new = self.frames[self._judged :]
        self._judged += len(new)
        self.judgement.look_at(new, self._suspects.all())

    def end(self) -> None:
        """The step is over: look at the rest of its records."""
        self.look_at_new()
        self.judgement.end()

    def has_records(self) -> bool:
        return any(frame.rule is not None for frame in self.frames)

    # --- once it is to be written

    def write(self, folder: DumpFolder) -> None:
        """Write the records into `folder` as if they had been written there one by one."""
        if self._reported is not None and self.judgement.first in (None, self._reported):
            self._leave_out(self._end, len(self.frames))
        journal = folder.journal
        for name, begun, stack, parent, order, rule, fields in self.frames:
            if stack >= 0:
                journal.stack(stack, self._stacks)
            if rule is None:
                journal.node(name, begun, stack, parent)
            else:
                journal.record(name, begun, stack, parent, order, rule, fields)
        folder.write_files()
