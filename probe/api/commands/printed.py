"""The objects that ``--json`` prints, as types: `docs/json_schemas.py` makes the JSON Schema and a page of them.

A dataclass stands for itself where a command prints all of it. Nothing imports this while a command runs; the tests of
exit statuses hold what each command prints to the schema.
"""

from __future__ import annotations

from typing import Any, Union

from typing_extensions import NotRequired, TypedDict

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
from probe.monitor.judging import FeedingRow
from probe.overflow.overflow_report import Explanation

Statistic = Union[float, str, None]
"""A number; ``NaN``, ``Infinity`` and ``-Infinity`` are texts."""


class Trouble(TypedDict):
    """The keys that come first in each object, and all that an object has if there is no answer."""

    version: int
    """The version of the keys; it increases if a key changes its meaning or is removed."""
    command: str
    """The command, such as ``compare``."""
    status: int
    """The exit status."""
    errors: list[str]
    """The messages on standard error; empty for the statuses 0 and 1."""


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


class Files(Trouble):
    """The files that were written."""

    files: list[str]


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


# --- rollout_check


class RolloutFinding(TypedDict):
    """A kind of mismatch."""

    kind: str
    sentence: str
    numbers: dict[str, Any]


class RolloutRounding(TypedDict):
    """The part that rounding explains."""

    dtype: str
    explained: float
    size: float
    assumed: bool


class RolloutTokenEntry(TypedDict):
    """A token with a large difference."""

    sequence: Any
    position: int
    step: Any
    rank: Any
    token: int | None
    rollout: float
    training: float
    context: list[int]
    at: int
    """The index of the token in its context."""
    text: NotRequired[Any]


class RolloutAnomaly(TypedDict):
    """An ill response."""

    sequence: Any
    kind: str
    window: list[int]
    windows: int


class Rollout(Files):
    """The comparison of rollout and training."""

    kind: str
    kinds: list[str]
    line: str
    findings: list[RolloutFinding]
    remarks: list[str]
    rounding: RolloutRounding
    numbers: dict[str, float]
    sequences: list[dict[str, Any]]
    tokens: list[RolloutTokenEntry]
    anomalies: list[RolloutAnomaly]


class RolloutTable(TypedDict):
    """One value of two saved steps."""

    key: str
    arrays: int
    differing: Any
    missing: Any


class RolloutTables(Trouble):
    """Two folders of saved values of a rollout."""

    keys: list[RolloutTable]
    files: list[str]


# --- acc_check, api_precision_compare, replay


class KernelVerdict(TypedDict):
    """The judgement of one result; `KernelVerdict` of `probe.calls` has complex numbers, which become objects here."""

    status: str
    interpretation: str
    """One line."""
    bound: str
    """The origin of the tolerance."""
    ratio: float | None
    """The error of the worst element by its tolerance."""
    tolerance: float | None
    worst_index: list[int] | None
    worst_result: Any
    worst_reference: Any
    max_ulp: float | None
    mean_ulp: float | None
    share_over: float | None
    """The share of elements whose error is over the tolerance."""
    fits: str | None
    """The lower precision that explains a failing result."""


class CheckedResult(TypedDict):
    """A result of a call."""

    name: str
    of: str
    dtype: str
    reference_dtype: str
    shape: list[int] | None
    verdict: KernelVerdict


class CheckedCase(TypedDict):
    """A recorded call that was run again."""

    name: str
    base: str
    rows: list[CheckedResult]
    not_run: str
    """The reason why it was not run."""
    backward_not_run: str
    stands_for: int
    autocast: str
    inputs: str
    """``recorded`` or ``generated``."""
    saved: list[str]


class Checked(Trouble):
    """The calls of a dump, run again."""

    dump: str
    framework: str
    device: str
    ending: str
    seconds: float
    counts: dict[str, int]
    cases: list[CheckedCase]
    second_stage: list[Any] | None
    files: list[str]


class CheckedDump(TypedDict):
    """The calls of one of several dumps, run again."""

    version: int
    dump: str
    framework: str
    device: str
    ending: str
    seconds: float
    counts: dict[str, int]
    cases: list[CheckedCase]
    second_stage: list[Any] | None
    files: list[str]


class DeviceCase(TypedDict):
    """A call on two devices."""

    name: str
    forward: str | None
    backward: str | None
    """``null`` if it was not run."""
    message: str
    worst: str


class Devices(Files):
    """The calls of two devices."""

    counts: dict[str, int]
    cases: list[DeviceCase]


class ReplayedResult(TypedDict):
    """A result in three comparisons."""

    name: str
    of: str
    dtype: str
    shape: list[int] | None
    recorded_and_now: dict[str, Any] | None
    now_and_exact: KernelVerdict
    recorded_and_exact: KernelVerdict | None
    overflow: str


class Replayed(Files):
    """A call that was run again."""

    dump: str
    name: str
    direction: str
    device: str
    autocast: str
    inputs: str
    answer: str
    is_wrong: bool
    is_random: bool
    notes: list[str]
    results: list[ReplayedResult]
    smaller: dict[str, Any] | None
    """With ``--minimise``: the same keys for smaller inputs, and ``text``."""


# --- config_check, ckpt_compare


class ConfigDifference(TypedDict):
    """A value that differs."""

    name: str
    golden: Any
    target: Any
    level: str
    why: str


class ConfigChecks(TypedDict):
    """One check."""

    level: str
    rows: list[ConfigDifference]


class ConfigChecked(Files):
    """Two packs, compared."""

    answer: str
    golden: str
    target: str
    checks: dict[str, ConfigChecks]
    withheld: int
    not_compared: list[str]


class ConfigCollected(Files):
    """A pack that was written."""

    collected: list[str]
    withheld: int
    notes: list[str]


class ConfigSheets(Files):
    """Two packs by the rules of msProbe."""

    sheets: dict[str, list[list[Any]]]


class ConfigLogs(Files):
    """The parameters of two logs."""

    parameters: list[dict[str, Any]]


class CheckpointPath(TypedDict):
    """A checkpoint."""

    path: str
    format: str


class CheckpointParameter(TypedDict):
    """A pair of parameters."""

    name: str | None
    other_name: str | None
    verdict: str
    max_abs: float | None
    max_rel: float | None
    ulp_max: float | None
    ulp_mean: float | None
    l2: float | None
    relative_l2: float | None
    cos: float | None
    shape: list[int] | None
    other_shape: list[int] | None
    dtype: str | None
    other_dtype: str | None
    how: str
    counts: bool
    """True if the difference is more than rounding."""


class CheckpointReplica(TypedDict):
    """A parameter that ranks of one checkpoint hold with other values."""

    path: str
    name: str
    ranks: Any
    max_abs: float | None


class CheckpointSetting(TypedDict):
    """A setting that differs."""

    name: str
    value: Any
    other_value: Any


class Checkpoints(Files):
    """Two checkpoints."""

    answer: str
    why: str
    checkpoints: list[CheckpointPath]
    layers: list[str]
    parameters: list[CheckpointParameter]
    optimizer: list[CheckpointParameter]
    replicas: list[CheckpointReplica]
    settings: list[CheckpointSetting]
    notes: list[str]


# --- monitor


class Alert(TypedDict):
    """A row that a rule reports."""

    name: str
    family: str
    step: int
    rank: int
    rule: str
    op: str
    value: float
    expected: str
    why: str
    micro_step: int
    vpp_stage: int
    call: int
    key: str
    """The inner key of msProbe."""


class IncidentEntry(TypedDict):
    """Alerts that belong together."""

    first: Alert
    alerts: int
    rules: list[str]
    steps: tuple[int, int]
    ranks: list[int]


class FollowedEntry(TypedDict):
    """A rank that an incident has reached."""

    rank: int
    step: int


class MonitorRun(TypedDict):
    """A run with a monitor."""

    path: str
    ranks: list[int]
    steps: int
    first: Alert | None
    fed_by: list[FeedingRow]
    followed: list[FollowedEntry]
    incidents: list[IncidentEntry]
    alerts: list[Alert]
    watched: list[dict[str, Any]]
    not_watched: list[dict[str, Any]]
    notes: list[str]


class TwoMonitors(TypedDict, total=False):
    """The comparison of two runs; absent for one run."""

    first_difference: dict[str, Any] | None
    compared_rows: int
    common_steps: int
    first_turn: dict[str, Any] | None


class Monitored(Trouble, MonitorRun, TwoMonitors):
    """A run with a monitor, or two of them."""

    other: NotRequired[MonitorRun]


class Requested(Files):
    """The requests that were left for a running monitor."""


class TrendPage(Trouble, TwoMonitors):
    """The page of one run or more."""

    file: str
    runs: list[MonitorRun]


class File(Trouble):
    """The file that was written."""

    file: str


# --- the others


class CodeMapped(Files):
    """Kernel dumps, linked to lines."""

    linked: int
    unlinked: dict[str, int]


class ParsedFile(TypedDict):
    """A tensor that was converted."""

    source: str
    file: str
    dtype: str
    shape: list[int]


class Parsed(Trouble):
    """Tensors that were converted."""

    files: list[ParsedFile]


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


class ConfigTemplate(Trouble):
    """A configuration."""

    content: dict[str, Any]
    file: str | None


class InstalledFramework(TypedDict):
    """A framework."""

    name: str
    version: str | None
    works: bool | None
    """``null`` if it was not tried."""
    text: str


class Diagnosis(Trouble):
    """The installed packages, and whether they work."""

    msprobe: str
    python: str
    executable: str
    frameworks: list[InstalledFramework]
    conflicts: list[str]
    compiled: dict[str, bool]
    packages: dict[str, str | None]


PRINTED: dict[str, Any] = {
    "show": list[ShownDump],
    "show --timeline": list[TimelineEntry],
    "show --updates": list[ShownUpdates],
    "compare": list[ComparedPair],
    "compare -da": Analysed,
    "compare --ranks": ComparedRanks,
    "compare --resumed": ComparedResumed,
    "compare of gradient probes": ComparedGradients,
    "graph_visualize": Graph,
    "graph_visualize --file_type json": GraphFolders,
    "overflow_check": Overflow,
    "rollout_check": Rollout,
    "rollout_check of two folders": RolloutTables,
    "acc_check": Checked,
    "acc_check of several dumps": list[CheckedDump],
    "multi_acc_check": Checked,
    "multi_acc_check of several dumps": list[CheckedDump],
    "api_precision_compare": Devices,
    "replay": Replayed,
    "config_check": ConfigChecked,
    "config_check -d": ConfigCollected,
    "config_check --rules msprobe": ConfigSheets,
    "config_check of two logs": ConfigLogs,
    "config_check of two checkpoints": Checkpoints,
    "ckpt_compare": Checkpoints,
    "ckpt_compare --fingerprint": Files,
    "monitor report": Monitored,
    "monitor dump": Requested,
    "trend": TrendPage,
    "data2db": File,
    "merge_result": Files,
    "code_mapping": CodeMapped,
    "parse": Parsed,
    "recover": Recovered,
    "pack": Packed,
    "config": ConfigTemplate,
    "doctor": Diagnosis,
    "doctor --dump": dict[str, Any],
}
"""By the command, and the flag if it prints something else with one, the type of what is printed."""
