"""The distance that a call explains by the distance of its inputs and its type, and by what similar calls have.

The relative error of a result is at most the condition of the operation times that of the inputs, and what rounding
adds (see `probe.common.numerics.error_bounds`). The distances of inputs are measured, so that nothing is propagated
from call to call.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import msgspec

from probe.common.align.calls import Row
from probe.common.align.operations import layer_kind
from probe.common.dump.naming import BACKWARD, FORWARD, PARAMETERS_GRAD, ParsedName
from probe.common.dump.reading.records import INPUT, Item
from probe.common.numerics.error_bounds import (
    CONFIDENCE,
    GRADIENT,
    Terms,
    approximation,
    condition,
    condition_of_product,
    explained,
    extent,
    relative_difference,
    rms,
    rounding,
)
from probe.common.numerics.formats import unit_roundoff
from probe.common.operations.function import DOT_PRODUCT, Trait
from probe.common.operations.lookup import function
from probe.compare.verdict.facts import UNRELATED, Call, distance, is_parameter
from probe.compare.verdict.two_runs import TwoRuns


def error_of_partial_sums(parsed: ParsedName, target: Item, golden: Item, count: int, scale: float) -> float:
    """The relative error of a gradient whose kernel rounds each partial sum; 0 if its kernel rounds the sum alone.

    n terms of rms s and random sign have partial sums P_k of rms sqrt(k) s. Each is rounded, which adds an error of
    u |P_k| / sqrt(3) at most, with the unit roundoff u. Independent errors add up to u s n / sqrt(6), so that

        e = u sqrt(n / 6) (s sqrt(n) / S)

    is their size relative to the sum S. If terms cancel, S is below s sqrt(n) and the last factor is their condition.
    If terms have a common part, S is r = S / (s sqrt(n)) times as large as chance makes it, and partial sums are too,
    so that the last factor is 1. But runs of r^2 equal terms give such a sum as well: those of a mean over places are.
    The roundings of one run go in one direction, as they add the same number to nearly the same sum. They add up as
    r^2 each, and the last factor is r.

    Measured with `layer_norm` of PyTorch 2.13 in bfloat16, as the largest of several draws: 1.9e-2, 6.2e-2 and 2.1e-1
    over 128, 2,048 and 16,384 rows of random signs, where this gives 1.8e-2, 7.2e-2 and 2.0e-1; 0.13, 0.13, 0.12 and
    0.42 over 4 runs of 49, 8 of 49, 4 of 64 and 4 of 196 equal rows, where this gives 0.16, 0.22, 0.20 and 0.62.

    Args:
        parsed: the name of the call.
        target, golden: the gradient on both sides. The shorter type of both counts.
        count: the number of elements of the gradient that came back to the call.
        scale: their root mean square.
    """
    elements, size = extent(golden.shape).elements, rms(golden)
    roundoff = max(unit_roundoff(target.dtype), unit_roundoff(golden.dtype))
    if roundoff <= unit_roundoff("float32") or not elements or count <= elements or not _may_round(parsed, golden):
        return 0.0
    rows = count / elements
    by_chance = scale * math.sqrt(rows)
    if not size or not by_chance:
        return 0.0
    return roundoff * math.sqrt(rows / 6.0) * max(1.0, size / by_chance, by_chance / size)


def _may_round(parsed: ParsedName, gradient: Item) -> bool:
    """True if a kernel may round the partial sums of a gradient."""
    if is_known_to_round(parsed):
        return True
    if not parsed.is_module or parsed.direction != PARAMETERS_GRAD:
        return False
    name = parsed.base.rpartition(".")[2]
    # The parameters of norms have one dimension. The gradient of a matrix is a product.
    return layer_kind(name) is None and sum(size > 1 for size in gradient.shape or ()) == 1


def is_known_to_round(parsed: ParsedName) -> bool:
    """True if the table of functions says of a gradient that its kernel rounds partial sums."""
    name = parsed.base.rpartition(".")[2]
    if not parsed.is_module:
        return parsed.direction == BACKWARD and _sums_rows(name)
    return parsed.direction == PARAMETERS_GRAD and (_sums_rows(name) or _sums_rows(name.lower()))


def _sums_rows(name: str) -> bool:
    """True if a function rounds partial sums of rows; products, which round those of whole images, do not."""
    known = function(name)
    return known.has(Trait.ROUNDS_GRADIENTS_EARLY) and known.rounding != DOT_PRODUCT


# --- bounds


class Given(NamedTuple):
    """The values that a call computes its results from."""

    function: str
    """The name under which the condition of the operation is known; `GRADIENT` of a backward, empty of a module."""
    terms: Terms
    rows: Sequence[Row]
    """The inputs; of a backward those of its forward, too."""

    @property
    def distance(self) -> float:
        """The largest distance of anything that goes in."""
        return self.terms.error


def given(runs: TwoRuns, call: Call, only: list[Row] | None = None) -> Given:
    """Find what a call computes its results from: a backward and the gradients of parameters have more than their own.

    Args:
        runs: the runs.
        call: the call.
        only: those of its inputs that count; all if ``None``.
    """
    terms = Terms()
    rows: Sequence[Row] = call.inputs if only is None else only
    for row in rows:
        _add(runs, terms, row)
    if call.is_forward:
        return Given("" if call.is_module else call.function, terms, rows)
    backward = runs.in_direction(call, BACKWARD) if call.direction == PARAMETERS_GRAD else None
    for row in () if backward is None else backward.inputs:
        _add(runs, terms, row)
        rows = [*rows, row]
    forward = runs.in_direction(call, FORWARD)
    kept = () if forward is None else forward.inputs
    for row in kept:
        item = runs.precision.expected(row)
        if item is not None:
            terms.add_kept(item, distance(row))
    return Given(GRADIENT, terms, [*rows, *kept])


def _add(runs: TwoRuns, terms: Terms, row: Row) -> None:
    item, apart = runs.precision.expected(row), row.relative_difference or 0.0
    if item is None:
        return
    # What precision that is lost in this place has changed is to be seen, and not to be excused.
    if not runs.precision.is_by_design(row) or (is_parameter(row) and is_reordered(runs, row)):
        apart = 0.0
    (terms.add if item.state == INPUT else terms.add_operand)(item, apart)


def is_reordered(runs: TwoRuns, row: Row, explained: float = 0.0) -> bool:
    """True if two programs hold the elements of a parameter in another order, such as transposed.

    What the layer returns tells whether it takes them in that order.

    Args:
        runs: the runs.
        row: the tensor.
        explained: the distance that is explained of a result.
    """
    if runs.same_names or row.target is None or row.golden is None or distance(row) < UNRELATED:
        return False
    return relative_difference(row.target, row.golden) <= max(explained, rounding(1.0, runs.precision.unit(row)))


class Bound(msgspec.Struct, gc=False):
    """The distance of one output that is explained."""

    rounding: float
    """The distance that the call's own rounding makes."""
    explained: float
    """The distance that its inputs and its rounding make at most."""
    condition: float
    """By how much the terms that the output is made of are larger than it, so that their errors are."""
    of_kernel: float = 0.0
    """The distance that a kernel makes which rounds the partial sums of its result."""


def bound(runs: TwoRuns, call: Call, of: Given, row: Row, inside: float = 0.0, shortest: float = 0.0) -> Bound:
    """Bound the distance of an output.

    Args:
        runs: the runs.
        call: the call.
        of: what it computes from.
        row: the output.
        inside: the largest distance of what calls inside of a module return, which are judged themselves.
        shortest: the unit roundoff of the coarsest dtype that may have taken part unseen.
    """
    target, golden = row.target, row.golden
    assert target is not None and golden is not None
    terms, count, size = of.terms, extent(golden.shape).elements, max(rms(target), rms(golden))
    roundoff = max(
        terms.roundoff, runs.precision.unit(row), shortest, runs.product_roundoff if _may_be_product(of) else 0.0
    )
    of_parameter = call.direction == PARAMETERS_GRAD or (of.function == GRADIENT and count < terms.count)
    factor = condition(of.function, terms, count, size)
    factor = max(factor, condition_of_product(of.function, terms, count, size, of_parameter))
    own = rounding(terms.summed(count), roundoff)
    if runs.across_frameworks:
        own = max(own, approximation(call.function))
    error, of_kernel = max(terms.error, inside), 0.0
    found = explained(error, factor, own)
    if call.parsed is not None and not call.is_forward:
        of_kernel = CONFIDENCE * error_of_partial_sums(call.parsed, target, golden, terms.count, terms.scale)
        own, found = max(own, of_kernel / factor), math.hypot(found, of_kernel)
    return Bound(factor * own, found, factor, of_kernel)


def _may_be_product(of: Given) -> bool:
    return of.function in ("", GRADIENT) or bool(of.terms.operands[1] > 1)


# --- likeness


FEWEST = 3
"""The number of other members that tell what is usual; a guess: two have no median that one fault spares."""
FACTOR = 4.0
"""The factor that right members leave their like by: 3.6 in 43 pairs of deep networks in two precisions, where faults
reach 8 to 1,200. The smallest whole number above it."""
_INDEX = re.compile(r"\.\d+(?=\.|$)")


class Judged(msgspec.Struct, gc=False):
    """One value whose distance is judged."""

    key: Hashable
    distance: float
    given: float
    """The largest distance of what it is made from."""
    floor: float
    """The distance that rounding makes, below which no member is taken for more exact."""


class Usual(NamedTuple):
    """The usual distance of a value, by its like."""

    expected: float
    """The distance that its like would have."""
    others: int

    @property
    def limit(self) -> float:
        """The distance beyond which a value leaves its like."""
        return FACTOR * self.expected


class Likeness:
    """Groups of values that are alike, and what is usual in each.

    Args:
        values: all values that are judged.
    """

    def __init__(self, values: Iterable[Judged]) -> None:
        self._groups: dict[Hashable, _Group] = {}
        for value in values:
            # What is not finite on one side has no usual size.
            if max(value.distance, value.given) < math.inf:
                self._groups.setdefault(value.key, _Group()).values.append(value)

    def usual(self, value: Judged) -> Usual | None:
        """Tell what is usual of a value by its like; ``None`` where there are too few."""
        group = self._groups.get(value.key)
        if group is None or len(group.values) <= FEWEST or max(value.distance, value.given) == math.inf:
            return None
        own = _median_without(group.own, _own(value))
        carry = max(1.0, _median_without(group.carries(own), _carry(value, own)))
        return Usual(carry * math.hypot(value.given, own), len(group.values) - 1)

    def is_shared(self, value: Judged) -> bool:
        """True if the like of a value is as far apart: it is how the two programs compute."""
        group = self._groups.get(value.key)
        distances = [] if group is None else group.distances
        return len(distances) > 1 and FACTOR * _median_without(distances, value.distance) >= value.distance


class _Group:
    """Values that are alike, with what is asked of them in order of size: each is held against all others."""

    def __init__(self) -> None:
        self.values: list[Judged] = []
        self._carries: dict[float, list[float]] = {}

    @cached_property
    def own(self) -> list[float]:
        return sorted(map(_own, self.values))

    @cached_property
    def distances(self) -> list[float]:
        return sorted(value.distance for value in self.values)

    def carries(self, own: float) -> list[float]:
        """The share of the distance of an input that each passes on, if its own rounding is `own`."""
        found = self._carries.get(own)
        if found is None:
            found = self._carries[own] = sorted(_carry(value, own) for value in self.values)
        return found


def _median_without(values: Sequence[float], one: float) -> float:
    """The median of some numbers in order of size, of which one is left out."""
    left_out, others = bisect_left(values, one), len(values) - 1
    middle = [values[at + (at >= left_out)] for at in ((others - 1) // 2, others // 2)]
    return middle[0] if others % 2 else (middle[0] + middle[1]) / 2


def _carry(value: Judged, own: float) -> float:
    return value.distance / math.hypot(value.given, own)


def _own(value: Judged) -> float:
    return max(math.sqrt(max(0.0, value.distance**2 - value.given**2)), value.floor)


def role(runs: TwoRuns, call: Call, suffix: str) -> Hashable:
    """The key of calls that are alike: the place in the model but for the numbers of layers, and what is judged."""
    if call.parsed is None:
        return call.name, suffix
    if call.is_module:
        return _without_numbers(call.parsed.base), call.direction, suffix
    around = _without_numbers(runs.parent(call) or "")
    return around, call.parsed.base, call.direction, _position(runs, call), suffix


@lru_cache(maxsize=1024)
def _without_numbers(name: str) -> str:
    return _INDEX.sub(".#", name)


def _position(runs: TwoRuns, call: Call) -> int:
    """The position of a function's call among those of the same function in its module."""
    return runs.positions.get(call.index, 0)
