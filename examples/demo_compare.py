"""Train the model of demo.py as it is and with one thing changed, and let ``msprobe compare`` say where they part.

Each run has a process of its own, because there is one debugger in a process. The second one gets GELU's tanh
approximation in its last block only, as another framework may do, and one thread, whose rounding differs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import demo_summary
import torch
import torch.nn.functional as F
from demo import Block, ByteModel

from msprobe.pytorch import PrecisionDebugger, seed_all


class ChangedBlock(Block):
    """A block whose GELU is an approximation."""

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.contract(F.gelu(self.expand(x), approximate="tanh"))


def run(name: str, **settings: str) -> None:
    """One training step, collected into the folder `name`; `settings` are further ones of the debugger."""
    seed_all(1234)
    model = ByteModel()
    if name == "changed":
        torch.set_num_threads(1)
        model.blocks[-1].__class__ = ChangedBlock
    debugger = PrecisionDebugger(dump_path=os.path.join(demo_summary.OUTPUT, name), level="mix", **settings)
    batch = torch.tensor(demo_summary.text()[:264]).view(8, 33)
    debugger.start(model)
    F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
    debugger.stop()
    debugger.step()


def collect() -> None:
    """Collect both runs."""
    shutil.rmtree(demo_summary.OUTPUT, ignore_errors=True)
    for name in ("original", "changed"):
        subprocess.run([sys.executable, __file__, name], check=True)


def compare(command: str = "compare") -> None:
    """Collect both runs, and give them to a subcommand of ``msprobe``."""
    collect()
    steps = [os.path.join(demo_summary.OUTPUT, name, "step0") for name in ("changed", "original")]
    arguments = [command, steps[0], steps[1], "-o", os.path.join(demo_summary.OUTPUT, "result")]
    print("\nmsprobe", *arguments, "\n", flush=True)
    subprocess.run([sys.executable, "-m", "probe.api.cli", *arguments], check=True)


if __name__ == "__main__":
    run(sys.argv[1]) if len(sys.argv) > 1 else compare()
