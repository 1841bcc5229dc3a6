"""What is saved of a value, without a framework: nesting, names, the copy, the thread that writes, and failures."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from saved_values.without_framework import NoTensors, saver_to

from probe.common import files, log
from probe.common.errors import FileCheckException
from probe.rollout.saving import saver as saving
from probe.rollout.saving.folders import SavedRun
from probe.rollout.saving.rules import PROBE_SAVING, statistics
from probe.rollout.saving.saver import Saver
from probe.rollout.saving.writer import Writer


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


def test_integers_keep_their_dtype(saver: Saver) -> None:
    # 16777217 is the first integer that float32 lacks.
    saver.save({"ids": np.array([16777217, -(2**62)])})
    assert read(saver, "ids")["min"] == -(2**62)
    assert array(saver, "ids", "ids.npy").tolist() == [16777217, -(2**62)]


def test_two_positions_of_one_name_have_two_files(saver: Saver) -> None:
    saver.save({"k": {"a": {"b": np.zeros(1)}, "a.b": np.ones(1)}})
    data = read(saver, "k")
    names = [data["a"]["b"]["file"], data["a.b"]["file"]]
    assert len(set(names)) == 2
    assert [array(saver, "k", name).item() for name in names] == [0, 1]


@pytest.mark.parametrize("key", ["a/b", "../../up", "..", "x" * 400, "\u4e2d/\x00", ""])
def test_a_key_stays_inside_of_the_folder(saver: Saver, tmp_path: Path, key: str) -> None:
    saver.save({key: np.ones(2)})
    saver.flush()
    written = list(tmp_path.rglob("*.npy"))
    assert len(written) == 1 and written[0].parents[4] == Path(saver.path) / "data"
    assert SavedRun(saver.path).keys() == [written[0].parents[3].name]
    assert not (Path(saver.path) / "dump_error_info.log").exists()


def test_a_list_that_holds_itself_ends(saver: Saver) -> None:
    value: list[Any] = [np.ones(1)]
    value.append(value)
    saver.save({"k": value})
    assert array_of_depth(read(saver, "k")) == 100


def array_of_depth(data: Any) -> int:
    depth = 0
    while isinstance(data, list):
        depth, data = depth + 1, data[1]
    return depth


def test_an_object_of_another_kind_is_its_class_and_text(saver: Saver) -> None:
    saver.save({"k": {"path": Path("a/b"), "bytes": b"x", "complex": 1j}})
    data = read(saver, "k")
    assert data["path"]["value"] == "a/b" and data["path"]["type"].endswith("PosixPath")
    assert data["complex"] == {"type": "builtins.complex", "value": "1j"}


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


def test_a_configuration_takes_any_value(saver: Saver) -> None:
    saver.save_config({"lr": 1e-4, "betas": (0.9, 0.95), "scale": np.array([1, 2]), "large": np.zeros(2000)})
    saver.flush()
    assert json.loads((Path(saver.path) / "configurations.json").read_text(encoding="utf-8")) == {
        "lr": 1e-4,
        "betas": [0.9, 0.95],
        "scale": [1, 2],
        "large": {"dtype": "float64", "shape": [2000]},
    }


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
