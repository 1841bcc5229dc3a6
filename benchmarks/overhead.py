"""What a training step costs with the tool, in CPU time relative to the bare step.

Each tool and mode is measured in processes of its own, because a process has one debugger. Before anything is imported
such a process forks a twin that will never see the tool; from then on the twin makes a few bare steps and the process
makes a few steps with the tool, in turns, so that both see the same machine at the same time. A ratio is taken of each
such round, of the medians of its steps; the first step of each kind is left out, because the other kind has just
emptied the caches. What `start`, `stop` and `step` do, that is making the hooks, the folder and the files, is part of
the step.

    python benchmarks/overhead.py --sizes medium --modes L1 mix
    python benchmarks/overhead.py --real PYTHON --json overhead.json
    python benchmarks/overhead.py --backend mindspore

Run it with the Python that has the framework: for ``--backend mindspore`` and ``--backend msadapter`` that of
``tox -e mindspore`` or ``msadapter`` (``.tox/mindspore/bin/python``), or one set up as
``docs/reference/mindspore.md`` and ``docs/reference/msadapter.md`` say. The three models are the same network.
MindSpore runs on one core and without its pipeline there (`models_mindspore.measurable` says why).

Modes: ``bare`` (no tool: how exact this is), ``mounted`` (a debugger exists, `start` is never called), ``filtered``
(`start`, `stop` and `step` are called, but no step is wanted), ``L0``, ``L1``, ``mix`` (statistics), ``tensor`` (mix,
all tensors saved), ``md5`` (mix, checksums besides statistics), ``watch-L0``, ``watch-L1`` and ``watch-mix`` (task
``overflow_check`` with nothing to report). With PyTorch also ``monitor-idle``, ``monitor-gradients``,
``monitor-activations``, ``monitor-all`` and ``monitor-all-tenth`` (each tenth step), which is `TrainerMon`, and
``floor-L0``, ``floor-L1`` and ``floor-mix``: the least that a tool written in Python can do at that level
(`floor_torch.py`).

What a step writes is removed after each round, which makes new files slower on ext4: it looks past the inodes that were
deleted in the last minutes. ``TMPDIR=/dev/shm`` measures without that.

The CPU time is that of the whole process (``time.process_time``); processes a tool might start are not in it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

import measure

LEVELS = {"mounted": "mix", "filtered": "mix", "tensor": "mix", "md5": "mix", "L0": "L0", "L1": "L1", "mix": "mix"}
LEVELS.update({"watch-L0": "L0", "watch-L1": "L1", "watch-mix": "mix"})
FOUR = ["min", "max", "mean", "norm"]
ACTIVATIONS = {"xy_distribution": True, "all_xy": True}
EVERYTHING = {
    **ACTIVATIONS, "wg_distribution": True, "mv_distribution": True, "param_distribution": True, "mg_direction": True,
    "ops": [*FOUR, "zeros", "nans"],
}  # fmt: skip
MONITORS: dict[str, dict[str, Any]] = {
    "monitor-idle": {**ACTIVATIONS, "wg_distribution": True, "start_step": 10**9, "ops": FOUR},
    "monitor-gradients": {"wg_distribution": True, "ops": FOUR},
    "monitor-activations": {**ACTIVATIONS, "ops": FOUR},
    "monitor-all": {**EVERYTHING, "alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}]}},
    "monitor-all-tenth": {**EVERYTHING, "step_interval": 10},
}
"""Mode -> settings of `TrainerMon`; the step ends with the optimizer's then."""
MODES = ("bare", "mounted", "filtered", "L0", "L1", "mix", "tensor", "md5")
WATCHES = ("watch-L0", "watch-L1", "watch-mix")
FLOORS = ("floor-L0", "floor-L1", "floor-mix")
SIZES = ("small", "medium", "large")
STEPS = {"small": 60, "medium": 24, "large": 6}
"""Steps of each kind measured in one process, where ``--steps`` does not say otherwise."""
STEPS_IN_ROUND = {"small": 6, "medium": 4, "large": 2}

# --- in the measuring process


class Twin:
    """A process without the tool that makes bare steps on demand.

    It is forked before the framework is imported, since the threads of MindSpore would stay behind.
    """

    def __init__(self, build: Callable[[], Callable[[], None]]) -> None:
        ask, self._ask = os.pipe()
        self._answer, answer = os.pipe()
        if os.fork() == 0:
            os.close(self._ask)
            step = build()
            while os.read(ask, 1):
                os.write(answer, struct.pack("d", _timed(step)))
            os._exit(0)
        os.close(ask)
        os.close(answer)

    def step(self) -> float:
        """The CPU seconds of one bare step."""
        os.write(self._ask, b"x")
        seconds: float = struct.unpack("d", os.read(self._answer, 8))[0]
        return seconds


def _timed(function: Callable[..., Any], *args: Any) -> float:
    before = time.process_time()
    function(*args)
    return time.process_time() - before


def _debugger(backend: str, mode: str) -> Any:
    if mode in FLOORS:
        return importlib.import_module(f"floor_{backend}").Floor(mode, os.path.abspath("frames"))
    task = "tensor" if mode == "tensor" else "overflow_check" if mode in WATCHES else "statistics"
    config = {
        "task": task,
        "dump_path": os.path.abspath("dump"),
        "rank": [],
        "step": [1_000_000] if mode == "filtered" else [],
        "level": LEVELS[mode],
        "risk_level": "ALL",
        task: {"summary_mode": "md5"} if mode == "md5" else {},
    }
    Path("config.json").write_text(json.dumps(config), encoding="utf-8")
    front = importlib.import_module(measure.FRONT_ENDS[backend])
    return front.PrecisionDebugger(config_path=os.path.abspath("config.json"))


def _written() -> dict[str, int]:
    """What the steps of a round wrote, for one step; removed, so that a long run does not fill the disk.

    A file with several names counts once.
    """
    folders = list(Path("dump").glob("step*"))
    records = size = 0
    for folder in folders:
        found = [path.stat() for path in folder.rglob("*") if path.is_file()]
        size += sum({each.st_ino: each.st_size for each in found}.values())
        for path in folder.rglob("dump.json"):
            records += len(json.loads(path.read_text(encoding="utf-8"))["data"])
    shutil.rmtree("dump", ignore_errors=True)
    steps = max(len(folders), 1)
    return {"records": records // steps, "bytes": size // steps}


def work(backend: str, size: str, mode: str, steps: int, optimizer: bool) -> dict[str, Any]:
    """Measure `steps` steps of each kind in rounds; all times in seconds."""
    models = f"models_{backend}"
    optimizer = optimizer or mode in MONITORS
    twin = Twin(lambda: importlib.import_module(models).training(size, optimizer).step)
    training = importlib.import_module(models).training(size, optimizer)
    debugger = None if mode == "bare" or mode in MONITORS else _debugger(backend, mode)
    if mode in MONITORS:
        Path("config.json").write_text(json.dumps({"targets": {}, **MONITORS[mode]}), encoding="utf-8")
        front = importlib.import_module(measure.FRONT_ENDS[backend])
        monitor = front.TrainerMon("config.json", params_have_main_grad=False)
        monitor.set_monitor(training.model, grad_acc_steps=1, optimizer=training.optimizer)
    calls: list[Callable[..., Any]] = [training.step]
    if debugger is not None and mode != "mounted":
        model = training.model
        calls = [lambda: debugger.start(model=model), training.step, debugger.stop, debugger.step]
    in_round = min(steps, STEPS_IN_ROUND[size])
    rounds = []
    wrote = {"records": 0, "bytes": 0}
    for number in range(1 + -(-steps // in_round)):
        bare = [twin.step() for _ in range(1 + in_round)][1:]
        with_tool = [[_timed(call) for call in calls] for _ in range(1 + in_round)][1:]
        wrote = debugger.wrote if mode in FLOORS else _written()
        if number > 0:
            rounds.append({"bare": bare, "with_tool": with_tool})
    return {"rounds": rounds, **wrote}


# --- in the process the user started


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One line of the table from the processes that measured the same."""
    rounds = [each for run in runs for each in run["rounds"]]
    bare = [measure.middle(each["bare"]) for each in rounds]
    whole = [measure.middle([sum(parts) for parts in each["with_tool"]]) for each in rounds]
    parts = [parts for each in rounds for parts in each["with_tool"]]
    ratios = [mine / theirs for mine, theirs in zip(whole, bare)]
    extra = measure.middle([mine - theirs for mine, theirs in zip(whole, bare)])
    records = runs[-1]["records"]
    split = len(parts[0]) == 4
    return {
        "bare_ms": measure.middle(bare) * 1e3,
        "ratio": measure.middle(ratios),
        "quartiles": measure.spread(ratios),
        "start_ms": measure.middle([part[0] for part in parts]) * 1e3 if split else 0.0,
        "finish_ms": measure.middle([part[2] + part[3] for part in parts]) * 1e3 if split else 0.0,
        "records": records,
        "bytes": runs[-1]["bytes"],
        "us_per_record": extra * 1e6 / records if records else 0.0,
    }


HEAD = ("mode", "tool", "bare ms", "ratio", "quartiles", "start ms", "stop+step ms", "records", "KiB", "us/record")


def row(mode: str, tool: str, line: dict[str, Any]) -> list[str]:
    low, high = line["quartiles"]
    return [
        mode,
        tool,
        f"{line['bare_ms']:.2f}",
        f"{line['ratio']:.2f}",
        f"{low:.2f}-{high:.2f}",
        f"{line['start_ms']:.2f}",
        f"{line['finish_ms']:.2f}",
        str(line["records"] or "-"),
        f"{line['bytes'] / 1024:.0f}" if line["bytes"] else "-",
        f"{line['us_per_record']:.1f}" if line["records"] else "-",
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="CPU time of a step with the tool, relative to the bare step.")
    parser.add_argument("--backend", type=measure.check_backend, default="torch")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=SIZES)
    parser.add_argument("--modes", nargs="+", choices=(*MODES, *WATCHES, *FLOORS, *MONITORS), default=MODES)
    parser.add_argument("--steps", type=int, metavar="N", help="steps of each kind in one process")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="processes for a tool and mode (default 3)")
    parser.add_argument("--optimizer", action="store_true", help="the step ends with the optimizer's")
    parser.add_argument("--real", metavar="PYTHON", help="interpreter with another tool of the same import name")
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    options = parser.parse_args(arguments)
    if options.backend != "torch" and set(options.modes) & {*FLOORS, *MONITORS}:
        parser.error("the floor and monitor modes are there for --backend torch only")
    if options.repeats < 1 or (options.steps is not None and options.steps < 1):
        parser.error("--steps and --repeats must be 1 or more")

    about = measure.machine((*measure.PACKAGES[options.backend], "msprobe"))
    print(about, flush=True)
    tools = {"ours": sys.executable, **({"real": options.real} if options.real else {})}
    results = []
    for size in options.sizes:
        rows = []
        for mode in options.modes:
            work_arguments = {
                "backend": options.backend,
                "size": size,
                "mode": mode,
                "steps": options.steps or STEPS[size],
                "optimizer": options.optimizer,
            }
            of_no_tool = mode in ("bare", *FLOORS)
            runs: dict[str, list[dict[str, Any]]] = {tool: [] for tool in tools if tool == "ours" or not of_no_tool}
            for _ in range(options.repeats):
                for tool, found in runs.items():
                    try:
                        found.append(measure.run_worker(tools[tool], __file__, work_arguments))
                    except measure.Failed as error:
                        print(f"{tool}: {error}", file=sys.stderr)
            for tool, found in runs.items():
                if found:
                    line = summary(found)
                    rows.append(row(mode, tool, line))
                    results.append({"size": size, "mode": mode, "tool": tool, **line})
        print(f"\n{size}\n\n{measure.table(HEAD, rows)}", flush=True)
    if options.json:
        content = {"machine": about, "results": results}
        Path(options.json).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0 if results else 1


if __name__ == "__main__":
    given = measure.worker_arguments()
    if given is not None:
        measure.give_result(work(**given))
    else:
        sys.exit(main(sys.argv[1:]))
