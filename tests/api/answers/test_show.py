"""``msprobe show``: what it prints of a dump, a run and a journal, for people and for machines."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import made_dumps
import pytest
from made_dumps import call, plain, write, write_journal

from probe.api import cli

LINEAR, SOFTMAX, LOG = "Functional.linear.0.forward", "Functional.softmax.0.forward", "Torch.log.0.forward"
BLOCK, NORM = "Module.layers.0.Block.forward.0", "Module.layers.1.norm.LayerNorm.forward.0"
FILL, MUL = "Tensor.masked_fill.0.forward", "Torch.mul.0.forward"


def tensor(largest: float | None, smallest: float | None = -1.0, dtype: str = "torch.float32") -> dict[str, Any]:
    return made_dumps.tensor(largest, smallest, 0.0123456, 2.0, (4, 8), dtype, requires_grad=True)


NAN = tensor(math.nan, math.nan)
DATA = {
    LINEAR: call([tensor(1.0), tensor(2.0)], [tensor(3.0)]),
    SOFTMAX: call([tensor(3.0, -math.inf), plain(-1)], [tensor(1.0, 0.0)]),
    BLOCK: call([tensor(1.0)], [tensor(50.0)]),
    LOG: call([tensor(50.0)], [NAN]),
    NORM: call([NAN], [NAN]),
}
TREE = {BLOCK: None, LINEAR: BLOCK, SOFTMAX: BLOCK, LOG: None, NORM: None}
STACK = ["File /x/site-packages/torch/nn/f.py, line 1, in f, \n f()", "File train.py, line 7, in step, \n log(x)"]


def dump(folder: Path, data: dict[str, Any] = DATA, **head: Any) -> Path:
    return write(folder, data, TREE, {"0": [[LINEAR, LOG], STACK]}, **head)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return dump(tmp_path / "run" / "step0" / "rank0")


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    assert cli.main(["show", *map(str, arguments)]) == 0
    said = capsys.readouterr()
    assert said.err == "" and "\x1b" not in said.out
    return said.out.splitlines()


def names(lines: list[str]) -> list[str]:
    """What the lines of the table are about."""
    header = next(number for number, line in enumerate(lines) if line.endswith("record and item"))
    start = lines[header].index("record and item")
    return [line[start:].strip() for line in lines[header + 1 :]]


def records(lines: list[str]) -> list[str]:
    return [name.split("  ")[0] for name in names(lines)]


def test_the_first_lines_say_where_the_first_nan_is_and_each_record_is_a_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, place, head, *lines = shown(capsys, folder)
    # The infinity of the mask before it has no consequence.
    assert first == f"first NaN: {LOG}.output.0; all its inputs are finite"
    assert place.strip() == "line: train.py:7 in step: log(x)"
    assert head == f"{folder}/dump.json: pytorch, mix, statistics, 5 records"
    # What is not finite, or its first output.
    assert names(lines) == [
        f"{LINEAR}  output.0", f"{SOFTMAX}  input.0", f"{BLOCK}  output.0", f"{LOG}  output.0", f"{NORM}  output.0",
    ]  # fmt: skip
    (line,) = [line for line in lines if line.endswith(f"{LINEAR}  output.0")]
    assert line.split()[:7] == ["3", "-1", "0.01235", "2", "float32", "[4,", "8]"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        # A plain number that went in.
        ({LOG: call([tensor(50.0), plain(math.nan)], [tensor(1.0, math.nan)])}, f"{LOG}.output.0; input.1 is nan"),
        # An infinity that was asked for.
        (
            {FILL: call([tensor(50.0), plain(-math.inf)], [tensor(1.0, -math.inf)]), SOFTMAX: DATA[SOFTMAX]},
            f"no infinity that has a consequence; {FILL}.output.0 has one",
        ),
        # A buffer that the call only writes to.
        ({MUL: call([tensor(1.0)], [tensor(1.0)], {"out": NAN})}, f"has a consequence; {MUL}.input.out "),
        ({LINEAR: call([], [tensor(None, None)])}, "no statistics were recorded"),
        (
            {LOG: call([tensor(1.0)], [{**NAN, "Nonfinite": 2, "Finite Max": 3.5, "Finite Min": -1.25}])},
            f"{LOG}.output.0 (2 of 32 elements, the others from -1.25 to 3.5)",
        ),
    ],
)
def test_the_first_line_knows_which_values_have_a_consequence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: dict[str, Any], said: str
) -> None:
    dump(tmp_path / "run", data)
    assert said in shown(capsys, tmp_path / "run")[0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--module", "layers.0"], [LINEAR, SOFTMAX, BLOCK]),
        (["--module", "layers.*"], [LINEAR, SOFTMAX, BLOCK, NORM]),
        (["--module", "Block"], [LINEAR, SOFTMAX, BLOCK]),
        (["--module", "*Norm"], [NORM]),
        (["--module", f"{NORM}.output.0"], [NORM]),
        (["--module", BLOCK], [LINEAR, SOFTMAX, BLOCK]),
        (["--module", "Module.layers"], [LINEAR, SOFTMAX, BLOCK, NORM]),
        (["--module", "1.norm"], [NORM]),
        (["--api", "softmax"], [SOFTMAX]),
        (["--api", f"{SOFTMAX}.input.0"], [SOFTMAX]),
        (["--api", "Functional.softmax.0"], [SOFTMAX]),
        (["--api", "Functional.*"], [LINEAR, SOFTMAX]),
        (["--where", "Max > 10"], [f"{BLOCK}  output.0", f"{LOG}  input.0"]),
        (["--where", "value == -1"], [f"{SOFTMAX}  input.1 = -1"]),
        (["--items", "--api", "linear"], [f"{LINEAR}  {item}" for item in ("input.0", "input.1", "output.0")]),
        # What is around is kept in a tree, so that the place can be seen.
        (["--tree"], [BLOCK, LINEAR, SOFTMAX, LOG, NORM]),
        (["--tree", "--where", "inf"], [BLOCK, SOFTMAX]),
    ],
)
def test_what_is_asked_for_is_shown(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], expected: list[str]
) -> None:
    lines = shown(capsys, folder, *options)
    assert (names(lines) if "  " in expected[0] else records(lines)) == expected


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--module", "layrs.0"], "nearest modules: layers.0, "),
        (["--module", "Module.layers.1.nrm.LayerNorm.forward.0"], "nearest modules: layers.1.norm"),
        (["--module", "zzz"], "modules are layers.0, layers.1.norm"),
        (["--api", "Functional.lienar.0.forward"], "nearest functions: Functional.linear"),
        (["--api", "zzz"], "functions are Functional.linear, Functional.softmax, Torch.log"),
        (["--api", "log", "--module", "layers.0"], "each option alone may match something"),
    ],
)
def test_where_nothing_fits_the_nearest_names_are_said(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], hint: str
) -> None:
    assert shown(capsys, folder, *options)[-1].startswith(f"no record matches; {hint}")
    assert cli.main(["show", str(folder), "--timeline", *options]) == 2
    assert f"no record matches; {hint}" in capsys.readouterr().err


def test_modules_are_those_of_the_records_and_the_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gradients = "Module.layers.0.fc.Linear.parameters_grad.0"
    folder = dump(tmp_path / "a", {**DATA, gradients: {"weight": [tensor(1.0)]}})
    # Named by its record it has all that is below its path.
    assert records(shown(capsys, folder, "--module", BLOCK)) == [LINEAR, SOFTMAX, BLOCK, gradients]
    (folder / "construct.json").write_text(json.dumps({**TREE, "optimizer": None, LOG: "optimizer"}))
    assert records(shown(capsys, folder, "--module", "optimizer")) == [LOG]
    dump(folder, {LOG: DATA[LOG]})
    (folder / "construct.json").write_text("{}")
    assert shown(capsys, folder, "--module", "norm")[-1] == "no record matches; no module was recorded"


def test_a_timeline_has_a_line_for_each_module_and_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step, norm in enumerate((2.0, 3.0, math.inf, 4.0)):
        entry = {**tensor(5.0), "Norm": norm, "Max": norm}
        for rank in (0, 1):
            dump(tmp_path / f"step{step}" / f"rank{rank}", {BLOCK: call([tensor(1.0)], [entry]), LOG: DATA[LOG]})
    header, *lines = shown(capsys, tmp_path, "--timeline")
    assert header.split() == ["step", "Max", "Norm", "growth", "record"]
    assert [line.split() for line in lines] == [
        [number, rank, *rest]
        for rank in ("rank0", "rank1")
        for number, *rest in (["0", "2", "2", BLOCK], ["1", "3", "3", "x1.5"], ["2", "inf", "inf"], ["3", "4", "4"])
    ]
    rows = json.loads("\n".join(shown(capsys, tmp_path, "--timeline", "--api", "log", "--json")))
    assert [row["record"] for row in rows] == [LOG] * 8 and rows[0]["Max"] == "NaN" and rows[1]["growth"] is None
    assert len(shown(capsys, tmp_path, "--timeline", "--limit", "3")) == 1 + 3 + 1


def test_of_a_structure_dump_the_tree_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = dump(tmp_path / "a", {}, task="structure")
    assert names(shown(capsys, folder)) == [BLOCK, LINEAR, SOFTMAX, LOG, NORM]
    assert names(shown(capsys, folder, "--module", "layers.0")) == [BLOCK, LINEAR, SOFTMAX]
    (folder / "construct.json").write_text("{}")
    assert shown(capsys, folder)[-1] == "nothing was recorded"


def test_stacks_stand_below_their_record(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, folder, "--stack", "--api", "linear")
    assert [line.strip() for line in lines[-2:]] == [
        "File /x/site-packages/torch/nn/f.py, line 1, in f, f()", "File train.py, line 7, in step, log(x)",
    ]  # fmt: skip
    (folder / "stack.json").unlink()
    assert any("stack.json is missing" in line for line in shown(capsys, folder, "--stack"))
    (folder / "stack.json").write_text("[]")
    assert len(names(shown(capsys, folder))) == 5, "it is not needed"


def test_a_run_is_a_line_for_each_dump_and_first_of_all_the_first_nan(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump(tmp_path / "run" / "step0" / "rank1", {LINEAR: DATA[LINEAR]})
    last = dump(tmp_path / "run" / "step1" / "rank0", {SOFTMAX: DATA[SOFTMAX]})
    first, head, *lines = shown(capsys, tmp_path / "run")
    assert first.startswith(f"step0/rank0: first NaN: {LOG}.output.0; ")
    assert head == f"{tmp_path / 'run'}: 3 dumps; next: msprobe show {folder}"
    assert [line.split(":")[0] for line in lines] == ["step0/rank0", "step0/rank1", "step1/rank0"]
    assert lines[1].endswith("1 records; no NaN and no infinity")
    assert sum(f"{SOFTMAX}  input.0" in line for line in shown(capsys, tmp_path / "run", "--where", "inf")) == 2
    # A dump that cannot be read keeps no other from being shown.
    (last / "dump.json").write_text('{"data": {')
    assert cli.main(["show", str(tmp_path / "run")]) == 2
    said = capsys.readouterr()
    assert "1 of 3 dumps" in said.err and "cut off at byte 10" in said.out and f"first NaN: {LOG}" in said.out


def test_a_run_that_died_is_shown_from_its_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_journal(tmp_path, {LOG: DATA[LOG]})
    first, head, *_ = shown(capsys, tmp_path)
    assert first.startswith(f"first NaN: {LOG}.output.0") and head.endswith("1 records, the journal of a run that died")


def test_a_limit_says_what_it_leaves_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    *lines, last = shown(capsys, folder, "--limit", 2)
    assert records(lines) == [LINEAR, SOFTMAX] and last.startswith("... and 3 more lines; --limit 0 shows all")
    assert shown(capsys, folder, "--limit", 0) == shown(capsys, folder)


def test_json_is_json_whatever_the_numbers_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    (found,) = json.loads("\n".join(shown(capsys, folder, "--json", "--stack")), parse_constant=refuse)
    assert (found["step"], found["rank"], found["level"], found["records_in_dump"]) == (0, 0, "mix", 5)
    assert (found["first_nan"]["name"], found["first_nan"]["Min"]) == (f"{LOG}.output.0", "NaN")
    assert found["first_infinity"] is None and [record["name"] for record in found["records"]] == list(DATA)
    linear, softmax, *_ = found["records"]
    assert linear["inside"] == BLOCK and linear["stack"] == STACK and softmax["stack"] == []
    assert linear["items"][2] == {
        "name": f"{LINEAR}.output.0", "state": "output", "dtype": "torch.float32", "shape": [4, 8],
        "Max": 3.0, "Min": -1.0, "Mean": 0.0123456, "Norm": 2.0, "requires_grad": True, "md5": None, "value": None,
        "data_name": None,
    }  # fmt: skip
    (found,) = json.loads("\n".join(shown(capsys, folder, "--json", "--where", "nan", "--limit", 1)))
    assert [(record["name"], len(record["items"])) for record in found["records"]] == [(LOG, 1)]


@pytest.mark.parametrize("name", ["relu\x1b[2J\nfirst NaN: nothing", "x" * 5000])
def test_names_from_a_file_command_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert len(shown(capsys, dump(tmp_path / "a", {f"Torch.{name}.0.forward": DATA[LOG]}), "--stack")) == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--where", "Max >"], 'where "Max >": this is not a condition'),
        (["--timeline", "--tree"], "--tree cannot be combined with --timeline"),
        (["--tree"], "construct.json is missing, or empty"),
        (["--stack"], "stack.json"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    (folder / "construct.json").write_text("{}")
    (folder / "stack.json").write_text("[]")
    assert cli.main(["show", str(folder), *arguments]) == 2
    found = capsys.readouterr()
    assert said in found.err and found.err.count("\n") == 1
