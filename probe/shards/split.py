"""The way in which a model is split over ranks, and which of these ranks hold parts of the same thing.

A rank is a number whose digits are the indices of its parallel groups, the dimension that stands first in `order`
varying fastest: with ``tp-cp-ep-dp-pp``, tp = 2 and pp = 2, ranks 0 and 1 share the layers of the first stage, and
ranks 2 and 3 those of the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from probe.common.dump.reading.items import Shape
from probe.common.errors import MsprobeException
from probe.common.ranges import ranges

DEFAULT_ORDER = "tp-cp-ep-dp-pp"
_NEEDED = ("tp", "dp", "pp")
_WITHOUT_SPLIT = ("cp", "ep")
_ALLOWED_ORDER = f"tp, dp and pp once each, and cp and ep once or never, joined by -, such as {DEFAULT_ORDER}"


@dataclass(frozen=True)
class Split:
    """The sizes of the parallel groups of one run.

    Args:
        rank_size: how many ranks the run has.
        tp: over how many ranks each layer is split.
        pp: how many stages the layers are spread over.
        vpp: how many chunks of layers each stage holds.
        order: the dimensions by which ranks are numbered, fastest first.

    Raises:
        MsprobeException: the sizes do not fit each other; the message names the flag, its value and what is allowed.
    """

    rank_size: int
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    order: str = DEFAULT_ORDER

    def __post_init__(self) -> None:
        for flag in ("rank_size", "tp", "pp", "vpp"):
            value = getattr(self, flag)
            if value < 1:
                raise MsprobeException(f"--{flag} is {value}; allowed: whole numbers of 1 or more.")
        check_order(self.order)
        if self.rank_size % (self.tp * self.pp):
            raise MsprobeException(
                f"--rank_size is {self.rank_size}; allowed with --tp {self.tp} and --pp {self.pp}: multiples of "
                f"{self.tp * self.pp}, because it is tp * pp * dp."
            )
        if self.vpp > 1 and self.pp == 1:
            raise MsprobeException(f"--vpp is {self.vpp}; allowed with --pp 1: 1; only stages hold chunks of layers.")

    def __str__(self) -> str:
        return f"--rank_size {self.rank_size} --tp {self.tp} --pp {self.pp} --vpp {self.vpp} --order {self.order}"

    @property
    def dp(self) -> int:
        """The number of copies of the model that the run has."""
        return self.rank_size // (self.tp * self.pp)

    def rank(self, tp: int, dp: int, pp: int) -> int:
        """The rank that has these indices in its groups.

        Example:
            >>> Split(8, tp=2, pp=2).rank(tp=1, dp=0, pp=1)
            5
        """
        indices = {"tp": (tp, self.tp), "dp": (dp, self.dp), "pp": (pp, self.pp)}
        found, stride = 0, 1
        for name in self.order.split("-"):
            index, size = indices.get(name, (0, 1))
            found += index * stride
            stride *= size
        return found

    def stages(self, dp: int) -> list[list[int]]:
        """The ranks of one copy of the model: for each stage those that share its layers.

        Example:
            >>> Split(4, tp=2, pp=2).stages(0)
            [[0, 1], [2, 3]]
        """
        return [[self.rank(tp, dp, pp) for tp in range(self.tp)] for pp in range(self.pp)]


def check_order(order: str) -> str:
    """The dimensions by which ranks are numbered, if they are that.

    Raises:
        MsprobeException: a dimension is missing, there twice or unknown.
    """
    dimensions = order.split("-")
    known = all(name in _NEEDED + _WITHOUT_SPLIT for name in dimensions)
    if not known or len(set(dimensions)) < len(dimensions) or not set(_NEEDED) <= set(dimensions):
        raise MsprobeException(f'--order is "{order}"; allowed: {_ALLOWED_ORDER}.')
    return order


def splits(
    sides: int,
    rank_size: Sequence[int],
    tp: Sequence[int],
    pp: Sequence[int],
    vpp: Sequence[int] = (),
    order: Sequence[str] = (),
) -> list[Split]:
    """The split of each side, from the values of the flags, which have one value for each side.

    Args:
        sides: 1, or 2 where there is a golden run.
        vpp: like `order`, empty where the flag is not given.

    Raises:
        MsprobeException: a flag has another number of values, sizes do not fit, or the sides have different numbers of
            copies of the model; the message names the flag, its value and what is allowed.
    """
    given: dict[str, list[Any]] = {
        "rank_size": list(rank_size),
        "tp": list(tp),
        "pp": list(pp),
        "vpp": list(vpp) or [1] * sides,
        "order": list(order) or [DEFAULT_ORDER] * sides,
    }
    for flag, values in given.items():
        if len(values) != sides:
            needed = "one value" if sides == 1 else "two values, of the target and of the golden run"
            raise MsprobeException(f"--{flag} has {len(values)} values, {_joined(values)}; allowed: {needed}.")
    found = [
        Split(rank_size[side], tp[side], pp[side], given["vpp"][side], given["order"][side]) for side in range(sides)
    ]
    if len({split.dp for split in found}) > 1:
        counts = " and ".join(str(split.dp) for split in found)
        raise MsprobeException(
            f"--rank_size is {_joined(rank_size)}: dp = rank_size / (tp * pp) is {counts}; allowed: the same dp of "
            "both sides, because copies of the model are compared one by one; cp and ep are not merged."
        )
    return found


def splits_of(sides: int, given: Mapping[str, Sequence[Any] | None]) -> list[Split]:
    """The split of each side; none where nothing is given.

    Args:
        sides: 1, or 2 where there is a golden run.
        given: the values of the flags by their names, as `splits` takes them; ``None`` for one that is not given.

    Raises:
        MsprobeException: a flag that is needed is missing, and what `splits` raises.
    """
    if all(values is None for values in given.values()):
        return []
    for flag in ("rank_size", "tp", "pp"):
        if given.get(flag) is None:
            raise MsprobeException(f"--{flag} is missing; merging needs --rank_size, --tp and --pp.")
    return splits(sides, **{flag: values or () for flag, values in given.items()})


def _joined(values: Sequence[Any]) -> str:
    return " ".join(map(str, values))


def check_ranks(split: Split, found: Sequence[int], path: str) -> None:
    """Check that a step has the ranks that a split needs.

    Raises:
        MsprobeException: ranks are missing or there are more; the message names them.
    """
    wanted = set(range(split.rank_size))
    missing, more = sorted(wanted - set(found)), sorted(set(found) - wanted)
    if missing or more:
        what = f"lacks rank {ranges(missing)}" if missing else f"has rank {ranges(more)} as well"
        raise MsprobeException(
            f"--rank_size is {split.rank_size}, but {path} {what}; its ranks are {ranges(sorted(found))}. "
            "Give a folder with all ranks of the training, and their number as --rank_size."
        )


# --- part


@dataclass(frozen=True)
class PartOfItem:
    """One item as a rank recorded it."""

    rank: int
    name: str
    shape: Optional[Shape]  # noqa: UP045 (evaluated, on Python 3.9 too)
    max: Any
    min: Any
    mean: Any
    norm: Any


@dataclass(frozen=True)
class MergedItem:
    """The way in which the values of an item were made of those of several ranks."""

    how: str
    """``split``: each rank has a piece of the tensor; ``sum``: each rank has a summand of it."""
    sentences: list[str]
    """One for each statistic, with its numbers, and one for the shape."""
    parts: list[PartOfItem]
    fields: Optional[dict[str, Any]] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The fields of the record, with the shape of one piece, if it is not known along which dimension it is split."""


@dataclass
class Calls:
    """The calls of one rank, or of ranks that were merged already."""

    tree: dict[str, Optional[str]]  # noqa: UP045
    """Every call in the order of their beginnings, and the call it ran inside."""
    records: dict[str, dict[str, Any]]
    """The fields of each record, in the order in which the calls ended."""
    stacks: dict[str, list[str]]
    origins: dict[str, list[tuple[int, str]]]
    """The ranks that have each record and call, with its name there."""
    items: dict[str, MergedItem] = field(default_factory=dict)
    """The way in which items were merged, by their names; what all ranks have alike is not in it."""
    notes: list[str] = field(default_factory=list)
    sentences: dict[str, list[str]] = field(default_factory=dict)
    """More sentences on a call."""
