"""Files that are damaged, incomplete or hostile, each refused in a line; and recorded checkpoints of DeepSpeed."""

from __future__ import annotations

import builtins
import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_checkpoints import llama, write_safetensors

import probe
from probe.checkpoint.readers.opening import open_checkpoint
from probe.common.errors import MsprobeException

# --- files that are damaged, incomplete or hostile: each is refused in a line that names the file

Make = Callable[[Path], Path]


def safetensors(folder: Path, entry: dict[str, Any], data: bytes = b"\0" * 16, text: bytes = b"") -> Path:
    path = folder / "model.safetensors"
    header = text or json.dumps({"w": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16], **changes}


def archive(folder: Path, data: bytes, name: str = "model.pt") -> Path:
    """What `torch.save` would write of a pickle."""
    path = folder / name
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("archive/data.pkl", data)
        out.writestr("archive/version", b"3\n")
    return path


def cut(folder: Path) -> Path:
    path = Path(write_safetensors(folder / "model.safetensors", llama()))
    path.write_bytes(path.read_bytes()[:-100])
    return path


def sharded(
    folder: Path, missing: bool = False, outside: bool = False, twice: bool = False, lost: bool = False
) -> Path:
    """Two shards and their index."""
    weights = llama()
    names = list(weights)
    parts = names[:5], names[5 if not twice else 4 :]
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name, part in zip(files, parts):
        write_safetensors(folder / name, {each: weights[each] for each in part})
    if missing:
        (folder / files[1]).unlink()
    map_ = {each: files[index] for index, part in enumerate(parts) for each in part}
    if outside:
        map_[names[0]] = "../other.safetensors"
    if lost:
        map_["model.layers.9.weight"] = files[0]
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": map_}))
    return folder


def without_index(folder: Path) -> Path:
    sharded(folder)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model-00001-of-00002.safetensors").unlink()
    return folder


def two_in_one(folder: Path) -> Path:
    write_safetensors(folder / "model.safetensors", llama())
    write_safetensors(folder / "other.safetensors", llama())
    return folder


def objects(folder: Path) -> Path:
    path = folder / "model.npz"
    np.savez(path, w=np.array([{}], dtype=object))
    return path


def ending(folder: Path, data: bytes) -> Path:
    path = folder / "model.ckpt"
    path.write_bytes(data)
    return path


BAD: dict[str, tuple[Make, str]] = {
    "nothing there": (lambda folder: folder / "nothing", "no such file"),
    "empty folder": (lambda folder: folder, "no checkpoint in it"),
    "empty file": (lambda folder: ending(folder, b""), "is empty"),
    "cut off": (cut, "cut off"),
    "header longer than the file": (lambda folder: ending(folder, b"\xff" * 7 + b"\0{"), "no checkpoint of MindSpore"),
    "no JSON": (lambda folder: safetensors(folder, {}, text=b"{nonsense"), "no JSON"),
    "a key twice": (
        lambda folder: safetensors(folder, {}, text=b'{"w":%b,"w":%b}' % ((json.dumps(entry()).encode(),) * 2)),
        "w is in its header twice",
    ),
    "unknown dtype": (lambda folder: safetensors(folder, entry(dtype="F12")), "'F12' is not known"),
    "shape and size": (lambda folder: safetensors(folder, entry(shape=[3, 2])), "takes 24 bytes"),
    "negative shape": (lambda folder: safetensors(folder, entry(shape=[-2, -2])), "numbers of 0 or more"),
    "beyond the end": (lambda folder: safetensors(folder, entry(data_offsets=[8, 24])), "ends at byte 24"),
    "missing shard": (lambda folder: sharded(folder, missing=True), "model-00002-of-00002.safetensors is missing"),
    "missing shard, no index": (without_index, "model-00001-of-00002.safetensors is missing"),
    "shard outside": (lambda folder: sharded(folder, outside=True), "outside of its folder"),
    "name in two shards": (lambda folder: sharded(folder, twice=True), "in another file"),
    "name in no shard": (lambda folder: sharded(folder, lost=True), "model.layers.9.weight is not in"),
    "two checkpoints": (two_in_one, "several checkpoints"),
    "objects": (objects, "only numbers"),
    "no format": (lambda folder: safetensors(folder, entry()).rename(folder / "x.dat").parent, "no checkpoint in it"),
    "cut-off archive": (
        lambda folder: ending(archive(folder, pickle.dumps({})).parent, (folder / "model.pt").read_bytes()[:-30]),
        "several checkpoints|cut off",
    ),
    "damaged pickle": (lambda folder: archive(folder, b"\x80\x02}q\0(X\xff\xff\0\0"), "ends too early"),
    "endless pickle": (lambda folder: archive(folder, b"\x80\x02" + b"0"), "damaged"),
    "extension code": (lambda folder: archive(folder, b"\x80\x02\x82\x01."), "0x82"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_in_a_line(case: str, tmp_path: Path) -> None:
    make, words = BAD[case]
    with pytest.raises(MsprobeException, match=words) as caught:
        open_checkpoint(str(make(tmp_path)))
    text = str(caught.value)
    assert "\n" not in text and str(tmp_path) in text


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, command: Any) -> None:
        self._command = command

    def __reduce__(self) -> Any:
        return self._command


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_pickle_is_refused_and_not_executed(protocol: int, tmp_path: Path) -> None:
    target = tmp_path / "executed"
    data = pickle.dumps({"w": Hostile((os.system, (f"touch {target}",)))}, protocol)
    # The pickle does what it is for.
    pickle.loads(data)
    assert target.exists()
    target.unlink()
    # The other file is a plain pickle, which is read through a mapping of the file. Protocol 0 is no checkpoint there.
    (plain := tmp_path / "plain.bin").write_bytes(data)
    for path in (archive(tmp_path, data), plain):
        is_text = path == plain and protocol == 0
        reason = "not a known format of checkpoints" if is_text else r"asks for (posix|nt|os)\.system"
        with pytest.raises(MsprobeException, match=reason):
            open_checkpoint(str(path))
        assert not target.exists()


@pytest.mark.parametrize(
    "name", ["numpy.testing._private.utils runstring", "torch.hub load", "functools partial", "some.package run"]
)
def test_a_function_that_no_checkpoint_needs_is_refused(name: str, tmp_path: Path) -> None:
    call = "\n".join(("c" + name.split()[0], name.split()[1], "")).encode()
    data = pickle.dumps({"w": np.ones((2, 2))}, 2)[:-1] + b"X\x01\0\0\0x" + call + b"X\x01\0\0\0a\x85Rs."
    with pytest.raises(MsprobeException, match=f"asks for {name.replace(' ', '.')}"):
        open_checkpoint(str(archive(tmp_path, data)))


class Unknown:
    """Something of a package of the user's."""

    def __init__(self) -> None:
        self.scale = 2.0

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("it was made")


FUNCTIONS = sorted(name for name, each in vars(builtins).items() if type(each) is type(len) or name == "open")


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    "value",
    [*(Hostile((getattr(builtins, name), ("a",))) for name in FUNCTIONS), *(getattr(builtins, n) for n in FUNCTIONS),
     Hostile((getattr, (np.ndarray, "tofile"))), Hostile((getattr, (dict, "fromkeys"))),
     Hostile((getattr, (Path, "unlink"))), Hostile((getattr, (Unknown, "__init__"))),
     Hostile((type, ("T", (), {})))],
    ids=lambda each: str(getattr(each, "_command", each))[:50],
)  # fmt: skip
def test_no_function_of_python_is_a_value(value: Any, protocol: int, tmp_path: Path) -> None:
    data = pickle.dumps({"w": np.ones((2, 2)), "x": value}, protocol)
    with pytest.raises(MsprobeException, match="refused: its pickle asks for"):
        open_checkpoint(str(archive(tmp_path, data)))


@pytest.mark.parametrize(
    "data",
    [b"\x80\x04\x8e" + (1 << 50).to_bytes(8, "little"), b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little")],
    ids=["bytes", "bytearray"],
)
def test_no_room_is_made_for_bytes_that_are_not_there(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(MsprobeException, match="ends too early"):
        open_checkpoint(str(archive(tmp_path, data + b"abc.")))


def test_an_unknown_class_is_named_and_not_made(tmp_path: Path) -> None:
    # As the training would write it: what is not a tensor of a known kind stays a placeholder.
    stream = io.BytesIO()
    np.savez(stream, w=np.ones(2, np.float32))
    data = pickle.dumps({"model": {"w": np.ones((2, 2), np.float32)}, "scaler": Unknown(), "epoch": 3})
    found = open_checkpoint(str(archive(tmp_path, data)))
    assert found.weights["w"].read().tolist() == [[1, 1], [1, 1]]
    assert found.settings["epoch"] == 3 and found.settings["scaler.scale"] == 2.0
    assert any("Unknown" in note for note in found.notes)


def test_random_bytes_are_refused_as_such(tmp_path: Path) -> None:
    """Files that were valid, with some bytes replaced: an error of ours, or other values, and nothing else."""
    random = np.random.default_rng(0)
    good = Path(write_safetensors(tmp_path / "model.safetensors", llama(1))).read_bytes()
    pickled = archive(tmp_path, pickle.dumps({"w": np.ones(3, np.float32), "a": [1, "x", {2: (3,)}]})).read_bytes()
    for name, whole in (("a.safetensors", good), ("b.pt", pickled)):
        for _ in range(60):
            data = bytearray(whole)
            for at in random.integers(0, min(len(data), 900), 4):
                data[at] = random.integers(256)
            path = tmp_path / name
            path.write_bytes(data)
            try:
                probe.ckpt_compare(str(path), str(path))
            except MsprobeException as error:
                assert str(tmp_path) in str(error)


def nested(first: bytes, of_two: Callable[[bytes, bytes], bytes]) -> bytes:
    """A pickle in which each of forty values holds the one before it twice."""
    steps = (of_two(b"h" + bytes([index - 1]), b"q" + bytes([index])) for index in range(1, 40))
    return b"\x80\x02" + first + b"q\x00" + b"".join(steps)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (nested(b"]", lambda one, keep: b"]" + keep + b"(" + one + one + b"e") + b".", "a few values stand for"),
        (nested(b")", lambda one, keep: one + one + b"\x86" + keep) + b".", "a few values stand for"),
        (nested(b")", lambda one, keep: one + one + b"\x86" + keep) + b"}h\x27K\x01s.", "a key has too many values"),
        (nested(b")", lambda one, keep: one + one + b"\x86" + keep) + b"\x8f(h\x27\x90.", "a key has too many values"),
        (b"\x80\x02]q\x00h\x00a.", "a value in it holds itself"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nK\x01\x85R.", "tuple index out of range"),
        (b"\x80\x02}]K\x01s.", "unhashable"),
    ],
    ids=["lists", "tuples", "key", "set", "itself", "arguments", "list as a key"],
)  # fmt: skip
def test_a_pickle_that_would_take_forever_or_is_no_sense_is_refused(data: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(MsprobeException, match=reason) as raised:
        open_checkpoint(str(archive(tmp_path, data)))
    assert "model.pt" in str(raised.value) and "\n" not in str(raised.value)


def test_a_tensor_of_unknown_making_is_refused(tmp_path: Path) -> None:
    data = b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_sparse_tensor\n)Rs."
    with pytest.raises(MsprobeException, match="_rebuild_sparse_tensor"):
        open_checkpoint(str(archive(tmp_path, data)))


# --- checkpoints of DeepSpeed's ZeRO, recorded by `cases/zero/make_zero.py`, and what DeepSpeed itself makes of them

CASES = Path(__file__).parent / "cases" / "zero"
STAGES = (1, 2, 3)


@pytest.mark.parametrize("stage", STAGES)
def test_masters_are_those_that_deepspeed_makes(stage: int) -> None:
    found = open_checkpoint(str(CASES / f"stage{stage}")).weights
    expected = np.load(CASES / f"stage{stage}.npz")
    for name in expected.files:
        values = found[name].read()
        if values.dtype == np.uint16:
            # Parameters that are not trained have no master; DeepSpeed widens their bfloat16.
            values = (values.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


@pytest.mark.parametrize("stage", STAGES)
def test_a_missing_rank_is_named(stage: int, tmp_path: Path) -> None:
    shutil.copytree(CASES / f"stage{stage}", tmp_path / "copy")
    next((tmp_path / "copy").rglob("*rank_0_*optim_states.pt")).unlink()
    with pytest.raises(MsprobeException, match=r"missing"):
        open_checkpoint(str(tmp_path / "copy"))
