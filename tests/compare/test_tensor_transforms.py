"""Tensors that are multiplied by a matrix before they are compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from made_dumps import tensor_of, write

from probe.api import cli
from probe.common.dump.reading.dump import read
from probe.common.errors import MsprobeException
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options
from probe.compare.rows.tensor_transforms import load_post_processing

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


@pytest.mark.parametrize(
    "content",
    ["[]", "matmul: {}", "left_matmul: 3", "left_matmul: {tensor_map: {}}", "left_matmul: {target_tensor_map: {a: b}}"],
)
def test_a_wrong_file_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(MsprobeException, match=r"config\.yaml: .*expected"):
        load_post_processing(str(tmp_path / "config.yaml"))
