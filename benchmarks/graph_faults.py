"""At which node the graph page stands when it is opened: thirty planted faults.

A weight, an operator, a dtype, a layer too many, a NaN, an order; in PyTorch, in MindSpore, and across the two. Right
is a node inside of the module with the fault, or the module directly around it. The runs of PyTorch that have the fault
sum products in another order, on two threads and without oneDNN: nearly all tensors differ before it is met.

    python benchmarks/graph_faults.py --mindspore PYTHON              # all thirty, two minutes
    python benchmarks/graph_faults.py                                 # those of PyTorch alone
    python benchmarks/graph_faults.py --keep DIR                      # the dumps stay there, and are not made again
    python benchmarks/graph_faults.py --report benchmarks/GRAPH_FAULTS.md

It needs torch and transformers; PYTHON is an interpreter with MindSpore. The exit status is 1 where less than nine
tenths are shown first, or anything is named of two runs without fault.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import measure

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE / "verdicts" / "ports")]

from page_faults.cases import CASES, KINDS, MINDSPORE, TORCH, Case, Run  # noqa: E402
from page_faults.judging import Outcome, clean_pairs, false_alarms, outcomes  # noqa: E402

ENOUGH = 0.9
EXPLANATION = """\
Thirty runs have one fault each, beside a run without; the table says at which node the graph page of both stands when
it is opened. Right is a node of the forward pass inside of the module with the fault, or the module directly around it.
The runs of PyTorch with a fault sum products in another order, on two threads and without oneDNN, so that nearly all
tensors differ in their last bits before the fault is met. No rule of the comparison was made by these runs."""


def work(framework: str, dumps: str, runs: list[list[str]]) -> bool:
    """In an interpreter of the framework: dump these runs."""
    if framework == TORCH:
        from page_faults.torch_runs import dump_all
    else:
        from page_faults.mindspore_runs import dump_all
    dump_all(Path(dumps), [Run(*run) for run in runs])
    return True


def make_dumps(dumps: Path, cases: Sequence[Case], pythons: dict[str, str]) -> None:
    """Make the dumps that are not there yet, those of each framework in a process of its own.

    Raises:
        measure.Failed: such a process failed.
    """
    wanted = [run for case in cases for run in case.runs] + [run for pair in clean_pairs(cases) for run in pair]
    # The runs of PyTorch leave the weights of the ports, also where the case is of MindSpore alone.
    wanted += [Run(TORCH, run.network) for run in wanted if run.framework == MINDSPORE]
    for framework in (TORCH, MINDSPORE):
        missing = [run for run in dict.fromkeys(wanted) if run.framework == framework]
        missing = [run for run in missing if not (dumps / run.folder).is_dir()]
        if missing:
            print(f"{len(missing)} runs of {framework}", file=sys.stderr, flush=True)
            job = {"framework": framework, "dumps": str(dumps.resolve()), "runs": missing}
            measure.run_worker(pythons[framework], __file__, job)


def report(found: Sequence[Outcome], alarms: Sequence[str], clean: int) -> str:
    """The tables."""
    right = sum(outcome.right for outcome in found)
    sides = list(dict.fromkeys(outcome.case.side for outcome in found))
    kinds = [[kind, *(_share(found, kind, side) for side in sides)] for kind in KINDS]
    rows = [
        [
            outcome.case.kind,
            outcome.case.side,
            outcome.case.network.replace("port:", ""),
            f"`{outcome.case.module}`: {outcome.case.what}",
            f"`{outcome.target or outcome.golden or 'nothing'}`",
            "yes" if outcome.right else "no, next" if outcome.next_right else "no",
        ]
        for outcome in found
    ]
    head = ("fault", "frameworks", "network", "planted", "the page stands at", "right")
    lines = [f"{right} of {len(found)} are shown first.", "", measure.table(("fault", *sides), kinds), ""]
    lines += [measure.table(head, rows), ""]
    if clean:
        lines += [f"Of {clean} pairs of two frameworks without fault, {len(alarms)} are said to diverge.", *alarms, ""]
    return "\n".join(lines)


def _share(found: Sequence[Outcome], kind: str, side: str) -> str:
    of_both = [outcome.right for outcome in found if (outcome.case.kind, outcome.case.side) == (kind, side)]
    return f"{sum(of_both)} of {len(of_both)}" if of_both else "-"


def main(arguments: Sequence[str]) -> int:
    """Plant, compare, and say how often the page is right."""
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(description="At which node the graph page of thirty planted faults stands.")
    parser.add_argument("--mindspore", metavar="PYTHON", help="interpreter with MindSpore; without it PyTorch alone")
    parser.add_argument("--only", nargs="+", choices=names, metavar="CASE", help=f"of {', '.join(names)}")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the dumps there; what it has is not made again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every outcome there")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the tables there too")
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if not options.only or case.name in options.only]
    if not options.mindspore:
        cases = [case for case in cases if MINDSPORE not in (case.framework, case.golden)]
    if not cases:
        parser.error("what is left of --only needs --mindspore PYTHON")
    # A path as it is given: the interpreter of a virtual environment is a link.
    pythons = {TORCH: sys.executable, MINDSPORE: os.path.abspath(options.mindspore or "")}
    with tempfile.TemporaryDirectory(prefix="graph_faults_") as temporary:
        dumps = options.keep or Path(temporary)
        dumps.mkdir(parents=True, exist_ok=True)
        try:
            make_dumps(dumps, cases, pythons)
        except measure.Failed as error:
            print(error, file=sys.stderr)
            return 1
        found = list(outcomes(dumps, cases))
        clean = clean_pairs(cases)
        alarms = false_alarms(dumps, clean)
    tables = report(found, alarms, len(clean))
    print(tables)
    if options.json is not None:
        content = [{**asdict(outcome), "name": outcome.case.name, "right": outcome.right} for outcome in found]
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if options.report is not None:
        about = f"`python benchmarks/graph_faults.py`: {measure.machine(('torch', 'transformers', 'msprobe'))}."
        text = f"# The first node of the graph page\n\n{about}\n\n{EXPLANATION}\n\n{tables}"
        options.report.write_text(text, encoding="utf-8")
    return 0 if sum(outcome.right for outcome in found) >= ENOUGH * len(found) and not alarms else 1


if __name__ == "__main__":
    given = measure.worker_arguments()
    if given is not None:
        measure.give_result(work(**given))
    else:
        sys.exit(main(sys.argv[1:]))
