"""The flags by which the ranks of a split model are merged, for every command that has them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probe.shards.split import Split

_FLAGS = ("rank_size", "tp", "pp", "vpp", "order")


def add_merging(parser: argparse.ArgumentParser) -> None:
    """Add the flags, which have one value for each side."""
    add = parser.add_argument_group("merging the ranks of a split model, a value for each side").add_argument
    add("--rank_size", metavar="N", type=_number, nargs="+", help="number of ranks: tp * pp * dp")
    add("--tp", metavar="N", type=_number, nargs="+", help="ranks that share a layer (tensor parallel)")
    add("--pp", metavar="N", type=_number, nargs="+", help="stages of layers (pipeline parallel)")
    add("--vpp", metavar="N", type=_number, nargs="+", help="virtual stages of a stage")
    add("--order", metavar="TEXT", type=_order, nargs="+", help="order in which ranks are numbered (tp-cp-ep-dp-pp)")


def splits_given(args: argparse.Namespace, sides: int) -> list[Split]:
    """Return the split of the runs that the flags of merging give; nothing where none of these is given.

    Raises:
        MsprobeException: a flag is missing, or values do not fit; the message names the flag.
    """
    given = {flag: getattr(args, flag) for flag in _FLAGS}
    if all(values is None for values in given.values()):
        return []
    from probe.shards.split import splits_of

    return splits_of(sides, given)


def _order(text: str) -> str:
    """The value of the flag; checked alone, for another flag that is missing says nothing of it."""
    from probe.shards.split import check_order

    return check_order(text)


def _number(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks; allowed: 1 and more.")
    return number
