"""Without the folder of msProbe's rules everything runs, and asking for them is one clear error."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from without_msprobe import copy_without_msprobe, run_command

from probe.api import cli

TESTS = Path(__file__).parents[1]
COMPARED = TESTS / "compare" / "cases" / "perturbed_weights_stat"
SIDES = ("-tp", COMPARED / "target", "-gp", COMPARED / "golden")
OVERFLOWN = TESTS / "overflow" / "cases" / "compute_rank1"
LACKS = "rules is 'msprobe', and this installation lacks probe.msprobe_rules; allowed: probe."


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_without_msprobe(tmp_path_factory.mktemp("package"))


def results(folder: Path) -> list[str]:
    (table,) = folder.glob("compare_result*.csv")
    with table.open(encoding="utf-8", newline="") as stream:
        return [row["Result"] for row in csv.DictReader(stream)]


def test_rows_of_a_comparison_have_our_results(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_command(package, "compare", *SIDES, "-o", tmp_path / "without")
    assert (done.returncode, done.stderr) == (0, "")
    found = results(tmp_path / "without")
    assert set(found) <= {"pass", "warning", "error"} and len(set(found)) > 1
    # The folder makes no difference for our own rules, nor for the answer.
    assert cli.main(["compare", *map(str, SIDES), "-o", str(tmp_path / "with"), "--rules", "probe"]) == 0
    assert results(tmp_path / "with") == found
    assert capsys.readouterr().out.splitlines()[0] == done.stdout.splitlines()[0]


def test_graphs_are_shown(package: Path, tmp_path: Path) -> None:
    done = run_command(package, "graph_visualize", *SIDES, "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("graph_*.html"))) == 1


def test_the_first_value_that_is_not_finite_is_found(package: Path, tmp_path: Path) -> None:
    done = run_command(package, "overflow_check", "-i", OVERFLOWN, "-o", tmp_path)
    assert done.returncode not in (0, 2), done.stderr
    assert {path.name.split("_")[0] for path in tmp_path.iterdir()} == {"overflow", "graph"}


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize(
    "arguments",
    [("compare", *SIDES), ("graph_visualize", *SIDES), ("overflow_check", "-i", OVERFLOWN)],
    ids=lambda arguments: arguments[0],
)
def test_asking_for_the_rules_of_msprobe_is_one_error(
    package: Path, tmp_path: Path, arguments: tuple[object, ...]
) -> None:
    done = run_command(package, *arguments, "-o", tmp_path, "--rules", "msprobe")
    assert done.returncode in (1, 2) and done.stdout == ""
    assert done.stderr == f"msprobe {arguments[0]}: {LACKS}\n"
    by_variable = run_command(package, *arguments, "-o", tmp_path, MSPROBE_RULES="msprobe")
    assert by_variable.stderr == f"msprobe {arguments[0]}: {LACKS.replace('rules is', 'MSPROBE_RULES is')}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("graph_visualize", *SIDES, "-o", "out", "--format", "db"),
        ("api_precision_compare", "-npu", COMPARED / "case.json", "-gpu", COMPARED / "case.json"),
    ],
    ids=["database", "two devices"],
)
def test_files_that_only_msprobe_has_are_refused_in_one_line(package: Path, arguments: tuple[object, ...]) -> None:
    done = run_command(package, *arguments)
    assert done.returncode in (1, 2)
    assert "this installation lacks" in done.stderr and done.stderr.count("\n") == 1
