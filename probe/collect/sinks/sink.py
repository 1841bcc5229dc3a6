"""A sink receives what is collected: it says for each step what it needs, and nothing else is made.

The hooks report to one `Collector`, which counts the calls, applies the configuration (``step``, ``rank``, ``list``,
``scope``, ``risk_level``) and hands on the wanted calls. Several sinks may be there at once; a failure of one is logged
and does not reach the others, nor the training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple, Optional

from probe.backends.protocol import FrameworkAdapter
from probe.collect.active_calls import ActiveCall
from probe.collect.describing.described_once import Suspects
from probe.collect.describing.values import SaveTensor
from probe.common.callstack import CallStacks
from probe.common.config.config import Config
from probe.common.dump.update_file import UpdateFrame
from probe.common.interfaces import Handle, ModuleName


@dataclass(frozen=True)
class Needs:
    """Needs of a sink for one step.

    Args:
        calls: Each wanted call as it runs, with the values themselves: `Sink.enter`, `Sink.leave`, `Sink.withdraw`.
        records: The record of each call: `Sink.record`, `Sink.node`.
        statistics: The fields of records: arguments, results and parameters, with the statistics of tensors.
        gradients: The backward, for `calls` (`Sink.backward`, `Sink.gradient`, `Sink.parameter_gradient`) and for
            `records`. If no sink needs it, no backward is hooked.
        stacks: The call stack of each call, as a number of `Step.stacks`.
        tensors: To save tensors while they are described: `Sink.saver_of`. Records of all sinks name their files.
        random_states: The state from which a call whose tensors are saved draws random numbers.
        nonfinite: The entries of tensors that are not finite, in `Step.suspects`.
        updates: The steps of optimizers: `Sink.update`.
        step_numbers: The loss and the gradient norm that the program gives to ``step``.
    """

    calls: bool = False
    records: bool = False
    statistics: bool = False
    gradients: bool = False
    stacks: bool = False
    tensors: bool = False
    random_states: bool = False
    nonfinite: bool = False
    updates: bool = False
    step_numbers: bool = False

    def __or__(self, other: Needs) -> Needs:
        """The needs of two sinks together."""
        mine, others = dataclasses.astuple(self), dataclasses.astuple(other)
        return Needs(*map(any, zip(mine, others)))


class Step(NamedTuple):
    """A step that is collected from now on."""

    number: int
    rank: Optional[int]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """``None`` in a program without ranks."""
    process: str
    """The name of the folder for this process: ``rank0`` or ``proc123``."""
    stacks: CallStacks
    """The call stacks that calls refer to by number."""
    suspects: Suspects
    """The entries of this step that are not finite, if a sink needs them."""


class EndedStep(NamedTuple):
    """A step of the program that is over, collected or not."""

    number: int
    loss: Any = None
    """The loss as given to ``step``, like the gradient norm; ``None`` if not given."""
    gradient_norm: Any = None


class Host(NamedTuple):
    """The session, as far as a sink may ask it."""

    adapter: FrameworkAdapter
    failed: Callable[[Any, BaseException], None]
    """Log a failure of the tool; the training goes on."""
    rank: Callable[[], Optional[int]]  # noqa: UP045
    """The rank of this process, as far as it is known now."""
    end_collection: Callable[[], None]
    """Collect no further step."""
    numbers: Callable[[], Mapping[str, int]]
    """The number that the next call of each name gets."""


class Sink:
    """Receives the parts of each step that it needs. Every method here does nothing: a sink has those that it uses.

    No method may change a value. What one raises is logged.
    """

    steps: Sequence[int] = ()
    """The steps of which the sink has written something."""
    is_selective = False
    """True if only some of the collected steps are written, those that have something to report."""

    def needs(self) -> Needs:
        """Needs of the sink for the next step; called when a step begins."""
        return Needs()

    # --- the life of a step

    def configure(self, config: Config) -> None:
        """Other settings hold from the next step on."""

    def begin_step(self, step: Step) -> bool:
        """A step is collected from now on. False if the sink cannot, which costs it this step only."""
        return True

    def resume_step(self, step: Step) -> None:
        """Collection goes on in a step in which it was stopped; its rank may be known now."""

    def log_start(self) -> None:
        """Say in the log that collection begins or goes on."""

    def log_stop(self) -> None:
        """Say in the log that no further calls are collected until ``start``."""

    def attach(self, models: Any) -> Handle | None:
        """Attach further hooks to `models`, which may be ``None``, until the handle is removed at ``stop``."""
        return None

    def flush(self) -> None:
        """Bring what was received so far into files: at ``stop``, and before a step ends."""

    def has_records(self) -> bool:
        """True if this step has any; true as well where the sink has a reason to have none."""
        return True

    def has_tensors(self) -> bool:
        """True if tensors of this step were saved, where they are wanted."""
        return True

    def discard(self) -> None:
        """The step that has begun is none: leave nothing of it."""

    def restart(self) -> None:
        """The steps that have ended are none: leave nothing of them; steps are counted from the first one again."""

    def end_step(self) -> None:
        """The collected step is over, gradients included."""

    def after_step(self, ended: EndedStep) -> None:
        """A step of the program is over; called for those that are not collected too."""

    def finish(self, ended: EndedStep) -> None:
        """The program ends, perhaps in the middle of a step. Other ranks are not waited for any more."""

    def forked(self, for_good: bool) -> None:
        """This process was forked: the step that has begun is its parent's. `for_good`: it collects none of its own."""

    # --- failures

    def failed(self, name: str, error: BaseException) -> bool:
        """Something of the tool has failed at the record `name`. True if the sink has told the user."""
        return False

    @property
    def losses(self) -> dict[int, str]:
        """By step, what could not be written and why."""
        return {}

    def log_losses(self) -> None:
        """Log what could not be written, unless it was logged before."""

    # --- live calls

    def enter(self, call: ActiveCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A wanted function or module is about to run; `call.api` is ``None`` for a module."""

    def leave(self, call: ActiveCall, output: Any) -> bool:
        """It returned `output`. True if this sink wants the call's backward reported."""
        return False

    def withdraw(self, call: ActiveCall) -> None:
        """No result of a call that was entered follows: it raised, declined, or works on in the background."""

    def backward(self, call: ActiveCall, grad_output: Sequence[Any], grad_input: Sequence[Any]) -> None:
        """The gradients of the outputs and of the inputs of a function's call."""

    def gradient(self, call: ActiveCall, field: str, index: int, gradient: Any) -> None:
        """One gradient of a module's call: `field` is ``input`` (of an output tensor) or ``output`` (of an input)."""

    def parameter_gradient(self, module: ModuleName, parameter: str, gradient: Any) -> None:
        """A gradient was accumulated into a parameter of `module`, which now has `gradient`."""

    # --- records

    def record(self, call: ActiveCall, rule: int) -> None:
        """The record of `call` is there: its name, stack, parent and fields.

        Args:
            call: Fields that wait for their statistics are filled by `Tensors.resolve`.
            rule: What becomes of an earlier record of this name (`probe.common.dump.journal.REPLACE` …).
        """

    def node(self, call: ActiveCall) -> None:
        """`call`, which has no fields, took place: its position in the call tree, and its stack."""

    def update(self, update: UpdateFrame) -> None:
        """An optimizer has made a step, or a gradient scaler has skipped it; entries may wait for their statistics."""

    # --- tensors

    def saver_of(self, call: ActiveCall | None) -> SaveTensor | None:
        """Function that saves the tensors of `call`, or of a value without a call; ``None`` if they are not wanted."""
        return None

    def returned(self, call: ActiveCall) -> None:
        """The record of the forward of a wanted call is complete."""

    def decide(self, call: ActiveCall, wanted: bool) -> None:
        """It is known now whether a backward is `wanted` whose tensors were kept until its end."""
