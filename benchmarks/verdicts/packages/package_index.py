"""The dumps of the pairs, and what is true of each. It needs no package."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

RIGHT, GOLDEN = "right", "golden"
INDEX = "index.json"


@dataclass(frozen=True)
class Run:
    """One run of a second program, of which there are dumps."""

    type: str
    fault: str
    """Name of the fault, or ``right``."""
    where: str
    """Pattern for the place of the fault; empty for a correct run."""
    moved: float
    """Largest difference of the output from the golden run's, relative to its largest value."""
    settings: list[str]
    """Levels and tasks, as ``mix:statistics``."""


def folder_of(out: Path, pair: str, type_: str, setting: str, run: str) -> Path:
    """The folder with the dump of one run."""
    return out / pair / type_ / setting.replace(":", "-") / run.replace(" ", "_")


def write(out: Path, pair: str, runs: list[Run]) -> None:
    """Write the index of a pair, which also says that its dumps are complete."""
    text = json.dumps([asdict(run) for run in runs], indent=1)
    (out / pair / INDEX).write_text(f"{text}\n", encoding="utf-8")


def read(out: Path, pair: str) -> list[Run]:
    """The runs of a pair."""
    return [Run(**each) for each in json.loads((out / pair / INDEX).read_text(encoding="utf-8"))]


def pairs_in(out: Path) -> list[str]:
    """Names of the pairs with complete dumps."""
    return sorted(path.parent.name for path in out.glob(f"*/{INDEX}"))
