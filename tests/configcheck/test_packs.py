"""Packs: what is written, what is refused, and a process that is killed while it writes."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from probe.common.errors import MsprobeException
from probe.configcheck.collect import collect
from probe.configcheck.pack import MANIFEST, merge_pack, read_members, read_pack, write_pack


def archive(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as written:
        for name, content in members:
            written.writestr(name, content)
    return str(path)


def link() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("pip")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.mark.parametrize("name", ["../env", "a/../../env", "/etc/env", "..\\env", "C:\\env"])
def test_a_member_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(MsprobeException, match="leaves the folder"):
        read_pack(archive(tmp_path / "a.zip", ("env", b"{}"), (name, b"{}")))
    assert os.listdir(tmp_path) == ["a.zip"]


def test_links_doubles_and_encrypted_members_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MsprobeException, match="is a link"):
        read_pack(archive(tmp_path / "a.zip", ("env", b"{}"), (link(), b"/etc/passwd")))
    with pytest.warns(UserWarning, match="Duplicate name"):
        doubled = archive(tmp_path / "b.zip", ("env", b"{}"), ("env", b'{"a": "b"}'))
    with pytest.raises(MsprobeException, match="is there twice"):
        read_pack(doubled)


def test_a_member_of_ten_gigabytes_is_refused_at_once(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", ("env", b"{}"), ("weights/step0/rank0/weight.json", b"x" * 1000))
    content = bytearray(Path(path).read_bytes())
    size = (10 << 30) & 0xFFFFFFFF
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = size.to_bytes(4, "little")
    Path(path).write_bytes(content)
    start = time.process_time()
    with pytest.raises(MsprobeException, match="more than a pack may hold"):
        read_pack(path)
    assert time.process_time() - start < 1


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    """A header that says less than there is."""
    path = archive(tmp_path / "a.zip", ("env", b"{}" + b" " * 5_000_000))
    content = bytearray(Path(path).read_bytes())
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = (2).to_bytes(4, "little")
    Path(path).write_bytes(content)
    with pytest.raises(MsprobeException):
        read_pack(path)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (b"", "is not a pack"),
        (b"PK\x03\x04", "is not a pack"),
        (None, "does not exist"),
        ({"env": b"{"}, "'env' is not valid JSON"),
        ({"env": b"[]"}, "'env' is a list"),
        ({MANIFEST: b'{"schema": 99}', "env": b"{}"}, r'"schema" of manifest\.json is 99; allowed: 1'),
        *(
            ({MANIFEST: b'{"schema": 1, "members": %b}' % listed, "env": b"{}"}, r'"members" .* a list of names')
            for listed in (b"5", b"[[]]", b'{"env": 1}', b"null")
        ),
    ],
)
def test_what_is_no_pack_or_damaged_is_one_sentence(tmp_path: Path, members: Any, message: str) -> None:
    path = tmp_path / "a.zip"
    if isinstance(members, dict):
        archive(path, *members.items())
    elif members is not None:
        path.write_bytes(members)
    with pytest.raises(MsprobeException, match=message):
        read_pack(str(path))


@pytest.mark.parametrize("depth", [110, 900, 50_000])
@pytest.mark.parametrize("name", ["environment.json", "settings/x.json", "hyperparameters/hyperparameters_static.json"])
@pytest.mark.parametrize(("before", "after"), [("[", "]"), ('{"a": ', "}")])
def test_a_member_that_is_nested_deeply_is_one_sentence(
    tmp_path: Path, depth: int, name: str, before: str, after: str
) -> None:
    text = f'{{"python": {before * depth}1{after * depth}}}'.encode()
    with pytest.raises(MsprobeException, match=f"member '{name}' is (nested too deeply|not valid JSON)"):
        read_pack(archive(tmp_path / "a.zip", ("env", b"{}"), (name, text)))


def test_a_number_of_thousands_of_digits_in_the_name_of_a_member_is_no_rank(tmp_path: Path) -> None:
    names = [f"weights/step0/rank{'9' * 5000}/weight.json", f"random/rank{'1' * 4301}.json"]
    found = read_pack(archive(tmp_path / "a.zip", ("env", b"{}"), *((name, b"{}") for name in names)))
    assert not found.weights and not found.random


def test_a_pack_has_a_manifest_and_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("python t.py --lr 1\n")
    paths = [str(tmp_path / name) for name in ("a.zip", "b.zip")]
    for path in paths:
        collect([str(tmp_path / "train.sh")], path)
    assert Path(paths[0]).read_bytes() == Path(paths[1]).read_bytes()
    members = read_members(paths[0])
    manifest = json.loads(members[MANIFEST])
    assert manifest["collected"] == ["env", "pip", "environment", "hyperparameters"]
    assert str(tmp_path) not in "".join(content.decode() for content in members.values())
    assert json.loads(members["hyperparameters/hyperparameters_static.json"]) == {"lr": "1"}
    assert stat.S_IMODE(os.stat(paths[0]).st_mode) == 0o640


def test_ranks_share_a_pack_and_an_older_one_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "a.zip")
    for rank in (0, 1):
        members = {"env": b"{}", f"random/rank{rank}.json": b"{}"}
        merge_pack(path, members, ["env", "random"], 0, rank, True)
    assert {name for name in read_members(path) if "rank" in name} == {"random/rank0.json", "random/rank1.json"}
    os.utime(path, (1, 1))
    merge_pack(path, {"env": b"{}", "random/rank0.json": b"{}"}, ["env", "random"], 0, 0, True)
    assert "random/rank1.json" not in read_members(path)
    assert os.listdir(tmp_path) == ["a.zip"]


PROGRAM = """
import os, sys
from probe.configcheck.pack import write_pack
print("ready", flush=True)
while True:
    members = {f"weights/step{i}/rank0/weight.json": os.urandom(20000) for i in range(200)}
    write_pack(sys.argv[1], members, ["weights"], 0)
"""


def test_killed_while_packing_leaves_a_whole_pack_or_none(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.15)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if path.exists():
            assert len(read_members(str(path))) == 201


def test_any_number_of_unknown_members_is_one_line_and_none_of_them_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = archive(tmp_path / "a.zip", ("env", b"{}"), *((f"unknown/{number}", b"x") for number in range(2_000)))
    assert read_pack(path).env == {} and list(read_members(path, [])) == ["env"]
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "'unknown/0' and 1999 others" in said
    # Nor are members that the manifest does not list.
    listed = str(tmp_path / "b.zip")
    write_pack(listed, {"env": b"{}"}, ["env"], 0)
    with zipfile.ZipFile(listed, "a") as written:
        written.writestr("pip", "torch=1.0")
    assert read_pack(listed).pip is None and "'pip' is not in manifest.json" in capsys.readouterr().err
