"""``msprobe run`` with PyTorch: where steps begin and end, and that nothing else changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from running import run
from torch_running import DESCENT, PRELUDE, quick

LINEAR_RELU_LINEAR = ["Module.0.Linear", "Module.1.ReLU", "Module.2.Linear"]


def calls(*numbers: int) -> list[str]:
    return [f"{name}.forward.{number}" for number in numbers for name in LINEAR_RELU_LINEAR]


TRAINING = """
net, loss = network(), nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters())
for step in range(4):
    for _ in range(2):
        loss(net(torch.randn(5, 8)), torch.randint(0, 4, (5,))).backward()
    optimizer.step()
    optimizer.zero_grad()
    net.eval()
    with torch.no_grad():
        net(torch.randn(2, 8))
    net(torch.randn(2, 8))
    net.train()
print("argv", sys.argv[1:], __name__)
print("parameters", [p.sum().item().hex() for p in net.parameters()], torch.rand(1).item())
"""


SOME = pytest.mark.sampled(least=8, each=False, group="programs that are run")
"""For tests that start an interpreter or two each; `make reliability` runs all."""


def test_a_script_is_collected_from_as_it_is(tmp_path: Path) -> None:
    """Two steps of accumulated gradients; evaluation, with and without gradients, belongs to none."""
    training = TRAINING.replace("torch.optim.Adam(net.parameters())", "Descent(net.parameters(), 0.1)")
    ran = run(tmp_path, PRELUDE + DESCENT + training, arguments=("--lr", "0.1"))
    assert ran.status == 0, ran.err
    assert ran.steps == ["step0", "step1"]
    for step in (0, 1):
        assert ran.forwards(step) == calls(0, 1)
        assert {"Functional.cross_entropy.0.forward", "Module.0.Linear.parameters_grad.1"} <= set(ran.data(step))
    assert "argv ['--lr', '0.1'] __main__" in ran.out
    # Files are written once, when the step is over.
    assert [ran.log.count(said) for said in ("Collection stopped.", "dump.json is at")] == [2, 2]
    bare = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [line for line in ran.out.splitlines() if line.startswith("parameters")] == bare.stdout.splitlines()[1:]


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("options, status, why", [
    (("--module", "nope"), 2, 'nothing matches "nope" of "module"'),
    (("--module", "0", "--api", "cross_entropy"), 2, "a call has to match both"),
    (("--module", "0"), 0, ""),
])  # fmt: skip
def test_strict_is_2_where_filters_leave_no_record(
    scripts: Any, tmp_path: Path, options: tuple[str, ...], status: int, why: str
) -> None:
    ran = quick(scripts, tmp_path, TRAINING, "--strict", *options)
    assert ran.status == status and why in ran.log, ran.err
    nothing = "collected nothing: the filters of the configuration leave no record; see the lines above."
    assert (nothing in ran.log) is (status == 2)
    if status:
        assert quick(scripts, tmp_path, TRAINING, *options, "-o", "other").status == 0


@SOME
def test_call_stacks_end_with_the_program(scripts: Any, tmp_path: Path) -> None:
    ran = quick(scripts, tmp_path, TRAINING, "--step", "0")
    (path,) = ran.folder.glob("step0/*/stack.json")
    stacks = [frames for _, frames in json.loads(path.read_text()).values()]
    assert stacks and all(f"{tmp_path / 'program.py'}, line" in frames[-1] for frames in stacks)


@SOME
def test_steps_that_are_not_wanted_are_counted_and_nothing_is_left_in_the_way(scripts: Any, tmp_path: Path) -> None:
    # Imported here, so before the run begins.
    before = """
import torch
made = torch.optim.Optimizer.__init__, torch.optim.Optimizer.__setstate__
swapped = torch.nn.Module.__call__, torch.autograd.backward, torch.amp.GradScaler.step, *made
codes = [function.__code__ for function in swapped]
"""
    after = """
assert [function.__code__ for function in swapped] == codes
from torch.optim import optimizer as hooks
assert not hooks._global_optimizer_pre_hooks and not optimizer._optimizer_step_post_hooks
assert not net[0]._forward_hooks and not net[0]._forward_pre_hooks
"""
    (tmp_path / "before.py").write_text(before)
    program = "from before import *\n" + TRAINING + after
    ran = quick(scripts, tmp_path, program, "--step", "1,2", "--level", "L0", before="import before")
    assert (ran.status, ran.steps) == (0, ["step1", "step2"]), ran.err
    assert ran.forwards(2) == calls(0, 1)


@SOME
def test_an_optimizer_that_never_steps_is_not_waited_for_without_end(scripts: Any, tmp_path: Path) -> None:
    """Its model is called, so its turn may still come, as a generator's while the discriminator is updated."""
    program = """
net, other = network(), network(4)
optimizer, unused = torch.optim.SGD(net.parameters(), 0.1), torch.optim.SGD(other.parameters(), 0.1)
for step in range(20):
    (net(torch.randn(5, 8)).sum() + other(torch.randn(5, 4)).detach().sum()).backward()
    optimizer.step()
"""
    ran = quick(scripts, tmp_path, program, "--level", "L0", "--step", "all")
    assert len(ran.steps) == 1 + 4 and calls(0)[0] in ran.forwards(4) and calls(1)[0] not in ran.forwards(4)
    assert [line for line in ran.warnings if "SGD (16 times) stepped and SGD not once" in line] == ran.warnings


@SOME
def test_functions_that_return_gradients_are_left_as_they_are(scripts: Any, tmp_path: Path) -> None:
    """With an optimizer as soon as a step begins, without one when the last step has ended."""
    before = """
import torch
from torch._functorch.eager_transforms import grad_and_value_impl
functions = torch.autograd.grad, grad_and_value_impl
codes = [function.__code__ for function in functions]
"""
    (tmp_path / "before.py").write_text(before)
    program = """
from before import *
net = network()
optimizer = torch.optim.SGD(net.parameters(), 0.1) if {optimizer} else None
for step in range(2):
    loss = net(torch.randn(5, 8)).sum()
    left = [function.__code__ for function in functions] == codes
    assert left == {optimizer}, left
    torch.autograd.grad(loss, list(net.parameters()))
    if optimizer is not None:
        optimizer.step()
assert [function.__code__ for function in functions] == codes
"""
    for optimizer in (True, False):
        program_of_this = program.format(optimizer=optimizer)
        ran = quick(scripts, tmp_path, program_of_this, "--level", "L0", before="import before")
        assert (ran.status, ran.steps) == (0, ["step0", "step1"]), ran.err


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize(("options", "missed"), [((), []), (("--step", "0-1"), ['"step" names 1, where start was '])])
def test_only_steps_that_were_asked_for_are_missed(
    scripts: Any, tmp_path: Path, options: tuple[str, ...], missed: list[str]
) -> None:
    """A forked child that trains, too, has its steps by default and not by name."""
    program = """
import os
net = network()
child = os.fork()
net(torch.randn(5, 8)).sum().backward()
torch.optim.SGD(net.parameters(), 0.1).step()
if child:
    os.waitpid(child, 0)
"""
    ran = quick(scripts, tmp_path, program, *options)
    named = [line for line in ran.warnings if "was never called" in line]
    assert ran.steps == ["step0"], ran.err
    assert [line[: len(text)] for line, text in zip(named, missed)] == missed and bool(named) == bool(missed)


@SOME
def test_inference_is_collected_by_outermost_forward(scripts: Any, tmp_path: Path) -> None:
    program = """
net = network().eval()
with torch.no_grad():
    for _ in range(3):
        net(torch.randn(5, 8))
"""
    ran = quick(scripts, tmp_path, program)
    assert (ran.steps, ran.warnings) == (["step0", "step1"], [])
    assert "each outermost call of a model is a step" in ran.log
    (tmp_path / "forward").mkdir()
    ran = quick(scripts, tmp_path / "forward", program, "--step-after", "forward", "--step", "1-2")
    assert ran.steps == ["step1", "step2"] and ran.forwards(2) == calls(0)


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize(
    "update",
    [
        "optimizer.zero_grad(); loss.backward(); optimizer.step()",
        "w = (w - 0.1 * torch.autograd.grad(loss, w)[0]).detach().requires_grad_()",
        "w = w - 0.1 * torch.func.grad(lambda w: (x @ w).pow(2).mean())(w.detach())",
    ],
)
def test_a_program_without_a_model_is_told_what_to_do(scripts: Any, tmp_path: Path, update: str) -> None:
    program = f"""
w = torch.randn(8, 4, requires_grad=True)
optimizer = torch.optim.SGD([w], 0.1)
for step in range(3):
    x = torch.randn(5, 8)
    loss = (x @ w).pow(2).mean()
    {update}
sys.exit(7)
"""
    ran = quick(scripts, tmp_path, program)
    assert ran.status == 7 and len(ran.warnings) == 1, ran.err
    assert "A step begins with a call of a torch.nn.Module or mindspore.nn.Cell: put a computation" in ran.warnings[0]


@SOME
def test_gradients_that_were_not_seen_are_told_of(scripts: Any, tmp_path: Path) -> None:
    program = """
from torch.func import functional_call, vjp
net = network()
parameters = {name: each.detach() for name, each in net.named_parameters()}
for step in range(3):
    x = torch.randn(5, 8)
    loss, of_parameters = vjp(lambda parameters: functional_call(net, parameters, (x,)).mean(), parameters)
    (gradients,) = of_parameters(torch.ones(()))
    parameters = {name: each - 0.1 * gradients[name] for name, each in parameters.items()}
"""
    ran = quick(scripts, tmp_path, program, "--level", "L0", "--step", "0")
    assert (ran.steps, ran.warnings) == (["step0"], [])
    assert "no gradients were seen: each outermost call of a model is a step" in ran.log
    ran = quick(scripts, tmp_path, program, "--level", "L0", "--step-after", "forward", "--step", "all")
    assert len(ran.steps) == 3


@SOME
@pytest.mark.parametrize(("event", "steps"), [("backward", 4), ("optimizer", 2)])
def test_the_end_of_a_step_can_be_forced(scripts: Any, tmp_path: Path, event: str, steps: int) -> None:
    program = """
net, other = network(), network()
optimizer, unused = torch.optim.SGD(net.parameters(), 0.1), torch.optim.SGD(other.parameters(), 0.1)
for step in range(2):
    net(torch.randn(5, 8)).sum().backward()
    net(torch.randn(5, 8)).sum().backward()
    optimizer.step()
"""
    ran = quick(scripts, tmp_path, program, "--step-after", event, "--step", "all")
    assert len(ran.steps) == steps


@SOME
def test_a_model_that_is_trained_through_its_parts_is_one_model(scripts: Any, tmp_path: Path) -> None:
    program = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = network(), nn.Linear(4, 2)

    def loss(self, x):
        return self.decoder(self.encoder(x)).sum()

model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model.loss(torch.randn(5, 8)).backward()
optimizer.step()
"""
    ran = quick(scripts, tmp_path, program, "--level", "L0")
    parts = ["encoder.0.Linear", "encoder.1.ReLU", "encoder.2.Linear", "encoder.Sequential", "decoder.Linear"]
    assert ran.forwards(0) == [f"Module.{part}.forward.0" for part in parts]


@pytest.mark.sampled(least=2, each=False, group="several processes with a framework")
def test_an_error_of_the_program_is_shown_as_without_the_tool(scripts: Any, tmp_path: Path) -> None:
    program = """
net = network()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
net(torch.randn(5, 9))
"""
    ran = quick(scripts, tmp_path, program, "--level", "L1")
    bare = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.status == bare.returncode == 1

    def frames(text: str) -> list[str]:
        found = [line for line in text.splitlines() if line.startswith('  File "')]
        return [line for line in found if "site-packages" not in line]

    assert frames(ran.err) == frames(bare.stderr) != []
    assert ran.err.splitlines()[-1] == bare.stderr.splitlines()[-1]
    assert "probe" not in "".join(frames(ran.err)).replace(str(tmp_path), "")
    assert list(ran.data(0)) == ["Functional.linear.0.forward"]


@SOME
def test_a_script_with_a_debugger_of_its_own_is_left_to_it(scripts: Any, tmp_path: Path) -> None:
    program = """
from msprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger(dump_path="own", level="L0")
net = network()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
debugger.start(net)
net(torch.randn(5, 8)).sum().backward()
debugger.stop()
debugger.step()
optimizer.step()
"""
    ran = quick(scripts, tmp_path, program)
    assert ran.steps == [] and len(list(tmp_path.glob("own/step*"))) == 1
    assert [line for line in ran.warnings if "a PrecisionDebugger of its own" in line] == ran.warnings


@SOME
def test_models_functions_and_classes_are_scripted_in_a_step_that_has_begun(scripts: Any, tmp_path: Path) -> None:
    program = """
net = network()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
net(torch.randn(5, 8)).sum().backward()
scripted = torch.jit.script(net)

def double(x):
    return 2 * x

def make():
    def shifted(x):
        return nn.functional.relu(double(x)) + torch.sin(x)

    # A class is looked up in the frame around its use.
    @torch.jit.script
    class Inner:
        def __init__(self, x: int):
            self.x = x

    @torch.jit.script
    class Outer:
        def __init__(self, x: int):
            self.inner = Inner(x)

        def get(self) -> int:
            return self.inner.x

    return torch.jit.script(shifted), Outer

shifted, Outer = make()
assert torch.equal(shifted(torch.ones(2)), 2 + torch.sin(torch.ones(2))) and Outer(5).get() == 5
assert torch.equal(scripted(torch.ones(5, 8)), net(torch.ones(5, 8)))
optimizer.step()
"""
    ran = quick(scripts, tmp_path, program)
    assert (ran.status, ran.forwards(0)) == (0, calls(0, 1)), ran.err


@SOME
@pytest.mark.parametrize("workers", [0, 2])
def test_what_prepares_data_is_no_model(scripts: Any, tmp_path: Path, workers: int) -> None:
    """Not even in the process of a loader, where gradients are recorded."""
    program = f"""
class Data(torch.utils.data.Dataset):
    scale = nn.Softplus()

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return self.scale(torch.full((8,), float(index)))

net = network()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for batch in torch.utils.data.DataLoader(Data(), batch_size=5, num_workers={workers}):
    nn.MSELoss()(net(batch), torch.zeros(5, 4)).backward()
    optimizer.step()
"""
    ran = quick(scripts, tmp_path, program, "--level", "L0")
    assert ran.forwards(0) == ran.forwards(1) == calls(0), ran.err
    assert [path.name for path in ran.folder.rglob("dump.journal")] == ran.warnings == []


@SOME
def test_other_threads_have_no_part_in_a_step(scripts: Any, tmp_path: Path) -> None:
    program = """
import threading
net, other = network(), network()
optimizer, of_other = torch.optim.SGD(net.parameters(), 0.1), torch.optim.SGD(other.parameters(), 0.1)
del of_other

def train():
    torch.optim.SGD(other.parameters(), 0.1).step()

for step in range(2):
    net(torch.randn(5, 8)).sum().backward()
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    net(torch.randn(5, 8)).sum().backward()
    optimizer.step()
"""
    ran = quick(scripts, tmp_path, program, "--level", "L0", "--step-after", "optimizer")
    assert ran.forwards(0) == ran.forwards(1) == calls(0, 1), ran.err


@pytest.mark.sampled(least=1, each=False, group="interpreters that a program starts")
def test_a_process_that_is_spawned_finds_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"dump_path": "./from_file", "level": "L0", "step": [0]}')
    program = (
        PRELUDE
        + DESCENT
        + """
import multiprocessing, os

def train():
    net = network()
    optimizer = Descent(net.parameters(), 0.1)
    net(torch.randn(5, 8)).sum().backward()
    optimizer.step()

if __name__ == "__main__":
    os.mkdir("elsewhere")
    os.chdir("elsewhere")
    process = multiprocessing.get_context("spawn").Process(target=train)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""
    )
    ran = run(tmp_path, program, "--config", "config.json")
    assert (ran.status, ran.forwards(0)) == (0, calls(0)), ran.err


@SOME
def test_a_compiled_model_is_compiled_once_more_for_the_steps_that_are_collected(scripts: Any, tmp_path: Path) -> None:
    program = """
net = network()
compiled = torch.compile(net, fullgraph=True, backend="eager")
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(6):
    compiled(torch.randn(5, 8)).sum().backward()
    optimizer.step()
print("graphs", torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""
    ran = quick(scripts, tmp_path, program, "--step", "2,4")
    assert "graphs 2" in ran.out.splitlines(), ran.err
    assert ran.forwards(4) == ["Module._orig_mod.Sequential.forward.0"]


TWO_PROCESSES = """
import os, torch.distributed as dist
import torch.multiprocessing as mp

def train(rank=None):
    if rank is None:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meet", rank=rank, world_size=2)
    net = nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(2):
        net(torch.randn(5, 8)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
"""


@pytest.mark.sampled(least=1, each=False, group="interpreters that a program starts")
@pytest.mark.parametrize(
    ("start", "launcher"),
    [
        ("train()", ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")),
        ("mp.spawn(train, nprocs=2)", ()),
    ],
    ids=["torchrun", "spawn"],
)
def test_each_of_several_processes_is_collected_from(tmp_path: Path, start: str, launcher: tuple[str, ...]) -> None:
    program = PRELUDE + TWO_PROCESSES + f"    {start}\n"
    ran = run(tmp_path, program, "--level", "L0", arguments=(str(tmp_path),), launcher=launcher)
    assert ran.status == 0, ran.err
    for step in (0, 1):
        for rank in (0, 1):
            assert "Module.module.0.Linear.forward.0" in ran.data(step, f"rank{rank}")
    assert not [line for line in ran.warnings if "collected nothing" in line]


@SOME
@pytest.mark.parametrize(("factor", "steps"), [("1.0", []), ("math.nan if step == 3 else 1.0", ["step3"])])
def test_a_run_is_watched_from_its_first_step_to_its_last(
    scripts: Any, tmp_path: Path, factor: str, steps: list[str]
) -> None:
    program = f"""
import math
import torch
from torch import nn
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(5):
    net(torch.ones(2, 4) * ({factor})).sum().backward()
    optimizer.step()
"""
    ran = quick(scripts, tmp_path, program, "--task", "overflow_check")
    assert (ran.status, ran.steps) == (0, steps), ran.err
    assert ("no NaN and no infinity in 5 steps that were watched" in ran.log) == (not steps)
    assert not any("collected nothing" in line for line in ran.warnings)
