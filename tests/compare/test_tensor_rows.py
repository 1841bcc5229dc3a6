"""Real data: rows measured by several threads, and tensors that are multiplied by a matrix first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import made_dumps
import numpy as np
import pytest
from made_dumps import tensor, tensor_of, write

from probe.api import cli
from probe.common.align.calls import Row
from probe.common.dump.reading.dump import Dump, read
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options
from probe.compare.tensor_rows import TensorValues

# --- real data is read and measured by several threads; rows, errors and what runs alone


def written(folder: Path, arrays: list[Any], apart: float = 0.0) -> Dump:
    files = folder / "dump_tensor_data"
    files.mkdir(parents=True)
    data = {}
    for number, array in enumerate(arrays):
        np.save(files / f"{number}.npy", array + np.float32(apart))
        data[f"Torch.sin.{number}.forward"] = {"output": [tensor(shape=array.shape, data_name=f"{number}.npy")]}
    return made_dumps.written(folder, data, task="tensor")


def rows_of(target: Dump, golden: Dump) -> list[Row]:
    items = [[item for record in dump for item in record.items()] for dump in (target, golden)]
    return [Row(n.name, n, b, b.name) for n, b in zip(*items)]


ARRAYS = [np.full((1 << (number % 19) or 2,), number + 1, np.float32) for number in range(60)]


def test_every_row_has_its_own_metrics_in_order(tmp_path: Path) -> None:
    values = TensorValues(written(tmp_path / "a", ARRAYS, 0.5), written(tmp_path / "b", ARRAYS))
    rows = rows_of(values.target, values.golden)
    done = list(values.measured(rows))
    assert done == rows and all(mine is other for mine, other in zip(done, rows))
    assert [row.metrics[2] for row in rows] == [0.5] * len(rows)
    assert [row.metrics[3] for row in rows] == pytest.approx([0.5 / (i + 1) for i in range(len(rows))], rel=1e-6)


# --- tensors that are multiplied by a matrix before they are compared

NAME = "Torch.sin.0.forward.output.0.npy"


def dump(folder: Path, values: np.ndarray) -> Path:  # type: ignore[type-arg]
    (folder / "dump_tensor_data").mkdir(parents=True)
    np.save(folder / "dump_tensor_data" / NAME, values)
    record = {"output": [tensor_of(values, data_name=NAME)]}
    return write(folder, {"Torch.sin.0.forward": record}, task="tensor") / "dump.json"


@pytest.mark.parametrize("section", ["right_matmul", "left_matmul", "left_right_matmul"])
def test_a_rotation_is_undone(tmp_path: Path, section: str, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(20261121)
    plain = rng.normal(size=(4, 4))
    left, right = (np.linalg.qr(rng.normal(size=(4, 4)))[0] for _ in range(2))
    rotated = (left.T @ plain if "left" in section else plain) @ (right.T if "right" in section else np.eye(4))
    target, golden = dump(tmp_path / "a", rotated), dump(tmp_path / "b", plain)
    np.save(tmp_path / "left.npy", left)
    np.save(tmp_path / "right.npy", right)
    if section == "left_right_matmul":
        maps = {f"{side}_target_tensor_map": {f"{side}.npy": [NAME]} for side in ("left", "right")}
    else:
        maps = {"target_tensor_map": {f"{section.split('_')[0]}.npy": [NAME]}}
    (tmp_path / "config.yaml").write_text(json.dumps({section: maps}))
    without = compare_dumps(read(target), read(golden)).rows[0].metrics
    config = str(tmp_path / "config.yaml")
    rotated_back = compare_dumps(read(target), read(golden), Options(post_processing=config)).rows[0].metrics
    assert without[2] > 0.1 and rotated_back[0] == 1.0 and rotated_back[2] < 1e-9
    paths = ["-tp", str(target), "-gp", str(golden), "-o", str(tmp_path / "out")]
    assert cli.main(["compare", *paths, "--config", config, "-tensor_log"]) == 0
    assert f"{NAME[:-4]} and {NAME[:-4]}: Cosine 1.0, EucDist " in capsys.readouterr().err


@pytest.mark.parametrize("matrix", ["small.npy", "none.npy"])
def test_a_matrix_that_does_not_fit_leaves_the_tensor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], matrix: str
) -> None:
    side = dump(tmp_path / "a", np.ones((4, 4)))
    np.save(tmp_path / "small.npy", np.ones((3, 3)))
    (tmp_path / "config.yaml").write_text(json.dumps({"right_matmul": {"golden_tensor_map": {matrix: [NAME]}}}))
    options = Options(post_processing=str(tmp_path / "config.yaml"))
    (row,) = compare_dumps(read(side), read(side), options).rows
    assert row.metrics[2] == 0.0 and "is compared as it is" in capsys.readouterr().err
