"""Writes what it receives of a step into the folder of that step."""

from __future__ import annotations

from probe.collect.active_calls import ActiveCall
from probe.collect.describing.values import SaveTensor
from probe.collect.sinks.journal.dump_folder import DumpFolder
from probe.collect.sinks.journal.record_writer import RecordWriter
from probe.collect.sinks.journal.tensor_budget import TensorBudget
from probe.collect.sinks.sink import Host, Needs, Sink, Step
from probe.common.config.config import Config
from probe.common.dump.update_file import UpdateFrame


class RecordSink(Sink):
    """Records, their stacks and the call tree go into the journal of a folder, tensors into files beside it.

    Args:
        config: The settings.
        host: What runs the sink.
    """

    def __init__(self, config: Config, host: Host) -> None:
        self._host = host
        self._budget = TensorBudget()
        self.folder: DumpFolder | None = None
        """The folder of the step which has begun."""
        self.configure(config)

    def configure(self, config: Config) -> None:
        self._config = config
        self._budget.allow(config.max_gib)
        self._writer = RecordWriter(config, self._host, self._budget)
        # A call less for each record.
        self.record = self._writer.write  # type: ignore[method-assign]

    def needs(self) -> Needs:
        config = self._config
        return Needs(
            records=True,
            statistics=self._writer.with_values,
            gradients=True,
            stacks=config.extra_info,
            tensors=self._writer.saves_tensors,
            random_states=config.task == "tensor",
            updates=config.sketch and config.task in ("statistics", "tensor") and config.level != "debug",
        )

    # --- the life of a step

    def begin_step(self, step: Step) -> bool:
        """Make the folder.

        Raises:
            FileCheckException: it cannot be created, or is a link.
            OSError: so the system says.
        """
        folder = self.new_folder(step)
        try:
            self.begin_in(folder, step)
        except BaseException as error:
            self.give_up(folder, step, error)
            raise
        return True

    def new_folder(self, step: Step) -> DumpFolder:
        """The folder of a step, without a record; for errors see `begin_step`."""
        framework = self._host.adapter.framework
        return DumpFolder(self._config, step.number, step.process, framework, self._writer.saves_tensors)

    def begin_in(self, folder: DumpFolder, step: Step) -> None:
        """Write into `folder` from now on."""
        self._writer.begin_step(folder, step.stacks)
        self._budget.begin_step(folder)
        self.folder = folder

    def give_up(self, folder: DumpFolder, step: Step, error: BaseException) -> None:
        """Close the folder of a step that could not begin."""
        if isinstance(error, Exception):
            folder.log_error(f"the beginning of step {step.number}", error)
        folder.close()

    def flush(self) -> None:
        self._writer.flush()

    def has_records(self) -> bool:
        """True if any are in the files, or some could not be written; a call tree has none."""
        if self.folder is None or not self._writer.with_values:
            return True
        return self.folder.failed or self.folder.has_records()

    def has_tensors(self) -> bool:
        return self._budget.saved_in_step

    def end_step(self) -> None:
        folder, self.folder = self.folder, None
        if folder is None:
            self._writer.end_step()
            return
        # Only this folder's log can have what fails now, and each has to be done.
        for action in (self._writer.end_step, folder.close, self._budget.end_step):
            try:
                action()
            except Exception as error:
                folder.log_error("the end of the step", error)

    def forked(self, for_good: bool) -> None:
        folder, self.folder = self.folder, None
        self._writer.end_step()
        if folder is not None:
            folder.abandon()

    # --- what is received

    def node(self, call: ActiveCall) -> None:
        self._writer.write_node(call)

    def update(self, update: UpdateFrame) -> None:
        self._writer.write_update(update)

    def saver_of(self, call: ActiveCall | None) -> SaveTensor | None:
        return self._writer.saver if call is None else self._writer.saver_of(call)

    def returned(self, call: ActiveCall) -> None:
        self._writer.compare_with_reference(call)

    def decide(self, call: ActiveCall, wanted: bool) -> None:
        self._writer.decide(call, wanted)

    def failed(self, name: str, error: BaseException) -> bool:
        if self.folder is None:
            return False
        self.folder.log_error(name, error)
        return True
