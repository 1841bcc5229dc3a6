"""CPU time of `rollout_check`: a call in a training loop, and millions of tokens from ``.npy``, with peak memory.

usage: python benchmarks/rollout_speed.py [--tokens N] [--profile]

The log-probabilities are clean ones in float32 with errors of bfloat16; times are of this process on one core.
"""

from __future__ import annotations

import argparse
import cProfile
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))
import probe
from probe.rollout.report import RolloutReport

_ROUNDS = 30


def made(sequences: int, length: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Both sides of tokens whose log-probabilities are exponentially distributed."""
    random = np.random.default_rng(0)
    training = -random.standard_exponential((sequences, length), np.float32)
    error = 0.01 * random.standard_normal((sequences, length), np.float32) * -np.expm1(training)
    return np.minimum(training + error, 0), training


def answered(report: RolloutReport) -> RolloutReport:
    """The same report, with the line and the numbers that a loop logs."""
    assert report.line and report.numbers
    return report


def cpu_time(call: Callable[[], object], rounds: int) -> float:
    """The shortest time of a call in seconds."""
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--profile", action="store_true", help="also print where the time goes")
    args = parser.parse_args()
    small = made(20, 500)
    ids = np.random.default_rng(1).integers(0, 50_000, small[0].shape)
    print("| case | CPU time |\n|---|---|")
    for name, given in (("10,000 tokens, the kind", {}), ("10,000 tokens with ids, the kind", {"tokens": ids})):
        spent = cpu_time(lambda known=given: probe.rollout_check(*small, **known).line, _ROUNDS)
        print(f"| {name} | {1e3 * spent:.2f} ms |")
    spent = cpu_time(lambda: answered(probe.rollout_check(*small)), _ROUNDS)
    print(f"| 10,000 tokens, the kind and all numbers | {1e3 * spent:.2f} ms |")
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{side}.npy") for side in ("rollout", "training")]
        for path, side in zip(paths, made(args.tokens // 1000, 1000)):
            np.save(path, side)
        del side
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        spent = cpu_time(lambda: answered(probe.rollout_check(*paths)).worst, 2)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"| {args.tokens:,} tokens from .npy, with numbers and worst tokens | {spent:.2f} s |")
        print(f"\npeak of memory: {most / 2**20:.2f} GiB ({before / 2**20:.2f} GiB before, of making the files)")
        if args.profile:
            cProfile.runctx("answered(probe.rollout_check(*paths)).worst", globals(), locals(), sort="tottime")


if __name__ == "__main__":
    main()
