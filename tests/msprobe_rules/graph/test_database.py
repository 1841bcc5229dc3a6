"""The drop-in database: what the reference tool's plug-in reads."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from probe.common.dump.reading.dump import read
from probe.common.errors import FileCheckException, MsprobeException
from probe.graph.diff import diff_of
from probe.graph.overflow_levels import overflows
from probe.msprobe_rules.graph.database import Section, database_name, write_database
from probe.msprobe_rules.graph.diff import msprobe_diff, msprobe_overflows

CASES = Path(__file__).parents[2] / "graph" / "cases"
DUMPS = CASES / "dumps"

# What `PRAGMA table_info` says of the files that msProbe 26.2 writes.
COLUMNS = {
    "tb_nodes": (
        "id TEXT, graph_id TEXT, node_order INTEGER, node_name TEXT, node_type TEXT, up_node TEXT, sub_nodes TEXT, "
        "precision_index INTEGER, overflow_level TEXT, micro_step_id INTEGER, matched_node_link TEXT, stack_id TEXT, "
        "parallel_merge_info TEXT, matched_distributed TEXT, modified INTEGER, input_data TEXT, output_data TEXT, "
        "data_source TEXT, dump_data_dir TEXT, step INTEGER, rank INTEGER, is_distributed INTEGER"
    ),
    "tb_stack": "id TEXT, stack_info TEXT",
    "tb_config": (
        "id TEXT, graph_type TEXT, task TEXT, tool_tip TEXT, micro_steps INTEGER, overflow_check INTEGER, "
        "node_colors TEXT, rank_list TEXT, step_list TEXT"
    ),
}
INDEXES = {
    ("step", "rank", "data_source", "up_node", "node_order"),
    ("step", "rank", "data_source", "node_name"),
    ("step", "rank", "data_source", "node_order"),
    ("step", "rank", "node_order"),
    ("step", "rank", "micro_step_id", "node_order"),
    ("step", "rank", "modified", "matched_node_link"),
    ("is_distributed",),
}


def rows(path: Path, query: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query)]


def recorded(path: Path, case: str) -> dict[str, Any]:
    """Write the database of a recorded case; returns what was recorded of it."""
    expected: dict[str, Any] = json.loads((CASES / f"{case}.json").read_text(encoding="utf-8"))
    golden = expected["golden"] and read(DUMPS / expected["golden"])
    diff = msprobe_diff(read(DUMPS / expected["target"]), golden, "-fm" in expected["options"])
    levels, golden_levels = msprobe_overflows(diff) if "-oc" in expected["options"] else (None, None)
    section = Section(diff, 0, 0, levels and levels.levels, golden_levels and golden_levels.levels)
    write_database(str(path), [section], "msprobe")
    return expected


def test_tables_and_indexes_are_those_that_were_recorded(tmp_path: Path) -> None:
    path = tmp_path / "x.vis.db"
    recorded(path, "nan")
    for table, columns in COLUMNS.items():
        found = rows(path, f"PRAGMA table_info({table})")
        assert ", ".join(f"{row['name']} {row['type']}" for row in found) == columns
        assert [row["name"] for row in found if row["pk"]] == ["id"]
    indexes = [row["name"] for row in rows(path, "PRAGMA index_list(tb_nodes)") if row["origin"] == "c"]
    assert {tuple(row["name"] for row in rows(path, f"PRAGMA index_info({name})")) for name in indexes} == INDEXES


@pytest.mark.parametrize("case", ["nan", "three_layers", "three_layers_fuzzy", "bf16"])
def test_a_recorded_case_is_in_the_database(tmp_path: Path, case: str) -> None:
    path = tmp_path / "x.vis.db"
    expected = recorded(path, case)
    target = expected["sides"]["target"]
    ordered = "ORDER BY node_order"
    found = rows(path, f"SELECT * FROM tb_nodes WHERE data_source = 'NPU' {ordered}")
    if isinstance(target["order_and_parent"], list):
        assert [[row["node_name"], row["up_node"] or None] for row in found] == target["order_and_parent"]
    for status, index in (("warning", 0.5), ("error", 1)):
        assert [row["node_name"] for row in found if row["precision_index"] == index] == target["status"][status]
    assert sum(row["precision_index"] == 0 for row in found) == target["pass_count"]
    assert sum(row["precision_index"] is None for row in found) == target["no_status_count"]
    for side, source in (("target", "NPU"), ("golden", "Bench")):
        of_side = rows(path, f"SELECT * FROM tb_nodes WHERE data_source = '{source}' {ordered}")
        unmatched = [row["node_name"] for row in of_side if row["matched_node_link"] == "[]"]
        assert unmatched == expected["sides"][side]["unmatched"]
        for level, names in expected["sides"][side].get("overflow", {}).items():
            assert [row["node_name"] for row in of_side if row["overflow_level"] == level] == names


def test_several_steps_and_ranks_are_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "x.vis.db"
    diff = diff_of(read(DUMPS / "llama_nan"), read(DUMPS / "llama"))
    target, golden = overflows(diff)
    assert golden is not None
    sections = [Section(diff, step, rank, target.levels, golden.levels) for step in (0, 3) for rank in (0, 1)]
    write_database(str(path), sections)
    (config,) = rows(path, "SELECT * FROM tb_config")
    assert (json.loads(config["rank_list"]), json.loads(config["step_list"])) == ([0, 1], [0, 3])
    assert (config["task"], config["overflow_check"]) == ("summary", 1)
    colours = json.loads(config["node_colors"]).values()
    assert [colour["value"] for colour in colours] == [[0, 0.3], [0.3, 0.6], [0.6, 1], []]
    counts = rows(path, "SELECT count(*) AS nodes FROM tb_nodes GROUP BY step, rank, data_source")
    assert [count["nodes"] for count in counts] == [303] * 8
    with pytest.raises(MsprobeException, match="both step 0, rank 1"):
        write_database(str(path), [sections[1], Section(diff, 0, 1)])
    with pytest.raises(MsprobeException, match="nothing to write"):
        write_database(str(path), [])


def test_a_file_is_whole_and_ours_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / database_name(True, datetime(2026, 1, 2, 3, 4, 5))
    recorded(path, "weight")
    assert path.name == "compare_20260102030405.vis.db"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
    assert os.listdir(path.parent) == [path.name]
    first = path.read_bytes()
    recorded(path, "weight")
    assert path.read_bytes() == first


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.vis.db"
    path.mkdir()
    with pytest.raises(FileCheckException, match=r"x\.vis\.db cannot be written: "):
        recorded(path, "weight")
    assert os.listdir(tmp_path) == ["x.vis.db"]


def test_hostile_names_are_texts(tmp_path: Path) -> None:
    name = "Functional.a\"');DROP TABLE tb_nodes;--\u202e</script>\\.0.forward".replace(" ", "_")
    item = {"type": "torch.Tensor", "dtype": 'f"1', "shape": [1], "Max": 1.0, "Min": 1.0, "Mean": 1.0, "Norm": 1.0}
    data = {name: {"input_args": [item], "input_kwargs": {'k"\n': item}, "output": [{"type": "str", "value": 'x"'}]}}
    for side in ("a", "b"):
        (tmp_path / side).mkdir()
        dump = {"task": "statistics", "level": "L1", "framework": "pytorch", "data": data}
        (tmp_path / side / "dump.json").write_text(json.dumps(dump))
    path = tmp_path / "x.vis.db"
    write_database(str(path), [Section(diff_of(read(tmp_path / "a"), read(tmp_path / "b")))])
    found = [row for row in rows(path, "SELECT * FROM tb_nodes") if row["node_name"] == name]
    assert [list(json.loads(row["input_data"])) for row in found] == [[f"{name}.input.0", f'{name}.input.k"\n']] * 2
    assert json.loads(found[0]["output_data"])[f"{name}.output.0"]["value"] == 'x"'
