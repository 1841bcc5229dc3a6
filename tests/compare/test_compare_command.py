"""``msprobe compare``: files, folders of ranks and steps, tables, exit statuses, errors."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_cases import same

import probe
from probe.api import cli

CASES = Path(__file__).parent / "cases"
STEP = CASES / "multi_rank"
TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 1.0, "requires_grad": False}


def dump(folder: Path, inputs: list[Any], **head: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    whole = {"task": "statistics", "level": "L1", "framework": "pytorch", **head}
    path = folder / "dump.json"
    path.write_text(json.dumps({**whole, "data": {"Torch.sin.0.forward": {"input_args": inputs}}}))
    return path


def compare(target: Path, golden: Path, out: Path, *more: str) -> int:
    return cli.main(["compare", "-tp", str(target), "-gp", str(golden), "-o", str(out), *more])


def rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.reader(stream))


def test_ranks_of_a_step_give_a_table_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(STEP / "target" / "step0", STEP / "golden" / "step0", tmp_path / "new" / "out") == 0
    names = sorted(path.name for path in (tmp_path / "new" / "out").iterdir())
    assert [name.rpartition("_")[0] for name in names] == ["compare_result_rank0", "compare_result_rank1"]


def test_steps_of_two_runs_give_a_folder_each(tmp_path: Path) -> None:
    for side in ("target", "golden"):
        for step in ("step0", "step3", "step10"):
            dump(tmp_path / side / step / "proc77", [TENSOR])
    dump(tmp_path / "target" / "step4" / "proc77", [TENSOR])
    assert compare(tmp_path / "target", tmp_path / "golden", tmp_path / "out") == 0
    found = sorted(str(path.relative_to(tmp_path / "out")).rpartition("_")[0] for path in tmp_path.glob("out/*/*.csv"))
    assert found == [f"step{n}/compare_result_proc77" for n in (0, 10, 3)]


def test_a_rank_that_cannot_be_read_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(STEP, tmp_path / "run")
    step = tmp_path / "run"
    broken = step / "target" / "step0" / "rank0" / "dump.json"
    broken.write_text(broken.read_text()[:500])
    assert compare(step / "target" / "step0", step / "golden" / "step0", tmp_path / "out") == 0
    assert [path.name.split("_")[2] for path in (tmp_path / "out").iterdir()] == ["rank1"]
    assert "rank0 is left out" in capsys.readouterr().out
    # Who asks for a status is not told that all is well.
    arguments = [step / "target" / "step0", step / "golden" / "step0", tmp_path / "out"]
    assert compare(*arguments, "--fail-on", "error") == cli.FAILED


def test_a_reader_of_the_output_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "probe.api.cli", "compare", "-tp", str(STEP / "target" / "step0")]
    command += ["-gp", str(STEP / "golden" / "step0"), "-o", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(probe.__file__).parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as done:
        assert done.stdout is not None and done.stderr is not None
        done.stdout.close()
        assert (done.stderr.read(), done.wait()) == ("", cli.PIPE_CLOSED)


def test_a_workbook_holds_the_same_cells(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    case = CASES / "inf_stat"
    for more in ((), ("--xlsx",)):
        assert compare(case / "target", case / "golden", tmp_path, *more) == 0
    (table,), (book,) = tmp_path.glob("*.csv"), tmp_path.glob("*.xlsx")
    (sheet,) = openpyxl.load_workbook(book).worksheets
    expected = rows(table)
    cells = list(sheet.iter_rows(values_only=True))
    assert len(cells) == len(expected)
    assert all(same(str(cell), text) for row, texts in zip(cells, expected) for cell, text in zip(row, texts))
    assert type(cells[2][expected[0].index("NPU mean")]) is float


def test_a_text_that_a_spreadsheet_would_compute_is_defused(tmp_path: Path) -> None:
    texts = ["=1+1", "@SUM(A1)", " +cmd", "a;=1", "－1", "-1.5", "plain"]  # noqa: RUF001
    entries = [{"type": "str", "value": text} for text in texts]
    target, golden = dump(tmp_path / "a", entries), dump(tmp_path / "b", entries)
    assert compare(target, golden, tmp_path / "out") == 0
    (table,) = (tmp_path / "out").iterdir()
    head, *body = rows(table)
    assert [row[head.index("NPU max")] for row in body] == ["'" + text for text in texts[:5]] + texts[5:]


def test_values_are_compared_and_a_missing_file_is_an_error_in_its_row(tmp_path: Path) -> None:  # D3a
    for side in "ab":
        names = [f"{n}.npy" for n in range(3)]
        dump(tmp_path / side, [*({**TENSOR, "data_name": name} for name in names), TENSOR], task="tensor")
        (tmp_path / side / "dump_tensor_data").mkdir()
        for n, name in enumerate(names):
            np.save(tmp_path / side / "dump_tensor_data" / name, np.array([n, 1.0]))
    (tmp_path / "b" / "dump_tensor_data" / "1.npy").unlink()
    (tmp_path / "a" / "dump_tensor_data" / "2.npy").write_bytes(b"\x93NUMPY")
    assert compare(tmp_path / "a", tmp_path / "b", tmp_path / "out") == 0
    (table,) = (tmp_path / "out").iterdir()
    head, *body = rows(table)
    found = [(row[head.index("Cosine")], row[head.index("Result")]) for row in body]
    assert found == [("1.0", "pass"), ("unsupported", "error"), ("unsupported", "error"), ("unsupported", "warning")]
    assert "1.npy" in body[1][head.index("Err_message")] and body[0][-1] == "['0.npy', '0.npy']"


@pytest.mark.parametrize(
    ("target", "golden", "said"),
    [
        ("missing", "b", "missing does not exist"),
        ("a", "b/dump.json", "not one of each"),
        ("a/other.json", "b/dump.json", "a file to compare is called dump.json or debug.json"),
        ("a/debug.json", "b/dump.json", "debug.json is compared with debug.json only"),
        ("empty", "empty", "0 proc folders and no rank folder"),
        ("two", "empty", "has 2 rank folders and"),
        ("torn", "b/dump.json", "cut off at byte"),
    ],
)
def test_an_input_error_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, golden: str, said: str
) -> None:
    for side in "ab":
        dump(tmp_path / side, [TENSOR])
    for name in ("other.json", "debug.json"):
        shutil.copy(tmp_path / "a" / "dump.json", tmp_path / "a" / name)
    for folder in ("empty", "two/rank0", "two/rank1", "torn"):
        (tmp_path / folder).mkdir(parents=True)
    torn = tmp_path / "torn" / "dump.json"
    torn.write_bytes((tmp_path / "a" / "dump.json").read_bytes()[:90])
    assert compare(torn if target == "torn" else tmp_path / target, tmp_path / golden, tmp_path / "out") == cli.FAILED
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and error.startswith("msprobe compare: ")


@pytest.mark.parametrize("option", ["-tp", "-gp", "-o", "-dm", "--config"])
def test_a_path_that_is_empty_is_an_error_of_usage_that_names_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    case = CASES / "identical_stat"
    with pytest.raises(SystemExit) as end:
        compare(case / "target", case / "golden", tmp_path / "out", option, "")
    assert end.value.code == cli.FAILED
    error = capsys.readouterr().err
    assert re.search(rf"argument {option}\b.*: the path is empty; give a file or a folder\.", error)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("more", [(), ("-da",)])
def test_an_api_mapping_of_a_pytorch_run_is_one_error_and_not_one_of_every_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    assert compare(STEP / "target" / "step0", STEP / "golden" / "step0", tmp_path / "out", "-am", *more) == cli.FAILED
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert "the framework is 'pytorch'; an API mapping (-am) is for a target of MindSpore or MSAdapter." in said.err
    assert not (tmp_path / "out").exists()


def test_comparing_statistics_imports_nothing_heavy(tmp_path: Path) -> None:
    case = CASES / "identical_stat"
    code = f"""
import sys
from probe.api import cli
assert cli.main(["compare", "-tp", {str(case / "target")!r}, "-gp", {str(case / "golden")!r}, "-o", "."]) == 0
assert not {{"torch", "mindspore", "numpy", "pandas", "rich", "openpyxl"}} & set(sys.modules)
"""
    environment = {"PYTHONPATH": str(Path(probe.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment)
