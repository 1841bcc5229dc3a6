"""Whether a comparison names the call at fault: single faults planted into ten models, and runs without any.

What was planted, and under which names it stands in the dumps, is known from `planted_faults/faults.py`; the comparison
is asked for what it names first and for nothing else.

    python benchmarks/plant_faults.py                             # everything, some minutes
    python benchmarks/plant_faults.py --models llama --faults nan --levels mix --tasks statistics
    python benchmarks/plant_faults.py --keep DIR                  # the dumps stay there
    python benchmarks/plant_faults.py --dumps DIR                 # compare those again
    python benchmarks/plant_faults.py --report benchmarks/PLANTED_FAULTS.md

It needs torch and transformers. The exit status is 1 where less than nine tenths of the faults are named first at any
level and task in float32, or something is named where there is no fault.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import measure
from planted_faults.dumping import dump_all
from planted_faults.faults import FAULTS, KINDS
from planted_faults.judging import Outcome, outcomes, variants
from planted_faults.reporting import EXPLANATION, report
from planted_faults.settings import NAMES, SETTINGS, Setting, Variant


def work(dumps: str, setting: list[str], seed: int, runs: list[list[Any]]) -> bool:
    dump_all(Path(dumps), Setting(*setting), seed, [Variant(*run) for run in runs])
    return True


def missing_runs(dumps: Path, setting: Setting, options: argparse.Namespace) -> list[Variant]:
    runs = variants(options.models, options.faults, setting)
    return [run for run in runs if not run.path(dumps, setting).is_dir()]


def make_dumps(dumps: Path, options: argparse.Namespace) -> None:
    """Make the dumps that are not there yet, each level and task in a process of its own.

    Raises:
        measure.Failed: such a process failed.
    """
    for setting in options.needed:
        missing = missing_runs(dumps, setting, options)
        if missing:
            print(f"{len(missing)} runs at {setting}", file=sys.stderr, flush=True)
            job = {"dumps": str(dumps.resolve()), "setting": setting, "seed": options.seed, "runs": missing}
            measure.run_worker(sys.executable, __file__, job)


def is_good(found: Sequence[Outcome], settings: Sequence[Setting]) -> bool:
    for setting in settings:
        if setting.dtype != "float32":
            # Where everything is coarse a small fault is lost; how many are is in the table.
            continue
        planted = [each.right for each in found if each.setting == setting and each.planted]
        clean = [each.right for each in found if each.setting == setting and not each.planted]
        if sum(planted) < 0.9 * len(planted) or not all(clean):
            return False
    return True


def options_from(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Single faults planted into models, and what a comparison names.")
    parser.add_argument("--models", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--faults", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--levels", nargs="+", choices=("L0", "L1", "mix"), default=("L0", "L1", "mix"))
    parser.add_argument("--tasks", nargs="+", choices=("statistics", "tensor"), default=("statistics", "tensor"))
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=("float32", "bfloat16"))
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="other weights and inputs (default 0)")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--keep", type=Path, metavar="DIR", help="leave the dumps there; what it has is not made again")
    place.add_argument("--dumps", type=Path, metavar="DIR", help="compare the dumps that --keep left there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every outcome there")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the tables there too")
    options = parser.parse_args(arguments)
    options.settings = [
        setting
        for setting in SETTINGS
        if setting.level in options.levels and setting.task in options.tasks and setting.dtype in options.dtypes
    ]
    if not options.settings:
        parser.error(f"nothing is left of --levels, --tasks and --dtypes; there is: {'; '.join(map(str, SETTINGS))}")
    # The names of the planted calls are read from dumps at level mix.
    options.needed = list(dict.fromkeys((NAMES, *options.settings)))
    if options.dumps is not None:
        for setting in options.needed:
            for run in missing_runs(options.dumps, setting, options):
                folder = run.path(options.dumps, setting)
                parser.error(f"--dumps: there is no {folder}; --keep {options.dumps} makes what is missing")
    return options


def main(arguments: Sequence[str]) -> int:
    options = options_from(arguments)
    with tempfile.TemporaryDirectory(prefix="planted_faults_") as temporary:
        dumps = options.dumps or options.keep or Path(temporary)
        if options.dumps is None:
            dumps.mkdir(parents=True, exist_ok=True)
            try:
                make_dumps(dumps, options)
            except measure.Failed as error:
                print(error, file=sys.stderr)
                return 1
        found = list(outcomes(dumps, options.models, options.faults, options.settings))
    tables = report(found, options.settings, options.faults)
    print(tables)
    if options.json is not None:
        content = [{**asdict(outcome), "setting": str(outcome.setting), "right": outcome.right} for outcome in found]
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if options.report is not None:
        about = f"`python benchmarks/plant_faults.py`: {measure.machine(('torch', 'transformers', 'msprobe'))}."
        text = f"# Single faults planted into ten models\n\n{about}\n\n{EXPLANATION}\n{tables}\n"
        options.report.write_text(text, encoding="utf-8")
    return 0 if is_good(found, options.settings) else 1


if __name__ == "__main__":
    given = measure.worker_arguments()
    if given is not None:
        measure.give_result(work(**given))
    else:
        sys.exit(main(sys.argv[1:]))
