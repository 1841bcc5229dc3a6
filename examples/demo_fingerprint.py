"""Train a model, hand its weights to an engine that gets some of them late, and let fingerprints say which."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import demo_summary
import torch
from demo import ByteModel

import probe

OUTPUT = os.path.join(demo_summary.OUTPUT, "fingerprints")
STEPS, LATE = 4, "blocks.1."


def log_probabilities(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Those of each token but the first."""
    with torch.no_grad():
        logits = model(tokens[:, :-1])
    return torch.log_softmax(logits.float(), -1).gather(-1, tokens[:, 1:, None])[..., 0]


def run(*arguments: str) -> None:
    """Run a command of the tool."""
    print("\nmsprobe", *arguments, "\n", flush=True)
    subprocess.run([sys.executable, "-m", "probe.api.cli", *arguments], check=False)


def main() -> None:
    """Train, send, sample, and compare the weights of both sides."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    os.makedirs(OUTPUT)
    torch.manual_seed(0)
    trainer, engine = ByteModel(), ByteModel().bfloat16()
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-3)
    tokens = torch.randint(0, 256, (8, 33))
    for step in range(STEPS):
        logits = trainer(tokens[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.fingerprint(trainer, step=step).save(os.path.join(OUTPUT, "trainer", f"{step}.fingerprint"))
        # At the last step the bridge forgets a block.
        sent = {name: each for name, each in trainer.state_dict().items() if step < STEPS - 1 or LATE not in name}
        engine.load_state_dict(sent, strict=False)
        probe.fingerprint(engine, step=step).save(os.path.join(OUTPUT, "engine", f"{step}.fingerprint"))
    sides = {"rollout": log_probabilities(engine, tokens), "training": log_probabilities(trainer, tokens)}
    values = os.path.join(OUTPUT, "logprobs.pt")
    torch.save(sides, values)
    weights = ("--trainer-fingerprint", os.path.join(OUTPUT, "trainer"))
    weights += ("--engine-fingerprint", os.path.join(OUTPUT, "engine"))
    run("rollout_check", f"{values}:rollout", f"{values}:training", *weights)

    # The same weights as files: one machine has the checkpoint, the other one the fingerprint of its own.
    torch.save(trainer.state_dict(), os.path.join(OUTPUT, "trainer.pt"))
    torch.save(engine.state_dict(), os.path.join(OUTPUT, "engine.pt"))
    run("ckpt_compare", "--fingerprint", os.path.join(OUTPUT, "trainer.pt"))
    run("ckpt_compare", os.path.join(OUTPUT, "engine.pt"), os.path.join(OUTPUT, "trainer.pt.fingerprint"))


if __name__ == "__main__":
    main()
