"""Gradients of one number, whose terms may cancel, in two programs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from divergence_runs import backward, call, tensor

from probe.common.align.row import Row
from probe.common.dump.reading.records import Record
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.search.runs import Runs
from probe.compare.divergence.two_programs.regions import Regions
from probe.compare.divergence.two_programs.scalar_gradients import ScalarGradients
from probe.compare.result import Mode

_RANDOM = np.random.default_rng(5)
FACTOR, GRADIENT = (_RANDOM.normal(size=(16, 16)) for _ in range(2))
SCALE = np.float64(0.5)
PRODUCT = "Tensor.__mul__.0"


def judged(of_scale: float, one_program: bool = False) -> tuple[ScalarGradients, dict[str, Row]]:
    """A product with a number, of which the gradient is `of_scale`, on both sides; and the rows of its backward."""
    records: dict[str, Any] = {
        f"{PRODUCT}.forward": call([tensor(FACTOR), tensor(SCALE)], tensor(FACTOR * SCALE)),
        f"{PRODUCT}.backward": backward([tensor(GRADIENT)], tensor(GRADIENT * SCALE), tensor(np.float64(of_scale))),
    }
    calls = []
    for name, fields in records.items():
        items = Record(name, fields, "dump.json").items()
        calls.append(AlignedCall(name, name, [Row(name, item, item, name) for item in items]))
    trees = dict.fromkeys(records), dict.fromkeys(records)
    rows = {row.target.name[len(f"{PRODUCT}.backward.") :]: row for row in calls[1].rows if row.target is not None}
    regions = None if one_program else Regions([row for each in calls for row in each.rows], list(records), trees)
    return ScalarGradients(Runs(calls, Mode.STATISTICS, "mix", trees, one_program, regions=regions)), rows


@pytest.mark.parametrize("of_scale", [0.25, 1e-3])
def test_the_terms_of_a_gradient_that_cancels_are_larger_than_it(of_scale: float) -> None:
    gradients, rows = judged(of_scale)
    # The norm of independent products, taken in float64.
    terms = math.sqrt(np.square(FACTOR).sum() * np.square(GRADIENT).sum() / FACTOR.size)
    assert gradients.terms_of(rows["output.1"]) == pytest.approx(terms / of_scale, rel=1e-4)
    assert terms == pytest.approx(np.linalg.norm(FACTOR * GRADIENT), rel=0.2)


def test_a_gradient_as_large_as_its_terms_is_allowed_no_more() -> None:
    gradients, rows = judged(float(np.abs(FACTOR * GRADIENT).sum()))
    assert gradients.terms_of(rows["output.1"]) == 1.0


def test_other_gradients_and_those_of_one_program_are_allowed_no_more() -> None:
    gradients, rows = judged(1e-3)
    assert gradients.terms_of(rows["output.0"]) == 1.0
    gradients, rows = judged(1e-3, one_program=True)
    assert gradients.terms_of(rows["output.1"]) == 1.0
