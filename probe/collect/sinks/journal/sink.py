"""The dump: makes the folder of each step, and says what becomes of it."""

from __future__ import annotations

import os

from probe.collect.sinks.journal.dump_folder import DumpFolder, earlier_run, remove
from probe.collect.sinks.journal.record_sink import RecordSink
from probe.collect.sinks.losses import Losses
from probe.collect.sinks.sink import EndedStep, Host, Step
from probe.common import clock, log
from probe.common.config.config import Config
from probe.common.errors import FileCheckException


class JournalSink(RecordSink):
    """Writes the dump of tasks ``statistics``, ``tensor`` and ``structure``."""

    def __init__(self, config: Config, host: Host) -> None:
        self._made_at = clock.now()
        self._opened = False
        """True if a folder was opened already."""
        self._unmade: tuple[int, str] | None = None
        """The step whose files could not be made last, and why."""
        self._unwritable = ""
        """The reason why the folder of the last step could not be written."""
        self._losses = Losses()
        self._ended: list[tuple[str, bool]] = []
        """The folder of each step that has ended, and whether it was new."""
        self._step = -1
        """The number of the step that has begun last."""
        self.steps: list[int] = []
        super().__init__(config, host)
        if config.async_dump and config.task == "tensor":
            most = config.async_dump_max_mib
            log.warning(f"async_dump keeps up to {most} MiB of tensors (async_dump_max_mib) until stop or step.")

    # --- the life of a step

    def begin_step(self, step: Step) -> bool:
        """Make the folder of this step and rank; false if it cannot be written, which costs this step only."""
        self.end_step()  # that failed, if it is needed here
        self._step = step.number
        try:
            folder = self.new_folder(step)
        except (OSError, FileCheckException) as error:
            if isinstance(error, FileCheckException) and error.__cause__ is None and not self._opened:
                raise  # not what the system did, but a path that is wrong from the beginning
            self._log_unwritable(error)
            return False
        self._unwritable = ""
        first, self._opened = not self._opened, True
        self.steps.append(step.number)
        try:
            self.begin_in(folder, step)
        except BaseException as error:
            self.give_up(folder, step, error)
            if isinstance(error, Exception):
                return False
            raise
        if first and not step.rank:
            self._log_earlier_run(folder)
        return True

    def resume_step(self, step: Step) -> None:
        if self.folder is not None and os.path.basename(self.folder.path) != step.process:
            self.folder.rename(step.process)

    def log_start(self) -> None:
        if self.folder is not None:
            target = os.path.abspath(self.folder.path)
            log.info(f"Collection of step {self._step} starts; the data goes to {target}.")

    def log_stop(self) -> None:
        log.info("Collection stopped.")

    def flush(self) -> None:
        if self.folder is None:
            return
        try:
            news = self._writer.flush()
        except Exception as error:
            self._log_unwritten(self.folder, error)
        else:
            if news:
                log.info(f"{os.path.basename(self.folder.record_file)} is at {self.folder.record_file}.")

    def end_step(self) -> None:
        if self.folder is not None:
            self._note_loss(self.folder)
            self._ended.append((self.folder.path, self.folder.is_new))
        super().end_step()

    def discard(self) -> None:
        folder = self.folder
        # What is in memory belongs to the folder until it is closed.
        super().end_step()
        if folder is not None:
            remove(folder.path, folder.is_new)
            self.steps.remove(self._step)

    def restart(self) -> None:
        for path, is_new in self._ended:
            remove(path, is_new)
        self._ended.clear()
        self.steps.clear()
        self._losses = Losses()

    def finish(self, ended: EndedStep) -> None:
        self.end_step()

    # --- what is missing

    @property
    def losses(self) -> dict[int, str]:
        """Those of steps that are over, and of the one that goes on."""
        if self.folder is not None:
            self._note_loss(self.folder)
        return dict(self._losses.of_step)

    def log_losses(self) -> None:
        if self.folder is not None:
            self._note_loss(self.folder)
        self._losses.log(self._config.dump_path)

    def _note_loss(self, folder: DumpFolder) -> None:
        if folder.loss:
            self._losses.of_step[self._step] = folder.loss
            self._losses.are_recoverable |= folder.is_recoverable

    def _log_earlier_run(self, folder: DumpFolder) -> None:
        # All ranks find the same, so the first of them says it.
        try:
            earlier = earlier_run(folder, self._made_at)
        except Exception as error:
            folder.log_error("the beginning of the step", error)
            return
        if earlier:
            root = os.path.dirname(folder.step_path)
            log.warning(f"{root} holds an earlier run already: {earlier}. This one goes to {folder.relative}.")

    def _log_unwritable(self, error: Exception) -> None:
        self._losses.add(self._step, "the folder could not be made", error)
        # Once, and not at each of ten thousand steps, while the reason is the same.
        reason = type(error).__name__ if not isinstance(error, OSError) else str(error.errno)
        if reason != self._unwritable:
            self._unwritable = reason
            text = f"step {self._step} is not collected: its folder cannot be written ({error})."
            log.error(f"{text} Later steps are not collected either while this lasts; the training goes on.")

    def _log_unwritten(self, folder: DumpFolder, error: Exception) -> None:
        """The training goes on; what is in the journal can still be recovered."""
        folder.log_error(f"the files of step {self._step}", error, report=False)
        # After `stop` has reported it, `step` need not do so again.
        reported, self._unmade = self._unmade, (self._step, getattr(error, "strerror", None) or str(error))
        if reported == self._unmade:
            return
        log.error(
            f"the files of step {self._step} cannot be written ({error}); the training goes on. If {folder.path} still "
            "holds its journal, `msprobe recover` makes them from it."
        )
