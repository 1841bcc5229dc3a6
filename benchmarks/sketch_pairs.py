"""Faults in a run of another precision, found from the sketches of two dumps by one rule: what distances are worth.

    python benchmarks/sketch_pairs.py FOLDER CASES.py [--lanes 64 32 16 8]

FOLDER holds for each pair of CASES.py the dumps ``PAIR/L0-statistics/{golden,target}``, as ``pairs.py`` of the recorded
pairs writes them. No tolerance is propagated and no name is looked up: the error of each module, beyond what its inputs
bring, is compared with that of the same module in the other layers. Forward of the first step, modules only. `--lanes`
adds the lanes of each sketch up to fewer ones, which shows what a shorter sketch would lose.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import re
import statistics
import sys
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

import probe
from probe.common.dump.reading.items import Item

FACTOR = 4.0
"""A module whose error exceeds that of its like by this factor is named; right runs of the trial reach 3.6."""
_LAYER = re.compile(r"\.\d+(?=\.)")


def sums(item: Item, lanes: int) -> NDArray[np.float64] | None:
    """The sketch of a tensor of floating-point numbers in `lanes` lanes; ``None`` of any other item."""
    if item.sketch is None or "loat" not in str(item.dtype) or not item.shape:
        return None
    return item.sketch.sums.astype(np.float64).reshape(-1, lanes).sum(0)


def errors(target: list[Item], golden: list[Item], lanes: int) -> list[float]:
    """The relative distance of each tensor from its counterpart."""
    found = []
    for mine, other in zip(target, golden):
        one, two = sums(mine, lanes), sums(other, lanes)
        if one is not None and two is not None and mine.shape == other.shape:
            found.append(float(np.linalg.norm(one - two)) / max(float(np.linalg.norm(two)), 1e-30))
    return found


def first(folder: str, unit: float, lanes: int) -> tuple[str, float]:
    """The first module whose error is its own, and how far it exceeds its like; an empty name where there is none."""
    golden, target = (next(iter(probe.Run(f"{folder}/{side}/step0"))) for side in ("golden", "target"))
    rows, peers = [], defaultdict(list)
    for record in golden:
        if ".forward" not in record.name or record.name not in target:
            continue
        ours, theirs = target[record.name].items(), record.items()
        outs = errors(*([i for i in items if i.state == "output"] for items in (ours, theirs)), lanes)
        ins = errors(*([i for i in items if i.state == "input"] for items in (ours, theirs)), lanes)
        if outs:
            name = record.name.removeprefix("Module.").rpartition(".forward")[0].rpartition(".")[0]
            row = (name, _LAYER.sub(".#", name + "."), outs[0], max(ins, default=0.0))
            rows.append(row)
            peers[row[1]].append(row)
    for name, role, out, into in rows:
        others = [row for row in peers[role] if row[0] != name]
        own = sorted(math.sqrt(max(row[2] ** 2 - row[3] ** 2, unit**2)) for row in others)
        if len(others) >= 3:
            middle = own[len(own) // 2]
            carry = max(1.0, statistics.median(row[2] / math.hypot(row[3], middle) for row in others))
            excess = out / (carry * math.hypot(into, middle))
            if excess > FACTOR:
                return name, excess
        elif not any(row[0].startswith(f"{name}.") for row in rows) and out / math.hypot(into, unit) > 5:
            return name, out / math.hypot(into, unit)
    return "", 0.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Faults in a run of another precision, found from sketches.")
    parser.add_argument("folder")
    parser.add_argument("cases")
    parser.add_argument("--lanes", nargs="+", type=int, default=[64], choices=[64, 32, 16, 8])
    given = parser.parse_args(arguments)
    spec = importlib.util.spec_from_file_location("cases", given.cases)
    assert spec is not None and spec.loader is not None
    cases: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cases)
    wrong = 0
    for lanes in given.lanes:
        right = 0
        for name, pair in cases.PAIRS.items():
            unit = 2.0**-9 if "bfloat16" in str(pair) else 2.0**-12
            said, excess = first(f"{given.folder}/{name}/L0-statistics", unit, lanes)
            good = not said if pair["right"] is None else bool(re.search(pair["right"], said or "silent"))
            right += good
            print(f"{'right' if good else 'WRONG'} {lanes:2d} lanes {name:28s} {said or 'silent'} {excess:.1f}")
        wrong += len(cases.PAIRS) - right
        print(f"{lanes} lanes: {right} of {len(cases.PAIRS)} right")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
