"""Real data is read and measured by several threads; rows, errors and what runs alone."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import made_dumps
import numpy as np
import pytest
from made_dumps import tensor

import probe
from probe.common.align.row import Row
from probe.common.dump.reading.dump import Dump
from probe.common.errors import DumpFormatError
from probe.common.numerics.user_metrics import Algorithm
from probe.compare.rows.tensor_rows import TensorValues


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


@pytest.mark.parametrize(("shape", "judged"), [((0,), True), (ARRAYS[3].shape, False)], ids=["emptied", "no file"])
def test_an_emptied_tensor_has_no_values_to_judge_and_a_missing_file_cannot_be_judged(
    tmp_path: Path, shape: tuple[int, ...], judged: bool
) -> None:
    """An engine packs a weight elsewhere, and leaves a tensor without elements, of which no file is saved."""
    values = TensorValues(written(tmp_path / "a", ARRAYS[3:4]), written(tmp_path / "b", ARRAYS[3:4]))
    (row,) = rows_of(values.target, values.golden)
    assert row.target is not None
    row.target.shape, row.target.data_name = shape, None
    assert [each.judged for each in values.measured([row])] == [judged]


def test_an_error_ends_the_work_as_without_threads(tmp_path: Path) -> None:
    values = TensorValues(written(tmp_path / "a", ARRAYS[:40]), written(tmp_path / "b", ARRAYS[:40]))
    rows = rows_of(values.target, values.golden)
    rows[5].target.data_name = "../5.npy"  # type: ignore[union-attr]
    with pytest.raises(DumpFormatError, match="is not a file name"):
        list(values.measured(rows))


def test_the_users_metrics_run_in_one_thread(tmp_path: Path) -> None:
    seen = set()

    def compare(n: Any, b: Any) -> int:
        seen.add(threading.get_ident())
        return 0

    algorithms = [Algorithm("here", "Mine", compare)]
    values = TensorValues(
        written(tmp_path / "a", ARRAYS[:9]), written(tmp_path / "b", ARRAYS[:9]), algorithms=algorithms
    )
    list(values.measured(rows_of(values.target, values.golden)))
    assert seen == {threading.get_ident()}


def test_tensors_without_elements_have_no_file_and_nothing_to_say(tmp_path: Path) -> None:
    def dump(folder: Path, shape: list[int]) -> Dump:
        made = written(folder, [np.ones(3, np.float32)])
        content = json.loads(Path(made.path).read_text())
        entry = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": shape}
        content["data"] = {"Torch.cat.0.forward": {"output": [entry]}}
        Path(made.path).write_text(json.dumps(content))
        return probe.read(made.path)

    for shape, notes in (([0], 0), ([4, 0, 2], 0), ([2], 2)):
        name = "x".join(map(str, shape))
        values = TensorValues(dump(tmp_path / f"a{name}", shape), dump(tmp_path / f"b{name}", shape))
        (row,) = values.measured(rows_of(values.target, values.golden))
        assert len(row.notes) == notes and row.judged
