"""The exit status of every command: 0 nothing found, 1 something found, 2 trouble; and where its messages go.

The table is in ``tests/support/exit_status_cases.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from exit_status_cases import SITUATIONS, TABLE, Impossible, case_of, cases, dump, two, unreadable
from exit_statuses import ANSWER_NOTHING, check, own_process

import probe
from probe.api.cli import COMMANDS, main

ROOT = Path(probe.__file__).parents[1]
MERGING = ("--rank_size", "1", "1", "--tp", "1", "1", "--pp", "1", "1")


def needs(command: str) -> None:
    if command == "completion":
        pytest.importorskip("shtab", reason="completion prints what shtab makes")
    if command == "merge_result":
        pytest.importorskip("openpyxl", reason="merge_result writes a workbook")


def test_the_table_has_every_command_in_every_situation() -> None:
    assert list(TABLE) == list(COMMANDS)
    assert all(tuple(row) == SITUATIONS for row in TABLE.values())
    impossible = [case for row in TABLE.values() for case in row.values() if isinstance(case, Impossible)]
    assert all(case.reason for case in impossible)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("command", "situation"), cases(""))
def test_the_status_is_that_of_the_table(
    command: str,
    situation: str,
    as_json: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs(command)
    check(command, situation, as_json and command not in ANSWER_NOTHING, tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize("command", ["compare", "graph_visualize"])
def test_without_fail_on_a_divergence_is_no_finding(command: str, tmp_path: Path) -> None:
    found, nothing = (case_of(command, each).inputs(tmp_path / each) for each in ("found", "nothing to judge"))
    for arguments in (found, nothing):
        at = arguments.index("--fail-on")
        assert main([command, *arguments[:at], *arguments[at + 2 :]]) == 0


@pytest.mark.parametrize("command", ["compare", "graph_visualize"])
@pytest.mark.parametrize("differs", [False, True])
def test_one_pair_of_several_that_cannot_be_read_is_trouble(
    command: str, differs: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ranks(folder: Path) -> str:
        is_target = folder.name == "a"
        found = case_of(command, "found").inputs(tmp_path / "found")[1] if differs and is_target else None
        data = None if found is None else json.loads(Path(found, "dump.json").read_text())["data"]
        dump(folder / "step0" / "rank0", data)
        (unreadable if is_target else dump)(folder / "step0" / "rank1")
        return str(folder / "step0")

    assert main([command, *two(ranks, ranks)(tmp_path), "--json"]) == 2
    out, err = capsys.readouterr()
    assert "rank1" in err and "left out" in err and err.startswith(f"msprobe {command}: ") and err.count("\n") == 1
    if command != "compare":  # It prints a list.
        assert json.loads(out)["errors"] == [err.removeprefix(f"msprobe {command}: ").rstrip("\n")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give the other one with --baseline"),
        (["-gp", "{}", "--rules", "msprobe"], "leave --rules msprobe out"),
        (["-gp", "{}", "--file_type", "json", *MERGING], "--file_type json compares nothing"),
    ],
)
def test_graph_visualize_refuses_fail_on_for_what_it_does_not_judge(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = dump(tmp_path / "a")
    call = ["graph_visualize", "-tp", path, "-o", str(tmp_path / "out"), "--fail-on", "divergence"]
    assert main([*call, *(each.format(path) for each in arguments)]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "out").exists()


# --- what no command is meant to do


@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_of_its_own_is_a_traceback_and_status_2(
    as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("of its own")

    monkeypatch.undo()  # the fixture by which a test fails of such an error
    monkeypatch.setattr("probe.common.files.open_for_reading", broken)
    assert main(["show", dump(tmp_path / "a"), *(["--json"] if as_json else [])]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("Traceback ") and "in broken" in err
    last = err.splitlines()[-1]
    assert last.startswith("msprobe show: an error of msprobe itself, please report it: ZeroDivisionError: of its own")
    assert (json.loads(out)["errors"] == [last.partition(": ")[2]]) if as_json else out == ""


def test_quiet_shows_no_notes_and_leaves_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ranks(folder: Path) -> str:
        # Each rank is compared with the one process of the other side, which is said.
        for name in ("rank0", "rank1") if folder.name == "a" else ("proc7",):
            dump(folder / "step0" / name)
        return str(folder / "step0")

    arguments = ["compare", *two(ranks, ranks)(tmp_path)]
    before = dict(os.environ)
    assert main(arguments) == 0
    loud = capsys.readouterr()
    assert main([*arguments, "-q"]) == 0
    quiet = capsys.readouterr()
    assert "[INFO]" in loud.err and quiet.err == "" and quiet.out.splitlines()[0] == loud.out.splitlines()[0]
    assert dict(os.environ) == before


# --- real processes


METRIC = """
import os
def column_name(): return "Noise"
def compare(n_value, b_value):
    os.write(1, b"noise of compiled code\\n")
    print("noise")
    os.system("echo noise of a process")
    return 0
"""
INTERRUPTS = """
import os, signal
def column_name(): return "Interrupts"
def compare(n_value, b_value):
    # A process that a shell has put into the background ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)
    return 0
"""


def with_metric(folder: Path, source: str) -> list[str]:
    pytest.importorskip("numpy")
    import runs

    runs.two_runs(folder, ["step0/rank0"], real_data=True)
    (folder / "metric.py").write_text(source)
    paths = ["-tp", str(folder / "target"), "-gp", str(folder / "golden"), "-o", str(folder / "out")]
    return ["compare", *paths, "--jobs", "1", "--algorithms", str(folder / "metric.py")]


def test_with_json_others_print_to_standard_error(tmp_path: Path) -> None:
    status, out, err = own_process(case_of("compare", "fine"), [*with_metric(tmp_path, METRIC), "--json"], tmp_path)
    assert status == 0 and json.loads(out)[0]["label"] is not None
    assert all(text in err for text in ("noise of compiled code", "noise\n", "noise of a process"))


def test_ctrl_c_is_status_130_and_one_line(tmp_path: Path) -> None:
    arguments = [*with_metric(tmp_path, INTERRUPTS), "--json"]
    status, out, err = own_process(case_of("compare", "fine"), arguments, tmp_path)
    assert (status, err) == (130, "msprobe compare: interrupted.\n") and json.loads(out)["status"] == 130


def test_a_reader_that_leaves_early_ends_it_silently(tmp_path: Path) -> None:
    data = {
        f"Torch.sin.{number}.forward": {"input_args": [], "input_kwargs": {}, "output": []} for number in range(9999)
    }
    command = f"{sys.executable} -m probe.api.cli show {dump(tmp_path / 'a', data)}; echo $? >&2"
    done = subprocess.run(
        ["bash", "-c", f"({command}) | head -1"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.count("\n") == 1 and done.stderr == "141\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_an_output_that_cannot_be_written_is_trouble(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        call = [sys.executable, "-m", "probe.api.cli", "show", dump(tmp_path / "a")]
        done = subprocess.run(call, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("msprobe show: ") and "No space" in done.stderr


def test_without_a_standard_error_the_status_tells(tmp_path: Path) -> None:
    command = f"{sys.executable} -m probe.api.cli show {unreadable(tmp_path / 'a')} --json 2>&-; echo $?"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    *answer, status = done.stdout.splitlines()
    assert status == "2" and json.loads("\n".join(answer))["status"] == 2
