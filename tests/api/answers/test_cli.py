"""The command line: help, version, misspelled words, and ``msprobe recover``. No framework is needed for any of it."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_line import msprobe
from made_dumps import write_journal

import probe
from probe.api import cli
from probe.common.dump.layout import JOURNAL_FILE

WHOLE = json.dumps({"task": "statistics", "level": "mix", "framework": "pytorch", "data": {}})


def test_help_names_the_commands_and_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    done = msprobe("--help", COLUMNS="120")
    assert done.returncode == 0 and done.stderr == ""
    assert all(part in done.stdout for part in ("usage: msprobe", "recover", "msprobe recover ./run_a"))
    assert msprobe(COLUMNS="120").stdout == done.stdout, "that is what one gets who does not know what to give"
    for arguments, parts in ((["recover", "--help"], ("DIR", "--remove")), (["--version"], (probe.__version__,))):
        with pytest.raises(SystemExit, match=r"^0$"):
            cli.main(arguments)
        out = capsys.readouterr().out
        assert all(part in out for part in parts)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["compre", "a", "b"], '"compre" is not a command; did you mean "compare"?'),
        (["zzz"], '"zzz" is not a command. The commands are run, show,'),
        (["show", "x", "--moduel=y"], '--moduel=y; did you mean "--module"?'),
        (["compare", "a", "b", "--rank_siz", "2"], '--rank_siz 2; did you mean "--rank_size"?'),
        (["acc_check", "-api", "x"], '-api; did you mean "-api_info"?'),
        (["acc_check"], "are required: RUN"),
        (["show", "x", "y"], "unrecognized arguments: y"),
        (["recover"], "DIR"),
        (["--no-such-option"], "--no-such-option"),
        (["compare", "a"], "BASELINE is missing"),
        (["compare"], "RUN and BASELINE are missing"),
        (["compare", "-tp", "a"], "BASELINE is missing"),
        (["compare", "a", "b", "-gp", "c"], "b and c are given; give one of them"),
        (["compare", "a", "b", "--baseline", "b"], "a does not exist"),
        (["compare", "--last", ".", "a"], "a and --last were given"),
    ],
)
def test_what_is_misspelled_or_missing_is_one_line_with_what_was_meant(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    said = capsys.readouterr()
    assert hint in said.err and said.out == "" and re.fullmatch(r"msprobe[ \w]*: .*\n", said.err)


def test_a_shell_completes_commands_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert cli.main(["completion", "bash"]) == 0
    call = "COMP_WORDS=(msprobe $WORDS); COMP_CWORD=$AT; _shtab_msprobe; echo ${COMPREPLY[@]}"
    script = f"{capsys.readouterr().out}\n{call}"
    for words, at, completed in (("comp", "1", "compare completion"), ("compare --las", "2", "--last")):
        given = subprocess.run(
            ["bash", "-c", script], env={"WORDS": words, "AT": at}, capture_output=True, text=True, check=True
        )
        assert given.stdout.split() == completed.split()


def test_the_installed_command_is_this_one() -> None:
    try:
        found = importlib.metadata.distribution("msprobe").entry_points
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed")
    (entry,) = [entry for entry in found if entry.group == "console_scripts"]
    assert entry.name == "msprobe" and entry.load() is cli.main


# --- recover


def journal(folder: Path, count: int = 1) -> Path:
    return write_journal(folder, {f"Torch.relu.{number}.forward": {"output": [None]} for number in range(count)})


def names(folder: Path) -> list[str]:
    return list(json.loads((folder / "dump.json").read_text())["data"])


@pytest.fixture
def recover(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Recover a folder, the one of the test by default; the status and what was said."""

    def run(*options: str, folder: Path = tmp_path) -> tuple[int, str, str]:
        status = cli.main(["recover", *options, str(folder)])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


@pytest.mark.parametrize("options", [[], ["--remove"]])
def test_recover_makes_files_and_says_what_it_made(tmp_path: Path, recover: Any, options: list[str]) -> None:
    paths = [journal(tmp_path / "step0" / f"rank{rank}", rank + 1) for rank in range(2)]
    status, out, err = recover(*options)
    assert (status, err) == (0, "")
    assert out.splitlines() == [f"{path.parent}: {rank + 1} records in dump.json" for rank, path in enumerate(paths)]
    assert names(paths[1].parent) == ["Torch.relu.0.forward", "Torch.relu.1.forward"]
    assert [path.exists() for path in paths] == [not options] * 2


@pytest.mark.parametrize(("kept", "said"), [("cut", "cut off"), ("damaged", "is damaged")])
def test_recover_says_what_is_lost(tmp_path: Path, recover: Any, kept: str, said: str) -> None:
    whole = journal(tmp_path / "whole").stat().st_size
    path = journal(tmp_path / "rank0", 1 if kept == "cut" else 100)
    data = bytearray(path.read_bytes())
    if kept == "cut":
        data += b"\x09\0\0\0"
    else:
        data[whole + 10] ^= 1
    path.write_bytes(bytes(data))
    status, out, _ = recover(folder=path.parent)
    assert status == 0 and "1 records in dump.json" in out and said in out and f"at byte {whole}" in out
    if kept == "damaged":
        assert f"{(len(data) - whole) / 1024:.0f} KiB" in out
    assert names(path.parent) == ["Torch.relu.0.forward"]


@pytest.mark.parametrize(
    ("name", "content", "status"),
    [
        ("dump.json", WHOLE, 0),
        ("debug.json", WHOLE, 0),
        ("dump.json", "", 2),
        ("dump.json", "[1]", 2),
        ("dump.json", '{"task": "statistics", "data": {"Torch.a', 2),
        ("", "", 2),
    ],
)
def test_a_whole_dump_has_nothing_to_recover_and_a_damaged_or_missing_one_is_trouble(
    tmp_path: Path, recover: Any, name: str, content: str, status: int
) -> None:
    path = tmp_path / "step0" / "rank0" / name
    path.parent.mkdir(parents=True)
    if name:
        path.write_text(content)
    done, out, err = recover()
    assert done == status
    if status == 0:
        assert err == "" and out.startswith(f"{tmp_path}: nothing to recover: ") and out.count("\n") == 1
    else:
        assert out == "" and str(tmp_path) in err and "journal" in err and err.count("\n") == 1
    assert not name or path.read_text() == content


@pytest.mark.parametrize("beside", ["dump.json", None])
def test_recover_names_the_journals_that_a_later_run_has_put_aside(
    tmp_path: Path, recover: Any, beside: str | None
) -> None:
    first = journal(tmp_path / "step0" / "rank0")
    aside = first.rename(first.with_name(f"{JOURNAL_FILE}.1"))
    for no_journal in (f"{JOURNAL_FILE}.2", f"{JOURNAL_FILE}.old"):
        (aside.parent / no_journal).touch()
    (aside.parent / f"{JOURNAL_FILE}.3").mkdir()
    if beside is not None:
        (aside.parent / beside).write_text(WHOLE)
    status, out, err = recover("--remove")
    assert (status, err) == (0, "") and out.startswith(f"{aside} belongs to an earlier run; ") and out.count("\n") == 1
    # What is said of it can still be done.
    (tmp_path / "elsewhere").mkdir()
    aside.rename(tmp_path / "elsewhere" / JOURNAL_FILE)
    assert recover(folder=tmp_path / "elsewhere")[0] == 0
    assert names(tmp_path / "elsewhere") == ["Torch.relu.0.forward"]


@pytest.mark.parametrize("content", [b"", b"MSPROBEJ", b"MSPROB", b"{}", b"MSPROBEJ" + b"\xff" * 50, None])
def test_one_journal_that_cannot_be_used_keeps_no_other_from_being_used(
    tmp_path: Path, recover: Any, content: bytes | None
) -> None:
    first, broken, last = (journal(tmp_path / f"rank{rank}") for rank in range(3))
    if content is None:
        (broken.parent / "dump.json").mkdir()
    else:
        broken.write_bytes(content)
    left = broken.read_bytes()
    status, out, err = recover("--remove")
    assert status == 2 and out.count("1 records") == 2 and err.count("\n") == 1 and str(broken.parent) in err
    assert names(first.parent) == names(last.parent) == ["Torch.relu.0.forward"]
    assert broken.read_bytes() == left, "what cannot be used is not removed"
