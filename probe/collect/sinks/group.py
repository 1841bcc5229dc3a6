"""The sinks of a session together: each takes part in a step or not, and none hears of another one's failure."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from probe.collect.sinks.sink import EndedStep, Needs, Sink, Step
from probe.common import log
from probe.common.config.config import Config
from probe.common.errors import MsprobeException, failure_text
from probe.common.interfaces import Handle


class SinkGroup:
    """Any number of sinks.

    Args:
        sinks: Those that are there from the beginning.
    """

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self._sinks = list(sinks)
        self._opened: list[Sink] = []
        """Those in which a step has begun and not ended."""
        self._tried: set[Sink] = set()
        """Those that were asked to begin a step and did not refuse their settings."""
        self._step: Step | None = None
        """The step that has begun last."""
        self._has_failed = False
        """True if something has failed in that step."""
        self.are_all_empty = True
        """True as long as no step has ended of which a sink has records, or a reason to have none."""

    def __iter__(self) -> Iterator[Sink]:
        return iter(self._sinks)

    def add(self, sink: Sink) -> bool:
        """Hand further steps to `sink` too; false if it gets them already."""
        if any(sink is each for each in self._sinks):
            return False
        self._sinks.append(sink)
        return True

    def configure(self, config: Config) -> None:
        """Other settings hold from the next step on."""
        self._each(self._sinks, "configure", "the configuration", config)

    # --- a step

    def needs(self) -> dict[Sink, Needs]:
        """The needs of each sink for the step that is about to begin; a sink that cannot say them gets nothing."""
        found = {}
        for sink in self._sinks:
            try:
                found[sink] = _needs_of(sink)
            except Exception as error:
                self.note_failure(sink, "the beginning of the step", error)
        return found

    def total_needs(self) -> Needs:
        """The needs of all sinks together."""
        return functools.reduce(Needs.__or__, self.needs().values(), Needs())

    def begin_step(self, step: Step, sinks: Iterable[Sink]) -> list[Sink]:
        """Those of `sinks` that take the step.

        Raises:
            MsprobeException: a setting of a sink is wrong in its first step; then the step has begun in none of them.
        """
        self._step, self._has_failed = step, False
        for sink in sinks:
            try:
                # One that returns nothing takes the step.
                if sink.begin_step(step) is not False:
                    self._opened.append(sink)
            except Exception as error:
                if isinstance(error, MsprobeException) and sink not in self._tried:
                    self.discard()
                    raise
                self.note_failure(sink, f"the beginning of step {step.number}", error)
            self._tried.add(sink)
        return list(self._opened)

    def resume_step(self, rank: int | None, process: str) -> None:
        """Collection goes on in a step in which it was stopped."""
        if self._step is not None:
            self._step = self._step._replace(rank=rank, process=process)
            self._each(self._opened, "resume_step", "the beginning of the step", self._step)

    def log_start(self) -> None:
        """Say that collection begins or goes on."""
        self._each(self._opened, "log_start", "the beginning of the step")

    def log_stop(self) -> None:
        """Say that no further calls are collected."""
        self._each(self._opened, "log_stop", "the end of collection")

    def attach(self, models: Any) -> list[Handle]:
        """Attach further hooks of the sinks, until `stop`."""
        return self._each(self._opened, "attach", "hooks on the models", models)

    def flush(self) -> None:
        """Bring everything collected so far into files."""
        self._each(self._opened, "flush", "the files of the step")

    def has_records(self) -> bool:
        """True if each sink has records of this step, or a reason to have none, such as a failure that was logged."""
        return self._has_failed or all(sink.has_records() for sink in self._opened)

    def has_tensors(self) -> bool:
        """True if each sink has saved tensors in this step, where it should."""
        return all(sink.has_tensors() for sink in self._opened)

    def end_step(self) -> None:
        """The step is over, gradients included."""
        if self._opened:
            self.are_all_empty &= not self.has_records()
        opened, self._opened = self._opened, []
        self._each(opened, "end_step", "the end of the step")

    def discard(self) -> None:
        """Leave nothing of the step that has begun."""
        opened, self._opened = self._opened, []
        self._each(opened, "discard", "the end of the step")

    def restart(self) -> None:
        """Leave nothing of the steps that have ended."""
        self.are_all_empty = True
        self._each(self._sinks, "restart", "the beginning of the training")

    # --- the program

    def after_step(self, ended: EndedStep) -> None:
        """A step of the program is over, collected or not."""
        self._each(self._sinks, "after_step", "the end of the step", ended)

    def finish(self, ended: EndedStep) -> None:
        """The program ends."""
        self._each(self._sinks, "finish", "the end of the program", ended)

    def forked(self, for_good: bool) -> None:
        """This process was forked; see `Sink.forked`."""
        self._opened = []
        self._each(self._sinks, "forked", "the fork of the process", for_good)

    @property
    def is_selective(self) -> bool:
        """True if no sink writes every step."""
        return all(sink.is_selective for sink in self._sinks)

    @property
    def steps(self) -> list[int]:
        """The steps of which something was written."""
        return sorted({step for sink in self._sinks for step in sink.steps})

    @property
    def losses(self) -> dict[int, str]:
        """By step, what could not be written of it and why."""
        found: dict[int, list[str]] = {}
        for sink in self._sinks:
            for step, loss in sink.losses.items():
                found.setdefault(step, []).append(loss)
        return {step: "; ".join(losses) for step, losses in found.items()}

    def log_losses(self) -> None:
        """Log what could not be written, unless it was logged before."""
        self._each(self._sinks, "log_losses", "the end of the program")

    # --- failures

    def failed(self, name: str, error: BaseException) -> bool:
        """Tell each sink of the step that something failed at the record `name`; whether the user was told."""
        self._has_failed = True
        told = False
        for sink in self._opened:
            told |= _tell(sink, name, error)
        return told

    def note_failure(self, sink: Sink, name: str, error: BaseException) -> None:
        """Log that one sink has failed at the record `name`; the others have what they need."""
        if not _tell(sink, name, error):
            text = f"{type(sink).__name__}, {name}: {failure_text(error)}; the training goes on."
            log.warning(text, once=f"failed {type(sink).__name__} {type(error).__name__}: {error}")

    def _each(self, sinks: Sequence[Sink], method: str, about: str, *args: Any) -> list[Any]:
        """The answers of a method of each of `sinks`, without ``None``; `about` describes the work for the log."""
        answers = []
        for sink in sinks:
            try:
                answers.append(getattr(sink, method)(*args))
            except Exception as error:
                self.note_failure(sink, about, error)
        return [answer for answer in answers if answer is not None]


def _tell(sink: Sink, name: str, error: BaseException) -> bool:
    try:
        return sink.failed(name, error)
    except Exception as second:
        log.warning(f"a failure of the tool cannot be noted ({second!r}); the training goes on.", once="not noted")
        return True


def _needs_of(sink: Sink) -> Needs:
    """The needs of the sink, as it says them.

    Raises:
        TypeError: it says it in another way.
    """
    needs: Any = sink.needs()
    if not isinstance(needs, Needs):
        raise TypeError(f"needs() returns a {type(needs).__name__}; it has to return probe.Needs")
    return needs
