"""A small training with a loader, AdamW, a schedule and checkpoints, in which one thing may be forgotten.

python train_twice.py                           eight steps, with a checkpoint after the fourth
python train_twice.py --resume                  four steps more, from the checkpoint
python train_twice.py --forget seed             the same without a seed; or order, optimizer, generator, loader
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog"] * 16
AT = 4


def network() -> nn.Module:
    """A classifier of pairs of words, with dropout."""
    return nn.Sequential(
        nn.Embedding(8, 32), nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 8)
    )


def batches(forgotten: str, start: int) -> Iterator[torch.Tensor]:
    """Sixteen words a step from step `start` on, shuffled by a generator of the loader's own."""
    # The order of a set of texts is that of their hashes, which is another one in each process.
    names = list(set(WORDS)) if forgotten == "order" else sorted(set(WORDS))
    numbers = torch.tensor([names.index(word) for word in WORDS])
    order = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(1))
    yield from numbers[order].split(16)[start:]


def main() -> None:
    """Train from the beginning, or from the checkpoint."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", default="train_twice.pt")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--forget", default="", choices=["seed", "order", "optimizer", "generator", "loader"])
    given = parser.parse_args()
    if given.forget != "seed":
        torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 8)
    step = 0
    if given.resume:
        state = torch.load(given.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        if given.forget != "optimizer":
            optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        if given.forget != "generator":
            torch.set_rng_state(state["generator"])
        step = state["step"]
    for batch in batches(given.forget, 0 if given.forget == "loader" else step):
        pairs, labels = batch[:15].unfold(0, 2, 1), batch[2:]
        F.cross_entropy(model(pairs[: len(labels)]), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        step += 1
        if step == AT and not given.resume:
            torch.save(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "schedule": schedule.state_dict(),
                    "generator": torch.get_rng_state(),
                    "step": step,
                },
                f"{given.checkpoint}.new",
            )
            os.replace(f"{given.checkpoint}.new", given.checkpoint)
        if step == 2 * AT:
            return


if __name__ == "__main__":
    main()
