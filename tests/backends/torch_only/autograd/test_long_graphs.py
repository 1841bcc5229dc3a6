"""A gradient graph that the tool has seen can be freed, however long it is.

torch frees nodes that Python has seen one inside the other, which takes room on the stack. The programs run on a thread
that has little of it: there a tenth of the nodes, that would end a process on its first thread, are too many.
"""

from __future__ import annotations

import json
from pathlib import Path

import forks
import pytest

GRAPHS = [
    "one_module_behind_the_other",
    "in_one_module",
    "side_by_side",
    "recurrent",
    "behind_a_view_that_was_written_to",
    "not_recorded_in_between",
]
PROGRAM = """
import sys
import threading

import torch
from torch import nn
from msprobe.pytorch import PrecisionDebugger

CALLS = 4_000


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(x)


class Sines(nn.Module):
    def forward(self, x):
        for _ in range(CALLS):
            x = torch.sin(x)
        return x


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


sine, sines, flat, cell = parts = [Sine(), Sines(), nn.Flatten(), nn.LSTMCell(2, 2)]


def one_module_behind_the_other(x):
    for _ in range(CALLS):
        x = sine(x)
    return x


def in_one_module(x):
    return sines(x)


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
    debugger = PrecisionDebugger(config_path=sys.argv[1])
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
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("when", ["at once", "at the end"])
def test_it_is_freed(tmp_path: Path, level: str, when: str) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "statistics", "level": level, "dump_path": str(tmp_path / "dump")}))
    run = forks.run_python("torch", tmp_path / "program.py", str(config), when, *GRAPHS, code=PROGRAM, tear_down=True)
    freed = [line for line in run.stdout.splitlines() if line in GRAPHS]
    # Where triton is installed, it ends with a list of what it did not free.
    errors = forks.ToolLines.err_of(run.stderr.partition("nanobind: leaked")[0])
    assert (run.returncode, errors, freed) == (0, "", GRAPHS)
