"""How a run is dumped, and where its dump lies."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Setting(NamedTuple):
    """Level and task of the debugger, and the type of the model's weights."""

    level: str
    task: str
    dtype: str = "float32"

    def __str__(self) -> str:
        return ", ".join(self if self.dtype != "float32" else self[:2])

    @property
    def folder(self) -> str:
        return "-".join(self if self.dtype != "float32" else self[:2])


class Variant(NamedTuple):
    """A run of `model`, rounding as `rounding` says, with a fault of the kind `fault` or none."""

    model: str
    name: str
    rounding: str
    fault: str | None = None

    def path(self, dumps: Path, setting: Setting) -> Path:
        return dumps / self.model / self.name / setting.folder


SETTINGS = (
    Setting("L0", "statistics"),
    Setting("L1", "statistics"),
    Setting("mix", "statistics"),
    Setting("mix", "statistics", "bfloat16"),
)
NAMES = Setting("mix", "statistics")
"""Where the names of the planted calls are read at another level."""
