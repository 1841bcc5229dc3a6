"""Which values that are not finite are a fault."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import pytest
from made_dumps import call, plain, tensor

from probe.collect.describing.suspects import Suspects, is_finite
from probe.collect.sinks.ring.judgement import FirstRecord, Frame, Judgement
from probe.collect.sinks.ring.norm_history import NormHistory
from probe.collect.sinks.ring.step_ring import StepRing
from probe.common.callstack import CallStacks

NAN, INF = math.nan, math.inf


def fine() -> dict[str, Any]:
    return tensor(1.0, 0.0)


def entries(value: Any) -> list[Any]:
    if isinstance(value, dict) and "Max" in value:
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [entry for each in values for entry in entries(each)]


def judged(**records: dict[str, Any]) -> Judgement:
    """Records by their names with ``__`` in the place of dots."""
    judgement = Judgement()
    frames = [
        Frame(name.replace("__", "."), order, -1, None, order, 0, fields)
        for order, (name, fields) in enumerate(records.items())
    ]
    suspects = [entry for fields in records.values() for entry in entries(fields) if not is_finite(entry)]
    judgement.look_at(frames, suspects)
    judgement.end()
    return judgement


@pytest.mark.parametrize("bad", [tensor(NAN, NAN), tensor(INF, 0.0), tensor(1.0, -INF), tensor(INF, -INF)], ids=str)
@pytest.mark.parametrize("outputs", [lambda bad: [bad], lambda bad: [fine(), [bad]], lambda bad: {"values": bad}])
def test_what_a_call_makes_of_finite_values_is_found(bad: Any, outputs: Any) -> None:
    found = judged(Torch__div__0__forward=call([fine()], [fine()]), Torch__div__1__forward=call([fine()], outputs(bad)))
    assert found.first == FirstRecord("Torch.div.1.forward", "output")


def test_gradients_are_told_apart() -> None:
    found = judged(
        Torch__sqrt__0__backward={"input": [fine()], "output": [tensor(INF, 0.0)]},
        Module__a__Linear__parameters_grad__0={"weight": [tensor(NAN, NAN)]},
    )
    assert found.first == FirstRecord("Torch.sqrt.0.backward", "output")
    found.leave_out_backward()
    assert found.first is None
    gradient = judged(Module__a__Linear__parameters_grad__0={"weight": [tensor(NAN, NAN)]}).first
    assert gradient == FirstRecord("Module.a.Linear.parameters_grad.0", "gradient")


def test_a_parameter_is_found() -> None:
    record = call([fine()], [fine()], parameters={"weight": tensor(INF, 0.0)})
    assert judged(Module__a__Linear__forward__0=record).first == FirstRecord("Module.a.Linear.forward.0", "parameters")


MASK = tensor(1.0, -INF)
USED = {"Torch__exp__0__forward": call([MASK], [fine()]), "Torch__sum__0__forward": call([fine()], [fine()])}
"""Finite values are made of a mask."""


@pytest.mark.parametrize(
    "records",
    [
        {"Tensor__masked_fill__0__forward": call([fine(), fine(), plain(-INF)], [MASK])},
        {
            "Torch__full__0__forward": call([plain(-INF)], [tensor(-INF, -INF)]),
            "Torch__triu__0__forward": call([tensor(-INF, -INF)], [MASK]),
            "Torch__softmax__0__forward": call([MASK], [fine()]),
            "Module__mask__Mask__forward__0": call([fine()], [MASK]),
        },
        {"Tensor__add__0__forward": call([fine(), MASK], [MASK])},
        {"Torch__log__0__forward": call([fine()], [MASK]), **USED},
        {"Tensor.log_.0.forward": call([fine()], [MASK]), **USED},
        {"Torch__slogdet__0__forward": call([fine()], [fine(), MASK]), **USED},
        {"Primitive__act__Log__0__forward": call([fine()], [MASK]), **USED},
        {"Tensor__diagonal__0__forward": call([tensor(NAN, NAN)], [tensor(NAN, NAN)])},
        {"Torch__where__0__forward": call([fine(), fine(), plain(INF)], [tensor(INF, 0.0)])},
        {"Tensor.fill_.0.forward": call([tensor(NAN, NAN), plain(0.0)], [fine()])},
        {"Tensor__view__0__forward": call([tensor(NAN, NAN)], [tensor(NAN, NAN)])},
        {"Torch__empty__0__forward": call([], [tensor(NAN, NAN)])},
        {"Torch__isnan__0__forward": call([tensor(NAN, NAN)], [fine()])},
        {"Torch__where__0__forward": call([fine(), fine(), tensor(NAN, NAN)], [fine()])},
    ],
    ids=lambda records: next(iter(records)),
)
def test_what_is_asked_for_or_of_no_consequence_is_not(records: Any) -> None:
    assert judged(**records).first is None


def test_what_comes_of_a_mask_is_found() -> None:
    found = judged(
        Tensor__masked_fill__0__forward=call([fine(), fine(), plain(-INF)], [tensor(-INF, -INF)]),
        Torch__softmax__0__forward=call([tensor(-INF, -INF)], [tensor(NAN, NAN)]),
    )
    assert found.first == FirstRecord("Torch.softmax.0.forward", "output")


def test_an_infinity_of_a_logarithm_is_found_where_the_forward_ends_with_it() -> None:
    found = judged(Torch__log__0__forward=call([fine()], [MASK]))
    assert found.first == FirstRecord("Torch.log.0.forward", "output")


def test_data_that_is_not_finite_is_found_where_it_came_in_once_something_is_computed_of_it() -> None:
    handed_on = {"Tensor__view__0__forward": call([tensor(NAN, NAN)], [tensor(NAN, NAN)])}
    assert judged(**handed_on).first is None
    found = judged(**handed_on, Torch__matmul__0__forward=call([tensor(NAN, NAN), fine()], [tensor(NAN, NAN)]))
    assert found.first == FirstRecord("Tensor.view.0.forward", "input")


def test_an_index_that_a_nan_decides_is_computed_of_it() -> None:
    found = judged(Torch__argmax__0__forward=call([tensor(NAN, NAN)], [fine()]))
    assert found.first == FirstRecord("Torch.argmax.0.forward", "input")


# --- gradient norms


def test_a_score_needs_enough_values() -> None:
    history = NormHistory()
    assert [history.score(1.0) for _ in range(16)] == [None] * 16
    assert history.score(1.0) == 0


def test_a_score_is_robust() -> None:
    history = NormHistory()
    for value in range(32):
        history.score(100.0 if value % 8 == 3 else 1.0 + value % 3 / 10)
    low, high = history.score(1.2), history.score(3.0)
    assert low is not None and abs(low) < 2 and high is not None and high > 10


@pytest.mark.parametrize(("value", "at_least"), [(1.001, 0.05), (1.5, 40)])
def test_values_that_hardly_differ_have_no_outliers_but_real_ones(value: float, at_least: float) -> None:
    history = NormHistory()
    for _ in range(20):
        history.score(1.0)
    score = history.score(value)
    assert score is not None and at_least < score < at_least * 3


def test_what_is_made_of_a_gradient_belongs_to_the_backward_pass_where_that_may_overflow() -> None:
    bad = tensor(NAN, NAN)
    records = {
        "Torch__sqrt__0__backward": {"input": [fine()], "output": [tensor(INF, 0.0)]},
        "Torch__mul__0__forward": call([tensor(INF, 0.0)], [bad]),
    }
    found = judged(**records)
    assert found.first == FirstRecord("Torch.sqrt.0.backward", "output")
    found.leave_out_backward()
    assert found.first is None
    # What comes of nothing that was given is a fault of its own.
    found = judged(**records, Torch__log__0__forward=call([fine()], [bad]))
    found.leave_out_backward()
    assert found.first == FirstRecord("Torch.log.0.forward", "output")
    assert judged(Torch__mul__0__forward=call([tensor(INF, 0.0)], [bad])).first is not None


class NothingPending:
    def pending(self) -> int:
        return 0


def ring_of(most: int, bad: Collection[int], records: int) -> StepRing:
    """A ring that has got `records` records, of which those of the numbers `bad` return a NaN."""
    suspects = Suspects()
    ring = StepRing(0, most, NothingPending(), suspects, CallStacks())  # type: ignore[arg-type]
    for number in range(records):
        entry = tensor(NAN, NAN) if number in bad else fine()
        if number in bad:
            suspects.add(entry)
        ring.add(Frame(f"Torch.neg.{number}.forward", 0, -1, None, number, 0, call([fine()], [entry])))
    return ring


class Folder:
    """Takes the place of a folder, and keeps the records' numbers."""

    def __init__(self) -> None:
        self.journal = self
        self.numbers: list[int] = []

    def record(self, name: str, *_: Any) -> None:
        self.numbers.append(int(name.split(".")[2]))

    def write_files(self) -> None:
        pass


@pytest.mark.parametrize("records", [12, 15, 40])
def test_a_full_ring_leaves_out_those_that_come_last(records: int) -> None:
    ring = ring_of(8, range(3, records), records)
    ring.look_at_new()
    folder = Folder()
    ring.write(folder)  # type: ignore[arg-type]
    assert folder.numbers == list(range(12)) and ring.left_out == records - 12


def test_what_is_not_finite_is_found_behind_any_number_of_others() -> None:
    suspects = Suspects()
    masks = [tensor(1.0, -INF) for _ in range(21_000)]
    bad = tensor(NAN, NAN)
    for entry in [*masks, bad]:
        suspects.add(entry)
    judgement = Judgement()
    judgement.look_at([Frame("Torch.log.0.forward", 0, -1, None, 0, 0, call([fine()], [bad]))], suspects.all())
    assert judgement.first == FirstRecord("Torch.log.0.forward", "output")
