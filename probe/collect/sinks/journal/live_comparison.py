"""A run compared with a golden run while it runs: when a call looks wrong, what is judged, which tensors are written.

Each record is held against that of its name by its sketches, which takes microseconds. If its results are further apart
than its inputs, and than those of all calls before it, the step so far is judged as ``compare`` does. The whole step is
judged when it is over, so that the answer is that of ``compare`` in any case.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from probe.collect.active_calls import ActiveCall
from probe.collect.describing.values import ValueDescriber
from probe.collect.sinks.journal.golden_run import Apart, Differing, GoldenRun, distances
from probe.collect.sinks.journal.tensor_writer import TensorWriter
from probe.collect.sinks.sink import Host
from probe.common import clock, log
from probe.common.dump import naming
from probe.common.dump.sketch_file import SKETCH
from probe.common.dump.sketch_writer import each_entry
from probe.common.errors import failure_text
from probe.common.interfaces import Entry, JudgeStep, LiveDivergence, StatisticsMode

if TYPE_CHECKING:
    from probe.collect.sinks.journal.dump_folder import DumpFolder
    from probe.common.dump.journal import RecordFrame

AROUND = 4
"""Calls before and after the divergence of which tensors are written; a guess."""
_MOST_HELD = 64
"""Calls whose tensors are referred to at a time; a guess: more may run, or wait for statistics of a device."""
_TOGETHER = 16
"""Calls that differ whose distances are taken at once: one by one takes 45 µs, together 10 (AMD EPYC)."""
_FACTOR = 2.0
"""A call is looked at if what it adds is so many times what any call before has added; a guess."""
_SHARE = 0.1
"""The share of the time of a run that judging may take; what does not fit waits for the end of the program. With the
15 to 25 % that holding each record against the golden run takes, a run takes at most 1.3 times its time."""
_FREE_S = 0.5
"""Seconds of judging that are allowed in any case: those of a step of 3,000 records."""


_FIRST, _UNTOLD, _CAUSE = "first divergence: ", "cannot be told: ", "  cause:"
"""The beginnings of lines of ``compare``."""


class _HeldCall:
    """The values of a call, by reference, with the marks that tell if something has written to them."""

    __slots__ = ("args", "kwargs", "marks", "output")

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.args, self.kwargs = tuple(args), dict(kwargs)
        self.output: Any = None
        self.marks: dict[int, Any] = {}


class _Step(NamedTuple):
    """A step that is over."""

    name: str
    """``step 0, rank 1``."""
    target: str
    golden: str
    before: Optional[tuple[str, str]]  # noqa: UP045 (evaluated, on Python 3.9 too)


class LiveComparison:
    """Compares a run with a golden run.

    Args:
        golden: the golden run.
        host: what runs the sink.
        judge: compares two steps.
        stops: true if the program ends with the step that diverges.
        write_again: puts a record whose tensors were written into the journal in the place of the one before.
    """

    def __init__(
        self,
        golden: GoldenRun,
        host: Host,
        judge: JudgeStep,
        stops: bool,
        write_again: Callable[[RecordFrame], None],
    ) -> None:
        self._golden, self._host, self._judge, self._stops = golden, host, judge, stops
        self._write_again = write_again
        self._mark = host.adapter.tensors.content_mark
        self.is_over = False
        """True if a step has diverged, or the comparison has failed."""
        self._steps = 0
        self._untold = 0
        """The steps of which nobody can tell."""
        self._unjudged: list[_Step] = []
        """The steps for which there was no time."""
        self._before: tuple[str, str] | None = None
        self._judging_s = 0.0
        self._began = clock.monotonic()
        self._forget_step()

    def _forget_step(self) -> None:
        self._writer: TensorWriter | None = None
        self._folder: DumpFolder | None = None
        self._added = 0.0
        """The most that a call of this step has added and that was no divergence."""
        self._is_apart = False
        self._so_far: LiveDivergence | None = None
        self._held: dict[str, _HeldCall] = {}
        self._recent: deque[tuple[RecordFrame, _HeldCall | None]] = deque(maxlen=AROUND + _TOGETHER)
        self._waiting: list[Differing] = []
        """The calls whose distances are not taken yet."""
        self._left = 0
        """Further calls whose tensors are written."""
        self._written: list[str] = []

    # --- a step

    def begin_step(self, number: int, folder: DumpFolder, writer: TensorWriter) -> None:
        """Compare a step, whose files are in `folder`."""
        self._forget_step()
        self._golden.begin_step(number, folder)
        self._folder, self._writer = folder, writer

    def take(self, frame: RecordFrame) -> None:
        """Compare a record that is in the journal."""
        try:
            self._take(frame)
        except Exception as error:
            self._fail(error)

    def end_step(self) -> None:
        """Judge the step, whose files are written."""
        try:
            self._end_step()
        except Exception as error:
            self._fail(error)

    def end_program(self) -> None:
        """Judge what there was no time for, and say what was found."""
        if self.is_over:
            return
        try:
            for step in self._unjudged:
                if not self.is_over:
                    self._judge_step(step)
            if self._steps and not self.is_over:
                told = self._steps - self._untold
                steps = "1 step" if told == 1 else f"{told} steps"
                untold = f"; of {self._untold} more it cannot be told" if self._untold else ""
                log.info(f"against {self._golden.path}: no divergence in {steps}{untold}.")
        except Exception as error:
            self._fail(error)

    def forget(self, all_steps: bool) -> None:
        """The process was forked, or the step is taken back; with `all_steps` those before are gone as well."""
        self._forget_step()
        if all_steps:
            self._steps, self._untold, self._unjudged, self._before = 0, 0, [], None

    def _fail(self, error: Exception) -> None:
        self.is_over = True
        self._forget_step()
        log.warning(f"the comparison with {self._golden.path} ends: {failure_text(error)}; the training goes on.")

    # --- the values of calls

    def enter(self, call: ActiveCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refer to what a call is given."""
        if self._writer is None:
            return
        held = _HeldCall(args, kwargs)
        self._note(held, (*held.args, *held.kwargs.values()))
        self._hold(call.name, held)

    def leave(self, call: ActiveCall, output: Any) -> bool:
        """Refer to what a call has returned."""
        held = self._held.get(call.name)
        if held is not None:
            held.output = output
            self._note(held, output if isinstance(output, (tuple, list)) else (output,))
        return False

    def backward(self, call: ActiveCall, grad_output: Sequence[Any], grad_input: Sequence[Any]) -> None:
        """Refer to the gradients of a function's call."""
        if self._writer is None:
            return
        held = _HeldCall(grad_output, {})
        held.output = tuple(grad_input)
        self._note(held, (*held.args, *held.output))
        self._hold(naming.api_name(call.base, call.number, naming.BACKWARD), held)

    def _note(self, held: _HeldCall, values: Sequence[Any]) -> None:
        is_tensor, marks = self._host.adapter.tensors.is_tensor, held.marks
        for value in values:
            if is_tensor(value):
                marks.setdefault(id(value), self._mark(value))

    def _hold(self, name: str, held: _HeldCall) -> None:
        if len(self._held) >= _MOST_HELD:
            self._held.pop(next(iter(self._held)), None)
        self._held[name] = held

    # --- one record

    def _take(self, frame: RecordFrame) -> None:
        if self._writer is None:
            return
        name, fields = frame[0], frame[-1]
        held = self._held.pop(name, None)
        if self._left:
            self._left -= 1
            self._save(frame, held)
        if self._so_far is not None:
            return
        self._recent.append((frame, held))
        differing = self._golden.differing(name, fields)
        if differing is None:
            return
        self._waiting.append(differing)
        # The first one is looked at when it happens.
        is_first, self._is_apart = not self._is_apart, True
        if is_first or len(self._waiting) >= _TOGETHER:
            self._measure(is_first)

    def _measure(self, is_first: bool) -> None:
        """Take the distances of the calls that wait, and have the step judged so far if one of them looks wrong."""
        waiting, self._waiting = self._waiting, []
        added = max(map(_added_by, distances(waiting)))
        if (not is_first and added <= _FACTOR * self._added) or not self._has_time():
            return
        assert self._golden.location is not None and self._folder is not None
        found = self._timed(self._folder.path, self._golden.location.path, self._before, False)
        if found is None:
            self._added = max(self._added, added if added < math.inf else 0.0)
            return
        self._so_far = found
        _log(found, _words(self._folder.relative))
        recent = list(self._recent)
        at = next((index for index, (frame, _) in enumerate(recent) if frame[0] == found.record), len(recent) - 1)
        around = recent[max(0, at - AROUND) : at + AROUND + 1]
        for each in around:
            self._save(*each)
        self._left = max(0, AROUND - (len(recent) - 1 - at))

    def _has_time(self) -> bool:
        return self._judging_s <= max(_FREE_S, _SHARE * (clock.monotonic() - self._began))

    def _timed(self, target: str, golden: str, before: tuple[str, str] | None, is_over: bool) -> LiveDivergence | None:
        began = clock.monotonic()
        try:
            return self._judge(target, golden, before, is_over)
        finally:
            self._judging_s += clock.monotonic() - began

    # --- a step that is over

    def _end_step(self) -> None:
        location, folder = self._golden.location, self._folder
        if self.is_over or location is None or folder is None:
            return
        step = _Step(_words(folder.relative), folder.path, location.path, self._before)
        so_far, written = self._so_far, self._written
        # A gradient that is missing differs from nothing.
        is_apart = self._is_apart or self._golden.has_other_items(folder.path)
        self._steps += 1
        self._before = folder.path, location.path
        self._forget_step()
        if so_far is None and is_apart and not self._has_time():
            self._unjudged.append(step)
        elif is_apart or so_far is not None:
            self._judge_step(step, so_far)
        if written:
            names = written[0] if len(written) == 1 else f"{written[0]} to {written[-1]}"
            where = folder.tensor_folder
            log.info(f"the tensors of {len(written)} calls, {names}, are in {where}.")

    def _judge_step(self, step: _Step, so_far: LiveDivergence | None = None) -> None:
        found = self._timed(step.target, step.golden, step.before, True)
        if found is None:
            if so_far is not None:
                log.warning(f"{step.name}: what came behind {so_far.record} explains it: no divergence in this step.")
            return
        if not found.record:
            if not self._untold:
                _log(found, step.name)
            self._untold += 1
            return
        if so_far is None or found.record != so_far.record:
            _log(found, step.name)
        else:
            # Settings of modules are known at the end of a step.
            for line in found.lines:
                if line.startswith(_CAUSE) and line not in so_far.lines:
                    log.warning(line)
        self.is_over = True
        command = f"msprobe compare {os.path.dirname(os.path.dirname(step.target))} {self._golden.path}"
        ends = "the program ends here" if self._stops else "later steps are not compared"
        log.warning(f"{step.name} diverges from {self._golden.path}; {ends}. The table: {command}")
        if self._stops:
            self._host.stop_program()

    # --- tensors

    def _save(self, frame: RecordFrame, held: _HeldCall | None) -> None:
        """Write the tensors of a call that nothing has written to since; its record then names their files."""
        if held is None or self._writer is None:
            return
        name, fields = frame[0], frame[-1]
        save = self._writer.saving()
        recorded: dict[str, Entry] = {}
        each_entry(name, fields, recorded.__setitem__)

        def save_unchanged(value: Any, entry: Entry, path: str) -> None:
            mark = held.marks.get(id(value))
            item = path.replace(f"{name}.kwargs.", f"{name}.input.", 1)
            if self._is_recorded(value, recorded.get(item)) if mark is None else mark == self._mark(value):
                save(value, entry, path)

        values = ValueDescriber(self._host.adapter.tensors, lambda value: {}, self._fail, None)
        first = "input" if naming.is_backward(name) else "input_args"
        found = [_named(fields.get(first), values.sequence(held.args, f"{name}.input", save_unchanged))]
        if held.kwargs:
            kwargs = values.mapping(held.kwargs, f"{name}.kwargs", save_unchanged)
            found.append(_named(fields.get("input_kwargs"), kwargs))
        if held.output is not None:
            found.append(_named(fields.get("output"), values.output(held.output, f"{name}.output", save_unchanged)))
        if any(found):
            self._written.append(name)
            self._write_again((*frame[:5], 0, fields))

    def _is_recorded(self, value: Any, recorded: Entry | None) -> bool:
        """True if a tensor without a mark, such as a parameter or one in a list, has the numbers of its record."""
        if recorded is None:
            return False
        config, tensors = self._host.config(), self._host.adapter.tensors
        mode = StatisticsMode(config.summary_mode, config.precision == "high", sketch=SKETCH in recorded)
        described = tensors.describe_tensor(value, mode)
        tensors.resolve()
        return all(repr(recorded.get(key)) == repr(each) for key, each in described.items())


def _added_by(apart: Apart) -> float:
    """The distance that a call adds to that of its inputs."""
    if apart.returned == math.inf:
        return 0.0 if apart.given == math.inf else math.inf
    return math.sqrt(max(0.0, apart.returned**2 - min(apart.given, apart.returned) ** 2))


def _named(fields: Any, files: Any) -> bool:
    """Give entries the names of files that entries of the same form have; true if there is one."""
    if isinstance(fields, dict) and isinstance(files, dict):
        if "data_name" in files:
            fields["data_name"] = files["data_name"]
            return True
        pairs = [(fields.get(key), each) for key, each in files.items()]
    elif isinstance(fields, list) and isinstance(files, list):
        pairs = list(zip(fields, files))
    else:
        return False
    # All of them, and not up to the first.
    return any(list(starmap(_named, pairs)))


def _log(found: LiveDivergence, step: str) -> None:
    """Say what ``compare`` says, with the step as it has it where there are several."""
    for line in found.lines:
        start = next((each for each in (_FIRST, _UNTOLD) if line.startswith(each)), "")
        log.warning(f"{start}{step}: {line[len(start) :]}" if start else line)


def _words(relative: str) -> str:
    """``step 0, rank 1`` of ``step0/rank1``."""
    step, process = os.path.split(relative)
    named = process.replace("rank", "rank ").replace("proc", "process ")
    return f"{step.replace('step', 'step ')}, {named}"
