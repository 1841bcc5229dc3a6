"""The dump: the records of each step in a journal, tensors in files, and a golden run that it is compared with."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from probe.collect.active_calls import ActiveCall
from probe.collect.describing.values import SaveTensor
from probe.collect.sinks.journal.dump_folder import DumpFolder, earlier_run, reason, remove
from probe.collect.sinks.journal.tensor_writer import TensorBudget, TensorWriter
from probe.collect.sinks.sink import Discarded, EndedStep, Host, Needs, Sink, Status, Step
from probe.common import clock, log
from probe.common.config.config import Config
from probe.common.dump import naming
from probe.common.dump.journal import RecordFrame, RecordWriter
from probe.common.dump.update_file import UpdateFrame
from probe.common.errors import FileCheckException

if TYPE_CHECKING:
    from probe.collect.sinks.journal.golden_run import GoldenRun
    from probe.collect.sinks.journal.live_comparison import LiveComparison


_DELAYED = 256
"""Records that may wait for statistics on a device before they are fetched in one transfer."""

_DELAYED_LIVE = 32
"""Records that may wait for statistics in a live comparison, which keeps their tensors until then."""


class JournalSink(Sink):
    """Writes the dump of tasks ``statistics``, ``tensor`` and ``structure``.

    Args:
        host: What runs the sink.
        is_quiet: True if nothing is logged but failures, since somebody else tells of the folder.
    """

    def __init__(self, host: Host, is_quiet: bool = False) -> None:
        self._host = host
        self._is_quiet = is_quiet
        self._tensors = host.adapter.tensors
        self._pending = self._tensors.pending
        self._made_at = clock.now()
        self._budget = TensorBudget()
        self.folder: DumpFolder | None = None
        """The folder of the step which has begun."""
        self.has_records = False
        """True if the journal of that step has records."""
        self._delayed: list[RecordFrame | UpdateFrame] = []
        """The records, and what came after them, that wait for statistics."""
        self._quick = None if RecordWriter is None else RecordWriter(self._write, self._pending)
        """Writes records as `_write` does, and calls that for those that wait, or come first or with a new stack."""
        self._has_opened = False
        """True if a folder was opened already."""
        self._steps: list[int] = []
        self._ended: list[tuple[str, bool]] = []
        """The folder of each step that has ended, and whether it was new."""
        self._losses: dict[int, str] = {}
        self._is_recoverable = False
        self._unwritable = ""
        """The reason why the folder of the last step could not be written."""
        self._unmade: tuple[int, str] | None = None
        """The step whose files could not be made last, and why."""
        self._configure(host.config())
        if self._config.async_dump and self._saves_all and not is_quiet:
            most = self._config.async_dump_max_mib
            log.warning(f"async_dump keeps up to {most} MiB of tensors (async_dump_max_mib) until stop or step.")

    def _configure(self, config: Config) -> None:
        self._config = config
        self._budget.allow(config.max_gib)
        self._with_tree = config.level in ("L0", "mix")
        self._with_values = config.task != "structure"
        """True if calls have records; otherwise their place in the call tree is all that is written."""
        self._with_stacks = config.extra_info
        self._saves_all = config.task == "tensor"
        self._saves_some = config.tensor_list if config.task == "statistics" else ()
        self._saves_tensors = bool(self._saves_all or self._saves_some)
        self._filtered = bool(config.names or config.scope)
        self._differences = 0
        """The calls that differ from those of ``bench_path`` so far."""
        self._reference = _reference(config)
        self._live = self._live_comparison(config)
        if self._live is not None and not self._saves_tensors:
            self._budget.estimate_nothing()

    def _live_comparison(self, config: Config) -> LiveComparison | None:
        if not config.against or self._host.make_judge is None:
            return None
        # Imported for a program that names a golden run.
        from probe.collect.sinks.journal.golden_run import GoldenRun
        from probe.collect.sinks.journal.live_comparison import LiveComparison

        golden = GoldenRun(config.against, "against", by_checksum=False)
        stops = config.stop_at is not None
        return LiveComparison(golden, self._host, self._host.make_judge(), stops, self._write_again)

    def _record(self) -> Callable[[ActiveCall, int | None], None]:
        """The function that receives records: chosen once for a step, and not for each record."""
        if not self._with_values:
            return self._write_node
        if self._saves_tensors and (self._filtered or self._reference is not None):
            return self._write_held
        return self._write if self._quick is None else self._quick

    def needs(self) -> Needs:
        config = self._host.config()
        if config is not self._config:
            self._configure(config)
        live = self._live
        # Task tensor writes the tensors of all calls.
        holds = live is not None and not live.is_over and not self._saves_all
        has_updates = config.sketch and config.task in ("statistics", "tensor") and config.level != "debug"
        return Needs(
            record=self._record(),
            tree=True,
            statistics=self._with_values,
            gradients=True,
            stacks=config.extra_info,
            saver_of=self._saver_of if self._saves_tensors else None,
            random_states=self._saves_all,
            update=self._update if has_updates else None,
            enter=live.enter if holds and live is not None else None,
            leave=live.leave if holds and live is not None else None,
            backward=live.backward if holds and live is not None else None,
        )

    # --- the life of a step

    def begin_step(self, step: Step) -> bool:
        """Make the folder of this step and rank; false if it cannot be written, which costs this step only."""
        self.end_step()  # that failed, if it is needed here
        self._step = step
        try:
            folder = self.new_folder(step)
        except (OSError, FileCheckException) as error:
            # Not what the system did, but a path that is wrong from the beginning.
            is_wrong = isinstance(error, FileCheckException) and error.__cause__ is None and not self._has_opened
            if is_wrong or self._is_quiet:
                raise
            self._log_unwritable(error)
            return False
        self._unwritable = ""
        is_first, self._has_opened = not self._has_opened, True
        self._steps.append(step.number)
        try:
            self._begin_in(folder, step)
        except BaseException as error:
            if isinstance(error, Exception):
                folder.log_error(f"the beginning of step {step.number}", error)
            folder.close()
            if isinstance(error, Exception):
                return False
            raise
        if is_first and not step.rank and not self._is_quiet:
            self._log_earlier_run(folder)
        return True

    def new_folder(self, step: Step) -> DumpFolder:
        """The folder of a step, without a record.

        Raises:
            FileCheckException: it cannot be created, or is a link.
            OSError: so the system says.
        """
        framework = self._host.adapter.framework
        return DumpFolder(self._config, step.number, step.process, framework, self._may_save_tensors)

    @property
    def _may_save_tensors(self) -> bool:
        return self._saves_tensors or (self._live is not None and not self._live.is_over)

    def _begin_in(self, folder: DumpFolder, step: Step) -> None:
        self._stop_quick()
        self._delayed, self.has_records = [], False
        self._stacks, self._journal = step.stacks, folder.journal
        if self._reference is not None:
            self._reference.begin_step(step.number, folder)
        self._has_writer = self._may_save_tensors
        if self._has_writer:
            most_copied = self._config.async_dump_max_mib << 20 if self._config.async_dump else None
            self._tensor_writer = TensorWriter(folder, self._tensors, most_copied, self._budget)
            self._budget.begin_step(folder)
        self._most_delayed = _DELAYED
        if self._live is not None and not self._live.is_over:
            self._live.begin_step(step.number, folder, self._tensor_writer)
            self._most_delayed = _DELAYED_LIVE
        self.folder = folder

    def start(self, models: Any) -> None:
        if self.folder is not None:
            self._take_rank(self.folder)
            target = os.path.abspath(self.folder.path)
            log.info(f"Collection of step {self._step.number} starts; the data goes to {target}.")

    def _take_rank(self, folder: DumpFolder) -> None:
        if os.path.basename(folder.path) != self._step.process:
            folder.rename(self._step.process)

    def flush(self) -> None:
        folder = self.folder
        if folder is None:
            return
        try:
            self._take_rank(folder)
            self._resolve()
            if self._has_writer:
                self._tensor_writer.write_waiting()
            if folder.write_files() and not self._is_quiet:
                log.info(f"{os.path.basename(folder.record_file)} is at {folder.record_file}.")
        except Exception as error:
            self._log_unwritten(folder, error)

    def end_step(self) -> None:
        if self.folder is not None:
            self._note_loss(self.folder)
            self._ended.append((self.folder.path, self.folder.is_new))
            self._close()
            if self._live is not None:
                self._live.end_step()
        self._close()

    def after_step(self, ended: EndedStep) -> None:
        if ended.ends_program and self._live is not None:
            self._live.end_program()

    def _close(self) -> None:
        """Write no more; what still waits for its statistics is forgotten."""
        folder, self.folder = self.folder, None
        self._delayed = []
        if folder is None:
            return
        actions = [self._stop_quick, folder.close]
        if self._reference is not None:
            actions.insert(0, partial(self._reference.log_other_inputs, folder.relative))
        if self._has_writer:
            actions.append(self._budget.end_step)
        # Only this folder's log can have what fails now, and each has to be done.
        for action in actions:
            try:
                action()
            except Exception as error:
                folder.log_error("the end of the step", error)

    def discard(self, what: Discarded) -> None:
        folder = self.folder
        if self._live is not None:
            self._live.forget(what is not Discarded.STEP)
        if what.is_fork:
            self._stop_quick()
            self.folder, self._delayed = None, []
            if folder is not None:
                # The files are the parent's, whose alone the lock on the journal is.
                folder.journal.close()
            return
        # What is in memory belongs to the folder until it is closed.
        self._close()
        if folder is not None:
            remove(folder.path, folder.is_new)
            self._steps.remove(self._step.number)
        if what is Discarded.ALL_STEPS:
            for path, is_new in self._ended:
                remove(path, is_new)
            self._ended, self._steps, self._losses, self._is_recoverable = [], [], {}, False

    # --- records

    def _write(self, call: ActiveCall, rule: int | None) -> None:
        if rule is None:
            self._write_node(call, rule)
            return
        stack = call.stack if self._with_stacks else -1
        # All that follow a record which has to wait do so as well: the journal keeps their order.
        if self._delayed or self._pending():
            self._stop_quick()
            self._delayed.append((call.name, call.begun, stack, call.parent, call.order, rule, call.fields))
            if len(self._delayed) >= self._most_delayed:
                self._resolve()
            return
        journal = self._journal
        if stack >= 0 and stack not in journal.stacks:
            journal.stack(stack, self._stacks)
        journal.record(call.name, call.begun, stack, call.parent, call.order, rule, call.fields)
        self.has_records = True
        if self._live is not None:
            self._live.take((call.name, call.begun, stack, call.parent, call.order, rule, call.fields))
        elif self._quick is not None:
            # From now on, as long as nothing waits, records of known stacks go there without coming here.
            self._quick.write_to(journal.frame_writer, journal.stacks, self._with_stacks)

    def _stop_quick(self) -> None:
        if self._quick is not None:
            self._quick.stop()

    def _write_held(self, call: ActiveCall, rule: int | None) -> None:
        """Write the record of a call whose tensors may wait until it is known whether they are wanted."""
        if call.held and self._reference is None and rule is not None:
            # The tensors of a backward of which it was not known until its end whether it is wanted.
            self._tensor_writer.write_held(call.held)
            call.held = None
        self._write(call, rule)
        if self._reference is not None and rule is not None:
            self._compare(self._reference, call)

    def _write_node(self, call: ActiveCall, rule: int | None) -> None:
        stack = call.stack if self._with_stacks else -1
        if self.folder is not None and (self._with_tree or stack >= 0):
            self._journal.stack(stack, self._stacks)
            self._journal.node(call.name, call.begun, stack, call.parent)

    def _update(self, update: UpdateFrame) -> None:
        if self._delayed or self._tensors.pending():
            self._stop_quick()
            self._delayed.append(update)
        elif self.folder is not None:
            self._journal.update(update.content())

    def _resolve(self) -> None:
        """Fetch the statistics that are still on a device, and write the records that needed them."""
        delayed, self._delayed = self._delayed, []
        if self._has_writer:
            # Before the records that name their files.
            self._tensor_writer.fetch()
        try:
            if self._tensors.pending():
                self._tensors.resolve()
        except Exception as error:
            self._host.failed("what waited for its statistics", error)
        for frame in delayed:
            try:
                if isinstance(frame, UpdateFrame):
                    self._journal.update(frame.content())
                else:
                    self._append(*frame)
            except Exception as error:
                self._host.failed(frame[0], error)

    def _append(
        self, name: str, begun: int, stack: int, parent: str | None, order: int, rule: int, fields: Any
    ) -> None:
        self._journal.stack(stack, self._stacks)
        self._journal.record(name, begun, stack, parent, order, rule, fields)
        self.has_records = True
        if self._live is not None:
            self._live.take((name, begun, stack, parent, order, rule, fields))

    def _write_again(self, frame: RecordFrame) -> None:
        """Put a record in the place of the one of its name."""
        self._journal.record(*frame)

    # --- tensors

    def _saver_of(self, call: ActiveCall | None) -> SaveTensor | None:
        if self.folder is None or self._budget.stopped:
            return None
        if call is None:
            return self._tensor_writer.saving() if self._saves_all else None
        if not self._saves_all and not any(text in call.name for text in self._saves_some):
            return None
        is_undecided = call.opened is not None and self._filtered
        if self._reference is None and not is_undecided:
            return self._tensor_writer.saving()
        if call.held is None:
            call.held = []
        return self._tensor_writer.saving(call.held)

    def _compare(self, reference: GoldenRun, call: ActiveCall) -> None:
        """Write the tensors of a forward whose results differ from those of the reference run."""
        # A backward has an ``output`` as well; msProbe compares none.
        if call.wanted and naming.is_forward(call.name) and "output" in call.fields:
            # The tensors of a call are kept no longer than it lasts, and so a device is read for each call.
            self._resolve()
            differing = reference.differing(call.name, call.fields)
            if differing is not None and all(differing.are_returned):
                self._tensor_writer.write_held(call.held or [])
                self._differences += 1
                if self._differences == self._config.diff_nums:
                    self._host.end_collection()
        call.held = None

    # --- what is missing

    def status(self) -> Status:
        folder = self.folder
        if folder is not None:
            self._note_loss(folder)
        # A call tree has no records; where some could not be written, that was logged.
        has_records = folder is None or not self._with_values or self.has_records or folder.failed
        return Status(
            self._steps,
            losses=self._losses,
            is_recoverable=self._is_recoverable,
            has_records=has_records,
            has_tensors=not self._saves_tensors or self._budget.saved_in_step,
        )

    def failed(self, name: str, error: BaseException) -> bool:
        if self.folder is None:
            return False
        self.folder.log_error(name, error)
        return True

    def _note_loss(self, folder: DumpFolder) -> None:
        if folder.loss:
            self._losses[self._step.number] = folder.loss
            self._is_recoverable |= folder.is_recoverable

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
        number = self._step.number
        self._losses[number] = f"the folder could not be made ({reason(error)})"
        # Once, and not at each of ten thousand steps, while the reason is the same.
        kind = type(error).__name__ if not isinstance(error, OSError) else str(error.errno)
        if kind != self._unwritable:
            self._unwritable = kind
            text = f"step {number} is not collected: its folder cannot be written ({error})."
            log.error(f"{text} Later steps are not collected either while this lasts; the training goes on.")

    def _log_unwritten(self, folder: DumpFolder, error: Exception) -> None:
        """The training goes on; what is in the journal can still be recovered."""
        number = self._step.number
        folder.log_error(f"the files of step {number}", error, report=False)
        # After `stop` has reported it, `step` need not do so again.
        reported, self._unmade = self._unmade, (number, getattr(error, "strerror", None) or str(error))
        if reported == self._unmade:
            return
        log.error(
            f"the files of step {number} cannot be written ({error}); the training goes on. If {folder.path} still "
            "holds its journal, `msprobe recover` makes them from it."
        )


def _reference(config: Config) -> GoldenRun | None:
    """The run that the configuration names; what reads it is imported for a program that names one."""
    if not config.bench_path:
        return None
    from probe.collect.sinks.journal.golden_run import GoldenRun

    return GoldenRun(config.bench_path, "bench_path", by_checksum=True)
