"""Rows matched, measured and judged as msProbe 26.2 does, its defects included: ``--rules msprobe``.

docs/reference/compare.md lists the defects.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from probe.common.align.by_name import by_name
from probe.common.align.calls import Calls
from probe.common.align.mapping import api_mapping, cell_mapping, item_mapping, layer_mapping
from probe.common.align.name_mapping import NameMapping
from probe.common.align.options import MatchOptions
from probe.common.align.row import Row
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import Item
from probe.common.errors import MsprobeException
from probe.common.numerics import statistics
from probe.common.numerics.statistics import UNSUPPORTED
from probe.common.numerics.values import Measured, compare_values
from probe.compare.result import Mode
from probe.msprobe_rules.compare.other_names import by_kind, by_layer, with_pairs, without
from probe.msprobe_rules.compare.rows import RowRule, worst

# Frameworks that a target is compared with: MindSpore runs with the run they were ported from, never the other way.
_GOLDEN_OF = {
    "pytorch": ("pytorch",),
    "mindspore": ("mindspore", "pytorch"),
    "mindtorch": ("mindspore", "pytorch"),
}
_NO_ENTRY = frozenset(("Functional.tanh",))
"""Names that the built-in table of 26.2 lacks."""


class Matching:
    """Matching and measuring as `probe.compare.rules.Otherwise`."""

    def check(self, target: Dump, golden: Dump) -> None:
        """Refuse pairs of frameworks that msProbe does not compare."""
        allowed = _GOLDEN_OF[target.framework]
        if golden.framework not in allowed:
            raise MsprobeException(
                f"by the rules msprobe a {target.framework} dump ({target.path}) is compared with one of "
                f"{' or '.join(allowed)}, not of {golden.framework} ({golden.path}); give --rules probe, "
                "or exchange -tp and -gp."
            )

    def renumbers_target(self, options: MatchOptions) -> bool:
        """The target's side is forgotten where names are mapped (D3)."""
        return not options.maps_names

    def match(
        self, dumps: tuple[Dump, Dump], calls: Calls, options: MatchOptions
    ) -> tuple[list[Row], dict[str, str] | None]:
        """The rows of the target; those that the golden side has alone are left out."""
        across_frameworks = dumps[0].framework != dumps[1].framework
        rest = without(calls, options.pairs) if options.pairs else calls
        derived = None
        if options.fuzzy:
            found = list(by_kind(*rest))
        else:
            mapping, derived = _mapping(dumps, rest, options)
            found = list(by_name(*rest, mapping))
        if options.pairs:
            found = with_pairs(found, calls, options.pairs, across_frameworks)
        found = [row for row in found if row.target is not None]
        # With mapped items nobody asks for their types.
        for row in [] if options.maps_items else found:
            _unmatch_other_types(row, across_frameworks)
        return found, derived

    def statistics(self, target: Item, golden: Item) -> tuple[Any, ...]:
        """The metrics of statistics; a flag is no number."""
        cells = statistics.compare_items(target, golden)
        mine = target.max, target.min, target.mean, target.norm
        pairs = zip(mine, (golden.max, golden.min, golden.mean, golden.norm))
        differs = [type(cell) is float and bool in map(type, pair) for cell, pair in zip(cells, pairs)]
        return tuple("Diff" if is_flag else cell for cell, is_flag in zip(cells, differs * 2))

    def values(self, target: Any, golden: Any) -> Measured:
        """The metrics of two arrays; infinities of two signs are the same."""
        if np.squeeze(target).size == 0:
            return Measured(UNSUPPORTED)
        return compare_values(target, golden, signed=False)


def _mapping(
    dumps: tuple[Dump, Dump], calls: Calls, options: MatchOptions
) -> tuple[NameMapping, dict[str, str] | None]:
    """The golden names of the target's names, and the data mapping that a layer mapping became."""
    apis, entries = api_mapping(dumps[0], calls, options, _NO_ENTRY)
    cells = cell_mapping(calls, options)
    derived = None if options.layer_mapping is None else by_layer(calls, layer_mapping(dumps, calls, options))
    items = item_mapping(calls, options) if options.data_mapping is not None else derived
    return NameMapping(apis, entries, cells, items=items), derived


def _unmatch_other_types(row: Row, across_frameworks: bool) -> None:
    target, golden = row.target, row.golden
    if target is None or golden is None or may_match(target.dtype, golden.dtype, across_frameworks):
        return
    row.golden, row.golden_record, row.notes = None, None, ()


# Releases of msProbe match these, so that a run in half precision can be compared with one in full.
_FLOATS = (
    frozenset(("Float16", "Float32", "Float64", "BFloat16")),
    frozenset(("torch.float16", "torch.float32", "torch.float64", "torch.bfloat16")),
)
_CLASSES = ("complex", "float", "bool", "int")


@cache
def may_match(target: str | None, golden: str | None, across_frameworks: bool) -> bool:
    """True if msProbe compares values of these types at all."""
    if target == golden:
        return True
    if target is None or golden is None:
        return False
    if across_frameworks:
        return _class(target) == _class(golden)
    return any(target in names and golden in names for names in _FLOATS)


def _class(dtype: str) -> str:
    lower = dtype.lower()
    return next((name for name in _CLASSES if name in lower), lower)


class RowsOf26:
    """The rules as `probe.compare.rules.RowRules`."""

    otherwise = Matching()

    def classify_rows(self, rows: list[Row], mode: Mode) -> None:
        """Give the rows of one record their results and messages; remarks of measuring are lost (D3a)."""
        for row, messages in zip(rows, RowRule(mode).messages(rows)):
            row.result = worst(messages)
            if messages:
                row.messages = tuple(messages)


V26_2_ROWS = RowsOf26()
