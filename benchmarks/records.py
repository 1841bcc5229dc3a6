"""What one record costs, and whether that depends on how many there are.

A step is a loop of N calls of ``torch.sin`` on an 8x8 tensor at L1 with statistics: so little work that all the time is
the tool's. The microseconds per call are those above the bare loop, `start`, `stop` and `step` included. Beside ours
stand another tool (``--real``) and torch's own ``DebugMode``, which keeps the calls in memory with neither values nor
files.

    python benchmarks/records.py --calls 500 2000 10000 --real PYTHON
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

import measure

CALLS = (500, 1000, 2000, 5000, 10000, 20000)

# --- in the measuring process


def _bare_loop() -> Callable[[int], None]:
    import torch

    tensor = torch.ones(8, 8)

    def loop(calls: int) -> None:
        # Looked up each time: a tool that replaces functions does not see what was bound earlier.
        for _ in range(calls):
            torch.sin(tensor)

    return loop


def _with_debugger(backend: str, loop: Callable[[int], None]) -> Callable[[int], None]:
    config = {
        "task": "statistics",
        "dump_path": os.path.abspath("dump"),
        "rank": [],
        "step": [],
        "level": "L1",
        "risk_level": "ALL",
        "statistics": {},
    }
    Path("config.json").write_text(json.dumps(config), encoding="utf-8")
    front = importlib.import_module(measure.FRONT_ENDS[backend])
    debugger = front.PrecisionDebugger(config_path=os.path.abspath("config.json"))

    def step(calls: int) -> None:
        debugger.start()
        loop(calls)
        debugger.stop()
        debugger.step()

    return step


def _with_debug_mode(loop: Callable[[int], None]) -> Callable[[int], None]:
    from torch.utils._debug_mode import DebugMode

    def step(calls: int) -> None:
        with DebugMode(record_torchfunction=True):
            loop(calls)

    return step


def work(backend: str, kind: str, calls: Sequence[int], repeats: int) -> list[float]:
    """Microseconds per call above the bare loop, for every number of calls."""
    loop = _bare_loop()
    bare = {number: min(_timed(loop, number) for _ in range(repeats)) for number in calls}
    try:
        step = _with_debug_mode(loop) if kind == "DebugMode" else _with_debugger(backend, loop)
    except ImportError:
        return []
    step(calls[0])
    found = []
    for number in calls:
        seconds = []
        for _ in range(repeats):
            seconds.append(_timed(step, number))
            shutil.rmtree("dump", ignore_errors=True)
        found.append((min(seconds) - bare[number]) / number * 1e6)
    return found


def _timed(function: Callable[[int], None], calls: int) -> float:
    before = time.process_time()
    function(calls)
    return time.process_time() - before


# --- in the process the user started


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="CPU microseconds per record against the number of records.")
    parser.add_argument("--backend", type=measure.check_torch, default="torch")
    parser.add_argument("--calls", nargs="+", type=int, metavar="N", default=CALLS)
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="the least of N is taken (default 3)")
    parser.add_argument("--real", metavar="PYTHON", help="interpreter with another tool of the same import name")
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    options = parser.parse_args(arguments)
    if min(options.calls) < 1 or options.repeats < 1:
        parser.error("--calls and --repeats must be 1 or more")

    about = measure.machine((options.backend, "msprobe"))
    print(about, flush=True)
    python = {"ours": sys.executable, "DebugMode": sys.executable}
    if options.real:
        python["real"] = options.real
    results: dict[str, list[float]] = {}
    for tool in python:
        given: dict[str, Any] = {"kind": tool, "calls": options.calls, "repeats": options.repeats}
        try:
            found = measure.run_worker(python[tool], __file__, {"backend": options.backend, **given})
        except measure.Failed as error:
            print(f"{tool}: {error}", file=sys.stderr)
            continue
        if found:
            results[tool] = found
    rows = [[str(calls), *(f"{found[i]:.1f}" for found in results.values())] for i, calls in enumerate(options.calls)]
    print(f"\nus per call above the bare loop\n\n{measure.table(('calls', *results), rows)}", flush=True)
    if options.json:
        content = {"machine": about, "calls": options.calls, "us_per_call": results}
        Path(options.json).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0 if "ours" in results else 1


if __name__ == "__main__":
    worker = measure.worker_arguments()
    if worker is not None:
        measure.give_result(work(**worker))
    else:
        sys.exit(main(sys.argv[1:]))
