"""``msprobe graph_visualize`` with wrong arguments or damaged files: one line that says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from graph_commands import DUMPS, LLAMA, WEIGHT

from probe.api.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "out"], "RUN is missing"),
        (["-tp", "nowhere", "-gp", LLAMA], "nowhere does not exist"),
        (["-tp", str(DUMPS), "-gp", f"{LLAMA}/dump.json"], "dumps holds no dump; give dump.json"),
        (["-tp", f"{LLAMA}/stack.json"], "stack.json holds no records; give dump.json"),
        (["-tp", WEIGHT, "-tp", LLAMA, "-gp", WEIGHT, "-gp", LLAMA], "-tp is given 2 times and -gp 2 times"),
        (["-tp", LLAMA, *["-gp", WEIGHT] * 9], "9 runs are given; allowed: at most 8"),
        (["-tp", WEIGHT, "-tp", WEIGHT, "-gp", LLAMA], f"{WEIGHT} is given several times"),
        (["-tp", "build_2024.vis"], "give the dump itself"),
        (["-i", "compare.json"], "msprobe graph_visualize TARGET GOLDEN -o OUTPUT"),
        (["-tp", LLAMA, "-gp", LLAMA, "--pairs", "nothing.yaml"], "nothing.yaml"),
        (["-tp", LLAMA, "-gp", LLAMA, "--rules", "msprobe", "-lm"], "the rules msprobe match as msProbe does"),
        (["-tp", "empty", "-gp", LLAMA], "empty holds no dump"),
        (["-tp", str(DUMPS.parents[1]), "-gp", "empty"], "holds no dump"),
    ],
)
def test_a_wrong_argument_is_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(["graph_visualize", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1 and said.startswith("msprobe graph_visualize: ")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--format", "pdf"], ["--max_mb", "-1"], ["--max_mb", "x"], ["--micro_step", "0"], ["--rules", "theirs"],
        ["--jobs", "0"], ["--tp", "0"], ["--jobs", "1", "--dask", "x"], ["--file_type", "xml"],
    ],
)  # fmt: skip
def test_a_value_that_is_not_allowed_is_an_error_of_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["graph_visualize", "-tp", LLAMA, *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert arguments[0] in line and (arguments[1] in line or len(arguments) > 2)
    assert "allowed" in line or "choose from" in line


def test_a_reader_that_has_seen_enough_is_told_of_no_error(tmp_path: Path) -> None:
    program = "import sys; from probe.api.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "graph_visualize", "-tp", WEIGHT, "-gp", LLAMA, "-o", str(tmp_path)]
    read, write = os.pipe()
    os.close(read)
    # Without a buffer the first line that is printed meets the closed pipe.
    variables = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=variables)
    os.close(write)
    assert done.stderr == b"" and done.returncode == 141


def test_the_older_form_with_a_hostile_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "deep.json").write_text("[" * 99_000)
    os.mkfifo(tmp_path / "pipe")
    for name in ("deep.json", "pipe"):
        assert main(["-f", "pytorch", "graph", "-i", str(tmp_path / name), "-o", str(tmp_path)]) != 0
        _, line = capsys.readouterr().err.splitlines()
        assert "msprobe graph_visualize TARGET GOLDEN" in line


def test_where_no_dump_can_be_shown_the_reason_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for step in range(2):
        folder = tmp_path / "run" / f"step{step}" / "rank0"
        folder.mkdir(parents=True)
        (folder / "dump.json").write_text('{"data": {')
    assert main(["graph_visualize", "-tp", "run", "-o", "out"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "no dump could be shown. run/step0/rank0/dump.json: cut off" in said
