"""``msprobe show``: what it prints of a dump, a run and a journal, for people and for machines."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import made_dumps
import pytest
from made_dumps import call, plain, write

from probe.api import cli
from probe.common.dump.journal import REPLACE, Header, JournalWriter
from probe.common.dump.layout import JOURNAL_FILE

LINEAR, SOFTMAX, LOG = "Functional.linear.0.forward", "Functional.softmax.0.forward", "Torch.log.0.forward"
BLOCK, NORM = "Module.layers.0.Block.forward.0", "Module.layers.1.norm.LayerNorm.forward.0"


def tensor(largest: float | None, smallest: float | None = -1.0, dtype: str = "torch.float32") -> dict[str, Any]:
    return made_dumps.tensor(largest, smallest, 0.0123456, 2.0, (4, 8), dtype, requires_grad=True)


DATA = {
    LINEAR: call([tensor(1.0), tensor(2.0)], [tensor(3.0)]),
    SOFTMAX: call([tensor(3.0, -math.inf), plain(-1)], [tensor(1.0, 0.0)]),
    BLOCK: call([tensor(1.0)], [tensor(50.0)]),
    LOG: call([tensor(50.0)], [tensor(math.nan, math.nan)]),
    NORM: call([tensor(math.nan, math.nan)], [tensor(math.nan, math.nan)]),
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


def test_the_first_lines_say_where_the_first_value_is_that_has_a_consequence(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys, folder)
    # The infinity of the mask before it has none.
    assert lines[:3] == [
        f"first NaN: {LOG}.output.0; all its inputs are finite",
        "  line: train.py:7 in step: log(x)",
        f"{folder}/dump.json: pytorch, mix, statistics, 5 records",
    ]


def test_a_plain_number_that_went_in_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = {LOG: call([tensor(50.0), plain(math.nan)], [tensor(1.0, math.nan)])}
    assert shown(capsys, dump(tmp_path / "run", data))[0].endswith(f"{LOG}.output.0; input.1 is nan")


def test_an_infinity_that_was_asked_for_is_not_the_first_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill = "Tensor.masked_fill.0.forward"
    data = {fill: call([tensor(50.0), plain(-math.inf)], [tensor(1.0, -math.inf)]), SOFTMAX: DATA[SOFTMAX]}
    folder = dump(tmp_path / "run", data)
    said = f"no NaN and no infinity that has a consequence; {fill}.output.0 has one that was meant or left out"
    assert shown(capsys, folder)[0] == said
    assert shown(capsys, tmp_path / "run")[0] == said
    assert cli.main(["overflow_check", "-i", str(folder)]) == 0


def test_a_buffer_that_a_call_only_writes_to_is_not_the_first_nan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = call([tensor(1.0)], [tensor(1.0)], {"out": tensor(math.nan, math.nan)})
    first = shown(capsys, dump(tmp_path / "run", {"Torch.mul.0.forward": written}))[0]
    assert first.startswith("no NaN and no infinity that has a consequence; Torch.mul.0.forward.input.out ")


def test_a_record_is_a_line_with_what_is_not_finite_or_its_first_output(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys, folder)
    assert names(lines) == [
        f"{LINEAR}  output.0", f"{SOFTMAX}  input.0", f"{BLOCK}  output.0", f"{LOG}  output.0", f"{NORM}  output.0",
    ]  # fmt: skip
    (line,) = [line for line in lines if line.endswith(f"{LINEAR}  output.0")]
    assert line.split()[:7] == ["3", "-1", "0.01235", "2", "float32", "[4,", "8]"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--module", "layers.0"], [LINEAR, SOFTMAX, BLOCK]),
        (["--module", "layers.*"], [LINEAR, SOFTMAX, BLOCK, NORM]),
        (["--module", "Block"], [LINEAR, SOFTMAX, BLOCK]),
        (["--module", "*Norm"], [NORM]),
        (["--module", f"{NORM}.output.0"], [NORM]),
        (["--module", BLOCK], [LINEAR, SOFTMAX, BLOCK]),
        (["--module", "Module.layers.0.Block"], [LINEAR, SOFTMAX, BLOCK]),
        (["--module", "Module.layers.0"], [LINEAR, SOFTMAX, BLOCK]),
        (["--module", "Module.layers"], [LINEAR, SOFTMAX, BLOCK, NORM]),
        (["--module", "norm"], [NORM]),
        (["--module", "1.norm"], [NORM]),
        (["--api", "softmax"], [SOFTMAX]),
        (["--api", SOFTMAX], [SOFTMAX]),
        (["--api", f"{SOFTMAX}.input.0"], [SOFTMAX]),
        (["--api", "Functional.softmax.0"], [SOFTMAX]),
        (["--api", "Functional.*"], [LINEAR, SOFTMAX]),
        (["--api", "log", "--module", "layers.0"], []),
        (["--where", "Max > 10"], [f"{BLOCK}  output.0", f"{LOG}  input.0"]),
        (["--where", "inf"], [f"{SOFTMAX}  input.0"]),
        (["--where", "value == -1"], [f"{SOFTMAX}  input.1 = -1"]),
        (["--items", "--api", "linear"], [f"{LINEAR}  {item}" for item in ("input.0", "input.1", "output.0")]),
    ],
)
def test_what_is_asked_for_is_shown(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], expected: list[str]
) -> None:
    lines = shown(capsys, folder, *options)
    if not expected:
        assert lines[-1] == "no record matches; each option alone may match something"
        return
    found = names(lines)
    with_items = "--where" in options or "--items" in options
    assert (found if with_items else [name.split("  ")[0] for name in found]) == expected


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--module", "layrs.0"], "nearest modules: layers.0, "),
        (["--module", "Module.layers.1.nrm.LayerNorm.forward.0"], "nearest modules: layers.1.norm"),
        (["--module", "nrom"], "nearest modules: layers.1.norm"),
        (["--module", "zzz"], "modules are layers.0, layers.1.norm"),
        (["--api", "sofmax"], "nearest functions: Functional.softmax"),
        (["--api", "Functional.lienar.0.forward"], "nearest functions: Functional.linear"),
        (["--api", "zzz"], "functions are Functional.linear, Functional.softmax, Torch.log"),
    ],
)
def test_where_nothing_fits_the_nearest_names_are_said(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], hint: str
) -> None:
    assert shown(capsys, folder, *options)[-1].startswith(f"no record matches; {hint}")


def test_a_module_named_by_its_record_has_all_that_is_below_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gradients = "Module.layers.0.fc.Linear.parameters_grad.0"
    folder = dump(tmp_path / "a", {**DATA, gradients: {"weight": [tensor(1.0)]}})
    assert [name.split("  ")[0] for name in names(shown(capsys, folder, "--module", BLOCK))] == [
        LINEAR, SOFTMAX, BLOCK, gradients,
    ]  # fmt: skip


def test_a_timeline_has_a_line_for_each_module_and_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step, norm in enumerate((2.0, 3.0, math.inf, 4.0)):
        entry = {**tensor(5.0), "Norm": norm, "Max": norm}
        for rank in (0, 1):
            dump(tmp_path / f"step{step}" / f"rank{rank}", {BLOCK: call([tensor(1.0)], [entry]), LOG: DATA[LOG]})
    header, *lines = shown(capsys, tmp_path, "--timeline")
    assert header.split() == ["step", "Max", "Norm", "growth", "record"]
    assert [line.split() for line in lines] == [
        ["0", "rank0", "2", "2", BLOCK], ["1", "rank0", "3", "3", "x1.5"], ["2", "rank0", "inf", "inf"],
        ["3", "rank0", "4", "4"],
        ["0", "rank1", "2", "2", BLOCK], ["1", "rank1", "3", "3", "x1.5"], ["2", "rank1", "inf", "inf"],
        ["3", "rank1", "4", "4"],
    ]  # fmt: skip
    rows = json.loads("\n".join(shown(capsys, tmp_path, "--timeline", "--api", "log", "--json")))
    assert [row["record"] for row in rows] == [LOG] * 8 and rows[0]["Max"] == "NaN" and rows[1]["growth"] is None
    assert len(shown(capsys, tmp_path, "--timeline", "--limit", "3")) == 1 + 3 + 1


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--tree"], "--tree cannot be combined with --timeline"),
        (["--module", "nrom"], "no record matches; nearest modules: "),
        (["--module", "norm", "--api", "log"], "no record matches; each option alone may match something"),
    ],
)
def test_a_timeline_that_cannot_be_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], hint: str
) -> None:
    assert cli.main(["show", str(folder), "--timeline", *options]) == 2
    assert hint in capsys.readouterr().err


def test_no_hint_ends_in_the_air(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = dump(tmp_path / "a", {LOG: DATA[LOG]})
    (folder / "construct.json").write_text("{}")
    assert shown(capsys, folder, "--module", "norm")[-1] == "no record matches; no module was recorded"


def test_what_ran_inside_the_optimizer_is_a_module_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = dump(tmp_path / "a")
    (folder / "construct.json").write_text(json.dumps({**TREE, "optimizer": None, LOG: "optimizer"}))
    assert [name.split("  ")[0] for name in names(shown(capsys, folder, "--module", "optimizer"))] == [LOG]


def test_of_a_structure_dump_the_tree_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = dump(tmp_path / "a", {}, task="structure")
    assert names(shown(capsys, folder)) == names(shown(capsys, folder, "--tree")) == [BLOCK, LINEAR, SOFTMAX, LOG, NORM]
    assert names(shown(capsys, folder, "--module", "layers.0")) == [BLOCK, LINEAR, SOFTMAX]
    (folder / "construct.json").write_text("{}")
    assert shown(capsys, folder)[-1] == "nothing was recorded"


def test_without_a_stack_file_a_line_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "stack.json").unlink()
    said = "there are no call stacks: stack.json is missing"
    assert said in shown(capsys, folder, "--stack") and said not in shown(capsys, folder)


def test_a_tree_shows_what_ran_inside_of_what(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, folder, "--tree")
    start = next(line.index("record and item") for line in lines if line.endswith("record and item"))
    depths = [(len(line[start:]) - len(line[start:].lstrip()), line.split("  ")[-2].strip()) for line in lines[4:]]
    assert depths == [(0, BLOCK), (2, LINEAR), (2, SOFTMAX), (0, LOG), (0, NORM)]
    # What is around is kept, so that the place can be seen.
    found = [name.split("  ")[0] for name in names(shown(capsys, folder, "--tree", "--where", "inf"))]
    assert found == [BLOCK, SOFTMAX]


def test_a_damaged_stack_file_hides_no_dump(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "stack.json").write_text("[]")
    assert len(names(shown(capsys, folder))) == 5
    assert cli.main(["show", str(folder), "--stack"]) == 2
    assert "stack.json" in capsys.readouterr().err


def test_a_dump_without_a_tree_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "construct.json").write_text("{}")
    assert cli.main(["show", str(folder), "--tree"]) == 2
    said = capsys.readouterr().err
    assert "has no call tree: construct.json is missing, or empty as at level L1. Leave --tree out." in said


def test_stacks_stand_below_their_record(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, folder, "--stack", "--api", "linear")
    assert [line.strip() for line in lines[-2:]] == [
        "File /x/site-packages/torch/nn/f.py, line 1, in f, f()", "File train.py, line 7, in step, log(x)",
    ]  # fmt: skip


def test_a_run_is_a_line_for_each_dump_and_first_of_all_the_first_nan(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump(tmp_path / "run" / "step0" / "rank1", {LINEAR: DATA[LINEAR]})
    dump(tmp_path / "run" / "step1" / "rank0", {SOFTMAX: DATA[SOFTMAX]})
    lines = shown(capsys, tmp_path / "run")
    assert lines[0] == f"step0/rank0: first NaN: {LOG}.output.0; all its inputs are finite"
    assert lines[1] == f"{tmp_path / 'run'}: 3 dumps; next: msprobe show {tmp_path / 'run' / 'step0' / 'rank0'}"
    assert lines[3] == "step0/rank1: pytorch, mix, statistics, 1 records; no NaN and no infinity"
    assert [line.split(":")[0] for line in lines[2:]] == ["step0/rank0", "step0/rank1", "step1/rank0"]
    lines = shown(capsys, tmp_path / "run", "--where", "inf")
    assert sum(f"{SOFTMAX}  input.0" in line for line in lines) == 2


def test_a_dump_that_cannot_be_read_keeps_no_other_from_being_shown(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dump(tmp_path / "run" / "step0" / "rank1") / "dump.json").write_text('{"data": {')
    assert cli.main(["show", str(tmp_path / "run")]) == 2
    said = capsys.readouterr()
    assert "1 of 2 dumps" in said.err and "cut off at byte 10" in said.out and f"first NaN: {LOG}" in said.out


def test_a_run_that_died_is_shown_from_its_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = JournalWriter(str(tmp_path / JOURNAL_FILE), Header("statistics", "L1", "pytorch", None))
    writer.record(LOG, 0, -1, None, 0, REPLACE, DATA[LOG])
    writer.close()
    lines = shown(capsys, tmp_path)
    assert lines[0].startswith(f"first NaN: {LOG}.output.0")
    assert lines[1].endswith("pytorch, L1, statistics, 1 records, the journal of a run that died")


def test_without_statistics_nothing_is_said_of_nan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = dump(tmp_path / "a", {LINEAR: call([], [tensor(None, None)])})
    assert shown(capsys, folder)[0] == "no statistics were recorded, so a NaN cannot be seen"


def test_a_limit_says_what_it_leaves_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, folder, "--limit", 2)
    assert names(lines[:-1]) == [f"{LINEAR}  output.0", f"{SOFTMAX}  input.0"]
    assert lines[-1].startswith("... and 3 more lines; --limit 0 shows all")
    assert shown(capsys, folder, "--limit", 0) == shown(capsys, folder)


def test_json_is_json_whatever_the_numbers_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    (found,) = json.loads("\n".join(shown(capsys, folder, "--json", "--stack")), parse_constant=refuse)
    assert (found["step"], found["rank"], found["level"], found["records_in_dump"]) == (0, 0, "mix", 5)
    assert (found["first_nan"]["name"], found["first_nan"]["Min"]) == (f"{LOG}.output.0", "NaN")
    assert found["first_infinity"] is None
    assert [record["name"] for record in found["records"]] == list(DATA)
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
    folder = dump(tmp_path / "a", {f"Torch.{name}.0.forward": DATA[LOG]})
    lines = shown(capsys, folder, "--stack")
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--where", "Max >"], 'where "Max >": this is not a condition. Allowed: Max, Min'),
        (["--limit", "-3"], "'-3' is not a number of lines; allowed: 0 (all) and more."),
        (["nowhere"], "nowhere does not exist"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    given = arguments if arguments == ["nowhere"] else [str(folder), *arguments]
    status = cli.main(["show", *given])
    found = capsys.readouterr()
    assert status == 2 and said in found.err and found.out == ""


def test_what_the_dump_counted_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counted = {**tensor(math.nan), "Nonfinite": 2, "Finite Max": 3.5, "Finite Min": -1.25}
    path = dump(tmp_path / "rank0", {LOG: call([tensor(1.0)], [counted])})
    elements = math.prod(counted["shape"])
    lines = shown(capsys, path)
    assert any(f"{LOG}.output.0 (2 of {elements} elements, the others from -1.25 to 3.5)" in line for line in lines)
    (found,) = json.loads("\n".join(shown(capsys, path, "--json")))
    assert [found["first_nan"][key] for key in ("Nonfinite", "Finite Max", "Finite Min")] == [2, 3.5, -1.25]
    (given, _) = found["records"][0]["items"]
    assert "Nonfinite" not in given
