"""A pair of parameters, or one that has no counterpart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

from probe.checkpoint.stored.tensors import Tensor


@dataclass
class Side:
    """A parameter of one checkpoint, or a part of one.

    Args:
        name: as in the checkpoint.
        key: in the scheme of `probe.checkpoint.names.scheme`.
    """

    name: str
    key: str
    tensor: Tensor
    part: str = ""
    """The part, in words."""


@dataclass
class Pair:
    """Two parameters that are compared.

    Args:
        readings: ways to read the second side, of which the first is as it is stored; the values say which is right.
        how: why these two, where their names do not say it.
    """

    one: Optional[Side]  # noqa: UP045 (evaluated, on Python 3.9 too)
    other: Optional[Side]  # noqa: UP045
    readings: Sequence[tuple[str, Tensor]] = ()
    """Ways to read the first side instead, each with words."""
    other_readings: Sequence[tuple[str, Tensor]] = ()
    how: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        side = self.one or self.other
        assert side is not None
        return side.key
