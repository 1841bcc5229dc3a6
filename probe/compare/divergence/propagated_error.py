"""The difference of two runs so far, which the following calls may carry on.

Not everything that goes into a call is recorded, so that what any output before differed by counts for every call.
"""

from __future__ import annotations

import math
from itertools import chain

from probe.common.align.row import Row
from probe.common.dump.naming import is_forward, is_module
from probe.common.dump.reading.items import Shape
from probe.common.dump.reading.records import PARAMETERS, Item
from probe.common.dump.reading.sources import Tree
from probe.common.numerics.error_bounds import ALTOGETHER, SAFETY, beside_fill_values, extent, is_finite, rounding
from probe.common.numerics.formats import unit_roundoff
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import CallDigest, balance, fingerprint, is_input, row_difference
from probe.compare.divergence.peers.random_error import random_error
from probe.compare.divergence.precision import Precision
from probe.compare.result import Mode


class PropagatedError:
    """The facts on the error after the calls so far.

    Args:
        mode: what the runs were compared by.
        tree: the call tree of the target.
        precision: which types differ by design.
        across_frameworks: true if the runs are of two frameworks, which fill masks with
            other numbers.
    """

    def __init__(self, mode: Mode, tree: Tree, precision: Precision, across_frameworks: bool = False) -> None:
        self._across_frameworks = across_frameworks
        self._mode = mode
        self._precision = precision
        self._tree = tree
        self._largest = 0.0
        self.hidden = 0.0
        """The difference that values may have though no statistic shows it."""
        self.reshaped = False
        """True if the number of results of a call depended on values that differed, as that of ``nonzero`` does."""
        self.broken = False
        """True if an output had NaN or an integer on one side that it had not on the other."""
        self._types: set[str | None] = set()
        self._coarsest = 0.0
        """The unit roundoff of the coarsest type so far. Once anything differs, a short type turns the least difference
        into one of its own size, also where it is widened again for a while; and where its statistics are the same,
        values need not be."""
        self._inside: dict[str | None, float] = {}
        """The largest relative difference of an output of a call inside each module."""
        self._outputs: set[int] = set()
        """Fingerprints of the outputs that differ, by which they are recognised as inputs."""
        self._by_shape: dict[Shape | None, list[tuple[float, AlignedCall]]] = {}
        """The balances of these outputs and their calls by shape, for an input that is a multiple of one."""

    # --- what is added

    def add_types(self, digest: CallDigest) -> None:
        """Count in the types of a call."""
        # A type that one side alone uses is a finding and no reason to forgive more.
        if not self._types.issuperset(digest.types):
            self._types.update(digest.types)
            self._coarsest = max(map(unit_roundoff, self._types))

    def add_outputs(self, call: AlignedCall, digest: CallDigest) -> None:
        """Count in the outputs of a call that differs by no more than calls before it."""
        self._add_inside(call, digest.output_difference)
        self._outputs.update(digest.outputs)
        for shape, of_shape in zip(digest.shapes, digest.balances):
            self._by_shape.setdefault(shape, []).append((of_shape, call))

    def add_output(self, call: AlignedCall, target: Item, golden: Item, difference: float, factor: float) -> None:
        """Count in one output.

        Args:
            call: the call that returned it.
            target, golden: the output on both sides.
            difference: its relative difference.
            factor: by how much the call may have increased the relative difference of its inputs.
        """
        self._add_inside(call, difference)
        if difference >= ALTOGETHER:
            self.broken = True
        elif difference < ALTOGETHER:
            self._largest = max(self._largest, difference / factor)
        if difference and target.value is None and golden.value is None:
            self._outputs.add(fingerprint(target, golden))
            self._by_shape.setdefault(golden.shape, []).append((balance(golden), call))

    def add_without_effect(self, target: Item, golden: Item) -> None:
        """Remember an output that differs without effect, so that it is no surprise as an input."""
        self._outputs.add(fingerprint(target, golden))

    def _add_inside(self, call: AlignedCall, difference: float) -> None:
        parent = self._tree.get(call.record or "")
        if difference > self._inside.get(parent, 0.0):
            self._inside[parent] = difference

    # --- what is asked

    @property
    def largest(self) -> float:
        """The largest relative difference of an output so far, with what its call made of it taken out."""
        return max(self._largest, self.hidden)

    def inside(self, call: AlignedCall) -> float:
        """The largest relative difference of an output inside a module."""
        return self._inside.get(call.record, 0.0)

    def difference(self, row: Row) -> float:
        """The relative difference of an item that both sides have; 0 of any other, and of plain values."""
        target, golden = row.target, row.golden
        if target is not None and golden is not None and target.shape != golden.shape and self.reshaped:
            return ALTOGETHER if is_finite(target) == is_finite(golden) else math.inf
        # Plain values are the same or are not; see `Differences.in_kind`.
        if target is None or golden is None or target.value is not None or golden.value is not None:
            return 0.0
        difference = row_difference(row, self._mode)
        if not self._across_frameworks or not difference or not _may_be_masked(row):
            return difference
        beside = beside_fill_values(target, golden)
        return difference if beside is None else beside

    def of_elements(self, row: Row) -> float:
        """The relative difference of an item's elements, as far as it shows, where it has a short type.

        Statistics understate it: a normalisation brings other numbers to the same norm and mean.
        """
        difference, target, golden = self.difference(row), row.target, row.golden
        if self._mode is not Mode.STATISTICS or not difference or target is None or golden is None:
            return difference
        if max(unit_roundoff(target.dtype), unit_roundoff(golden.dtype)) <= unit_roundoff("float32"):
            return difference
        return max(difference, random_error(target, golden) or 0.0)

    def roundoff(self, target: Item, golden: Item) -> float:
        """The unit roundoff that an item may have been rounded with."""
        known = self._mode is Mode.TENSOR and not self.largest
        own = unit_roundoff(target.dtype), unit_roundoff(golden.dtype)
        if target.dtype != golden.dtype and self._precision.is_loss(target.dtype, golden.dtype):
            return max(min(own), 0.0 if known else self._coarsest)
        if target.dtype != golden.dtype:
            self._coarsest = max(self._coarsest, self._precision.coarsest)
        return max(*own, 0.0 if known else self._coarsest)

    def allowed_of_unrecorded(self, target: Item, golden: Item) -> float:
        """The relative difference that is explained of an input that no recorded call returned.

        It may be a view, or at L0 what functions return.
        """
        roundoff = self.roundoff(target, golden) or unit_roundoff("float32")
        return max(SAFETY * self.largest, rounding(extent(golden.shape).longest, roundoff))

    def was_output(self, target: Item, golden: Item) -> bool:
        """True if an output of an earlier call was the same on both sides, where it was judged.

        It may differ by much: what cancellation left of two near numbers.
        """
        return fingerprint(target, golden) in self._outputs

    def is_multiple_of_output(self, target: Item, golden: Item) -> bool:
        """True if an input is, on both sides, an earlier output times the same number.

        A function that returns nothing may have scaled it, as gradients are clipped.
        """
        allowed = SAFETY * self.roundoff(target, golden)
        # A multiple has the same balance up to 4 times what its statistics may be off.
        own_balance, most = balance(golden), 5 * allowed
        calls = [call for other, call in self._by_shape.get(golden.shape, ()) if abs(other - own_balance) <= most]
        for earlier in chain.from_iterable(call.rows for call in calls):
            if is_input(earlier) or earlier.golden is None or earlier.golden.shape != golden.shape:
                continue
            if not self.difference(earlier):
                continue
            factors = _factor(target, earlier.target, allowed), _factor(golden, earlier.golden, allowed)
            if all(factors) and abs(factors[0] / factors[1] - 1.0) <= allowed:
                return True
        return False


def _may_be_masked(row: Row) -> bool:
    """True if an item may have a mask in it: neither a gradient nor a parameter, nor what a layer returns."""
    if not is_forward(row.record) or row.golden is None or row.golden.state == PARAMETERS:
        return False
    return is_input(row) or not is_module(row.record)


def _factor(item: Item, earlier: Item | None, allowed: float) -> float:
    """The factor between `earlier` and `item`; 0 if statistics contradict one, or do not tell."""
    if earlier is None:
        return 0.0
    values, before = ((each.max, each.min, each.mean, each.norm) for each in (item, earlier))
    if not all(type(value) is float and math.isfinite(value) for value in (*values, *before)):
        return 0.0
    # Not the norm: of the smallest values it is 0, because their squares are.
    largest, index = max((abs(value), index) for index, value in enumerate(before[:2]))
    factor = values[index] / before[index] if largest else 0.0
    size = max(abs(values[0]), abs(values[1]))
    agree = all(abs(x - factor * y) <= allowed * size for x, y in zip(values[:3], before))
    return factor if agree and abs(values[3] - factor * before[3]) <= allowed * values[3] else 0.0
