"""Which calls, items and processes of two dumps belong together, and by what they were paired."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_dumps import call, tensor, tensor_of, write

from probe.common.align.calls import calls
from probe.common.align.counterparts import CallPair, call_pairs
from probe.common.align.dump_pairs import pair_processes
from probe.common.align.mapping import MatchOptions
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.sketch_writer import SketchWriter
from probe.common.numerics.sketch import sketch

# --- which calls and items of two dumps belong together, and by what they were paired

Array = Any
Run = dict[str, dict[str, Any]]
Tree = dict[str, Any]
NUMBERS = np.random.default_rng(20)
X = NUMBERS.standard_normal((8, 16))
WEIGHTS = [NUMBERS.standard_normal((16, 16)) / 4 for _ in range(8)]


def entry(values: Array, maker: str | None = None, dtype: str = "torch.float32") -> dict[str, Any]:
    """A tensor with its sketch, and what made it."""
    more = {} if maker is None else {"from": maker}
    return {**tensor_of(values, dtype), "sketch": sketch(np.asarray(values, np.float32)).packed(), **more}


def dump(folder: Path, run: Run, tree: Tree | None = None, **head: Any) -> Dump:
    """The dump of these calls; sketches and makers stand in a file of their own, if there are any."""
    writer = SketchWriter()
    for name, fields in run.items():
        writer.take(name, fields)
    write(folder, run, tree, **head)
    writer.write(str(folder))
    writer.close()
    return read(folder)


def pairs(
    folder: Path, target: Run, golden: Run, trees: Sequence[Tree | None] = ({}, {}), **heads: Any
) -> list[CallPair]:
    """The calls of two runs side by side."""
    frameworks = heads.pop("frameworks", ("pytorch", "pytorch"))
    dumps = [
        dump(folder / side, run, tree, framework=framework, **heads)
        for side, run, tree, framework in zip("ab", (target, golden), trees, frameworks)
    ]
    return call_pairs(dumps[0], dumps[1], calls(*dumps), MatchOptions())


def met(found: Sequence[CallPair]) -> dict[str, str]:
    return {pair.record: pair.golden_record for pair in found if pair.record and pair.golden_record}


def linear(x: Array, weight: Array, name: str = "weight") -> dict[str, Any]:
    return call([entry(x)], [entry(x @ weight.T)], parameters={name: entry(weight)})


# --- one program


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_calls_of_one_function_in_another_order_pair_by_what_they_take(tmp_path: Path, noise: float) -> None:
    """With noise, as behind a sum that is rounded in another order, they are the nearest and not equal."""
    first, second = X, 2 * NUMBERS.standard_normal(X.shape)

    def run(given: Sequence[Array]) -> Run:
        names = [f"Torch.exp.{n}" for n in range(len(given))]
        forward: Run = {f"{name}.forward": call([entry(x)], [entry(x / 2)]) for name, x in zip(names, given)}
        return {**forward, **{f"{name}.backward": {"input": [entry(x)]} for name, x in zip(names, given)}}

    golden = run([x + noise * NUMBERS.standard_normal(X.shape) for x in (second, first)])
    found = met(pairs(tmp_path, run([first, second]), golden))
    assert found == {
        f"Torch.exp.{n}.{way}": f"Torch.exp.{1 - n}.{way}" for n in (0, 1) for way in ("forward", "backward")
    }


def test_calls_keep_their_numbers_where_values_do_not_tell(tmp_path: Path) -> None:
    """Behind a divergence nothing is near to anything."""
    sides = [
        {f"Torch.exp.{n}.forward": call([entry(NUMBERS.standard_normal(X.shape))]) for n in range(4)} for _ in "ab"
    ]
    assert all(one == other for one, other in met(pairs(tmp_path, *sides)).items())


def test_a_call_more_moves_the_numbers_of_those_behind_it(tmp_path: Path) -> None:
    xs = [NUMBERS.standard_normal(X.shape) for _ in range(5)]
    golden = {f"Torch.exp.{n}.forward": call([entry(x)], [entry(x)]) for n, x in enumerate(xs)}
    target = {f"Torch.exp.{n}.forward": call([entry(x)], [entry(x)]) for n, x in enumerate([*xs[:2], X, *xs[2:]])}
    found = pairs(tmp_path, target, golden)
    assert met(found) == {f"Torch.exp.{n + (n > 1)}.forward": f"Torch.exp.{n}.forward" for n in range(5)}
    assert [pair.record for pair in found if pair.golden_record is None] == ["Torch.exp.2.forward"]
    # From the other side, too, and what that side has alone stands before its next call with a counterpart.
    back = pairs(tmp_path / "back", golden, target)
    assert [pair.golden_record for pair in back] == list(target)


def layers(numbers: Sequence[int]) -> Run:
    """Layers of a list: the weights of each, and zeros, which say nothing."""
    run: Run = {}
    for place, number in enumerate(numbers):
        for name, weight in (("fc.Linear", WEIGHTS[number]), ("norm.LayerNorm", np.zeros((16, 16)))):
            run[f"Module.layers.{place}.{name}.forward.0"] = linear(X, weight)
    return run


@pytest.mark.parametrize(
    ("target", "golden", "expected"),
    [
        # A copy of a layer after it, one of its own at the beginning, at the end, one removed, and two more.
        ([1, 2, 3, 3, 4], [1, 2, 3, 4], [0, 1, 2, None, 3]),
        ([7, 1, 2, 3, 4], [1, 2, 3, 4], [None, 0, 1, 2, 3]),
        ([1, 2, 3, 7], [1, 2, 3], [0, 1, 2, None]),
        ([1, 3, 4], [1, 2, 3, 4], [0, 2, 3]),
        ([1, 6, 2, 3, 7, 4], [1, 2, 3, 4], [0, None, 1, 2, None, 3]),
        # One inserted and another one wrong, which keeps its place; and nothing to go by.
        ([1, 6, 2, 7, 4, 5], [1, 2, 3, 4, 5], [0, None, 1, 2, 3, 4]),
        ([6, 7], [1, 2, 3], [0, 1]),
        # As many are wrong, not moved.
        ([1, 3, 2, 4], [1, 2, 3, 4], [0, 1, 2, 3]),
    ],
)
def test_layers_whose_numbers_have_moved_pair_by_their_parameters(
    tmp_path: Path, target: list[int], golden: list[int], expected: list[int | None]
) -> None:
    found = met(pairs(tmp_path, layers(target), layers(golden)))
    for name in ("fc.Linear", "norm.LayerNorm"):
        partners = [found.get(f"Module.layers.{n}.{name}.forward.0", "....") for n in range(len(target))]
        assert [int(other.split(".")[2]) if other != "...." else None for other in partners] == expected


def test_calls_of_an_optimizer_pair_by_their_parameter(tmp_path: Path) -> None:
    def run(names: str) -> tuple[Run, Tree]:
        made: Run = {}
        for n, name in enumerate(names):
            made[f"Tensor.mul_.{n}.forward"] = call([entry(NUMBERS.standard_normal(X.shape), f"gradient:{name}")])
            made[f"Tensor.add_.{n}.forward"] = call([entry(NUMBERS.standard_normal(X.shape), f"parameter:{name}")])
        return made, dict.fromkeys(made, "optimizer")

    (target, tree), (golden, other_tree) = run("abcd"), run("acdb"[:3] + "b")
    found = met(pairs(tmp_path, target, golden, (tree, other_tree)))
    assert found == {
        f"Tensor.{f}.{n}.forward": f"Tensor.{f}.{'acdb'.index(name)}.forward"
        for f in ("mul_", "add_")
        for n, name in enumerate("abcd")
    }


def test_what_is_computed_again_has_no_counterpart_and_is_marked(tmp_path: Path) -> None:
    first = {"Torch.exp.0.forward": call([entry(X)], [entry(X * 2)])}
    again = {
        **first,
        "Torch.exp.1.forward": call([entry(X)], [entry(X * 2)]),
        "Torch.exp.1.backward": {"input": [entry(X)]},
    }
    found = pairs(tmp_path, again, {**first, "Torch.exp.0.backward": {"input": [entry(X)]}})
    assert met(found) == {"Torch.exp.0.forward": "Torch.exp.0.forward", "Torch.exp.1.backward": "Torch.exp.0.backward"}
    assert [pair.how for pair in found] == ["", "recomputed", ""]


# --- two programs


def network(names: Sequence[str], fault: int | None = None, noise: float = 0.0, flat: bool = False) -> Run:
    """A chain of layers; one of them may be wrong, and everything may be noisy."""
    run: Run = {}
    x = X
    for number, name in enumerate(names):
        y = np.tanh(x @ WEIGHTS[number].T) * (1.5 if number == fault else 1)
        y = y * (1 + noise * NUMBERS.standard_normal(y.shape))
        given, made = (each.reshape(2, 4, 16) if flat else each for each in (x, y))
        run[name] = call([entry(given)], [entry(made)], parameters={"weight": entry(WEIGHTS[number])})
        x = y
    return run


ONE = [f"Module.model.blocks.{n}.dense.Linear.forward.0" for n in range(6)]
OTHER = [f"Module.net.h.{n // 2}.{'ab'[n % 2]}.Conv1D.forward.0" for n in range(6)]


@pytest.mark.parametrize("noise", [0.0, 4e-3])
@pytest.mark.parametrize("fault", [None, 0, 3])
def test_layers_of_two_programs_pair_by_their_parameters(tmp_path: Path, fault: int | None, noise: float) -> None:
    found = pairs(tmp_path, network(ONE, fault, noise), network(OTHER, flat=True))
    assert met(found) == dict(zip(ONE, OTHER))


def test_a_fused_layer_has_no_counterpart(tmp_path: Path) -> None:
    target = {"Module.att.qkv.Linear.forward.0": linear(X, np.concatenate(WEIGHTS[5:])), **network(ONE[3:])}
    golden = {f"Module.h.{name}.Linear.forward.0": linear(X, WEIGHTS[5 + n]) for n, name in enumerate("qkv")}
    found = pairs(tmp_path, target, {**golden, **network(OTHER[3:])})
    assert met(found) == dict(zip(ONE[3:], OTHER[3:]))


# --- which processes of two runs belong together where they have no ranks


def dump_of_calls(folder: Path, names: list[str], largest: float = 1.0) -> str:
    return str(write(folder, {f"Torch.{name}.0.forward": call([tensor(largest)]) for name in names}))


def side(folder: Path, *works: tuple[list[str], float]) -> list[str]:
    return [dump_of_calls(folder / str(index), names, largest) for index, (names, largest) in enumerate(works)]


A, B, CHANGED_B = ["sin", "cos", "tan"], ["relu", "tanh", "exp"], ["relu", "tanh", "log"]


@pytest.mark.parametrize(
    ("target", "golden", "pairs"),
    [
        ([(A, 1.0), (B, 1.0)], [(B, 1.0), (A, 1.0)], [(0, 1), (1, 0)]),
        ([(A, 1.0), (CHANGED_B, 1.0)], [(B, 2.0), (A, 2.0)], [(0, 1), (1, 0)]),
        # The same calls: by their first values, and else by their order.
        ([(A, 1.0), (A, 2.0)], [(A, 2.0), (A, 1.0)], [(0, 1), (1, 0)]),
        ([(A, 1.0), (A, 2.0)], [(A, 3.0), (A, 4.0)], [(0, 0), (1, 1)]),
        ([(A, float("nan")), (A, 2.0)], [(A, 2.0), (A, float("nan"))], [(0, 1), (1, 0)]),
        # Nothing in common, and one too many.
        ([(A, 1.0), (B, 1.0)], [(["abs"], 1.0), (["add"], 1.0)], [(0, 0), (1, 1)]),
        ([(A, 1.0), (B, 1.0)], [(B, 1.0)], [(1, 0)]),
        ([], [(B, 1.0)], []),
    ],
)
def test_processes_are_paired_by_what_they_ran(
    tmp_path: Path, target: list[Any], golden: list[Any], pairs: list[tuple[int, int]]
) -> None:
    assert pair_processes(side(tmp_path / "t", *target), side(tmp_path / "g", *golden)) == pairs


def test_a_dump_that_cannot_be_read_is_paired_by_its_order(tmp_path: Path) -> None:
    target, golden = side(tmp_path / "t", (A, 1.0), (B, 1.0)), side(tmp_path / "g", (A, 1.0), (B, 1.0))
    (tmp_path / "t" / "1" / "dump.json").write_text("no dump")
    assert pair_processes(target, golden) == [(0, 0), (1, 1)]
