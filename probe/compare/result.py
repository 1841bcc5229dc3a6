"""The result of a comparison, as plain data: everything printed, written or judged further is made from it."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Literal, Optional

import msgspec

from probe.common.align.calls import Row
from probe.common.align.counterparts import END, LEFT_OUT, RECOMPUTED, CallPair
from probe.common.align.mapping import MatchOptions
from probe.common.dump.naming import Levels, is_module
from probe.common.dump.reading.call_tree import around
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import INPUT, PARAMETERS
from probe.common.dump.reading.sources import Stacks, Tree
from probe.common.numerics.error_bounds import extent
from probe.common.numerics.formats import unit_roundoff

NAMES, KINDS, MAPPING, LAYERS = "names", "kinds", "mapping", "layers"


class Pairing(msgspec.Struct, frozen=True):
    """The pairs of names."""

    by: str = NAMES
    """``names``; ``kinds`` with ``-fm``; ``mapping`` where one was given; ``layers`` where one was worked out."""
    same_name: int = 0
    """The number of calls that were paired with one of the same name."""
    other_name: int = 0
    """The number of calls that were paired with one of another name or number."""
    renamed: dict[str, str] = msgspec.field(default_factory=dict)
    """By the name of a call of the target, another name of its golden call."""
    target_only: list[str] = msgspec.field(default_factory=list)
    """Calls of the target without a counterpart."""
    golden_only: list[str] = msgspec.field(default_factory=list)


def pairing(pairs: Iterable[tuple[str | None, str | None]], options: MatchOptions, aligned: bool = False) -> Pairing:
    """The way in which calls were paired.

    Args:
        pairs: the calls of the target with their counterparts; ``None`` where one side has none.
        options: what the user chose.
        aligned: true if a mapping of layers was worked out.
    """
    same = 0
    renamed: dict[str, str] = {}
    alone: tuple[list[str], list[str]] = [], []
    for record, golden in pairs:
        if record == golden:
            same += 1
        elif record is None or golden is None:
            alone[record is None].append(record or golden or "")
        else:
            renamed[record] = golden
    by = KINDS if options.fuzzy else MAPPING if options.maps_names else LAYERS if aligned else NAMES
    return Pairing(by, same, len(renamed), renamed, *alone)


# --- coverage


ENOUGH = 0.8
"""The share of records from which on silence means something; a guess."""
_ANYTHING = 0.1
"""The share of parameters below which two runs are of two models, and what corresponds says nothing; a guess."""
_SEVERAL = 10
"""The least number of parameters for that judgement; a guess."""

_FIRST_CALL = ".forward.0"


class Coverage(msgspec.Struct, frozen=True):
    """Records and parameters of both sides."""

    compared_records: int = 0
    """Records with a counterpart, records that only compute again what such a record has, and records inside a module
    with a counterpart, which are judged at its border."""
    records: int = 0
    compared_parameters: int = 0
    parameters: int = 0

    @property
    def is_enough(self) -> bool:
        """True if so much was compared that silence means something."""
        return self.compared_records >= ENOUGH * self.records

    @property
    def is_of_two_models(self) -> bool:
        """True if so little corresponds that not even a difference means something.

        Optimizers call the same functions for every model, and each ends in a loss; parameters tell.
        """
        has_several = self.parameters >= _SEVERAL
        return has_several and self.compared_parameters < _ANYTHING * self.parameters and not self.is_enough

    @property
    def is_whole(self) -> bool:
        """True if every record was compared."""
        return self.compared_records == self.records


def coverage(pairs: Sequence[CallPair], trees: tuple[Tree | None, Tree | None], shared: int = 0) -> Coverage:
    """The compared part of two runs.

    A call that computes again what a paired one has is compared with it. What one side cannot have counts for nothing.

    Args:
        pairs: the calls side by side.
        trees: the call trees of target and golden side.
        shared: the number of parameters that optimizers of both sides update, by their names.
    """
    pairs = [pair for pair in pairs if pair.how not in LEFT_OUT]
    of_both = [pair for pair in pairs if pair.how == RECOMPUTED or _is_compared(pair)]
    compared = total = 0
    for name, tree in zip((attrgetter("record"), attrgetter("golden_record")), trees):
        made = [pair for pair in pairs if name(pair)]
        matched = {name(pair) for pair in of_both if name(pair)}
        total += len(made)
        compared += len(made) - _without_counterpart([name(pair) for pair in made], matched, tree or {})
    matched_parameters, parameters = count_parameters(row for pair in pairs for row in pair.rows)
    return Coverage(compared, total, min(max(matched_parameters, 2 * shared), parameters), parameters)


def _without_counterpart(records: Sequence[str], matched: set[str], tree: Tree) -> int:
    """Number of records that have no counterpart, and nothing that is judged instead.

    That is the innermost module with a counterpart, if it is right around the call of a function, or holds no more than
    half of the run: the border of a whole program says too little of what is in it.
    """
    around = {record: _innermost(record, matched, tree) for record in records if record not in matched}
    held = Counter(filter(None, around.values()))
    number = 0
    for record, module in around.items():
        is_function_of = module is not None and not is_module(record) and tree.get(record) == module
        number += not (is_function_of or (module is not None and 2 * held[module] <= len(records)))
    return number


def _innermost(record: str, matched: set[str], tree: Tree) -> str | None:
    return next((module for module in around(tree, record) if module in matched), None)


def _is_compared(pair: CallPair) -> bool:
    return bool(pair.record and pair.golden_record) and has_compared_values(pair)


def has_compared_values(call: CallPair) -> bool:
    """True unless every floating-point output that both sides have has another number of elements on the other."""
    if not call.record or not call.golden_record:
        return True
    found = True
    for row in call.rows:
        target, golden = row.target, row.golden
        if target is None or golden is None or target.state in (INPUT, PARAMETERS):
            continue
        if not (target.is_tensor and golden.is_tensor):
            continue
        if unit_roundoff(target.dtype):
            if extent(target.shape).elements == extent(golden.shape).elements:
                return True
            found = False
    return found


def count_parameters(rows: Iterable[Row]) -> tuple[int, int]:
    """The number of parameters of both sides that have a counterpart, and how many there are."""
    compared = total = 0
    for row in rows:
        item = row.target or row.golden
        if item is None or item.state != PARAMETERS or not row.record.endswith(_FIRST_CALL):
            continue
        is_matched = row.target is not None and row.golden is not None
        total += 1 + is_matched
        compared += 2 * is_matched
    return compared, total


# --- result


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


class Rerun(msgspec.Struct, frozen=True):
    """The outcome of the target's call, run again on the golden run's inputs."""

    answer: str
    """``inputs``, ``call``, ``neither``, ``either``, ``not_reproduced``, or ``not_run``."""
    text: str
    """The answer in words."""
    inputs_change: Optional[float] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The relative difference that the inputs make; ``None`` where it is not known."""
    call_changes: Optional[float] = None  # noqa: UP045
    """The relative difference that the call makes: its kernel, or its arguments."""


class Unexplained(msgspec.Struct, frozen=True):
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


class Difference(msgspec.Struct, frozen=True):
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


class Carried(msgspec.Struct, frozen=True):
    """The parameters of both sides at the beginning of a step, through which steps before reach it."""

    target: int
    """A checksum of the values on this side."""
    golden: int
    differ: bool
    """True if a parameter differs between the sides."""


class Origin(msgspec.Struct, frozen=True):
    """The step and the rank whose divergence has reached another step or rank."""

    step: str
    label: str


class MergedRanks(msgspec.Struct, frozen=True):
    """The ranks whose calls were merged to one call."""

    ranks: list[int]
    differing: list[int]
    """Ranks whose part differs, where values tell; empty where they do not."""


class Divergence(msgspec.Struct, frozen=True):
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


class Truncation(msgspec.Struct, frozen=True):
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


class Decision(msgspec.Struct, frozen=True):
    """The choices of one call in both runs: the experts of a router, the indices of top-k or argmax."""

    record: str
    golden_record: str
    module: str
    """The record of the innermost module around it; empty if it is not known."""
    differing: int
    """The choices that differ; the order in which a choice names its indices does not count."""
    compared: int
    made: int
    """The choices that the call made, of which the first are recorded."""
    needed: Optional[float] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The smallest relative distance of the values among which the call chose that turns all these choices; ``None`` if
    margins were not recorded."""
    apart: Optional[float] = None  # noqa: UP045
    """The relative distance that these values have."""
    is_explained: Optional[bool] = None  # noqa: UP045
    """True if the distance is large enough; ``None`` if it cannot be told, or nothing differs."""


class Findings(msgspec.Struct):
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
    with_effect: list[Difference] = msgspec.field(default_factory=list)
    """The differences in calls that diverge, each of which can be the cause."""
    without_effect: list[Difference] = msgspec.field(default_factory=list)
    """The differences that change no value."""
    undecided: list[Difference] = msgspec.field(default_factory=list)
    """Differences that may have an effect that nothing would show; empty where the runs diverge."""
    carried: Optional[Carried] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The parameters at the beginning of the step; ``None`` where none are recorded."""
    coverage: Coverage = msgspec.field(default_factory=Coverage)
    """The part that was compared; it does not cover saved values."""
    pairing: Pairing = msgspec.field(default_factory=Pairing)
    """The way in which the calls of both sides were paired; of saved values nothing is said."""
    divergence: Optional[Divergence] = None  # noqa: UP045
    """The first call that differs by more than its inputs explain."""
    levels: Levels = (None, None)
    """The levels of both dumps."""
    truncations: list[Truncation] = msgspec.field(default_factory=list)
    """The sides that end early."""
    without_tree: list[str] = msgspec.field(default_factory=list)
    """The sides whose calls have no tree, because construct.json is missing."""
    without_sketches: str = ""
    """``one program``, ``two programs`` or ``two frameworks``, where a run has no sketches and no tensors."""
    decisions: list[Decision] = msgspec.field(default_factory=list)
    """The choices of calls that both runs made, in their order."""
    gradients_agree: str = ""
    """The sentence on gradients of all parameters that agree, where most calls have no counterpart: one run takes the
    batch in parts, or is compiled as a whole."""
    tables: list[str] = msgspec.field(default_factory=list)
    """The files that were written."""


class ComparisonResult(Findings):
    """Two dumps compared: rows in the order of the target, then what only the golden side has."""

    rows: list[Row] = msgspec.field(default_factory=list)
    stacks: Optional[Stacks] = None  # noqa: UP045
    """The call stacks of the target."""
    golden_stacks: Optional[Stacks] = None  # noqa: UP045
    data_mapping: Optional[dict[str, str]] = None  # noqa: UP045
    """The data mapping that a layer mapping became, item by item."""
    diverging: list[Row] = msgspec.field(default_factory=list)
    """The rows that show the divergence, in the order of its calls: the first, and those of the suspects."""
    shows_distances: bool = False
    """True if the table has the columns of distances, which no other tool's table has."""
    algorithms: tuple[str, ...] = ()
    """Columns of the user's own metrics, behind the built-in ones of real data."""


# --- truncation


def truncations(pairs: Sequence[CallPair], sides: tuple[Dump, Dump]) -> list[Truncation]:
    """The sides that end early: those that died, and one that lacks the last records of the other and nothing else.

    Args:
        pairs: the calls side by side.
        sides: the dumps, which say whether their runs died.
    """
    found = []
    for number, (side, dump) in enumerate(zip((TARGET, GOLDEN), sides)):
        lacks = [pair for pair in pairs if (pair.record, pair.golden_record)[number] is None and pair.rows]
        more = sum(pair.how == END for pair in lacks)
        last = dump.records[-1].name if dump.records else ""
        if dump.died or more:
            found.append(Truncation(side, last, more, dump.died, dump.cut_at))
    return found
