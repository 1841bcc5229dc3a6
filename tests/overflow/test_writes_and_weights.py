"""What is written to is no input, a weight is no mask, and what is not recorded is said to be."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from made_dumps import call, plain, tensor, write

from probe.common.parallel.tasks import Where
from probe.overflow.find_overflow import find_overflow
from probe.overflow.overflow_report import ORIGIN, OUTSIDE, PARAMETER, Report, lines

FINE, NAN = tensor(), tensor(math.nan, math.nan)
MINUS, PLUS = tensor(1.0, -math.inf), tensor(math.inf, 1.0)


def search(tmp_path: Path, *ranks: dict[str, Any], tree: dict[str, str | None] | None = None) -> Report:
    for rank, data in enumerate(ranks):
        write(tmp_path / "step0" / f"rank{rank}", data, tree)
    return find_overflow(str(tmp_path), where=Where(jobs=1))


def first(report: Report) -> list[tuple[str, int, str]]:
    return [(finding.kind, finding.rank, finding.record) for finding in report.first]


def test_a_buffer_that_is_written_to_may_hold_anything_before(tmp_path: Path) -> None:
    data = {
        "Tensor.__setitem__.0.forward": call([NAN, plain(0), FINE], [None]),
        "Torch.mul.0.forward": call([FINE, FINE], [FINE], {"out": NAN}),
    }
    assert search(tmp_path, data).found is None


@pytest.mark.parametrize("name", ["Tensor.index_copy_.0.forward", "Tensor.scatter_.0.forward"])
def test_the_rest_of_a_tensor_that_is_written_in_part_was_there_before(tmp_path: Path, name: str) -> None:
    made = "Torch.div.0.forward"
    data = {made: call([FINE], [NAN]), name: call([NAN, FINE], [NAN])}
    assert first(search(tmp_path, data)) == [(ORIGIN, 0, made)]


def test_what_is_written_is_looked_at(tmp_path: Path) -> None:
    name = "Tensor.__setitem__.0.forward"
    data = {name: call([FINE, plain(0), NAN], [None])}
    assert first(search(tmp_path, data)) == [(OUTSIDE, 0, name)]


def test_a_weight_of_minus_infinity_is_no_mask(tmp_path: Path) -> None:
    weight = {**MINUS, "requires_grad": True}
    module, function = "Module.fc.Linear.forward.0", "Functional.linear.0.forward"
    data = {
        function: call([FINE, weight], [NAN]),
        module: call([FINE], [NAN], parameters={"weight": weight}),
    }
    report = search(tmp_path, data, tree={module: None, function: module})
    assert first(report) == [(PARAMETER, 0, function)]
    assert report.first[0].item == f"{module}.parameters.weight"


def test_a_frozen_weight_of_minus_infinity_is_no_mask_either(tmp_path: Path) -> None:
    module, function = "Module.fc.Linear.forward.0", "Functional.linear.0.forward"
    data = {
        function: call([FINE, MINUS], [NAN]),
        module: call([FINE], [NAN], parameters={"weight": MINUS}),
    }
    assert first(search(tmp_path, data, tree={module: None, function: module})) == [(PARAMETER, 0, function)]


def test_data_of_minus_infinity_is_named_where_it_came_in(tmp_path: Path) -> None:
    data = {
        "Torch.sub.0.forward": call([MINUS], [MINUS]),
        "Functional.linear.0.forward": call([MINUS, FINE], [NAN]),
    }
    assert first(search(tmp_path, data)) == [(OUTSIDE, 0, "Torch.sub.0.forward")]


def test_an_exact_infinity_that_became_an_index_is_no_finding(tmp_path: Path) -> None:
    # The cast to integers is not recorded; the relative positions of T5 are made so.
    data = {
        "Torch.log.0.forward": call([tensor(1.0, 0.0)], [MINUS]),
        "Tensor.__mul__.0.forward": call([MINUS], [MINUS]),
        "Functional.embedding.0.forward": call([FINE], [FINE]),
    }
    assert search(tmp_path, data).found is None


def test_an_exact_infinity_at_the_end_is_a_finding(tmp_path: Path) -> None:
    data = {
        "Functional.linear.0.forward": call([FINE, FINE], [FINE]),
        "Torch.log.0.forward": call([tensor(1.0, 0.0)], [MINUS]),
        "Tensor.mean.0.forward": call([MINUS], [tensor(-math.inf, -math.inf)]),
    }
    assert first(search(tmp_path, data)) == [(ORIGIN, 0, "Torch.log.0.forward")]


def test_an_overflow_is_not_meant_because_an_input_holds_zeros(tmp_path: Path) -> None:
    # Only where something is divided by it is the exact result infinite.
    data = {
        "Torch.mul.0.forward": call([tensor(3e38, 0.0), tensor(3e38, 0.0)], [tensor(math.inf, 0.0)]),
        "Tensor.__mul__.0.forward": call([tensor(math.inf, 0.0)], [tensor(math.inf, 0.0)]),
        "Functional.embedding.0.forward": call([FINE], [FINE]),
    }
    assert first(search(tmp_path, data)) == [(ORIGIN, 0, "Torch.mul.0.forward")]


def test_what_something_unrecorded_inside_of_a_module_made_is_said_to_be_so(tmp_path: Path) -> None:
    module, function = "Module.half.Half.forward.0", "Functional.linear.0.forward"
    data = {
        function: call([{**PLUS, "dtype": "torch.float16"}, FINE], [NAN]),
        module: call([FINE], [NAN]),
    }
    report = search(tmp_path, data, tree={module: None, function: module})
    assert first(report) == [(OUTSIDE, 0, function)]
    assert f"all that went into {module} is finite" in report.first[0].sentence


def test_gradients_that_were_added_up_unseen_are_no_finding(tmp_path: Path) -> None:
    clip = "Torch._foreach_norm.0.forward"
    sender = {
        "Torch.sqrt.0.forward": call([tensor(1.0, 0.0)], [tensor(1.0, 0.0)]),
        "Torch.sqrt.0.backward": {"input": [FINE], "output": [PLUS]},
        clip: call([NAN], [NAN]),
    }
    receiver = {
        "Torch.sqrt.0.forward": call([tensor(1.0, 0.5)], [tensor(1.0, 0.7)]),
        "Torch.sqrt.0.backward": {"input": [FINE], "output": [FINE]},
        clip: call([NAN], [NAN]),
    }
    report = search(tmp_path, receiver, sender)
    assert first(report) == [(ORIGIN, 1, "Torch.sqrt.0.backward")]
    assert any("Rank 0 received it with the gradients" in note for note in report.steps[0].notes)


def test_bad_gradients_of_one_rank_that_nothing_explains_are_named(tmp_path: Path) -> None:
    clip = "Torch._foreach_norm.0.forward"
    data = {
        "Torch.sqrt.0.forward": call([tensor(1.0, 0.5)], [tensor(1.0, 0.7)]),
        "Torch.sqrt.0.backward": {"input": [FINE], "output": [FINE]},
        clip: call([NAN], [NAN]),
    }
    assert first(search(tmp_path, data)) == [(OUTSIDE, 0, clip)]


def test_a_note_that_steps_have_in_common_is_printed_once(tmp_path: Path) -> None:
    data = {"Torch.sin.0.forward": call([FINE], [FINE])}
    masked = {"Torch.softmax.0.forward": call([MINUS], [FINE])}
    for step in range(3):
        for rank in range(2):
            write(tmp_path / f"step{step}" / f"rank{rank}", masked if (step, rank) == (1, 0) else data)
    report = find_overflow(str(tmp_path), where=Where(jobs=1))
    _, *notes = lines(report)
    assert [note for note in notes if "No communication is recorded" in note] == [
        "No communication is recorded, so values from other ranks are not followed; collect at level L1 or mix."
    ]


def test_a_note_on_some_of_the_steps_says_which(tmp_path: Path) -> None:
    small, large = tensor(), tensor(60000.0, dtype="torch.float16")
    for step, output in enumerate((small, large, small)):
        write(tmp_path / f"step{step}" / "rank0", {"Torch.sin.0.forward": call([FINE], [output])})
    _, *notes = lines(find_overflow(str(tmp_path), where=Where(jobs=1)))
    assert len(notes) == 1 and notes[0].startswith("step 1: rank 0: Torch.sin.0.forward.output.0 reaches 92%")
