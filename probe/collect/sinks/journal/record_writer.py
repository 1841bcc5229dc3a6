"""Writes the records of a step into its journal, once their statistics are there, and their tensors into files."""

from __future__ import annotations

from typing import Any, Optional

from probe.collect.active_calls import ActiveCall
from probe.collect.describing.values import SaveTensor
from probe.collect.sinks.journal.dump_folder import DumpFolder
from probe.collect.sinks.journal.reference_checksums import ReferenceChecksums
from probe.collect.sinks.journal.tensor_budget import TensorBudget
from probe.collect.sinks.journal.tensor_writer import TensorWriter
from probe.collect.sinks.sink import Host
from probe.common.callstack import CallStacks
from probe.common.config.config import Config
from probe.common.dump.update_file import UpdateFrame

_DELAYED = 256
"""Records that may wait for statistics on a device before they are fetched in one transfer."""

_RecordFrame = tuple[str, int, int, Optional[str], int, int, Any]
"""The arguments of `JournalWriter.record`."""


class RecordWriter:
    """Writes for one configuration, one step after the other.

    Args:
        config: The settings; they decide which tensors are saved.
        host: The session.
        budget: What the tensor files of the process may take.
    """

    def __init__(self, config: Config, host: Host, budget: TensorBudget) -> None:
        self._tensors = host.adapter.tensors
        self._host = host
        self._budget = budget
        self._with_tree = config.level in ("L0", "mix")
        self.with_values = config.task != "structure"
        """True if calls have records; otherwise their place in the call tree is all that is written."""
        self._with_stacks = config.extra_info
        self._saves_all = config.task == "tensor"
        self._saves_some = config.tensor_list if config.task == "statistics" else ()
        self.saves_tensors = bool(self._saves_all or self._saves_some)
        """True if tensors are saved in files."""
        self._filtered = bool(config.names or config.scope)
        self._most_copied = config.async_dump_max_mib << 20 if config.async_dump else None
        self._reference = ReferenceChecksums(config.bench_path, config.diff_nums) if config.bench_path else None
        self._folder: DumpFolder | None = None
        self._delayed: list[_RecordFrame | UpdateFrame] = []

    # --- a step

    def begin_step(self, folder: DumpFolder, stacks: CallStacks) -> None:
        """Write into `folder` from now on; the records refer to `stacks` by number."""
        self._delayed = []
        self._stacks = stacks
        self._tensor_writer = TensorWriter(folder, self._tensors, self._most_copied, self._budget)
        if self._reference is not None:
            self._reference.load(folder.relative)
        self._folder = folder

    def end_step(self) -> None:
        """Write no more; what still waits for its statistics is forgotten."""
        if self._reference is not None and self._folder is not None:
            self._reference.log_other_inputs(self._folder.relative)
        self._folder = None
        self._delayed = []

    def flush(self) -> bool:
        """Bring everything written so far into the files of the step; whether there was anything new."""
        if self._folder is None:
            return False
        self._resolve()
        self._tensor_writer.write_waiting()
        return self._folder.write_files()

    # --- records

    def write(self, call: ActiveCall, rule: int) -> None:
        """Write the record of `call`; `rule` says what happens to an earlier one of its name (`journal.REPLACE` …)."""
        if not self.with_values:
            self.write_node(call)  # another sink has asked for its values
            return
        stack = call.stack if self._with_stacks else -1
        frame = (call.name, call.begun, stack, call.parent, call.order, rule, call.fields)
        # All that follow a record which has to wait do so as well: the journal keeps their order.
        if self._delayed or self._tensors.pending():
            self._delayed.append(frame)
            if len(self._delayed) >= _DELAYED:
                self._resolve()
            return
        self._append(frame)

    def write_node(self, call: ActiveCall) -> None:
        """Write that `call` took place, which has no record."""
        stack = call.stack if self._with_stacks else -1
        if self._folder is not None and (self._with_tree or stack >= 0):
            self._folder.journal.stack(stack, self._stacks)
            self._folder.journal.node(call.name, call.begun, stack, call.parent)

    def write_update(self, update: UpdateFrame) -> None:
        """Write a step of an optimizer."""
        if self._delayed or self._tensors.pending():
            self._delayed.append(update)
        elif self._folder is not None:
            self._folder.journal.update(update.content())

    def _resolve(self) -> None:
        """Fetch the statistics that are still on a device, and write the records that needed them."""
        delayed, self._delayed = self._delayed, []
        try:
            if self._tensors.pending():
                self._tensors.resolve()
        except Exception as error:
            self._host.failed("what waited for its statistics", error)
        for frame in delayed:
            try:
                self._append(frame)
            except Exception as error:
                self._host.failed(frame[0], error)

    def _append(self, frame: _RecordFrame | UpdateFrame) -> None:
        assert self._folder is not None
        if isinstance(frame, UpdateFrame):
            self._folder.journal.update(frame.content())
            return
        self._folder.journal.stack(frame[2], self._stacks)
        self._folder.journal.record(*frame)

    # --- tensors

    def saver_of(self, call: ActiveCall) -> SaveTensor | None:
        """The function that saves the tensors of `call` in files; ``None`` if they are not wanted."""
        if self._folder is None or self._budget.stopped:
            return None
        if not self._saves_all and not any(text in call.name for text in self._saves_some):
            return None
        undecided = call.opened is not None and self._filtered
        if self._reference is None and not undecided:
            return self._tensor_writer.saving()
        if call.held is None:
            call.held = []
        return self._tensor_writer.saving(call.held)

    @property
    def saver(self) -> SaveTensor | None:
        """The function that saves the tensors of a value that belongs to no call; ``None`` if they are not wanted."""
        if self._folder is None or self._budget.stopped or not self._saves_all:
            return None
        return self._tensor_writer.saving()

    def decide(self, call: ActiveCall, wanted: bool) -> None:
        """`call`, a backward of which it was not known until its end whether it is `wanted`, has ended."""
        if wanted and self._reference is None and call.held:
            self._tensor_writer.write_held(call.held)
        call.held = None

    def compare_with_reference(self, call: ActiveCall) -> None:
        """Write the tensors of `call` if there is a reference run and it differs from that."""
        if self._reference is None:
            return
        if self._reference.differs(call.name, call.fields):
            self._tensor_writer.write_held(call.held or [])
            if self._reference.enough():
                self._host.end_collection()
        call.held = None
