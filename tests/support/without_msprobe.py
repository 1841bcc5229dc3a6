"""The package as it is without the folder of msProbe's rules, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# An editable installation finds what the copy lacks in the checkout.
COMMAND = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]
from probe.api.cli import main
sys.exit(main())
"""


def copy_without_msprobe(folder: Path) -> Path:
    """Copy the package without ``probe/msprobe_rules``; returns the folder to import it from."""
    ignored = shutil.ignore_patterns("msprobe_rules", "__pycache__")
    shutil.copytree(ROOT / "probe", folder / "probe", ignore=ignored)
    return folder


def run_command(package: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``msprobe`` with that copy of the package."""
    command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
    inherited = {name: value for name, value in os.environ.items() if name != "MSPROBE_RULES"}
    env = {**inherited, "PYTHONPATH": str(package), **environment}
    return subprocess.run(command, env=env, cwd=package, capture_output=True, text=True, check=False, timeout=300)
