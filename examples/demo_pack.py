"""Collect the two runs of demo_compare.py, pack each into one file as if it was mailed, and compare the files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import demo_compare
import demo_summary


def msprobe(*arguments: str) -> None:
    """Run a command of ``msprobe``."""
    print("\nmsprobe", *arguments, "\n", flush=True)
    subprocess.run([sys.executable, "-m", "probe.api.cli", *arguments], check=True)


if __name__ == "__main__":
    demo_compare.collect()
    packs = []
    for name in ("changed", "original"):
        run = os.path.join(demo_summary.OUTPUT, name)
        msprobe("pack", run)
        packs.append(f"{run}.zip")
        # The other machine has nothing but the file.
        shutil.rmtree(run)
    msprobe("compare", *packs, "-o", os.path.join(demo_summary.OUTPUT, "result"))
