"""Casts to float8 dtypes inside of modules: they round what a module computes, and no dtype of a record shows them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from probe.common.dump.naming import parse
from probe.common.dump.reading.call_tree import around
from probe.common.dump.reading.sources import Tree
from probe.common.environment.modules import Settings
from probe.common.numerics.formats import unit_roundoff
from probe.compare.divergence.aligned_calls import AlignedCall, Trees


class Casts:
    """The rounding of casts that modules make, by call.

    Args:
        settings: the settings of the modules of target and golden side; empty where they are not known.
        trees: the call trees of target and golden side.
    """

    def __init__(self, settings: tuple[Settings, Settings], trees: Trees) -> None:
        self._roundoffs = tuple(_roundoffs(each) for each in settings)
        self._trees = trees
        self.coarsest: float = max(chain.from_iterable(each.values() for each in self._roundoffs), default=0.0)
        """The largest unit roundoff of any cast; 0 if neither side has one."""

    def roundoff(self, call: AlignedCall) -> float:
        """The unit roundoff of casts in the module of a call, or in one around it; 0 without any."""
        names = call.record, call.golden_record
        return max(
            of_side.get(base, 0.0)
            for of_side, tree, name in zip(self._roundoffs, self._trees, names)
            for base in ("", *_bases(name, tree or {}))
        )


def _roundoffs(settings: Settings) -> dict[str, float]:
    return {name: max(map(unit_roundoff, module.casts)) for name, module in settings.items() if module.casts}


def _bases(name: str | None, tree: Tree) -> Iterator[str]:
    """The part of the names that all records share, of a call and of each one around it."""
    for each in () if name is None else (name, *around(tree, name)):
        parsed = parse(each)
        if parsed is not None:
            yield parsed.base
