"""What `seed_all` does to a program whose torch is mindtorch.

What cannot be undone within a process (seeds, deterministic mode, variables) is observed in one of its own.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindtorch.torch_proxy import initialize_torch_proxy, setup_metadata_patch

initialize_torch_proxy()
setup_metadata_patch()

import mindspore as ms  # noqa: E402
import mindtorch  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from mindspore import ops  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import dropout as dropout_imported_before  # noqa: E402

import probe  # noqa: E402
from probe.backends.msadapter import randomness  # noqa: E402
from probe.backends.msadapter.randomness import random_calls  # noqa: E402
from probe.backends.shared.randomness import (  # noqa: E402
    numpy_calls,
    python_calls,
)

VARIABLES = ("PYTHONHASHSEED", "HCCL_DETERMINISTIC")
PRELUDE = """
import json, os, random
import numpy as np
from mindtorch.torch_proxy import initialize_torch_proxy, setup_metadata_patch
initialize_torch_proxy()
setup_metadata_patch()
import mindspore as ms
import torch
import torch.nn.functional as F
from functools import partial
from probe.api import randomness as api
from probe.backends.msadapter import randomness
seed_all = partial(api.seed_all, randomness)
def draw():
    drawn = [random.random(), np.random.rand(2).tolist(), ms.ops.randn(3).asnumpy().tolist()]
    return drawn + [torch.empty(3).normal_().tolist(), torch.empty(3).uniform_().tolist()]
def answer(value):
    print("ANSWER", json.dumps(value))
"""


def python(code: str, **variables: str) -> Any:
    """Run `code` after PRELUDE in a fresh interpreter and return what it gave to ``answer``."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    # The very package that is tested here, installed or not.
    environment.update(variables, PYTHONPATH=str(Path(probe.__file__).parents[1]), GLOG_v="3")
    command = [sys.executable, "-c", PRELUDE + code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.split("ANSWER", 1)[1])


def test_seeds_and_the_deterministic_mode() -> None:
    """Generators start from the seed, dropout drops until it is removed, and fixed values are the first after it."""
    told = python("""
ones = torch.ones(256)
def kept():
    return bool((F.dropout(ones).asnumpy() == 1).all()), bool((torch.nn.Dropout(0.5)(ones).asnumpy() == 1).all())
drops = [kept()]
seed_all(seed=0); seed_all(seed=2 ** 32 - 1); seed_all(seed=99); plain = draw()
seeds = [ms.get_seed(), int(torch.initial_seed()), os.environ["PYTHONHASHSEED"]]
drops.append(kept()); seed_all(seed=99, rm_dropout=True); drops.append(kept())
modes = []
for mode in (False, True, False):
    seed_all(seed=99, mode=mode)
    modes.append([ms.get_context("deterministic"), os.environ["HCCL_DETERMINISTIC"]])
again = draw()
seed_all(seed=99, is_enhanced=True); fixed = [draw()[2:4], draw()[2:4]]
seed_all(seed=2); later = [draw()[2:4], draw()[2:4]]
answer([plain, again, seeds, drops, modes, fixed, later])
""")
    plain, again, seeds, drops, modes, fixed, later = told
    assert plain == again and plain[:2] == [random.Random(99).random(), np.random.RandomState(99).rand(2).tolist()]
    assert seeds == [99, 99, "99"] and drops == [[False, False], [False, False], [True, True]]
    assert modes == [["OFF", "False"], ["ON", "True"], ["OFF", "False"]]
    assert later[0] == later[1] and fixed[0] == fixed[1] and later[0] != fixed[0]


# --- dropout

FLAT = torch.ones(4, 64)
IMAGE = torch.ones(2, 64, 4, 4)
EARLY = nn.Dropout(0.5)
DROPS = {
    "F.dropout": (lambda x: F.dropout(x, 0.5), FLAT),
    "imported before": (lambda x: dropout_imported_before(x, p=0.5, training=True, inplace=False), FLAT),
    "F.dropout2d": (lambda x: F.dropout2d(x, 0.5, training=True), IMAGE),
    "nn.Dropout": (lambda x: nn.Dropout(0.5)(x), FLAT),
    "nn.Dropout made before": (lambda x: EARLY(x), FLAT),
    "nn.Dropout2d": (lambda x: nn.Dropout2d(0.5)(x), IMAGE),
}
MINDSPORE_DROPS = {
    "ops.dropout": (lambda x: ops.dropout(x, p=0.5), FLAT),
    "ops.Dropout": (lambda x: ops.Dropout(0.5)(x)[0], FLAT),
    "ms.nn.Dropout": (lambda x: ms.nn.Dropout(p=0.5).set_train()(x), FLAT),
}


def keeps_all(drop: Any, x: Any) -> bool:
    return bool((drop(x).asnumpy() == x.asnumpy()).all())


@pytest.mark.parametrize("way", [*DROPS, *MINDSPORE_DROPS])
def test_dropout_drops_unless_it_was_removed(way: str) -> None:
    drop, x = {**DROPS, **MINDSPORE_DROPS}[way]
    assert not keeps_all(drop, x)
    handle = randomness.remove_dropout()
    try:
        assert keeps_all(drop, x)
        assert drop(x) is x or way in MINDSPORE_DROPS
    finally:
        handle.remove()
    assert not keeps_all(drop, x)


def test_every_function_that_drops_is_removed() -> None:
    # The names of torch that mindtorch does not have come back as soon as it has them.
    functional = sys.modules["mindtorch.nn.functional"]
    assert {name for name in dir(functional) if "dropout" in name} == {"dropout", "dropout2d"}


def test_undoing_brings_back_the_very_same_functions() -> None:
    def now() -> list[int]:
        functions = [F.dropout, F.dropout2d, ops.dropout]
        parts = [*functions, *(one.__code__ for one in functions), vars(ops.Dropout)["__init__"]]
        return [id(part) for part in parts]

    before = now()
    first, second = randomness.remove_dropout(), randomness.remove_dropout()
    during = now()
    second.remove()
    assert now() == during
    first.remove()
    assert now() == before
    assert during[:3] == before[:3] and not set(during[3:]) & set(before[3:])


# --- repeated values

HALVES = torch.full((64,), 0.5)
RANDOM_CALLS: dict[str, Any] = {
    "normal_": lambda: torch.empty(5).normal_(),
    "uniform_": lambda: torch.empty(5).uniform_(),
    "random_": lambda: torch.empty(5).random_(),
    "Linear": lambda: nn.Linear(4, 4).weight,
    "bernoulli": lambda: torch.bernoulli(HALVES),
    "randperm": lambda: torch.randperm(64),
    "ops.randn": lambda: ops.randn(5),
    "ops.standard_laplace": lambda: ops.standard_laplace((5,)),
    "numpy.rand": lambda: np.random.rand(5),
    "random": lambda: [random.random()],
}


def values(drawn: Any) -> Any:
    return drawn.asnumpy() if isinstance(drawn, ms.Tensor) else np.asarray(drawn)


@pytest.fixture
def seeded() -> Iterator[None]:
    """Without a seed MindSpore's operators draw from the clock."""
    states = randomness.get_states()
    ms.set_seed(7)
    yield
    randomness.set_states(states)


@pytest.mark.parametrize("call", RANDOM_CALLS)
def test_a_fixed_call_repeats_its_values(seeded: None, call: str) -> None:
    draw = RANDOM_CALLS[call]
    handle = randomness.fix_random_calls()
    try:
        first = values(draw())
        torch.empty(7).normal_(), ops.randn(7), np.random.rand(7), random.random()
        assert np.array_equal(first, values(draw()))
    finally:
        handle.remove()


@pytest.mark.parametrize("call", ["normal_", "random_", "ops.randn", "numpy.rand", "random"])
def test_an_ordinary_call_does_not(seeded: None, call: str) -> None:
    draw = RANDOM_CALLS[call]
    assert not np.array_equal(values(draw()), values(draw()))


def test_undoing_the_fixing_leaves_no_trace() -> None:
    calls = [*random_calls(), *numpy_calls(), *python_calls()]
    owners = {call.owner for call in random_calls()}
    assert mindtorch in owners and torch not in owners and ops in owners
    places = [(id(call.owner), call.name) for call in calls]
    assert len(places) == len(set(places))

    def functions() -> list[int]:
        return [id(vars(call.owner).get(call.name)) for call in calls]

    before = functions()
    handle = randomness.fix_random_calls()
    during = functions()
    assert all(now != then for now, then in zip(during, before))
    handle.remove()
    assert functions() == before
