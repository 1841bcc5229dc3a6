"""The command line: help, version, and what the exit statuses mean. No framework is needed for any of it."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
from pathlib import Path

import pytest
from command_line import msprobe

import probe
from probe.api import cli
from probe.common.dump.journal import REPLACE, Header, JournalWriter
from probe.common.dump.layout import JOURNAL_FILE

WHOLE = json.dumps({"task": "statistics", "level": "mix", "framework": "pytorch", "data": {}})


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return msprobe(*arguments, COLUMNS="120")


def journal(folder: Path, names: list[str]) -> Path:
    folder.mkdir(parents=True)
    writer = JournalWriter(str(folder / JOURNAL_FILE), Header("statistics", "L1", "pytorch", None))
    for n, name in enumerate(names):
        writer.record(name, n, -1, None, n, REPLACE, {"output": [None]})
    writer.close()
    return folder / JOURNAL_FILE


def names(folder: Path) -> list[str]:
    return list(json.loads((folder / "dump.json").read_text())["data"])


def test_help_names_the_commands_and_an_example() -> None:
    done = command("--help")
    assert done.returncode == 0 and done.stderr == ""
    for part in ("usage: msprobe", "recover", "Make dump.json", "msprobe recover ./run_a"):
        assert part in done.stdout
    assert command().stdout == done.stdout, "that is what one gets who does not know what to give"
    assert command().returncode == 0
    done = command("recover", "--help")
    assert done.returncode == 0 and "DIR" in done.stdout and "--remove" in done.stdout
    assert "A journal is kept, so that nothing is lost" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["compre", "a", "b"], '"compre" is not a command; did you mean "compare"? The commands are run, show,'),
        (["zzz"], '"zzz" is not a command. The commands are run, show,'),
        (["show", "x", "--moduel=y"], 'unrecognized arguments: --moduel=y; did you mean "--module"? See msprobe show'),
        (["compare", "a", "b", "--rank_", "2"], 'unrecognized arguments: --rank_ 2; did you mean "--rank_size"? See'),
        (["acc_check", "-api", "x"], "are required: -api_info"),
        (["show", "x", "y"], "unrecognized arguments: y. See msprobe show --help."),
        (["compare", "a"], "1 path was given; give two"),
        (["compare"], "two runs are missing; give two paths, or -tp and -gp, or --last"),
        (["compare", "-tp", "a"], "-gp/--golden_path is missing"),
        (["compare", "a", "b", "-gp", "c"], "paths and -gp were given; name the two runs in one way"),
        (["compare", "--last", "-tp", "a"], "--last and -tp were given; name the two runs in one way"),
    ],
)
def test_what_is_misspelled_is_said_with_what_was_meant(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert hint in capsys.readouterr().err


def test_a_shell_completes_commands_and_flags() -> None:
    pytest.importorskip("shtab")
    done = command("completion", "bash")
    script = f"{done.stdout}\nCOMP_WORDS=(msprobe $WORDS); COMP_CWORD=$AT; _shtab_msprobe; echo ${{COMPREPLY[@]}}"
    for words, at, completed in (("comp", 1, "compare completion"), ("compare --las", 2, "--last")):
        given = subprocess.run(
            ["bash", "-c", script], env={"WORDS": words, "AT": str(at)}, capture_output=True, text=True, check=True
        )
        assert given.stdout.split() == completed.split()


def test_version_is_that_of_the_package() -> None:
    done = command("--version")
    assert (done.returncode, done.stdout.strip()) == (0, f"msprobe {probe.__version__}")


def test_the_installed_command_is_this_one() -> None:
    try:
        found = importlib.metadata.distribution("msprobe").entry_points
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed")
    (entry,) = [entry for entry in found if entry.group == "console_scripts"]
    assert entry.name == "msprobe" and entry.load() is cli.main


@pytest.mark.parametrize("arguments", [["dance"], ["recover"], ["recover", "a", "b"], ["--no-such-option"]])
def test_wrong_usage_is_status_2_and_says_how_to_use_it(arguments: list[str]) -> None:
    done = command(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(r"msprobe[ \w]*: .*\. See msprobe[ \w]* --help\.\n", done.stderr)
    if arguments == ["dance"]:
        assert '"dance"' in done.stderr and "recover" in done.stderr


def test_recover_makes_files_and_says_what_it_made(tmp_path: Path) -> None:
    for rank in range(2):
        journal(tmp_path / "step0" / f"rank{rank}", ["Torch.relu.0.forward", "Torch.relu.1.forward"][: rank + 1])
    done = command("recover", str(tmp_path))
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.splitlines() == [
        f"{tmp_path / 'step0' / 'rank0'}: 1 records in dump.json",
        f"{tmp_path / 'step0' / 'rank1'}: 2 records in dump.json",
    ]
    assert names(tmp_path / "step0" / "rank1") == ["Torch.relu.0.forward", "Torch.relu.1.forward"]
    assert (tmp_path / "step0" / "rank0" / JOURNAL_FILE).exists()


def test_recover_says_where_a_journal_was_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = journal(tmp_path / "rank0", ["a.0.forward"])
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"\x09\0\0\0")
    assert cli.main(["recover", str(tmp_path)]) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path / 'rank0'}: 1 records in dump.json; the last record was cut off at byte {whole} and is lost\n"
    )


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"task": "statistics", "data": {"Torch.a'])
def test_recover_calls_no_damaged_dump_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    folder = tmp_path / "step0" / "rank0"
    folder.mkdir(parents=True)
    (folder / "dump.json").write_text(content)
    assert cli.main(["recover", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert "There is no journal to make it from." in printed.err and "nothing to recover" not in printed.out
    assert (folder / "dump.json").read_text() == content


def test_recover_says_what_is_lost_behind_a_damaged_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = journal(tmp_path / "rank1", ["a.0.forward"]).stat().st_size
    path = journal(tmp_path / "rank0", ["a.0.forward", *(f"b.{n}.forward" for n in range(100))])
    data = bytearray(path.read_bytes())
    data[whole + 10] ^= 1
    path.write_bytes(bytes(data))
    assert cli.main(["recover", str(tmp_path / "rank0")]) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path / 'rank0'}: 1 records in dump.json; the journal is damaged at byte {whole}; what follows, "
        f"{(len(data) - whole) / 1024:.0f} KiB, is lost\n"
    )
    assert names(tmp_path / "rank0") == ["a.0.forward"]


def test_recover_can_remove_the_journals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = journal(tmp_path / "rank0", ["a.0.forward"])
    assert cli.main(["recover", "--remove", str(tmp_path)]) == 0
    assert not path.exists() and names(tmp_path / "rank0") == ["a.0.forward"]


@pytest.mark.parametrize("name", ["dump.json", "debug.json"])
def test_a_dump_that_is_whole_has_nothing_to_recover_and_that_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = tmp_path / "step0" / "rank0" / name
    path.parent.mkdir(parents=True)
    path.write_text(WHOLE)
    assert cli.main(["recover", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.err == "" and said.out.startswith(f"{tmp_path}: nothing to recover: ") and said.out.count("\n") == 1
    assert path.read_text() == WHOLE


@pytest.mark.parametrize("beside", ["dump.json", None])
def test_recover_names_the_journals_that_a_later_run_has_put_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], beside: str | None
) -> None:
    first = journal(tmp_path / "step0" / "rank0", ["a.0.forward"])
    aside = first.rename(first.with_name(f"{JOURNAL_FILE}.1"))
    for no_journal in (f"{JOURNAL_FILE}.2", f"{JOURNAL_FILE}.old"):
        (aside.parent / no_journal).touch()
    (aside.parent / f"{JOURNAL_FILE}.3").mkdir()
    if beside is not None:
        (aside.parent / beside).write_text(WHOLE)
    assert cli.main(["recover", "--remove", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.err == "" and said.out.startswith(f"{aside} belongs to an earlier run; ")
    assert "nothing to recover" not in said.out and said.out.count("\n") == 1
    assert aside.exists(), "what is said of it can still be done"
    # As the line says.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    aside.rename(elsewhere / JOURNAL_FILE)
    assert cli.main(["recover", str(elsewhere)]) == 0
    assert names(elsewhere) == ["a.0.forward"]


@pytest.mark.parametrize("content", [b"", b"MSPROBEJ", b"MSPROB", b"{}", b"MSPROBEJ" + b"\xff" * 50])
def test_one_broken_journal_keeps_no_other_from_being_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    for rank in (0, 2):
        journal(tmp_path / f"rank{rank}", ["a.0.forward"])
    broken = journal(tmp_path / "rank1", [])
    broken.write_bytes(content)
    assert cli.main(["recover", "--remove", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out.count("1 records") == 2 and said.err.count("\n") == 1 and str(broken) in said.err
    assert names(tmp_path / "rank0") == names(tmp_path / "rank2") == ["a.0.forward"]
    assert broken.read_bytes() == content, "what cannot be read is not removed"


def test_files_that_cannot_be_written_are_one_line_and_no_traceback(tmp_path: Path) -> None:
    path = journal(tmp_path / "rank0", ["a.0.forward"])
    (path.parent / "dump.json").mkdir()
    done = command("recover", "--remove", str(tmp_path))
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "dump.json" in done.stderr and path.exists()
