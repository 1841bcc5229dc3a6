"""What `seed_all` does to a MindSpore program.

What cannot be undone within a process (seeds, deterministic mode, variables) is observed in one of its own.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forks
import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore.common.initializer import initializer
from mindspore.ops import Dropout as Dropout_imported_before
from mindspore.ops import dropout as dropout_imported_before

import probe
from probe.backends.mindspore import randomness
from probe.backends.mindspore.randomness import random_calls
from probe.backends.shared.randomness import numpy_calls, python_calls

VARIABLES = ("PYTHONHASHSEED", "HCCL_DETERMINISTIC")
PRELUDE = """
import json, os, random
import numpy as np
import mindspore as ms
from mindspore import Tensor, mint, nn, ops
from mindspore.common.initializer import initializer
from functools import partial
from probe.api import randomness as api
from probe.backends.mindspore import randomness
seed_all = partial(api.seed_all, randomness)
def draw():
    drawn = [random.random(), np.random.rand(2).tolist(), ops.randn(3).asnumpy().tolist()]
    return drawn + [initializer("normal", [3], ms.float32).init_data().asnumpy().tolist()]
def answer(value):
    print("ANSWER", json.dumps(value))
"""


def python(code: str, **variables: str) -> Any:
    """Run `code` after PRELUDE in a process of its own and return what it gave to ``answer``."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    # The very package that is tested here, installed or not.
    environment.update(variables, PYTHONPATH=str(Path(probe.__file__).parents[1]), GLOG_v="3")
    done = forks.run_python("mindspore", Path.cwd() / "program.py", code=PRELUDE + code, environment=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.split("ANSWER", 1)[1])


def test_generators_start_from_the_seed_and_fixed_values_are_the_first_after_it() -> None:
    told = python("""
ones = Tensor(np.ones(256, np.float32))
def kept():
    return bool((ops.dropout(ones).asnumpy() == 1).all()), bool((ops.Dropout(0.5)(ones)[0].asnumpy() == 1).all())
seed_all(seed=0); seed_all(seed=2 ** 32 - 1); seed_all(seed=99); plain = draw()
seeds = [ms.get_seed(), ms.initial_seed(), os.environ["PYTHONHASHSEED"]]
drops = [kept()]; seed_all(seed=99, rm_dropout=True); drops.append(kept())
seed_all(seed=99); again = draw()
seed_all(seed=99, is_enhanced=True); fixed = [draw()[2], draw()[2]]
seed_all(seed=2); later = [draw(), draw()]
ms.set_seed(5)
answer([plain, again, fixed, later, draw(), seeds, drops])
""")
    plain, again, fixed, later, reseeded, seeds, drops = told
    assert plain == again and plain[:2] == [random.Random(99).random(), np.random.RandomState(99).rand(2).tolist()]
    assert seeds == [99, 99, "99"] and drops == [[False, False], [True, True]]
    assert fixed == [plain[2]] * 2 and later[0] == later[1] == reseeded
    assert all(ours != theirs for ours, theirs in zip(plain, later[0]))


def test_mode_switches_deterministic_operators_on_and_off_again() -> None:
    told = python("""
told = []
for mode in (False, True, True, False, True):
    seed_all(mode=mode)
    told.append([ms.get_context("deterministic"), os.environ["HCCL_DETERMINISTIC"]])
answer(told)
""")
    on, off = ["ON", "True"], ["OFF", "False"]
    assert told == [off, on, on, off, on]


def test_mode_keeps_other_deterministic_values_of_the_user_and_corrects_the_rest() -> None:
    code = "seed_all(mode=True); answer(os.environ['HCCL_DETERMINISTIC'])"
    assert python(code, HCCL_DETERMINISTIC="strict") == "strict"
    assert python(code, HCCL_DETERMINISTIC="false") == "True"


# --- dropout


@pytest.fixture
def no_dropout() -> Iterator[Any]:
    handle = randomness.remove_dropout()
    yield handle
    handle.remove()


ONES = Tensor(np.ones((2, 8, 4, 4, 4), np.float32))
FLAT = Tensor(np.ones((4, 64), np.float32))
IMAGE = Tensor(np.ones((2, 64, 4, 4), np.float32))
SEQUENCE = Tensor(np.ones((2, 64, 4), np.float32))

# What computes on a CPU: the way to drop, and something to drop from.
PRIMITIVES = {
    "ops.Dropout": (lambda x: ops.Dropout(0.5)(x)[0], FLAT),
    "ops.Dropout2D": (lambda x: ops.Dropout2D(0.5)(x)[0], IMAGE),
    "ops.Dropout3D": (lambda x: ops.Dropout3D(0.5)(x)[0], ONES),
    "ops.operations.Dropout": (lambda x: ops.operations.Dropout(keep_prob=0.5)(x)[0], FLAT),
    "imported before": (lambda x: Dropout_imported_before(0.5)(x)[0], FLAT),
    "nn.Dropout": (lambda x: nn.Dropout(p=0.5).set_train()(x), FLAT),
    "nn.Dropout keep_prob": (lambda x: nn.Dropout(0.4).set_train()(x), FLAT),
    "nn.Dropout2d": (lambda x: nn.Dropout2d(0.5).set_train()(x), IMAGE),
    "nn.Dropout3d": (lambda x: nn.Dropout3d(0.5).set_train()(x), ONES),
}
FUNCTIONS = {
    "ops.dropout": (lambda x: ops.dropout(x, p=0.5), FLAT),
    "ops.dropout seed": (lambda x: ops.dropout(x, 0.5, True, seed=3), FLAT),
    "ops.dropout1d": (lambda x: ops.dropout1d(x, 0.5), SEQUENCE),
    "ops.dropout2d": (lambda x: ops.dropout2d(x, 0.5), IMAGE),
    "ops.dropout3d": (lambda x: ops.dropout3d(x, 0.5), ONES),
    "imported before": (lambda x: dropout_imported_before(x, p=0.5), FLAT),
    "nn.Dropout1d": (lambda x: nn.Dropout1d(0.5).set_train()(x), SEQUENCE),
}
# These have no kernel for CPU, so only that they are not called can be seen here.
ELSEWHERE = {
    "mint.nn.functional.dropout": (lambda x: mint.nn.functional.dropout(x, 0.5, training=True), FLAT),
    "mint.nn.functional.dropout2d": (lambda x: mint.nn.functional.dropout2d(x, 0.5), IMAGE),
    "mint.nn.Dropout": (lambda x: mint.nn.Dropout(0.5).set_train()(x), FLAT),
    "mint.nn.Dropout2d": (lambda x: mint.nn.Dropout2d(0.5).set_train()(x), IMAGE),
    "nn.DropoutExt": (lambda x: nn.DropoutExt(0.5).set_train()(x), FLAT),
}
DROPS = {**PRIMITIVES, **FUNCTIONS}
if hasattr(nn, "Dropout2dExt"):
    ELSEWHERE["nn.Dropout2dExt"] = (lambda x: nn.Dropout2dExt(0.5).set_train()(x), IMAGE)


def keeps_all(drop: Any, x: Any) -> bool:
    return bool((drop(x).asnumpy() == x.asnumpy()).all())


@pytest.mark.parametrize("way", DROPS)
def test_dropout_drops_unless_it_was_removed(way: str) -> None:
    drop, x = DROPS[way]
    assert not keeps_all(drop, x)
    handle = randomness.remove_dropout()
    try:
        assert keeps_all(drop, x)
    finally:
        handle.remove()
    assert not keeps_all(drop, x)


@pytest.mark.parametrize("way", [*FUNCTIONS, *ELSEWHERE])
def test_a_removed_function_returns_its_input_itself(no_dropout: Any, way: str) -> None:
    drop, x = {**FUNCTIONS, **ELSEWHERE}[way]
    assert drop(x) is x


def test_every_public_name_of_dropout_is_known_here() -> None:
    modules = {"ops": ops, "mint.nn": mint.nn, "mint.nn.functional": mint.nn.functional, "nn": nn}
    # Parts of a dropout, of which the mask alone draws, and which nobody calls as a dropout.
    parts = {"ops.DropoutDoMask", "ops.DropoutGenMask"}
    found = {f"{path}.{name}" for path, module in modules.items() for name in dir(module) if "dropout" in name.lower()}
    assert {name for name in found - parts if callable(operator(name))} == {
        name for name in (*DROPS, *ELSEWHERE) if " " not in name and "operations" not in name
    }


def operator(name: str) -> Any:
    place: Any = ms
    for part in name.split("."):
        place = getattr(place, part)
    return place


def test_a_primitive_that_exists_already_goes_on_dropping() -> None:
    early = [ops.Dropout(0.5), nn.Dropout(p=0.5).set_train()]
    early_function = nn.Dropout1d(0.5).set_train()
    handle = randomness.remove_dropout()
    try:
        assert not keeps_all(lambda x: early[0](x)[0], FLAT)
        assert not keeps_all(early[1], FLAT)
        assert early_function(SEQUENCE) is SEQUENCE
    finally:
        handle.remove()
    assert not keeps_all(early_function, SEQUENCE)


def test_attention_keeps_all_where_dropout_was_removed(no_dropout: Any) -> None:
    attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True).set_train()
    x = Tensor(np.random.RandomState(0).rand(1, 4, 8).astype(np.float32))
    first, second = (attention(x, x, x)[0].asnumpy() for _ in range(2))
    assert np.array_equal(first, second)


def test_gradients_pass_a_removed_dropout_unchanged(no_dropout: Any) -> None:
    layers = [nn.Dropout(p=0.5).set_train(), nn.Dropout1d(0.5).set_train(), ops.dropout]
    for layer in layers:
        gradient = ms.grad(lambda x, layer=layer: layer(x * 2).sum())(SEQUENCE)
        assert (gradient.asnumpy() == 2).all()


def test_a_removed_primitive_still_has_two_outputs_of_the_usual_types(no_dropout: Any) -> None:
    output, mask = ops.Dropout(0.25)(FLAT)
    assert output.shape == mask.shape == FLAT.shape and mask.asnumpy().all()
    assert isinstance(ops.Dropout(0.25), ops.Primitive)


def test_compiled_code_keeps_all_too(no_dropout: Any) -> None:
    @ms.jit
    def compiled(x: Any) -> Any:
        return ops.Dropout(0.5)(ops.dropout(x, p=0.5))[0]

    assert keeps_all(compiled, FLAT)


def dropouts_now() -> list[Any]:
    functions = [getattr(ops, name) for name in ("dropout", "dropout1d", "dropout2d", "dropout3d")]
    functions += [mint.nn.functional.dropout, mint.nn.functional.dropout2d, nn.DropoutExt.construct]
    primitives = [ops.Dropout, ops.Dropout2D, ops.Dropout3D]
    return [*functions, *(function.__code__ for function in functions), *(vars(one)["__init__"] for one in primitives)]


def ids(parts: list[Any]) -> list[int]:
    return [id(part) for part in parts]


def test_undoing_brings_back_the_very_same_functions() -> None:
    before = dropouts_now()
    first, second = randomness.remove_dropout(), randomness.remove_dropout()
    during = dropouts_now()
    second.remove()
    assert ids(dropouts_now()) == ids(during)
    first.remove()
    first.remove()
    assert ids(dropouts_now()) == ids(before)
    # Functions never lost their identity, only their code.
    assert ids(during[:7]) == ids(before[:7]) and not set(ids(during[7:])) & set(ids(before[7:]))


def test_a_dropout_that_someone_wrapped_is_replaced_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ops.dropout

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    monkeypatch.setattr(ops, "dropout", wrapped)
    handle = randomness.remove_dropout()
    assert ops.dropout(FLAT, p=0.5, seed=1) is FLAT
    handle.remove()
    assert ops.dropout is wrapped


# --- repeated values

HALVES = Tensor(np.full((64,), 0.5, np.float32))
ZERO, ONE = Tensor(0.0), Tensor(1.0)
RANDOM_CALLS: dict[str, Any] = {
    "ops.rand": lambda: ops.rand(5),
    "ops.randn": lambda: ops.randn(5),
    "ops.randint": lambda: ops.randint(0, 1 << 30, (5,)),
    "ops.rand_like": lambda: ops.rand_like(HALVES),
    "ops.randn_like": lambda: ops.randn_like(HALVES),
    "ops.normal": lambda: ops.normal((5,), ZERO, ONE),
    "ops.uniform": lambda: ops.uniform((5,), ZERO, ONE),
    "ops.uniform seed": lambda: ops.uniform((5,), ZERO, ONE, seed=2),
    "ops.standard_normal": lambda: ops.standard_normal((5,)),
    "ops.standard_laplace": lambda: ops.standard_laplace((5,)),
    "ops.laplace": lambda: ops.laplace((5,), ZERO, ONE),
    "ops.random_poisson": lambda: ops.random_poisson(Tensor([8], ms.int32), Tensor([100.0])),
    "ops.multinomial": lambda: ops.multinomial(HALVES, 32),
    "ops.shuffle": lambda: ops.shuffle(HALVES.cumsum(0)),
    "Tensor.multinomial": lambda: HALVES.multinomial(32),
    "initializer": lambda: initializer("normal", [5], ms.float32).init_data(),
    "nn.Dense": lambda: nn.Dense(4, 4).weight,
    "numpy.rand": lambda: np.random.rand(5),
    "numpy.permutation": lambda: np.random.permutation(64),
    "random": lambda: [random.random()],
    "random.sample": lambda: random.sample(range(1 << 30), 5),
}


def values(drawn: Any) -> Any:
    return drawn.asnumpy() if isinstance(drawn, Tensor) else np.asarray(drawn)


@pytest.fixture
def seeded() -> Iterator[None]:
    """Without a seed MindSpore's operators draw from the clock."""
    states = randomness.get_states()
    ms.set_seed(7)
    yield
    randomness.set_states(states)


@pytest.mark.parametrize("call", RANDOM_CALLS)
def test_a_fixed_call_repeats_its_values_and_an_ordinary_one_does_not(seeded: None, call: str) -> None:
    draw = RANDOM_CALLS[call]
    assert not np.array_equal(values(draw()), values(draw()))
    handle = randomness.fix_random_calls()
    try:
        first = values(draw())
        ops.randn(7), np.random.rand(7), random.random()
        assert np.array_equal(first, values(draw()))
    finally:
        handle.remove()
    assert not np.array_equal(values(draw()), values(draw()))


def test_the_generator_of_mint_is_brought_back(seeded: None) -> None:
    step = Tensor(12, ms.int64)
    generator = ms.common.generator.default_generator

    def drawn() -> list[int]:
        return [int(part.asnumpy()) for part in generator._step(step)]

    ms.manual_seed(4)
    states = randomness.get_states()
    first = drawn()
    ms.manual_seed(9)
    assert drawn() != first
    randomness.set_states(states)
    assert ms.initial_seed() == 4 and drawn() == first


def test_undoing_the_fixing_leaves_no_trace() -> None:
    calls = [*random_calls(), *numpy_calls(), *python_calls()]

    def functions() -> list[Any]:
        return [vars(call.owner).get(call.name) for call in calls]

    before = functions()
    handle = randomness.fix_random_calls()
    assert all(now is not then for now, then in zip(functions(), before))
    handle.remove()
    assert ids(functions()) == ids(before)
