"""What is said of the data of two runs: the batch of the first call, and no gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_dumps import call, tensor, written

from probe.common.environment.environment_file import write
from probe.compare.comparison import compare_dumps
from probe.compare.output.outside import outside_of

NAME = "Cell.head.Dense.{}.0"


@pytest.mark.parametrize(
    ("direction", "expected"),
    [("forward", ["first batch differs: other data, or another order of the data"]), ("backward", [])],
)
def test_a_gradient_is_no_batch(direction: str, expected: list[str], tmp_path: Path) -> None:
    dumps = []
    for side, norm in (("target", 1.0), ("golden", 2.0)):
        given = tensor(norm, -norm, 0.1, norm, (4, 8), "Float32")
        name = NAME.format(direction)
        dumps.append(written(tmp_path / side / "step0" / "rank0", {name: call([given], [given])}, {name: None}))
        write(str(tmp_path / side), "rank0", {"framework": "mindspore"})
    assert [each.text for each in outside_of(compare_dumps(*dumps))] == expected


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(1 + 2**-9, []), (1.02, ["first batch differs: other data, or another order of the data"])],
)
def test_one_batch_in_two_dtypes_is_the_same_data(factor: float, expected: list[str], tmp_path: Path) -> None:
    dumps = []
    for side, dtype, by in (("target", "torch.bfloat16", factor), ("golden", "torch.float32", 1.0)):
        given = tensor(2.0 * by, -1.0 * by, 0.1 * by, 3.0 * by, (4, 8), dtype)
        name = "Module.conv.Conv2d.forward.0"
        dumps.append(written(tmp_path / side / "step0" / "rank0", {name: call([given], [given])}, {name: None}))
        write(str(tmp_path / side), "rank0", {"framework": "pytorch"})
    assert [each.text for each in outside_of(compare_dumps(*dumps))] == expected


@pytest.mark.parametrize(
    ("dtype", "by", "expected"),
    [
        ("torch.int64", 1.0, "its statistics agree, so it may have the same elements in another order"),
        ("torch.float32", 1.0, "may have the same elements in another order, or differ by rounding"),
        ("torch.float32", 1 + 1e-6, "differs by rounding, or has the same elements in another order"),
        ("torch.float32", 1.02, "other data, or another order of the data"),
    ],
)
def test_a_batch_with_other_checksums_may_differ_by_rounding(
    dtype: str, by: float, expected: str, tmp_path: Path
) -> None:
    dumps = []
    for side, factor, md5 in (("target", by, "00000001"), ("golden", 1.0, "00000002")):
        given = tensor(2.0 * factor, -1.0 * factor, 0.1 * factor, 3.0 * factor, (4, 8), dtype, md5=md5)
        name = "Module.conv.Conv2d.forward.0"
        dumps.append(written(tmp_path / side / "step0" / "rank0", {name: call([given], [given])}, {name: None}))
        write(str(tmp_path / side), "rank0", {"framework": "pytorch"})
    (found,) = outside_of(compare_dumps(*dumps))
    assert expected in found.text
