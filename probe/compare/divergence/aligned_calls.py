"""The calls of two runs side by side."""

from __future__ import annotations

from typing import Optional

from probe.common.align.counterparts import CallPair as AlignedCall
from probe.common.dump.naming import BACKWARD, FORWARD, ParsedName, is_module, parse, record_name
from probe.common.dump.reading.sources import Tree

__all__ = ["AlignedCall", "Trees", "first_of_groups", "module_path"]

Trees = tuple[Optional[Tree], Optional[Tree]]


def module_path(record: str, tree: Tree | None) -> str:
    """The path of the module around a call, or what else is around it.

    A backward that ran inside of nothing has the path of its forward: that of a first layer is not seen to begin.
    """
    around = (tree or {}).get
    parsed = parse(record)
    parent = around(record)
    if parent is None and parsed is not None and parsed.direction == BACKWARD:
        parent = around(record_name(ParsedName(parsed.base, parsed.number, FORWARD, parsed.is_module)), parent)
    around_it = parse(parent or "")
    return parent or "" if around_it is None or not around_it.is_module else around_it.base.rpartition(".")[0]


def first_of_groups(tree: Tree) -> dict[str, str]:
    """The scopes around calls that are no modules, such as an optimizer, each with its first call."""
    found: dict[str, str] = {}
    for record, around in tree.items():
        if around and not is_module(around):
            found.setdefault(around, record)
    return found
