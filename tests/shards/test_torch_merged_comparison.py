"""``msprobe compare`` of split runs: the ranks are merged before they are compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from split_runs import CASES

import probe
from probe.api.cli import main
from probe.common.errors import MsprobeException

FAULT = "0.decoder.layers.2.mlp.fc1"


def compare(runs: Path, target: str, golden: str, output: Path, *more: str) -> int:
    paths = ["-tp", str(runs / target), "-gp", str(runs / golden), "-o", str(output)]
    return main(["compare", *paths, *CASES[target].flags(CASES[golden]), "--fail-on", "divergence", *more])


@pytest.mark.parametrize(
    ("target", "golden"),
    [
        ("both", "whole"),
        ("virtual", "whole"),
        ("whole", "tensor"),
        ("both", "virtual"),
        ("copies_split", "copies"),
        ("tensor_short", "whole"),
    ],
)
def test_a_split_run_and_one_that_is_split_otherwise_do_not_diverge(
    target: str, golden: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(runs, target, golden, tmp_path) == 0
    assert capsys.readouterr().out.startswith("no divergence")
    names = [path.name.rpartition("_")[0] for path in sorted(tmp_path.rglob("*.csv"))]
    copies = CASES[target].dp
    assert names == (["compare_result"] if copies == 1 else [f"compare_result_copy{each}" for each in range(copies)])


@pytest.mark.parametrize(
    ("target", "golden", "line"),
    [
        ("faulty_tensor", "tensor", "rank 1, whose part differs; ranks 0, 1 make"),
        ("faulty_tensor", "whole", "rank 1, whose part differs; ranks 0, 1 make"),
        ("faulty_short", "whole", "rank 1, whose part differs; ranks 0, 1 make"),
        ("faulty_pipeline", "whole", "ranks:  rank 1"),
        ("faulty_both", "both", "rank 3, whose part differs; ranks 2, 3 make"),
    ],
)
def test_a_fault_in_one_rank_is_named_with_its_rank(
    target: str, golden: str, line: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(runs, target, golden, tmp_path) == 1
    said = capsys.readouterr().out
    # Where both runs have its function, which takes the parameter before the module ends, that is the call.
    named = said.partition("\n")[0].removeprefix("first divergence: ")
    assert named == f"Module.{FAULT}.ColumnParallelLinear.forward.0" or named.startswith(f"{FAULT} ("), said
    assert line in said
    assert "parameter" in said


def test_json_has_the_ranks_of_the_divergence(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(runs, "faulty_both", "both", tmp_path, "--json") == 1
    (summary,) = json.loads(capsys.readouterr().out)
    assert summary["divergence"]["merged"] == {"ranks": [2, 3], "differing": [3]}


def test_python_takes_the_same_arguments(runs: Path) -> None:
    verdict = probe.verdict(runs / "faulty_pipeline", runs / "whole", rank_size=(2, 1), tp=(1, 1), pp=(2, 1))
    assert verdict.divergence is not None and verdict.divergence.merged is not None
    assert verdict.divergence.merged.ranks == [1]
    assert "  ranks:  rank 1" in str(verdict).splitlines()


REFUSED: list[tuple[Sequence[str], str]] = [
    (["--tp", "2", "1"], "--rank_size is missing; merging needs --rank_size, --tp and --pp."),
    (["--rank_size", "2", "--tp", "2", "--pp", "1"], "--rank_size has 1 values, 2; allowed: two values"),
    (["--rank_size", "4", "1", "--tp", "2", "1", "--pp", "1", "1"], "dp = rank_size / (tp * pp) is 2 and 1; allowed"),
    (["--order", "foo"], '--order is "foo"; allowed: tp, dp and pp once each'),
    (["--rank_size", "3", "1", "--tp", "3", "1", "--pp", "1", "1"], "--rank_size is 3, but"),
    (["--rank_size", "2", "1", "--tp", "2", "1", "--pp", "1", "1", "-da"], "--diff_analyze compares rank with rank"),
    (["--rank_size", "2", "1", "--tp", "2", "1", "--pp", "1", "1", "--html"], "--html shows no merged ranks"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_what_does_not_fit_is_refused_as_by_graph_visualize(
    given: Sequence[str], message: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ["-tp", str(runs / "tensor"), "-gp", str(runs / "whole"), "-o", str(tmp_path)]
    assert main(["compare", *paths, *given]) != 0
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    if not {"-da", "--html"} & set(given):
        assert main(["graph_visualize", *paths, *given]) != 0
        assert message in capsys.readouterr().err


def test_python_refuses_what_the_command_does(runs: Path) -> None:
    with pytest.raises(MsprobeException, match="--pp is missing; merging needs"):
        probe.verdict(runs / "tensor", runs / "whole", rank_size=(2, 1), tp=(2, 1))


def test_a_file_has_no_ranks(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = next((runs / "whole").rglob("dump.json"))
    paths = ["-tp", str(runs / "tensor"), "-gp", str(file), "-o", str(tmp_path)]
    assert main(["compare", *paths, *CASES["tensor"].flags(CASES["whole"])]) != 0
    assert "is not a folder; give that of a step with its ranks" in capsys.readouterr().err
