"""A number that decides a function of one program has to be among those that the other program takes in that layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from divergence_runs import X, call, tensor
from made_dumps import plain

from probe.common.align.row import Row
from probe.common.dump.reading.records import Record
from probe.compare.answers.other_numbers import OtherNumbers
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.search.runs import Runs
from probe.compare.result import Mode

MODULE, OTHER = "Module.h.ln.Norm.forward.0", "Module.blocks.n.RMS.forward.0"
NORM, ADD, DIV = "Functional.layer_norm.0.forward", "Tensor.__add__.0.forward", "Tensor.__truediv__.0.forward"
SDPA = "Functional.scaled_dot_product_attention.0.forward"


def one_sided(record: str, inputs: list[object], side: int, **keywords: object) -> AlignedCall:
    fields = call([tensor(X), *inputs], tensor(X))
    if keywords:
        fields["input_kwargs"] = {name: plain(value) for name, value in keywords.items()}
    items = Record(record, fields, "dump.json").items()
    rows = [Row(record, *((item, None) if side == 0 else (None, item)), record) for item in items]
    return AlignedCall(record, None, rows) if side == 0 else AlignedCall(None, record, rows)


def reasons(*calls: AlignedCall) -> list[str]:
    modules = AlignedCall(MODULE, OTHER, [])
    trees = (
        {each.record: MODULE for each in calls if each.record},
        {each.golden_record: OTHER for each in calls if each.golden_record},
    )
    runs = Runs([*calls, modules], Mode.STATISTICS, "mix", trees, False)
    return [each.reason for each in OtherNumbers(runs).found()]


def layer_norm(eps: float) -> AlignedCall:
    weights = [tensor(np.float32([1.0, 2.0])), tensor(np.float32([0.0, 1.0]))]
    return one_sided(NORM, [plain(64), *weights, plain(eps)], 0)


def test_an_epsilon_that_the_other_program_adds_is_there() -> None:
    assert reasons(layer_norm(1e-6), one_sided(ADD, [plain(1e-6)], 1)) == []


def test_an_epsilon_that_no_call_of_the_other_program_takes_is_told() -> None:
    said = reasons(layer_norm(0.01), one_sided(ADD, [plain(1e-6)], 1))
    assert said == ["eps is 0.01, and no call in this layer of the golden run takes it"]


@pytest.mark.parametrize("divisor, is_told", [
    (8.0, False), (0.125, False), (64, False), (5.0, True), (0.125**2, True), (0.125**0.5, True),
])  # fmt: skip
def test_a_scale_may_be_a_divisor_or_the_width_of_a_head(divisor: float, is_told: bool) -> None:
    scaled = one_sided(SDPA, [tensor(X), tensor(X)], 0, scale=0.125)
    assert bool(reasons(scaled, one_sided(DIV, [plain(divisor)], 1))) == is_told


@pytest.mark.parametrize("other", [0.25, 4, 2.0, 2**-0.5])
def test_two_numbers_are_no_setting_because_one_is_the_root_of_the_other(other: float) -> None:
    """The width of a head is 64 here, so that 4 is none."""
    scaled = one_sided(SDPA, [tensor(X), tensor(X)], 0, scale=0.5)
    is_divisor = other == 2.0
    assert bool(reasons(scaled, one_sided(DIV, [plain(other)], 1))) != is_divisor
    assert reasons(layer_norm(0.01), one_sided(ADD, [plain(0.1)], 1)) != []


def test_where_the_other_layer_has_no_numbers_nothing_is_known(tmp_path: Path) -> None:
    assert reasons(layer_norm(0.01), one_sided(ADD, [], 1)) == []
