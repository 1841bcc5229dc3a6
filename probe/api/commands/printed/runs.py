"""Objects that are printed of runs: `show`, `compare`, `graph_visualize`, `overflow_check`, `recover` and `pack`."""

from __future__ import annotations

from typing import Any

from typing_extensions import NotRequired, TypedDict

from probe.api.commands.printed.answer import Files, Statistic, Trouble
from probe.common.dump.recovery import RecoveredFolder
from probe.compare.ranks.answer import RankFinding
from probe.compare.result import (
    Coverage,
    Decision,
    Difference,
    MergedRanks,
    Origin,
    Pairing,
    Truncation,
    Unexplained,
)
from probe.compare.summary import Suspect, Unjudged, Unmatched
from probe.overflow.overflow_report import Explanation

# --- show


# Names with a blank, as dump.json has them.
_FiniteRange = TypedDict("_FiniteRange", {"Finite Max": Statistic, "Finite Min": Statistic}, total=False)


class ShownItem(_FiniteRange):
    """An input, parameter, output or gradient of a record."""

    name: str
    state: str
    """``input``, ``parameters``, ``output`` …"""
    dtype: str | None
    shape: list[int] | None
    Max: Statistic
    Min: Statistic
    Mean: Statistic
    Norm: Statistic
    Nonfinite: NotRequired[int]
    """The number of elements that are not finite."""
    requires_grad: bool | None
    md5: str | None
    value: Any
    """The value of a plain argument."""
    data_name: str | None
    """The file of the tensor."""
    made_by: NotRequired[str | None]
    """With ``--items``: the record that made the tensor."""
    sketch: NotRequired[list[float] | None]


class ShownRecord(TypedDict):
    """A call, forward or backward."""

    name: str
    inside: str | None
    """The module around it."""
    items: list[ShownItem]
    stack: NotRequired[list[str]]
    """With ``--stack``."""


class ShownDump(TypedDict):
    """A dump."""

    path: str
    step: int | None
    rank: int | None
    framework: str
    task: str
    level: str
    died: bool
    """True for the journal of a run that died."""
    records_in_dump: int
    first_nan: ShownItem | None
    first_infinity: ShownItem | None
    records: list[ShownRecord]


class TimelineEntry(TypedDict):
    """The first output of one call in one step."""

    record: str
    step: int | None
    process: str
    Max: Statistic
    Norm: Statistic
    growth: float | None
    """The norm divided by that of the step before."""


class UpdatedParameterEntry(TypedDict):
    """A parameter, and its change by one update."""

    name: str
    group: int
    state_step: float | None
    elements: int
    gradient_norm: Statistic
    parameter_norm: Statistic
    note: str | None
    update_norm: dict[str, Any] | None
    """An estimate and its interval."""


class UpdateEntry(TypedDict):
    """One step of an optimizer."""

    optimizer: str
    index: int
    groups: list[dict[str, Any]]
    """The settings of each group."""
    skipped: bool
    parameters: list[UpdatedParameterEntry]


class ShownUpdates(TypedDict):
    """The updates of a dump."""

    path: str
    updates: list[UpdateEntry]


# --- compare


class PairDivergence(TypedDict):
    """The answer for a pair of dumps."""

    answer: str
    """``divergence``, ``none`` or ``cannot_tell``."""
    why: str
    follows: Origin | None
    """The step and rank whose divergence has reached this pair."""
    first: Unexplained | None
    stack: list[str]
    """The call stack of the first call in the target."""
    golden_stack: list[str]
    suspects: list[Unexplained]
    """All later calls that diverge by themselves."""
    merged: MergedRanks | None


class OutsideEntry(TypedDict):
    """A difference outside of the model."""

    kind: str
    name: str
    target: Any
    golden: Any
    text: str


class ComparedPair(TypedDict):
    """A pair of dumps."""

    target: str
    golden: str
    label: str
    """The rank or process."""
    step: str
    mode: str
    """``statistics``, ``tensor`` or ``checksum``."""
    levels: tuple[str | None, str | None]
    divergence: PairDivergence
    undecided: list[Difference]
    """Differences whose effect cannot be told; empty where the runs diverge."""
    with_effect: list[Difference]
    """Differences in calls that diverge."""
    without_effect: list[Difference]
    """Differences after which nothing diverges."""
    decisions: list[Decision]
    """The calls that choose."""
    coverage: Coverage
    pairing: Pairing
    rows: int
    """The rows of the table."""
    counts: dict[str, int]
    """The number of rows with each result."""
    tables: list[str]
    suspects: list[Suspect]
    """The first five records with an error, or with a warning if there is no error."""
    suspect_records: int
    target_only: int
    """Items of the target without a match."""
    golden_only: int
    target_unmatched: Unmatched
    golden_unmatched: Unmatched
    endings: list[Truncation]
    """Runs that end early."""
    without_tree: list[str]
    """The runs without construct.json."""
    unjudged: Unjudged
    saved_values: bool
    differs: bool
    """True if anything differs."""
    environment: list[OutsideEntry]
    missing: list[str]
    """Steps and ranks that one run lacks."""
    left_out: str
    page: str | None
    """The page of ``--html``."""


class FirstOfRanks(TypedDict):
    """The first differences of the ranks in a step."""

    step: str
    ranks: dict[str, list[dict[str, Any]]]
    answer: str | None
    files: list[str]


class Analysed(Trouble):
    """The first differences of several ranks."""

    steps: list[FirstOfRanks]


class ComparedRanks(Trouble):
    """The ranks of one run, compared with each other."""

    ranks: list[int]
    steps: list[int | None]
    findings: list[RankFinding]
    facts: list[str]
    checked: int
    """The results of communication that were compared with their inputs, and the gradients of replicas."""
    replicas: int


class StateEntry(TypedDict):
    """A part of the state of a resumed run."""

    name: str
    """``weights``, ``optimizer``, ``schedule``, ``generators``, ``data`` or ``buffers``."""
    status: str
    text: str


class ComparedResumed(Trouble):
    """A resumed run, compared with one that was not interrupted."""

    resumed_step: int
    uninterrupted_step: int
    states: list[StateEntry]
    steps: list[tuple[int, int]]
    first: dict[str, Any] | None
    """The first call with other bits."""


class ProbedRank(TypedDict):
    """The gradients of a rank of two probes."""

    rank: int
    total: dict[str, float]
    """The similarity of all gradients, by the step."""
    suspicious: list[dict[str, Any]]
    notes: list[str]


class ComparedGradients(Trouble):
    """Two runs of task ``grad_probe``."""

    ranks: list[ProbedRank]
    first_turn: dict[str, Any] | None


# --- graph_visualize


class Graph(Files):
    """The page of two runs, or of one."""

    nodes: int
    first_divergence: str | None
    verdict: list[str]
    remarks: list[str]
    unpaired: list[str]


class GraphFolders(Trouble):
    """The folders of graphs."""

    folders: list[str]


# --- overflow_check


class OverflowFinding(TypedDict):
    """A cause of values that are not finite."""

    kind: str
    rank: int
    record: str
    item: str
    is_first: bool
    members: list[tuple[int, str]]
    source: str
    sentence: str
    module: str | None
    stack: list[str]
    values: list[dict[str, Any]]
    forward: list[dict[str, Any]]
    around: list[Any]
    path: list[Any]
    growth: list[Any]
    replay: str
    """The command that runs the call again."""
    brought_back: list[Any]


class OverflowStep(TypedDict):
    """The findings of a step."""

    step: int | None
    mode: NotRequired[str]
    findings: list[OverflowFinding]
    affected: dict[str, int]
    """The number of records that are not finite, by the rank."""
    records: dict[str, int]
    intended: list[tuple[int, str]]
    """Records whose infinities are meant."""
    uninitialised: list[tuple[int, str]]
    explained: list[Explanation]
    notes: list[str]
    processes: NotRequired[dict[str, str]]


class Overflow(Files):
    """The values that are not finite, and their causes."""

    format: int
    path: str
    steps: list[OverflowStep]


# --- recover, pack


class Recovered(Trouble):
    """Journals of which files were made."""

    recovered: list[RecoveredFolder]
    set_aside: list[str]
    """Journals of earlier runs."""


class Packed(Files):
    """A run as one file."""

    dumps: int
    records: int
    bytes: int
    withheld: int
    """The lines of code without their texts."""
    notes: list[str]
