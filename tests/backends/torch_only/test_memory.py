"""What the tool keeps alive: nothing of the user's beyond its time."""

from __future__ import annotations

import functools
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import MethodType
from typing import Any

import dumped
import forks
import pytest
import torch
from torch import nn
from torch_parts import LEVELS, collected

LONG = os.environ.get("PROBE_TEST_LONG") == "1"


class Kept:
    """Stands for what a graph has saved for its backward."""


class Keeping(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        context.kept = Kept()
        return x * 1

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.alive: list[Any] = []

    def forward(self, x: Any) -> Any:
        y = Keeping.apply(x)
        self.alive.append(weakref.ref(y.grad_fn.kept))
        return y


@pytest.fixture(autouse=True)
def _without_gc() -> Iterator[None]:
    """Memory of a graph must be free at once: a device runs out of it before the collector runs."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@LEVELS
@pytest.mark.parametrize("task", ["statistics", "tensor", "structure"])
@pytest.mark.parametrize("backward", [True, False], ids=["after backward", "without backward"])
def test_a_graph_is_free_as_soon_as_the_user_drops_it(runs: Any, level: str, task: str, backward: bool) -> None:
    layer = Layer()
    model = nn.Sequential(nn.Linear(2, 2), layer, nn.ReLU())
    debugger = runs.new(level=level, task=task)
    debugger.start(model)
    for _ in range(2):
        loss = model(torch.ones(1, 2, requires_grad=True)).sum()
        if backward:
            loss.backward()
        assert layer.alive[-1]() is not None
        del loss
        assert layer.alive[-1]() is None
    debugger.stop()


def test_few_objects_wait_for_the_backward_of_a_call_and_none_after_it(runs: Any) -> None:
    """Python's garbage collector looks at each of them again and again, which was a quarter of a step."""

    def alive() -> int:
        kinds = [type(one) for one in gc.get_objects()]
        return sum(
            str(kind.__module__).startswith("probe.") or kind in (functools.partial, MethodType) for kind in kinds
        )

    # A leaf that a module passes on may get its gradient late, and its pass knows of that.
    model = nn.Sequential(nn.Identity(), *[nn.Linear(2, 2) for _ in range(50)], nn.Identity())
    debugger = runs.new(level="mix")
    for _ in range(3):
        # What is made once is there from the second step on.
        debugger.start(model)
        gc.collect()
        before = alive()
        y = model(torch.ones(1, 2, requires_grad=True))
        waiting = alive() - before
        y.sum().backward()
        del y
        debugger.stop()
        debugger.step()
        left = alive() - before
    # Three of a module, six of its two parameters, one of the function, and a call each.
    assert 1 < waiting / 50 < 13
    # No module or function has anything left that waits for the garbage collector.
    assert left < 25


@LEVELS
def test_tensors_are_free_when_dropped_and_a_model_when_the_step_is_over(runs: Any, level: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    debugger = runs.new(level=level)
    debugger.start(model)
    x = torch.ones(1, 2)
    y = model(x)
    y.sum().backward()
    alive = [weakref.ref(x), weakref.ref(y)]
    del x, y
    assert [ref() for ref in alive] == [None, None]
    debugger.stop()
    debugger.step()
    alive = [weakref.ref(model), weakref.ref(model[0].weight)]
    del model
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


def test_memory_does_not_grow_with_the_number_of_calls(runs: Any) -> None:
    debugger, x = runs.new(), torch.ones(2)

    def objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    debugger.start()
    for _ in range(50):
        torch.abs(x)
    before = objects()
    for _ in range(2000):
        torch.abs(x)
    grown = objects() - before
    debugger.stop()
    assert grown < 200


SAVING = """
import json, sys
import torch
from probe.api.pytorch import PrecisionDebugger

def most_so_far():
    # Not ru_maxrss, which a process has from the one that started it.
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

settings = json.loads(sys.argv[1])
with open("config.json", "w") as stream:
    json.dump({"dump_path": "dump", "level": "L1", "task": "tensor", "risk_level": "ALL", **settings}, stream)
debugger = PrecisionDebugger("config.json")
x = torch.rand(1 << 21)  # 8 MiB
debugger.start()
torch.abs_(x)
most = most_so_far()
for _ in range(12):
    x.add_(1)
after = most_so_far()
debugger.stop()
print("grown by", (after - most) // 1024)
"""


def grown_mib(folder: Path, **settings: Any) -> int:
    """By how much memory a run grows that saves 200 MiB in tensors of 8 MiB, half of them different."""
    command = [sys.executable, "-c", SAVING, json.dumps(settings)]
    # What is freed goes back to the system at once, so that the most there was is the most that was held.
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "MALLOC_MMAP_THRESHOLD_": "1048576"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    files = list((folder / "dump").rglob("*.pt"))
    assert len(files) == 26 and all(file.stat().st_size > 8 << 20 for file in files)
    shutil.rmtree(folder / "dump")
    return int(next(line for line in done.stdout.splitlines() if line.startswith("grown by")).split()[-1])


ALONE = pytest.mark.sampled(least=1, each=False, group="an interpreter")
"""For tests that start an interpreter each; `make reliability` runs all."""


@ALONE
def test_tensors_on_their_way_to_disk_take_no_memory(tmp_path: Path) -> None:
    assert grown_mib(tmp_path) < 8


@ALONE
@pytest.mark.parametrize("most", [0, 64])
def test_async_copies_take_no_more_than_their_bound_and_one_tensor(tmp_path: Path, most: int) -> None:
    settings = {"async_dump": True, "async_dump_max_mib": most, "tensor": {"list": ["_."]}}
    # At least half: what the process grows by is less where it had free memory before.
    assert most / 2 <= grown_mib(tmp_path, **settings) < most + 8 + 8, "8 MiB for all that is not a copy"


def test_a_leaf_that_a_module_passed_on_may_get_other_memory_and_is_free_after_its_backward(runs: Any) -> None:
    model, debugger = nn.Sequential(nn.Dropout(0.0), nn.Linear(8, 2)).eval(), runs.new(level="L0")
    debugger.start(model)
    x = torch.ones(4, 8, requires_grad=True)
    for rows in (4, 3, 5):
        x.data = torch.ones(rows, 8)
        x.grad = None
        model(x).sum().backward()
        assert x.grad is not None and x.grad.shape == (rows, 8)
    seen = weakref.ref(x)
    del x
    assert seen() is None
    debugger.stop()
    shapes = [runs.read().data[f"Module.0.Dropout.backward.{i}"]["output"][0]["shape"] for i in range(3)]
    assert shapes == [[4, 8], [3, 8], [5, 8]]


def test_parameters_lent_to_a_call_are_watched_and_free_after_it(runs: Any) -> None:
    model, alive = nn.Sequential(nn.Linear(2, 2)), []

    def call() -> None:
        for _ in range(20):
            # Only a leaf accumulates a gradient. Each may come to lie where one was that is gone.
            for weight in (model[0].weight * 1, torch.ones(2, 2, requires_grad=True)):
                alive.append(weakref.ref(weight))
                torch.func.functional_call(model, {"0.weight": weight}, (torch.ones(1, 2),)).sum().backward()
            del weight
        assert [seen() for seen in alive] == [None] * 40

    dump = collected(runs, model, call, "L0")
    assert sum("weight" in dump.data[name] for name in dump.parameter_gradients) == 20


def test_the_gradient_of_a_point_that_is_gone_reaches_no_later_step(runs: Any) -> None:
    debugger = runs.new(level="debug")
    x = torch.ones(2, requires_grad=True)

    def loss() -> Any:
        doubled = x * 2
        debugger.save(doubled, "early", save_backward=True)
        return doubled.sum()

    late = loss()
    debugger.step()
    debugger.save(torch.ones(1), "other")
    late.backward()
    debugger.step()
    assert [name for name in dumped.read_debug(runs.path, 1)["data"] if "early" in name] == []


# --- A gradient graph that the tool has seen can be freed, however long it is. torch frees nodes that Python has seen
# one inside the other, which takes room on the stack. The programs run on a thread that has little of it: there a tenth
# of the nodes, that would end a process on its first thread, are too many.

GRAPHS = [
    "one_module_behind_the_other", "in_one_module", "side_by_side", "recurrent", "behind_a_view_that_was_written_to",
    "not_recorded_in_between",
]  # fmt: skip
LONG_GRAPHS = """
import sys, threading, torch
from torch import nn
from msprobe.pytorch import PrecisionDebugger

CALLS = 4_000

class Sine(nn.Module):
    def forward(self, x, times=1):
        for _ in range(times):
            x = torch.sin(x)
        return x

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

sine, flat, cell = parts = [Sine(), nn.Flatten(), nn.LSTMCell(2, 2)]

def one_module_behind_the_other(x):
    for _ in range(CALLS):
        x = sine(x)
    return x

def in_one_module(x):
    return sine(x, CALLS)

def side_by_side(x):
    for _ in range(CALLS):
        x = x + torch.sin(x)
    return x

def recurrent(x):
    state = (x, x)
    for _ in range(CALLS // 10):
        state = cell(x, state)
    return state[0]

def behind_a_view_that_was_written_to(x):
    x = flat(x)
    x.mul_(3)
    for _ in range(CALLS):
        x = x * 1.0
    return x

def not_recorded_in_between(x):
    for _ in range(CALLS // 2):
        x = Doubled.apply(sine(x)) * 0.5
    return x

kept = []

def run():
    debugger = PrecisionDebugger(dump_path="dump", task="statistics", level=sys.argv[1])
    for graph in sys.argv[3:]:
        debugger.start(nn.ModuleList(parts))
        loss = globals()[graph](torch.ones(2, 2, requires_grad=True) * 2).sum()
        loss.backward()
        debugger.stop()
        debugger.step()
        if sys.argv[2] == "at the end":
            kept.append(loss)
        del loss
        print(graph, flush=True)

threading.stack_size(256 * 1024)
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


@pytest.mark.sampled(least=1, each=False)
@LEVELS
@pytest.mark.parametrize("when", ["at once", "at the end"])
def test_a_long_graph_is_freed(tmp_path: Path, level: str, when: str) -> None:
    # A run takes two of the graphs, each of which takes seconds.
    graphs = GRAPHS if LONG else random.Random(os.environ["PROBE_TEST_SEED"]).sample(GRAPHS, 2)
    run = forks.run_python("torch", tmp_path / "program.py", level, when, *graphs, code=LONG_GRAPHS, tear_down=True)
    freed = [line for line in run.stdout.splitlines() if line in GRAPHS]
    # Where triton is installed, it ends with a list of what it did not free.
    errors = forks.ToolLines.err_of(run.stderr.partition("nanobind: leaked")[0])
    assert (run.returncode, errors, freed) == (0, "", graphs)
