"""Run a training two times and resume it, with something forgotten: ``msprobe`` says what is not the same, and why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import demo_summary

OUTPUT = os.path.join(demo_summary.OUTPUT, "twice")
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train_twice.py")


def msprobe(*arguments: str) -> None:
    """Run a command of the tool, which prints its answer."""
    print("\nmsprobe", *arguments, "\n", flush=True)
    subprocess.run([sys.executable, "-m", "probe.api.cli", *arguments], check=False)


def main() -> None:
    """Two programs that are run two times, and a run that is resumed."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    kept = ["--checkpoint", os.path.join(OUTPUT, "train_twice.pt")]
    os.makedirs(OUTPUT)
    for forgotten in ([], ["--forget", "order"]):
        name = os.path.join(OUTPUT, forgotten[-1] if forgotten else "right")
        msprobe("run", "--twice", "-q", "-o", name, SCRIPT, *kept, *forgotten)
    whole, resumed = os.path.join(OUTPUT, "whole"), os.path.join(OUTPUT, "resumed")
    msprobe("run", "-q", "--step", "4-7", "-o", whole, SCRIPT, *kept)
    msprobe("run", "-q", "-o", resumed, SCRIPT, *kept, "--resume", "--forget", "optimizer")
    msprobe("compare", resumed, whole, "--resumed")


if __name__ == "__main__":
    main()
