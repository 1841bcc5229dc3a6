"""The first call that its inputs and rounding do not explain, in runs whose arithmetic numpy does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from divergence_runs import (
    Record,
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
from probe.compare.output import summary_text
from probe.compare.output.summary import fails, first_of, is_unjudged, summarise
from probe.compare.result import ComparisonResult


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


def test_a_second_fault_is_the_next_suspect(tmp_path: Path) -> None:
    faulty = chain(constant=1 + 1e-4, at=2)
    later = "Torch.tanh.4.forward"
    faulty[later]["output"] = [tensor(X * 5)]
    divergence = compared(tmp_path, faulty, chain(np.float64))
    assert named(divergence) == "Functional.linear.2.forward"
    assert divergence is not None and divergence.suspects[0].record == later


def test_nan_is_named_where_it_begins_on_either_side(tmp_path: Path) -> None:
    faulty, clean = chain(nan=3), chain(np.float64)
    assert named(compared(tmp_path / "1", faulty, clean)) == "Functional.linear.3.forward"
    assert named(compared(tmp_path / "2", clean, faulty)) == "Functional.linear.3.forward"
    assert compared(tmp_path / "3", faulty, chain(np.float64, nan=3)) is None
    found = compared(tmp_path / "4", faulty, clean)
    assert found is not None and found.first.found is None and found.first.allowed is None
    assert found.first.reason == "output.0 has a NaN in the target only; that does not come from its inputs"


def test_a_whole_number_that_differs_for_the_same_input_is_named(tmp_path: Path) -> None:
    runs = [{"Torch.argmax.0.forward": call([tensor(X)], whole([place]))} for place in (3, 4)]
    assert named(compared(tmp_path, *runs)) == "Torch.argmax.0.forward"


def test_labels_of_another_width_are_a_difference_within_one_framework(tmp_path: Path) -> None:
    runs = [
        {"Functional.embedding.0.forward": call([tensor(np.arange(4), dtype)], tensor(X))}
        for dtype in ("torch.int32", "torch.int64")
    ]
    reason = "input.0 is int32 and in the golden run int64"
    assert without_effect(result_of(tmp_path, *runs)) == [("Functional.embedding.0.forward", reason)]


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


def test_a_parameter_that_a_function_is_given_has_its_name_in_the_model(tmp_path: Path) -> None:
    function, module = "Functional.linear.0.forward", "Module.blocks.2.up.Linear.forward.0"
    runs = [
        {
            function: call([tensor(X), tensor(W * size)], tensor(X * size)),
            module: call([tensor(X)], tensor(X * size), weight=tensor(W * size)),
        }
        for size in (2, 1)
    ]
    divergence = compared(tmp_path, *runs, {function: module})
    assert divergence is not None and divergence.record in (function, module)
    assert divergence.first.reason == "parameter blocks.2.up.weight differs by 5.0e-01 of its size already"


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


def test_without_statistics_a_checksum_that_changes_inside_a_call_is_named(tmp_path: Path) -> None:
    def crc(text: str) -> Record:
        return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "requires_grad": False, "md5": text}

    names = [f"Torch.sin.{number}.forward" for number in range(3)]
    runs = [
        {
            names[0]: call([crc("00000000")], crc("11111111")),
            names[1]: call([crc("11111111")], crc(end)),
            names[2]: call([crc(end)], crc(end)),
        }
        for end in ("22222222", "33333333")
    ]
    divergence = compared(tmp_path, *runs)
    assert named(divergence) == names[1]
    assert divergence is not None and divergence.suspects == []


# --- how it is told


def test_the_stacks_of_both_sides_are_shown(tmp_path: Path) -> None:
    divergence = compared(tmp_path, chain(constant=2, at=0), chain())
    assert divergence is not None
    assert divergence.stack[0].startswith("File target.py, line 0")
    assert divergence.golden_stack[0].startswith("File golden.py, line 0")


def test_runs_that_have_nothing_in_common_are_not_the_same(tmp_path: Path) -> None:
    for target, golden in (({}, chain(calls=1)), ({}, {}), ({"Torch.sin.0.forward": call([], tensor(X))}, {})):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        write(folder / "target", target)
        write(folder / "golden", golden)
        summary = summarise(compare_dumps(read(folder / "target"), read(folder / "golden")))
        (line, _), *_ = summary_text.headline([summary])
        assert line == "cannot be told: no record of one dump matches a record of the other"
        assert is_unjudged([summary]) and not fails([summary], "divergence")


def test_of_several_ranks_the_one_that_did_not_get_it_from_another_is_named(tmp_path: Path) -> None:
    reduce = "Distributed.all_reduce.0.forward"
    clean = {**chain(calls=1), reduce: call([tensor(X)], tensor(X))}
    ranks = [
        {reduce: call([tensor(X)], tensor(X * 2))},
        {**chain(constant=2, at=0, calls=1), reduce: call([tensor(X)], tensor(X * 2))},
    ]
    summaries = []
    for number, target in enumerate(ranks):
        golden = {name: clean[name] for name in target}
        folder = tmp_path / f"rank{number}"
        write(folder / "target", target)
        write(folder / "golden", golden)
        result = compare_dumps(read(folder / "target"), read(folder / "golden"))
        result.label = folder.name
        summaries.append(summarise(result))
    assert [summary.divergence.record for summary in summaries if summary.divergence] == [
        reduce,
        "Functional.linear.0.forward",
    ]
    first = first_of(summaries)
    assert first is not None and first.label == "rank1"
    assert summary_text.headline(summaries)[0][0] == "first divergence: rank 1: Functional.linear.0.forward"
