"""``probe.ckpt_compare``: a comparison of checkpoints."""

from __future__ import annotations

import os
from typing import Union

from probe.checkpoint.options import CheckpointOptions
from probe.checkpoint.report import Report
from probe.checkpoint.run import compare_checkpoints

Path = Union[str, "os.PathLike[str]"]


def ckpt_compare(
    one: Path,
    other: Path,
    *,
    names: str | None = None,
    heads: tuple[int, int] | None = None,
    tp: int = 0,
    pp: int = 1,
    optimizer: bool = False,
    weights: str = "master",
) -> Report:
    """Compare the weights of two checkpoints, whatever their formats, layouts and names.

    Args:
        one: The run under test, a file or a folder.
        other: The baseline.
        names: A YAML file of names of `one` and their counterparts in `other`.
        heads: Attention heads, and groups of them that share keys and values.
        tp, pp: Tensor-parallel ranks and pipeline stages, for files of ranks that do not say so.
        optimizer: Compare the state of the optimizers as well.
        weights: Of ZeRO: ``master`` (float32) or ``model``.

    Raises:
        MsprobeException: one cannot be read, and what to do.

    Example:
        >>> print(probe.ckpt_compare("a.safetensors", "b").why)  # doctest: +SKIP
    """
    return compare_checkpoints(one, other, CheckpointOptions(names, tp, pp, heads, optimizer, weights))
