"""sketch.npz and updates.npz are read as they were written, also by numpy alone, or are one clear error."""

from __future__ import annotations

import io
import json
import os
import random
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.api.cli import main
from probe.common.dump import json_files, sketch_file, update_file
from probe.common.dump.choices import Choices
from probe.common.dump.journal import MOVE, REPLACE, Header, JournalWriter
from probe.common.dump.layout import JOURNAL_FILE, SKETCH_FILE, UPDATES_FILE
from probe.common.dump.recovery import recover
from probe.common.errors import DumpFormatError
from probe.common.numerics.sketch import sketch

# --- sketch.npz: what a journal gives is read back, also by numpy alone, and no file makes the reader fail otherwise

NAMES = ["Torch.a.0.forward", "Torch.new\nline.0.forward", "Torch.nul\0.0.forward", "Torch.half\ud800.0.forward"]


def entry(values: Any, **more: Any) -> dict[str, Any]:
    statistics = dict.fromkeys(("Max", "Min", "Mean", "Norm"), 1.0)
    return {
        "type": "torch.Tensor", "dtype": "torch.float32", "shape": list(values.shape), **statistics,
        "requires_grad": False, "sketch": sketch(values).packed(), **more,
    }  # fmt: skip


def values(number: int) -> Any:
    made = np.random.default_rng(number).standard_normal((number + 1, 90))
    made[0, :number] = np.nan
    return made


def journal(folder: Path, names: list[str] = NAMES, sketched: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    writer = JournalWriter(str(folder / JOURNAL_FILE), Header("statistics", "L1", "pytorch", None))
    for n, name in enumerate(names):
        fields = {
            "input_args": [entry(values(n)), {"type": "int", "value": 3}, [entry(values(n) * 2)]],
            "input_kwargs": {"key\n": entry(values(n) * 3)},
            "output": [entry(values(n) * 4)],
        }
        if not sketched:
            fields = json.loads(json.dumps(fields, default=lambda _: None).replace(', "sketch": null', ""))
        writer.record(name, n, -1, None, n, REPLACE, fields)
    writer.record("Module.m.M.parameters_grad.0", 99, -1, None, 99, REPLACE, {"weight": [entry(values(7))]})
    writer.record("saved\n.0.debug", 100, -1, None, 100, MOVE, entry(values(5)))
    writer.close()


def made(folder: Path) -> dict[str, Any]:
    """The rows and the index of the file in `folder`, by numpy alone."""
    with np.load(folder / SKETCH_FILE, allow_pickle=False) as content:
        assert content.files == ["sketch", "index.json"]
        return {"sketch": content["sketch"], **json.loads(content["index.json"])}


def test_an_archive_that_is_put_together_at_once_is_that_of_zipfile() -> None:
    members = {"a.npy": b"x" * 1000, "index.json": b"", "choices.npy": bytes(range(256))}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(sketch_file.member_of(name), content)
    assert b"".join(sketch_file.stored(members)) == stream.getvalue()


def test_everything_in_a_journal_is_read_back(tmp_path: Path) -> None:
    journal(tmp_path)
    read = {}
    for from_files in (False, True):
        if from_files:
            json_files.write(str(tmp_path))
            (tmp_path / JOURNAL_FILE).unlink()
        dump = probe.read(tmp_path)
        assert isinstance(dump, probe.Dump)
        read[from_files] = {item.name: item.sketch for record in dump for item in record.items() if item.is_tensor}
    assert list(read[True]) == list(read[False]) and len(read[True]) == 4 * len(NAMES) + 2
    for n, name in enumerate(NAMES):
        stem = name.replace("\ud800", "\\ud800")
        for item, factor in (("input.0", 1), ("input.2.0", 2), ("input.key\n", 3), ("output.0", 4)):
            for found in (read[False][f"{stem}.{item}"], read[True][f"{stem}.{item}"]):
                expected = sketch(values(n) * factor)
                assert found is not None and found.packed() == expected.packed() and found.excluded == n
            assert dump.sketches is not None and dump.sketches.packed(f"{stem}.{item}") == expected.packed()
    assert read[True]["Module.m.M.parameters_grad.0.weight"] is not None and read[True]["saved\n.0.debug"] is not None


def test_numpy_alone_reads_the_file(tmp_path: Path) -> None:
    journal(tmp_path)
    json_files.write(str(tmp_path))
    content = made(tmp_path)
    names = content["items"]
    row = names.index("Torch.nul\0.0.forward.output.0")
    np.testing.assert_array_equal(content["sketch"][row], sketch(values(2) * 4).sums)
    assert content["sketch"].dtype == np.float32 and content["version"] == 1
    assert content["excluded"][str(row)][0] == 2
    assert len(content["made_by"]) == len(names) == len(content["sketch"])
    assert os.stat(tmp_path / SKETCH_FILE).st_mode & 0o777 == 0o640
    assert b"sketch" not in (tmp_path / "dump.json").read_bytes()


def test_a_killed_run_recovers_its_sketches(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole" / "step0" / "rank0", tmp_path / "killed" / "step0" / "rank0"
    for folder in (whole, killed):
        journal(folder)
    json_files.write(str(whole))
    with open(killed / JOURNAL_FILE, "ab") as stream:
        stream.write(b"half a frame")
    assert [each.problem for each in recover(str(tmp_path / "killed"), remove=True)] == [None]
    for name, array in made(whole).items():
        np.testing.assert_array_equal(array, made(killed)[name])


def test_choices_are_read_back_also_after_a_kill_and_damage_is_an_error(tmp_path: Path) -> None:
    indices = np.arange(6, dtype=np.int32).reshape(3, 2)
    chosen = [Choices(indices, 5, np.ones(3, np.float32)), Choices(indices + 1, 3)]
    writer = JournalWriter(str(tmp_path / JOURNAL_FILE), Header("statistics", "L1", "pytorch", None))
    for n, each in enumerate(chosen):
        fields = {"output": [entry(values(n), choices=each.packed())]}
        writer.record(f"Torch.topk.{n}.forward", n, -1, None, n, REPLACE, fields)
    writer.close()
    for from_files in (False, True):
        if from_files:
            json_files.write(str(tmp_path))
            (tmp_path / JOURNAL_FILE).unlink()
        dump = probe.read(tmp_path)
        assert isinstance(dump, probe.Dump)
        for record, each in zip(dump, chosen):
            (found,) = [item.choices for item in record.items() if item.is_tensor]
            assert found is not None and found.packed() == each.packed()
    assert b"choices" not in (tmp_path / "dump.json").read_bytes()
    with zipfile.ZipFile(tmp_path / SKETCH_FILE) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    for name in ("choices.npy", "margins.npy"):
        with zipfile.ZipFile(tmp_path / SKETCH_FILE, "w") as archive:
            for each_name, data in content.items():
                archive.writestr(each_name, data[:-4] if each_name == name else data)
        damaged = probe.read(tmp_path)
        assert isinstance(damaged, probe.Dump)
        with pytest.raises(DumpFormatError, match="is damaged"):
            damaged["Torch.topk.0.forward"].items()[0].choices  # noqa: B018


def _npy(descr: str, shape: str, data: bytes = b"") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def rebuilt(path: Path, compression: int = zipfile.ZIP_STORED, **parts: bytes) -> None:
    """The file with some of its parts replaced."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content.update({{"sketch": "sketch.npy", "index": "index.json"}[name]: data for name, data in parts.items()})
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in content.items():
            if data:
                archive.writestr(name, data)


def saved(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def cut(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def changed(path: Path, **index: Any) -> None:
    """The file with some values of its index replaced."""
    with zipfile.ZipFile(path) as archive:
        rebuilt(path, index=json.dumps({**json.loads(archive.read("index.json")), **index}).encode())


DAMAGE: dict[str, Callable[[Path], None]] = {
    "empty": lambda path: path.write_bytes(b"") and None,
    "cut": lambda path: cut(path, 0.5),
    "cut at the end": lambda path: cut(path, 0.99),
    "no archive": lambda path: path.write_bytes(saved(np.zeros(3))) and None,
    "the index is missing": lambda path: rebuilt(path, index=b""),
    "the rows are missing": lambda path: rebuilt(path, sketch=b""),
    "pickled objects": lambda path: rebuilt(path, sketch=saved(np.array([{}], object))),
    "2^60 rows": lambda path: rebuilt(path, sketch=_npy("<f4", f"({2**60}, 64)")),
    "fewer rows": lambda path: rebuilt(path, sketch=saved(np.zeros((1, 64), np.float32))),
    "fewer lanes": lambda path: rebuilt(path, sketch=saved(np.zeros((18, 63), np.float32))),
    "another dtype": lambda path: rebuilt(path, sketch=saved(np.zeros((18, 64)))),
    "flat": lambda path: rebuilt(path, sketch=saved(np.zeros(18 * 64, np.float32))),
    "version is a list": lambda path: changed(path, version=[1, 1]),
    "version is a text": lambda path: changed(path, version="1"),
    "names repeat": lambda path: changed(path, items=["a"] * 18),
    "names are numbers": lambda path: changed(path, items=[1, 2]),
    "the index is no JSON": lambda path: rebuilt(path, index=b"[[["),
    "the index is deep": lambda path: rebuilt(path, index=b'{"version":' + b"[" * 100_000),
    "the index is no UTF-8": lambda path: rebuilt(path, index=b'{"version":1,"items":["\xff"],"made_by":[null]}'),
    "makers are fewer": lambda path: changed(path, made_by=["a"]),
    "maker beyond the end": lambda path: changed(path, made_by=[18] * 18),
    "view beyond the end": lambda path: changed(path, views=[18]),
    "row beyond the end": lambda path: changed(path, excluded={"99": [1.0] * 9}),
    "negative row": lambda path: changed(path, excluded={"-1": [1.0] * 9}),
    "marks are fewer": lambda path: changed(path, excluded={"0": [1.0] * 8}),
    "a count that is no number": lambda path: rebuilt(
        path, index=b'{"version":1,"items":["a"],"made_by":[null],"excluded":{"0":[NaN,1,1,1,1,1,1,1,1]}}'
    ),
    "compressed": lambda path: rebuilt(path, zipfile.ZIP_DEFLATED, index=b'{"version":1}' + b" " * 10_000_000),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_one_clear_error_and_hides_nothing_else(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    journal(tmp_path)
    json_files.write(str(tmp_path))
    (tmp_path / JOURNAL_FILE).unlink()
    DAMAGE[damage](tmp_path / SKETCH_FILE)
    tracemalloc.start()
    table = sketch_file.table_in(str(tmp_path))
    with pytest.raises(DumpFormatError) as caught:
        len(table or ())
    assert tracemalloc.get_traced_memory()[1] < 30 << 20
    tracemalloc.stop()
    message = str(caught.value)
    assert str(tmp_path / SKETCH_FILE) in message and "damaged" in message and len(message) < 800
    assert "\n" not in message
    # What does not ask for sketches does not read them.
    assert main(["show", str(tmp_path)]) == 0
    dump = probe.read(tmp_path)
    assert isinstance(dump, probe.Dump)
    with pytest.raises(DumpFormatError):
        _ = next(iter(next(iter(dump)).items())).sketch


def test_makers_are_items_views_texts_or_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = JournalWriter(str(tmp_path / JOURNAL_FILE), Header("statistics", "L1", "pytorch", None))
    fields = {
        "input_args": [
            entry(values(0), **{"from": 5, "made": 5}), entry(values(1), **{"from": "parameter:w"}),
            entry(values(2), **{"from": 99}), entry(values(2), **{"from": "view:parameter:w"}),
        ],
        "output": [entry(values(3), made=6)],
    }  # fmt: skip
    writer.record("Torch.a.0.forward", 0, -1, None, 0, REPLACE, fields)
    fields = {"input_args": [entry(values(3), **{"from": 6}), entry(values(3), **{"from": -6})]}
    fields["input_args"] += [entry(values(0), **{"from": 5}), entry(values(0), **{"from": -5})]
    writer.record("Torch.b.0.forward", 1, -1, None, 1, REPLACE, fields)
    writer.close()
    json_files.write(str(tmp_path))
    table = sketch_file.table_in(str(tmp_path))
    assert table is not None
    a, b = "Torch.a.0.forward", "Torch.b.0.forward"
    assert [table.made_by(f"{a}.input.{i}") for i in range(4)] == [
        f"data:{a}.input.0", "parameter:w", None, "view:parameter:w",
    ]  # fmt: skip
    assert table.made_by(f"{a}.output.0") is None
    assert [table.made_by(f"{b}.input.{i}") for i in range(4)] == [
        f"{a}.output.0", f"view:{a}.output.0", f"data:{a}.input.0", f"view:data:{a}.input.0",
    ]  # fmt: skip
    assert b'"from"' not in (tmp_path / "dump.json").read_bytes()
    assert main(["show", str(tmp_path), "--items"]) == 0
    assert f"{b}  input.1  from view:{a}.output.0\n" in capsys.readouterr().out
    assert main(["show", str(tmp_path), "--items", "--json"]) == 0
    item = json.loads(capsys.readouterr().out)[0]["records"][1]["items"][0]
    assert item["made_by"] == f"{a}.output.0" and len(item["sketch"]) == 64


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    folder, other = tmp_path / "dump", tmp_path / "other"
    other.write_bytes(b"somebody's")
    journal(folder)
    (folder / SKETCH_FILE).symlink_to(other)
    json_files.write(str(folder))
    assert other.read_bytes() == b"somebody's" and not (folder / SKETCH_FILE).is_symlink()


# --- updates.npz is read as it was written, or is one clear error

SEED = 20261129


def frame(names: list[str]) -> dict[str, Any]:
    count = len(names)
    rows = np.arange(64 * count, dtype="<f4").tobytes()
    return {
        "optimizer": "AdamW", "index": 0, "groups": [{"lr": 0.1}], "skipped": False, "names": names,
        "notes": [None] * count, "group": [0] * count, "state_step": [1.0] * count, "elements": [4] * count,
        "gradient_norm": [0.5] * count, "parameter_norm": [2.0] * count, "excluded": [0] * count,
        "gradient": rows, "update": rows,
    }  # fmt: skip


def written(folder: Path) -> Path:
    update_file.write(str(folder), [frame(["a.weight", "a.bias"]), frame([]), frame(["b"])])
    return folder / UPDATES_FILE


def test_it_is_read_as_written_and_numpy_opens_it(tmp_path: Path) -> None:
    path = written(tmp_path)
    found = update_file.read(str(tmp_path))
    assert [[each.name for each in update.parameters] for update in found] == [["a.weight", "a.bias"], [], ["b"]]
    with np.load(path, allow_pickle=False) as content:
        assert content["gradient"].shape == content["update"].shape == (3, 64)
        sketch = found[2].parameters[0].update
        assert sketch is not None and (content["update"][2] == sketch.sums).all()


def test_members_that_are_compressed_take_no_memory(tmp_path: Path) -> None:
    path = written(tmp_path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("updates.json", b" " * (100 << 20))
    tracemalloc.start()
    with pytest.raises(DumpFormatError, match="damaged"):
        update_file.read(str(tmp_path))
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


def test_changed_bytes_are_an_error_or_other_numbers(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole, draw = path.read_bytes(), random.Random(SEED)
    for _ in range(300):
        changed = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        path.write_bytes(changed[: draw.choice([len(changed), draw.randrange(len(changed))])])
        try:
            update_file.read(str(tmp_path))
        except DumpFormatError as error:
            assert str(path) in str(error) and "\n" not in str(error), f"seed {SEED}"
