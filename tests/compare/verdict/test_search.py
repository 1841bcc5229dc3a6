"""The first call that its inputs and rounding do not explain, in runs whose arithmetic numpy does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import (
    RNG,
    Array,
    Run,
    W,
    X,
    backward,
    call,
    chain,
    compared,
    named,
    result_of,
    tensor,
    whole,
    write,
)
from made_dumps import plain

from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps
from probe.compare.result import ComparisonResult

# --- the first call that its inputs and rounding do not explain, in runs whose arithmetic numpy does


def without_effect(result: ComparisonResult) -> list[tuple[str, str]]:
    """The records and reasons of differences that changed no value; nothing diverged."""
    assert result.divergence is None
    return [(difference.record, difference.reason) for difference in result.without_effect]


# --- what is named


@pytest.mark.parametrize("constant", [1 + 1e-4, 2.0, -1.0, 0.0])
def test_a_wrong_constant_is_named_and_not_what_it_causes(tmp_path: Path, constant: float) -> None:
    faulty, clean = chain(constant=constant, at=3), chain(np.float64)
    forth, back = compared(tmp_path / "1", faulty, clean), compared(tmp_path / "2", clean, faulty)
    assert named(forth) == named(back) == "Functional.linear.3.forward"
    assert forth is not None and forth.suspects == []
    assert forth.first.item == "Functional.linear.3.forward.output.0"
    assert forth.first.found is not None and forth.first.allowed is not None
    # Of a changed sign only what is not symmetric shows in statistics.
    assert forth.first.found > abs(constant - 1) * 0.1 > forth.first.allowed


@pytest.mark.parametrize("kept", [("Max",), ("Norm",), ("Max", "Min", "Mean")])
def test_a_wrong_constant_is_named_where_not_all_statistics_were_taken(tmp_path: Path, kept: tuple[str, ...]) -> None:
    wrong, right = chain(constant=1.25, at=3), chain()
    for data in (wrong, right):
        for record in data.values():
            for item in [*record["input_args"], *record["output"]]:
                for statistic in {"Max", "Min", "Mean", "Norm"}.difference(kept):
                    del item[statistic]
    assert named(compared(tmp_path / "differ", wrong, right)) == "Functional.linear.3.forward"
    assert compared(tmp_path / "same", right, right) is None


def test_nan_is_named_where_it_begins_on_either_side(tmp_path: Path) -> None:
    faulty, clean = chain(nan=3), chain(np.float64)
    assert named(compared(tmp_path / "1", faulty, clean)) == "Functional.linear.3.forward"
    assert named(compared(tmp_path / "2", clean, faulty)) == "Functional.linear.3.forward"
    assert compared(tmp_path / "3", faulty, chain(np.float64, nan=3)) is None
    found = compared(tmp_path / "4", faulty, clean)
    assert found is not None and found.first.found is None and found.first.allowed is None
    assert found.first.reason == "output.0 has a NaN in the target only; that does not come from its inputs"


def test_another_argument_is_the_cause_where_values_diverge_and_else_a_difference(tmp_path: Path) -> None:
    name, reason = "Functional.softmax.0.forward", "dim is 0 and in the golden run 1"
    runs = [{name: call([tensor(X), plain(dim)], tensor(X))} for dim in (0, 1)]
    assert without_effect(result_of(tmp_path / "same", *runs)) == [(name, reason)]
    runs[0][name]["output"] = [tensor(X * 1.5)]
    divergence = compared(tmp_path / "other", *runs)
    assert divergence is not None and divergence.first.cause == reason
    assert divergence.first.reason.startswith("output.0 differs by 3.3e-01 of its size")


def test_whole_numbers_in_another_order_are_named_where_values_were_compared(tmp_path: Path) -> None:
    places = np.array([3, 1, 2], np.int64)
    runs = []
    for side, order in (("target", places[::-1]), ("golden", places)):
        data = tmp_path / side / "dump_tensor_data"
        run = {"Torch.argsort.0.forward": call([tensor(X)], tensor(order, "torch.int64", data_name="a.npy"))}
        write(tmp_path / side, run, task="tensor")
        data.mkdir()
        np.save(data / "a.npy", order)
        runs.append(read(tmp_path / side))
    assert named(compare_dumps(*runs).divergence) == "Torch.argsort.0.forward"


def test_a_wrong_gradient_between_modules_is_not_explained_by_what_is_computed_from_it(tmp_path: Path) -> None:
    def run(factor: float) -> tuple[Run, dict[str, str | None]]:
        gradient = (X * factor).astype(np.float32)
        names = [f"Module.block.{part}.Linear.backward.0" for part in ("last", "first")]
        data: Run = {
            "Module.block.first.Linear.forward.0": call([tensor(X)], tensor(X @ W), weight=tensor(W)),
            "Module.block.last.Linear.forward.0": call([tensor(X @ W)], tensor(X @ W @ W), weight=tensor(W)),
            "Module.block.Block.forward.0": call([tensor(X)], tensor(X @ W @ W)),
            names[0]: backward([tensor(X)], tensor(X @ W.T)),
            # Complete before the backward that it comes of.
            "Module.block.first.Linear.parameters_grad.0": {"weight": [tensor(X.T @ gradient)]},
            names[1]: backward([tensor(gradient)], tensor(gradient @ W.T)),
            "Module.block.Block.backward.0": backward([tensor(X)], tensor(gradient @ W.T)),
        }
        return data, dict.fromkeys(names, "Module.block.Block.backward.0")

    (target, tree), (golden, _) = run(1.05), run(1.0)
    divergence = compared(tmp_path, target, golden, tree, level="L0")
    assert named(divergence) == "Module.block.Block.backward.0"
    assert divergence is not None and "Module.block.first.Linear.backward.0" in divergence.first.reason


# --- differences that inputs and rounding explain are no divergence, in runs whose arithmetic numpy does


def test_a_gradient_that_is_nothing_but_rounding_is_explained(tmp_path: Path) -> None:
    gradient = RNG.normal(size=(4096, 8)).astype(np.float32)
    gradient -= gradient.mean(0)
    sums = [gradient.sum(0), gradient[::-1].sum(0)]
    assert abs(sums[0] - sums[1]).max() > 1e-3 * abs(sums[1]).max()
    runs = [{"Torch.add.0.backward": backward([tensor(gradient)], tensor(each))} for each in sums]
    assert compared(tmp_path, *runs) is None


def test_a_number_of_results_may_change_with_a_whole_number(tmp_path: Path) -> None:
    """A token goes to another expert: the expert's input has a row more, and nothing else is wrong."""
    runs = []
    for count, y in ((3, X * np.float32(1 + 1e-7)), (2, X)):
        rows = whole(np.arange(count))
        runs.append(
            {
                "Functional.linear.0.forward": call([tensor(X)], tensor(y)),
                "Torch.where.0.forward": call([whole([1, 2])], rows),
                "Torch.index_select.0.forward": call([tensor(y), rows], tensor(y[:count])),
                "Functional.linear.1.forward": call([tensor(y[:count]), tensor(W)], tensor(y[:count] @ W)),
            }
        )
    assert compared(tmp_path, *runs) is None


@pytest.mark.parametrize("function", ["Tensor.__setitem__", "Tensor.masked_scatter_", "Torch._foreach_copy_"])
def test_memory_that_is_written_over_may_hold_anything(tmp_path: Path, function: str) -> None:
    runs = [
        {f"{function}.0.forward": call([whole(garbage), whole([1]), whole([2])], whole([2, 2]))}
        for garbage in ([77, 8], [0, 123456])
    ]
    assert compared(tmp_path, *runs) is None


# --- what an optimizer did otherwise between two steps, told by the parameters before and after it alone

RATE = np.float32(1e-4)
RANDOM = np.random.default_rng(7)
WEIGHTS, GRADIENTS = (
    [(RANDOM.normal(mean, 1, size=(16, 64)) / size).astype(np.float32) for _ in range(6)]
    for mean, size in ((0.2, 8), (0.5, 1))
)


def step(folder: Path, weights: list[Array]) -> str:
    """One step: the layers with their weights, and the gradients of these."""
    data: Run = {}
    for layer, weight in enumerate(weights):
        # A module may be called so.
        name = f"Module.parameters.{layer}.Linear"
        data[f"{name}.forward.0"] = call([tensor(X)], tensor(X), weight=tensor(weight))
        data[f"{name}.parameters_grad.0"] = {"weight": [tensor(GRADIENTS[layer])]}
    return str(write(folder, data, level="L0"))


@pytest.mark.parametrize(
    ("rate", "decay", "frozen", "expected"),
    [
        (2 * RATE, 0.0, -1, "updates are 2 times those of the golden run: another learning rate"),
        (RATE, 0.1, -1, "updates take 1e-05 of the parameter more away: another weight decay"),
        (RATE, 0.0, 2, "parameters.2.weight stays as it was in the target"),
    ],
)
def test_another_update_is_told_with_its_size(
    tmp_path: Path, rate: float, decay: float, frozen: int, expected: str
) -> None:
    def weights(rate: float, decay: float, frozen: int) -> list[Array]:
        pairs = zip(WEIGHTS, GRADIENTS)
        moved = [w - np.float32(rate) * (gradient + np.float32(decay) * w) for w, gradient in pairs]
        return [WEIGHTS[layer] if layer == frozen else each for layer, each in enumerate(moved)]

    before = step(tmp_path / "a" / "step0", WEIGHTS), step(tmp_path / "b" / "step0", WEIGHTS)
    golden = read(step(tmp_path / "b" / "step1", weights(RATE, 0.0, -1)))
    for name, settings, cause in (("a", (rate, decay, frozen), expected), ("same", (RATE, 0.0, -1), "")):
        target = read(step(tmp_path / name / "step1", weights(*settings)))
        found = compare_dumps(target, golden, before=before).divergence
        assert (found is not None) == bool(cause)
        if found is not None:
            assert found.first.cause.startswith(f"the optimizer step before this step diverges: {cause}")


# --- calls of an optimizer where one side has a parameter more: each is held against the one of the same parameter

Arrays = dict[str, "np.ndarray[Any, Any]"]


def run(names: str, arrays: Arrays) -> tuple[Run, dict[str, str | None]]:
    """Identity layers, and an optimizer that adds to the parameter of each."""
    data: Run = {
        f"Module.{name}.Linear.forward.0": call([tensor(X)], tensor(X), weight=tensor(arrays[name])) for name in names
    }
    tree: dict[str, str | None] = {}
    for place, name in enumerate(names):
        old = arrays[name]
        # A second call gets what the first made, and nothing that the model has recorded.
        for function, given, made in (("add_", old, old * 2), ("mul_", old * 2, old * 3)):
            record = f"Tensor.{function}.{place}.forward"
            data[record] = call([tensor(given)], tensor(made))
            tree[record] = "optimizer"
    return data, tree
