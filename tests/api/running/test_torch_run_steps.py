"""``msprobe run`` with PyTorch counts the steps of a program as a person does who reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_running import PRELUDE, quick
from torch_step_programs import PROGRAMS

from probe.backends.torch import internals

# Each starts programs: some are drawn, and `make reliability` runs all.
pytestmark = pytest.mark.sampled(least=8, each=False, group="steps of programs")


@pytest.mark.sampled(least=8, each=False)
@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_are_those_that_a_person_counts(scripts: Any, tmp_path: Path, name: str) -> None:
    steps, program = PROGRAMS[name]
    if "grad_and_value" in program and internals.gradients_of_function.__name__ != "grad_and_value_impl":
        assert "grad_and_value" in internals.absent_text()
        pytest.skip("this release of torch has no function that every torch.func.grad_and_value calls")
    ran = quick(scripts, tmp_path, program, "--level", "L0", "--task", "structure", "--step", "all")
    assert (ran.status, ran.warnings, len(ran.steps)) == (0, [], steps), ran.err


FOLDS = """
kept = []
for fold in range(2):
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    if {keep}:
        kept.append((net, optimizer))
    for step in range(2):
        net(torch.randn(5, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            net(torch.randn(2, 8)).argmax(1)
"""


def test_an_optimizer_that_is_kept_changes_no_record(scripts: Any, tmp_path: Path) -> None:
    found = []
    for keep in (False, True):
        folder = tmp_path / str(keep)
        folder.mkdir()
        ran = quick(scripts, folder, FOLDS.format(keep=keep), "--step", "all", "--level", "L1")
        assert len(ran.steps) == 4, ran.err
        found.append([ran.data(step) for step in range(4)])
    assert found[0] == found[1] and "Functional.relu.0.backward" in found[1][3]
    assert "Functional.relu.1.forward" not in found[1][3]


def test_a_later_turn_in_a_step_is_collected_with_its_gradients(scripts: Any, tmp_path: Path) -> None:
    ran = quick(scripts, tmp_path, PROGRAMS["TD3, the actor every other time"][1], "--step", "0-1")
    first, second = ran.data(0), ran.data(1)
    assert "Module.0.Linear.backward.0" in first and not any(name.startswith("Module.model~2.") for name in first)
    # The critic, the actor and the critic again.
    forwards = {"Module.0.Linear.forward.0", "Module.model~2.0.Linear.forward.0", "Module.0.Linear.forward.1"}
    assert forwards | {name.replace("forward", "backward") for name in forwards} <= set(second)


def test_optimizers_that_step_in_the_backward_leave_its_records_whole(scripts: Any, tmp_path: Path) -> None:
    program = PROGRAMS["optimizers that step in the backward"][1]
    plain = program.replace("parameter.register", "0 and parameter.register")
    expected = quick(scripts, tmp_path, plain, "--step", "0", "--step-after", "backward")
    gradients = {name: record for name, record in expected.data(0).items() if ".parameters_grad." in name}
    for to_none in (True, False):
        folder = tmp_path / str(to_none)
        folder.mkdir()
        ran = quick(scripts, folder, program.replace("zero_grad()", f"zero_grad({to_none})"), "--step", "0")
        backward = {f"Module.{layer}.backward.0" for layer in ("0.Linear", "1.ReLU", "2.Linear")}
        assert backward | {"Functional.linear.0.backward"} <= set(ran.data(0))
        assert {name: ran.data(0).get(name) for name in gradients} == gradients and len(gradients) == 2


@pytest.mark.parametrize("then", ["", "net(torch.randn(5, 8)).sum().backward()\n    optimizer.step()"])
def test_an_optimizer_does_not_outlive_a_backward_that_raised(scripts: Any, tmp_path: Path, then: str) -> None:
    program = f"""
import gc, weakref
net, other = network(), network()
optimizer, further = torch.optim.SGD(net.parameters(), 0.1), torch.optim.SGD(other.parameters(), 0.1)
there = weakref.ref(further)
output = net(torch.randn(5, 8))
output.register_hook(lambda gradient: 1 / 0)
try:
    output.sum().backward()
except ZeroDivisionError:
    {then or "pass"}
del further, output
gc.collect()
print("gone", there() is None)
"""
    ran = quick(scripts, tmp_path, program, "--step", "all", "--level", "L0")
    assert (ran.status, ran.out.strip()) == (0, "gone True"), ran.err


SIGNALS = """
import signal
net, other = network(), network()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
signal.signal(signal.SIGALRM, lambda *_: other(torch.ones(1, 8)).sum().item())
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
for step in range(15):
    net(torch.randn(5, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
signal.setitimer(signal.ITIMER_REAL, 0)
"""


def test_models_that_a_signal_handler_runs_take_no_step_from_the_program(scripts: Any, tmp_path: Path) -> None:
    ran = quick(scripts, tmp_path, SIGNALS, "--step", "all", "--level", "L0", "--task", "structure")
    assert (ran.status, ran.warnings, len(ran.steps)) == (0, [], 15), ran.err
    assert "calls by signal handlers were not collected (" in ran.written_to_err


OBSERVED = """
import collections
from torch.overrides import TorchFunctionMode
seen = collections.Counter()

class Counts(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        owner = getattr(function, "__self__", None)
        seen[getattr(owner, "__name__", None) or function.__name__] += 1
        return function(*args, **(kwargs or {}))

def counted(name, function):
    def call(*args, **kwargs):
        seen["wrapped " + name] += 1
        return function(*args, **kwargs)
    return call

torch.Tensor.is_inference = counted("is_inference", torch.Tensor.is_inference)
for name in ("grad", "requires_grad", "_version", "_cdata"):
    held = getattr(torch.Tensor, name)
    setattr(torch.Tensor, name, property(counted(name, held.__get__), held.__set__))
G, D = network(4), network(4)
of_G, of_D = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
with Counts():
    for step in range(3):
        D(G(torch.randn(5, 4)).detach()).pow(2).sum().backward()
        of_D.step()
        D(G(torch.randn(5, 4))).pow(2).sum().backward()
        of_G.step()
print(sorted(seen.items()))
"""


def test_a_program_does_not_see_what_is_read_of_its_optimizers(scripts: Any, tmp_path: Path) -> None:
    by_itself = scripts.run(tmp_path, PRELUDE + OBSERVED)
    ran = quick(scripts, tmp_path, OBSERVED, "--step", "7", "--level", "L0")
    assert (ran.status, ran.out) == (0, by_itself.out) and "wrapped grad" in ran.out, ran.err
    assert "3 steps, none of them wanted" in ran.log


@pytest.mark.parametrize(
    "wrapper",
    [
        "functools.wraps(original)(lambda *a, tag=0, **k: original(*a, **k))",
        "lambda *a, tag=0, **k: original(*a, **k)",
        "lambda outputs, inputs, tag=0, **k: original(outputs, inputs, **k)",
    ],
)
def test_functions_that_were_wrapped_before_are_seen_through(scripts: Any, tmp_path: Path, wrapper: str) -> None:
    """Those that return gradients, and the step of a scaler that passes optimizers over."""
    before = f"""
import functools, torch
original = torch.autograd.grad
torch.autograd.grad = {wrapper}
step = torch.amp.GradScaler.step
torch.amp.GradScaler.step = functools.wraps(step)(lambda *a, tag=0, **k: step(*a, **k))
"""
    program = """
net = network()
for step in range(3):
    loss = net(torch.randn(5, 8)).sum()
    torch.autograd.grad(loss, list(net.parameters()), tag="x", retain_graph=True)
    net(torch.randn(5, 8))
    torch.autograd.grad(loss, list(net.parameters()), tag="x")
scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=2.0), torch.optim.SGD(net.parameters(), 0.1)
for step in range(3):
    scaler.scale(net(torch.randn(5, 8)).sum() * float("inf")).backward()
    scaler.step(optimizer, tag="x")
    scaler.update()
"""
    ran = quick(scripts, tmp_path, program, "--step", "all", "--level", "L0", before=before)
    assert (ran.status, ran.warnings, len(ran.steps)) == (0, [], 6), ran.err


def test_a_call_of_no_module_fails_as_it_does_by_itself(scripts: Any, tmp_path: Path) -> None:
    program = """
try:
    nn.Module.__call__()
except TypeError as error:
    print(error)
"""
    by_itself = scripts.run(tmp_path, PRELUDE + program)
    ran = quick(scripts, tmp_path, program)
    assert (ran.status, ran.out) == (0, by_itself.out) and ran.out, ran.err


def test_optimizers_are_looked_for_once_where_there_are_none(scripts: Any, tmp_path: Path) -> None:
    program = """
import gc
looked, all_objects = [], gc.get_objects
gc.get_objects = lambda *args: looked.append(1) or all_objects(*args)
net = network()
for step in range(9):
    net(torch.randn(5, 8)).sum().backward()
    if step == 0:
        before = len(looked)
print(len(looked) - before)
"""
    ran = quick(scripts, tmp_path, program, "--step", "30", "--level", "L0")
    assert (ran.status, ran.out.strip()) == (0, "0") and "9 steps" in ran.log, ran.err


def test_optimizers_that_step_unevenly_are_told_of_with_the_flag_that_ends_a_step_with_each(
    scripts: Any, tmp_path: Path
) -> None:
    program = """
G, D = network(4), network(4)
of_G, of_D = torch.optim.RMSprop(G.parameters()), torch.optim.RMSprop(D.parameters())
for step in range(4):
    for _ in range(3):
        with torch.no_grad():
            fake = G(torch.randn(5, 4))
        of_D.zero_grad()
        (D(fake) - D(torch.randn(5, 4))).mean().backward()
        of_D.step()
    of_G.zero_grad()
    (-D(G(torch.randn(5, 4)))).mean().backward()
    of_G.step()
"""
    ran = quick(scripts, tmp_path, program, "--step", "all", "--level", "L0", "--task", "structure")
    text = f"{len(ran.steps)} steps were counted, in which several optimizers stepped unevenly (RMSprop 16 times)."
    assert (ran.status, ran.warnings) == (0, []) and text in ran.log and "--step-after optimizer" in ran.log


def test_evaluations_leave_nothing_in_a_step(scripts: Any, tmp_path: Path) -> None:
    evaluating = "an evaluation with gradients before the training and in it", "one function that trains and evaluates"
    for name in evaluating:
        folder = tmp_path / name.split()[0]
        folder.mkdir()
        ran = quick(scripts, folder, PROGRAMS[name][1], "--step", "all", "--task", "tensor")
        for step in range(PROGRAMS[name][0]):
            forwards = [record for record in ran.data(step) if record.startswith("Module.0.Linear.forward.")]
            assert forwards == ["Module.0.Linear.forward.0"], (name, step)
        assert len(list(folder.rglob("Module.0.Linear.forward.0.input.0.pt"))) == PROGRAMS[name][0]


def test_updates_by_hand_after_an_optimizers_are_told_of(scripts: Any, tmp_path: Path) -> None:
    program = """
net = network()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(5):
    net.zero_grad()
    net(torch.randn(5, 8)).pow(2).mean().backward()
    if step < 2:
        optimizer.step()
    else:
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad.sign()
"""
    ran = quick(scripts, tmp_path, program, "--step", "all")
    (line,) = ran.warnings
    assert ran.status == 0 and "in step 2, in which gradients were computed 3 times and no optimizer stepped" in line


@pytest.mark.parametrize(
    "forwards", ["outs = [net(torch.randn(5, 8)) for _ in range(3)]", "outs = map(net, torch.randn(3, 5, 8))"]
)
def test_a_first_step_of_several_calls_by_hand_is_not_collected_which_a_line_says(
    scripts: Any, tmp_path: Path, forwards: str
) -> None:
    program = f"""
net = network()
for step in range(3):
    {forwards}
    sum(out.sum() for out in outs).backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
"""
    ran = quick(scripts, tmp_path, program, "--level", "L0", "--step", "all")
    assert len(ran.steps) == 2 and [len(ran.forwards(step)) for step in (0, 1)] == [9, 9], ran.log
    assert "The step that computes gradients now began among them, and is not collected." in ran.log
