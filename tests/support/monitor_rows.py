"""Made rows of a training: sizes that vary as those of a healthy one do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probe.monitor.alerts.rows import FamilyRows

OPS = ("min", "max", "mean", "norm", "zeros", "nans")
LAYERS = 6


def activations() -> tuple[str, ...]:
    names = [f"blocks.{layer}.{role}" for layer in range(LAYERS) for role in ("input", "output")]
    return (*names, ".output")


PARAMETERS = (*(f"blocks.{layer}.weight" for layer in range(LAYERS)), "head.weight")
FAMILIES = {
    "actv": activations(),
    "actv_grad": activations(),
    "grad_reduced": PARAMETERS,
    "exp_avg": PARAMETERS,
    "param_origin": PARAMETERS,
    "param_updated": PARAMETERS,
}
NUMEL = 64.0


class MadeTraining:
    """Rows of steps; norms vary by a tenth from step to step, weights grow slowly.

    Args:
        seed: Of the numbers.
        rank: Activations and gradients before reduction differ by rank, the other families do not.
    """

    def __init__(self, seed: int = 0, rank: int = 0) -> None:
        self._shared, self._own = np.random.default_rng(seed), np.random.default_rng((seed, rank))
        self._rank = rank

    def step(self, step: int) -> list[FamilyRows]:
        return [self._family(family, names, step) for family, names in FAMILIES.items()]

    def _family(self, family: str, names: Sequence[str], step: int) -> FamilyRows:
        numbers = self._own if family.startswith("actv") else self._shared
        if family == "param_updated":
            size = 8 * (1 + 1e-3 * (step + 1)) * np.ones(len(names))
        elif family == "param_origin":
            size = 8 * (1 + 1e-3 * step) * np.ones(len(names))
        else:
            size = np.exp(numbers.normal(0, 0.1, len(names))) * (0.01 if family.endswith("avg") else 1)
        mean = size / np.sqrt(NUMEL)
        zeros = np.zeros(len(names))
        values = np.stack((-2 * mean, 2 * mean, mean / 100, size, zeros, zeros), axis=1)
        return FamilyRows(
            family, tuple(names), OPS, values, (0,) * len(names) if family.startswith("actv") else None,
            numel=np.full(len(names), NUMEL), judged=np.ones(len(names), dtype=bool), step=step, rank=self._rank,
        )  # fmt: skip


def changed(rows: Sequence[FamilyRows], family: str, name: str, factor: float, **values: float) -> None:
    """Multiply the statistics of one row, in place, or set some of them."""
    for each in rows:
        if each.family == family:
            row = each.names.index(name)
            each.values[row, :4] *= factor
            for op, value in values.items():
                each.values[row, each.ops.index(op)] = value


def write_first_layout(
    folder: Path, steps: Sequence[Sequence[FamilyRows]], rank: int = 0, per_file: int = 1000
) -> Path:
    """Write rows as `TrainerMon` does."""
    place = folder / f"Nov27_10-00-00-rank{rank}-0123abcd"
    place.mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[str]] = {}
    for step, rows in enumerate(steps):
        first = step // per_file * per_file
        for each in rows:
            micro = ["micro_step"] if each.micro is not None else []
            header = ",".join(["vpp_stage", "name", "step", *micro, *each.ops, "shape", "dtype"])
            name = f"{each.family}_{first}-{first + per_file - 1}.csv"
            content = lines.setdefault(name, [header])
            for row, text in enumerate(each.names):
                numbers = [repr(float(value)) for value in each.values[row]]
                cells: list[Any] = [0, text, step, *(["0"] if micro else []), *numbers, '"[8, 8]"', "torch.float32"]
                content.append(",".join(map(str, cells)))
    for name, content in lines.items():
        (place / name).write_text("\n".join(content) + "\n")
    return place
