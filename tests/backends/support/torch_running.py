"""Programs of PyTorch under ``msprobe run``, with a small network at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from running import Ran

PRELUDE = """
import sys, torch
from torch import nn

torch.manual_seed(0)

def network(width=8):
    return nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 4))
"""
DESCENT = """
class Descent(torch.optim.Optimizer):
    # Those of torch import its compiler before their first step. That is most of what a fresh interpreter takes here.
    def __init__(self, parameters, rate):
        super().__init__(parameters, {"lr": rate})

    def add_param_group(self, group):
        self.param_groups.append({**self.defaults, **group})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad

    def zero_grad(self, set_to_none=True):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
"""
"""An optimizer for programs in interpreters of their own, after `PRELUDE`."""
IN_A_FORK = """
import sys
{before}
from probe.api.cli import main
sys.exit(main(["run", "-o", "out", *{options!r}, "program.py"]))
"""


def quick(scripts: Any, folder: Path, program: str, *options: str, before: str = "") -> Ran:
    """The same as `run` in a fork of a process that has imported torch before."""
    (folder / "program.py").write_text(PRELUDE + program, encoding="utf-8")
    ended = scripts.run(folder, IN_A_FORK.format(options=options, before=before), tool_imported=not before)
    return Ran(ended.status, ended.out, ended.written_to_err, folder / "out")
