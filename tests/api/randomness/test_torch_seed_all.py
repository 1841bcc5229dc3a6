"""What `seed_all` does to a PyTorch program.

What cannot be undone within a process (seeds, deterministic mode, variables) is observed in one of its own. The
contract suite has what every framework does (``tests/backends/runs/test_randomness.py``).
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forks
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import dropout as dropout_imported_before

import msprobe.pytorch
import probe
from probe.backends.shared.randomness import numpy_calls, python_calls
from probe.backends.torch import internals, randomness
from probe.backends.torch.randomness import random_calls
from probe.common.errors import MsprobeException

VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "HCCL_DETERMINISTIC",
    "LCCL_DETERMINISTIC",
    "CLOSE_MATMUL_K_SHIFT",
    "ATB_MATMUL_SHUFFLE_K_ENABLE",
    "ATB_LLM_LCOC_ENABLE",
)
PRELUDE = """
import json, os, random, torch, numpy as np
import torch.nn.functional as F
from functools import partial
from probe.api import randomness as api
from probe.backends.torch import randomness
seed_all = partial(api.seed_all, randomness)
def draw():
    return [torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()]
def answer(value):
    print("ANSWER", json.dumps(value))
"""


def python(code: str, **variables: str) -> Any:
    """Run `code` after PRELUDE in a process of its own and return what it gave to ``answer``."""
    environment = {name: value for name, value in os.environ.items() if name not in (*VARIABLES, "PYTHONHASHSEED")}
    # The very package that is tested here, installed or not.
    environment.update(variables, PYTHONPATH=str(Path(probe.__file__).parents[1]))
    done = forks.run_python("torch", Path.cwd() / "program.py", code=PRELUDE + code, environment=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.split("ANSWER", 1)[1])


def test_generators_start_from_the_seed_and_fixed_values_are_the_first_after_it() -> None:
    told = python("""
seed_all(); default = draw()
seed_all(seed=2 ** 32 - 1); seed_all(seed=99); plain, kept = draw(), (F.dropout(torch.ones(256)) == 1).all().item()
seed_all(seed=99, rm_dropout=True); removed = (F.dropout(torch.ones(256)) == 1).all().item()
seed_all(seed=99, is_enhanced=True); fixed = [draw(), draw()]
seed_all(seed=2); later = [draw(), draw()]
torch.manual_seed(5); np.random.seed(5); random.seed(5)
answer([default, plain, fixed, later, draw(), kept, removed])
""")
    default, plain, fixed, later, reseeded, kept, removed = told

    def expected(seed: int) -> list[Any]:
        tensor = torch.rand(3, generator=torch.Generator().manual_seed(seed))
        return [tensor.tolist(), np.random.RandomState(seed).rand(3).tolist(), random.Random(seed).random()]

    assert (default, plain) == (expected(1234), expected(99)) and fixed == [plain, plain]
    assert later == [expected(2)] * 2 and reseeded == expected(2)
    assert (kept, removed) == (False, True)


@pytest.mark.parametrize("argument", ["seed", "mode", "rm_dropout", "is_enhanced"])
def test_a_wrong_argument_is_named_with_its_value_and_what_is_allowed(argument: str) -> None:
    allowed = "an int from 0 to 4294967295" if argument == "seed" else "True, False"
    before = torch.get_rng_state()
    for value in (-1, 2**32, "1", 1.0, True, None) if argument == "seed" else (1, 0, "yes", None):
        with pytest.raises(MsprobeException) as raised:
            msprobe.pytorch.seed_all(**{argument: value})
        assert all(text in str(raised.value) for text in (argument, repr(value), allowed))
    assert torch.equal(torch.get_rng_state(), before)


def test_mode_chooses_deterministic_algorithms_and_its_absence_does_not() -> None:
    told = python(f"""
def state():
    flags = torch.backends.cudnn
    return [torch.are_deterministic_algorithms_enabled(), flags.deterministic, flags.benchmark, flags.enabled,
            [os.environ.get(name) for name in {VARIABLES!r}]]
torch.backends.cudnn.benchmark = True
told = []
for mode in (False, True, False):
    seed_all(mode=mode)
    told.append(state())
answer(told)
""")
    values = [":4096:8", "true", "1", "1", "0", "0"]
    assert told[0] == [False, False, True, True, [None] * 6]
    assert told[1] == [True, True, False, True, values]
    # Only the algorithms go back: the rest is the user's, and the libraries have read it by now.
    assert told[2] == [False, True, False, True, values]


def test_mode_keeps_other_deterministic_values_of_the_user_and_corrects_the_rest() -> None:
    code = "seed_all(mode=True); answer([os.environ[n] for n in ('CUBLAS_WORKSPACE_CONFIG', 'HCCL_DETERMINISTIC')])"
    assert python(code, CUBLAS_WORKSPACE_CONFIG=":16:8", HCCL_DETERMINISTIC="strict") == [":16:8", "strict"]
    assert python(code, CUBLAS_WORKSPACE_CONFIG=":0:0", HCCL_DETERMINISTIC="false") == [":4096:8", "true"]


def test_an_npu_is_seeded_when_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[tuple[str, int]] = []
    npu = SimpleNamespace(
        manual_seed=lambda seed: seeds.append(("one", seed)), manual_seed_all=lambda seed: seeds.append(("all", seed))
    )
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    # Where the real torch_npu is installed it must not be imported over the stand-in.
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace())
    with torch.random.fork_rng():
        randomness.seed_everything(3, deterministic=False)
    assert seeds == [("one", 3), ("all", 3)]


@pytest.fixture
def no_dropout() -> Iterator[Any]:
    handle = randomness.remove_dropout()
    yield handle
    handle.remove()


ONES = torch.ones(2, 64, 4, 4, 4)
DROPOUTS = [
    (nn.Dropout, ONES),
    (nn.Dropout1d, ONES[:, :, :, 0, 0]),
    (nn.Dropout2d, ONES[..., 0]),
    (nn.Dropout3d, ONES),
    (nn.AlphaDropout, ONES),
    (nn.FeatureAlphaDropout, ONES),
]


@pytest.mark.parametrize(("kind", "ones"), DROPOUTS)
def test_dropout_drops_unless_it_was_removed(kind: Any, ones: torch.Tensor) -> None:
    layer = kind(0.5)
    assert not torch.equal(layer(ones), ones)
    handle = randomness.remove_dropout()
    try:
        assert torch.equal(layer(ones), ones)
        assert torch.equal(kind(0.5)(ones), ones)
    finally:
        handle.remove()
    assert not torch.equal(layer(ones), ones)


def test_functions_imported_earlier_stop_dropping_too_and_gradients_pass(no_dropout: Any) -> None:
    ones = torch.ones(256)
    assert dropout_imported_before(ones, 0.5) is ones
    assert dropout_imported_before(ones, p=0.5, training=True, inplace=True) is ones
    assert torch.dropout(ones, 0.5, True) is torch.feature_alpha_dropout_(ones, 0.5, True) is ones
    weight = torch.ones(64, requires_grad=True)
    F.dropout(weight * 2, 0.5).sum().backward()
    assert weight.grad is not None and torch.equal(weight.grad, torch.full((64,), 2.0))


def dropouts_now() -> list[Any]:
    names = [name for name in dir(F) if "dropout" in name and not name.startswith("_")]
    functions = [getattr(F, name) for name in names]
    builtins = [getattr(torch, name) for name in dir(torch) if "dropout" in name]
    return [*functions, *(function.__code__ for function in functions), *builtins]


def test_undoing_brings_back_the_very_same_functions() -> None:
    before = dropouts_now()
    first, second = randomness.remove_dropout(), randomness.remove_dropout()
    during = dropouts_now()
    second.remove()
    assert [id(part) for part in dropouts_now()] == [id(part) for part in during]
    first.remove()
    first.remove()
    assert [id(part) for part in dropouts_now()] == [id(part) for part in before]
    # The functions of torch.nn never lost their identity, only the builtins were replaced.
    count = sum(name.find("dropout") >= 0 and not name.startswith("_") for name in dir(F))
    assert [id(part) for part in during[:count]] == [id(part) for part in before[:count]]


def test_a_dropout_that_someone_wrapped_is_replaced_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    original = F.dropout

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    monkeypatch.setattr(F, "dropout", wrapped)
    handle = randomness.remove_dropout()
    ones = torch.ones(64)
    assert F.dropout(ones, p=0.5) is ones
    handle.remove()
    assert F.dropout is wrapped
    assert not torch.equal(F.dropout(ones, p=0.5), ones)


HALVES = torch.full((64,), 0.5)
RANDOM_CALLS = {
    "rand": lambda: torch.rand(5),
    "randn": lambda: torch.randn(5),
    "randint": lambda: torch.randint(1 << 30, (5,)),
    "randperm": lambda: torch.randperm(64),
    "normal": lambda: torch.normal(0.0, HALVES),
    "bernoulli": lambda: torch.bernoulli(HALVES),
    "multinomial": lambda: torch.multinomial(HALVES, 32),
    "poisson": lambda: torch.poisson(HALVES * 100),
    "rand_like": lambda: torch.rand_like(HALVES),
    "randn_like": lambda: torch.randn_like(HALVES),
    "randint_like": lambda: torch.randint_like(HALVES, 1 << 20),
    "Tensor.bernoulli": lambda: HALVES.bernoulli(),
    "uniform_": lambda: torch.empty(5).uniform_(),
    "normal_": lambda: torch.empty(5).normal_(),
    "random_": lambda: torch.empty(5).random_(),
    "bernoulli_": lambda: torch.empty(64).bernoulli_(),
    "exponential_": lambda: torch.empty(5).exponential_(),
    "cauchy_": lambda: torch.empty(5).cauchy_(),
    "geometric_": lambda: torch.empty(64).geometric_(0.1),
    "log_normal_": lambda: torch.empty(5).log_normal_(),
    "Linear": lambda: nn.Linear(4, 4).weight.detach(),
    "numpy.rand": lambda: np.random.rand(5),
    "numpy.permutation": lambda: np.random.permutation(64),
    "numpy.standard_normal": lambda: np.random.standard_normal(5),
    "random": lambda: [random.random()],
    "random.sample": lambda: random.sample(range(1 << 30), 5),
    "random.gauss": lambda: [random.gauss(0, 1)],
}


@pytest.fixture
def fixed() -> Iterator[Any]:
    handle = randomness.fix_random_calls()
    yield handle
    handle.remove()


@pytest.mark.parametrize("draw", RANDOM_CALLS.values(), ids=RANDOM_CALLS.keys())
def test_a_fixed_call_repeats_its_values_and_an_ordinary_one_does_not(draw: Any) -> None:
    assert not np.array_equal(np.asarray(draw()), np.asarray(draw()))
    handle = randomness.fix_random_calls()
    try:
        first = np.asarray(draw())
        torch.rand(7), np.random.rand(7), random.random()
        assert np.array_equal(first, np.asarray(draw()))
    finally:
        handle.remove()
    assert not np.array_equal(np.asarray(draw()), np.asarray(draw()))


def test_a_generator_of_the_users_own_goes_on(fixed: Any) -> None:
    ours, theirs = torch.Generator().manual_seed(4), torch.Generator().manual_seed(4)
    drawn = [torch.rand(2, generator=ours) for _ in range(2)]
    assert torch.equal(torch.cat(drawn), torch.rand(4, generator=theirs))


def test_fixing_brings_back_the_generators_of_every_device_that_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [torch.tensor([1]), torch.tensor([2])]
    set_to: list[Any] = []
    ready = False
    npu = SimpleNamespace(
        is_initialized=lambda: ready, get_rng_state_all=lambda: list(states), set_rng_state_all=set_to.append
    )
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    monkeypatch.setattr(internals, "outside_device", lambda: "npu")
    handle = randomness.fix_random_calls()
    try:
        torch.rand(1)
        assert set_to == []
        # Its state at the first call after it came into use is the one that later calls go back to.
        ready = True
        torch.rand(1)
        assert set_to == []
        torch.rand(1)
        random.random()
        np.random.rand()
        assert set_to == [states]
    finally:
        handle.remove()


def test_undoing_the_fixing_leaves_no_trace() -> None:
    calls = [*random_calls(), *numpy_calls(), *python_calls()]

    def functions() -> list[Any]:
        return [vars(call.owner).get(call.name) for call in calls]

    before = functions()
    handle = randomness.fix_random_calls()
    assert all(now is not then for now, then in zip(functions(), before))
    handle.remove()
    assert [id(function) for function in functions()] == [id(function) for function in before]
    assert "uniform_" not in vars(torch.Tensor)
