"""``msprobe pack``: what is in the file, what is kept out of it, and files that are refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_dumps import call, tensor, write, write_journal

import probe
from probe.api import cli
from probe.api.packing import pack
from probe.common import given_paths
from probe.common.dump.reading import unpacked
from probe.common.errors import FileCheckException, MsprobeException

CALL = "Torch.sin.0.forward"
RECORDS = {CALL: call([tensor()], [tensor(2.0)])}
FRAME = "File /job/train.py, line 3, in main, \n {}"


def made_run(folder: Path) -> Path:
    """A run of two ranks and two steps with tensors, stacks and environments."""
    for step in range(2):
        for rank in range(2):
            stacks = {"0": [[CALL], [FRAME.format("x = torch.sin(key, out='mean_of_all_elements')")]]}
            made = write(folder / f"step{step}" / f"rank{rank}", RECORDS, {CALL: None}, stacks, task="tensor")
            (made / "dump_tensor_data").mkdir()
            (made / "dump_tensor_data" / "x.npy").write_bytes(b"values")
            (made / "dump_error_info.log").write_text("trouble")
    for rank in range(2):
        (folder / f"environment_rank{rank}.json").write_text('{"format": 1}')
    (folder / "notes.txt").write_text("of the user")
    return folder


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_pack_has_the_files_of_the_run_without_values_and_the_same_bytes_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_run(tmp_path / "run")
    assert cli.main(["pack", f"{run}/", "-o", str(tmp_path / "a.zip")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("packed 2 steps of 2 ranks, 4 records: ") and out[1:] == [str(tmp_path / "a.zip")]
    found = members(tmp_path / "a.zip")
    folders = [f"step{step}/rank{rank}" for step in range(2) for rank in range(2)]
    of_ranks = [f"{folder}/{name}.json" for folder in folders for name in ("construct", "dump", "stack")]
    environments = ["environment_rank0.json", "environment_rank1.json"]
    assert list(found) == [unpacked.MANIFEST, *environments, *of_ranks]
    # Nothing suspicious is in the stacks, so that these are the bytes of the run.
    assert all(found[name] == (run / name).read_bytes() for name in of_ranks)
    pack(str(run), str(tmp_path / "b.zip"))
    assert (tmp_path / "b.zip").read_bytes() == (tmp_path / "a.zip").read_bytes()
    assert os.stat(tmp_path / "a.zip").st_mode & 0o777 == 0o640


def test_stacks_that_cannot_be_cleaned_of_secrets_are_left_out(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    damaged = run / "step0" / "rank0" / "stack.json"
    damaged.write_text(damaged.read_text()[:-4])
    found = pack(str(run), str(tmp_path / "a.zip"))
    assert found.notes == [f"{damaged} is damaged and left out."]
    assert "step0/rank0/stack.json" not in members(tmp_path / "a.zip")


@pytest.mark.parametrize(
    ("given", "wanted"), [("step1", ["step1/rank0", "step1/rank1"]), ("step1/rank0", ["step1/rank0"])]
)
def test_a_step_or_a_rank_is_packed_alone(tmp_path: Path, given: str, wanted: list[str]) -> None:
    found = pack(str(made_run(tmp_path / "run") / given), str(tmp_path / "a.zip"))
    assert [name for name in members(tmp_path / "a.zip") if name.endswith("dump.json")] == [
        f"{each}/dump.json" for each in wanted
    ]
    assert len(found.dumps) == len(wanted)
    environments = [name for name in members(tmp_path / "a.zip") if name.startswith("environment")]
    assert environments == [f"environment_{each.split('/')[1]}.json" for each in wanted]


def test_texts_that_may_be_secrets_are_not_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        'login(token="hf_abcdefghijk")',
        "password = 'correct horse battery'",
        "key = self.key(x, 'bidirectional')",
    ]
    write(tmp_path / "rank0", RECORDS, None, {"0": [[CALL], [FRAME.format(line) for line in lines]]})
    assert cli.main(["pack", str(tmp_path / "rank0"), "-o", str(tmp_path / "a.zip")]) == 0
    assert "3 lines of code in the stacks may hold a secret: their texts are left out." in capsys.readouterr().out
    ((_, frames),) = json.loads(members(tmp_path / "a.zip")["rank0/stack.json"]).values()
    assert frames == [
        FRAME.format(line) for line in ('login(token="...")', "password = '...'", "key = self.key(x, '...')")
    ]


def test_the_journal_of_a_process_that_died_is_made_into_files_in_the_pack_only(tmp_path: Path) -> None:
    write_journal(tmp_path / "run" / "step0" / "rank0", RECORDS)
    before = sorted((tmp_path / "run").rglob("*"))
    found = pack(str(tmp_path / "run"))
    assert found.records == 1 and "died" in found.notes[0]
    assert sorted((tmp_path / "run").rglob("*")) == before
    assert "step0/rank0/dump.json" in members(tmp_path / "run.zip")
    assert [each.name for each in probe.read(tmp_path / "run.zip")] == [CALL]


def test_runs_of_task_tensor_are_compared_by_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run")
    pack(str(run))
    assert cli.main(["compare", str(tmp_path / "run.zip"), str(run), "-o", str(tmp_path / "out"), "--jobs", "1"]) == 0
    captured = capsys.readouterr()
    assert "2 rows by statistics: 2 pass" in captured.out
    assert "has no files of tensors" in captured.err


def test_what_was_unpacked_is_gone_when_the_command_ends(tmp_path: Path) -> None:
    pack(str(made_run(tmp_path / "run")))
    (tmp_path / "tmp").mkdir()
    code = "import sys; from probe.api.cli import main; sys.exit(main(['show', sys.argv[1]]))"
    command = [sys.executable, "-c", code, str(tmp_path / "run.zip")]
    done = subprocess.run(command, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}, capture_output=True, text=True)
    assert done.returncode == 0 and f"next: msprobe show {tmp_path / 'run.zip'}/step0/rank0" in done.stdout
    assert list((tmp_path / "tmp").iterdir()) == []
    # A part of it is read in the same way.
    assert len(probe.Run(tmp_path / "run.zip" / "step1")) == 2


def test_a_page_of_packs_names_the_packs_and_has_the_same_bytes_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(made_run(Path("golden")) / "step0" / "rank1")
    pack(str(made_run(Path("run"))))
    pack("golden")
    contents = []
    for form in ([], ["--file_type", "db"]):
        for time in range(2):
            monkeypatch.setattr(unpacked, "_unpacked", {})
            output = Path(f"page{len(form)}{time}")
            output.mkdir()
            given = ["graph_visualize", "-tp", "run.zip", "-gp", "golden.zip", "-o", str(output)]
            # Of the two pages one is made by processes of their own.
            assert cli.main([*given, *form, "--jobs", "1" if form else str(1 + time)]) == 0
            contents.append(next(output.iterdir()).read_bytes())
    assert contents[0] == contents[1] and contents[2] == contents[3]
    assert b"run.zip/step0/rank0/dump.json" in contents[0]
    assert cli.main(["compare", "run.zip", "golden.zip", "-o", "out", "--html", "--jobs", "1"]) == 0
    contents += [path.read_bytes() for path in Path("out").rglob("*") if path.is_file()]
    captured = capsys.readouterr()
    assert "run.zip/step0/rank1 has no counterpart in the golden run golden.zip" in captured.out + captured.err
    contents.append((captured.out + captured.err).encode())
    assert not [content for content in contents if given_paths.PREFIX.encode() in content]


def test_json_and_errors_name_the_pack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.zip"
    pack(str(made_run(tmp_path / "run")))
    assert cli.main(["show", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["path"] == f"{path}/step0/rank0/dump.json"
    assert cli.main(["replay", str(path), CALL]) == 2
    assert f"give the folder of one, such as {path}/step0/rank0." in capsys.readouterr().err


@pytest.mark.parametrize("inside", ["", "step0", "step0/rank0"])
def test_acc_check_refuses_a_pack(tmp_path: Path, capsys: pytest.CaptureFixture[str], inside: str) -> None:
    pack(str(made_run(tmp_path / "run")))
    given = tmp_path / "run.zip" / inside
    assert cli.main(["acc_check", "-api_info", str(given), "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err == (
        f"msprobe acc_check: {given} is in a pack, which has no values of tensors, and acc_check needs them; "
        "give the folder instead.\n"
    )
    assert not (tmp_path / "out").exists()


# --- files from elsewhere


def archive_of(path: Path, *names: str, content: bytes = b"{}", mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in (unpacked.MANIFEST, *names):
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return path


def _larger_than_said(path: Path) -> Path:
    archive_of(path, "step0/rank0/dump.json", content=bytes(100_000))
    content = path.read_bytes()
    # In the headers, and in the table of contents.
    path.write_bytes(content.replace((100_000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    return path


HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a path that leaves": (lambda path: archive_of(path, "../../dump.json"), "leaves the folder"),
    "an absolute path": (lambda path: archive_of(path, "/etc/dump.json"), "leaves the folder"),
    "a link": (lambda path: archive_of(path, "step0/rank0/dump.json", mode=0o120777), "is a link"),
    "another size": (_larger_than_said, "another size|Bad CRC"),
    "too large": (lambda path: archive_of(path, "step0/rank0/dump.json", content=bytes(2 << 20)), "more than a pack"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_pack_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    make, said = HOSTILE[kind]
    monkeypatch.setattr(unpacked, "_LIMITS", unpacked.Limits(10, 1 << 20, 1 << 20, "pack of a run"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    path = make(tmp_path / "a.zip")
    with pytest.raises(FileCheckException, match=said):
        probe.read(path)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_members_that_no_run_has_are_not_unpacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack(str(made_run(tmp_path / "run")))
    with zipfile.ZipFile(tmp_path / "run.zip", "a") as archive:
        for name in ("step0/rank0/run.py", "a/b/c/d/dump.json", "step0/.../dump.json"):
            archive.writestr(name, "{}")
    found = probe.Run(tmp_path / "run.zip")
    assert "'step0/rank0/run.py' and 2 more ignored: no file of a run." in capsys.readouterr().err
    assert [path.name for path in Path(found.root).rglob("*") if path.suffix == ".py"] == []


def test_config_check_compares_the_environments_in_packs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("a", "Ring"), ("b", "Tree")):
        environment = {"format": 1, "variables": {"NCCL_ALGO": value}, "packages": {"torch": "2.9.0"}}
        made_run(tmp_path / name)
        (tmp_path / name / "environment_rank0.json").write_text(json.dumps(environment))
        pack(str(tmp_path / name))
    packs = [str(tmp_path / f"{name}.zip") for name in "ab"]
    assert cli.main(["config_check", "-c", *packs, "-o", str(tmp_path / "out")]) == 1
    assert "NCCL_ALGO" in capsys.readouterr().out


def test_a_pack_is_not_replaced_by_its_own(tmp_path: Path) -> None:
    written = Path(pack(str(made_run(tmp_path / "run"))).path)
    before = written.read_bytes()
    with pytest.raises(MsprobeException, match=r"would be replaced by its own pack; give another file with -o"):
        pack(str(written))
    assert written.read_bytes() == before
