"""Work between the steps of the first monitor: the first step, and a configuration that changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from probe.api.monitoring.parts import adapter_for
from probe.collect.sinks.trend.structure import StructureRecorder
from probe.common.dump.stack_text import frame_text
from probe.monitor.schedule import Schedule, WatchedFile
from probe.monitor.setup.first import FirstSettings

_VARIABLE = "DYNAMIC_MONITOR"


def is_dynamic() -> bool:
    """True if the configuration file is looked at while the training runs."""
    return os.environ.get(_VARIABLE, "").lower() == "true"


def first_step_of(
    settings: FirstSettings, models: Sequence[Any], backend: str, failed: Callable[[Any, BaseException], None]
) -> StructureRecorder | None:
    """Writer of the structure of the model in the first step, if that is wanted."""
    if not (settings.print_struct or settings.stack_info):
        return None
    return StructureRecorder(adapter_for(backend), models, failed)


def stack_text(frames: Sequence[Any]) -> str:
    """Frames as ``stack_info.csv`` has them."""
    return "\n".join(filter(None, map(frame_text, frames)))


class Control:
    """The schedule of a recorder, and what is done when a step begins.

    Args:
        first_step: Notes the first step.
        write_first_step: Called when it is over.
        file: The configuration file, if it is watched.
        between: Called with the number of each step before it begins, collected or not.
    """

    def __init__(
        self,
        first_step: StructureRecorder | None,
        write_first_step: Callable[[], None],
        file: WatchedFile | None,
        between: Callable[[int], None],
    ) -> None:
        self.schedule = Schedule(0, 1, 0)
        self.at_end: Callable[[], None] | None = None
        """Called once when the step is over."""
        self._write = write_first_step if first_step is not None else None
        self._file = file
        self._between = between
        self._end = ""
        self._has_begun = False

    def ask_end(self, text: str) -> None:
        """End the training after this step, with the message `text`."""
        self._end = self._end or text

    def wants(self, step: int) -> bool:
        """True if the step that begins now is collected."""
        if self._has_begun:
            if self._write is not None:
                write, self._write = self._write, None
                write()
            if self._end:
                raise SystemExit(self._end)
            if self._file is not None:
                self._file.look()
            if self.at_end is not None:
                # The recorder that asks is replaced, and collects no more.
                at_end, self.at_end = self.at_end, None
                self._has_begun = False
                at_end()
                return False
        self._has_begun = True
        self._between(step)
        return self.schedule.wants(step)

    def collected(self, step: int) -> None:
        """Count a step that was collected."""
        self.schedule.collected(step)

    def file_was_written(self) -> None:
        """The tool has written the file."""
        if self._file is not None:
            self._file.noted()
