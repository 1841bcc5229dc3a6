"""Right answers of `msprobe ckpt_compare` on pairs of small checkpoints whose answer is known.

    python benchmarks/checkpoint_answers.py [--only WORDS] [--show]

An answer is right if its status is, and, where the pair has a fault, if every parameter that it names is one with the
fault, at least one is named, and the words say which fault. Families and kinds that the rules were not made with are
counted apart, and so are pairs that were written when the rules were done.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections import Counter
from pathlib import Path

from checkpoint_pairs.hostile import files
from checkpoint_pairs.pairs import Pair, faults, held_out, right
from checkpoint_pairs.unseen import unseen

from probe.checkpoint.comparison import compare_checkpoints
from probe.checkpoint.output import lines
from probe.common.errors import MsprobeException


def wrong(pair: Pair, folder: Path) -> str:
    """Anything that is wrong in the answer; empty if it is right."""
    one = pair.write_target(folder / "target", pair.target)
    other = pair.write_golden(folder / "golden", pair.golden)
    try:
        report = compare_checkpoints(str(one), str(other))
    except MsprobeException as error:
        return f"refused: {error}"
    text = "\n".join(line for line, _ in lines(report))
    if report.answer != pair.answer:
        return f"{report.answer}: {report.why}"
    if pair.answer != "different":
        return ""
    bad = [each for each in report.parameters if not each.is_fine]
    names = re.compile(pair.names)
    strange = [each for each in bad if not names.search(each.name) and not names.search(each.other_name)]
    if not bad or strange:
        return f"names {strange[0].shown if strange else 'nothing'}: {strange[0].how if strange else report.why}"
    return "" if re.search(pair.words, text, re.DOTALL) else f"does not say {pair.words!r}: {text[:600]}"


def main() -> None:
    """Make each pair, compare, and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="pairs whose name has this in it")
    parser.add_argument("--show", action="store_true", help="what is wrong with each wrong answer")
    args = parser.parse_args()
    counts: Counter[tuple[str, bool]] = Counter()
    for group, pairs in (
        ("right pairs", right()),
        ("faults", faults()),
        ("held out", held_out()),
        ("unseen", unseen()),
    ):
        for pair in pairs:
            if args.only not in pair.name:
                continue
            with tempfile.TemporaryDirectory() as folder:
                try:
                    reason = wrong(pair, Path(folder))
                except Exception as error:  # a crash is a wrong answer
                    reason = f"{type(error).__name__}: {error}"
            counts[group, not reason] += 1
            if reason and args.show:
                print(f"{group}: {pair.name}: {reason[:700]}")
    for name, data in files():
        if args.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.pt"
            path.write_bytes(data)
            try:
                compare_checkpoints(str(path), str(path))
                reason = "not refused"
            except MsprobeException as error:
                reason = "" if "\n" not in str(error) else "several lines"
            except Exception as error:  # a crash is a wrong answer
                reason = f"{type(error).__name__}: {error}"
        counts["hostile files", not reason] += 1
        if reason and args.show:
            print(f"hostile: {name}: {reason}")
    for group in dict.fromkeys(group for group, _ in counts):
        print(f"{group}: {counts[group, True]} of {counts[group, True] + counts[group, False]} right")
    total = sum(counts.values())
    print(f"all: {sum(number for (_, good), number in counts.items() if good)} of {total} right")


if __name__ == "__main__":
    main()
