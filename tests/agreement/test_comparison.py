"""One network in every framework, compared without a mapping file: each module and function meets its counterpart."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from agreement.interpreters import BACKENDS

from probe.common.dump.reading.dump import Dump, read
from probe.compare.comparison import compare_dumps
from probe.compare.result import ComparisonResult

HERE = Path(__file__).parent
LEVELS = ("L0", "L1", "mix")

# Items that have no counterpart though their records do.
RESIDUE = {
    # PyTorch shows the gradients that the last step of the function hands on: that of the weight is transposed.
    ("linear.0.backward", "output.1"),
    ("linear.0.backward", "output.2"),
    ("linear.1.backward", "output.1"),
    ("linear.1.backward", "output.2"),
    # A number has no gradient, and only PyTorch leaves a place for it.
    ("__mul__.0.backward", "output.1"),
    # What MindSpore's function does not take.
    ("relu.0.forward", "input.inplace"),
}


def dumped(folder: Path, backend: str, way: str) -> Dump:
    (process,) = (folder / backend / way / "step0").iterdir()
    return read(process)


def alone(result: ComparisonResult) -> set[tuple[str, str]]:
    """Items without counterpart: record without its family, and the rest of the name."""
    found = set()
    for row in result.rows:
        item = row.target or row.golden
        assert item is not None
        if row.target is None or row.golden is None:
            found.add((row.record.partition(".")[2], item.name[len(row.record) + 1 :]))
    return found


def unmatched(result: ComparisonResult, target: Dump, golden: Dump) -> tuple[list[str], list[str]]:
    pairs = {row.record: row.golden_record for row in result.rows if row.target and row.golden}
    assert len(set(pairs.values())) == len(pairs)
    return (
        [record.name for record in target if record.name not in pairs],
        [record.name for record in golden if record.name not in set(pairs.values())],
    )


@pytest.mark.parametrize("way", LEVELS)
@pytest.mark.parametrize("sides", list(permutations(BACKENDS, 2)), ids="-".join)
def test_every_record_meets_its_counterpart(folder: Path, sides: tuple[str, str], way: str) -> None:
    target, golden = (dumped(folder, backend, way) for backend in sides)
    result = compare_dumps(target, golden)
    assert unmatched(result, target, golden) == ([], [])
    assert alone(result) <= RESIDUE
    assert all(row.result != "error" for row in result.rows)
    assert result.divergence is None
