"""The facts on two runs: how far apart each pair of tensors is, measured once and never changed.

The distance of two tensors is the norm of their difference, relative to the larger of the two norms. It is that of the
elements where both runs saved them, that of the sketches where both have one, and else what four statistics give away,
which is a lower bound.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
from sys import intern
from typing import Any, Optional

import msgspec

from probe.common.align.calls import Row
from probe.common.dump.naming import BACKWARD, FORWARD, PARAMETERS_GRAD, ParsedName, parse
from probe.common.dump.reading.records import INPUT, PARAMETERS, Item
from probe.common.dump.sketch_file import SketchTable
from probe.common.numerics.error_bounds import (
    ALTOGETHER,
    SAFETY,
    are_comparable,
    beside_fill_values,
    extent,
    is_same,
    relative_difference,
)
from probe.common.numerics.formats import plain_name, unit_roundoff
from probe.common.numerics.statistics import SPECIAL_VALUES_DIFFER
from probe.compare.result import Mode

_AT_ONCE = 4096
"""Pairs of sketches that are subtracted at once: 4 MiB in float64."""
_FILL = 1e4
"""The size from which on an element is taken for the fill of a mask and not for a value of the model."""


Tables = tuple[SketchTable, SketchTable]
"""The sketches of target and golden run."""


SHORT = unit_roundoff("float32") * 2.0**8
"""The unit roundoff from which on a dtype is short: rounding makes differences that a fault may make, and its like tell
more than its type. Between float32 and float16; TF32 is short."""
LARGEST = 2.0**100
"""The size from which on elements are left out of a sketch."""


class Evidence(Enum):
    """The source of a distance."""

    ELEMENTS = "elements"
    SKETCH = "sketch"
    STATISTICS = "statistics"


class Call(msgspec.Struct, gc=False):
    """A call that both runs, or one of them, made."""

    index: int
    """The place among the calls, in the order of the target."""
    record: Optional[str]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The record of the target; ``None`` where the golden run alone made the call."""
    golden_record: Optional[str]  # noqa: UP045
    rows: list[Row]
    parsed: Optional[ParsedName]  # noqa: UP045
    """The parts of its name: of the target's record, and of the golden run's where the target has none."""
    # What follows from these, and is asked so often that it is worked out once.
    name: str = ""
    """The record, on whichever side it is."""
    is_of_both: bool = False
    is_module: bool = False
    direction: str = FORWARD
    is_forward: bool = True
    function: str = ""
    """The function's own name; the class of a module."""
    inputs: Sequence[Row] = ()
    """All that goes in, parameters included."""
    outputs: Sequence[Row] = ()
    is_same: bool = True
    """True if the dumps say the same of it."""
    is_alike: bool = True
    """True if both sides have all of its items, of one dtype and shape, and plain values are the same."""

    def __post_init__(self) -> None:
        self.name = self.record or self.golden_record or ""
        self.is_of_both = self.record is not None and self.golden_record is not None
        if self.parsed is not None:
            self.is_module, self.direction = self.parsed.is_module, self.parsed.direction
            self.is_forward = self.direction == FORWARD
            self.function = intern(self.parsed.base.rpartition(".")[2])
        inputs: list[Row] = []
        outputs: list[Row] = []
        for row in self.rows:
            (inputs if goes_in(row) else outputs).append(row)
            if row.target is not row.golden:
                self.is_same = False
                self.is_alike = self.is_alike and _are_alike(row.target, row.golden)
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)

    @property
    def records(self) -> tuple[str, str]:
        """The records of the target and of the golden run; empty on a side that does not make the call."""
        return self.record or "", self.golden_record or ""


def call_of(index: int, record: str | None, golden_record: str | None, rows: list[Row]) -> Call:
    """The call of a pair of records."""
    return Call(index, record, golden_record, rows, parse(record or golden_record or ""))


def _are_alike(target: Item | None, golden: Item | None) -> bool:
    if target is None or golden is None or target.dtype != golden.dtype or target.shape != golden.shape:
        return False
    return is_one_value(target.value, golden.value)


def is_one_value(one: Any, other: Any) -> bool:
    """True if two plain values are the same, of one type; ``None`` stands for a tensor, and for a missing item."""
    return one is other or (type(one) is type(other) and bool(one == other))


def goes_in(row: Row) -> bool:
    """True if the item goes into its call."""
    item = row.target or row.golden
    return item is not None and (item.state == INPUT or item.state == PARAMETERS)


def is_parameter(row: Row) -> bool:
    """True if the item is a parameter of its module."""
    item = row.target or row.golden
    return item is not None and item.state == PARAMETERS


def is_compared(row: Row) -> bool:
    """True if both sides have a tensor there with as many elements, so that a distance is known."""
    return row.relative_difference is not None


def distance(row: Row) -> float:
    """The distance of the two tensors; 0 where none is known."""
    return row.relative_difference or 0.0


def is_rounded(row: Row) -> bool:
    """True if both tensors have dtypes that round; whole numbers and truth values do not."""
    target, golden = row.target, row.golden
    return target is not None and golden is not None and bool(
        unit_roundoff(target.dtype) and unit_roundoff(golden.dtype)
    )  # fmt: skip


def coarser(row: Row) -> float:
    """The unit roundoff of the coarser of the two dtypes; 0 where none rounds."""
    return max(_units(row), default=0.0)


def of_gradient(call: Call) -> bool:
    """True if the call is a backward, or the gradients of parameters."""
    return call.direction in (BACKWARD, PARAMETERS_GRAD)


# --- measuring


def measure(rows: Sequence[Row], mode: Mode, tables: Tables | None) -> Evidence:
    """Give every row the distance of its two tensors, in `Row.relative_difference`; returns the evidence of most.

    A row without it has no tensors of one size on both sides.

    Args:
        rows: the items of both runs, paired.
        mode: what the runs are compared by.
        tables: the sketches of target and golden run; ``None`` where one has none.
    """
    sketched: list[Row] = []
    has_sketches = False
    for row in rows:
        target, golden = row.target, row.golden
        if target is None or golden is None or row.relative_difference == math.inf:
            # What is not finite in the files of one side alone has been found already.
            continue
        if not (target.is_tensor and golden.is_tensor):
            continue
        if target is golden and mode is not Mode.TENSOR:
            # The dumps say the same of them, sketches included.
            row.relative_difference, has_sketches = 0.0, tables is not None
            continue
        if target.shape != golden.shape and extent(target.shape).elements != extent(golden.shape).elements:
            continue
        exact = _elementwise_distance(row, mode)
        if exact is None and tables is not None:
            sketched.append(row)
        elif exact is not None or are_comparable(target, golden):
            row.relative_difference = relative_difference(target, golden, exact)
    if sketched and tables is not None:
        _measure_sketches(sketched, tables, mode is Mode.CHECKSUM)
    if mode is Mode.TENSOR:
        return Evidence.ELEMENTS
    return Evidence.SKETCH if sketched or has_sketches else Evidence.STATISTICS


def _elementwise_distance(row: Row, mode: Mode) -> float | None:
    """The norm of the difference relative to that of the larger tensor, where their values were compared."""
    if mode is not Mode.TENSOR or not row.metrics or row.golden is None:
        return None
    if SPECIAL_VALUES_DIFFER in row.notes:
        return math.inf
    euclidean, largest = row.metrics[1:3]
    if type(euclidean) is not float and extent(row.golden.shape).elements == 1:
        euclidean = largest  # Of one element no other norm is taken.
    if type(euclidean) is not float:
        return None
    norms = [item.norm for item in (row.target, row.golden) if item is not None and type(item.norm) is float]
    norm = max(filter(math.isfinite, norms), default=0.0)
    return euclidean / norm if norm else (0.0 if not euclidean else None)


def _measure_sketches(rows: Sequence[Row], tables: Tables, gives_norms: bool) -> None:
    """Measure by sketches; beside checksums alone they give the norms, too, which tell what cancels in a result."""
    import numpy as np

    for start in range(0, len(rows), _AT_ONCE):
        part = rows[start : start + _AT_ONCE]
        names = [row.target.name for row in part if row.target], [row.golden.name for row in part if row.golden]
        mine, theirs = (table.sums(of_side).astype(np.float64) for table, of_side in zip(tables, names))
        differences = np.sqrt(np.square(mine - theirs).sum(1))
        norms = [np.sqrt(np.square(of_side).sum(1)) for of_side in (mine, theirs)]
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.where(differences == 0, 0.0, differences / np.maximum(*norms))
        for row, found in zip(part, relative.tolist()):
            row.relative_difference = _settled(row, found)
        for side, of_side in zip(("target", "golden"), norms) if gives_norms else ():
            for row, norm in zip(part, of_side.tolist()):
                item: Item = getattr(row, side)
                if item.norm is None and math.isfinite(norm):
                    item.norm = norm


def _settled(row: Row, of_sketches: float) -> float | None:
    """The distance of two tensors, given that of their sketches, which is NaN where one has none."""
    target, golden = row.target, row.golden
    assert target is not None and golden is not None
    is_usual = of_sketches > 0.0 and target.shape == golden.shape and _is_usual(target) and _is_usual(golden)
    if is_usual and is_rounded(row):
        return of_sketches
    if not are_comparable(target, golden):
        return None if of_sketches != of_sketches else of_sketches
    if of_sketches != of_sketches:
        return relative_difference(target, golden)
    if of_sketches == 0.0 and is_same(target, golden):
        return 0.0
    by_statistics = relative_difference(target, golden)
    if not is_rounded(row):
        return ALTOGETHER if by_statistics or of_sketches else 0.0
    if _has_nonfinite(target) != _has_nonfinite(golden):
        return math.inf
    if any(_is_filled(item) or (of_sketches == 0.0 and _is_left_out(item)) for item in (target, golden)):
        beside = beside_fill_values(target, golden)
        # The fill of a mask would hide everything else.
        return by_statistics if beside is None else min(beside, by_statistics)
    if _is_laid_out_otherwise(target, golden, of_sketches):
        # Statistics do not see an order of axes.
        return min(by_statistics, of_sketches)
    if of_sketches == 0.0:
        # Sums of float32: what is below their digits shows in the statistics, if at all.
        return min(by_statistics, 2.0**-23) if by_statistics == by_statistics else 0.0
    return of_sketches


UNRELATED = 0.7
"""The distance from which on two sketches are of unrelated tensors, or of one in two orders: half of that of two random
tensors of one norm, which is the root of 2."""


def _is_laid_out_otherwise(target: Item, golden: Item, of_sketches: float) -> bool:
    """True if two tensors of other shapes have the same axes in another order, or the same elements, as far as seen.

    Axes that are merged or split alone keep the order of the elements, and a sketch measures these.
    """
    mine, theirs = ([size for size in item.shape or () if size != 1] for item in (target, golden))
    if mine == theirs:
        return False
    if sorted(mine) == sorted(theirs):
        return True
    unit = max(unit_roundoff(target.dtype), unit_roundoff(golden.dtype))
    return of_sketches > UNRELATED and relative_difference(target, golden) <= SAFETY * unit


def _is_usual(item: Item) -> bool:
    """True if nothing in a tensor is infinite, a NaN or the fill of a mask: what nearly all are, told apart fast."""
    largest, least, mean = item.max, item.min, item.mean
    if type(largest) is not float or type(least) is not float:
        return False
    return -_FILL < least < _FILL and -_FILL < largest < _FILL and mean == mean and not item.nonfinite


def _has_nonfinite(item: Item) -> bool:
    """True if an element is a NaN or infinite; where mean and norm alone are, their sums went beyond the dtype."""
    return item.has_nan or any(type(value) is float and math.isinf(value) for value in (item.max, item.min))


def _is_filled(item: Item) -> bool:
    """True if the fill of a mask is among the elements that a sketch adds up; larger ones are left out of it."""
    return any(type(value) is float and _FILL <= abs(value) < LARGEST for value in (item.max, item.min))


def _is_left_out(item: Item) -> bool:
    """True if elements are so large that a sketch leaves them out: what is the same without them may differ in them."""
    return any(type(value) is float and LARGEST <= abs(value) < math.inf for value in (item.max, item.min))


TypePair = tuple[str, str]
"""The dtypes of a tensor in the target and in the golden run, without what frameworks put before them."""


class Precision:
    """The dtypes of two runs: which differ by design, such as a whole run in bfloat16, and which in one place.

    Args:
        rows: the items of both runs.
    """

    _SHARE = 0.1
    """The share of the tensors that makes a pair of dtypes a design, as autocast does,"""
    _FEWEST = 16
    """and how many these are at least. Both are guesses. The pair of most tensors is one in any case."""

    def __init__(self, rows: Iterable[Row]) -> None:
        pairs = Counter(
            (row.target.dtype, row.golden.dtype)
            for row in rows
            if row.target is not None and row.golden is not None and row.relative_difference is not None
        )
        floating: Counter[TypePair] = Counter()
        for (mine, theirs), number in pairs.items():
            if unit_roundoff(mine) and unit_roundoff(theirs):
                floating[plain_name(mine or ""), plain_name(theirs or "")] += number
        most, all_tensors = max(floating.values(), default=0), sum(floating.values())
        many = max(self._FEWEST, self._SHARE * all_tensors)
        self.design: frozenset[TypePair] = frozenset(
            pair for pair, number in floating.items() if number == most or number >= many
        )
        """The pairs of dtypes that are by design, equal ones included."""
        self.shortest: float = _shortest(floating, self._SHARE * all_tensors)
        """The unit roundoff of the shortest dtype that a tenth of the tensors has, on one side at least."""
        self._known: dict[tuple[str | None, str | None], float] = {}
        """The unit roundoff that is expected of two tensors of a pair of dtypes."""

    def is_by_design(self, row: Row) -> bool:
        """True if the dtypes of an item agree, or differ as those of much of the runs do."""
        target, golden = row.target, row.golden
        if target is None or golden is None or target.dtype == golden.dtype:
            return True
        pair = plain_name(target.dtype or ""), plain_name(golden.dtype or "")
        return pair[0] == pair[1] or pair in self.design

    def unit(self, row: Row) -> float:
        """The unit roundoff that an item is expected to have been rounded with.

        Where precision is lost in one place, values of the finer dtype are expected.
        """
        target, golden = row.target, row.golden
        if target is None or golden is None:
            return coarser(row)
        pair = target.dtype, golden.dtype
        found = self._known.get(pair)
        if found is None:
            found = self._known[pair] = (max if self.is_by_design(row) else min)(_units(row), default=0.0)
        return found

    def expected(self, row: Row) -> Item | None:
        """The item of the side that rounds as is expected."""
        target, golden = row.target, row.golden
        if target is None or golden is None or target.dtype == golden.dtype or self.is_by_design(row):
            return golden
        return min((target, golden), key=lambda item: unit_roundoff(item.dtype) or 1.0)


def _units(row: Row) -> list[float]:
    return [unit_roundoff(item.dtype) for item in (row.target, row.golden) if item is not None and item.is_tensor]


def _shortest(floating: Counter[TypePair], many: float) -> float:
    number = 0
    for unit, of_pair in sorted(((max(map(unit_roundoff, pair)), n) for pair, n in floating.items()), reverse=True):
        number += of_pair
        if number >= many:
            return unit
    return 0.0
