"""Whatever a file holds, its reader gives one clear error that names it: no code runs, and memory is bounded."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import files as hostile
from hostile.reading import Outcome, assert_refused, read_in_child, write

import probe
from probe.api.cli import main
from probe.common.dump.journal import MAGIC
from probe.common.dump.reading.tensor_reading import read_tensor
from probe.common.errors import MsprobeException


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("reader", ["names", "apis", "layers", "matrices", "choice"])
def test_a_hostile_mapping_is_refused(tmp_path: Path, reader: str) -> None:
    # A reader of a list of entries leaves out, with a line, what is an object without the keys of an entry.
    cases = {name: text for name, text in hostile.YAML.items() if reader != "apis" or name not in hostile.OBJECTS}
    assert_refused(read_in_child(reader, write(tmp_path / "m", cases, ".yaml")))


def test_an_alias_is_refused_by_its_line(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "m", {"a": "- &a {ms_api: Mint.add, pt_api: Torch.add}\n- *a\n"}, ".yaml")
    (outcome,) = read_in_child("apis", [path])
    assert outcome.message == f"{path}: line 2: *a repeats another part of the file; write it out."


@pytest.mark.parametrize("reader", ["tensor", "mapped"])
def test_a_hostile_npy_file_is_refused(tmp_path: Path, reader: str) -> None:
    paths = write(tmp_path / "t", hostile.NPY, ".npy")
    if reader == "mapped":
        # Only large files are mapped; what a header claims is more than this.
        for path in paths:
            if Path(path).stem in ("huge", "huge_with_some", "huge_beyond_64_bits", "pickle_inside", "negative"):
                with open(path, "ab") as stream:
                    stream.write(bytes(2 << 20))
    assert_refused(read_in_child(reader, paths))


def test_what_numpy_writes_is_read(tmp_path: Path) -> None:
    arrays = [np.zeros(0), np.arange(6.0).reshape(2, 3).T, np.float32(3), np.array(["a", "bc"]), np.zeros((2, 0, 3))]
    for mapped in (False, True):
        for number, array in enumerate([*arrays, np.arange(300_000.0).reshape(3, -1), np.asfortranarray(np.eye(500))]):
            np.save(tmp_path / f"{number}.npy", array)
            found = read_tensor(str(tmp_path / f"{number}.npy"), mapped)
            np.testing.assert_array_equal(found, array)
            assert found.dtype == array.dtype and found.shape == np.shape(array)


def test_a_hostile_dump_is_refused(tmp_path: Path) -> None:
    cases = dict(hostile.DUMP)
    cases.update({f"record_{name}": f'{{"data": {{"Torch.a.0.forward": {r}}}}}' for name, r in hostile.RECORD.items()})
    paths = []
    for name, content in cases.items():
        (path,) = write(tmp_path / name, {"dump": content}, ".json")
        paths.append(path)
    assert_refused(read_in_child("dump", paths))


@pytest.mark.parametrize(("name", "cases"), [("stack", hostile.STACKS), ("construct", hostile.TREES)])
def test_a_hostile_file_beside_a_dump_is_refused(tmp_path: Path, name: str, cases: dict[str, Any]) -> None:
    paths = []
    for case, content in {**cases, "deep": ..., "cut_off": ...}.items():
        text = {"deep": "[" * 10**6, "cut_off": '{"a": '}.get(case) or json.dumps(content)
        paths.append(str(tmp_path / case / "dump.json"))
        write(tmp_path / case, {"dump": '{"data": {}}', name: text}, ".json")
    outcomes = read_in_child("dump", paths)
    assert_refused([Outcome(o.path.replace("dump.json", f"{name}.json"), *o[1:]) for o in outcomes])


def test_a_tree_in_which_calls_are_inside_each_other_is_refused_in_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        names = ("Module.a.A.forward.0", "Module.b.B.forward.0")
        record = {"input_args": [], "input_kwargs": {}, "output": [hostile.tensor_entry("-1")]}
        dump = {"task": "statistics", "level": "L0", "framework": "pytorch", "data": dict.fromkeys(names, record)}
        tree = dict(zip(names, reversed(names)))
        write(tmp_path / name, {"dump": json.dumps(dump), "construct": json.dumps(tree)}, ".json")
    (layers,) = write(tmp_path, {"layers": "TopLayer: {a: a}"}, ".yaml")
    begin = time.process_time()
    assert main(["compare", "-tp", "a", "-gp", "b", "-o", "out", "-lm", layers, "--json"]) == 2
    assert time.process_time() - begin < 20


def test_a_hostile_journal_is_refused(tmp_path: Path) -> None:
    cases = {
        "empty": b"", "other": b"PK\3\4" * 10, "no_header": MAGIC, "huge_frame": MAGIC + b"\xff" * 8 + b"x" * 100,
        "zeros": MAGIC + bytes(1000),
    }  # fmt: skip
    assert_refused(read_in_child("journal", write(tmp_path / "j", cases, ".journal")))


OUTSIDE = ["../secret.npy", "/etc/passwd", "a/../../secret.npy", "..", ".", "", "a\0b", "sub/a.npy"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_the_file_of_a_tensor_is_never_looked_for_elsewhere(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "dump"
    (folder / "dump_tensor_data" / "sub").mkdir(parents=True)
    np.save(tmp_path / "secret.npy", np.arange(2.0))
    np.save(folder / "dump_tensor_data" / "sub" / "a.npy", np.arange(2.0))
    (folder / "dump.json").write_text(hostile.dump_of(name))
    dump = probe.read(folder)
    with pytest.raises(MsprobeException, match=r"dump\.json|dump_tensor_data"):
        dump.tensor(dump.items(dump.records[0])[0])


READ = {"tensor": "a.npy", "names": "a.yaml", "journal": "dump.journal", "config": "c.json"}


def odd_files(folder: Path, name: str) -> list[Path]:
    """What is no file, under this name in a folder each."""
    found = []
    for kind in ("pipe", "device", "socket", "folder", "link to a pipe", "link to nothing"):
        place = folder / kind / name
        place.parent.mkdir()
        found.append(place)
        if kind == "pipe":
            os.mkfifo(place)
        elif kind == "socket":
            # Relative: a longer path is no address.
            os.chdir(place.parent)
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(name)
            os.chdir(folder)
        elif kind == "folder":
            place.mkdir()
        else:
            place.symlink_to({"device": "/dev/zero", "link to a pipe": found[0]}.get(kind, folder / "nothing"))
    return found


@pytest.mark.parametrize("reader", READ)
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, reader: str) -> None:
    places = odd_files(tmp_path, READ[reader])
    outcomes = read_in_child(reader, list(map(str, places)))
    assert len(outcomes) == len(places)
    for place, outcome in zip(places, outcomes):
        assert outcome.error is not None and ("MsprobeException" in outcome.error or "OSError" in outcome.error)
        assert outcome.message.count(str(place)) >= 1, outcome


def test_recover_does_not_wait_for_a_pipe_in_the_place_of_a_journal(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / "dump.journal")
    assert main(["recover", "run"]) == 2
    assert sorted(os.listdir("run")) == ["dump.journal"]


@pytest.mark.parametrize("option", ["-am", "-cm", "-dm", "-lm", "--config"])
@pytest.mark.parametrize("case", ["executes", "merges", "deep_list", "no_date"])
def test_the_command_says_what_is_wrong_and_ends_with_2(
    tmp_path: Path, option: str, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, {"dump": hostile.dump_of("-1")}, ".json")
    (path,) = write(tmp_path, {case: hostile.YAML[case]}, ".yaml")
    assert main(["compare", "-tp", "a", "-gp", "b", "-o", "out", option, path]) == 2
    error = capsys.readouterr().err
    assert path in error and "Traceback" not in error and error.count("\n") == 1
    assert sorted(os.listdir()) == sorted(["a", "b", f"{case}.yaml", *(["out"] if os.path.exists("out") else [])])
    assert not os.path.exists("out") or os.listdir("out") == []


FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", '=HYPERLINK("http://x")', "a;=1+1", "\t=1", "\uff1d1+1"]


@pytest.mark.parametrize("xlsx", [False, True])
def test_no_name_is_a_formula_in_a_table(tmp_path: Path, xlsx: bool) -> None:
    if xlsx:
        pytest.importorskip("openpyxl")
    record = {"input_args": [], "input_kwargs": {}, "output": [hostile.tensor_entry("-1")]}
    for name in ("a", "b"):
        dump = {"task": "statistics", "level": "L1", "framework": "pytorch"}
        dump["data"] = {f"{formula}.x.0.forward": record for formula in FORMULAS}  # type: ignore[assignment]
        write(tmp_path / name, {"dump": json.dumps(dump)}, ".json")
    assert main(["compare", "-tp", "a", "-gp", "b", "-o", "out", *(["--xlsx"] if xlsx else [])]) == 0
    (table,) = (tmp_path / "out").glob("*.xlsx" if xlsx else "*.csv")
    if xlsx:
        import openpyxl

        cells = [cell for row in openpyxl.load_workbook(table).active.iter_rows() for cell in row]
        assert all(cell.data_type != "f" for cell in cells)
        texts = [cell.value for cell in cells if isinstance(cell.value, str)]
    else:
        import csv

        texts = [cell for row in csv.reader(table.read_text(encoding="utf-8").splitlines()) for cell in row]
    for formula in FORMULAS:
        found = [text for text in texts if formula.strip() in text]
        assert found and all(text.startswith("'") for text in found), (formula, found)
