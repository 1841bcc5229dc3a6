"""Comparisons of two precisions: the layer at fault is named, and nothing where there is no fault.

python -m benchmarks.verdicts.precision                       # everything
python -m benchmarks.verdicts.precision --networks mistral --keep DIR
python -m benchmarks.verdicts.precision --dumps DIR           # judge those again
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

from benchmarks.verdicts.precision.networks import NETWORKS, build, loss
from msprobe.pytorch import PrecisionDebugger
from probe.compare.output.summary import undecided_in_words
from probe.compare.output.summary_text import UNTOLD
from probe.compare.runner import compare

LEVELS = ("L0", "mix")
GOLDEN, RIGHT = "golden", "right"


def dump(folder: Path, level: str, networks: list[str]) -> None:
    """Dump all runs of some networks at one level; for a process of its own, which has one debugger."""
    collected = folder / f".collecting-{level}-{os.getpid()}"
    debugger = PrecisionDebugger(task="statistics", dump_path=str(collected), level=level)
    step = 0
    for name in networks:
        network = NETWORKS[name]
        for run in (GOLDEN, RIGHT, *network.faults):
            model = build(name)
            if run in network.faults:
                network.faults[run][1](model)
            model.to(getattr(torch, network.golden_dtype if run == GOLDEN else network.dtype))
            threads = 2 if run == GOLDEN else 1
            torch.set_num_threads(threads)
            debugger.start(model=model)
            loss(name, model).backward()
            debugger.stop()
            debugger.step()
            place = folder / name / run / level
            place.mkdir(parents=True, exist_ok=True)
            (collected / f"step{step}").rename(place / f"step{step}")
            # The settings of all models so far.
            for environment in collected.glob("environment_*.json"):
                shutil.copy(environment, place)
            step += 1


def named(folder: Path, name: str, run: str, level: str) -> str:
    """The call that is named first; empty where none is."""
    target, golden = (next((folder / name / each / level).glob("step*/*/dump.json")) for each in (run, GOLDEN))
    for result in compare(str(target), str(golden), None):
        if result.divergence is not None:
            first = result.divergence.first
            return " | ".join(
                filter(None, (first.record, first.golden_record, first.module, first.reason, first.cause))
            )
        if result.undecided:
            return f"{UNTOLD}: {undecided_in_words(result.undecided[0])}"
    return ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Two precisions, right and with one fault.")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the dumps there")
    parser.add_argument("--dumps", type=Path, metavar="DIR", help="judge the dumps that --keep left there")
    parser.add_argument("--level", choices=LEVELS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.level:
        dump(options.keep, options.level, options.networks)
        return 0
    with tempfile.TemporaryDirectory(prefix="precision_") as temporary:
        folder = options.dumps or options.keep or Path(temporary)
        if options.dumps is None:
            import subprocess

            for level in LEVELS:
                command = [sys.executable, "-m", __spec__.name.rpartition(".")[0], "--level", level]
                names = ["--networks", *options.networks]
                subprocess.run([*command, "--keep", str(folder.resolve()), *names], check=True)
        counts: Counter[tuple[str, bool]] = Counter()
        for name in options.networks:
            network = NETWORKS[name]
            for run in (RIGHT, *network.faults):
                for level in LEVELS:
                    said = named(folder, name, run, level)
                    wanted = network.faults[run][0] if run in network.faults else ""
                    is_right = bool(re.search(wanted, said)) if wanted else not said
                    half = "tuned" if network.tuned else "held out"
                    counts[f"{half}, {'faults' if wanted else 'right pairs'}", is_right] += 1
                    print("right" if is_right else "WRONG", name, run, level, said[:240] or "silent", flush=True)
    for kind in sorted({kind for kind, _ in counts}):
        print(f"{kind}: {counts[kind, True]} of {counts[kind, True] + counts[kind, False]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
