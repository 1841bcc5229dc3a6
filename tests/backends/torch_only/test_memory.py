"""What the tool keeps alive: nothing of the user's beyond its time."""

from __future__ import annotations

import copy
import functools
import gc
import io
import json
import os
import shutil
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import MethodType
from typing import Any

import dumped
import pytest
import torch
from torch import nn

LEVELS = pytest.mark.parametrize("level", ["L0", "L1", "mix"])


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


def test_few_objects_wait_for_the_backward_of_a_call(runs: Any) -> None:
    """Python's garbage collector looks at each of them again and again, which was a quarter of a step."""

    def alive() -> Counter[str]:
        gc.collect()
        kinds = [type(one) for one in gc.get_objects()]
        own = [kind.__name__ for kind in kinds if str(kind.__module__).startswith("probe.")]
        return Counter(own + [kind.__name__ for kind in kinds if kind in (functools.partial, MethodType)])

    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(50)])
    debugger = runs.new(level="mix")
    for _ in range(2):
        # What is made once is there from the second step on.
        debugger.start(model)
        before = alive()
        y = model(torch.ones(1, 2))
        waiting = alive() - before
        y.sum().backward()
        del y
        debugger.stop()
        debugger.step()
        after = alive()
    of_a_module = {"ModuleWatch": 1, "PreHook": 1, "PostHook": 1}
    of_its_parameters = {"_ParameterHook": 2, "_TensorHandle": 2, "_WeakParameter": 2}
    of_an_api = {"_CallHook": 1}
    both = {"ActiveCall": 2}
    # The first one's input takes no gradient, and the user's frame is an object now.
    found = {kind: round(count / 50) for kind, count in waiting.items() if count > 5}
    assert found == {**of_a_module, **of_its_parameters, **of_an_api, **both}
    assert not after.keys() & {*of_a_module, *of_its_parameters, *of_an_api}


@LEVELS
def test_outputs_and_inputs_are_free_as_soon_as_the_user_drops_them(runs: Any, level: str) -> None:
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


@LEVELS
def test_a_model_is_free_when_the_step_is_over(runs: Any, level: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    debugger = runs.new(level=level)
    debugger.start(model)
    model(torch.ones(1, 2)).sum().backward()
    debugger.stop()
    debugger.step()
    alive = [weakref.ref(model), weakref.ref(model[0].weight)]
    del model
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


@LEVELS
@pytest.mark.parametrize("when", ["between start and stop", "after stop", "after step"])
def test_a_model_can_be_copied_and_saved_at_any_time(runs: Any, backend: Any, level: str, when: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    debugger = runs.new(level=level)
    debugger.start(model)
    model(torch.ones(1, 2)).sum().backward()
    if when != "between start and stop":
        debugger.stop()
    if when == "after step":
        debugger.step()
    copied = copy.deepcopy(model)
    stream = io.BytesIO()
    torch.save(model, stream)
    torch.save([model.state_dict(), list(model.parameters())], io.BytesIO())
    stream.seek(0)
    loaded = torch.load(stream, weights_only=False)
    for other in (copied, loaded):
        assert torch.equal(other(torch.ones(1, 2)), model(torch.ones(1, 2)))
        other(torch.ones(1, 2)).sum().backward()
    debugger.stop()
    debugger.step()
    forward = [name for name in runs.read().forward if name.startswith("Module.0")]
    # The copies are not the model that was given to start.
    count = 0 if level == "L1" else 3 if when == "between start and stop" else 1
    assert forward == [f"Module.0.Linear.forward.{n}" for n in range(count)]
    assert backend.traces_left(model) == []


@LEVELS
def test_a_copy_made_while_collecting_is_not_seen_in_later_steps(runs: Any, level: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    debugger = runs.new(level=level)
    debugger.start(model)
    copied = copy.deepcopy(model)
    debugger.stop()
    debugger.step()
    debugger.start(model)
    copied(torch.ones(1, 2)).sum().backward()
    debugger.stop()
    assert [name for name in runs.read(1).names if "Module" in name] == []


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


ALONE = pytest.mark.sampled(least=1, each=False, group="memory of an interpreter")
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


def passing_on() -> Any:
    """A model with a module that returns its input as it came."""
    return nn.Sequential(nn.Dropout(0.0), nn.Linear(8, 2)).eval()


def test_a_leaf_that_a_module_passed_on_may_get_memory_of_another_shape(runs: Any) -> None:
    model = passing_on()
    debugger = runs.new(level="L0")
    debugger.start(model)
    x = torch.ones(4, 8, requires_grad=True)
    for rows in (4, 3, 5):
        x.data = torch.ones(rows, 8)
        x.grad = None
        model(x).sum().backward()
        assert x.grad is not None and x.grad.shape == (rows, 8)
    debugger.stop()
    shapes = [runs.read().data[f"Module.0.Dropout.backward.{i}"]["output"][0]["shape"] for i in range(3)]
    assert shapes == [[4, 8], [3, 8], [5, 8]]


def test_a_leaf_that_a_module_passed_on_is_free_after_its_backward(runs: Any) -> None:
    model = passing_on()
    debugger = runs.new(level="L0")
    debugger.start(model)
    x = torch.ones(4, 8, requires_grad=True)
    seen = weakref.ref(x)
    model(x).sum().backward()
    del x
    assert seen() is None
    debugger.stop()


def test_parameters_lent_to_a_call_are_free_after_it(runs: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 2))
    debugger = runs.new(level="L0")
    debugger.start(model)
    alive = []
    for _ in range(20):
        weight = torch.ones(2, 8, requires_grad=True)
        alive.append(weakref.ref(weight))
        torch.func.functional_call(model, {"0.weight": weight}, (torch.ones(1, 8),)).sum().backward()
        del weight
    assert [seen() for seen in alive] == [None] * 20
    debugger.stop()
    assert sum("weight" in runs.read().data[name] for name in runs.read().parameter_gradients) == 20


def test_a_parameter_in_the_place_of_one_that_is_gone_is_watched(runs: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    debugger = runs.new(level="L0")
    debugger.start(model)
    x = torch.ones(1, 2)
    for _ in range(20):
        for weight in (model[0].weight * 1, torch.ones(2, 2, requires_grad=True)):
            torch.func.functional_call(model, {"0.weight": weight}, (x,)).sum().backward()
        del weight
    debugger.stop()
    dump = runs.read()
    # Only a leaf accumulates a gradient.
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


def test_no_backward_waits_for_the_garbage_collector(runs: Any, _without_gc: None) -> None:
    """A leaf that a module passes on may get its gradient late, and its pass knows of that."""

    class Passing(nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    def backwards() -> int:
        own = {"Pass", "ModuleWatch", "CallWatch"}
        return sum(type(one).__name__ in own and type(one).__module__.startswith("probe.") for one in gc.get_objects())

    model = nn.Sequential(Passing(), nn.Linear(2, 2), Passing())
    debugger = runs.new(level="mix")
    left = []
    for _ in range(3):
        debugger.start(model)
        model(torch.ones(1, 2, requires_grad=True)).sum().backward()
        debugger.stop()
        debugger.step()
        left.append(backwards())
    assert left[0] == left[-1] == 0, left
