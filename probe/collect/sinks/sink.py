"""A sink receives what is collected: it says for each step what it needs, and nothing else is made.

The hooks report to one `Collector`, which counts the calls, applies the configuration (``step``, ``rank``, ``list``,
``scope``, ``risk_level``) and hands on the wanted calls. Several sinks may be there at once; a failure of one is logged
and does not reach the others, nor the training.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple, Optional, Union

from probe.backends.protocol import FrameworkAdapter
from probe.collect.active_calls import ActiveCall
from probe.collect.describing.values import SaveTensor, Suspects
from probe.common.callstack import CallStacks
from probe.common.config.config import Config
from probe.common.config.fields import numbers_text
from probe.common.dump.update_file import UpdateFrame
from probe.common.interfaces import Handle, JudgeStep, ModuleName

RECEIVERS = ("enter", "leave", "backward", "gradient", "record", "update", "saver_of")
"""The needs that are functions."""


@dataclass(frozen=True)
class Needs:
    """Needs of a sink for one step: the functions that receive what is collected, and what records are made of.

    No function may change a value. What one raises is logged. What no sink receives is not made.

    Args:
        enter: Called with a wanted call, args and kwargs, when a function or module is about to run; `call.api` is
            ``None`` for a module.
        leave: Called with the call and its output. True if this sink wants the call's backward reported. Not called for
            a call that raised, declined, or works on in the background.
        backward: Called with a function's call, and the gradients of its outputs and of its inputs, if `leave` of a
            sink returned true for the call, or a sink has records of the backward (`gradients`).
        gradient: Called with one gradient of a module: the call of a module, whose gradient has the name ``input.0``
            (of an output tensor) or ``output.0`` (of an input), under the condition of `backward`; or a module, into
            whose parameter of that name a gradient was accumulated, and all that the parameter has now.
        record: Called with each call that has a record, when its name, stack, parent and fields are there, and with
            what becomes of an earlier record of this name (`probe.common.dump.journal.REPLACE` …). Fields that wait for
            their statistics are filled by `Tensors.resolve`.
        update: Called when an optimizer has made a step, or a gradient scaler has skipped it; entries may wait for
            their statistics.
        saver_of: Called with a call, or with ``None`` for a value without one. It returns a function that saves tensors
            while they are described, or ``None`` if they are not wanted. Records of all sinks name their files.
        tree: `record` gets calls without a record as well, with ``None``, for their position in the call tree and
            their stack.
        statistics: Records have fields: arguments, results and parameters, with the statistics of tensors.
        gradients: `record` gets records of the backward too. If no sink wants a backward, none is hooked.
        stacks: The call stack of each call, as a number of `Step.stacks`.
        random_states: The state from which a call whose tensors are saved draws random numbers.
        nonfinite: The entries of tensors that are not finite, in `Step.suspects`.
        step_numbers: The loss and the gradient norm that the program gives to ``step``.
    """

    enter: Optional[Callable[[ActiveCall, Sequence[Any], Mapping[str, Any]], None]] = None  # noqa: UP045 (evaluated)
    leave: Optional[Callable[[ActiveCall, Any], bool]] = None  # noqa: UP045
    backward: Optional[Callable[[ActiveCall, Sequence[Any], Sequence[Any]], None]] = None  # noqa: UP045
    gradient: Optional[Callable[[Union[ActiveCall, ModuleName], str, Any], None]] = None  # noqa: UP007, UP045
    record: Optional[Callable[[ActiveCall, Optional[int]], None]] = None  # noqa: UP045
    update: Optional[Callable[[UpdateFrame], None]] = None  # noqa: UP045
    saver_of: Optional[Callable[[Optional[ActiveCall]], Optional[SaveTensor]]] = None  # noqa: UP045
    tree: bool = False
    statistics: bool = False
    gradients: bool = False
    stacks: bool = False
    random_states: bool = False
    nonfinite: bool = False
    step_numbers: bool = False

    def __post_init__(self) -> None:
        for name in RECEIVERS:
            receive = getattr(self, name)
            if receive is not None and not callable(receive):
                raise TypeError(f"probe.Needs({name}={receive!r}): allowed is a function that receives it, or None")


class Step:
    """A step that is collected.

    Args:
        number: The number of the step.
        rank: ``None`` in a program without ranks; it may be known only at a later `Sink.start` of the step.
        process: The name of the folder for this process: ``rank0`` or ``proc123``.
        stacks: The call stacks that calls refer to by number.
    """

    def __init__(self, number: int, rank: int | None, process: str, stacks: CallStacks) -> None:
        self.number = number
        self.rank = rank
        self.process = process
        self.stacks = stacks
        self.suspects = Suspects()
        """The entries of this step that are not finite, if a sink needs them."""


class EndedStep(NamedTuple):
    """A step of the program that is over, collected or not."""

    number: int
    loss: Any = None
    """The loss as given to ``step``, like the gradient norm; ``None`` if not given."""
    gradient_norm: Any = None
    ends_program: bool = False
    """True if the program ends, perhaps in the middle of the step: other ranks are not waited for any more."""


class Discarded(enum.Enum):
    """The steps of which a sink leaves nothing."""

    STEP = enum.auto()
    """The step that has begun."""
    ALL_STEPS = enum.auto()
    """The steps that have ended as well; steps are counted from the first one again."""
    OF_PARENT = enum.auto()
    """The steps of the parent, with its files, in a process that was forked and may collect steps of its own."""
    OF_PARENT_FOR_GOOD = enum.auto()
    """The steps of the parent, in a process that was forked in the middle of a step, and collects none of its own."""

    @property
    def is_fork(self) -> bool:
        return self in (Discarded.OF_PARENT, Discarded.OF_PARENT_FOR_GOOD)


def _goes_on() -> None:
    """Let the program go on, where nobody can end it."""


class Host(NamedTuple):
    """The session, as far as a sink may ask it."""

    adapter: FrameworkAdapter
    config: Callable[[], Config]
    """The settings for the step that begins next, or has begun."""
    failed: Callable[[Any, BaseException], None]
    """Log a failure of the tool; the training goes on."""
    rank: Callable[[], Optional[int]]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The rank of this process, as far as it is known now."""
    end_collection: Callable[[], None]
    """Collect no further step."""
    numbers: Callable[[], Mapping[str, int]]
    """The number that the next call of each name gets."""
    make_judge: Optional[Callable[[], JudgeStep]] = None  # noqa: UP045
    """Makes what compares a step with that of a golden run."""
    stop_program: Callable[[], None] = _goes_on
    """End the program at the end of this step."""


@dataclass
class Status:
    """The steps that a sink has written, and its losses.

    Args:
        steps: The steps of which something was written.
        is_selective: True if only some of the collected steps are written, those that have something to report.
        losses: By step, what could not be written and why.
        is_recoverable: True if the journals of these steps have what their files lack.
        has_records: True if the step that goes on has any, or the sink has a reason to have none.
        has_tensors: True if tensors of that step were saved, where they are wanted.
    """

    steps: Sequence[int] = ()
    is_selective: bool = False
    losses: Mapping[int, str] = field(default_factory=dict)
    is_recoverable: bool = False
    has_records: bool = True
    has_tensors: bool = True

    @staticmethod
    def together(statuses: Sequence[Status]) -> Status:
        """The status of several sinks."""
        losses: dict[int, list[str]] = {}
        for status in statuses:
            for step, loss in status.losses.items():
                losses.setdefault(step, []).append(loss)
        return Status(
            sorted({step for each in statuses for step in each.steps}),
            is_selective=all(each.is_selective for each in statuses),
            losses={step: "; ".join(of_step) for step, of_step in losses.items()},
            is_recoverable=any(each.is_recoverable for each in statuses),
            has_records=all(each.has_records for each in statuses),
            has_tensors=all(each.has_tensors for each in statuses),
        )

    def losses_text(self, dump_path: str) -> str:
        """The losses in one line, steps with the same loss together."""
        steps: dict[str, list[int]] = {}
        for step, loss in self.losses.items():
            steps.setdefault(loss, []).append(step)
        parts = [f"step{'s' if len(of) > 1 else ''} {numbers_text(of)}: {loss}" for loss, of in steps.items()]
        text = f"not everything was collected. {'; '.join(parts)}."
        if not self.is_recoverable:
            return text
        root = os.path.abspath(dump_path)
        return f"{text} When there is room, `msprobe recover {root}` makes files from the journals."


class Sink:
    """Receives the parts of each step that it needs. Every method here does nothing: a sink has those that it uses.

    No method may change a value. What one raises is logged.
    """

    def needs(self) -> Needs:
        """Needs of the sink for the next step, and the functions that receive them; called when a step begins."""
        return Needs()

    def begin_step(self, step: Step) -> bool:
        """A step is collected from now on. False if the sink cannot, which costs it this step only."""
        return True

    def start(self, models: Any) -> Handle | None:
        """Collection begins or goes on in the step: say so in the log.

        Args:
            models: The models as given to ``start``, which have their hooks; ``None`` where there are none.

        Returns:
            Further hooks on the models, which are removed at ``stop``.
        """
        return None

    def flush(self) -> None:
        """Bring what was received so far into files: at ``stop``, and before a step ends."""

    def end_step(self) -> None:
        """The collected step is over, gradients included."""

    def discard(self, what: Discarded) -> None:
        """Leave nothing of some steps."""

    def after_step(self, ended: EndedStep) -> None:
        """A step of the program is over; called for those that are not collected too, and when the program ends."""

    def status(self) -> Status:
        """The steps that were written so far, and the losses."""
        return Status()

    def failed(self, name: str, error: BaseException) -> bool:
        """Something of the tool has failed at the record `name`. True if the sink has told the user."""
        return False
