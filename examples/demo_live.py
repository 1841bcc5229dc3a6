"""Collect the first run of demo_compare.py, and compare the second with it while it runs: it ends where they part."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import demo_compare
import demo_summary

GOLDEN = os.path.join(demo_summary.OUTPUT, "original")


def main() -> None:
    """Run both, each in a process of its own."""
    shutil.rmtree(demo_summary.OUTPUT, ignore_errors=True)
    subprocess.run([sys.executable, demo_compare.__file__, "original"], check=True)
    print("\nThe second run, which is compared with the first:\n", flush=True)
    ended = subprocess.run([sys.executable, __file__, "changed"], check=False)
    print(f"\nIt ended with status {ended.returncode}.")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        demo_compare.run("changed", against=GOLDEN, stop_at="divergence")
    else:
        main()
