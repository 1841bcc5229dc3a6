"""What is written to is no input, a weight is no mask, and what is not recorded is said to be."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from probe.common.parallel.tasks import Where
from probe.overflow.findings import ORIGIN, OUTSIDE, PARAMETER, Report
from probe.overflow.run import find_overflow

FINE, NAN, MINUS, PLUS = (1.0, -1.0), (math.nan, math.nan), (1.0, -math.inf), (math.inf, 1.0)


def tensor(extremes: tuple[float, float], **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 2]}
    found.update(Max=extremes[0], Min=extremes[1], Mean=0.0, Norm=1.0, requires_grad=False)
    return {**found, **more}


def call(inputs: list[Any], outputs: list[Any], **more: Any) -> dict[str, Any]:
    return {"input_args": inputs, "input_kwargs": more, "output": outputs}


def search(tmp_path: Path, *ranks: dict[str, Any], tree: dict[str, str | None] | None = None) -> Report:
    for rank, data in enumerate(ranks):
        folder = tmp_path / "step0" / f"rank{rank}"
        folder.mkdir(parents=True)
        dump = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None, "data": data}
        (folder / "dump.json").write_text(json.dumps(dump), encoding="utf-8")
        if tree is not None:
            (folder / "construct.json").write_text(json.dumps(tree), encoding="utf-8")
    return find_overflow(str(tmp_path), where=Where(jobs=1))


def first(report: Report) -> list[tuple[str, int, str]]:
    return [(finding.kind, finding.rank, finding.record) for finding in report.first]


def test_a_buffer_that_is_written_to_may_hold_anything_before(tmp_path: Path) -> None:
    data = {
        "Tensor.__setitem__.0.forward": call([tensor(NAN), {"type": "int", "value": 0}, tensor(FINE)], [None]),
        "Torch.mul.0.forward": call([tensor(FINE), tensor(FINE)], [tensor(FINE)], out=tensor(NAN)),
    }
    assert search(tmp_path, data).found is None


@pytest.mark.parametrize("name", ["Tensor.index_copy_.0.forward", "Tensor.scatter_.0.forward"])
def test_the_rest_of_a_tensor_that_is_written_in_part_was_there_before(tmp_path: Path, name: str) -> None:
    made = "Torch.div.0.forward"
    data = {made: call([tensor(FINE)], [tensor(NAN)]), name: call([tensor(NAN), tensor(FINE)], [tensor(NAN)])}
    assert first(search(tmp_path, data)) == [(ORIGIN, 0, made)]


def test_what_is_written_is_looked_at(tmp_path: Path) -> None:
    name = "Tensor.__setitem__.0.forward"
    data = {name: call([tensor(FINE), {"type": "int", "value": 0}, tensor(NAN)], [None])}
    assert first(search(tmp_path, data)) == [(OUTSIDE, 0, name)]


def test_a_weight_of_minus_infinity_is_no_mask(tmp_path: Path) -> None:
    weight = tensor(MINUS, requires_grad=True)
    module, function = "Module.fc.Linear.forward.0", "Functional.linear.0.forward"
    data = {
        function: call([tensor(FINE), weight], [tensor(NAN)]),
        module: {**call([tensor(FINE)], [tensor(NAN)]), "parameters": {"weight": weight}},
    }
    report = search(tmp_path, data, tree={module: None, function: module})
    assert first(report) == [(PARAMETER, 0, function)]
    assert report.first[0].item == f"{module}.parameters.weight"


def test_a_frozen_weight_of_minus_infinity_is_no_mask_either(tmp_path: Path) -> None:
    module, function = "Module.fc.Linear.forward.0", "Functional.linear.0.forward"
    data = {
        function: call([tensor(FINE), tensor(MINUS)], [tensor(NAN)]),
        module: {**call([tensor(FINE)], [tensor(NAN)]), "parameters": {"weight": tensor(MINUS)}},
    }
    assert first(search(tmp_path, data, tree={module: None, function: module})) == [(PARAMETER, 0, function)]


def test_data_of_minus_infinity_is_named_where_it_came_in(tmp_path: Path) -> None:
    data = {
        "Torch.sub.0.forward": call([tensor(MINUS)], [tensor(MINUS)]),
        "Functional.linear.0.forward": call([tensor(MINUS), tensor(FINE)], [tensor(NAN)]),
    }
    assert first(search(tmp_path, data)) == [(OUTSIDE, 0, "Torch.sub.0.forward")]


def test_an_exact_infinity_that_became_an_index_is_no_finding(tmp_path: Path) -> None:
    # The cast to integers is not recorded; the relative positions of T5 are made so.
    data = {
        "Torch.log.0.forward": call([tensor((1.0, 0.0))], [tensor(MINUS)]),
        "Tensor.__mul__.0.forward": call([tensor(MINUS)], [tensor(MINUS)]),
        "Functional.embedding.0.forward": call([tensor(FINE)], [tensor(FINE)]),
    }
    assert search(tmp_path, data).found is None


def test_an_exact_infinity_at_the_end_is_a_finding(tmp_path: Path) -> None:
    data = {
        "Functional.linear.0.forward": call([tensor(FINE), tensor(FINE)], [tensor(FINE)]),
        "Torch.log.0.forward": call([tensor((1.0, 0.0))], [tensor(MINUS)]),
        "Tensor.mean.0.forward": call([tensor(MINUS)], [tensor((-math.inf, -math.inf))]),
    }
    assert first(search(tmp_path, data)) == [(ORIGIN, 0, "Torch.log.0.forward")]


def test_what_something_unrecorded_inside_of_a_module_made_is_said_to_be_so(tmp_path: Path) -> None:
    module, function = "Module.half.Half.forward.0", "Functional.linear.0.forward"
    data = {
        function: call([tensor(PLUS, dtype="torch.float16"), tensor(FINE)], [tensor(NAN)]),
        module: call([tensor(FINE)], [tensor(NAN)]),
    }
    report = search(tmp_path, data, tree={module: None, function: module})
    assert first(report) == [(OUTSIDE, 0, function)]
    assert f"all that went into {module} is" in report.first[0].sentence


def test_gradients_that_were_added_up_unseen_are_no_finding(tmp_path: Path) -> None:
    clip = "Torch._foreach_norm.0.forward"
    sender = {
        "Torch.sqrt.0.forward": call([tensor((1.0, 0.0))], [tensor((1.0, 0.0))]),
        "Torch.sqrt.0.backward": {"input": [tensor(FINE)], "output": [tensor(PLUS)]},
        clip: call([tensor(NAN)], [tensor(NAN)]),
    }
    receiver = {
        "Torch.sqrt.0.forward": call([tensor((1.0, 0.5))], [tensor((1.0, 0.7))]),
        "Torch.sqrt.0.backward": {"input": [tensor(FINE)], "output": [tensor(FINE)]},
        clip: call([tensor(NAN)], [tensor(NAN)]),
    }
    report = search(tmp_path, receiver, sender)
    assert first(report) == [(ORIGIN, 1, "Torch.sqrt.0.backward")]
    assert any("rank 0 it came with the gradients" in note for note in report.steps[0].notes)


def test_bad_gradients_of_one_rank_that_nothing_explains_are_named(tmp_path: Path) -> None:
    clip = "Torch._foreach_norm.0.forward"
    data = {
        "Torch.sqrt.0.forward": call([tensor((1.0, 0.5))], [tensor((1.0, 0.7))]),
        "Torch.sqrt.0.backward": {"input": [tensor(FINE)], "output": [tensor(FINE)]},
        clip: call([tensor(NAN)], [tensor(NAN)]),
    }
    assert first(search(tmp_path, data)) == [(OUTSIDE, 0, clip)]
