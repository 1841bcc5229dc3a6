"""Which MindSpore calls `random_save` sees."""

from __future__ import annotations

import csv
from pathlib import Path

import mindspore as ms
from scripts import script

from probe.backends.mindspore.randomness import random_calls

PRELUDE = """
import random
import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops
from probe.api.randomness import random_save
from probe.backends.mindspore import randomness
"""


def run(tmp_path: Path, code: str) -> None:
    done = script(tmp_path, PRELUDE + code, GLOG_v="3")
    assert done.returncode == 0, done.stderr


def rows_of(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        return list(csv.reader(stream))[1:]


def test_functions_methods_and_initialisation_are_seen_and_dropout_is_not(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
random_save(randomness.random_calls(), randomness.rank, "out")
value = ops.rand(2, 2)
ops.randn_like(value)
ops.standard_normal((3,))
value.multinomial(1)
weight = nn.Dense(3, 2).weight
ops.dropout(value)
np.random.rand(2)
random.random()
ops.zeros((2,))
""",
    )
    (path,) = (tmp_path / "out").iterdir()
    rows = rows_of(path)
    assert path.name.startswith("random_proc")
    assert [row[0] for row in rows] == [
        "ops_random.rand.0",
        "ops_random.randn_like.0",
        "ops_random.standard_normal.0",
        "tensor_random.multinomial.0",
        # The weight and the bias of the layer: initializers draw from numpy.
        "numpy_random.randint.0",
        "numpy_random.randint.1",
        "numpy_random.rand.0",
        "python_random.random.0",
    ]
    assert rows[4][1].endswith("in <module>, \n weight = nn.Dense(3, 2).weight\n")


def test_a_function_is_watched_once() -> None:
    calls = random_calls()
    places = [(id(call.owner), call.name) for call in calls]
    assert len(places) == len(set(places))
    assert {call.library for call in calls} == {"ops_random", "mint_random", "tensor_random"}
    assert all(call.owner is not ms.Tensor or call.library == "tensor_random" for call in calls)
