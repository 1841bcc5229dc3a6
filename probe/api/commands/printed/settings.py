"""Objects that are printed of what a run began with: `config_check`, `ckpt_compare`, `config` and `doctor`."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from probe.api.commands.printed.answer import Files, Trouble

# --- config_check


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


# --- ckpt_compare


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


# --- config, doctor


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
