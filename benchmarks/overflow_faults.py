"""Run `overflow_check` on generated trainings over ranks, on small clean and faulty trainings, and on healthy models.

    python benchmarks/overflow_faults.py                             # a hundred cases of seed 1, some minutes
    python benchmarks/overflow_faults.py --seed 7 --cases 0:500
    python benchmarks/overflow_faults.py --cases 12 --keep DIR       # one case, whose dumps stay in DIR/case012
    python benchmarks/overflow_faults.py --trainings                 # the small trainings alone
    python benchmarks/overflow_faults.py --stories                   # the call and the reason of each story
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
from generated.judging import Outcome, outcome_of  # noqa: E402
from generated.making import make_dumps  # noqa: E402
from overflow_trainings.outcomes import MODES, NOT_RECORDED  # noqa: E402
from overflow_trainings.outcomes import Outcome as TrainingOutcome  # noqa: E402
from overflow_trainings.outcomes import make as make_trainings  # noqa: E402
from overflow_trainings.outcomes import outcomes as outcomes_of_trainings  # noqa: E402

from probe.common.parallel.tasks import Where  # noqa: E402
from probe.overflow.find_overflow import find_overflow  # noqa: E402

_AT_ONCE = 100
EXPLANATION = """\
Trainings on 2 to 8 gloo ranks on the CPU, drawn from a seed: the model of each stage; data, tensor and pipeline
parallelism and all of them together; blocking, asynchronous and batched transfers; gradients added up one by one,
later, in a bucket, in parts or unseen; one to three steps; levels L0, L1 and mix. In each something is planted, or
nothing. What is true is read from the call stacks of the dump, in which the line stands that made the fault; a case is
right where the first findings are all of what was planted, of the right kind, and nothing else.
"""
OF_TRAININGS = """\
Trainings of one process, three steps each, of a model with two linear layers. Clean ones make infinities and NaN that
have no consequence; in the others the fault is planted from the second step on. Each runs with task overflow_check,
and with task statistics at risk level ALL and at the default. What is found while it runs and afterwards in the step
that was written must be the call at fault. In the other dumps the next recorded call may be named instead, if the
sentence of the finding says what is not recorded.
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
                yield outcome_of(folder)


def table(found: Sequence[Outcome]) -> str:
    """Right and all, by the kind of what was planted."""
    every = Counter(outcome.truth.kind for outcome in found)
    right = Counter(outcome.truth.kind for outcome in found if not outcome.wrong)
    rows = [f"| {kind} | {right[kind]} of {every[kind]} |" for kind in sorted(every)]
    rows.append(f"| all | {sum(right.values())} of {sum(every.values())} |")
    return "\n".join(["| planted | right |", "|---|---|", *rows])


def trainings() -> list[TrainingOutcome]:
    """Run every small training in all modes."""
    from overflow_trainings.programs import CLEAN, FAULTS

    every = {**CLEAN, **FAULTS}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        make_trainings(folder, MODES, list(every))
        truths = {name: (training.truth, training.step) for name, training in every.items()}
        return list(outcomes_of_trainings(folder, truths))


def table_of_trainings(found: Sequence[TrainingOutcome]) -> str:
    """A row for each training: what is true, and what is found in each mode."""
    lines = [
        "| training | true | while it runs | afterwards | in a dump of level ALL | in a dump of the default level |"
    ]
    lines.append("|---|---|---|---|---|---|")
    for each in found:
        said = [each.while_running, each.said["watched"], *(_in_dump(each, mode) for mode in ("all", "default"))]
        cells = [text.partition(" ")[2] or "silent" for text in said]
        lines.append(f"| {each.name.replace('_', ' ')} | {each.truth or 'clean'} | {' | '.join(cells)} |")
    for kind, of_kind in (
        ("clean trainings are silent", [each for each in found if not each.truth]),
        ("faults are named, or the finding says what is not recorded", [each for each in found if each.truth]),
    ):
        right = sum(not each.wrong for each in of_kind)
        lines += ["", f"{right} of {len(of_kind)} {kind}."]
    same = sum(each.is_neutral for each in found)
    lines += ["", f"{same} of {len(found)} trainings have the same parameters with the tool as without, bit by bit."]
    return "\n".join(lines)


def _in_dump(outcome: TrainingOutcome, mode: str) -> str:
    said = outcome.said[mode]
    is_told = said and not outcome.is_true(said) and NOT_RECORDED in outcome.sentences[mode]
    return f"{said} (says what is not recorded)" if is_told else said


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
                places = [finding.key for finding in report.findings]
                meant = sum(len(step.intended) for step in report.steps)
                said = f"found {places}" if places else f"silent, {meant} calls that make infinities"
            loud += not said.startswith("silent")
        found.append(f"| {name} | {said} |")
        print(f"{name}: {said}", flush=True)
    return loud


def stories() -> tuple[str, int]:
    """The table of the stories, and how many of them are answered wrong."""
    from nan_stories import held_out, known
    from nan_stories.running import run

    rows, wrong = ["| stories | right call | right reason as well |", "|---|---|---|"], 0
    for name, of_set in (("made with", known.STORIES), ("held out", held_out.STORIES)):
        with tempfile.TemporaryDirectory() as folder:
            told = run(Path(folder).resolve(), of_set)
        right = sum(each.is_record and each.is_reason for each in told)
        rows.append(f"| {name} | {sum(each.is_record for each in told)} of {len(told)} | {right} of {len(told)} |")
        wrong += len(told) - right
        for each in told:
            if not (each.is_record and each.is_reason):
                print(each, flush=True)
    return "\n".join(rows), wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run overflow_check on trainings of which it is known what is wrong.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=numbers, default=range(100), metavar="NUMBER|FROM:TO")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="the dumps stay there")
    parser.add_argument("--trainings", action="store_true", help="run the small trainings alone")
    parser.add_argument("--models", action="store_true", help="run the healthy models instead")
    parser.add_argument("--stories", action="store_true", help="run the stories with their reasons instead")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a report")
    options = parser.parse_args(arguments)
    begin = time.perf_counter()
    if options.stories:
        of_stories, wrong = stories()
        print(of_stories)
        text = f"# Reasons\n\n{of_stories}\n"
    elif options.models:
        lines: list[str] = []
        wrong = models(lines)
        text = "\n".join(["# Healthy models", "", "| model | overflow_check |", "|---|---|", *lines, ""])
    else:
        small = trainings()
        for each in (each for each in small if each.wrong):
            print(each, flush=True)
        of_trainings = table_of_trainings(small)
        print(of_trainings)
        found = []
        for outcome in outcomes(options.seed, () if options.trainings else options.cases, options.keep):
            found.append(outcome)
            if outcome.wrong:
                print(f"{outcome} (said {'; '.join(outcome.said) or 'nothing'})", flush=True)
        wrong = sum(bool(outcome.wrong) for outcome in (*found, *small))
        text = f"# First findings of generated faults\n\n{EXPLANATION}\nSeed {options.seed}.\n\n{table(found)}\n"
        text += f"\n## Small trainings\n\n{OF_TRAININGS}\n{of_trainings}\n"
        print(table(found))
    print(f"{time.perf_counter() - begin:.0f} s")
    if options.report:
        options.report.write_text(text, encoding="utf-8")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
