"""The content of a checkpoint, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from probe.checkpoint.stored.tensors import Tensor


@dataclass
class Checkpoint:
    """Tensors and settings of one checkpoint."""

    path: str
    format: str
    """The format in words, for the answer."""
    weights: dict[str, Tensor] = field(default_factory=dict)
    """In the order of the file."""
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """Arguments, iteration, state of random generators: plain values under dotted names."""
    config: dict[str, Any] = field(default_factory=dict)
    """Description of the model: a ``config.json``, or the arguments of a training."""
    notes: list[str] = field(default_factory=list)
    """A sentence for each thing that a reader should know."""
    replicas: list[tuple[str, str, Tensor, Tensor]] = field(default_factory=list)
    """Copies of one parameter on several ranks, which have to be equal: name, ranks, the tensors."""
    pieces: dict[str, list[Tensor]] = field(default_factory=dict)
    """The parts of ranks of which a parameter may have been joined, by its name."""

    @property
    def container(self) -> str:
        """The format without the number of files."""
        return self.format.partition(",")[0]
