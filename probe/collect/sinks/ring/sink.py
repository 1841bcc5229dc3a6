"""The watch for values that are not finite: a step stays in memory, and is written if one of its records has some.

At the end of each step, all ranks decide together whether it is written.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Callable, Optional

from probe.backends.protocol import KeptStep, ReplayError, ScaledUpdate, StepKeeper
from probe.collect.active_calls import ActiveCall
from probe.collect.sinks.journal.dump_folder import DumpFolder, reason
from probe.collect.sinks.ring.step_replay import replay
from probe.collect.sinks.ring.step_ring import Frame, StepRing
from probe.collect.sinks.sink import Discarded, EndedStep, Host, Needs, Sink, Status, Step
from probe.common import log
from probe.common.config.config import Config
from probe.common.dump.layout import process_folder
from probe.common.interfaces import Handle

_REMEMBERED = 64
"""Norms of gradients that are remembered; a guess."""
_NEEDED = 16
"""Norms that are needed before one is judged; a guess."""
_DEVIATION_OF_MEDIAN = 1.4826
"""The standard deviation of normally distributed values, as a multiple of their median absolute deviation."""
_LEAST_SPREAD = 0.01
"""The part of the median that the deviation is taken for at least: values that hardly differ have no outliers."""


class NormHistory:
    """The last values; a single large one changes neither their median nor their median deviation."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_REMEMBERED)

    def score(self, value: float) -> float | None:
        """By how many deviations `value` is above the median; ``None`` while too few values are known.

        `value` is one of those before the next one from then on.
        """
        score = self._score(value) if len(self._values) >= _NEEDED else None
        self._values.append(value)
        return score

    def _score(self, value: float) -> float:
        middle = median(self._values)
        deviation = _DEVIATION_OF_MEDIAN * median(abs(each - middle) for each in self._values)
        spread = max(deviation, _LEAST_SPREAD * abs(middle))
        if spread > 0:
            return (value - middle) / spread
        return float("inf") if value > middle else 0.0


# --- scaled steps


_MOST_UPDATES = 256
"""The largest number of optimizers that one step may have."""


class ScaledSteps:
    """Follows the gradient scalers of a training.

    Args:
        config: Says when skipped steps are too many.
    """

    def __init__(self, config: Config) -> None:
        self._least_scale = config.min_scale
        self._most_skips = config.max_skips
        self._updates: deque[ScaledUpdate] = deque(maxlen=_MOST_UPDATES)
        self._in_a_row = 0
        self.skipped = 0
        """Steps in all."""

    def note(self, update: ScaledUpdate) -> None:
        """A scaler has let an optimizer make its step, or has not."""
        self._updates.append(update)

    def forget(self) -> None:
        """The step that ends now is of no interest."""
        self._updates.clear()

    def skips_expected(self) -> bool:
        """True if the step that ends now is one that a scaler has skipped and may skip; asked once a step."""
        updates = list(self._updates)
        self._updates.clear()
        skipped = [update for update in updates if update.was_skipped()]
        if not skipped:
            self._in_a_row = 0 if updates else self._in_a_row
            return False
        self.skipped += 1
        self._in_a_row += 1
        return self._in_a_row < self._most_skips and all(update.scale() >= self._least_scale for update in skipped)


# --- sink


_NOTHING, _FOUND = 0, 1


@dataclass
class _Ended:
    """A step that is over and not decided on."""

    step: int
    ring: Optional[StepRing]  # noqa: UP045 (evaluated, on Python 3.9 too)
    triggers: list[str] = field(default_factory=list)
    """The reason why it is to be written, apart from its records and its norm."""
    norm: str = ""
    """The abnormal property of its gradient norm."""
    skips_expected: bool = False
    """True if a gradient scaler has skipped it, as it may."""
    kept: Optional[KeptStep] = None  # noqa: UP045
    """The state needed to run it again, if that is kept."""

    def forget(self) -> None:
        if self.kept is not None:
            self.kept.forget()


class RingSink(Sink):
    """Keeps the records of each step until all ranks have decided whether it is written.

    Args:
        config: The settings, which stay as they are: the ranks answer each other at steps on which they agreed.
        host: The session.
    """

    def __init__(self, config: Config, host: Host) -> None:
        self._config = config
        self._host = host
        self._losses: dict[int, str] = {}
        self._steps: list[int] = []
        self._ring: StepRing | None = None
        """The records of the step that has begun, until it is decided on."""
        self._is_open = False
        self._start_logged = False
        self._waiting: list[_Ended] = []
        """The steps that are over and not decided on."""
        self._left = config.overflow_nums
        """Steps that may still be written; 0 if as many were as the configuration allows."""
        self._asks_ranks = True
        self._norms = NormHistory()
        self._scaled = ScaledSteps(config)
        self._scalers: Handle | None = None
        if host.adapter.training is not None:
            attach = host.adapter.training.attach_scalers
            self._scalers = self._attempt("the gradient scaler", attach, self._scaled.note)
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
            record=self._record,
            tree=True,
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

    def start(self, models: Any) -> Handle | None:
        if not self._start_logged:
            self._start_logged = True
            target = os.path.abspath(self._config.dump_path)
            log.info(f"Watching for values that are not finite; a step that has some is written to {target}.")
        if self._keeper is None or models is None:
            return None
        try:
            return self._keeper.attach(models)
        except ReplayError as error:
            log.warning(f'"replay_step" has no effect here: {error}.', once="no-replay")
            return None

    def end_step(self) -> None:
        self._is_open = False

    def discard(self, what: Discarded) -> None:
        self._ring, self._is_open = None, False
        if not what.is_fork:
            return
        for each in self._waiting:
            each.forget()
        self._waiting = []
        self._scaled.forget()
        self._scaled.skipped = 0
        if what is Discarded.OF_PARENT_FOR_GOOD:
            self._left = 0
            self._attempt("the gradient scaler", self._leave_scalers)
        if self._keeper is not None:
            self._keeper.forget()

    def after_step(self, ended: EndedStep) -> None:
        """Every rank comes here at every step, watched or not, since they answer each other."""
        ring, self._ring, self._is_open = self._ring, None, False
        if ended.ends_program:
            self._end_program(ended.number, ring)
            return
        kept = self._keeper.take() if self._keeper is not None else None
        if self._left == 0 or (self._config.step and ended.number not in self._config.step):
            self._scaled.forget()
            if kept is not None:
                kept.forget()
            return
        step = _Ended(ended.number, ring, kept=kept)
        self._attempt("the loss and the gradient norm", self._note_numbers, step, ended.loss, ended.gradient_norm)
        step.skips_expected = bool(self._attempt("the gradient scaler", self._scaled.skips_expected))
        self._waiting.append(step)
        if len(self._waiting) == self._config.every:
            self._decide(alone=False)

    def _end_program(self, number: int, ring: StepRing | None) -> None:
        try:
            if self._left != 0:
                if ring is not None:
                    self._waiting.append(_Ended(number, ring))
                self._decide(alone=True)
            self._attempt("the gradient scaler", self._leave_scalers)
        finally:
            if self._keeper is not None:
                self._keeper.forget()

    def status(self) -> Status:
        has_records = self._ring is None or self._ring.has_records()
        return Status(self._steps, is_selective=True, losses=self._losses, has_records=has_records)

    def _lost(self, step: int, missing: str, error: BaseException) -> None:
        self._losses[step] = f"{missing} ({reason(error)})"

    # --- records

    def _record(self, call: ActiveCall, rule: int | None) -> None:
        if self._ring is not None:
            stack = call.stack if self._config.extra_info else -1
            fields = None if rule is None else call.fields
            self._ring.add(Frame(call.name, call.begun, stack, call.parent, call.order, rule, fields))

    # --- what has failed

    def failed(self, name: str, error: BaseException) -> bool:
        if not self._is_open:
            return False
        kind = f"{type(error).__name__}: {error}"
        log.warning(f"{name} could not be recorded completely ({kind}); the training goes on.", once=f"watch {kind}")
        return True

    # --- the decision

    def _leave_scalers(self) -> None:
        if self._scalers is None:
            return
        self._scalers.remove()
        self._scalers = None
        skipped = self._scaled.skipped
        if skipped:
            steps = "1 step" if skipped == 1 else f"{skipped} steps"
            log.info(f"The gradient scaler skipped {steps} for gradients that were not finite, which is expected.")

    def _attempt(self, about: str, action: Callable[..., Any], *args: Any) -> Any:
        """Do what must not keep the ranks from answering each other."""
        try:
            return action(*args)
        except Exception as error:
            self._host.failed(about, error)
            return None

    def _note_numbers(self, ended: _Ended, loss: Any, grad_norm: Any) -> None:
        if loss is not None and not math.isfinite(value := _number(loss)):
            ended.triggers.append(f"the loss is {value}")
        if grad_norm is None:
            return
        norm = _number(grad_norm)
        if not math.isfinite(norm):
            ended.norm = f"the gradient norm is {norm}"
            return
        score, limit = self._norms.score(norm), self._config.max_gradient_norm_score
        if score is not None and limit is not None and score > limit:
            ended.norm = f"the gradient norm {norm:.4g} is {score:.1f} deviations above the median of those before"

    def _decide(self, alone: bool) -> None:
        waiting, self._waiting = self._waiting, []
        rank = self._attempt("the rank", self._host.rank)
        try:
            self._decide_on(waiting, rank, alone)
        finally:
            for each in waiting:
                self._attempt(f"step {each.step}", each.forget)
        if self._left == 0:
            self._attempt("the gradient scaler", self._leave_scalers)
            self._host.end_collection()

    def _decide_on(self, waiting: list[_Ended], rank: int | None, alone: bool) -> None:
        flags = [self._attempt(f"step {each.step}", self._flag, each) or _NOTHING for each in waiting]
        if not alone:
            flags = self._over_ranks(flags)
        for each, flag in zip(waiting, flags):
            if flag != _NOTHING and self._left != 0:
                self._left -= self._left > 0
                self._report(each)
                if each.ring is not None and (not self._config.rank or rank in self._config.rank):
                    self._attempt(f"step {each.step}", self._write, each.ring, rank)
                    # At the program's end its model, and the other ranks, may be gone.
                    if each.kept is not None and not alone:
                        replay(self._config, self._host.adapter, each.kept, each.ring, rank)

    def _flag(self, ended: _Ended) -> int:
        ring = ended.ring
        if ring is not None:
            ring.end()
        if ended.skips_expected:
            # Values under the scaler's control: gradients, and their norm.
            ended.norm = ""
            if ring is not None:
                ring.judgement.leave_out_backward()
        found = bool(ended.triggers or ended.norm) or (ring is not None and ring.judgement.first is not None)
        return _FOUND if found else _NOTHING

    def _over_ranks(self, flags: list[int]) -> list[int]:
        """For each step the largest answer of any rank."""
        training = self._host.adapter.training
        if not self._asks_ranks or training is None:
            return flags
        try:
            return training.largest_over_ranks(flags)
        except Exception as error:
            self._asks_ranks = False
            text = "the ranks can no longer ask each other: each writes only its own findings"
            log.warning(f"{text} ({type(error).__name__}: {error}); the training goes on.")
            return flags

    def _report(self, ended: _Ended) -> None:
        found = ended.ring.judgement.first if ended.ring is not None else None
        reasons = [*ended.triggers, *filter(None, [ended.norm])]
        if found is not None:
            first = f"{found.name} is the first record of this process with a value that is not finite"
            reasons.insert(0, f"{first}, in its {found.where}")
        text = "; ".join(reasons) or "another rank has a finding, and this one has none"
        log.warning(f"step {ended.step}: {text}.")

    def _write(self, ring: StepRing, rank: int | None) -> None:
        # The written dump is a dump of statistics like any other.
        config = dataclasses.replace(self._config, task="statistics")
        try:
            folder = DumpFolder(config, ring.step, process_folder(rank), self._host.adapter.framework, False)
        except Exception as error:
            self._lost(ring.step, "it has a value that is not finite, and its folder could not be made", error)
            raise
        self._steps.append(ring.step)
        try:
            ring.write(folder)
        except Exception as error:
            folder.log_error(f"step {ring.step}", error, report=False)
            self._lost(ring.step, "it has a value that is not finite, and its records are not written", error)
            log.error(f"Its records cannot be written to {folder.path} ({type(error).__name__}: {error}).")
            return
        finally:
            folder.close()
        left_out = f' {ring.left_out} more records did not fit ("ring").' if ring.left_out else ""
        log.info(
            f"Its {len(ring.frames)} records are in {folder.path}.{left_out} "
            f"`msprobe overflow_check {folder.step_path}` finds the first one of all ranks."
        )


def _number(value: Any) -> float:
    """A number, or the only one of a tensor."""
    return float(value.detach() if hasattr(value, "detach") else value)
