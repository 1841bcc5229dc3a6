"""Graph pages of real pairs of runs: two kinds of attention, two types, two frameworks, two ranks with one wrong.

    python benchmarks/graph_pairs.py --out DIR --mindspore PYTHON

The dumps of DIR/dumps are made once; the pages are DIR/<pair>.html. It needs torch and transformers, and for the pair
of two frameworks an interpreter with MindSpore.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "benchmarks" / "verdicts" / "ports")]

import graph_faults  # noqa: E402
from page_faults.cases import CASES, MINDSPORE, TORCH  # noqa: E402
from pairs import dumping  # noqa: E402

SETTING = "mix:statistics"
OF_TRAININGS = {
    "attention": "attention-llama",
    "attention-and-fault": "attention-rolled-q-vit",
    "bfloat16": "bfloat16-qwen2",
    "bfloat16-and-fault": "bfloat16-llama-fault",
    "ranks": "ranks-fault-qwen2",
}
"""The page -> the pair of trainings in tests/support/pairs that it shows."""
OF_FRAMEWORKS = {"frameworks": "mindspore-torch-port_llama-dtype"}
"""The page -> the case of `page_faults`."""


class Pair(NamedTuple):
    """Two runs."""

    target: Path
    golden: Path


def make_dumps(dumps: Path, mindspore: str | None) -> dict[str, Pair]:
    """Dump all runs that are not there yet; the page of each pair."""
    dumping.make(dumps, [(name, SETTING) for name in OF_TRAININGS.values()], {dumping.NEW: sys.executable})
    found = {}
    for page, name in OF_TRAININGS.items():
        folder = dumping.folder_of(dumps, name, SETTING)
        found[page] = Pair(folder / "target", folder / "golden")
    if mindspore is not None:
        cases = [case for case in CASES if case.name in OF_FRAMEWORKS.values()]
        ports = dumps / "ports"
        ports.mkdir(exist_ok=True)
        # A path as it is given: the interpreter of a virtual environment is a link.
        graph_faults.make_dumps(ports, cases, {TORCH: sys.executable, MINDSPORE: os.path.abspath(mindspore)})
        for page, case in zip(OF_FRAMEWORKS, cases):
            found[page] = Pair(*(ports / run.folder for run in case.runs))
    return found


def write_page(pair: Pair, page: Path, options: Sequence[str] = ()) -> str:
    """Write the page of a pair; what the command said."""
    with tempfile.TemporaryDirectory(dir=page.parent) as folder:
        command = [sys.executable, "-m", "probe.api.cli", "graph_visualize", "-o", folder, "--strip_paths", str(ROOT)]
        command += ["-tp", str(pair.target), "-gp", str(pair.golden), *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{page.stem}: {done.stderr}")
        (written,) = Path(folder).glob("*.html")
        shutil.move(written, page)
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """Make dumps and pages."""
    parser = argparse.ArgumentParser(description="Graph pages of real pairs of runs.")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for dumps and pages")
    parser.add_argument("--mindspore", metavar="PYTHON", help="interpreter with MindSpore; without it PyTorch alone")
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    (out / "dumps").mkdir(parents=True, exist_ok=True)
    for name, pair in make_dumps(out / "dumps", options.mindspore).items():
        said = write_page(pair, out / f"{name}.html")
        print(f"{name}\n{said}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
