"""A step that is collected: its counters, its sinks, and what each of them is handed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Callable

from probe.collect.active_calls import ActiveCall, ActiveCalls
from probe.collect.describing.values import SaveTensor
from probe.collect.sinks.sink import Discarded, Needs, Sink, Status, Step
from probe.common import log
from probe.common.callstack import CallStacks
from probe.common.dump.update_file import UpdateFrame
from probe.common.errors import MsprobeException, failure_text
from probe.common.interfaces import Entry, Handle, ModuleName

Receivers = tuple[tuple[Sink, Callable[..., Any]], ...]
"""Sinks, each with a function of its `Needs`."""


class CollectedStep(Step):
    """One step. A failure of one sink keeps nothing from the others.

    Args:
        number: The number of the step.
        rank: ``None`` in a program without ranks.
        process: The name of this process's folder, such as ``rank0``.
        stacks: The call stacks that calls refer to by number.
        sinks: The sinks that are asked for their needs.
    """

    def __init__(self, number: int, rank: int | None, process: str, stacks: CallStacks, sinks: Iterable[Sink]) -> None:
        super().__init__(number, rank, process, stacks)
        # Counters, not numbers: two threads that ask at once must not get the same one.
        self.counts: defaultdict[str, Iterator[int]] = defaultdict(count)
        """By API or module, the numbers of further calls."""
        self.gradient_counts: dict[tuple[str, str], int] = {}
        """By module and parameter, how often its gradient was accumulated."""
        self.with_backward: set[str] = set()
        """The modules of which a backward is recorded."""
        self.order = count()
        """The positions of what happens one after the other."""
        self.suspended: dict[ActiveCall, None] = {}
        """Wanted calls that work on in the background."""
        self.thread = ActiveCalls()
        self.latest = ""
        """The name of the record that was made last."""
        self._has_failed = False
        """True if something has failed in this step."""
        self._divide(needs_of(sinks))

    # --- its sinks

    def begin(self, tried: set[Sink]) -> bool:
        """Begin the step in the sinks; false if none of them takes it.

        Args:
            tried: The sinks that were asked to begin a step and did not refuse their settings; others are added.

        Raises:
            MsprobeException: a setting of a sink is wrong in its first step; then the step has begun in none of them.
        """
        opened: list[Sink] = []
        for sink in self.sinks:
            try:
                # One that returns nothing takes the step.
                if sink.begin_step(self) is not False:
                    opened.append(sink)
            except Exception as error:
                if isinstance(error, MsprobeException) and sink not in tried:
                    ask(opened, "discard", "the end of the step", Discarded.STEP)
                    raise
                note_failure(sink, f"the beginning of step {self.number}", error)
            tried.add(sink)
        if len(opened) < len(self.sinks):
            self._divide({sink: self.sinks[sink] for sink in opened})
        return bool(opened)

    def _divide(self, needs: Mapping[Sink, Needs]) -> None:
        """Decide once which sinks are handed what, so that nothing is asked of them at each call."""
        self.sinks = needs
        """The sinks in which the step has begun, each with its needs."""
        self.with_values, self.with_stacks, self.with_nonfinite, self.with_random_states = (
            needed(needs, name) for name in ("statistics", "stacks", "nonfinite", "random_states")
        )
        self.entering, self.leaving, self._in_backward, self._gradients, self.updating, self.saving = (
            tuple((sink, receive) for sink, each in needs.items() if (receive := getattr(each, name)) is not None)
            for name in ("enter", "leave", "backward", "gradient", "update", "saver_of")
        )
        self.has_live_gradients = bool(self._in_backward or self._gradients)
        """True if a sink receives gradients as they arrive."""
        recording = [(sink, each.record, each) for sink, each in needs.items() if each.record is not None]
        self.recording: Receivers = tuple((sink, record) for sink, record, _ in recording)
        """Receivers of records; the next ones get records of the backward as well, or calls without a record."""
        self.recording_backward: Receivers = tuple((sink, record) for sink, record, of in recording if of.gradients)
        self.noting: Receivers = tuple((sink, record) for sink, record, of in recording if of.tree)
        self.noting_backward: Receivers = tuple(each for each in self.noting if each in self.recording_backward)
        self.records_backward = bool(self.recording_backward)

    def start(self, models: Any) -> list[Handle]:
        """Collection begins or goes on; the further hooks of the sinks, until ``stop``."""
        return ask(self.sinks, "start", "the beginning of the step", models)

    def flush(self) -> None:
        """Bring everything collected so far into files."""
        ask(self.sinks, "flush", "the files of the step")

    def end(self) -> None:
        """The step is over, gradients included; `flush` was called before."""
        ask(self.sinks, "end_step", "the end of the step")

    def status(self) -> Status:
        """The status of the sinks together; a failure that was logged is a reason to have no records."""
        status = status_of(self.sinks, "the end of the step")
        status.has_records |= self._has_failed
        return status

    def failed(self, name: str, error: BaseException) -> bool:
        """Tell each sink that something failed at the record `name`; true if the user was told."""
        self._has_failed = True
        told = False
        for sink in self.sinks:
            told |= _was_told(sink, name, error)
        return told

    # --- what they are handed

    def update(self, update: UpdateFrame) -> None:
        """Hand on a step of an optimizer."""
        tell(self.updating, "the step of the optimizer", update)

    def enter(self, call: ActiveCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        tell(self.entering, call, call, args, kwargs)

    def leave(self, call: ActiveCall, output: Any) -> bool:
        """Hand on a result; true if a sink wants the backward."""
        wanted = False
        for sink, leave in self.leaving:
            try:
                # Any object may be returned; the truth of some cannot be told, such as that of a tensor.
                wanted |= bool(leave(call, output))
            except Exception as error:
                note_failure(sink, call, error)
        return wanted

    def backward(self, call: ActiveCall, grad_output: Sequence[Any], grad_input: Sequence[Any]) -> None:
        tell(self._in_backward, call, call, grad_output, grad_input)

    def gradient(self, of: ActiveCall | ModuleName, name: str, gradient: Any) -> None:
        if self._gradients:
            about = of if isinstance(of, ActiveCall) else f"{of.base}.{name}"
            tell(self._gradients, about, of, name, gradient)

    # --- tensors

    def saver_of(self, call: ActiveCall | None, about: ActiveCall | None = None) -> SaveTensor | None:
        """Function that has each sink save a tensor of `call`, or of a value that belongs to no call.

        Args:
            call: ``None`` for such a value.
            about: The record that is named if a sink fails; by default that of `call`.

        Returns:
            ``None`` if no sink wants the tensors.
        """
        about, savers = about or call, []
        for sink, saver_of in self.saving:
            try:
                saver = saver_of(call)
            except Exception as error:
                note_failure(sink, about, error)
            else:
                if saver is not None:
                    savers.append((sink, saver))
        if not savers:
            return None

        def save(value: Any, entry: Entry, path: str) -> None:
            for sink, saver in savers:
                try:
                    saver(value, entry, path)
                except Exception as error:
                    note_failure(sink, about, error)

        return save


# --- sinks, each by itself


def tell(receivers: Iterable[tuple[Sink, Callable[..., Any]]], about: Any, *args: Any) -> list[Any]:
    """The answers of the functions of several sinks, without ``None``; `about` is what failed, for the log."""
    answers = []
    for sink, receive in receivers:
        try:
            answers.append(receive(*args))
        except Exception as error:
            note_failure(sink, about, error)
    return [answer for answer in answers if answer is not None]


def ask(sinks: Iterable[Sink], method: str, about: Any, *args: Any) -> list[Any]:
    """The answers of a method of each of `sinks`, without ``None``; `about` is what failed, for the log."""
    return tell(((sink, getattr(sink, method)) for sink in sinks), about, *args)


def status_of(sinks: Iterable[Sink], about: str) -> Status:
    """The status of several sinks together, without a sink that cannot say it; `about` is what failed, for the log."""
    found = []
    for sink in sinks:
        try:
            # Each by itself first: contents that are wrong keep nothing from the others.
            found.append(Status.together([sink.status()]))
        except Exception as error:
            note_failure(sink, about, error)
    return Status.together(found)


def needed(needs: Mapping[Sink, Needs], name: str) -> bool:
    """True if one of several sinks has the need of this name."""
    return any(getattr(each, name) for each in needs.values())


def needs_of(sinks: Iterable[Sink]) -> dict[Sink, Needs]:
    """The needs of each sink for the step that is about to begin; a sink that cannot say them gets nothing."""
    found = {}
    for sink in sinks:
        try:
            needs: Any = sink.needs()
            if not isinstance(needs, Needs):
                raise TypeError(f"needs() returns a {type(needs).__name__}; it has to return probe.Needs")
            found[sink] = needs
        except Exception as error:
            note_failure(sink, "the beginning of the step", error)
    return found


def note_failure(sink: Sink, about: Any, error: BaseException) -> None:
    """Log that one sink has failed at a record; the others have what they need."""
    name = name_of(about)
    if not _was_told(sink, name, error):
        text = f"{type(sink).__name__}, {name}: {failure_text(error)}; the training goes on."
        log.warning(text, once=f"failed {type(sink).__name__} {type(error).__name__}: {error}")


def _was_told(sink: Sink, name: str, error: BaseException) -> bool:
    try:
        return bool(sink.failed(name, error))
    except Exception as second:
        log.warning(f"a failure of the tool cannot be noted ({second!r}); the training goes on.", once="not noted")
        return True


def name_of(about: Any) -> str:
    """The record at which something failed: a call, a module, or a text."""
    if isinstance(about, str):
        return about
    return str(getattr(about, "name", None) or getattr(about, "base", "a record"))


# --- step counter


class StepCounter:
    """Counts the steps of one session."""

    def __init__(self) -> None:
        self.first = 0
        """The number of the first step."""
        self.ended = 0
        """The number of steps that are over."""
        self.begun: int | None = None
        """The step that has begun and not ended, wanted or not."""
        self._reached: set[int] | None = None
        """The wanted steps that have begun; ``None`` before any has begun in this process."""

    @property
    def current(self) -> int:
        """The number of the step that goes on, or comes next."""
        return self.first + self.ended

    def begin(self, wanted: Sequence[int]) -> None:
        """Something was called that belongs to the current step; `wanted` are the steps that were asked for."""
        self.begun = self.current
        self._reached = self._reached or set()
        if self.current in wanted:
            self._reached.add(self.current)

    def take_back(self) -> None:
        """The step that has begun is none, for nothing was called in it."""
        if self._reached is not None:
            self._reached.discard(self.current)
        self.begun = None

    def restart(self) -> None:
        """All steps so far are none."""
        self.ended, self.begun, self._reached = 0, None, None

    def forked(self) -> None:
        """The step that has begun is that of the parent process."""
        self.begun = None
        self._reached = None

    def unreached(self, wanted: Sequence[int]) -> list[int]:
        """The wanted steps that never began, if any step began in this process."""
        return [] if self._reached is None else [step for step in wanted if step not in self._reached]

    def ran_text(self) -> str:
        """The number of steps that the program has made.

        Example:
            ``3 steps (0-2)``
        """
        first, last = self.first, self.current - (self.begun is None)
        return f"1 step ({first})" if first == last else f"{last + 1 - first} steps ({first}-{last})"
