"""Objects that are printed of the numbers of a training: `rollout_check`, `monitor` and `trend`."""

from __future__ import annotations

from typing import Any

from typing_extensions import NotRequired, TypedDict

from probe.api.commands.printed.answer import Files, Trouble
from probe.monitor.judging import FeedingRow

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
    differing: int
    missing: str
    """The saves that one side lacks."""


class RolloutTables(Trouble):
    """Two folders of saved values of a rollout."""

    keys: list[RolloutTable]
    files: list[str]


# --- monitor, trend


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
