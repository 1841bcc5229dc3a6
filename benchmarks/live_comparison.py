"""Planted faults, found while the program runs and by ``compare`` afterwards: do both say the same, and when?

    live_comparison.py OUT [MODEL ...]
    live_comparison.py OUT --cost

Each of the fifty faults of `planted_faults` runs against the golden run of its model twice: rounding as the golden run
does, and with products summed in another order, so that nearly all tensors differ in their last bits. Runs without a
fault are there as well, and have to stay silent. A line for each run, and a summary. With ``--cost`` the
processor time of steps that are recorded alone and against a golden run, in turns.
"""

from __future__ import annotations

import shutil
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "tests" / "support")]

import torch
from planted_faults.dumping import dump_all
from planted_faults.faults import FAULTS, KINDS
from planted_faults.networks import build
from planted_faults.rounding import ROUNDINGS
from planted_faults.settings import NAMES, Variant

from msprobe.pytorch import PrecisionDebugger
from probe.common import log
from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps


def live(golden: Path, folder: Path, model: str, fault: str | None, rounding: str) -> tuple[list[str], bool]:
    """Run one step against a golden run; the answers in their order, and whether the first came within the step."""
    PrecisionDebugger.reset()
    with log.collected() as lines:
        debugger = PrecisionDebugger(task=NAMES.task, dump_path=str(folder), level=NAMES.level, against=str(golden))
        network = build(model, 0)
        if fault is not None:
            FAULTS[model][fault].plant(network.model)
        with ROUNDINGS[rounding]():
            debugger.start(model=network.model)
            network.loss().backward()
            debugger.stop()
        within = any(line.text.startswith("first divergence") for line in lines)
        debugger.step()
        PrecisionDebugger.reset()
    failed = [line.text for line in lines if "comparison with" in line.text]
    if failed:
        raise RuntimeError(failed[0])
    return [line.text for line in lines if line.text.startswith("first divergence")], within


def seconds(folder: Path, level: str, **more: str) -> float:
    """The processor time of the fastest of four steps."""
    PrecisionDebugger.reset()
    shutil.rmtree(folder, ignore_errors=True)
    debugger = PrecisionDebugger(dump_path=str(folder), level=level, **more)
    network = build("llama", 0)
    took = []
    for _ in range(4):
        start = time.process_time()
        debugger.start(model=network.model)
        network.loss().backward()
        debugger.stop()
        debugger.step()
        took.append(time.process_time() - start)
    PrecisionDebugger.reset()
    return min(took)


def cost(out: Path) -> None:
    """Print the times at each level."""
    log.quieten()
    torch.set_num_threads(1)
    for level in ("L0", "L1", "mix"):
        seconds(out / "golden", level)
        turns = [
            (seconds(out / "alone", level), seconds(out / "against", level, against=str(out / "golden")))
            for _ in range(5)
        ]
        alone, against = (min(times) for times in zip(*turns))
        print(
            f"{level}: {alone * 1e3:.0f} ms alone, {against * 1e3:.0f} ms against a golden run: {against / alone:.2f}"
        )


def main(out: Path, *models: str) -> None:
    if models == ("--cost",):
        cost(out)
        return
    warnings.simplefilter("ignore")
    log.quieten()
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    for model in models or FAULTS:
        golden = Variant(model, "clean_a", "plain")
        if not golden.path(out, NAMES).is_dir():
            PrecisionDebugger.reset()
            dump_all(out, NAMES, 0, [golden])
        for rounding in ("plain", "everything"):
            for fault in (None, *KINDS):
                folder = out / "live" / model / f"{fault}-{rounding}"
                said, within = live(golden.path(out, NAMES), folder, model, fault, rounding)
                (dump,) = (folder / "step0").iterdir()
                found = compare_dumps(read(str(dump)), read(str(golden.path(out, NAMES))), values=False).divergence
                expected = "" if found is None else found.record
                last = said[-1] if said else ""
                agrees = last.endswith(expected) if expected else not last
                counts[f"{rounding}, {'fault' if fault else 'no fault'}: runs"] += 1
                counts[f"{rounding}, {'fault' if fault else 'no fault'}: the answer of compare"] += agrees
                counts[f"{rounding}, {'fault' if fault else 'no fault'}: divergence"] += bool(expected)
                counts[f"{rounding}, {'fault' if fault else 'no fault'}: said within the step"] += within
                counts[f"{rounding}, {'fault' if fault else 'no fault'}: first word was the last"] += len(said) < 2
                print(f"{model} {fault} {rounding}: {'agrees' if agrees else 'DIFFERS'} {within} {said} {expected}")
    for name, count in sorted(counts.items()):
        print(f"{count:4} {name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
