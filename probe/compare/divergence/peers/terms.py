"""The growth of the relative error of inputs in the result of a forward call, as a random walk makes it.

Terms that cancel leave a small result, which has their rounding errors. A result may as well be small because weights
or gates are, and then errors are as small. So terms are what is added up: what goes in, times the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from probe.common.dump.naming import FORWARD, ParsedName
from probe.common.dump.reading.records import INPUT, PARAMETERS, Item
from probe.common.numerics.error_bounds import extent, rms
from probe.common.numerics.formats import unit_roundoff
from probe.common.operations.function import DOT_PRODUCT, Function, Trait
from probe.common.operations.lookup import function
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input

_OF_GATES = 0.5
"""The share of a change of a state that gates let through, relative to what the weights make of it.

A gate is a half where its argument is 0, and its slope there is a quarter: with the input gate i, the candidate g and
the state c, ``(i g' + g i' + c f') o + tanh(c) o'`` is at most about ``0.5 (0.5 + 0.25 + 0.25) = 0.5``.
"""
_MOST_GROWTH = 1e6
"""The growth from which on a bound decides nothing: it makes 6 % of the unit roundoff of float32."""


def growth(
    call: AlignedCall, parsed: ParsedName, result: Item, size: float, scale: float, inside: Sequence[Item] | None
) -> float:
    """The ratio of the relative error of a result to that of the inputs; 1 where no terms cancel.

    Args:
        call: the call, a forward.
        parsed: its name in the target.
        result: the result on the golden side.
        size: its root mean square, the larger one of both sides.
        scale: the largest root mean square of what goes in, parameters left out.
        inside: the results of the calls that it makes itself, as far as they are recorded; ``None`` if none is.
    """
    known = _function(parsed)
    if not size:
        return 1.0
    given = [row.golden for row in call.rows if is_input(row) and row.golden is not None]
    floats = [item for item in given if item.is_tensor and unit_roundoff(item.dtype)]
    if known.has(Trait.RECURRENT):
        return _of_recurrence(call, known.has(Trait.GATED), floats, size)
    if inside is not None:
        return _of_calls(floats, inside, result, size)
    if known.rounding == DOT_PRODUCT:
        return max(1.0, _of_product(floats, result) / size)
    if known.has(Trait.WEIGHS):
        return _of_mean(floats, size)
    is_series = parsed.is_module or known.has(Trait.MULTIPLIES)
    gains = [_gain(each) for each in floats if is_series and _is_matrix(each, parsed.is_module)]
    return max(1.0, scale * math.prod(min(1.0, each) for each in gains) / size)


def share_of_terms(parsed: ParsedName, item: Item, results: Sequence[Item]) -> float:
    """The share of a result's error that the error of an input makes: a small bias adds little, whatever its error."""
    is_bias = is_product(parsed) or "bias" in item.name.rpartition(".")[2]
    size = max(map(rms, results), default=0.0)
    if parsed.direction != FORWARD or not is_bias or len(item.shape or ()) != 1 or not size:
        return 1.0
    return min(1.0, rms(item) / size)


def _of_calls(given: Sequence[Item], inside: Sequence[Item], result: Item, size: float) -> float:
    """The growth in a call whose result is made of what other calls return; what cancels, another of its size does."""
    elements = extent(result.shape).elements
    terms = [rms(item) for item in (*given, *inside) if extent(item.shape).elements == elements]
    return max(1.0, sorted(terms)[-2] / size) if len(terms) > 1 else 1.0


def _of_mean(given: Sequence[Item], size: float) -> float:
    """The growth in attention: a mean of the values, with weights that exponentials of the scores make."""
    sizes = [rms(item) for item in given]
    of_largest = max(1.0, max(sizes, default=0.0) / size)
    if len(sizes) < 3:
        return of_largest
    query, key, value = sizes[:3]
    return min(of_largest, max(1.0, query * key) * max(1.0, value / size))


def is_product(parsed: ParsedName) -> bool:
    """True if a call is a matrix product."""
    return _function(parsed).rounding == DOT_PRODUCT


def _function(parsed: ParsedName) -> Function:
    """The function that a call computes; a module of the framework is called as its function is."""
    name = parsed.base.rpartition(".")[2]
    return function(name.lower() if parsed.is_module else name)


def _is_matrix(item: Item, of_module: bool) -> bool:
    """True if an item is a matrix of weights: a parameter of a module, or a tensor of two dimensions of a function."""
    dimensions = len(item.shape or ())
    return item.state == PARAMETERS and dimensions > 1 if of_module else dimensions == 2


def _gain(matrix: Item) -> float:
    """The ratio of the size of a product with a matrix to that of the vector, if the elements have random signs."""
    shape = matrix.shape or (1,)
    # The last dimension is summed up, with those of a kernel; of the transposed form, the first one is.
    return rms(matrix) * math.sqrt(max(extent(shape[1:]).elements, shape[0]))


def _of_product(operands: Sequence[Item], result: Item) -> float:
    """The size of a sum of products whose terms have random signs, and of what is added to it."""
    sizes = sorted((rms(item), extent(item.shape).elements) for item in operands if len(item.shape or ()) > 1)
    others = [rms(item) for item in operands if len(item.shape or ()) < 2]
    if len(sizes) < 2:
        return max((size for size, _ in sizes), default=0.0)
    (one, elements), (other, more) = sizes[-2:]
    summed = math.sqrt(elements * more / max(1, extent(result.shape).elements))
    return math.hypot(one * other * math.sqrt(max(1.0, summed)), *others)


def _of_recurrence(call: AlignedCall, is_gated: bool, operands: Sequence[Item], size: float) -> float:
    """The growth over the steps of a recurrent layer, each of which carries on a share of the error before it.

    Without gates the slope of tanh is ``1 - h^2`` for a state h, the square of which is at most that on average.
    """
    outputs = [row.golden for row in call.rows if not is_input(row) and row.golden is not None]
    widths = {(item.shape or (0,))[-1] for item in outputs if item.is_tensor}
    matrices = [item for item in operands if len(item.shape or ()) == 2 and (item.shape or (0,))[-1] in widths]
    weights = [item for item in matrices if (item.shape or (0,))[0] % (item.shape or (1,))[-1] == 0]
    carried = max((rms(item) * math.sqrt((item.shape or (1,))[-1]) for item in weights), default=1.0)
    carried *= _OF_GATES if is_gated else math.sqrt(max(0.0, 1.0 - min(size, 1.0) ** 2))
    steps = max((size for item in operands if item.state == INPUT for size in _steps(item)), default=1)
    square = carried * carried
    if square == 1.0:
        return math.sqrt(steps)
    if square > 1.0 and steps * math.log(square) > 2 * math.log(_MOST_GROWTH):
        return _MOST_GROWTH
    return math.sqrt((1.0 - square**steps) / (1.0 - square))


def _steps(item: Item) -> Sequence[int]:
    """The dimensions of an input that may be its steps: those before the last of a sequence, with or without batch."""
    shape = item.shape or ()
    return shape[:-1] if len(shape) == 3 else ()
