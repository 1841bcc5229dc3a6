"""Two folders of saved values compared: the recorded tables, and what ours show that they do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest
from saved_values.recorded_files import SIDES, recorded_tables, write_recorded

from msprobe.core import SingleComparator
from probe.api import cli
from probe.common.errors import MsprobeException
from probe.rollout.table_rows import measure
from probe.rollout.tables import Tables


def table(folder: Path, key: str) -> list[list[Any]]:
    book = openpyxl.load_workbook(folder / f"{key}.xlsx")
    return [list(row) for row in book.worksheets[0].iter_rows(values_only=True)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("recorded")
    return [write_recorded(side, folder / side) for side in SIDES]


Save = Callable[[str, str, Any], Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def write(side: str, where: str, value: Any) -> Path:
        key = where.split("/")[0]
        folder = tmp_path / side / "data" / where
        folder.mkdir(parents=True, exist_ok=True)
        parts = value if isinstance(value, dict) else {"": value}
        for name, part in parts.items():
            np.save(folder / (f"{key}.{name}.npy" if name else f"{key}.npy"), part)
        return tmp_path / side

    return write


WHERE = "k/step0/rank0/micro_step0"


def compare(tmp_path: Path, **options: Any) -> Tables:
    return SingleComparator.compare(tmp_path / "a", tmp_path / "b", tmp_path / "out", **options)


def test_by_the_rules_of_msprobe_the_tables_are_the_recorded_ones(recorded: list[Path], tmp_path: Path) -> None:
    tables = SingleComparator.compare(*recorded, tmp_path / "out", rules="msprobe")
    expected = recorded_tables()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(expected)
    for name, rows in expected.items():
        assert table(tmp_path / "out", name[: -len(".xlsx")]) == rows, name
    assert len(tables.keys) == len(expected)


def test_ours_have_the_recorded_numbers_where_no_defect_is_behind_them(recorded: list[Path], tmp_path: Path) -> None:
    tables = SingleComparator.compare(*recorded, tmp_path / "out")
    for key in ("old_log_prob", "reward", "parts"):
        rows = table(tmp_path / "out", key)
        for row, expected in zip(rows, recorded_tables()[f"{key}.xlsx"]):
            assert len(row) == len(expected) + 1
            # The recorded errors are float32.
            assert row[:-1] == [pytest.approx(cell, rel=1e-6) if isinstance(cell, float) else cell for cell in expected]
    assert tables.found
    assert [each.key for each in tables.keys if not each.differing] == []


def test_every_entry_of_a_mapping_has_a_row(save: Save, tmp_path: Path) -> None:
    for side, value in (("a", 1.0), ("b", 2.0)):
        save(side, WHERE, {"x": np.zeros(2), "y": np.full(2, value), "10": np.ones(1), "9": np.ones(1)})
    tables = compare(tmp_path, headers="english")
    rows = table(tmp_path / "out", "k")
    assert rows[0][:4] == ["step", "rank", "micro_step", "id"] and rows[0][-1] == "note"
    assert [row[3] for row in rows[1:]] == [9, 10, "x", "y"]
    assert [row[6] for row in rows[1:]] == [100, 100, 100, 0]
    assert list(tables.lines()) == ["k: 1 of 4 arrays differ"]


def test_other_shapes_do_not_pass(save: Save, tmp_path: Path) -> None:
    save("a", WHERE, np.zeros((2, 5)))
    save("b", WHERE, np.zeros((2, 4)))
    assert compare(tmp_path).found
    assert table(tmp_path / "out", "k")[1][4:] == ["[2, 5]", "[2, 4]", *[None] * 6, "shapes differ: not compared"]


def test_what_one_side_lacks_is_said(save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save("a", WHERE, np.zeros(2))
    save("a", "k/step1/rank0/micro_step0", np.zeros(2))
    save("b", WHERE, np.zeros(2))
    save("b", "other/step0/rank0/micro_step0", np.zeros(2))
    tables = compare(tmp_path)
    lines = list(tables.lines())
    assert lines == [
        f"k: 1 of 2 arrays differ; {tmp_path}/b lacks step 1, rank 0, micro step 0",
        f"other: 1 of 1 arrays differ; {tmp_path}/a lacks step 0, rank 0, micro step 0",
    ]
    assert table(tmp_path / "out", "other")[1][4:6] == [None, "[2]"]
    (warning,) = capsys.readouterr().err.splitlines()
    a, b = (f"{tmp_path}/{name} lacks step" for name in "ab")
    assert warning.endswith(f"{b} 1, rank 0, micro step 0 of k; {a} 0, rank 0, micro step 0 of other.")


def test_values_that_lack_the_same_are_in_one_warning(
    save: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side, step in (("a", 0), ("a", 1), ("b", 0)):
        for index in range(6):
            save(side, f"k{index}/step{step}/rank0/micro_step0", np.zeros(2))
    assert compare(tmp_path).found
    (warning,) = capsys.readouterr().err.splitlines()
    text = f"{tmp_path}/b lacks step 1, rank 0, micro step 0 of k0, k1, k2, k3 and 2 more."
    assert warning.endswith(f"[WARNING] Saves without a counterpart: {text}")


def test_numbers_and_texts_of_the_json_file_are_compared(save: Save, tmp_path: Path) -> None:
    for side, number in (("a", 3), ("b", 4)):
        folder = save(side, WHERE, {"x": np.zeros(1)}) / "data" / WHERE
        entry = {"max": 0, "min": 0, "mean": 0, "norm": 0, "shape": [1]}
        content = {"data": {"x": entry, "n": number, "text": "same", "none": None, "huge": 10**30}}
        (folder / "k.json").write_text(json.dumps(content), encoding="utf-8")
    compare(tmp_path)
    rows = {row[3]: row for row in table(tmp_path / "out", "k")[1:]}
    assert list(rows) == ["x", "n", "text", "none", "huge"]
    assert [rows[name][6] for name in rows] == [100, 0, 100, 100, 100]
    assert rows["n"][8] == 1


def test_processes_without_a_rank_are_compared_in_their_order(save: Save, tmp_path: Path) -> None:
    save("a", "k/step0/proc12/micro_step0", np.zeros(2))
    save("b", "k/step0/proc9/micro_step0", np.ones(2))
    compare(tmp_path)
    (_, row) = table(tmp_path / "out", "k")
    assert row[1] == "proc0" and row[6] == 0


def test_two_processes_write_what_one_does(save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("k", "m"):
        for side, value in (("a", 1.0), ("b", 2.0)):
            save(side, f"{key}/step0/rank0/micro_step0", np.full(3, value))
    one = compare(tmp_path, num_processes=1)
    monkeypatch.setattr("probe.rollout.tables._IN_PROCESSES", 0)
    assert compare(tmp_path, num_processes=2) == one


def test_what_is_wrong_is_said_before_anything_is_written(save: Save, tmp_path: Path) -> None:
    save("a", WHERE, np.zeros(2))
    (tmp_path / "b").mkdir()
    with pytest.raises(MsprobeException, match=r"b has no saved values \(data/<key>/step<S>\); give the dump_path"):
        compare(tmp_path)
    with pytest.raises(MsprobeException, match="num_processes is 0; allowed: an integer from 1"):
        compare(tmp_path, num_processes=0)
    with pytest.raises(MsprobeException, match="headers is 'latin'; allowed: msprobe, english"):
        compare(tmp_path, headers="latin")
    with pytest.raises(MsprobeException, match="c is not a folder"):
        SingleComparator.compare(tmp_path / "a", tmp_path / "c", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_file_is_named(save: Save, tmp_path: Path) -> None:
    for side in ("a", "b"):
        save(side, WHERE, np.zeros(2))
    (tmp_path / "b/data" / WHERE / "k.npy").write_bytes(b"nothing")
    with pytest.raises(MsprobeException, match=r"k\.npy: not a tensor"):
        compare(tmp_path)


def test_equal_nan_and_infinities_are_equal() -> None:
    first = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert measure(first, first.copy()) == (100, None, 0, 0, 100, 100)


@pytest.mark.parametrize(
    "first, second, expected",
    [
        # By hand: share of equal elements, first mismatch, errors, shares within 0.1 % and 1 %.
        ([1.0, 2.0, 0.0, 4.0], [1.0, 2.01, 0.0, 4.001], (50, 1, 0.01, 0.01 / 2.01, 75, 100)),
        ([0.0, 0.0], [0.0, 1e-4], (50, 1, 1e-4, 1, 50, 50)),
        ([np.inf, 1.0], [np.inf, np.inf], (50, 1, np.inf, np.inf, 50, 50)),
        ([True, False], [True, True], (50, 1, 1, 1, 50, 50)),
        ([2**62 + 1, 5], [2**62, 5], (50, 0, 1, 2.0**-62, 100, 100)),
        ([1j, 2.0], [1j, 2j], (50, 1, np.sqrt(8), np.sqrt(2), 50, 50)),
        (["a", "b"], ["a", "c"], (50, 1, None, None, 50, 50)),
        (np.zeros((0, 3)), np.zeros((0, 3)), (100, None, 0, 0, 100, 100)),
    ],
)
def test_measures_by_hand(first: Any, second: Any, expected: tuple[Any, ...]) -> None:
    found = measure(np.array(first), np.array(second))
    assert list(found) == [pytest.approx(cell) if isinstance(cell, float) else cell for cell in expected]


def test_one_nan_makes_the_errors_nan() -> None:
    share, index, *errors, _, _ = measure(np.array([1.0, np.nan, 3.0]), np.array([1.0, 2.0, 4.0]))
    assert share == pytest.approx(100 / 3) and index == 1 and all(np.isnan(error) for error in errors)


def test_blocks_add_up_to_the_whole() -> None:
    random = np.random.default_rng(3)
    first = random.normal(size=600_000)
    second = np.where(random.random(600_000) < 0.3, first * (1 + random.normal(size=600_000) * 0.01), first)
    share, index, absolute, relative, close, near = measure(first, second)
    errors = np.abs(first - second)
    ratio = errors / np.maximum(np.abs(first), np.abs(second))
    assert share == pytest.approx(100 * (first == second).mean())
    assert index == np.flatnonzero(first != second)[0]
    assert [absolute, relative] == pytest.approx([errors.max(), ratio.max()])
    assert [close, near] == pytest.approx([100 * (ratio <= 0.001).mean(), 100 * (ratio <= 0.01).mean()])


def test_the_command_writes_the_same_tables(
    recorded: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [str(side) for side in recorded]
    options = ["--tables", "--rules", "msprobe", "-o", str(tmp_path / "out"), "--json"]
    assert cli.main(["rollout_check", *sides, *options]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["files"]) == len(recorded_tables())
    assert table(tmp_path / "out", "reward") == recorded_tables()["reward.xlsx"]
    same = ["rollout_check", sides[0], sides[0], "--tables", "-o", str(tmp_path / "same")]
    assert cli.main(same) == 0
