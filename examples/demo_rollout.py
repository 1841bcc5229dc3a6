"""Sample from a small policy with an engine whose positions are off by one after the prompt, and find the layer.

The mean of the mismatch, which trainers log, does not say what is wrong. ``msprobe rollout_check`` names the kind and
the token, and ``msprobe compare`` of one forward pass of the worst sequence on both sides names the layer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import demo_summary
import torch
from rollout_policy import Batch, Engine, Policy, Trainer, prompts
from torch import nn

from msprobe.core import SingleSave
from msprobe.pytorch import PrecisionDebugger

FAULT = "position"
SEQUENCES, LONGEST_PROMPT, LENGTH = 48, 32, 96
FOUND = 1
"""The exit status of a command that finds something."""


def msprobe(*arguments: str, quiet: bool = False) -> str:
    """Run a command, and show what it says."""
    if not quiet:
        print("\n$ msprobe", *arguments, "\n", flush=True)
    command = [sys.executable, "-m", "probe.api.cli", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, FOUND):
        sys.exit(done.returncode)
    if not quiet:
        print(done.stdout, flush=True)
    return done.stdout


def save(folder: str, batch: Batch, training: torch.Tensor) -> None:
    """Save both sets as a training loop would."""
    SingleSave(folder)
    values = {"rollout": batch.rollout, "training": training, "tokens": batch.responses}
    SingleSave.save({**values, "prompt_lengths": batch.prompt_lengths})
    SingleSave.step()
    SingleSave.close()


def dump(folder: str, model: nn.Module, forward: Callable[[], object]) -> None:
    """Record one forward pass."""
    debugger = PrecisionDebugger(dump_path=folder, task="statistics", level="mix")
    debugger.start(model)
    forward()
    debugger.stop()
    PrecisionDebugger.reset()


def main() -> None:
    shutil.rmtree(demo_summary.OUTPUT, ignore_errors=True)
    names = "both", "report", "dump_rollout", "dump_training", "compared"
    both, report, rollout, training, compared = (os.path.join(demo_summary.OUTPUT, name) for name in names)
    torch.manual_seed(0)
    policy = Policy()
    engine, trainer = Engine(policy, FAULT), Trainer(policy)
    batch = engine.sample(*prompts(SEQUENCES, LONGEST_PROMPT, seed=1), LENGTH, seed=2)
    save(both, batch, trainer.logprobs(batch))
    mean = (batch.rollout - trainer.logprobs(batch)).mean().item()
    print(f"{batch.rollout.numel()} tokens were sampled; mean difference of log-probabilities {mean:.1e}")

    sources = [f"{both}:rollout", f"{both}:training", "--tokens", f"{both}:tokens"]
    sources += ["--prompt-lengths", f"{both}:prompt_lengths", "--dtype", "float32"]
    msprobe("rollout_check", *sources, "-o", report)
    answer = json.loads(msprobe("rollout_check", *sources, "--json", quiet=True))
    worst = int(answer["sequences"][0]["sequence"])
    print(f"One forward pass of sequence {worst} on both sides:")
    dump(rollout, engine.policy, lambda: engine.prefill(batch, worst))
    dump(training, trainer.policy, lambda: trainer.forward(batch, worst))
    msprobe("compare", rollout, training, "-o", compared)


if __name__ == "__main__":
    main()
