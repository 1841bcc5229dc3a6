"""The watch for values that are not finite: a step stays in memory, and is written if one of its records has some."""

from __future__ import annotations

import os
from typing import Any

from probe.backends.protocol import ReplayError, StepKeeper
from probe.collect.active_calls import ActiveCall
from probe.collect.sinks.losses import Losses
from probe.collect.sinks.ring.judgement import Frame
from probe.collect.sinks.ring.overflow_watch import OverflowWatch
from probe.collect.sinks.ring.step_ring import StepRing
from probe.collect.sinks.sink import EndedStep, Host, Needs, Sink, Step
from probe.common import log
from probe.common.config.config import Config
from probe.common.interfaces import Handle


class RingSink(Sink):
    """Keeps the records of each step until all ranks have decided whether it is written.

    Args:
        config: The settings, which stay as they are: the ranks answer each other at steps on which they agreed.
        host: The session.
    """

    is_selective = True

    def __init__(self, config: Config, host: Host) -> None:
        self._config = config
        self._host = host
        self._losses = Losses()
        self.steps: list[int] = []
        self._ring: StepRing | None = None
        """The records of the step that has begun, until it is decided on."""
        self._is_open = False
        self._start_logged = False
        self._watch = OverflowWatch(
            config, host.adapter, host.failed, self.steps.append, self._losses.add, host.end_collection
        )
        self._keeper = self._new_keeper()

    def _new_keeper(self) -> StepKeeper | None:
        """The object that keeps the steps that ``replay_step`` runs again."""
        config, adapter = self._config, self._host.adapter
        if not config.replay_step:
            return None
        replaying = adapter.replaying
        if replaying is None:
            log.warning(
                f'"replay_step" has no effect with {adapter.framework}: gradients come from a transformation of the '
                "whole step there, and the backward of a call cannot be run again by itself."
            )
            return None
        return replaying(config.keep == "batch+params", self._host.numbers, self._host.failed)

    def needs(self) -> Needs:
        return Needs(
            records=True,
            statistics=True,
            gradients=True,
            stacks=self._config.extra_info,
            nonfinite=True,
            step_numbers=True,
        )

    # --- the life of a step

    def begin_step(self, step: Step) -> bool:
        most = max(self._config.records_kept // self._config.every, 1)
        self._ring = StepRing(step.number, most, self._host.adapter.tensors, step.suspects, step.stacks, step.rank or 0)
        self._is_open = True
        return True

    def log_start(self) -> None:
        if not self._start_logged:
            self._start_logged = True
            target = os.path.abspath(self._config.dump_path)
            log.info(f"Watching for values that are not finite; a step that has some is written to {target}.")

    def attach(self, models: Any) -> Handle | None:
        if self._keeper is None or models is None:
            return None
        try:
            return self._keeper.attach(models)
        except ReplayError as error:
            log.warning(f'"replay_step" has no effect here: {error}.', once="no-replay")
            return None

    def has_records(self) -> bool:
        return self._ring is None or self._ring.has_records()

    def discard(self) -> None:
        self._ring, self._is_open = None, False

    def end_step(self) -> None:
        self._is_open = False

    def after_step(self, ended: EndedStep) -> None:
        ring, self._ring, self._is_open = self._ring, None, False
        kept = self._keeper.take() if self._keeper is not None else None
        self._watch.end_step(ended.number, self._rank(), ring, ended.loss, ended.gradient_norm, kept)

    def finish(self, ended: EndedStep) -> None:
        ring, self._ring, self._is_open = self._ring, None, False
        try:
            self._watch.finish(ended.number, self._rank(), ring)
        finally:
            if self._keeper is not None:
                self._keeper.forget()

    def forked(self, for_good: bool) -> None:
        self._ring, self._is_open = None, False
        self._watch.forget(for_good)
        if self._keeper is not None:
            self._keeper.forget()

    def _rank(self) -> int | None:
        """The rank of this process; a failure must not keep the ranks from answering each other."""
        try:
            return self._host.rank()
        except Exception as error:
            self._host.failed("the rank", error)
            return None

    # --- records

    def record(self, call: ActiveCall, rule: int) -> None:
        if self._ring is not None:
            self._ring.add(self._frame(call, rule, call.fields))

    def node(self, call: ActiveCall) -> None:
        if self._ring is not None:
            self._ring.add(self._frame(call, None, None))

    def _frame(self, call: ActiveCall, rule: int | None, fields: Any) -> Frame:
        stack = call.stack if self._config.extra_info else -1
        return Frame(call.name, call.begun, stack, call.parent, call.order, rule, fields)

    # --- what has failed

    def failed(self, name: str, error: BaseException) -> bool:
        if not self._is_open:
            return False
        kind = f"{type(error).__name__}: {error}"
        log.warning(f"{name} could not be recorded completely ({kind}); the training goes on.", once=f"watch {kind}")
        return True

    @property
    def losses(self) -> dict[int, str]:
        return dict(self._losses.of_step)

    def log_losses(self) -> None:
        self._losses.log(self._config.dump_path)
