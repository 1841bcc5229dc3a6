"""Decides at the end of each step, together with the other ranks, whether the step is written."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from probe.backends.protocol import FrameworkAdapter, KeptStep
from probe.collect.sinks.journal.dump_folder import DumpFolder
from probe.collect.sinks.ring.norm_history import NormHistory
from probe.collect.sinks.ring.scaled_steps import ScaledSteps
from probe.collect.sinks.ring.step_replay import replay
from probe.collect.sinks.ring.step_ring import StepRing
from probe.common import log
from probe.common.config.config import Config
from probe.common.dump.layout import process_folder
from probe.common.interfaces import Handle

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


class OverflowWatch:
    """Serves one session whose task is ``overflow_check``.

    Args:
        config: The settings; later changes of the file do not change when ranks ask each other.
        adapter: The framework.
        failed: Called with a text and the error when something in here fails.
        written: Called with the number of each step that gets a folder.
        lost: Called with a step that should have been written, what is missing, and why.
        ended: Called when as many steps were written as the configuration allows.
    """

    def __init__(
        self,
        config: Config,
        adapter: FrameworkAdapter,
        failed: Callable[[Any, BaseException], None],
        written: Callable[[int], None],
        lost: Callable[[int, str, BaseException], None],
        ended: Callable[[], None],
    ) -> None:
        self._config = config
        self._adapter = adapter
        self._failed = failed
        self._written = written
        self._lost = lost
        self._ended = ended
        self._waiting: list[_Ended] = []
        self._left = config.overflow_nums
        self._asks_ranks = True
        self._norms = NormHistory()
        self._scaled = ScaledSteps(config)
        self._scalers: Handle | None = None
        if adapter.training is not None:
            attach = adapter.training.attach_scalers
            self._scalers = self._attempt("the gradient scaler", attach, self._scaled.note)

    @property
    def is_over(self) -> bool:
        """True if as many steps were written as the configuration allows."""
        return self._left == 0

    # --- the end of a step

    def end_step(
        self, step: int, rank: int | None, ring: StepRing | None, loss: Any, grad_norm: Any, kept: KeptStep | None
    ) -> None:
        """Step number `step` is over; `ring` has its records, if it was watched, and `kept` runs it again.

        Every rank comes here at every step, watched or not, since they answer each other.
        """
        if self.is_over or (self._config.step and step not in self._config.step):
            self._scaled.forget()
            if kept is not None:
                kept.forget()
            return
        ended = _Ended(step, ring, kept=kept)
        self._attempt("the loss and the gradient norm", self._note_numbers, ended, loss, grad_norm)
        ended.skips_expected = bool(self._attempt("the gradient scaler", self._scaled.skips_expected))
        self._waiting.append(ended)
        if len(self._waiting) == self._config.every:
            self._decide(rank, alone=False)

    def finish(self, step: int, rank: int | None, ring: StepRing | None) -> None:
        """The program ends, perhaps in the middle of step number `step`: other ranks are not waited for any more."""
        if not self.is_over:
            if ring is not None:
                self._waiting.append(_Ended(step, ring))
            self._decide(rank, alone=True)
        self._attempt("the gradient scaler", self._leave_scalers)

    def forget(self, for_good: bool) -> None:
        """The steps belong to the process that this one was forked from; `for_good` if it watches none of its own."""
        for each in self._waiting:
            each.forget()
        self._waiting = []
        self._scaled.forget()
        self._scaled.skipped = 0
        if for_good:
            self._left = 0
            self._attempt("the gradient scaler", self._leave_scalers)

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
            self._failed(about, error)
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

    # --- the decision

    def _decide(self, rank: int | None, alone: bool) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            self._decide_on(waiting, rank, alone)
        finally:
            for each in waiting:
                self._attempt(f"step {each.step}", each.forget)
        if self.is_over:
            self._attempt("the gradient scaler", self._leave_scalers)
            self._ended()

    def _decide_on(self, waiting: list[_Ended], rank: int | None, alone: bool) -> None:
        flags = [self._attempt(f"step {each.step}", self._flag, each) or _NOTHING for each in waiting]
        if not alone:
            flags = self._over_ranks(flags)
        for each, flag in zip(waiting, flags):
            if flag != _NOTHING and not self.is_over:
                self._left -= self._left > 0
                self._report(each)
                if each.ring is not None and (not self._config.rank or rank in self._config.rank):
                    self._attempt(f"step {each.step}", self._write, each.ring, rank)
                    # At the program's end its model, and the other ranks, may be gone.
                    if each.kept is not None and not alone:
                        replay(self._config, self._adapter, each.kept, each.ring, rank)

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
        training = self._adapter.training
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
            folder = DumpFolder(config, ring.step, process_folder(rank), self._adapter.framework, False)
        except Exception as error:
            self._lost(ring.step, "it has a value that is not finite, and its folder could not be made", error)
            raise
        self._written(ring.step)
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
            f"`msprobe overflow_check -i {folder.step_path}` finds the first one of all ranks."
        )


def _number(value: Any) -> float:
    """A number, or the only one of a tensor."""
    return float(value.detach() if hasattr(value, "detach") else value)
