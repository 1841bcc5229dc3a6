"""The options of a comparison of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from probe.common.errors import MsprobeException

WEIGHTS = ("master", "model")


@dataclass(frozen=True)
class CheckpointOptions:
    """Options for reading and comparing checkpoints.

    Args:
        names: a YAML file of names of the first checkpoint and their counterparts in the second.
        tp: tensor-parallel ranks of a checkpoint that is a file for each rank and does not say so itself; 0: unknown.
        pp: its pipeline stages.
        heads: attention heads, and groups of heads that share keys and values; by default the checkpoints or the
            values say so.
        optimizer: compare the state of the optimizer as well.
        weights: which weights of ZeRO: ``master`` (float32, in the optimizer) or ``model``.

    Raises:
        MsprobeException: a value is not allowed.
    """

    names: str | None = None
    tp: int = 0
    pp: int = 1
    heads: tuple[int, int] | None = None
    optimizer: bool = False
    weights: str = "master"

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise MsprobeException(f"--weights is {self.weights!r}; allowed: {', '.join(WEIGHTS)}.")
        if self.tp < 0 or self.pp < 1:
            raise MsprobeException(f"--tp is {self.tp} and --pp is {self.pp}; allowed: numbers of 1 or more.")
        if self.heads is not None and (min(self.heads) < 1 or self.heads[0] % self.heads[1]):
            raise MsprobeException(
                f"--heads is {self.heads[0]} {self.heads[1]}; allowed: heads, and a number of groups that divides them."
            )
