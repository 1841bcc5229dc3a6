"""The steps of a collector: what holds for all of them, how each begins and ends, and what has failed in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable

from probe.backends.protocol import FrameworkAdapter
from probe.collect.active_calls import ActiveCall
from probe.collect.collected_step import CollectedStep
from probe.collect.describing.calls import CallDescriber
from probe.collect.sinks.group import SinkGroup
from probe.collect.sinks.sink import Sink, Step
from probe.common import log
from probe.common.callstack import CallStacks
from probe.common.config.config import Config
from probe.common.config.selection import RecordFilter, RecordPatterns
from probe.common.config.unmatched import Met, unmatched
from probe.common.dump.frameworks import of_dump
from probe.common.errors import failure_text

_MOST_STACKS = 200_000
"""Frames of distinct call stacks that are kept from one step to the next, some 60 MB."""


class StepLife:
    """Begins and ends the steps of a `Collector`, which adds the calls.

    Args:
        config: The validated configuration.
        adapter: The framework.
        sinks: What receives the calls.
    """

    def __init__(self, config: Config, adapter: FrameworkAdapter, sinks: Iterable[Sink] = ()) -> None:
        self.sinks = SinkGroup(sinks)
        self.collecting = False
        """True if calls are handed on now. Backward of calls that were handed on is, until the step ends."""
        self.apis_hidden = False
        """Set between `module_dump` and `module_dump_end`."""
        self.step: CollectedStep | None = None
        """The step that is collected."""
        self._hooks = adapter.hooks
        self._default_risk_level = of_dump(adapter.framework).risk_level
        self._stacks = CallStacks()
        self._state = CollectedStep({}, False, self._sink_failed)
        """The step that was collected last, `step` until that ends."""
        self._describer = CallDescriber(adapter, self.failed)
        self._configure(config)

    # --- the life of a step

    def configure(self, config: Config) -> None:
        """Use other settings from now on; only between steps."""
        self._configure(config)
        self.sinks.configure(config)

    def _configure(self, config: Config) -> None:
        self._config = config
        self._with_tree = config.level in ("L0", "mix")
        patterns = RecordPatterns.of(config.module, config.api)
        self._selection = RecordFilter(config.names, config.scope, config.data_mode, config.level == "mix", patterns)
        self.takes_everything = config.takes_every_function
        """True if calls are taken of every function that makes or changes a number, in the list or not."""
        self._risk_level = "ALL" if self.takes_everything else config.risk_level or self._default_risk_level
        self._by_risk = bool(not config.names and not config.scope and config.api is None and self._risk_level != "ALL")
        self._describer.configure(config)

    def begin_step(self, number: int, rank: int | None, process: str) -> bool:
        """Collect from now on, with all counters at zero. False if no sink can take this step.

        Args:
            number: Of the step.
            rank: ``None`` in a program without ranks.
            process: The name of this process's folder, such as ``rank0``.

        Raises:
            MsprobeException: a setting of a sink is wrong.
        """
        if len(self._stacks) > _MOST_STACKS:
            self._stacks = CallStacks()
        self._selection.reset()
        self.apis_hidden = False
        needs = self.sinks.needs()
        state = CollectedStep(needs, self._with_tree, self._sink_failed)
        # Communication is not seen at level L0.
        suspects = self._describer.begin_step(state, self._config.level != "L0" or rank is None)
        opened = self.sinks.begin_step(Step(number, rank, process, self._stacks, suspects), needs)
        if len(opened) < len(needs):
            state.divide({sink: needs[sink] for sink in opened})
        self._state = state
        self.step = state if opened else None
        return bool(opened)

    def hold(self, models: Any) -> None:
        """The models of the step that has begun are these; ``None`` where the program gives none."""
        self._describer.hold(models)

    def numbers(self) -> dict[str, int]:
        """The number that the next call of each name gets."""
        return self._state.upcoming()

    def number_from(self, numbers: Mapping[str, int]) -> None:
        """Let further calls have the numbers that calls had when `numbers` was asked for."""
        self._state.number_from(numbers)

    def unmatched(self) -> list[str] | None:
        """The names in the configuration that this step did not have; the step is over and its files are written.

        Returns:
            A sentence for each; ``None`` if no call was seen, of which nothing can be said.
        """
        calls = {base: number for base, number in self.numbers().items() if number}
        if not calls or self.step is None:
            return None
        selection, sinks = self._selection, self.sinks
        met = Met(calls, selection.first_met, selection.last_met, sinks.has_records(), sinks.has_tensors())
        return unmatched(self._config, met)

    def end_step(self) -> None:
        """Take no more, late gradients included, for this step; call `flush` of the sinks before."""
        self._leave_step()
        self.sinks.end_step()

    def discard(self) -> None:
        """Forget the step that has begun; the sinks leave nothing of it."""
        self._leave_step()
        self.sinks.discard()

    def forked(self, for_good: bool) -> None:
        """The step that has begun belongs to the process that this one was forked from; see `Sink.forked`."""
        self._leave_step()
        self.sinks.forked(for_good)

    def _leave_step(self) -> None:
        if self.step is not None:
            self.step = None
            self.collecting = False
        self._describer.end_step()

    # --- failures

    def failed(self, about: Any, error: BaseException) -> None:
        """Log a failure of the tool itself, once per place, with the name of the record it happened at."""
        if isinstance(about, ActiveCall) and about.api is not None:
            # The end of the call may have failed, and no later call would be recorded on this thread.
            self._state.thread.in_api = False
        name = _name_of(about)
        if not self.sinks.failed(name, error):
            # There is no folder whose log could have the place.
            log.warning(f"{name}: {failure_text(error)}; the training goes on.", once=f"failed {name}")

    def attempt(self, action: Callable[..., Any], *args: Any) -> Any:
        """Do one of several things of which each has to be done, also when another one fails."""
        try:
            return action(*args)
        except Exception as error:
            self.failed(getattr(action, "__qualname__", "the end of collection"), error)
            return None

    def _sink_failed(self, sink: Sink, about: Any, error: BaseException) -> None:
        self.sinks.note_failure(sink, _name_of(about), error)


def _name_of(about: Any) -> str:
    """The record at which something failed: a call, a module, or a text."""
    if isinstance(about, str):
        return about
    return str(getattr(about, "name", None) or getattr(about, "base", "a record"))
