"""While a training runs, and afterwards in its dump, the same record has the first value that is not finite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_dumps import write
from while_running import afterwards, assert_same_while_and_after, while_running

from probe.common.dump.reading.dump import read

CASES = Path(__file__).parents[1] / "overflow" / "cases"
RANKS = sorted(CASES.glob("*/step*/rank*"))
EDGES = json.loads((CASES / "edge" / "cases.json").read_text("utf-8"))


@pytest.mark.parametrize("rank", RANKS, ids=lambda path: str(path.relative_to(CASES)))
def test_each_rank_of_the_recorded_cases(rank: Path) -> None:
    assert_same_while_and_after(rank)


@pytest.mark.parametrize("edge", EDGES)
def test_records_on_the_edge(edge: str, tmp_path: Path) -> None:
    assert_same_while_and_after(write(tmp_path, EDGES[edge]["data"]))


def test_a_written_nan_is_found_if_the_step_is_cut_behind_the_call_that_writes_it(tmp_path: Path) -> None:
    finite = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 1.0, "Min": -1.0, "Mean": 0.0}
    finite = {**finite, "Norm": 1.0, "requires_grad": False}
    written = {**finite, "Max": "nan", "Min": "nan", "Mean": "nan", "Norm": "nan"}
    arguments = [finite, {"type": "int", "value": 0}, {"type": "float", "value": float("nan")}]
    data = {
        "Torch.mul.0.forward": {"input_args": [finite, finite], "input_kwargs": {}, "output": [finite]},
        "Tensor.__setitem__.0.forward": {"input_args": arguments, "input_kwargs": {}, "output": [None]},
        "Tensor.sqrt.0.forward": {"input_args": [written], "input_kwargs": {}, "output": [written]},
    }
    dump = write(tmp_path, data)
    assert afterwards(dump) == ["Tensor.__setitem__.0.forward"]
    for most in (1, 2, 3):
        assert while_running(read(str(dump)), most) == "Tensor.__setitem__.0.forward"
