"""Metrics of the user's own: where they come from, what they get, what they may give, what happens when they fail."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import runs
from command_line import compare, msprobe
from runs import rows, two_runs, write
from scripts import CHECKOUT

from probe.api import cli
from probe.compare import tables

MEAN = """
import numpy as np
def column_name():
    return "Mean of difference"
def compare(n_value, b_value):
    return np.mean(n_value - b_value)
"""
KIND = """
def column_name():
    return "Kind"
def compare(n_value, b_value):
    return f"{n_value.dtype} {n_value.shape} {b_value.flags.writeable}"
"""


def metric(folder: Path, name: str, source: str) -> str:
    path = folder / name
    path.write_text(source)
    return str(path)


def returning(folder: Path, value: str) -> str:
    text = f"import numpy as np\ndef column_name(): return 'Mine'\ndef compare(n_value, b_value): return {value}\n"
    return metric(folder, "mine.py", text)


def only_table(out: Path) -> Path:
    (table,) = out.glob("*.csv")
    return table


def test_its_column_follows_the_built_in_ones(tmp_path: Path) -> None:
    target, golden = two_runs(tmp_path, ["rank0"], real_data=True)
    mean, kind = metric(tmp_path, "mean.py", MEAN), metric(tmp_path, "kind.py", KIND)
    assert compare(target, golden, tmp_path / "out", "--algorithms", f"{kind},{mean}") == 0
    (row,) = rows(only_table(tmp_path / "out"))
    head = len(tables.HEAD) + len(tables.VALUES)
    assert list(row)[head : head + 2] == ["Kind", "Mean of difference"]
    assert (row["Kind"], row["Mean of difference"]) == ("float32 (4,) False", "-0.5")
    assert row["NPU max"] == "1.0"


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("3", "3"),
        ("1 / 3", str(1 / 3)),
        ("'far apart'", "far apart"),
        ("True", "True"),
        ("np.float32(0.5)", "0.5"),
        ("np.array(2)", "2"),
        ("float('nan')", "Nan"),
        ("float('inf')", "inf"),
        ("'=1+1'", "'=1+1"),
    ],
)
def test_a_cell_is_a_number_or_a_text(tmp_path: Path, value: str, cell: str) -> None:
    target, golden = two_runs(tmp_path, ["rank0"], real_data=True)
    assert compare(target, golden, tmp_path / "out", "--algorithms", returning(tmp_path, value)) == 0
    (row,) = rows(only_table(tmp_path / "out"))
    assert row["Mine"] == cell and "Mine" not in row["Err_message"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("1 // 0", "ZeroDivisionError: "),
        ("__import__('sys').exit(3)", "SystemExit: 3"),
        ("n_value.__setitem__(0, 1)", "ValueError: assignment destination is read-only"),
        ("None", "TypeError: it returned NoneType; allowed: int, float, str"),
        ("n_value", "TypeError: it returned ndarray; allowed: int, float, str"),
    ],
)
def test_a_metric_that_fails_says_so_in_its_cell_and_once_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str, said: str
) -> None:
    for side in ("target", "golden"):
        write(tmp_path / side / "rank0", [np.ones(2, np.float32)] * 3, real_data=True)
    file = returning(tmp_path, value)
    assert compare(tmp_path / "target", tmp_path / "golden", tmp_path / "out", "--algorithms", file) == 0
    found = rows(only_table(tmp_path / "out"))
    assert [row["Mine"] for row in found] == ["failed"] * 3
    # The verdict is about the tensors, and these are the same.
    assert [(row["Result"], row["Cosine"]) for row in found] == [("pass", "1.0")] * 3
    assert all(json.loads(row["Err_message"])[0].startswith(f"note: Mine failed: {said}") for row in found)
    out = capsys.readouterr().err
    assert out.count("failed, first at Torch.sin.0.forward.input.0") == 1 and file in out


def test_a_metric_is_not_asked_where_nothing_can_be_measured(tmp_path: Path) -> None:
    bad, good = np.array([1.0, np.nan], np.float32), np.ones(2, np.float32)
    write(tmp_path / "a", [good, bad, good, good[:0], good[0]], real_data=True)
    write(tmp_path / "b", [good, good, np.ones(3, np.float32), good[:0], good[0]], real_data=True)
    (tmp_path / "b" / "dump_tensor_data" / f"{runs.RECORD}.input.0.npy").unlink()
    assert compare(tmp_path / "a", tmp_path / "b", tmp_path / "out", "--algorithms", returning(tmp_path, "7")) == 0
    cells = [row["Mine"] for row in rows(only_table(tmp_path / "out"))]
    assert cells == ["unsupported", "N/A", "shape unmatched", "unsupported", "7"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = \n", "cannot be loaded: SyntaxError"),
        ("import numpy\n\nnumpy.nothing", "cannot be loaded: line 3: AttributeError"),
        ("raise SystemExit(0)", "cannot be loaded: line 1: SystemExit"),
        ("import sys\nsys.exit('not\\nhere')", "cannot be loaded: line 2: SystemExit: not here."),
        ("def column_name(): raise SystemExit\ndef compare(n, b): return 1", "column_name() failed: SystemExit."),
        ("def compare(n_value, b_value): return 1", "has a function column_name(); this one has none"),
        ("def column_name(): return 'A'", "has a function compare(n_value, b_value); this one has none"),
        ("def column_name(): return 'A'\ndef compare(one): return 1", "compare() has to take two arrays"),
        ("def column_name(): return 1/0\ndef compare(n, b): return 1", "column_name() failed: ZeroDivisionError"),
        ("def column_name(): return 5\ndef compare(n, b): return 1", "column_name() is 5"),
        ("def column_name(): return ' '\ndef compare(n, b): return 1", "column_name() is ' '"),
        ("def column_name(): return '=A'\ndef compare(n, b): return 1", "column_name() is '=A'"),
        ("def column_name(): return 'Cosine'\ndef compare(n, b): return 1", "has a column 'Cosine' of its own"),
        ("def column_name(): return 'Result'\ndef compare(n, b): return 1", "has a column 'Result' of its own"),
        ("def column_name(): return 'Kind'\ndef compare(n, b): return 1", "both call their column 'Kind'"),
    ],
)
def test_a_wrong_metric_is_one_line_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, said: str
) -> None:
    target, golden = two_runs(tmp_path, ["rank0", "rank1"], real_data=True)
    files = f"{metric(tmp_path, 'kind.py', KIND)},{metric(tmp_path, 'wrong.py', source)}"
    assert compare(target, golden, tmp_path / "out", "--algorithms", files) == 2
    error = capsys.readouterr().err
    assert said in error and "wrong.py" in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_statistics_have_no_use_for_it_and_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, golden = two_runs(tmp_path, ["rank0"])
    assert compare(target, golden, tmp_path / "out", "--algorithms", returning(tmp_path, "1")) == 0
    assert "need the values of tensors, and these dumps have none" in capsys.readouterr().err
    assert "Mine" not in rows(only_table(tmp_path / "out"))[0]
    assert compare(target, golden, tmp_path / "out", "--algorithms", returning(tmp_path, "1"), "-da") == 0
    assert "metrics of --algorithms are not used" in capsys.readouterr().err


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("more", [(), ("--xlsx",)])
def test_it_works_in_other_processes_and_in_merged_tables(tmp_path: Path, more: tuple[str, ...]) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    target, golden = two_runs(tmp_path, ["rank0", "rank1", "rank2"], real_data=True)
    file = metric(tmp_path, "mean.py", MEAN)
    assert compare(target, golden, tmp_path / "out", "--algorithms", file, "--jobs", "2", *more) == 0
    (tmp_path / "merge.yaml").write_text("api: [Torch.sin]")
    paths = ["-i", str(tmp_path / "out"), "-o", str(tmp_path), "-config", str(tmp_path / "merge.yaml")]
    assert cli.main(["merge_result", *paths]) == 0
    (book,) = tmp_path.glob("*.xlsx")
    _, values = openpyxl.load_workbook(book)["Mean of difference"].iter_rows(values_only=True)
    assert values == ("Torch.sin.0.forward.input.0", -0.5, -0.5, -0.5)


def installed(folder: Path, source: str, *values: str) -> dict[str, str]:
    """An environment in which a package with metrics is installed: its module, and what pip writes about it."""
    folder.mkdir()
    (folder / "mine.py").write_text(source)
    about = folder / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    lines = ["[msprobe.compare.algorithms]", *(f"{value.rpartition(':')[2]} = {value}" for value in values)]
    (about / "entry_points.txt").write_text("\n".join(lines))
    return {"PYTHONPATH": os.pathsep.join((str(folder), CHECKOUT))}


CLASS = """
class Spread:
    def column_name(self):
        return "Spread"
    def compare(self, n_value, b_value):
        return float(n_value.max() - b_value.min())
spread = Spread()
"""


def test_an_installed_package_adds_its_metrics(tmp_path: Path) -> None:
    """A module that is one, and an object in it."""
    target, golden = two_runs(tmp_path, ["rank0", "rank1"], real_data=True)
    environment = installed(tmp_path / "site", MEAN + CLASS, "mine", "mine:spread")
    arguments = ["compare", "-tp", str(target), "-gp", str(golden), "-o", str(tmp_path / "out"), "--jobs", "2"]
    assert msprobe(*arguments, folder=tmp_path, **environment).returncode == 0
    found = [rows(table)[0] for table in (tmp_path / "out").iterdir()]
    assert [(row["Mean of difference"], row["Spread"]) for row in found] == [("-0.5", "-0.5")] * 2


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nothing_of_this_name", "cannot be loaded: ModuleNotFoundError"),
        ("import sys\nsys.exit()", "cannot be loaded: SystemExit"),
        ("def column_name(): raise SystemExit\ndef compare(n, b): return 1", "column_name() failed: SystemExit"),
    ],
)
def test_an_installed_package_that_is_broken_is_named(tmp_path: Path, source: str, said: str) -> None:
    target, golden = two_runs(tmp_path, ["rank0"], real_data=True)
    environment = installed(tmp_path / "site", source, "mine")
    arguments = ["compare", "-tp", str(target), "-gp", str(golden), "-o", str(tmp_path / "out")]
    done = msprobe(*arguments, folder=tmp_path, **environment)
    assert done.returncode == 2
    assert f"entry point mine = mine of msprobe.compare.algorithms: {said}" in done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()
