"""While a training runs, and afterwards in its dump, the same record has the first value that is not finite."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from made_dumps import call, plain, tensor, write
from while_running import afterwards, assert_same_while_and_after, while_running

from probe.common.dump.reading.dump import read

CASES = Path(__file__).parents[1] / "overflow" / "cases"
RANKS = sorted(CASES.glob("*/step*/rank*"))
EDGES = json.loads((CASES / "edge" / "cases.json").read_text("utf-8"))
NAN, INF = math.nan, math.inf
FINE, BAD, MASK, INFINITE = tensor(1.0, 0.0), tensor(NAN, NAN), tensor(1.0, -INF), tensor(-INF, -INF)
USED = {"Torch.exp.0.forward": call([MASK], [FINE]), "Torch.sum.0.forward": call([FINE], [FINE])}
"""Finite values are made of a mask."""
FOUND: dict[str, dict[str, Any]] = {
    "Torch.div.1.forward": {"Torch.div.0.forward": call([FINE], [FINE]), "Torch.div.1.forward": call([FINE], [BAD])},
    "Torch.div.2.forward": {"Torch.div.2.forward": call([FINE], [FINE, [tensor(INF, 0.0)]])},
    "Torch.div.3.forward": {"Torch.div.3.forward": call([FINE], {"values": tensor(INF, -INF)})},
    "Module.a.Linear.parameters_grad.0": {"Module.a.Linear.parameters_grad.0": {"weight": [BAD]}},
    "Module.a.Linear.forward.0": {"Module.a.Linear.forward.0": call([FINE], [FINE], parameters={"weight": BAD})},
    "Torch.softmax.0.forward": {
        "Tensor.masked_fill.0.forward": call([FINE, FINE, plain(-INF)], [INFINITE]),
        "Torch.softmax.0.forward": call([INFINITE], [BAD]),
    },
    "Torch.log.0.forward": {"Torch.log.0.forward": call([FINE], [MASK])},
    "Tensor.view.0.forward": {
        "Tensor.view.0.forward": call([BAD], [BAD]), "Torch.matmul.0.forward": call([BAD, FINE], [BAD])
    },
    "Torch.argmax.0.forward": {"Torch.argmax.0.forward": call([BAD], [FINE])},
    "Torch.sqrt.0.backward": {
        "Torch.sqrt.0.backward": {"input": [FINE], "output": [tensor(INF, 0.0)]},
        "Torch.mul.0.forward": call([tensor(INF, 0.0)], [BAD]),
    },
}  # fmt: skip
"""By the first record: calls of which one is a fault."""
NOT_FOUND: list[dict[str, Any]] = [
        {"Tensor.masked_fill.0.forward": call([FINE, FINE, plain(-INF)], [MASK])},
        {
            "Torch.full.0.forward": call([plain(-INF)], [tensor(-INF, -INF)]),
            "Torch.triu.0.forward": call([tensor(-INF, -INF)], [MASK]),
            "Torch.softmax.0.forward": call([MASK], [FINE]),
            "Module.mask.Mask.forward.0": call([FINE], [MASK]),
        },
        {"Tensor.add.0.forward": call([FINE, MASK], [MASK])},
        {"Torch.log.0.forward": call([FINE], [MASK]), **USED},
        {"Tensor.log_.0.forward": call([FINE], [MASK]), **USED},
        {"Torch.slogdet.0.forward": call([FINE], [FINE, MASK]), **USED},
        {"Primitive.act.Log.0.forward": call([FINE], [MASK]), **USED},
        {"Tensor.diagonal.0.forward": call([BAD], [BAD])},
        {"Torch.where.0.forward": call([FINE, FINE, plain(INF)], [tensor(INF, 0.0)])},
        {"Tensor.fill_.0.forward": call([BAD, plain(0.0)], [FINE])},
        {"Tensor.view.0.forward": call([BAD], [BAD])},
        {"Torch.empty.0.forward": call([], [BAD])},
        {"Torch.isnan.0.forward": call([BAD], [FINE])},
        {"Torch.where.0.forward": call([FINE, FINE, BAD], [FINE])},
]  # fmt: skip
"""What is asked for, or of no consequence."""


@pytest.mark.parametrize("rank", RANKS, ids=lambda path: str(path.relative_to(CASES)))
def test_each_rank_of_the_recorded_cases(rank: Path) -> None:
    assert_same_while_and_after(rank)


@pytest.mark.parametrize("edge", EDGES)
def test_records_on_the_edge(edge: str, tmp_path: Path) -> None:
    assert_same_while_and_after(write(tmp_path, EDGES[edge]["data"]))


@pytest.mark.parametrize("first", FOUND)
def test_the_first_record_at_fault_is_found(first: str, tmp_path: Path) -> None:
    assert while_running(read(str(write(tmp_path, FOUND[first])))) == first


@pytest.mark.parametrize("records", NOT_FOUND, ids=lambda records: next(iter(records)))
def test_what_is_asked_for_or_of_no_consequence_is_not(records: Any, tmp_path: Path) -> None:
    assert while_running(read(str(write(tmp_path, records)))) is None


def test_a_fault_is_found_behind_any_number_of_masks(tmp_path: Path) -> None:
    masks = call([FINE, FINE, plain(-INF)], [MASK] * 21_000)
    dump = write(tmp_path, {"Torch.where.0.forward": masks, "Torch.acos.0.forward": call([FINE], [BAD])})
    assert while_running(read(str(dump))) == "Torch.acos.0.forward"


def test_a_written_nan_is_found_if_the_step_is_cut_behind_the_call_that_writes_it(tmp_path: Path) -> None:
    data = {
        "Torch.mul.0.forward": call([FINE, FINE], [FINE]),
        "Tensor.__setitem__.0.forward": call([FINE, plain(0), plain(NAN)], [None]),
        "Tensor.sqrt.0.forward": call([BAD], [BAD]),
    }
    dump = write(tmp_path, data)
    assert afterwards(dump) == ["Tensor.__setitem__.0.forward"]
    for most in (1, 2, 3):
        assert while_running(read(str(dump)), most) == "Tensor.__setitem__.0.forward"
