"""How the cost of the tool grows: with the number of calls, the size of tensors and the depth of a model.

Each point is the CPU time of a loop or a training step with the tool less that of the bare one, in a process of its
own, one thread, statistics. Beside the second curve stands the physical limit: one read of each tensor that a record
describes, at the speed of `torch.sum`, which reads memory as fast as one core can.

    python benchmarks/growth.py --plot benchmarks/growth.svg

The plot needs matplotlib; the tables do not.
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

CALLS = (100, 300, 1_000, 3_000, 10_000, 30_000)
ELEMENTS = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
DEPTHS = (1, 2, 4, 8, 16, 32, 64)
LEVELS = ("L0", "L1", "mix")
_DESCRIBED = 2
"""Tensors in a record of ``torch.neg``: what goes in and what comes out."""

# --- in the measuring process


def _timed(function: Callable[[], Any]) -> float:
    before = time.process_time()
    function()
    return time.process_time() - before


def _debugger(level: str) -> Any:
    config = {
        "task": "statistics", "dump_path": os.path.abspath("dump"), "rank": [], "step": [], "level": level,
        "risk_level": "ALL", "statistics": {},
    }  # fmt: skip
    Path("config.json").write_text(json.dumps(config), encoding="utf-8")
    front = importlib.import_module(measure.FRONT_ENDS["torch"])
    return front.PrecisionDebugger(config_path=os.path.abspath("config.json"))


def _extra(level: str, program: Callable[[], Any], repeats: int, model: Any = None) -> float:
    """Seconds of `program` with the tool less those without; of each the least of some turns."""
    program()
    debugger = _debugger(level)
    bare, collected = [], []
    for _ in range(1 + repeats):
        bare.append(_timed(program))
        collected.append(_timed(lambda: _collected(debugger, program, model)))
        shutil.rmtree("dump", ignore_errors=True)
    # The first turn fills caches.
    return min(collected[1:]) - min(bare[1:])


def _collected(debugger: Any, program: Callable[[], Any], model: Any) -> None:
    debugger.start(model=model)
    program()
    debugger.stop()
    debugger.step()


def _loop(elements: int, calls: int) -> Callable[[], None]:
    import torch

    tensor = torch.ones(elements)

    def loop() -> None:
        # Looked up each time, as a user's code does.
        for _ in range(calls):
            torch.neg(tensor)

    return loop


def with_calls(calls: int, repeats: int) -> float:
    """Microseconds per call of that many on 64 numbers."""
    return _extra("L1", _loop(64, calls), repeats) / calls * 1e6


def with_elements(elements: int, repeats: int) -> list[float]:
    """Microseconds per call on so many numbers, and those of reading what it describes once."""
    import torch

    calls = max(10, min(1_000, 20_000_000 // elements))
    tensor = torch.ones(elements)
    tensor.sum()
    read = min(_timed(lambda: [tensor.sum() for _ in range(calls)]) for _ in range(3)) / calls
    empty = torch.ones(1)
    at_rest = min(_timed(lambda: [empty.sum() for _ in range(calls)]) for _ in range(3)) / calls
    limit = _DESCRIBED * max(read - at_rest, 0.0)
    return [_extra("L1", _loop(elements, calls), repeats) / calls * 1e6, limit * 1e6]


def with_depth(depth: int, level: str, repeats: int) -> float:
    """Milliseconds per training step of so many blocks, each a normalisation, a linear layer and an activation."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()) for _ in range(depth)]
    model, batch = nn.Sequential(*blocks), torch.randn(16, 64)

    def step() -> None:
        model.zero_grad()
        model(batch).square().mean().backward()

    return _extra(level, step, repeats, model) * 1e3


def work(kind: str, arguments: list[Any]) -> Any:
    return {"calls": with_calls, "elements": with_elements, "depth": with_depth}[kind](*arguments)


# --- in the process the user started


def _measured(kind: str, *arguments: Any) -> Any:
    return measure.run_worker(sys.executable, __file__, {"kind": kind, "arguments": list(arguments)})


def plot(results: dict[str, Any], path: str) -> None:
    """Three curves, side by side."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        sys.exit("--plot needs matplotlib: pip install matplotlib")
    figure = Figure(figsize=(13, 4), layout="constrained")
    calls, elements, depth = figure.subplots(1, 3)
    calls.semilogx(CALLS[: len(results["calls"])], results["calls"], "o-", label="ours")
    calls.set(title="calls in a step", xlabel="calls", ylabel="us per call", ylim=(0, None))
    sizes = ELEMENTS[: len(results["elements"])]
    elements.loglog(sizes, [point[0] for point in results["elements"]], "o-", label="ours")
    elements.loglog(sizes[2:], [point[1] for point in results["elements"][2:]], "k--", label="one read of each")
    elements.set(title="size of a tensor", xlabel="float32 numbers", ylabel="us per call")
    for level in LEVELS:
        depth.loglog(DEPTHS[: len(results[level])], results[level], "o-", label=level, base=2)
    depth.set(title="depth of a model", xlabel="blocks", ylabel="ms per step")
    for axes in (calls, elements, depth):
        axes.grid(True, alpha=0.3)
        axes.legend()
    figure.savefig(path)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="How the cost of the tool grows.")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="the least of N is taken (default 3)")
    parser.add_argument("--points", type=int, default=7, metavar="N", help="the first N of each curve (default: all)")
    parser.add_argument("--plot", metavar="FILE", help="draw the curves too (.svg, .png, .pdf)")
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    options = parser.parse_args(arguments)
    if min(options.repeats, options.points) < 1:
        parser.error("--repeats and --points must be 1 or more")
    about = measure.machine(("torch", "msprobe"))
    print(about, flush=True)
    try:
        results = {
            "calls": [_measured("calls", calls, options.repeats) for calls in CALLS[: options.points]],
            "elements": [_measured("elements", elements, options.repeats) for elements in ELEMENTS[: options.points]],
            **{
                level: [_measured("depth", depth, level, options.repeats) for depth in DEPTHS[: options.points]]
                for level in LEVELS
            },
        }
    except measure.Failed as error:
        print(error, file=sys.stderr)
        return 1
    rows = [[str(calls), f"{cost:.1f}"] for calls, cost in zip(CALLS, results["calls"])]
    print(f"\n{measure.table(('calls', 'us per call'), rows)}")
    rows = [[str(size), f"{cost:.1f}", f"{limit:.1f}"] for size, (cost, limit) in zip(ELEMENTS, results["elements"])]
    print(f"\n{measure.table(('numbers', 'us per call', 'one read of each'), rows)}")
    rows = [
        [str(depth), *(f"{cost:.2f}" for cost in costs)]
        for depth, *costs in zip(DEPTHS, *(results[level] for level in LEVELS))
    ]
    print(f"\n{measure.table(('blocks', *(f'{level} ms per step' for level in LEVELS)), rows)}", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": about, **results}, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        plot(results, options.plot)
    return 0


if __name__ == "__main__":
    worker = measure.worker_arguments()
    if worker is not None:
        measure.give_result(work(**worker))
    else:
        sys.exit(main(sys.argv[1:]))
