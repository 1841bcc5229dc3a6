"""The parts of a pair: two programs for one network, and the faults that are planted into the second one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, HEADS, KEY_HEADS, HIDDEN, DEPTH, LENGTH, BATCH, CLASSES = 97, 64, 4, 2, 96, 3, 12, 3, 10
FLOAT32, BFLOAT16 = "float32", "bfloat16"


@dataclass(frozen=True)
class Program:
    """A model and how to run it."""

    model: nn.Module
    run: Callable[[nn.Module], torch.Tensor]
    """Forward pass on the batch of the pair. Returns the output in the same layout on both sides."""


@dataclass(frozen=True)
class Fault:
    """A fault in the second program."""

    where: str
    """Pattern that matches the place which a correct verdict names."""
    plant: Callable[[nn.Module], Any]


@dataclass(frozen=True)
class Pair:
    """Two programs for one network."""

    name: str
    golden: Callable[[], Program]
    target: Callable[[nn.Module], Program]
    """Makes the second program with the weights of the golden model."""
    faults: Mapping[str, Fault]
    trains: bool = True
    """True if both programs run a backward pass too."""
    types: tuple[str, ...] = (FLOAT32, BFLOAT16)
    environment: str = "packages"
    """Environment with its packages: a list in ``requirements``."""
    about: str = ""
    """A difference in representation that a comparison has to see through."""
    gradients: bool = True
    """True if both programs have the same parameters, so that the norms of their gradients agree."""


def randomise(model: nn.Module, seed: int = 1) -> nn.Module:
    """Draw weights with the scales of a trained network."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if not value.is_floating_point() or re.search(r"inv_freq|A_log", name):
                continue
            noise = torch.randn(value.shape, generator=random)
            if name.endswith("running_var"):
                value.copy_(0.5 + noise.abs())
            elif value.dim() < 2:
                is_scale = name.endswith("weight")
                value.copy_(1 + 0.2 * noise if is_scale else 0.2 * noise)
            else:
                value.copy_(noise * value[0].numel() ** -0.5)
    return model


def token_ids(seed: int = 5) -> torch.Tensor:
    """A batch of token ids with the shape [BATCH, LENGTH]."""
    return torch.randint(3, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(seed))


def images(model: nn.Module, size: int = 32, seed: int = 5) -> torch.Tensor:
    """A batch of images with the shape [BATCH, 3, size, size] and the type of the model's parameters."""
    found = torch.randn(BATCH, 3, size, size, generator=torch.Generator().manual_seed(seed))
    return found.to(next(model.parameters()).dtype)


def loss_of(output: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the output's last axis with fixed labels."""
    logits = output.reshape(-1, output.shape[-1])
    labels = torch.randint(logits.shape[-1], logits.shape[:1], generator=torch.Generator().manual_seed(9))
    return F.cross_entropy(logits, labels)


def roll(weight: torch.Tensor, by: int = 1) -> None:
    """Shift the rows of a weight, so that its statistics stay the same."""
    weight.data.copy_(weight.data.roll(by, 0))
