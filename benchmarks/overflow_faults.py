"""Whether `overflow_check` names first what was planted: generated trainings over ranks, and healthy models.

    python benchmarks/overflow_faults.py                             # a hundred cases of seed 1, some minutes
    python benchmarks/overflow_faults.py --seed 7 --cases 0:500
    python benchmarks/overflow_faults.py --cases 12 --keep DIR       # one case, whose dumps stay in DIR/case012
    python benchmarks/overflow_faults.py --models                    # the healthy models of Transformers, all of them
    python benchmarks/overflow_faults.py --report benchmarks/OVERFLOW_FAULTS.md

The generator and the models are those of the tests, in tests/support; it needs torch, and transformers for the models.
The exit status is 1 where a first finding is wrong, or something is found in a healthy model.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "backends" / "support")]

import forks  # noqa: E402
from generated.judging import Outcome, judge  # noqa: E402
from generated.making import make_dumps  # noqa: E402

from probe.common.parallel.tasks import Where  # noqa: E402
from probe.overflow.run import find_overflow  # noqa: E402

_AT_ONCE = 100
EXPLANATION = """\
Trainings on 2 to 8 gloo ranks on the CPU, drawn from a seed: the model of each stage; data, tensor and pipeline
parallelism and all of them together; blocking, asynchronous and batched transfers; gradients added up one by one,
later, in a bucket, in parts or unseen; one to three steps; levels L0, L1 and mix. In each something is planted, or
nothing. What is true is read from the call stacks of the dump, in which the line stands that made the fault; a case is
right where the first findings are all of what was planted, of the right kind, and nothing else.
"""


def numbers(text: str) -> range:
    """``12``, or ``0:100``."""
    first, colon, last = text.partition(":")
    return range(int(first), int(last) if colon else int(first) + 1)


def outcomes(seed: int, cases: Sequence[int], keep: Path | None) -> Iterator[Outcome]:
    """The outcome of every case; their dumps are made a hundred at a time and removed again."""
    for begin in range(0, len(cases), _AT_ONCE):
        with tempfile.TemporaryDirectory() as temporary:
            dumps = keep or Path(temporary)
            dumps.mkdir(parents=True, exist_ok=True)
            for folder in make_dumps(dumps.resolve(), seed, cases[begin : begin + _AT_ONCE]):
                yield judge(folder)


def table(found: Sequence[Outcome]) -> str:
    """Right and all, by the kind of what was planted."""
    every = Counter(outcome.truth.kind for outcome in found)
    right = Counter(outcome.truth.kind for outcome in found if not outcome.wrong)
    rows = [f"| {kind} | {right[kind]} of {every[kind]} |" for kind in sorted(every)]
    rows.append(f"| all | {sum(right.values())} of {sum(every.values())} |")
    return "\n".join(["| planted | right |", "|---|---|", *rows])


def models(found: list[str]) -> int:
    """Run the healthy models; how many of them are not silent."""
    import healthy_models

    script = ROOT / "tests" / "support" / "healthy_models.py"
    environment = {**os.environ, "PYTHONPATH": forks.CHECKOUT, "HF_HUB_OFFLINE": "1"}
    loud = 0
    for name in healthy_models.MODELS:
        with tempfile.TemporaryDirectory() as folder:
            ran = forks.run_python("transformers", script, folder, name, environment=environment, without_warnings=True)
            if ran.returncode:
                said = f"failed: {ran.stderr.strip().splitlines()[-1:]}"
            else:
                report = find_overflow(str(Path(folder, name)), where=Where(jobs=1))
                places = [finding.place for finding in report.findings]
                meant = sum(len(step.intended) for step in report.steps)
                said = f"found {places}" if places else f"silent, {meant} calls that make infinities"
            loud += not said.startswith("silent")
        found.append(f"| {name} | {said} |")
        print(f"{name}: {said}", flush=True)
    return loud


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Whether overflow_check names first what was planted.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=numbers, default=range(100), metavar="NUMBER|FROM:TO")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="the dumps stay there")
    parser.add_argument("--models", action="store_true", help="run the healthy models instead")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a report")
    options = parser.parse_args(arguments)
    begin = time.perf_counter()
    if options.models:
        lines: list[str] = []
        wrong = models(lines)
        text = "\n".join(["# Healthy models", "", "| model | overflow_check |", "|---|---|", *lines, ""])
    else:
        found = []
        for outcome in outcomes(options.seed, options.cases, options.keep):
            found.append(outcome)
            if outcome.wrong:
                print(f"{outcome} (said {'; '.join(outcome.said) or 'nothing'})", flush=True)
        wrong = sum(bool(outcome.wrong) for outcome in found)
        text = f"# First findings of generated faults\n\n{EXPLANATION}\nSeed {options.seed}.\n\n{table(found)}\n"
        print(table(found))
    print(f"{time.perf_counter() - begin:.0f} s")
    if options.report:
        options.report.write_text(text, encoding="utf-8")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
