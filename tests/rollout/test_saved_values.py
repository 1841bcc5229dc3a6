"""Values that a script saves by name: what is kept of them, and two folders compared."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest
from printed_json import hold_to_schema
from saved_values.recorded_files import SIDES, recorded_tables, write_recorded
from saved_values.without_framework import NoTensors, saver_to

from msprobe.core import SingleComparator
from probe.api import cli
from probe.common import files, log
from probe.common.errors import FileCheckException, MsprobeException
from probe.rollout import saver as saving
from probe.rollout.saved_folders import PROBE_SAVING, SavedRun, statistics
from probe.rollout.saver import Saver, Writer
from probe.rollout.tables import Tables, measure

# --- what is saved of a value, without a framework: nesting, names, the copy, the thread that writes, and failures


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[Saver]:
    log.reset()
    made = saver_to(tmp_path / "out")
    yield made
    made.close()


def read(saver: Saver, key: str, path: str = "step0/rank0/micro_step0") -> Any:
    saver.flush()
    content = json.loads((Path(saver.path) / "data" / key / path / f"{key}.json").read_text(encoding="utf-8"))
    return content["data"]


def array(saver: Saver, key: str, file: str, path: str = "step0/rank0/micro_step0") -> Any:
    return np.load(Path(saver.path) / "data" / key / path / file, allow_pickle=False)


Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Sample:
    tokens: Any
    reward: float


def test_any_nesting_is_kept(saver: Saver) -> None:
    value = {
        "a": [np.arange(3), (np.float32(0.5), None, "text", True)],
        "pair": Pair(np.zeros((2, 0)), 7),
        "sample": Sample(np.array(["x", "yz"]), 1.5),
        "ids": np.array([{"uid": 1}, "u2"], dtype=object),
        2: {5},
    }
    saver.save({"value": value})
    data = read(saver, "value")
    assert data["a"][0]["dtype"] == "int64" and data["a"][0]["file"] == "value.a.0.npy"
    assert data["a"][1] == [0.5, None, "text", True]
    assert data["pair"]["left"]["shape"] == [2, 0] and data["pair"]["left"]["max"] is None
    assert data["pair"]["right"] == 7
    assert data["sample"]["reward"] == 1.5
    assert data["ids"] == [{"uid": 1}, "u2"] and data["2"] == [5]
    assert array(saver, "value", "value.a.0.npy").tolist() == [0, 1, 2]
    assert array(saver, "value", "value.sample.tokens.npy").tolist() == ["x", "yz"]


@pytest.mark.parametrize("key", ["a/b", "../../up", "..", "x" * 400, "\u4e2d/\x00", ""])
def test_a_key_stays_inside_of_the_folder(saver: Saver, tmp_path: Path, key: str) -> None:
    saver.save({key: np.ones(2)})
    saver.flush()
    written = list(tmp_path.rglob("*.npy"))
    assert len(written) == 1 and written[0].parents[4] == Path(saver.path) / "data"
    assert SavedRun(saver.path).keys() == [written[0].parents[3].name]
    assert not (Path(saver.path) / "dump_error_info.log").exists()


def test_values_are_those_of_the_moment_of_the_call(saver: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write = threading.Event()
    write = saving._write
    monkeypatch.setattr(saving, "_write", lambda *arguments: (may_write.wait(), write(*arguments)))
    values, numbers = np.arange(4.0), [1, 2]
    saver.save({"k": [values, numbers]})
    values[:] = -1
    numbers[0] = 5
    may_write.set()
    assert read(saver, "k")[1] == [1, 2]
    assert array(saver, "k", "k.0.npy").tolist() == [0, 1, 2, 3]


def test_saving_does_not_wait_for_the_disk_until_the_memory_is_used(tmp_path: Path) -> None:
    may_write, done = threading.Event(), []
    writer = Writer(lambda name, error: done.append(error), most=100)

    def job() -> None:
        may_write.wait()
        done.append("written")

    for _ in range(2):
        assert writer.put("k", job, 50)
    assert not done
    third = threading.Thread(target=writer.put, args=("k", job, 50))
    third.start()
    third.join(0.2)
    assert third.is_alive()
    may_write.set()
    third.join()
    assert writer.flush() and done == ["written"] * 3
    # One that is larger than all of the memory waits until nothing else does.
    assert writer.put("large", job, 1000) and writer.flush()
    writer.close()


def test_a_disk_that_has_stopped_does_not_stop_the_training(tmp_path: Path) -> None:
    may_write, failures = threading.Event(), []
    writer = Writer(lambda name, error: failures.append((name, str(error))), most=100, patience=0.1)
    assert writer.put("first", may_write.wait, 100)
    assert not writer.put("second", may_write.wait, 100)
    assert not writer.put("third", may_write.wait, 100)
    text = "100 bytes wait, and no file was finished within 0.1 s"
    assert failures == [("second", text), ("third", text)]
    may_write.set()
    assert writer.flush()
    assert writer.put("fourth", lambda: None, 100) and writer.flush()
    writer.close()


def test_a_full_disk_is_reported_once_and_never_raised(
    saver: Saver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, "save", full)
    for _ in range(3):
        saver.save({"k": np.ones(3)})
    saver.flush()
    assert capsys.readouterr().err.count("No space left on device") == 1
    record = (Path(saver.path) / "dump_error_info.log").read_text(encoding="utf-8")
    assert record.count("No space left on device") == 3 and record.count("Traceback") == 1
    assert not list(Path(saver.path).rglob("*.npy*"))


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "call",
    [
        lambda saver: saver.save(5),
        lambda saver: saver.save({"k": 1}, micro_batch=-1),
        lambda saver: saver.save({"k": 1}, micro_batch="two"),
        lambda saver: saver.save({Hostile(): 1}),
    ],
)
def test_a_wrong_call_is_logged(saver: Saver, capsys: pytest.CaptureFixture[str], call: Any) -> None:
    call(saver)
    assert "the training goes on" in capsys.readouterr().err
    saver.save({"k": Hostile(), "good": 1})
    assert read(saver, "k")["value"] == "RuntimeError: no text" and read(saver, "good") == 1


def test_files_are_private_and_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    with pytest.raises(FileCheckException, match="symbolic link"):
        Saver(str(tmp_path / "link"), NoTensors(), lambda: 3, PROBE_SAVING)
    saver = Saver(str(tmp_path / "out"), NoTensors(), lambda: 3, PROBE_SAVING)
    saver.save({"k": np.ones(1)})
    saver.close()
    path = tmp_path / "out/data/k/step0/rank3/micro_step0/k.npy"
    assert stat.S_IMODE(path.stat().st_mode) == files.FILE_MODE
    assert stat.S_IMODE(path.parent.stat().st_mode) == files.FOLDER_MODE


def test_only_one_of_the_processes_without_a_rank_is_rank_0(tmp_path: Path) -> None:
    first = Saver(str(tmp_path), NoTensors(), lambda: None, PROBE_SAVING)
    second = Saver(str(tmp_path), NoTensors(), lambda: None, PROBE_SAVING)
    for each in (first, second):
        each.save({"k": np.ones(1)})
        each.flush()
    assert sorted(os.listdir(tmp_path / "data/k/step0")) == [f"proc{os.getpid()}", "rank0"]
    second.close()
    first.close()
    third = Saver(str(tmp_path), NoTensors(), lambda: None, PROBE_SAVING)
    third.step()
    third.save({"k": np.ones(1)})
    third.close()
    assert os.listdir(tmp_path / "data/k/step1") == ["rank0"]


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "int8", "uint64", "bool", "complex64"])
def test_statistics_are_those_of_float64(kind: str) -> None:
    values = (np.random.default_rng(5).normal(size=(7, 11)) * 50).astype(kind)
    found = statistics(values)
    wide = values.astype(np.complex128 if kind == "complex64" else np.float64)
    assert found["norm"] == pytest.approx(float(np.sqrt((np.abs(wide) ** 2).sum())), rel=1e-12)
    if kind != "complex64":
        assert [found["max"], found["min"]] == [wide.max(), wide.min()]
        assert found["mean"] == pytest.approx(wide.mean(), rel=1e-12)


def test_micro_steps_are_counted_by_key_and_step(saver: Saver) -> None:
    for number in range(2):
        saver.save({"a": np.full(1, number)})
    saver.save({"b": np.ones(1)})
    saver.step()
    saver.save({"a": np.full(1, 9)})
    saver.save({"a": np.full(1, 5)}, micro_batch=7)
    saver.flush()
    found = sorted(str(path.parent.relative_to(saver.path)) for path in Path(saver.path).rglob("*.npy"))
    assert found == [
        "data/a/step0/rank0/micro_step0",
        "data/a/step0/rank0/micro_step1",
        "data/a/step1/rank0/micro_step0",
        "data/a/step1/rank0/micro_step7",
        "data/b/step0/rank0/micro_step0",
    ]


def test_a_configuration_takes_any_value(saver: Saver) -> None:
    saver.save_config({"lr": 1e-4, "betas": (0.9, 0.95), "scale": np.array([1, 2]), "large": np.zeros(2000)})
    saver.flush()
    assert json.loads((Path(saver.path) / "configurations.json").read_text(encoding="utf-8")) == {
        "lr": 1e-4,
        "betas": [0.9, 0.95],
        "scale": [1, 2],
        "large": {"dtype": "float64", "shape": [2000]},
    }


# --- two folders of saved values compared: the recorded tables, and what ours show that they do not


def table(folder: Path, key: str) -> list[list[Any]]:
    book = openpyxl.load_workbook(folder / f"{key}.xlsx")
    return [list(row) for row in book.worksheets[0].iter_rows(values_only=True)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("recorded")
    return [write_recorded(side, folder / side) for side in SIDES]


Save = Callable[[str, str, Any], Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def write(side: str, where: str, value: Any) -> Path:
        key = where.split("/")[0]
        folder = tmp_path / side / "data" / where
        folder.mkdir(parents=True, exist_ok=True)
        parts = value if isinstance(value, dict) else {"": value}
        for name, part in parts.items():
            np.save(folder / (f"{key}.{name}.npy" if name else f"{key}.npy"), part)
        return tmp_path / side

    return write


WHERE = "k/step0/rank0/micro_step0"


def compare(tmp_path: Path, **options: Any) -> Tables:
    return SingleComparator.compare(tmp_path / "a", tmp_path / "b", tmp_path / "out", **options)


def test_by_the_rules_of_msprobe_the_tables_are_the_recorded_ones(recorded: list[Path], tmp_path: Path) -> None:
    tables = SingleComparator.compare(*recorded, tmp_path / "out", rules="msprobe")
    expected = recorded_tables()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(expected)
    for name, rows in expected.items():
        assert table(tmp_path / "out", name[: -len(".xlsx")]) == rows, name
    assert len(tables.keys) == len(expected)


def test_ours_have_the_recorded_numbers_where_no_defect_is_behind_them(recorded: list[Path], tmp_path: Path) -> None:
    tables = SingleComparator.compare(*recorded, tmp_path / "out")
    for key in ("old_log_prob", "reward", "parts"):
        rows = table(tmp_path / "out", key)
        for row, expected in zip(rows, recorded_tables()[f"{key}.xlsx"]):
            assert len(row) == len(expected) + 1
            # The recorded errors are float32.
            assert row[:-1] == [pytest.approx(cell, rel=1e-6) if isinstance(cell, float) else cell for cell in expected]
    assert tables.found
    assert [each.key for each in tables.keys if not each.differing] == []


def test_what_one_side_lacks_is_said(save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save("a", WHERE, np.zeros(2))
    save("a", "k/step1/rank0/micro_step0", np.zeros(2))
    save("b", WHERE, np.zeros(2))
    save("b", "other/step0/rank0/micro_step0", np.zeros(2))
    tables = compare(tmp_path)
    lines = list(tables.lines())
    assert lines == [
        f"k: 1 of 2 arrays differ; {tmp_path}/b lacks step 1, rank 0, micro step 0",
        f"other: 1 of 1 arrays differ; {tmp_path}/a lacks step 0, rank 0, micro step 0",
    ]
    assert table(tmp_path / "out", "other")[1][4:6] == [None, "[2]"]
    (warning,) = capsys.readouterr().err.splitlines()
    a, b = (f"{tmp_path}/{name} lacks step" for name in "ab")
    assert warning.endswith(f"{b} 1, rank 0, micro step 0 of k; {a} 0, rank 0, micro step 0 of other.")


def test_two_processes_write_what_one_does(save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("k", "m"):
        for side, value in (("a", 1.0), ("b", 2.0)):
            save(side, f"{key}/step0/rank0/micro_step0", np.full(3, value))
    one = compare(tmp_path, num_processes=1)
    monkeypatch.setattr("probe.rollout.tables._IN_PROCESSES", 0)
    assert compare(tmp_path, num_processes=2) == one


def test_what_is_wrong_is_said_before_anything_is_written(save: Save, tmp_path: Path) -> None:
    save("a", WHERE, np.zeros(2))
    (tmp_path / "b").mkdir()
    with pytest.raises(MsprobeException, match=r"b has no saved values \(data/<key>/step<S>\); give the dump_path"):
        compare(tmp_path)
    with pytest.raises(MsprobeException, match="num_processes is 0; allowed: an integer from 1"):
        compare(tmp_path, num_processes=0)
    with pytest.raises(MsprobeException, match="headers is 'latin'; allowed: msprobe, english"):
        compare(tmp_path, headers="latin")
    with pytest.raises(MsprobeException, match="c is not a folder"):
        SingleComparator.compare(tmp_path / "a", tmp_path / "c", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "first, second, expected",
    [
        # By hand: share of equal elements, first mismatch, errors, shares within 0.1 % and 1 %.
        ([1.0, 2.0, 0.0, 4.0], [1.0, 2.01, 0.0, 4.001], (50, 1, 0.01, 0.01 / 2.01, 75, 100)),
        ([0.0, 0.0], [0.0, 1e-4], (50, 1, 1e-4, 1, 50, 50)),
        ([np.inf, 1.0], [np.inf, np.inf], (50, 1, np.inf, np.inf, 50, 50)),
        ([True, False], [True, True], (50, 1, 1, 1, 50, 50)),
        ([2**62 + 1, 5], [2**62, 5], (50, 0, 1, 2.0**-62, 100, 100)),
        ([1j, 2.0], [1j, 2j], (50, 1, np.sqrt(8), np.sqrt(2), 50, 50)),
        (["a", "b"], ["a", "c"], (50, 1, None, None, 50, 50)),
        (np.zeros((0, 3)), np.zeros((0, 3)), (100, None, 0, 0, 100, 100)),
    ],
)
def test_measures_by_hand(first: Any, second: Any, expected: tuple[Any, ...]) -> None:
    found = measure(np.array(first), np.array(second))
    assert list(found) == [pytest.approx(cell) if isinstance(cell, float) else cell for cell in expected]


def test_blocks_add_up_to_the_whole() -> None:
    random = np.random.default_rng(3)
    first = random.normal(size=600_000)
    second = np.where(random.random(600_000) < 0.3, first * (1 + random.normal(size=600_000) * 0.01), first)
    share, index, absolute, relative, close, near = measure(first, second)
    errors = np.abs(first - second)
    ratio = errors / np.maximum(np.abs(first), np.abs(second))
    assert share == pytest.approx(100 * (first == second).mean())
    assert index == np.flatnonzero(first != second)[0]
    assert [absolute, relative] == pytest.approx([errors.max(), ratio.max()])
    assert [close, near] == pytest.approx([100 * (ratio <= 0.001).mean(), 100 * (ratio <= 0.01).mean()])


def test_the_command_writes_the_same_tables(
    recorded: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [str(side) for side in recorded]
    options = ["--tables", "--rules", "msprobe", "-o", str(tmp_path / "out"), "--json"]
    assert cli.main(["rollout_check", *sides, *options]) == 1
    answer = json.loads(capsys.readouterr().out)
    hold_to_schema(answer, "rollout_check of two folders")
    assert len(answer["files"]) == len(recorded_tables())
    assert table(tmp_path / "out", "reward") == recorded_tables()["reward.xlsx"]
    same = ["rollout_check", sides[0], sides[0], "--tables", "-o", str(tmp_path / "same")]
    assert cli.main(same) == 0
