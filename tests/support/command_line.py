"""The command line as tests call it: in this process or in one of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from scripts import python

from probe.api import cli


def msprobe(
    *arguments: str, folder: Path | None = None, timeout: float | None = 120, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``msprobe`` in a process of its own; `variables` are those of its environment that differ from ours."""
    return python("-m", "probe.api.cli", *arguments, folder=folder, timeout=timeout, **variables)


def compare(target: Path, golden: Path, out: Path, *more: str) -> int:
    """Run ``msprobe compare`` in this process; its status."""
    return cli.main(["compare", "-tp", str(target), "-gp", str(golden), "-o", str(out), *more])
