"""The layer from which on all values of two programs are further apart than before, in a short type.

Statistics tell the relative error of one tensor within a factor of three, so that what one layer returns says little,
and what the pass returns says no more. The median of many layers says more. Rounding adds to the errors layer by layer,
and does not raise them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.peers.leaving import FEWEST
from probe.compare.divergence.two_programs.following import Outcome
from probe.compare.divergence.two_programs.frontier import Layer, layers_of
from probe.compare.divergence.two_programs.held_values import SPREAD
from probe.compare.divergence.two_programs.regions import Regions

_NEAR = 8
"""The number of layers on either side of one that count, about those of one block of a transformer."""
_RISE = SPREAD
"""The ratio of the two medians from which on rounding is no explanation.

Of 64 right runs of 13 pairs of packages, with 2 to 12 layers and several weights, the largest is 2.3. Of 7 faults that
nothing else showed by name, the smallest is 3.5.
"""


class Rise(NamedTuple):
    """A rise of the relative errors."""

    layer: Layer
    """The first layer behind it."""
    before: float
    """The median of the relative errors of layers before it."""
    behind: float
    """The one of layers behind it."""


def rise(calls: Sequence[AlignedCall], regions: Regions) -> Rise | None:
    """The largest rise that rounding does not explain; ``None`` if there is none, or if types are not short."""
    if not regions.is_coarse:
        return None
    layers = [each for each in layers_of(calls, regions) if not _is_of_another_form(each, regions)]
    errors = [each.error for each in layers]
    found = [
        Rise(layers[index], median(errors[max(0, index - _NEAR) : index]), median(errors[index : index + _NEAR]))
        for index in range(_NEAR, len(layers) - FEWEST + 1)
    ]
    largest = max(found, key=lambda each: each.behind / each.before, default=None)
    return None if largest is None or largest.behind <= _RISE * largest.before else largest


def _is_of_another_form(layer: Layer, regions: Regions) -> bool:
    """True if the other program has a part of a result elsewhere, such as its bias: values agree further down."""
    if layer.error <= regions.shows_from or layer.row.target is None:
        return False
    return regions.outcome(layer.call, layer.row.target.name, layer.error).outcome is Outcome.AGREES
