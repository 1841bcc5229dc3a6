"""``msprobe graph_visualize``: paths, pairs, formats, and what it says at the end."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest
from graph_commands import DUMPS, FIRST, IN_WORDS, LLAMA, WEIGHT, of_one_run, run_of, shown
from graph_dumps import call, tensor
from made_dumps import written
from written_pages import WrittenPage, page_in

import probe
from probe.api.cli import main
from probe.common.errors import FileCheckException
from probe.graph.output import stamped


def test_two_dumps_become_a_page_and_the_last_line_says_where_they_diverge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys, "-tp", WEIGHT, "-gp", LLAMA, "-o", tmp_path / "out")
    page = page_in(tmp_path / "out")
    assert lines[0] == IN_WORDS
    assert lines[-1] == f"{page.path}: 303 nodes, {IN_WORDS}"
    comparison = page.manifest["comparisons"][0]
    assert page.rows()[comparison["first"]] == (FIRST, FIRST)
    assert comparison["verdict"] == lines[: len(comparison["verdict"])]
    assert [page.rows()[row][0] for row in comparison["chain"]][:3] == [
        "Module.model.layers.1.mlp.up_proj.Linear.forward.0",
        "Module.model.layers.1.mlp.LlamaMLP.forward.0",
        "Module.model.layers.1.LlamaDecoderLayer.forward.0",
    ]
    assert stat.S_IMODE(os.stat(page.path).st_mode) == 0o640
    assert stat.S_IMODE(os.stat(tmp_path / "out").st_mode) == 0o750
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [page.path.name]


def test_the_page_and_compare_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "-tp", WEIGHT, "-gp", LLAMA, "-o", str(tmp_path / "tables"), "--html"]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown(capsys, "-tp", WEIGHT, "-gp", LLAMA, "-o", tmp_path / "out")
    page = page_in(tmp_path / "tables")
    assert page.path.read_bytes() == page_in(tmp_path / "out").path.read_bytes()
    assert lines[-1] == f"page: {page.path}"
    verdict = page.manifest["comparisons"][0]["verdict"]
    assert len(verdict) > 2 and lines[: len(verdict)] == verdict
    assert len(list((tmp_path / "tables").glob("compare_result_*.csv"))) == 1


def test_one_dump_is_shown_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "-tp", LLAMA, "-o", tmp_path)
    assert lines[0] == "no NaN and no infinity" and lines[-1].endswith(".html: 303 nodes")
    assert page_in(tmp_path).manifest["comparisons"][0]["golden"] is None


def test_every_rank_and_step_without_counterpart_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = run_of(tmp_path / "a", ["step0/rank0", "step0/rank1", "step0/rank3", "step1/rank0", "step1/rank1"])
    golden = run_of(tmp_path / "b", ["step0/rank0", "step0/rank1", "step0/rank2", "step2/rank0", "step2/rank1"])
    lines = shown(capsys, "-tp", target, "-gp", golden, "-o", tmp_path / "out")
    alone = [
        f"{target}/step0/rank3", f"{target}/step1/rank0", f"{target}/step1/rank1", f"{golden}/step0/rank2",
        f"{golden}/step2/rank0", f"{golden}/step2/rank1",
    ]  # fmt: skip
    page = page_in(tmp_path / "out")
    assert [line.split()[0] for line in page.manifest["unpaired"]] == alone
    assert all(sentence in lines for sentence in page.manifest["unpaired"])
    comparisons = page.manifest["comparisons"]
    assert [(each["step"], each["rank"]) for each in comparisons] == [(0, 0), (0, 1)]
    assert lines[-1] == f"{page.path}: 606 nodes"


def test_several_processes_give_the_same_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [f"step0/rank{rank}" for rank in range(2)]
    target, golden = run_of(tmp_path / "a", folders, of="llama_weight"), run_of(tmp_path / "b", folders)
    for jobs in ("1", "2"):
        shown(capsys, "-tp", target, "-gp", golden, "-o", tmp_path / jobs, "--jobs", jobs)
    one, two = page_in(tmp_path / "1"), page_in(tmp_path / "2")
    assert one.path.read_bytes() == two.path.read_bytes()
    assert len(one.manifest["comparisons"]) == 2
    # What two comparisons say the same is written once.
    assert len(one.names) == len(set(one.names)) and one.rows(1)[0] == one.rows(0)[0]
    assert one.details(1) == one.details(0)


@pytest.mark.parametrize("shifted", ["step0/rank1", "step1/rank0", "step1/rank1", ""])
def test_the_page_opens_in_the_comparison_that_the_terminal_names(
    shifted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [f"step{step}/rank{rank}" for step in (0, 1) for rank in (0, 1)]
    golden, target = run_of(tmp_path / "b", places), run_of(tmp_path / "a", [p for p in places if p != shifted])
    if shifted:
        run_of(target, [shifted], of="llama_nan")
    lines = shown(capsys, "-tp", target, "-gp", golden, "-o", tmp_path / "out")
    manifest = page_in(tmp_path / "out").manifest
    if not shifted:
        assert manifest["first"] is None and "first divergence" not in lines[0]
        return
    named = manifest["comparisons"][manifest["first"]]
    assert f"step{named['step']}/rank{named['rank']}" == shifted
    assert named["verdict"][0].startswith("first divergence: ")
    where = re.sub(r"(step|rank)(\d)/?", r"\1 \2, ", shifted).rstrip(", ")
    first = named["verdict"][0].replace(": ", f": {where}: ")
    assert lines[0] == first and lines[-1].endswith(first)


def test_several_runs_stand_beside_one_and_have_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = str(DUMPS / "llama_nan")
    shown(capsys, "-tp", WEIGHT, "-tp", other, "-gp", LLAMA, "-o", tmp_path / "targets")
    assert [each["run"] for each in page_in(tmp_path / "targets").manifest["comparisons"]] == [WEIGHT, other]
    shown(capsys, "-tp", LLAMA, "-gp", WEIGHT, "-gp", other, "-o", tmp_path / "goldens")
    assert [each["run"] for each in page_in(tmp_path / "goldens").manifest["comparisons"]] == [WEIGHT, other]


_OF_MINDSPORE = ["graph/step0/rank0", "pynative/step0/rank0"]


@pytest.mark.parametrize(
    ("of_target", "of_golden", "labels"),
    [
        (["step0/rank0", "step0/rank2", "step0/proc8", "step0/proc9"], None, ["", "", "proc8", "proc9"]),
        (_OF_MINDSPORE, _OF_MINDSPORE, ["graph", "pynative"]),
        (["step0/proc8"], ["step0/rank0", "step0/rank1"], ["rank0", "rank1"]),
        (["step0/rank0"], ["step0/rank0", "step0/rank1"], [""]),
        (["step0/proc8", "step1/proc8"], ["step0/proc9", "step1/proc9"], ["", ""]),
    ],
)  # fmt: skip
def test_every_comparison_of_a_page_can_be_told_from_the_others(
    of_target: list[str],
    of_golden: list[str] | None,
    labels: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = ["-tp", str(run_of(tmp_path / "a", of_target))]
    of_one_run(tmp_path / "a")
    if of_golden is not None:
        paths += ["-gp", str(run_of(tmp_path / "b", of_golden))]
    shown(capsys, *paths, "-o", tmp_path / "out", "--format", "html,db")
    comparisons = page_in(tmp_path / "out").manifest["comparisons"]
    assert [each["place"] for each in comparisons] == labels
    assert len({(each["step"], each["rank"], each["place"]) for each in comparisons}) == len(labels)
    nodes = 0
    for database in (tmp_path / "out").rglob("*.vis.db"):
        with sqlite3.connect(database) as connection:
            nodes += connection.execute("select count(distinct id) from tb_nodes").fetchone()[0]
        connection.close()
    assert nodes == sum(each[side]["nodes"] for each in comparisons for side in ("target", "golden") if each[side])
    if labels[0] == "graph":
        assert main(["compare", *paths, "-o", str(tmp_path / "tables"), "--html"]) == 0
        assert page_in(tmp_path / "tables").path.read_bytes() == page_in(tmp_path / "out").path.read_bytes()


def test_a_pair_that_cannot_be_read_is_named_and_the_others_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, golden = (run_of(tmp_path / side, ["step0/rank0", "step0/rank1"]) for side in "ab")
    broken = target / "step0" / "rank1" / "dump.json"
    broken.chmod(0o640)
    broken.write_text(broken.read_text(encoding="utf-8")[:60], encoding="utf-8")
    shown(capsys, "-tp", target, "-gp", golden, "-o", tmp_path / "out", "--json", status=2)
    manifest = page_in(tmp_path / "out").manifest
    assert [each["rank"] for each in manifest["comparisons"]] == [0]
    (sentence,) = manifest["unpaired"]
    assert str(broken) in sentence and "left out" in sentence


def test_json_says_what_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = json.loads("\n".join(shown(capsys, "-tp", WEIGHT, "-gp", LLAMA, "-o", tmp_path, "--json")))
    assert said["nodes"] == 303 and said["first_divergence"] == FIRST and said["unpaired"] == []
    assert said["files"] == [str(page_in(tmp_path).path)]
    assert said["verdict"][0] == IN_WORDS


def test_every_format_is_written_and_html_is_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "-tp", WEIGHT, "-gp", LLAMA, "-o", tmp_path, "--format", "html,db,json,model-explorer", "-oc")
    assert lines[-1].startswith(str(page_in(tmp_path).path))
    kinds = sorted(path.name.split(".", 1)[1] for path in tmp_path.iterdir())
    assert kinds == ["html", "json", "model_explorer.json", "model_explorer_status.json", "vis.db"]
    _check_json(tmp_path, page_in(tmp_path))
    _check_model_explorer(tmp_path)
    (database,) = tmp_path.glob("compare_*.vis.db")
    with sqlite3.connect(database) as connection:
        assert connection.execute("select count(*) from tb_nodes").fetchone() == (606,)
        assert connection.execute("select overflow_check from tb_config").fetchone() == (1,)
    connection.close()


def _check_json(folder: Path, page: WrittenPage) -> None:
    (path,) = (path for path in folder.glob("graph_*.json") if "explorer" not in path.name)
    found = json.loads(path.read_text(encoding="utf-8"))
    (comparison,) = found["comparisons"]
    assert comparison["first"] == FIRST and comparison["counts"]["diverged"] == 1
    assert [(row["target"], row["golden"]) for row in comparison["rows"]] == page.rows()
    row = next(row for row in comparison["rows"] if row["status"] == "diverged")
    assert row["target"] == FIRST and row["parent"] == "Module.model.layers.1.mlp.up_proj.Linear.forward.0"
    assert row["in_error"] > 0.1 and row["kind"] == "api" and row["reason"] == "exact"


def _check_model_explorer(folder: Path) -> None:
    (path,) = folder.glob("*.model_explorer.json")
    (collection,) = json.loads(path.read_text(encoding="utf-8"))
    (graph,) = collection["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert len(nodes) == len(graph["nodes"]) >= 290
    assert all(edge["sourceNodeId"] in nodes for node in graph["nodes"] for edge in node.get("incomingEdges", []))
    names = {attribute["value"]: node for node in graph["nodes"] for attribute in node["attrs"]}
    assert names[FIRST]["label"] == "linear"
    parents = [f"Module.model.layers.1.mlp.{each}.forward.0" for each in ("LlamaMLP", "up_proj.Linear")]
    assert names[FIRST]["namespace"].split("/")[-2:] == parents
    assert set(graph["groupNodeAttributes"]) <= {
        "/".join(node["namespace"].split("/")[:depth]) for node in graph["nodes"] for depth in range(1, 10)
    }
    (path,) = folder.glob("*.model_explorer_status.json")
    results = json.loads(path.read_text(encoding="utf-8"))[graph["id"]]["results"]
    assert results[names[FIRST]["id"]]["value"] == "diverged" and set(nodes) <= set(results)


@pytest.mark.parametrize("flags", [[], ["-oc"], ["-oc", "--rules", "msprobe"]])
def test_the_database_has_the_levels_of_the_page(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown(capsys, "-tp", DUMPS / "llama_nan", "-gp", LLAMA, "-o", tmp_path, "--format", "html,db", *flags)
    page = page_in(tmp_path)
    names = page.manifest["levels"]
    of_page: dict[str, dict[str, str | None]] = {"NPU": {}, "Bench": {}}
    for (name, golden), level, golden_level in zip(page.rows(), page.column("level"), page.column("golden_level")):
        of_page["NPU"][name] = names[level] if level >= 3 else None
        of_page["Bench"][golden] = names[golden_level] if golden_level >= 3 else None
    assert "critical" in of_page["NPU"].values() or "high" in of_page["NPU"].values()
    (database,) = tmp_path.glob("compare_*.vis.db")
    with sqlite3.connect(database) as connection:
        of_database: dict[str, dict[str, str | None]] = {"NPU": {}, "Bench": {}}
        for side, name, found in connection.execute("select data_source, node_name, overflow_level from tb_nodes"):
            of_database[side][name] = found
        assert connection.execute("select overflow_check from tb_config").fetchone() == (1,)
    connection.close()
    assert of_database == of_page


def test_what_is_written_in_the_same_second_replaces_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class _Stopped(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> _Stopped:
            return cls(2026, 1, 2, 3, 4, 59, 5)

    monkeypatch.setattr("probe.graph.output.datetime", _Stopped)
    assert main(["compare", "-tp", WEIGHT, "-gp", LLAMA, "-o", str(tmp_path), "--html"]) == 0
    shown(capsys, "-tp", WEIGHT, "-gp", LLAMA, "-o", tmp_path, "--format", "html,db,json")
    shown(capsys, "-tp", WEIGHT, "-tp", LLAMA, "-gp", LLAMA, "-o", tmp_path, "--format", "db")
    with stamped(str(tmp_path)) as one, stamped(str(tmp_path)) as other:
        assert other - one == timedelta(seconds=1)
    shown(capsys, "-tp", WEIGHT, "-gp", LLAMA, "-o", tmp_path, "--max_mb", "0")
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.suffix in (".html", ".db")}
    assert names == {
        "graph_20260102030459.html", "graph_20260102030500.html", "compare_20260102030500.vis.db",
        "run0/compare_20260102030501.vis.db", "run1/compare_20260102030501.vis.db", "graph_20260102030502/index.html",
    }  # fmt: skip
    assert not list(tmp_path.glob(".*"))


def test_the_rules_of_msprobe_name_the_first_node_that_they_colour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mean, paths = "Tensor.mean.4.forward", ("-tp", WEIGHT, "-gp", LLAMA, "-o", tmp_path, "--rules", "msprobe")
    assert shown(capsys, *paths)[-1].endswith(f"303 nodes, first warning by the rules of msprobe: {mean}")
    assert json.loads("\n".join(shown(capsys, *paths, "--json")))["first_divergence"] == mean
    assert probe.graph_diff(WEIGHT, LLAMA, rules="msprobe").first == (mean, mean)
    same = shown(capsys, "-tp", LLAMA, "-gp", LLAMA, "-o", tmp_path, "--rules", "msprobe", "--json")
    assert json.loads("\n".join(same))["first_divergence"] is None
    assert probe.graph_diff(LLAMA, LLAMA, rules="msprobe").first is None


def test_a_pair_for_a_step_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    relu, gelu = "Functional.relu.0.forward", "Functional.gelu.0.forward"
    for side, name in (("a", relu), ("b", gelu)):
        written(tmp_path / side / "step1" / "rank0", {name: call(tensor())}, {name: None})
    pairs = tmp_path / "pairs.json"
    entries = [{"target": relu, "golden": gelu, "step": step, "rank": 0} for step in (1, 2)]
    pairs.write_text(json.dumps(entries), encoding="utf-8")
    arguments = ("-tp", tmp_path / "a", "-gp", tmp_path / "b", "-o", tmp_path / "out", "--pairs", pairs)
    assert main(["graph_visualize", *map(str, arguments)]) == 0
    said = capsys.readouterr()
    assert f"{pairs}: entry 1 is for step 2, rank 0, and no such dump is shown" in said.err + said.out
    assert "entry 0" not in said.err + said.out


def test_a_page_that_is_too_large_becomes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "-tp", LLAMA, "-o", tmp_path, "--max_mb", "0.001")
    (index,) = tmp_path.glob("graph_*/index.html")
    assert lines[-1] == f"{index}: 303 nodes"
    assert stat.S_IMODE(os.stat(index.parent).st_mode) == 0o750
    assert len(WrittenPage(index).rows()) == 303


def test_the_older_form_is_answered_with_the_new_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = {"npu_path": "./npu/step0", "bench_path": "./bench/step0", "is_print_compare_log": True}
    given = tmp_path / "compare.json"
    given.write_text(json.dumps(paths), encoding="utf-8")
    assert main(["-f", "pytorch", "graph", "-i", str(given), "-o", "out"]) == 2
    assert "msprobe graph_visualize ./npu/step0 ./bench/step0 -o OUTPUT" in capsys.readouterr().err
    assert main(["-f", "pytorch", "compare", "-i", str(given), "-s"]) == 2
    assert "msprobe compare ./npu/step0 ./bench/step0 -o OUTPUT" in capsys.readouterr().err


# --- from Python


def test_a_graph_from_python(tmp_path: Path) -> None:
    graph = probe.open_graph(LLAMA)
    assert len(graph) == 303 and graph.names[-1] == "DefaultModel"
    assert probe.open_graph(run_of(tmp_path / "one", ["step0/rank0"]) / "step0").names == graph.names
    with pytest.raises(FileCheckException, match=r"holds 2 dumps; give the folder of one, such as .*step0/rank0"):
        probe.open_graph(run_of(tmp_path / "two", ["step0/rank0", "step0/rank1"]))


def test_modules_a_thousand_deep_are_shown_and_formats_that_repeat_all_names_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"Module{'.n' * depth}.C.forward.0" for depth in range(1000, 0, -1)]
    tree = dict(zip(names, [*names[1:], None]))
    path = str(written(tmp_path / "a", {name: call(tensor()) for name in names}, tree).path)
    both = ("-tp", path, "-gp", path, "-o", str(tmp_path / "out"))
    assert shown(capsys, *both, "--format", "html,json")[-1].endswith("1001 nodes")
    for form in ("db", "model-explorer"):
        assert main(["graph_visualize", *both, "--format", form]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "names with each node all nodes around it: 0.3 GB" in error
