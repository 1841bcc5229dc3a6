"""Answers of `msprobe ckpt_compare` with fingerprints in place of checkpoints, and those with both checkpoints.

    python benchmarks/fingerprint_answers.py [--models] [--only WORDS] [--show]

Each pair of `checkpoint_answers.py`, or with ``--models`` of changed models of Transformers, is compared with a
fingerprint on the first side, on the second, and on both. An answer is the same if the status and the verdict on every
parameter are. *Cannot be told* is counted apart, and so is any other verdict that differs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from checkpoint_pairs.changed_models import changed_models
from checkpoint_pairs.pairs import Pair, faults, held_out, right
from checkpoint_pairs.unseen import unseen

from probe.checkpoint.comparison import compare_checkpoints
from probe.checkpoint.fingerprints.making import fingerprint_checkpoint
from probe.checkpoint.report import UNKNOWN, Report

SIDES = {"first": (True, False), "second": (False, True), "both": (True, True)}


def verdicts(report: Report) -> dict[tuple[str, str], tuple[str, bool]]:
    """The verdict on each parameter, and whether it is fine, by the names of both sides."""
    return {(each.name, each.other_name): (each.verdict, each.is_fine) for each in report.parameters}


def outcome(wanted: Report, told: Report) -> str:
    """``same``, ``cannot be told`` or ``other``."""
    if told.answer == wanted.answer and verdicts(told) == verdicts(wanted):
        return "same"
    mine, its = verdicts(told), verdicts(wanted)
    differ = [name for name in {*mine, *its} if mine.get(name) != its.get(name)]
    return "cannot be told" if all(mine.get(name, ("",))[0] == UNKNOWN for name in differ) else "other"


def outcomes(paths: tuple[str, str], folder: Path) -> Iterator[tuple[str, str, str]]:
    """The outcome for each choice of sides, with the answer that was given."""
    wanted = compare_checkpoints(*paths)
    made = [fingerprint_checkpoint(path, str(folder / f"{at}.fingerprint")) for at, path in enumerate(paths)]
    for name, told in SIDES.items():
        report = compare_checkpoints(*(made[at] if is_told else paths[at] for at, is_told in enumerate(told)))
        yield name, outcome(wanted, report), report.why


Written = Iterator[tuple[str, str, Callable[[Path], tuple[str, str]]]]
"""The group and the name of a pair, and what writes both checkpoints into a folder."""


def written() -> Written:
    """The pairs of `checkpoint_answers.py`."""
    groups = {"right pairs": right, "faults": faults, "held out": held_out, "unseen": unseen}
    for group, pairs in groups.items():
        for pair in pairs():

            def write(folder: Path, pair: Pair = pair) -> tuple[str, str]:
                one = pair.write_target(folder / "target", pair.target)
                return str(one), str(pair.write_golden(folder / "golden", pair.golden))

            yield group, pair.name, write


def written_models() -> Written:
    """The pairs of changed models."""
    for name, write in changed_models():
        yield "models", name, write


def main() -> None:
    """Make each pair, compare it in four ways, and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="pairs whose name has this in it")
    parser.add_argument("--show", action="store_true", help="each answer that is another one")
    parser.add_argument("--models", action="store_true", help="pairs of changed models of Transformers")
    args = parser.parse_args()
    counts: Counter[tuple[str, str, str]] = Counter()
    for group, name, write in written_models() if args.models else written():
        if args.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            for side, found, why in outcomes(write(Path(folder)), Path(folder)):
                counts[group, side, found] += 1
                if args.show and found != "same":
                    print(f"{group}: {name}: {side}: {found}: {why[:300]}", flush=True)
    for group, side in dict.fromkeys((group, side) for group, side, _ in counts):
        print(f"{group}, fingerprint on {side}: ", end="")
        print(", ".join(f"{counts[group, side, each]} {each}" for each in ("same", "cannot be told", "other")))


if __name__ == "__main__":
    main()
