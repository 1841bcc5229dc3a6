"""The kinds of mismatch that `msprobe rollout_check` names for generated log-probabilities, and for clean ones.

usage: python benchmarks/rollout_kinds.py [--seeds N] [--first SEED] [--without-layers] [--only NAME ...]

Each case is a small decoder of numpy (tests/support/rollout_mismatch), run as a rollout with a cache and as a training
in one forward, both with every operation rounded to a dtype. A case is drawn for each seed: lengths of sequences, size
of the vocabulary, sharpness of the distributions. The thresholds of `probe/rollout/kinds` were chosen by the
seeds below 1000; those from 5000 on are for results. A planted mismatch whose differences are less than
twice those of the clean pair is below rounding: there is nothing to name, and it is counted apart.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests" / "support")]

from rollout_mismatch import cases  # noqa: E402
from rollout_mismatch.asking import answer, size  # noqa: E402

_FINE = ("none", "rounding")


def setting(dtype: str, name: str, seed: int) -> cases.Setting:
    """The sizes of the case of a seed."""
    random = np.random.default_rng([seed, *name.encode()])
    return cases.Setting(
        dtype, cases.LENGTHS[random.integers(3)], cases.VOCABULARIES[random.choice(3, p=[0.45, 0.45, 0.1])],
        cases.SHARPNESS[random.integers(3)], seed,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first", type=int, default=5000)
    parser.add_argument("--without-layers", action="store_true")
    parser.add_argument("--only", nargs="+", default=[])
    args = parser.parse_args()
    counts: dict[tuple[str, str], Counter[str]] = {}
    for dtype in cases.DTYPES:
        for make in [*cases.CLEAN, *cases.PLANTED]:
            if args.only and make.__name__ not in args.only:
                continue
            count = counts.setdefault((make.__name__, dtype), Counter())
            for seed in range(args.first, args.first + args.seeds):
                chosen = setting(dtype, make.__name__, seed)
                count[_judged(make, chosen, not args.without_layers)] += 1
    _print(counts)


def _judged(make: cases.Make, chosen: cases.Setting, with_layers: bool) -> str:
    case = make(chosen)
    found = answer(case, chosen, with_layers)
    wanted = cases.PLANTED.get(make)
    if wanted is None:
        is_right = found.kind in _FINE
    else:
        is_right = found.kind == wanted
        if not is_right and size(case) < 2 * size(cases.clean(chosen)):
            return "below rounding"
    if not is_right:
        print(f"{make.__name__}: {found.kinds} for {chosen}", flush=True)
    return "right" if is_right else "wrong"


def _print(counts: dict[tuple[str, str], Counter[str]]) -> None:
    print("\n| case | kind | " + " | ".join(cases.DTYPES) + " |\n|---|---|---|---|---|")
    total: Counter[tuple[bool, str]] = Counter()
    for make in [*cases.CLEAN, *cases.PLANTED]:
        cells = []
        for dtype in cases.DTYPES:
            count = counts.get((make.__name__, dtype), Counter())
            judged = count["right"] + count["wrong"]
            cells.append(f"{count['right']} of {judged}")
            for each in ("right", "wrong"):
                total[make in cases.PLANTED, each] += count[each]
        print(f"| {make.__name__} | {cases.PLANTED.get(make, 'rounding')} | " + " | ".join(cells) + " |")
    for is_planted, name in ((True, "planted mismatches named"), (False, "clean sets not accused")):
        right, wrong = total[is_planted, "right"], total[is_planted, "wrong"]
        print(f"\n{name}: {right} of {right + wrong}")


if __name__ == "__main__":
    main()
