"""From log-probabilities to the layer, with each fault of ``examples/rollout_policy.py`` planted into an engine.

usage: rollout_to_layer.py [--seeds N] [--only FAULT]

For each fault, dtype and seed: the kind that `rollout_check` names, and what `compare` says of one forward pass of the
sequence to look at, on both sides. A kind is right if it is the one of `EXPECTED`, and a layer if the text names the
module or the argument of it. Prints a table for Markdown.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from rollout_policy import FAULTS, Batch, Engine, Policy, Trainer, prompts, update
from torch import nn

import probe
from msprobe.pytorch import PrecisionDebugger

DTYPES = ("float32", "bfloat16")
EXPECTED: dict[str, tuple[Sequence[str], str]] = {
    # What nobody planted, or what is applied behind the model, is in no layer.
    "none": (("none", "rounding"), ""),
    "temperature": (("temperature",), ""),
    "position": (("position",), "rotary"),
    # The embedding is the first module with a parameter; in a short type the first that shows it may come later.
    "stale": (("stale",), "parameter"),
    "template": (("sequences",), "embedding"),
    "left_padding": (("sequences",), "attention"),
    "routing": (("routing",), "experts"),
}
"""By fault, the kinds that are right, and a part of the text that names the layer; empty where nothing diverges."""
SEQUENCES, LONGEST_PROMPT, LENGTH, STEPS = 24, 24, 48, 4


class Found(NamedTuple):
    """The answers of both commands."""

    kind: str
    line: str
    answer: str
    layer: str

    def is_kind_right(self, fault: str) -> bool:
        """True if the kind is one of those that fit the fault."""
        return self.kind in EXPECTED[fault][0]

    def is_layer_right(self, fault: str) -> bool:
        """True if `compare` names the layer of the fault, or nothing where there is none."""
        layer = EXPECTED[fault][1]
        return self.answer == "divergence" and layer in self.layer if layer else self.answer == "none"


def find(fault: str, dtype: str, seed: int) -> Found:
    """Sample with a fault, check the log-probabilities, and compare one sequence."""
    kind = getattr(torch, dtype)
    torch.manual_seed(seed)
    policy = Policy()
    # Stale weights show over steps: the engine has those of the first one.
    steps = STEPS if fault == "stale" else 1
    batches: list[Batch] = []
    logprobs = []
    for step in range(steps):
        engine, trainer = Engine(policy, fault, kind), Trainer(update(policy, step, seed), fault, kind)
        torch.manual_seed(seed)
        batches.append(engine.sample(*prompts(SEQUENCES, LONGEST_PROMPT, seed + step), LENGTH, seed + step))
        logprobs.append(trainer.logprobs(batches[-1]))
    report = probe.rollout_check(
        torch.cat([batch.rollout for batch in batches]),
        torch.cat(logprobs),
        tokens=torch.cat([batch.responses for batch in batches]),
        prompt_lengths=torch.cat([batch.prompt_lengths for batch in batches]),
        step=torch.arange(steps).repeat_interleave(SEQUENCES),
        dtype=dtype,
        vocabulary=256,
        layers=3,
    )
    difference = (batches[-1].rollout - logprobs[-1]).abs().mean(1)
    worst = int(difference.argmax())
    with tempfile.TemporaryDirectory() as folder:
        rollout, training = (os.path.join(folder, side) for side in ("rollout", "training"))
        torch.manual_seed(seed)
        dump(rollout, engine.policy, lambda: engine.prefill(batches[-1], worst))
        dump(training, trainer.policy, lambda: trainer.forward(batches[-1], worst))
        verdict = probe.verdict(rollout, training)
        text = str(verdict)
    # Random states differ outside of the model, which is no layer.
    told = [line for line in text.splitlines() if "rows by" not in line and "outside of the model" not in line]
    layer = "\n".join(told[:4])
    return Found(report.kind, report.line, verdict.conclusion, layer)


def dump(folder: str, model: nn.Module, forward: Callable[[], object]) -> None:
    """Record one forward pass."""
    debugger = PrecisionDebugger(dump_path=folder, task="statistics", level="mix")
    debugger.start(model)
    forward()
    debugger.stop()
    PrecisionDebugger.reset()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=tuple(FAULTS))
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    print("| fault | dtype | kind | right kinds | layer, of the last seed | right layers |\n|---|---|---|---|---|---|")
    for fault in FAULTS if args.only is None else (args.only,):
        for dtype in DTYPES:
            found = [find(fault, dtype, seed) for seed in range(args.seeds)]
            kinds = ", ".join(sorted({each.kind for each in found}))
            right = sum(each.is_kind_right(fault) for each in found), sum(each.is_layer_right(fault) for each in found)
            layer = found[-1].layer.splitlines()
            named = next((line.strip() for line in layer if line.strip().startswith("in ")), layer[0])
            print(
                f"| {fault} | {dtype} | {kinds} | {right[0]} of {args.seeds} | {named} | {right[1]} of {args.seeds} |",
                flush=True,
            )
            if args.verbose:
                print("\n".join(f"    {each.line}\n    {each.layer}" for each in found))


if __name__ == "__main__":
    main()
