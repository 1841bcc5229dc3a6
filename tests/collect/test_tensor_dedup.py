"""Equal tensor files are one file under several names, and nothing else ever is."""

from __future__ import annotations

import dataclasses
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from probe.backends.shared.tensors import npy_file
from probe.collect.sinks.journal import tensor_writer
from probe.collect.sinks.journal.tensor_writer import DedupWriter, TensorBudget

LARGE = np.random.default_rng(5).standard_normal(50_000)


@pytest.fixture(params=["digest", "comparison"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the extra "fast", and without it."""
    if request.param == "digest":
        xxhash = pytest.importorskip("xxhash")
        monkeypatch.setattr(tensor_writer, "digest_function", lambda: xxhash.xxh3_128_digest)
    else:
        monkeypatch.setattr(tensor_writer, "digest_function", lambda: None)
    return request.param


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = DedupWriter(TensorBudget())

    def write(self, name: str, array: np.ndarray) -> None:
        self._written.write(str(self.path), name, npy_file(array))

    def read(self, name: str) -> np.ndarray:
        return np.load(self.path / name, allow_pickle=False)

    def are_one(self, *names: str) -> bool:
        return len({os.stat(self.path / name).st_ino for name in names}) == 1


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def most_bytes() -> Iterator[None]:
    """No file of this process can be larger than 64 KiB, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("array", [LARGE, np.array(7), np.zeros((0, 3)), np.array(["a", "bc"])], ids=str)
def test_equal_arrays_are_one_private_file_that_another_content_leaves_alone(folder: Folder, array: np.ndarray) -> None:
    before = os.umask(0)
    try:
        (folder.path / "c").write_bytes(b"old")
        for name in ("a", "b", "c"):
            folder.write(name, array.copy())
    finally:
        os.umask(before)
    assert folder.are_one("a", "b") and np.array_equal(folder.read("c"), array), "a name that was taken has it too"
    assert stat.S_IMODE(os.stat(folder.path / "b").st_mode) == 0o640
    Folder(folder.path).write("a", np.array([3.0]))
    assert folder.read("a").tolist() == [3.0] and np.array_equal(folder.read("b"), array)
    os.unlink(folder.path / "b")
    folder.write("d", array)
    assert np.array_equal(folder.read("d"), array)


@pytest.mark.parametrize("at", [0, 1, 8192, 8193, -1])
def test_one_bit_makes_another_file(folder: Folder, at: int) -> None:
    other = LARGE.copy()
    other.view(np.uint64)[at] ^= np.uint64(1)
    folder.write("a", LARGE)
    folder.write("b", other)
    assert not folder.are_one("a", "b")
    assert np.array_equal(folder.read("a"), LARGE) and np.array_equal(folder.read("b"), other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros((2, 6)), np.zeros((3, 4))),
        (np.zeros(4, np.float32), np.zeros(4, np.int32)),
        (np.zeros(4, np.float32), np.zeros(2, np.float64)),
        (np.zeros(4), np.zeros(5)),
        (np.zeros(1), np.zeros(())),
    ],
)
def test_equal_bytes_of_another_type_or_shape_are_another_file(
    folder: Folder, one: np.ndarray, other: np.ndarray
) -> None:
    folder.write("a", one)
    folder.write("b", other)
    for name, array in (("a", one), ("b", other)):
        assert folder.read(name).dtype == array.dtype and folder.read(name).shape == array.shape


def test_an_equal_crc32_is_not_taken_for_equal_bytes(folder: Folder) -> None:
    one = npy_file(np.array([1.0, 2.0]))
    other = dataclasses.replace(npy_file(np.array([1.0, 3.0])), crc=one.crc)
    written = DedupWriter(TensorBudget())
    written.write(str(folder.path), "a", one)
    written.write(str(folder.path), "b", other)
    assert folder.read("a").tolist() == [1.0, 2.0] and folder.read("b").tolist() == [1.0, 3.0]


def test_a_file_that_was_changed_in_place_gets_no_further_name(folder: Folder) -> None:
    folder.write("a", LARGE)
    with open(folder.path / "a", "r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\1")
    os.utime(folder.path / "a", (1, 1))
    folder.write("b", LARGE)
    assert np.array_equal(folder.read("b"), LARGE) and not np.array_equal(folder.read("a"), LARGE)


def test_a_name_that_got_another_content_is_no_source_any_more(folder: Folder) -> None:
    one, other = np.array([1.0]), np.array([2.0])
    for name, array in (("a", one), ("a", other), ("b", one), ("c", other)):
        folder.write(name, array)
    assert [folder.read(name).tolist() for name in "abc"] == [[2.0], [1.0], [2.0]]


@pytest.mark.parametrize("known", [False, True], ids=["new content", "known content"])
def test_nothing_is_written_through_a_link(folder: Folder, known: bool) -> None:
    target = folder.path / "target"
    target.write_bytes(b"mine")
    (folder.path / "b").symlink_to(target)
    if known:
        folder.write("a", LARGE)
    with pytest.raises(OSError, match="symbolic"):
        folder.write("b", LARGE)
    assert target.read_bytes() == b"mine" and (folder.path / "b").is_symlink()


def test_a_file_that_became_a_link_gets_no_further_name(folder: Folder) -> None:
    folder.write("a", LARGE)
    os.rename(folder.path / "a", folder.path / "moved")
    (folder.path / "a").symlink_to(folder.path / "moved")
    folder.write("b", LARGE)
    assert not (folder.path / "b").is_symlink() and not folder.are_one("b", "moved")


def test_a_file_system_that_cannot_link_gets_whole_files(folder: Folder) -> None:
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or os.stat(elsewhere).st_dev == os.stat(folder.path).st_dev:
        pytest.skip("needs two file systems")
    name = f"test_tensor_folder_{os.getpid()}"
    (folder.path / "other").symlink_to(elsewhere)
    try:
        folder.write("a", LARGE)
        folder.write(f"other/{name}", LARGE)
        folder.write("b", LARGE)
        assert np.array_equal(folder.read(f"other/{name}"), LARGE) and np.array_equal(folder.read("b"), LARGE)
    finally:
        (elsewhere / name).unlink(missing_ok=True)


@pytest.mark.usefixtures("most_bytes")
def test_a_file_that_could_not_be_written_whole_is_not_left(folder: Folder) -> None:
    with pytest.raises(OSError, match="too large"):
        folder.write("a", LARGE)
    assert os.listdir(folder.path) == []
    folder.write("b", LARGE[:100])
    assert np.array_equal(folder.read("b"), LARGE[:100])


def test_only_so_many_files_are_kept_in_mind(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_writer, "_MOST_KNOWN", 3)
    for number in range(4):
        folder.write(f"{number}", np.array(number))
    folder.write("again 3", np.array(3))
    folder.write("again 0", np.array(0))
    assert folder.are_one("3", "again 3") and not folder.are_one("0", "again 0")
    assert int(folder.read("again 3")) == 3 and int(folder.read("again 0")) == 0
