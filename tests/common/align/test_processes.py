"""Which processes of two runs belong together where they have no ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_dumps import call, tensor, write

from probe.common.align import processes
from probe.common.align.processes import pair_processes


def dump(folder: Path, names: list[str], largest: float = 1.0) -> str:
    return str(write(folder, {f"Torch.{name}.0.forward": call([tensor(largest)]) for name in names}))


def side(folder: Path, *works: tuple[list[str], float]) -> list[str]:
    return [dump(folder / str(index), names, largest) for index, (names, largest) in enumerate(works)]


A, B, CHANGED_B = ["sin", "cos", "tan"], ["relu", "tanh", "exp"], ["relu", "tanh", "log"]


@pytest.mark.parametrize(
    ("target", "golden", "pairs"),
    [
        ([(A, 1.0), (B, 1.0)], [(B, 1.0), (A, 1.0)], [(0, 1), (1, 0)]),
        ([(A, 1.0), (CHANGED_B, 1.0)], [(B, 2.0), (A, 2.0)], [(0, 1), (1, 0)]),
        # The same calls: by their first values, and else by their order.
        ([(A, 1.0), (A, 2.0)], [(A, 2.0), (A, 1.0)], [(0, 1), (1, 0)]),
        ([(A, 1.0), (A, 2.0)], [(A, 3.0), (A, 4.0)], [(0, 0), (1, 1)]),
        ([(A, float("nan")), (A, 2.0)], [(A, 2.0), (A, float("nan"))], [(0, 1), (1, 0)]),
        # Nothing in common, and one too many.
        ([(A, 1.0), (B, 1.0)], [(["abs"], 1.0), (["add"], 1.0)], [(0, 0), (1, 1)]),
        ([(A, 1.0), (B, 1.0)], [(B, 1.0)], [(1, 0)]),
        ([], [(B, 1.0)], []),
    ],
)
def test_processes_are_paired_by_what_they_ran(
    tmp_path: Path, target: list[Any], golden: list[Any], pairs: list[tuple[int, int]]
) -> None:
    assert pair_processes(side(tmp_path / "t", *target), side(tmp_path / "g", *golden)) == pairs


def test_a_dump_that_cannot_be_read_is_paired_by_its_order(tmp_path: Path) -> None:
    target, golden = side(tmp_path / "t", (A, 1.0), (B, 1.0)), side(tmp_path / "g", (A, 1.0), (B, 1.0))
    (tmp_path / "t" / "1" / "dump.json").write_text("no dump")
    assert pair_processes(target, golden) == [(0, 0), (1, 1)]


def test_very_many_are_paired_without_reading_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_MOST_COMPARED", 3)
    assert pair_processes(["a", "b"], ["c", "d"]) == [(0, 0), (1, 1)]
