"""Ranks that train in real processes, compared with each other: a planted fault is named, a right run has none."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import forks
import pytest
from free_port import free_port

from probe.api import cli
from probe.compare.ranks.answer import compare_ranks, lines

pytest.importorskip("torch")
SCRIPT = Path(__file__).with_name("replica_training.py")
WORLD = 3
RIGHT = {
    "ddp": "the mean",
    "clipped": "the sum times 0.00704",
    "micro-batches": "the mean",
    "accumulated": "the sum divided by the number of ranks two times",
    "clipped in parts": "the sum times 0.0",
    "bfloat16": "the mean",
    "by hand": "the mean",
    "sum": "the sum",
    "scattered": "the mean",
    "same data": "the mean",
}
WRONG = {
    "plain": ("gradient of embed.weight, first.weight, first.bias, last.weight, last.bias", "never reduced"),
    "no_sync": ("gradient of module.embed.weight", "each rank took its own: never reduced"),
    "ignored": ("gradient of module.first.weight:", "never reduced"),
    "one is forgotten": ("gradient of first.weight:", "never reduced"),
    "reduced twice": ("Distributed.all_reduce.0.forward", "reduced two times", "DistributedDataParallel, or the call"),
    "divided twice": ("gradient of module.embed.weight", "the sum divided by the number of ranks two times"),
    "another group": (
        "gradient of embed.weight",
        "ranks 0, 1 the sum over ranks 0, 1 alone: another group and rank 2 what rank 2 itself",
    ),
    "another seed": ("replicas differ: embed.weight", "they never were the same", "broadcast the parameters"),
    "one is a sum": ("gradient of module.first.weight: all ranks took the sum, and of most parameters the mean",),
    "library without a broadcast": ("Distributed.broadcast.0.forward returned what each rank", "what rank 0 gave"),
    "library without a reduction": ("Distributed.all_reduce.0.forward and 4 more returned", "never reduced"),
    "library with a mean": ("Distributed.all_reduce.0.forward and 4 more returned the mean; expected the sum",),
    "library that sums twice": ("returned the sum times the number of ranks: reduced two times; expected the sum",),
    "library that scatters a mean": (
        "reduce_scatter_tensor.0.forward returned the sum divided by the number of ranks, by its norm",
    ),
    "library that gathers nothing": ("all_gather_into_tensor.0.forward returned a tensor with norm",),
    "library with another group": ("returned the sum over ranks 0, 1 alone: another group; expected the sum",),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, port = tmp_path_factory.mktemp("ranks"), str(free_port())
    arguments = [(str(folder), str(rank), port, str(WORLD), *RIGHT, *WRONG, "split") for rank in range(WORLD)]
    environment = {**os.environ, "PYTHONPATH": forks.CHECKOUT}
    server = forks.server(*forks.with_tool("torch"))
    for process in server.run(SCRIPT, *arguments, environment=environment, timeout=150):
        assert process.said == ["trained"], (process.status, process.out, process.err)
    return folder


@pytest.mark.parametrize("name", RIGHT)
def test_right_reductions_are_named_and_nothing_is_found(runs: Path, name: str) -> None:
    answer = compare_ranks(str(runs / name))
    assert answer.findings == []
    assert any(f"the optimizer took {RIGHT[name]}" in fact for fact in answer.facts), answer.facts
    assert answer.checked > 20 and answer.replicas == 10
    assert any("the ranks read the same data" in fact for fact in answer.facts) == (name == "same data"), answer.facts


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_is_the_first_finding(runs: Path, name: str) -> None:
    answer = compare_ranks(str(runs / name))
    text = "\n".join(line for line, _ in lines(answer))
    assert answer.findings[0].step == 0, text
    assert not any("same data" in fact for fact in answer.facts), answer.facts
    assert all(words in text.partition("also:")[0] for words in WRONG[name]), text


def test_parts_of_a_split_model_are_no_replicas_though_their_biases_begin_alike(runs: Path) -> None:
    answer = compare_ranks(str(runs / "split"))
    assert answer.findings == []
    assert any("parts of a split model" in fact for fact in answer.facts), answer.facts


def test_a_rank_that_was_not_recorded_is_no_finding(runs: Path, tmp_path: Path) -> None:
    for name in ("by hand", "ddp"):
        shutil.copytree(runs / name, tmp_path / name)
        shutil.rmtree(tmp_path / name / "step0" / "rank2")
        shutil.rmtree(tmp_path / name / "step1" / "rank2")
        answer = compare_ranks(str(tmp_path / name))
        assert answer.findings == [] and answer.ranks == (0, 1)
        assert any("a rank of the group is not recorded" in fact for fact in answer.facts), answer.facts


def test_the_command_prints_it_and_fails_on_demand(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "--ranks", str(runs / "ignored")]) == 0
    assert capsys.readouterr().out.startswith("first finding: step 0, ranks 0, 1, 2: gradient of module.first.weight")
    assert cli.main(["compare", "--ranks", str(runs / "ignored"), "--fail-on", "divergence"]) == 1
    assert cli.main(["compare", "--ranks", str(runs / "ddp"), "--fail-on", "divergence"]) == 0
    capsys.readouterr()
    assert cli.main(["compare", "--ranks", str(runs / "ignored"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ranks"], found["findings"][0]["names"]) == ([0, 1, 2], ["module.first.weight"])
    assert cli.main(["compare", "--ranks", str(runs / "ignored/step0/rank0")]) == 2
    assert "--ranks needs two or more" in capsys.readouterr().err
    assert cli.main(["compare", "--ranks", str(runs / "ddp"), "--resumed"]) == 2
    assert "--ranks and --resumed are two questions" in capsys.readouterr().err
