"""How fast the description of a tensor is, against reading its memory once.

GB/s of the tensor's bytes, on one core: ``read`` sums the same bytes as float32, which is as fast as one pass gets;
``statistics`` is the whole entry of the record with Max, Min, Mean and Norm; ``md5`` has the checksum besides. The last
column is what the statistics cost in passes over memory. Small tensors show the fixed cost, which is given in
microseconds.

    python benchmarks/statistics_bandwidth.py --elements 1000 1000000
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

import measure

ELEMENTS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
DTYPES = ("float32", "bfloat16", "float16")
_SECONDS = 0.05
"""How long one measurement lasts; the least of five is taken."""


def _seconds(function: Callable[[], Any]) -> float:
    """CPU seconds of one call."""
    function()
    calls = 1
    best = float("inf")
    rounds = 0
    while rounds < 5:
        before = time.process_time()
        for _ in range(calls):
            function()
        spent = time.process_time() - before
        if spent < _SECONDS / 2 and calls < 1 << 20:
            calls = max(calls + 1, min(calls * 16, int(calls * _SECONDS / max(spent, 1e-6))))
            continue
        best = min(best, spent / calls)
        rounds += 1
    return best


def work(backend: str, elements: Sequence[int], dtypes: Sequence[str]) -> list[dict[str, Any]]:
    """Seconds of one read and of each kind of description."""
    import torch

    from probe.backends import loader
    from probe.common.interfaces import StatisticsMode

    torch.manual_seed(0)
    adapter = loader.load(backend)
    results = []
    with torch.no_grad():
        for dtype in dtypes:
            for number in elements:
                number -= number % 2  # whole words of 32 bits
                tensor = torch.randn(number).to(getattr(torch, dtype))
                words = tensor.view(torch.float32)
                line = {
                    "dtype": dtype,
                    "elements": number,
                    "bytes": tensor.numel() * tensor.element_size(),
                    "read": _seconds(words.sum),
                }
                for mode in ("statistics", "md5"):
                    summary = StatisticsMode(mode, False)
                    line[mode] = _seconds(lambda: adapter.tensors.describe_tensor(tensor, summary))  # noqa: B023
                results.append(line)
    return results


HEAD = ("dtype", "elements", "read GB/s", "statistics GB/s", "md5 GB/s", "statistics us", "passes")


def row(line: dict[str, Any]) -> list[str]:
    size = line["bytes"] / 1e9
    return [
        line["dtype"],
        str(line["elements"]),
        *(f"{size / line[kind]:.2f}" for kind in ("read", "statistics", "md5")),
        f"{line['statistics'] * 1e6:.1f}",
        f"{line['statistics'] / line['read']:.1f}",
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Bandwidth of the statistics on one core.")
    parser.add_argument("--backend", type=measure.check_torch, default="torch")
    parser.add_argument("--elements", nargs="+", type=int, metavar="N", default=ELEMENTS)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    options = parser.parse_args(arguments)
    if min(options.elements) < 2:
        parser.error("--elements must be 2 or more")

    about = measure.machine((options.backend, "msprobe"))
    print(about, flush=True)
    given = {"backend": options.backend, "elements": options.elements, "dtypes": options.dtypes}
    try:
        results = measure.run_worker(sys.executable, os.path.abspath(__file__), given)
    except measure.Failed as error:
        print(error, file=sys.stderr)
        return 1
    print(f"\n{measure.table(HEAD, [row(line) for line in results])}", flush=True)
    if options.json:
        content = {"machine": about, "results": results}
        Path(options.json).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    worker = measure.worker_arguments()
    if worker is not None:
        measure.give_result(work(**worker))
    else:
        sys.exit(main(sys.argv[1:]))
