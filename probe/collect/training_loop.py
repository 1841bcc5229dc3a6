"""Begin and end of the steps of a program whose script has no line of ours.

A step begins with the first forward that records gradients, and all that follows belongs to it until every optimizer
has updated its parameters. What runs between that and the next such forward, such as an evaluation, is not collected.
A program that does not train has steps of one forward each. If it trains after all, these are taken back, and steps
are counted from there.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from probe.backends.protocol import Training
from probe.collect.turns import CallSites, OptimizerTurns
from probe.common import log
from probe.common.dump import naming
from probe.common.errors import MsprobeException
from probe.common.interfaces import Handle

if TYPE_CHECKING:
    # The command line reads the names of events here, and need not wait for the rest.
    from probe.collect.session import Session

AUTO, FORWARD, BACKWARD, OPTIMIZER = "auto", "forward", "backward", "optimizer"
STEP_AFTER = (BACKWARD, OPTIMIZER, FORWARD)
"""The calls after which a user can have every step end; without one it is `AUTO`."""

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _guarded(method: _Method) -> _Method:
    """A failure of the tool ends collection and not the training.

    A report on a thread that is in the middle of another one is left out: it comes from a model that a signal handler
    runs, which Python may call anywhere. A step that began in the middle of the end of another would have its number.
    """

    @functools.wraps(method)
    def guarded(self: TrainingLoop, *args: Any) -> Any:
        if self._handle is None:
            return None
        thread = threading.get_ident()
        if thread in self._busy:
            self.left_out += method.__name__ == "enter_forward"
            return None
        self._busy.add(thread)
        try:
            return method(self, *args)
        except Exception as error:
            why = str(error) if isinstance(error, MsprobeException) else f"{type(error).__name__}: {error}"
            self.failure = self.failure or why
            log.error(f"msprobe run collects nothing more ({why}); the training goes on.")
            self.end()
            if self.session is not None:
                self.session.stop()
            return None
        finally:
            self._busy.discard(thread)

    return guarded  # type: ignore[return-value]


class TrainingLoop:
    """Implements `probe.backends.protocol.TrainingListener`: starts, stops and counts the steps of a session.

    Args:
        training: What the framework says of the program.
        step_after: ``auto``, or what every step ends with: ``forward``, ``backward`` or ``optimizer``.
        make_session: Called when the first step begins; ``None`` if somebody else collects from this process.
    """

    def __init__(self, training: Training, step_after: str, make_session: Callable[[], Session | None]) -> None:
        self._training = training
        self._step_after = step_after
        self._make_session = make_session
        self.session: Session | None = None
        self.forwards = 0
        """The number of outermost forwards that were seen, with gradients or without."""
        self.steps = 0
        """The number of steps that have ended."""
        self.failure = ""
        """The reason why nothing more is collected."""
        self.refused = ""
        """The reason why forwards were not collected of which each would have been a step."""
        self.left_out = 0
        """The number of forwards that a signal's function ran while a step began or ended."""
        self._busy: set[int] = set()
        """The threads on which a report is dealt with."""
        self._in_forward = self._in_backward = False
        self._thread = threading.current_thread()
        """The thread that began the step."""
        self.step_open = False
        """True if a step has begun and not ended."""
        self._end_due = False
        """The step ends when the forward or the backward has ended in which its optimizer was called."""
        self._paused = False
        """The step that is open has most likely ended; the next forward tells."""
        self._models: dict[str, weakref.ref[Any]] = {}
        """By the prefix of their names, in the order in which they were called first."""
        self._numbers = itertools.count(1), itertools.count(1)
        """The numbers of further models, and of parts of models that are gone; none is used twice."""
        self._noted: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
        """The modules of the models that were looked for, each with its model."""
        self._sites = CallSites()
        self._unseen_site = -1
        """The call site of the last forward that was taken for an evaluation; -1 behind other forwards."""
        self.inferred = 0
        """The number of steps of one forward each that have ended, while the program has not trained."""
        self._infers = False
        """True if the open step is such a one."""
        self._turns = OptimizerTurns(training)
        self._backwards = 0
        """The number of times that gradients were computed."""
        self._backwards_before = 0
        """The number of backwards before this step."""
        self._handle: Handle | None = None
        self._gradients: Handle | None = None
        """Reports gradients that are returned to the program, unless it has an optimizer."""
        self._attach()

    def _attach(self) -> None:
        if self._handle is None:
            self._handle = self._training.attach_training(self)
        if self._gradients is None and self._step_after in (AUTO, BACKWARD):
            self._gradients = self._training.attach_gradients(self)

    # --- what the program does

    @_guarded
    def enter_forward(self, module: Any, recording: bool) -> None:
        self.forwards += 1
        site = self._turns.call_site()
        if self._is_of_step() and not self._in_backward and self._was_evaluation(module, site):
            self._end_evaluation()
        elif self.step_open and not self._goes_on(module, recording, site):
            self._end_step()
        if self._handle is None:
            return  # that was the last step
        if self.step_open:
            if self._is_of_step():
                self._in_forward = True
                self._add(module, recording, site)
        elif self._begins_step(module, recording, site):
            self._in_forward = True
            if self.inferred and (self._sites.was_evaluated(module) or self._turns.exist()):
                self._restart()
            self._begin_step(module, site)
        elif self._infers_with(module):
            self._begin_inference(module, site)
        elif self._training.has_parameters(module):
            # Neither a loss nor what prepares data is the model whose forward trains unseen.
            self._unseen_site = site if recording else -1

    @_guarded
    def leave_forward(self) -> None:
        if not self._is_of_step():
            return
        self._in_forward = False
        self._end_due = self._end_due or self._step_after == FORWARD or self._infers
        self._end_if_due()

    @_guarded
    def enter_backward(self, mark: Callable[[Any], object]) -> None:
        self._trains()
        if self._is_of_step():
            self._in_backward = True
            if self._step_after == AUTO and self._turns.exist():
                self._turns.enter_backward(mark)

    @_guarded
    def leave_backward(self, mark: Callable[[Any], object] | None) -> None:
        self._backwards += 1
        if not self._is_of_step():
            return
        self._in_backward = False
        self._turns.leave_backward(mark)
        if mark is not None:
            self._end_due = self._end_due or self._ends_with_gradients()
        self._end_if_due()

    @_guarded
    def return_gradients(self, *kept: object) -> None:
        if any(kept):
            return
        self._trains()
        self._backwards += 1
        if self._is_of_step():
            self._end_due = self._end_due or self._ends_with_gradients()
            self._end_if_due()

    def _ends_with_gradients(self) -> bool:
        return self._step_after == BACKWARD or (self._step_after == AUTO and not self._turns.exist())

    def _trains(self) -> None:
        """Gradients are computed, or parameters updated: the forwards before are training."""
        if self._is_of_step():
            self._sites.pass_trial()
        elif not self.step_open and self._unseen_site >= 0:
            self._sites.note_training(self._unseen_site)
            self._unseen_site = -1
            log.warning(
                f"a training step before step {self.steps} was not collected: its forward was in evaluation mode, from "
                "where the program had only evaluated before. Later ones are collected.",
                once="unseen step",
            )
        if self.inferred:
            self._restart(" The step that computes gradients now began among them, and is not collected.")

    @_guarded
    def new_optimizer(self) -> None:
        self._turns.new_optimizer()

    @_guarded
    def leave_optimizer(self, optimizer: Any) -> None:
        if not self._is_of_step() and not (self.step_open and self._turns.is_of_step(optimizer)):
            self._turns.note(optimizer)
            return
        self._trains()
        if self._step_after == OPTIMIZER:
            self._end_due = True
        elif self._step_after == AUTO and self._turns.stepped(optimizer):
            if self._turns.is_too_long(optimizer):
                log.warning(f"{self.waiting_text()} A step no longer waits for the other one.")
                self._turns.give_up()
            self._end_due = not self._turns.waiting()
        if self._is_of_step():  # otherwise the thread that began the step ends it
            self._end_if_due()

    def _is_of_step(self) -> bool:
        """True if what is reported belongs to the step that has begun: another thread may train another model."""
        return self.step_open and threading.current_thread() is self._thread

    # --- steps

    def _goes_on(self, module: Any, recording: bool, site: int) -> bool:
        """True if the step is still open in which `module` is called from `site`, or another thread calls it."""
        if not self._is_of_step():
            begins = self._paused or not self._thread.is_alive()
            return not (begins and self._begins_step(module, recording, site))
        if self._in_backward:
            return True  # a forward that is repeated for its gradients
        if self._end_due or not self._is_undecided():
            return not self._end_due
        if self._begins_step(module, recording, site):
            return self._turns.goes_on(module, site)
        return not self._sites.is_evaluated_again(module)

    def _was_evaluation(self, module: Any, site: int) -> bool:
        """True if the forward of `module` from `site` shows that nothing is trained in the open step.

        Several forwards before the first backward may be one training step, but one call again is seldom without an
        optimizer.
        """
        if self._step_after == FORWARD or self._end_due or not self._has_only_forwards():
            return False
        if self._sites.turns_to_training(module, site):
            return True
        if not self._sites.is_called_again(module, site):
            return False
        if self.never_trains():
            return self._step_after == AUTO and not self._turns.exist()
        return self._sites.on_trial

    def _has_only_forwards(self) -> bool:
        """True if no gradients were computed in the open step, and no optimizer has stepped."""
        return not self._turns.counts and self._backwards == self._backwards_before

    def _is_undecided(self) -> bool:
        """True if an optimizer has stepped and another one may; the next forward tells whether the step is over."""
        return self._step_after == AUTO and bool(self._turns.counts)

    def _end_if_due(self) -> None:
        if self._in_forward or self._in_backward:
            return
        if self._end_due:
            self._end_step()
        elif not self._paused and self._is_undecided() and self._turns.seem_over():
            self._paused = True
            if self.session is not None:
                self.session.stop()

    def _begin_step(self, module: Any, site: int) -> None:
        if self.session is None:
            self.session = self._make_session()
        if self.session is None:
            self.end()
            return
        self.step_open = True
        self._thread = threading.current_thread()
        # Of steps that are not wanted too: names do not depend on which steps are collected.
        self._note(module)
        self._turns.called(module, site)
        self._sites.begin_step(module, site)
        self._unseen_site = -1
        if not self.steps and not self._infers and self._step_after == AUTO and self._turns.exist():
            self._leave_gradients()
        if self.session.step_wanted:
            self.session.start(self._by_prefix(), None, None)

    def _begin_inference(self, module: Any, site: int) -> None:
        self._in_forward = self._infers = True
        try:
            self._begin_step(module, site)
        except MsprobeException as error:
            # What cannot be collected now, such as MindSpore in graph mode, may be trained in another mode later.
            self._close_step()
            self.refused = self.refused or str(error)

    def _add(self, module: Any, recording: bool, site: int) -> None:
        """A call in a step that goes on; a model that was not called before is collected from as well."""
        session = self.session
        if session is None or (self._paused and not self._begins_step(module, recording, site)):
            return
        self._turns.called(module, site)
        self._sites.add(module, site)
        is_new = self._note(module)
        if self._paused:
            self._paused = False
            if session.step_wanted:
                session.start(self._by_prefix(), None, None)
        elif is_new and session.active:
            session.extend(self._by_prefix())

    def _end_step(self) -> None:
        session = self.session
        assert session is not None
        infers = self._infers
        self._close_step()
        self._turns.end_step()
        self._backwards_before = self._backwards
        self.steps += 1
        self.inferred += infers
        session.step()
        # A program that has inferred may train yet.
        if not session.remaining and not infers:
            self.end()

    def _close_step(self) -> None:
        self.step_open = self._end_due = self._paused = self._in_forward = self._in_backward = self._infers = False

    def _end_evaluation(self) -> None:
        """Nothing was trained in the open step: it is one of a program that only infers, so far, or none at all."""
        self._sites.fail_trial()
        if self._step_after == AUTO and self.never_trains():
            self._infers = True
            self._end_step()
            return
        self._close_step()
        self._turns.end_step()
        if self.session is not None:
            self.session.take_back()

    def _restart(self, lost: str = "") -> None:
        """The program trains, after forwards of which each was a step: they are taken back, and steps count from 0.

        Args:
            lost: What else is not collected.
        """
        session, inferred, self.inferred = self.session, self.inferred, 0
        if session is None or session.status().is_selective:
            return  # what is written are findings, whose steps keep their numbers
        text = f"the program trains: the {inferred} forwards before it, which were taken for its steps, are removed."
        log.info(text + lost)
        self._close_step()
        self._turns.end_step()
        self.steps = 0
        session.restart()

    @_guarded
    def finish(self, failed: bool) -> None:
        """The program has ended, and so has a step in which each optimizer that has stepped did so once."""
        if self.step_open and not self._end_due and self._has_only_forwards():
            infers = self._step_after == AUTO and self.never_trains() and not self._turns.exist()
            # A program that has failed may have done so in the forward of a step.
            if infers or (self.steps > self.inferred and (self._sites.on_trial or not failed)):
                self._end_evaluation()
        once = max(self._turns.counts.values(), default=0) == 1 or self.steps > 0
        undecided = self._is_undecided() and once and not failed
        if self.step_open and (self._end_due or self._paused or undecided):
            self._end_step()

    def give_way(self) -> None:
        """Watch the program no longer, and leave nothing of what was collected."""
        session, self.session = self.session, None
        if session is not None:
            session.restart()
        self.end()

    def end(self) -> None:
        """Watch the program no longer."""
        handle, self._handle = self._handle, None
        self.step_open = self._end_due = self._paused = self._infers = False
        self._turns.leave_backward(None)  # none is told of any more
        try:
            self._leave_gradients()
        finally:
            if handle is not None:
                handle.remove()

    def _leave_gradients(self) -> None:
        handle, self._gradients = self._gradients, None
        if handle is not None:
            handle.remove()

    def forked(self) -> None:
        """Begin anew in a process that was forked, which has trained nothing yet; the old session is its parent's."""
        left, ended = self.session, self._handle is None
        self.session = None
        self.forwards = self.steps = self.inferred = self._backwards = self._backwards_before = 0
        self._close_step()
        self._models.clear()
        self._numbers = itertools.count(1), itertools.count(1)
        self._noted = weakref.WeakKeyDictionary()
        self._sites, self._unseen_site = CallSites(), -1
        self._turns = OptimizerTurns(self._training, self._turns.known())
        if not self.failure and (left is not None or not ended):
            # Also where the parent has all that it wanted.
            self._attach()

    # --- models

    def _begins_step(self, module: Any, recording: bool, site: int) -> bool:
        """True if this is a call of a model, and not of something without parameters that prepares data."""
        trains = self._step_after == FORWARD or (recording and not self._sites.evaluates(module, site))
        return trains and self._training.has_parameters(module)

    def _infers_with(self, module: Any) -> bool:
        """True if this forward is a step of a program that has not trained so far."""
        if self._step_after != AUTO or not self.never_trains():
            return False
        session = self.session
        return (session is None or session.remaining) and self._training.has_parameters(module)

    def never_trains(self) -> bool:
        """True if no gradients were computed, and no optimizer has stepped, so far."""
        return not self._backwards and self.steps == self.inferred and not self._turns.counts

    def _note(self, module: Any) -> bool:
        """Note the model that `module` is a part of; whether it is a new one.

        A module without parameters, such as a loss function, is no model.
        """
        if self._is_noted(module) or not self._training.has_parameters(module):
            return False
        # What outlives its model does not count as one: the garbage collector decides when the model is gone.
        outlives = module in self._noted
        model = module if outlives else self._training.outermost(module)
        noted = weakref.ref(model)
        if not self._is_noted(model):
            models, parts = self._numbers
            prefix = naming.part_prefix(next(parts)) if outlives else naming.model_prefix(next(models))
            self._models[prefix] = noted
        for each in (module, model, *self._training.inside(model)):
            if not self._is_noted(each):
                self._noted[each] = noted
        return True

    def _is_noted(self, module: Any) -> bool:
        """True if `module` is part of a model that was noted and is there."""
        noted = self._noted.get(module)
        return noted is not None and noted() is not None

    def _by_prefix(self) -> dict[str, Any]:
        """The models that are still there, each with a prefix that no other one has or had."""
        self._models = {prefix: noted for prefix, noted in self._models.items() if noted() is not None}
        models = ((prefix, noted()) for prefix, noted in self._models.items())
        return {prefix: model for prefix, model in models if model is not None}

    # --- optimizers

    def unended_text(self) -> str:
        """The reason why the open step may hold several steps of the program; empty if there is no sign of it."""
        if not self.step_open:
            return ""
        if not self.steps:
            return f"the program ended in its first step. {self.waiting_text()}"
        if self._backwards - self._backwards_before < 2 or self._turns.counts:
            return ""
        count = self._backwards - self._backwards_before
        text = f"the program ended in step {self.steps}, in which gradients were computed {count} times and no "
        text += "optimizer stepped. If these are several steps, --step-after backward ends a step with each. A script "
        return text + "can also end its steps itself: make a PrecisionDebugger in it and call its step()."

    def uneven_text(self) -> str:
        """The reason why the ended steps may not be the iterations of the program; empty if there is no sign of it."""
        return self._turns.uneven_text(self.steps) if self._step_after == AUTO else ""

    def waiting_text(self) -> str:
        """The reason why the step that has begun has not ended."""
        waiting = ", ".join(type(each).__name__ for each in self._turns.waiting())
        counts = self._turns.counts
        if not self._backwards:
            text = "Neither gradients nor an optimizer were seen; "
            return text + "--step-after forward ends a step with each model call."
        if self._step_after != AUTO or not counts or not waiting:
            return "No optimizer stepped; give --step-after backward or --step-after forward to end a step."
        stepped = " and ".join(f"{type(each).__name__} ({count} times)" for each, count in counts.items())
        return f"In one step {stepped} stepped and {waiting} not once; --step-after optimizer ends a step with each."
