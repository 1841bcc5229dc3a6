"""msprobe rollout_check: where log-probabilities come from, its answers, files and exit statuses."""

from __future__ import annotations

import csv
import json
import shutil
import struct
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rollout_mismatch import cases
from saved_values.without_framework import saver_to

import probe
from probe.api.cli import main
from probe.common.errors import MsprobeException
from probe.rollout.sources import read_rows

# --- ``msprobe rollout_check``: status, text, JSON, and the files

SETTING = cases.Setting(vocabulary=128, sequences=24, longest=32, seed=21)


def saved(folder: Path, case: cases.Case) -> list[str]:
    steps = {} if case.steps is None else {"steps": case.steps}
    path = folder / "x.npz"
    np.savez(path, old=case.rollout, new=case.training, mask=case.mask, ids=case.tokens, **steps)
    more = ["--step", f"{path}:steps"] if steps else []
    return ["rollout_check", f"{path}:old", f"{path}:new", "--mask", f"{path}:mask", "--tokens", f"{path}:ids", *more]


def test_a_mismatch_has_status_1_and_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = cases.offset(SETTING)
    assert main(saved(tmp_path, case)) == 1
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("mismatch of rollout and training (position): tokens differ from position 1 ")
    assert sum(line.startswith("  sequence ") for line in others) == 10
    sequence = int(np.argmax(np.abs(case.rollout - case.training).mean(1)))
    assert any(line.startswith(f"look at sequence {sequence}: ") for line in others)
    assert any(line.startswith("next: ") and "msprobe compare" in line for line in others)


def test_json_has_the_keys_of_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = cases.stale(SETTING)
    assert main([*saved(tmp_path, case), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["command"], found["status"], found["kind"], found["errors"]) == ("rollout_check", 1, "stale", [])
    assert found["kinds"][0] == "stale" and found["kind"] in found["line"]
    assert found["findings"][0]["numbers"]["synchronised"] == [0, 3]
    apart = np.abs(case.rollout - case.training)[case.mask]
    assert found["numbers"]["sampling_logp_difference/max"] == pytest.approx(apart.max())
    assert found["tokens"][0]["rollout"] - found["tokens"][0]["training"] == pytest.approx(
        apart.max(), rel=1e-5
    ) or found["tokens"][0]["training"] - found["tokens"][0]["rollout"] == pytest.approx(apart.max(), rel=1e-5)
    assert len(found["sequences"]) == 20


def test_files_hold_the_answer_the_tables_and_the_page(tmp_path: Path) -> None:
    case = cases.stale(SETTING)
    assert main([*saved(tmp_path, case), "-o", str(tmp_path / "out"), "-q"]) == 1
    names = {path.name for path in (tmp_path / "out").iterdir()}
    tables = {f"rollout_{name}.csv" for name in ("sequences", "positions", "steps")}
    assert names == {"rollout_check.json", "rollout_check.html", *tables}
    with open(tmp_path / "out" / "rollout_steps.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    apart, of_step = np.abs(case.rollout - case.training), case.steps
    assert of_step is not None
    expected = [apart[of_step == step][case.mask[of_step == step]].mean() for step in range(6)]
    assert [float(row["sampling_logp_difference/mean"]) for row in rows] == pytest.approx(expected, rel=1e-5)
    page = (tmp_path / "out" / "rollout_check.html").read_text(encoding="utf-8")
    assert "<script" not in page and "http://" not in page
    figures = [part.split("</svg>")[0] for part in page.split("<svg")[1:]]
    assert len(figures) == 4, "the colours, the heat map, the histogram, the steps"
    for figure in figures:
        ElementTree.fromstring(f"<svg{figure}</svg>")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=-np.ones((2, 3)), b=-np.ones((2, 3)) - [[0], [1]], s=["<script>", "=1+1"])
    path = tmp_path / "x.npz"
    command = ["rollout_check", f"{path}:a", f"{path}:b", "--sequences", f"{path}:s", "-o", str(tmp_path / "out")]
    assert main(command) == 1
    assert "<script>" not in (tmp_path / "out" / "rollout_check.html").read_text(encoding="utf-8")
    assert "'=1+1" in (tmp_path / "out" / "rollout_sequences.csv").read_text(encoding="utf-8")


def test_a_dtype_that_nobody_gave_is_said_to_be_assumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Errors of bfloat16 that are no larger than float16 would explain with as many layers as are assumed.
    random, rows = np.random.default_rng(5), (20, 50)
    training = -random.standard_exponential(rows)
    rollout = np.minimum(training + 0.003 * random.standard_normal(rows) * -np.expm1(training), 0)
    np.savez(tmp_path / "x.npz", old=rollout.astype(np.float32), new=training.astype(np.float32))
    command = ["rollout_check", f"{tmp_path}/x.npz:old", f"{tmp_path}/x.npz:new"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "the rounding of float16 or bfloat16 (assumed: no dtype is given) explains" in text.splitlines()[0]
    assert "--dtype NAME" in text
    assert main([*command, "--json"]) == 0
    rounding = json.loads(capsys.readouterr().out)["rounding"]
    assert (rounding["dtype"], rounding["assumed"]) == ("float16 or bfloat16", True)
    assert main([*command, "--dtype", "bfloat16", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["rounding"]["dtype"], answer["rounding"]["assumed"]) == ("bfloat16", False)
    assert "the rounding of bfloat16 explains" in answer["line"] and "assumed" not in answer["line"]


# --- sources of every form, and one sentence for each way in which they can be wrong

VALUES = -np.arange(12, dtype=np.float32).reshape(3, 4)


def save_one(folder: Path, key: str, step: int, rank: int, micro: int, values: np.ndarray, index: str = "") -> None:
    inner = folder / "data" / key / f"step{step}" / f"rank{rank}" / f"micro_step{micro}"
    inner.mkdir(parents=True, exist_ok=True)
    np.save(inner / f"{key}{index}.npy", values)
    entry = {**dict.fromkeys(("max", "min", "mean", "norm"), 0.0), "shape": list(values.shape), "dtype": "bfloat16"}
    (inner / f"{key}.json").write_text(json.dumps({"data": entry}), encoding="utf-8")


def written(form: str, folder: Path) -> str:
    if form == "npy":
        np.save(folder / "x.npy", VALUES)
        return str(folder / "x.npy")
    if form == "npz":
        np.savez(folder / "x.npz", a=VALUES, b=VALUES[0])
        return f"{folder / 'x.npz'}:a"
    if form == "jsonl":
        lines = [json.dumps({"meta": {"logp": row.tolist()}, "n": 1}) for row in VALUES]
        (folder / "x.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return f"{folder / 'x.jsonl'}:meta.logp"
    header = json.dumps({"a": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}).encode()
    (folder / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + VALUES.tobytes())
    return f"{folder / 'x.safetensors'}:a"


@pytest.mark.parametrize("form", ["npy", "npz", "jsonl", "safetensors"])
def test_files_are_read_in_rows(form: str, tmp_path: Path) -> None:
    rows = read_rows(written(form, tmp_path), "rollout")
    assert rows.lengths.tolist() == [4, 4, 4]
    assert rows.values.tolist() == VALUES.reshape(-1).tolist()


def test_parquet_is_read_in_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"a": [row.tolist() for row in VALUES], "b": [1, 2, 3]}), tmp_path / "x.parquet")
    rows = read_rows(f"{tmp_path / 'x.parquet'}:a", "rollout")
    assert rows.lengths.tolist() == [4, 4, 4]
    assert rows.values.tolist() == VALUES.reshape(-1).tolist()


def test_bfloat16_of_safetensors_is_widened_and_known(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    # -1 and -2.5 are the upper halves of their bits in float32.
    content = struct.pack("<HH", 0xBF80, 0xC020)
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + content)
    rows = read_rows(str(tmp_path / "x.safetensors"), "rollout")
    assert (rows.values.tolist(), rows.dtype) == ([-1.0, -2.5], "bfloat16")


def test_folders_of_single_save_tell_steps_and_ranks(tmp_path: Path) -> None:
    for step in (0, 10, 2):
        for rank in (0, 1):
            save_one(tmp_path, "logp", step, rank, 0, VALUES - step)
            save_one(tmp_path, "logp", step, rank, 1, VALUES[0] - step, ".0")
            save_one(tmp_path, "logp", step, rank, 1, VALUES[1, :2] - step, ".1")
    rows = read_rows(f"{tmp_path}:logp", "rollout")
    assert rows.lengths.tolist() == [4, 4, 4, 4, 2] * 6
    assert rows.steps is not None and rows.ranks is not None
    assert rows.steps.tolist() == [0] * 10 + [2] * 10 + [10] * 10
    assert rows.ranks.tolist() == ([0] * 5 + [1] * 5) * 3
    assert rows.values[18 * 2 : 18 * 2 + 4].tolist() == (VALUES[0] - 2).tolist()
    assert rows.dtype == "bfloat16"


def test_what_single_save_writes_is_read(tmp_path: Path) -> None:
    """Escaped keys, dtypes inside of a mapping, lists of numbers, and a process without a rank."""
    saver = saver_to(tmp_path)
    rows_of_lists = [[-1.0, -2.5], [None]]
    saver.save({"actor/logp": {"a": VALUES[0], "b": VALUES[1, :3]}, "prompt": [3, 4], "rows": rows_of_lists})
    saver.close()
    assert read_rows(f"{tmp_path}:actor/logp", "rollout").lengths.tolist() == [4, 3]
    assert read_rows(f"{tmp_path}:prompt", "prompt_lengths").values.tolist() == [3, 4]
    rows = read_rows(f"{tmp_path}:rows", "rollout")
    assert (rows.lengths.tolist(), rows.values[:2].tolist()) == ([2, 1], [-1.0, -2.5]) and np.isnan(rows.values[2])
    for of_process in tmp_path.glob("data/prompt/step0/rank*"):
        shutil.copytree(of_process, of_process.with_name("proc4711"))
    ranks = read_rows(f"{tmp_path}:prompt", "prompt_lengths").ranks
    assert ranks is not None and ranks.tolist() == ["0", "proc1"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": VALUES[:2]}, r"training has 2 sequences with 8 tokens, and rollout 3 sequences with 12"),
        ({"training": VALUES[:, :3]}, r"training has 3 tokens in sequence 0, and rollout 4"),
        ({"mask": np.ones((3, 5))}, r"mask has 5 tokens in sequence 0, and rollout 4"),
        ({"mask": np.zeros((3, 4))}, r"mask is 0 for every token"),
        ({"mask": np.full((3, 4), 2)}, r"mask holds 2; allowed: 1 for the tokens of responses, 0 for others"),
        ({"mask": VALUES}, r"mask holds -[\d.]+; allowed: 1"),
        ({"mask": np.full((3, 4), np.nan)}, r"mask holds nan; allowed: 1"),
        ({"mask": np.full((3, 4), "x")}, r"mask holds <U1; allowed: 1"),
        ({"training": -VALUES}, r"training: the log-probability at sequence 2, token 3 is 11; allowed: at most 0"),
        ({"sequences": [1, 2, 1]}, r"sequences has the id 1 twice"),
        ({"sequences": [1, 2]}, r"sequences has 2 ids; allowed: one for each of the 3 sequences"),
        ({"step": [1, 2]}, r"step has 2 numbers"),
        ({"tokens": VALUES + 0.5}, r"tokens holds float32 with values that are not whole numbers"),
        ({"rollout": np.zeros((2, 2, 2))}, r"rollout: its shape is \(2, 2, 2\)"),
        ({"rollout": np.zeros((0, 4))}, r"rollout holds no log-probabilities"),
        ({"rollout": "nowhere.npy"}, r"rollout: nowhere.npy does not exist"),
        ({"rollout": [["a"] * 4] * 3}, r"rollout holds <U1, and log-probabilities are numbers"),
        ({"dtype": "int8"}, r'dtype is "int8"'),
    ],
)
def test_what_does_not_fit_is_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MsprobeException, match=message) as caught:
        probe.rollout_check(**{"rollout": VALUES, "training": VALUES, **changes})
    assert "\n" not in str(caught.value)


def test_a_key_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    source = written("npz", tmp_path)
    with pytest.raises(MsprobeException, match=r'no key "c"; it has: a, b'):
        read_rows(source[:-1] + "c", "rollout")
    with pytest.raises(MsprobeException, match=r"several keys; write .*:KEY with one of: a, b"):
        read_rows(source[:-2], "rollout")
    save_one(tmp_path / "saved", "logp", 0, 0, 0, VALUES)
    with pytest.raises(MsprobeException, match=r'no key "x"; it has: logp'):
        read_rows(f"{tmp_path / 'saved'}:x", "rollout")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.npy", b"\x93NUMPY\1\0v\0{"),
        ("x.npz", b"PK\3\4 nothing"),
        ("x.safetensors", struct.pack("<Q", 1 << 60)),
        ("x.safetensors", struct.pack("<Q", 2) + b"[]"),
        ("x.safetensors", struct.pack("<Q", 4) + b"\xff\xff{}"),
        ("x.jsonl", b'{"a": [1, 2}\n'),
        ("x.jsonl", b"[1, 2]\n"),
        ("x.txt", b"1 2 3"),
    ],
)
def test_damaged_files_are_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MsprobeException) as caught:
        probe.rollout_check(str(tmp_path / name), VALUES)
    assert name in str(caught.value)


def test_flat_tokens_with_the_ids_of_their_sequences() -> None:
    report = probe.rollout_check(VALUES.reshape(-1), VALUES.reshape(-1), sequences=["a"] * 5 + ["c"] * 7)
    assert (list(report.tokens.names), report.tokens.lengths.tolist()) == (["a", "c"], [5, 7])


def test_lists_of_arrays_may_have_any_lengths() -> None:
    rows = [VALUES[0], VALUES[1, :0], VALUES[2, :3]]
    report = probe.rollout_check(rows, rows, mask=[[1, 0, 1, 1], [], [1, 1, 1]])
    assert (list(report.tokens.names), report.tokens.lengths.tolist()) == ([0, 2], [3, 3])
    assert report.tokens.masked_out == 1
