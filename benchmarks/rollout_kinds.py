"""The kinds of mismatch that `msprobe rollout_check` names for generated log-probabilities, and for clean ones.

usage: python benchmarks/rollout_kinds.py [--planted N] [--clean N] [--drawn N] [--first SEED] [--only NAME ...]

Each case is a small decoder of numpy (tests/support/rollout_mismatch), run as a rollout with a cache and as a training
in one forward, both with every operation rounded to a dtype. A case is drawn for each seed: lengths of sequences, size
of the vocabulary, sharpness of the distributions. It is judged twice: with `--dtype` and `--layers`, and without. The
thresholds of `probe/rollout/kinds` were chosen by the seeds below 1000; those from 5000 on are for results. A planted
mismatch whose differences are less than twice those of the clean pair is below rounding: there is nothing to name, and
it is counted apart. With `--drawn`, cases of drawn distributions (rollout_mismatch/drawn.py) follow: right
errors, slow faults, penalties, and tokens that do not fit, with dtype, layers and steps given. Seeds from 5000 on have
families of distributions and vocabularies that no rule was made with. benchmarks/ROLLOUT_KINDS.md has the results.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests" / "support")]

from rollout_mismatch import cases, drawn  # noqa: E402
from rollout_mismatch.asking import answer, size  # noqa: E402

_FINE = ("rounding", "none")
HELD_OUT = 5000
"""The first seed that no rule was made with."""


def setting(dtype: str, name: str, seed: int) -> cases.Setting:
    """The sizes of the case of a seed."""
    random = np.random.default_rng([seed, *name.encode()])
    return cases.Setting(
        dtype, cases.LENGTHS[random.integers(3)], cases.VOCABULARIES[random.choice(3, p=[0.45, 0.45, 0.1])],
        cases.SHARPNESS[random.integers(3)], seed,
    )  # fmt: skip


WAYS = {True: "with --dtype and --layers", False: "without them"}
Counts = dict[tuple[str, str, bool], "Counter[str]"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planted", type=int, default=6, help="seeds of each planted mismatch and dtype")
    parser.add_argument("--clean", type=int, default=50, help="seeds of each clean case and dtype")
    parser.add_argument("--drawn", type=int, default=6, help="seeds of each drawn case")
    parser.add_argument("--first", type=int, default=HELD_OUT)
    parser.add_argument("--only", nargs="+", default=[])
    args = parser.parse_args()
    counts: Counts = {}
    for dtype in cases.DTYPES:
        for make in [*cases.CLEAN, *cases.PLANTED]:
            if args.only and make.__name__ not in args.only:
                continue
            number = args.clean if make in cases.CLEAN else args.planted
            for seed in range(args.first, args.first + number):
                for knows, found in _judged(make, setting(dtype, make.__name__, seed)).items():
                    counts.setdefault((make.__name__, dtype, knows), Counter())[found] += 1
    for knows in WAYS:
        _print(counts, knows)
    _print_drawn(range(args.first, args.first + args.drawn), args.only)


def _print_drawn(seeds: range, only: list[str]) -> None:
    print("\ndrawn distributions:\n\n| case | kind | right | otherwise named |\n|---|---|---|---|")
    for make in [*drawn.RIGHT, *drawn.FAULTS]:
        wanted, others, below = drawn.FAULTS.get(make, _FINE), [], 0
        if only and make.__name__ not in only:
            continue
        for seed in seeds:
            pair = drawn.made(make, seed, is_held_out=seed >= HELD_OUT)
            kind = pair.report().kind
            if kind not in wanted and make in drawn.FAULTS and not pair.is_told:
                below += 1
            elif kind not in wanted:
                others.append(f"{seed}: {kind}")
        count = len(seeds) - below
        text = f"{count - len(others)} of {count}" + (f", {below} below rounding" if below else "")
        print(f"| {make.__name__} | {' or '.join(wanted)} | {text} | {'; '.join(others)} |", flush=True)


def _judged(make: cases.Make, chosen: cases.Setting) -> dict[bool, str]:
    """Right, wrong, or below rounding, where dtype and layers are known and where they are not."""
    case, wanted = make(chosen), cases.PLANTED.get(make)
    judged = {}
    for knows in WAYS:
        found = answer(case, chosen, with_dtype=knows, with_layers=knows)
        judged[knows] = "right" if found.kind in ((wanted,) if wanted else _FINE) else "wrong"
        if judged[knows] == "wrong" and wanted and size(case) < 2 * size(cases.clean(chosen)):
            judged[knows] = "below"
        if judged[knows] == "wrong":
            print(f"{make.__name__}, {WAYS[knows]}: {found.kinds} for {chosen}", flush=True)
    return judged


def _print(counts: Counts, knows: bool) -> None:
    print(f"\n{WAYS[knows]}:\n\n| case | kind | " + " | ".join(cases.DTYPES) + " |\n|---|---|---|---|---|")
    total: Counter[tuple[bool, str, str]] = Counter()
    for make in [*cases.CLEAN, *cases.PLANTED]:
        cells = []
        for dtype in cases.DTYPES:
            count = counts.get((make.__name__, dtype, knows), Counter())
            below = f", {count['below']} below rounding" if count["below"] else ""
            cells.append(f"{count['right']} of {count['right'] + count['wrong']}{below}")
            for each in ("right", "wrong"):
                total[make in cases.PLANTED, dtype, each] += count[each]
        print(f"| {make.__name__} | {cases.PLANTED.get(make, 'rounding')} | " + " | ".join(cells) + " |")
    for is_planted, name in ((True, "**all planted**"), (False, "**all clean**")):
        cells = []
        for dtype in cases.DTYPES:
            right, wrong = total[is_planted, dtype, "right"], total[is_planted, dtype, "wrong"]
            cells.append(f"{right} of {right + wrong}")
        print(f"| {name} | | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
