"""The files of the gradient probe, read again and compared."""

from __future__ import annotations

import csv
import hashlib
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from printed_json import hold_to_schema

import msprobe
from probe.api.cli import main
from probe.backends.shared.trends import signature
from probe.common.errors import MsprobeException
from probe.common.report.trends import SIGN, TrendRow, TrendStep, TrendTable
from probe.monitor.gradient_files import GradientFiles
from probe.monitor.gradients import compare_runs

SHAPES = {"a.weight": (5, 7), "=b": (3,), "c/d": (2, 2, 2)}


def write(folder: Path, gradients: list[dict[str, Any]], rank: int = 0) -> Path:
    """A run with these gradients, step by step."""
    files = GradientFiles(str(folder / f"rank{rank}"))
    for number, values in enumerate(gradients):
        table = TrendTable(SIGN, ("max", "min", "norm"))
        for name, value in values.items():
            found = signature(value, (), False, True)
            table.rows.append(TrendRow(name, 0, 0, found.values, str(list(value.shape)), "float32"))
            table.bits.append(found.bits)
        files.write(TrendStep(number, [table], 1))
    return folder


def drawn(seed: int, steps: int = 4) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()} for _ in range(steps)]


@pytest.mark.parametrize("values", [[], [0.0, -0.0, 1.0], [np.nan, -1.0, np.inf, -np.inf, 1.0, 0.5, 0.0, 2.0, -3.0]])
def test_shares_of_intervals_count_every_number_once(values: list[float]) -> None:
    array = np.array(values, np.float32)
    found = signature(array, (-1, 0, 1), True, True)
    assert found.checksum == hashlib.md5(array.tobytes()).hexdigest()
    assert np.unpackbits(np.frombuffer(found.bits, np.uint8), count=len(values)).tolist() == [x > 0 for x in values]
    if values:
        ends = [-np.inf, -1, 0, 1, np.inf]
        expected = [sum(x <= high and (x > low or low == -np.inf) for x in values) for low, high in zip(ends, ends[1:])]
        assert [share * len(values) for share in found.values[:4]] == pytest.approx(expected)
        assert found.values[4] * len(values) == pytest.approx(sum(x == 0 for x in values))


def test_a_comparison_counts_equal_signs_and_weighs_the_sum_by_elements(tmp_path: Path) -> None:
    ours = drawn(1)
    theirs = [{name: value.copy() for name, value in step.items()} for step in ours]
    theirs[2]["a.weight"][:2] *= -1
    write(tmp_path / "a", ours)
    write(tmp_path / "b", theirs)
    (found,) = msprobe.GradComparator.compare_distributed(str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "r"))
    with (tmp_path / "r" / "similarities.csv").open(newline="") as stream:
        header, *rows = csv.reader(stream)
    assert header == ["step", "a.weight", "'=b", "c/d", "summary"]
    total = 35 + 3 + 8
    assert [float(each) for each in rows[2]] == pytest.approx([2, 21 / 35, 1, 1, 1 - 14 / total])
    assert [float(each) for each in rows[3]] == [3, 1, 1, 1, 1]
    (suspicion,) = found.suspicions()
    assert (suspicion.step, suspicion.parameter, suspicion.before) == (2, "a.weight", 1.0)


def test_each_rank_has_its_folder_and_pictures_that_can_be_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for rank in (0, 1):
            write(tmp_path / name, drawn(rank), rank)
    write(tmp_path / "b", drawn(2), 2)
    found = compare_runs(str(tmp_path / "a"), str(tmp_path / "b"))
    assert found[0].notes == ["rank 2 is in one of the runs only, and is not compared."]
    msprobe.GradComparator.compare_distributed(str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "r"))
    pictures = sorted(path.name for path in (tmp_path / "r" / "rank1" / "similarities_picture").iterdir())
    assert pictures == ["=b.png", "a.weight.png", "c%2Fd.png", "summary_similarities.png"]
    content = (tmp_path / "r" / "rank0" / "similarities_picture" / "a.weight.png").read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    size = struct.unpack(">I", content[33:37])[0]
    pixels = np.frombuffer(zlib.decompress(content[41 : 41 + size]), np.uint8).reshape(height, 1 + 3 * width)[:, 1:]
    blue = (pixels.reshape(height, width, 3) == (31, 119, 180)).all(-1)
    # All signs are equal: the line is at the top.
    assert blue.any() and np.flatnonzero(blue.any(1)).max() < height / 5


def test_compare_reads_the_folders_and_fails_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a", drawn(1))
    write(tmp_path / "b", drawn(2))
    paths = [str(tmp_path / name) for name in ("a", "b")]
    assert main(["compare", *paths, "-o", str(tmp_path / "r")]) == 0
    first = "first suspicious gradient: rank 0, step 0: a.weight has a similarity of 0."
    assert capsys.readouterr().out.startswith(first)
    assert main(["compare", *paths, "-o", str(tmp_path / "r"), "--fail-on", "divergence", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    hold_to_schema(printed, "compare of gradient probes")
    (rank,) = printed["ranks"]
    assert rank["suspicious"][0]["parameter"] == "a.weight" and set(rank["total"]) == {"0", "1", "2", "3"}


def test_what_cannot_be_compared_is_said_in_one_line(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", drawn(1)), write(tmp_path / "b", drawn(1), rank=3)
    for one, other, message in (
        (a, b, "has rank 0 and .* has rank 3; none is in both"),
        (a, tmp_path / "none", "is no folder; allowed: the dump_path of a run with task grad_probe"),
        (a, tmp_path, "has no tables of gradients"),
    ):
        with pytest.raises(MsprobeException, match=message):
            compare_runs(str(one), str(other))
    c = write(tmp_path / "c", drawn(1))
    for path in (c / "rank0").glob("step*/*"):
        path.unlink()
    with pytest.raises(MsprobeException, match='no signs of a parameter in common; collect both with "grad_l'):
        compare_runs(str(a), str(c))
    damaged = a / "rank0" / "step1" / "a.weight.npy"
    np.save(damaged, np.zeros(2, np.uint8))
    with pytest.raises(MsprobeException, match=r"has 2 values of uint8, and the table has the shape \[5, 7\]"):
        compare_runs(str(a), str(write(tmp_path / "d", drawn(1))))
    damaged.write_bytes(b"\x93NUMPY\x01\x00")
    with pytest.raises(MsprobeException, match=r"a\.weight\.npy: not a tensor"):
        compare_runs(str(a), str(tmp_path / "d"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a.weight,1,1,1," + "[" * 100_000, "allowed: a list of whole numbers"),
        ("a.weight,1,1,1," + "1" * 200_000, "line 2 is no line of a table: field larger than field limit"),
        ("a.weight", "has the shape None; allowed: a list of whole numbers"),
    ],
    ids=["nested", "long", "short"],
)
def test_a_table_that_is_none_is_one_error(row: str, message: str, tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", drawn(1)), write(tmp_path / "b", drawn(1))
    (a / "rank0" / "grad_summary_0.csv").write_text(f"param_name,max,min,norm,shape\n{row}\n")
    # The limit is the process's, and other readers raise it.
    before = csv.field_size_limit(131_072)
    try:
        with pytest.raises(MsprobeException, match=message):
            compare_runs(str(a), str(b))
    finally:
        csv.field_size_limit(before)
