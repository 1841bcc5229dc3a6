"""The result of a comparison, as plain data: everything printed, written or judged further is made from it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Optional

from probe.common.align.row import Row
from probe.common.dump.levels import Levels
from probe.common.dump.reading.sources import Stacks
from probe.compare.coverage import Coverage
from probe.compare.pairing import Pairing

SIDES = TARGET, GOLDEN = "target", "golden run"

Answer = Literal["divergence", "none", "cannot_tell"]
DIVERGENCE: Answer = "divergence"
"""A value that inputs, precision and structure do not explain."""
NONE: Answer = "none"
"""Everything that decides was compared, and is explained."""
CANNOT_TELL: Answer = "cannot_tell"
"""Too little was compared, or something differs whose effect would not show."""


class Mode(str, enum.Enum):
    """The quantities by which two dumps are compared."""

    STATISTICS = "statistics"
    TENSOR = "tensor"
    CHECKSUM = "checksum"


@dataclass(frozen=True)
class Rerun:
    """The outcome of the target's call, run again on the golden run's inputs."""

    answer: str
    """``inputs``, ``call``, ``neither``, ``either``, ``not_reproduced``, or ``not_run``."""
    text: str
    """The answer in words."""
    inputs_change: Optional[float] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The relative difference that the inputs make; ``None`` where it is not known."""
    call_changes: Optional[float] = None  # noqa: UP045
    """The relative difference that the call makes: its kernel, or its arguments."""


@dataclass(frozen=True)
class Unexplained:
    """A call that differs by more than its inputs explain."""

    record: str
    """The target's record; empty where only the golden side made the call."""
    golden_record: str
    """The golden side's record; empty where only the target made the call."""
    module: str
    """The record of the innermost module around the call, or of the call if it is one; empty without a call tree."""
    reason: str
    """The extent to which values diverge, in words; of a call that one side alone made, that."""
    cause: str = ""
    """The difference that made them diverge, where one was found: an argument, a type, the optimizer's step."""
    place: int = 0
    """The number of calls that were made before it."""
    communicates: bool = False
    """True if what it returns comes from other ranks, where the cause may be."""
    item: str = ""
    """The input or output that shows it; empty where the call itself is missing on one side."""
    found: Optional[float] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The relative difference; ``None`` where it is no matter of numbers."""
    allowed: Optional[float] = None  # noqa: UP045
    """The relative difference that is explained."""
    of_inputs: Optional[float] = None  # noqa: UP045
    """The relative difference of what the call takes, its parameters included; ``None`` where it was not looked at."""
    rerun: Optional[Rerun] = None  # noqa: UP045
    """The outcome of running it again, where that was asked for; ``None`` of calls after the fifth."""
    labelled_reason: str = ""
    """The reason in labels and numbers, as people are shown it; empty if it is shown as it is."""
    labelled_cause: str = ""
    """The cause in labels and numbers; empty if it is shown as it is."""

    @property
    def shown_reason(self) -> str:
        """The reason for people."""
        return self.labelled_reason or self.reason

    @property
    def shown_cause(self) -> str:
        """The cause for people; empty without one."""
        return self.labelled_cause or self.cause


@dataclass(frozen=True)
class Difference:
    """A difference in a call that is not one of values: an argument, a type, a shape, an item on one side only."""

    record: str
    golden_record: str
    item: str
    reason: str
    """The difference, in words."""
    shows_from: Optional[float] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The relative size from which on an effect on values would have shown, of what may have one.

    ``None`` if it can have none, and if no value was compared that would show it.
    """
    is_value: bool = False
    """True if it is a value that differs, and not what may change one. The reason says then what was looked for."""
    labelled_reason: str = ""
    """The reason in labels and numbers, as people are shown it; empty if it is shown as it is."""
    values: Optional[tuple[str, str]] = None  # noqa: UP045
    """The values of an argument or a setting in target and golden run; ``None`` of a difference of another kind."""

    @property
    def shown_reason(self) -> str:
        """The reason for people."""
        return self.labelled_reason or self.reason


@dataclass(frozen=True)
class Carried:
    """The parameters of both sides at the beginning of a step, through which steps before reach it."""

    target: int
    """A checksum of the values on this side."""
    golden: int
    differ: bool
    """True if a parameter differs between the sides."""


@dataclass(frozen=True)
class Origin:
    """The step and the rank whose divergence has reached another step or rank."""

    step: str
    label: str


@dataclass(frozen=True)
class MergedRanks:
    """The ranks whose calls were merged to one call."""

    ranks: list[int]
    differing: list[int]
    """Ranks whose part differs, where values tell; empty where they do not."""


@dataclass(frozen=True)
class Divergence:
    """The divergence of two runs."""

    first: Unexplained
    stack: list[str]
    """The place of the call in the target's code, innermost line first."""
    golden_stack: list[str]
    suspects: list[Unexplained]
    """The next calls of which the same holds, in order of execution."""
    merged: Optional[MergedRanks] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The ranks that make the first call, where the ranks of a split model were merged."""

    @property
    def record(self) -> str:
        """The record of the first call, on whichever side it is."""
        return self.first.record or self.first.golden_record


@dataclass(frozen=True)
class Truncation:
    """One side that ends early."""

    side: str
    """``target`` or ``golden run``."""
    record: str
    """The last record of the side; empty where it has none."""
    more: int
    """The number of records that the other side has after the last one that is matched."""
    died: bool
    """True if it is the journal of a run that died, or a file that is cut short."""
    cut_at: Optional[int] = None  # noqa: UP045
    """The byte at which the file is cut off; ``None`` of a journal."""

    def __str__(self) -> str:
        end = f"ends at {self.record}" if self.record else "has no record"
        why = "is the journal of a run that died" if self.cut_at is None else f"is cut off at byte {self.cut_at}"
        what = f"the {self.side} {f'{why}; it ' if self.died else ''}{end}"
        other = GOLDEN if self.side == TARGET else TARGET
        return f"{what}; the {other} has {self.more} more record{'' if self.more == 1 else 's'}" if self.more else what


@dataclass
class Findings:
    """All that was found of two dumps and is not of single rows."""

    target: str
    """The file of the target."""
    golden: str
    """The file of the golden side."""
    mode: Mode
    debug: bool = False
    """True if the dumps hold saved values and not calls, of which nobody knows which comes from which."""
    label: str = ""
    """``rank0`` or ``proc123`` where there is more than one pair."""
    step: str = ""
    """``step0`` where there are several."""
    left_out: str = ""
    """The first step and process of the runs that was not compared, because a pool took tasks in another order."""
    missing: Sequence[str] = ()
    """The steps and ranks that one run has alone, which the last pair of their step, or of all, tells."""
    with_effect: list[Difference] = field(default_factory=list)
    """The differences in calls that diverge, each of which can be the cause."""
    without_effect: list[Difference] = field(default_factory=list)
    """The differences that change no value."""
    undecided: list[Difference] = field(default_factory=list)
    """Differences that may have an effect that nothing would show; empty where the runs diverge."""
    carried: Optional[Carried] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The parameters at the beginning of the step; ``None`` where none are recorded."""
    coverage: Coverage = field(default_factory=Coverage)
    """The part that was compared; it does not cover saved values."""
    pairing: Pairing = field(default_factory=Pairing)
    """The way in which the calls of both sides were paired; of saved values nothing is said."""
    divergence: Optional[Divergence] = None  # noqa: UP045
    """The first call that differs by more than its inputs explain."""
    levels: Levels = (None, None)
    """The levels of both dumps."""
    truncations: list[Truncation] = field(default_factory=list)
    """The sides that end early."""
    without_tree: list[str] = field(default_factory=list)
    """The sides whose calls have no tree, because construct.json is missing."""
    without_sketches: str = ""
    """``one program``, ``two programs`` or ``two frameworks``, where a run has no sketches and no tensors."""
    gradients_agree: str = ""
    """The sentence on gradients of all parameters that agree, where most calls have no counterpart: one run takes the
    batch in parts, or is compiled as a whole."""
    tables: list[str] = field(default_factory=list)
    """The files that were written."""


@dataclass
class ComparisonResult(Findings):
    """Two dumps compared: rows in the order of the target, then what only the golden side has."""

    rows: list[Row] = field(default_factory=list)
    stacks: Optional[Stacks] = None  # noqa: UP045
    """The call stacks of the target."""
    golden_stacks: Optional[Stacks] = None  # noqa: UP045
    data_mapping: Optional[dict[str, str]] = None  # noqa: UP045
    """The data mapping that a layer mapping became, item by item."""
    diverging: list[Row] = field(default_factory=list)
    """The rows that show the divergence, in the order of its calls: the first, and those of the suspects."""
    shows_distances: bool = False
    """True if the table has the columns of distances, which no other tool's table has."""
    algorithms: tuple[str, ...] = ()
    """Columns of the user's own metrics, behind the built-in ones of real data."""
