"""The sentence on a tensor that may have its elements in another order, made certain where its values were saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probe.common.align.row import Row
from probe.common.dump.reading.dump import Dump
from probe.common.errors import FileCheckException
from probe.compare.divergence.causes.reordering import HAS_OTHER_ELEMENTS, IS_REORDERED
from probe.compare.result import Unexplained


def with_known_order(found: Unexplained, rows: Sequence[Row], target: Dump, golden: Dump) -> Unexplained:
    """The finding, whose cause says that elements may be in another order, after a look at the saved elements.

    Args:
        found: the finding. Its item is the tensor that its cause is about, or the cause stays as it is.
        rows: the rows of the comparison.
        target, golden: the dumps.
    """
    if not found.reordered:
        return found
    row = next((row for row in rows if row.target is not None and row.target.name == found.item), None)
    if row is None or row.target is None or row.golden is None:
        return found
    paths = target.tensor_path(row.target), golden.tensor_path(row.golden)
    if paths[0] is None or paths[1] is None:
        return found
    # Statistics are compared without numpy.
    from probe.common.dump.reading.tensor_reading import read_tensor
    from probe.common.numerics.multiset import digest

    try:
        one, other = (digest(read_tensor(path or "", mapped=True)) for path in paths)
    except FileCheckException:
        return found  # The table says so of the file.
    is_reordered = one == other
    return replace(found, cause=f"{found.reordered} {IS_REORDERED if is_reordered else HAS_OTHER_ELEMENTS}")
