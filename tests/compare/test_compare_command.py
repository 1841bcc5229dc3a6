"""msprobe compare and probe.verdict: files, folders of ranks and steps, tables, exit statuses, errors."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs as saved_runs
from command_line import compare
from compare_cases import same
from made_dumps import call, constant, write
from numpy.typing import NDArray
from runs import RECORD

import probe
from probe.api import cli
from probe.common.errors import DumpFormatError, FileCheckException

# --- ``msprobe compare``: files, folders of ranks and steps, tables, exit statuses, errors

CASES = Path(__file__).parent / "cases"
TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 1.0, "requires_grad": False}


def dump(folder: Path, inputs: list[Any], **head: Any) -> Path:
    return write(folder, {"Torch.sin.0.forward": {"input_args": inputs}}, **head) / "dump.json"


def rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.reader(stream))


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


def test_values_are_compared_and_a_file_that_cannot_be_read_is_a_warning_in_its_row(tmp_path: Path) -> None:  # D3a
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
    # Of the last one neither side has a file, and its statistics agree.
    assert found == [("1.0", "pass"), ("unsupported", "warning"), ("unsupported", "warning"), ("unsupported", "pass")]
    assert "1.npy" in body[1][head.index("Err_message")] and body[0][-1] == "['0.npy', '0.npy']"


HOSTILE = "Torch.\x1b[2J\x1b]0;x\x07relu\nfirst divergence: none.0.forward"


def hostile(folder: Path, number: float, framework: str = "pytorch", **record: Any) -> Path:
    records = {HOSTILE: {"output": [constant(number)], **record}}
    stacks = {"0": [[HOSTILE], [f"File {HOSTILE}, line 1, in f, \\n x"]]}
    return write(folder, records, stacks=stacks, framework=framework)


def is_harmless(said: str) -> bool:
    return not any(line.startswith("first divergence: none") for line in said.splitlines()) and "\x1b" not in said


@pytest.mark.parametrize("options", [[], ["-da"], ["--json"]])
def test_a_name_from_a_dump_neither_adds_lines_nor_commands_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    target, golden = hostile(tmp_path / "a", 1.0), hostile(tmp_path / "b", 9.0)
    assert compare(target, golden, tmp_path / "out", *options) == 0
    said = capsys.readouterr()
    assert is_harmless(said.out) and is_harmless(said.err)
    assert "relu\\nfirst divergence: none.0.forward" in said.out


def test_a_name_from_a_damaged_dump_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, golden = hostile(tmp_path / "a", 1.0, input_args="no list"), hostile(tmp_path / "b", 2.0)
    assert compare(target, golden, tmp_path / "out") == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and is_harmless(said.err) and str(target) in said.err
    with pytest.raises(DumpFormatError) as caught:
        (dump,) = [probe.read(target)]
        dump.items(dump[HOSTILE])
    assert "\n" not in str(caught.value)


def one_output(folder: Path, entry: dict[str, Any], values: NDArray[Any] | bytes | None) -> Path:
    """A dump of one call that returns one tensor, whose file holds `values`."""
    (folder / "dump_tensor_data").mkdir(parents=True)
    write(folder, {"Torch.sin.0.forward": call([], [entry])}, task="tensor")
    file = folder / "dump_tensor_data" / "0.npy"
    if isinstance(values, bytes):
        file.write_bytes(values)
    elif values is not None:
        np.save(file, values)
    return folder


WHOLE = {**TENSOR, "Min": 1.0, "Mean": 1.0, "Norm": 2.0**0.5}
ONES = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("entry", "values", "why"),
    [
        ({**WHOLE, "data_name": "0.npy"}, b"", "read failed"),
        ({**WHOLE, "data_name": "0.npy"}, b"\x93NUMPY", "read failed"),
        ({**WHOLE, "data_name": "0.npy"}, None, "read failed"),
        ({**WHOLE, "data_name": "0.npy"}, np.ones((5, 5), np.float32), "two shapes"),
        ({**WHOLE, "data_name": "0.npy"}, np.ones(2, np.int8), "int8 and float32"),
        (WHOLE, None, "The target side does not have a data file"),
    ],
)
@pytest.mark.parametrize("as_26_2", [False, True])
def test_values_that_cannot_be_judged_are_no_agreement(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    entry: dict[str, Any],
    values: NDArray[Any] | bytes | None,
    why: str,
    as_26_2: bool,
) -> None:
    target = one_output(tmp_path / "a", entry, values)
    golden = one_output(tmp_path / "b", {**WHOLE, "data_name": "0.npy"}, ONES)
    options = ["--fail-on", "divergence", *(["--rules", "msprobe"] if as_26_2 else [])]
    assert compare(target, golden, tmp_path / "out", *options) == 2
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "cannot be told: the values of 1 tensor could not be judged"
    assert "  not judged: the values of 1 tensor: Torch.sin.0.forward.output.0" in said
    (table,) = (tmp_path / "out").iterdir()
    head, row = rows(table)
    assert as_26_2 or why in row[head.index("Err_message")]


@pytest.mark.parametrize("values", [np.array([1, np.nan]), np.array([-np.inf, 1]), np.array(np.nan)])
def test_nan_in_the_files_of_one_side_is_a_divergence_whatever_the_statistics_say_and_on_both_it_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: NDArray[Any]
) -> None:
    entry = {**WHOLE, "shape": list(values.shape), "data_name": "0.npy"}
    sides = [one_output(tmp_path / side, entry, values.astype(np.float32)) for side in "ab"]
    assert compare(*sides, tmp_path / "same", "--fail-on", "divergence") == 0
    assert capsys.readouterr().out.startswith("no divergence: nothing differs\n")
    golden = one_output(tmp_path / "c", entry, np.ones(values.shape, np.float32))
    assert compare(sides[0], golden, tmp_path / "out", "--fail-on", "divergence") == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "first divergence: Torch.sin.0.forward" and "has a NaN or an infinity on one side only" in said[1]


# --- `probe.verdict`: the answer of ``msprobe compare`` in Python and in a notebook

MATRIX = np.ones((2, 3), dtype=np.float32)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs of two steps, which diverge in the second."""
    for name in ("a", "b"):
        saved_runs.write(tmp_path / name / "step0" / "rank0", [MATRIX])
        saved_runs.write(tmp_path / name / "step1" / "rank0", [MATRIX * (2 if name == "a" else 1)], stack=True)
    return tmp_path / "a", tmp_path / "b"


def test_it_prints_what_the_command_prints(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = probe.verdict(*runs)
    assert found.divergence is not None and found.divergence.record == RECORD
    assert found.answer[0] == f"first divergence: step 1, rank 0: {RECORD}" and len(found.summaries) == 2
    capsys.readouterr()
    assert cli.main(["compare", "-tp", str(runs[0]), "-gp", str(runs[1]), "-o", str(tmp_path / "out")]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if not line.lstrip().startswith(("table:", "time:"))]
    assert str(found).splitlines() == said


def test_tables_are_written_where_a_folder_is_given(runs: tuple[Path, Path], tmp_path: Path) -> None:
    probe.verdict(*runs, output=tmp_path / "out")
    assert len([*(tmp_path / "out").rglob("*.csv")]) == 2
    with pytest.raises(FileCheckException, match="does not exist"):
        probe.verdict(runs[0], tmp_path / "nowhere")


def test_what_a_notebook_shows_has_the_answer_and_is_escaped(tmp_path: Path) -> None:
    for name, factor in (("a", 2), ("b", 1)):
        saved_runs.write(tmp_path / name, [MATRIX * factor])
        path = tmp_path / name / "dump.json"
        path.write_text(path.read_text().replace(RECORD, "Torch.<img/onerror=x>.0.forward"))
    text = probe.verdict(tmp_path / "a", tmp_path / "b")._repr_html_()
    assert "first divergence: Torch.&lt;img/onerror=x&gt;.0.forward" in text and "<img" not in text
    assert "<table" in text and len(text) < 5000
