"""The edges of a graph: the row that returned what each call takes, where the dumps record the makers of tensors.

The maker of an item is a number: how many rows before its own row the call stands that returned the tensor, or a text
such as ``parameter:layer1.weight`` as -1 less its index. 0 is a maker that is not known, and of what a call returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Union

from probe.common.align.calls import Row
from probe.common.dump.reading.items import OUTPUT, Item
from probe.common.dump.sketch_file import VIEW
from probe.graph.page.tensors import Texts

Maker = Union[int, tuple[int, int]]
"""The maker in the target; with that in the golden run, where it is another one."""
Makers = list[list[Maker]]
"""The makers of the items of each row; an empty list where none is known."""


def makers_of(rows: Sequence[Sequence[Row]], texts: Texts) -> Makers:
    """The makers of all items.

    Args:
        rows: the items of each row, in the order of rows.
        texts: takes the texts of makers that are no call.
    """
    if not any(_is_followed(row) for items in rows for row in items):
        return [[] for _ in rows]
    targets = _maker_on(rows, lambda row: row.target, texts)
    goldens = _maker_on(rows, lambda row: row.golden, texts)
    found: Makers = []
    for number, items in enumerate(rows):
        makers: list[Maker] = []
        for row in items:
            maker = targets(number, row.target)
            other = maker if row.golden is row.target else goldens(number, row.golden)
            makers.append((maker, other) if other not in (0, maker) else maker)
        found.append(makers if any(makers) else [])
    return found


def _is_followed(row: Row) -> bool:
    """True if a dump may tell who made the item."""
    target, golden = row.target, row.golden
    return (target is not None and target.table is not None) or (golden is not None and golden.table is not None)


def _maker_on(
    rows: Sequence[Sequence[Row]], side: Callable[[Row], Item | None], texts: Texts
) -> Callable[[int, Item | None], int]:
    """Tells the maker of an item of one side, given the number of its row."""
    row_of: Mapping[str, int] = {
        item.name: number for number, items in enumerate(rows) for row in items if (item := side(row)) is not None
    }

    def maker_of(number: int, item: Item | None) -> int:
        maker = item.made_by if item is not None and item.state != OUTPUT else None
        if maker is None:
            return 0
        name = maker[len(VIEW) :] if maker.startswith(VIEW) else maker
        made = row_of.get(name)
        if made is None:
            return -1 - texts.index(name)
        # A graph has its calls in the order of execution: what stands behind its consumer has been moved by a pairing.
        return max(0, number - made)

    return maker_of
