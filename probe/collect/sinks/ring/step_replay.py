"""Runs the forward and the backward of a step again, with the tensors around its first record."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

from probe.backends.protocol import FrameworkAdapter, KeptStep, ReplayError
from probe.collect.collector import Collector
from probe.collect.sinks.journal.sink import JournalSink
from probe.collect.sinks.ring.step_ring import FirstRecord, Frame, StepRing
from probe.collect.sinks.sink import Host
from probe.common import log
from probe.common.config.config import Config
from probe.common.dump import naming
from probe.common.dump.layout import process_folder
from probe.common.dump.reading.dump import read
from probe.common.interfaces import Handle
from probe.common.recursion_limit import RaisedRecursionLimit

FOLDER = "replay"
"""Below `dump_path`: the steps that were run again."""
_BEFORE, _AFTER = 8, 2
"""Records around the first one whose tensors are saved."""


def replay(config: Config, adapter: FrameworkAdapter, kept: KeptStep, ring: StepRing, rank: int | None) -> None:
    """Run step `kept` again, and say where its tensors are, or why there are none. Raises nothing."""
    found, again = ring.judgement.first, None
    try:
        if found is None:
            raise ReplayError("no record of this process has a value that is not finite")
        if kept.models is None:
            raise ReplayError("start was not given the model")
        # An adapter of its own: the one of the session goes on with what it knows.
        again = _Replay(config, type(adapter)(), kept, ring, found)
        again.run(rank)
    except ReplayError as error:
        log.warning(f"step {ring.step} is not run again: {error}.")
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        kind = f"{type(error).__name__}: {first_line}"
        so_far = f" The tensors so far are in {again.path}." if again is not None and again.path else ""
        log.warning(f"step {ring.step} could not be run again to its end ({kind}); the training goes on.{so_far}")


class _Replay:
    def __init__(
        self, config: Config, adapter: FrameworkAdapter, kept: KeptStep, ring: StepRing, found: FirstRecord
    ) -> None:
        self._adapter = adapter
        self._kept = kept
        self._step = ring.step
        self._found = found
        self._keep = config.keep
        self._config = dataclasses.replace(
            config, task="tensor", dump_path=os.path.join(config.dump_path, FOLDER), scope=(), data_mode=frozenset(),
            names=names_around(found, ring.frames), async_dump=False, dump_enable=None,
            risk_level=config.risk_level or "ALL",
        )  # fmt: skip
        self._collector = Collector(self._config, adapter)
        host = Host(
            adapter, lambda: self._config, self._collector.failed, adapter.rank, _never_ends,
            self._collector.numbers,
        )  # fmt: skip
        self._sink = JournalSink(host, is_quiet=True)
        self.path = ""
        """The folder, once it is made."""

    def run(self, rank: int | None) -> None:
        with self._kept.undone():
            if not self._collector.begin_step(self._step, rank, process_folder(rank), [self._sink]):
                raise ReplayError("its folder cannot be made")
            folder = self._sink.folder
            assert folder is not None
            self.path = folder.path
            try:
                self._run_observed()
            except Exception as error:
                # The folder does not have a complete step.
                folder.log_error("the step that is run again", error, report=False)
                raise
            finally:
                self._collector.leave_step()
                self._sink.end_step()
        if not self._sink.has_records:
            raise ReplayError(f"run again, its model has none of the records around {self._found.name}")
        self._say_where(folder.path)

    def _run_observed(self) -> None:
        handles: list[Handle] = []
        try:
            self._attach(handles)
            self._collector.collecting = True
            self._kept.run_again(self._begin_call)
        finally:
            self._collector.collecting = False
            self._adapter.hooks.finish_backward()
            self._collector.leave_all()
            self._sink.flush()
            self._adapter.hooks.end_step()
            for handle in reversed(handles):
                handle.remove()

    def _attach(self, handles: list[Handle]) -> None:
        hooks, collector, models = self._adapter.hooks, self._collector, self._kept.models
        handles.append(RaisedRecursionLimit())
        if self._config.level in ("L0", "mix"):
            modules = hooks.attach_modules(models, collector)
            handles += [modules.gradients, modules.forward]
        if self._config.level in ("L1", "mix"):
            handles.append(hooks.attach_apis(models, collector, self._config.risk_level == "ALL"))

    def _begin_call(self, numbers: Mapping[str, int]) -> None:
        # The loss function, or the calls before the model, have had numbers too, and are not run again.
        self._collector.number_from(numbers)

    def _say_where(self, folder: str) -> None:
        batch = self._keep == "batch"
        parameters = "the parameters that it has now" if batch else "the parameters that it had"
        name = self._found.name
        itself = "" if name in read(folder) else f"; {name} itself is not run again"
        left_out = f" {self._kept.left_out} later calls of the model were not kept." if self._kept.left_out else ""
        log.info(
            f"step {self._step} was run again, forward and backward of the model, with {parameters}: the tensors "
            f"around {name} are in {folder}{itself}.{left_out}"
        )


def names_around(found: FirstRecord, frames: Sequence[Frame]) -> tuple[str, ...]:
    """The first record, the same call's other direction, the module around, and the records next to it."""
    names: dict[str, None] = dict.fromkeys([found.name, *_other_direction(found.name)])
    at = next((at for at, frame in enumerate(frames) if frame.name == found.name), None)
    if at is not None:
        parent = frames[at].parent
        if parent:
            names[parent] = None
        records = [frame.name for frame in frames[max(at - _BEFORE, 0) : at + _AFTER + 1] if frame.rule is not None]
        names.update(dict.fromkeys(records))
    return tuple(names)


def _other_direction(name: str) -> list[str]:
    parsed = naming.parse(name)
    if parsed is None or not parsed.direction:
        return []
    direction = naming.FORWARD if parsed.direction == naming.BACKWARD else naming.BACKWARD
    return [naming.record_name(parsed._replace(direction=direction))]


def _never_ends() -> None:
    """Differences to another run are not looked for."""
