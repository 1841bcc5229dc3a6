"""A pair of parameters, or one that has no counterpart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from probe.checkpoint.fingerprints.entry import facing
from probe.checkpoint.measuring import Seen
from probe.checkpoint.scheme import is_known, layer_of
from probe.checkpoint.stored import Tensor


@dataclass
class Side:
    """A parameter of one checkpoint, or a part of one.

    Args:
        name: as in the checkpoint.
        key: in the scheme of `probe.checkpoint.scheme`.
    """

    name: str
    key: str
    tensor: Tensor
    part: str = ""
    """The part, in words."""


class Reading(NamedTuple):
    """A way to read a stored parameter: its rows in another order, or transposed.

    Args:
        order: the order of the rows, the same text for all parameters that are stored alike; empty if as it is.
    """

    words: str
    tensor: Tensor
    turned: bool = False
    order: str = ""


@dataclass
class Pair:
    """Two parameters that are compared.

    Args:
        readings: ways to read one of them, of which the first is as it is stored; the values say which is right.
        of_first: True if they are readings of the first side.
        group: the parameters whose rows are in one order in a whole checkpoint, such as those that are rotated.
        how: why these two, where their names do not say it.
    """

    one: Optional[Side]  # noqa: UP045 (evaluated, on Python 3.9 too)
    other: Optional[Side]  # noqa: UP045
    readings: Sequence[Reading] = ()
    of_first: bool = False
    group: str = ""
    how: list[str] = field(default_factory=list)
    reading: Optional[Reading] = None  # noqa: UP045
    """The one that was chosen."""
    declared: bool = False
    """True if something says that the two sides have different layouts."""
    wrong: str = ""
    """The reason why this reading is a difference, though the values agree in it."""
    seen: Optional[Seen] = None  # noqa: UP045
    """Sums over both, by which they need not be read again to tell what was done to one."""

    @property
    def key(self) -> str:
        """In the scheme of names, from the side of which a layer is known."""
        keys = [side.key for side in (self.one, self.other) if side is not None]
        return next((key for rule in (is_known, layer_of) for key in keys if rule(key)), keys[0])

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """Both sides as they are compared, a fingerprint as it is held."""
        assert self.one is not None and self.other is not None
        one, other = self.one.tensor, self.other.tensor
        if self.reading is not None:
            one, other = (self.reading.tensor, other) if self.of_first else (one, self.reading.tensor)
        return facing(one, other)
