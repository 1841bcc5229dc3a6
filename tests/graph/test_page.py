"""The page of a graph: its order, its numbers, source code and paths, hostile names, a folder, a notebook's cell."""

from __future__ import annotations

import html
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import divergence_runs
import pytest
from graph_commands import DUMPS, FIRST, LLAMA, WEIGHT, Beside, of_one_run, shown
from graph_dumps import call, tensor
from hypothesis import given
from hypothesis import strategies as st
from made_dumps import plain, write
from written_pages import WrittenPage, page_in

import probe
from probe.common.errors import MsprobeException
from probe.graph.page.tensors import numbers

RELU, TANH = "Functional.relu.0.forward", "Functional.tanh.0.forward"
LIBRARY = "File /opt/env/lib/python3.11/site-packages/torch/nn/functional.py, line 4, in linear, \n y"


def everything(page: WrittenPage) -> str:
    return json.dumps([page.manifest, *(page.block(name) for name in page.packed if name not in ("style", "viewer"))])


def test_a_page_in_a_folder_has_the_same_blocks(tmp_path: Path) -> None:
    view = probe.graph_diff(WEIGHT, LLAMA)
    whole = WrittenPage(Path(view.to_html(tmp_path / "whole.html")))
    parts = WrittenPage(Path(view.to_html(tmp_path / "parts.html", max_megabytes=0)))
    assert parts.path == tmp_path / "parts" / "index.html" and parts.packed == whole.packed
    assert len(parts.text) < len(whole.text)
    assert sorted(path.name for path in parts.path.parent.iterdir()) == ["block0.js", "index.html"]
    alike = [{k: v for k, v in each.manifest.items() if k not in ("files", "blocks")} for each in (parts, whole)]
    assert alike[0] == alike[1] and parts.manifest["files"] == 1


def test_a_golden_node_stands_where_it_would_be(tmp_path: Path) -> None:
    layer, other = "Module.net.Net.forward.0", "Module.net.a.A.forward.0"
    names = [f"Functional.{name}.0.forward" for name in ("relu", "tanh", "gelu", "silu")]
    tree = {layer: None, other: layer, names[0]: other, names[1]: other, names[2]: layer, names[3]: layer}
    entry = call(tensor(), output=tensor())
    everything = [names[0], names[1], other, names[2], names[3], layer]
    golden = write(tmp_path / "golden", dict.fromkeys(everything, entry), tree)
    kept = [name for name in everything if name not in (names[0], names[2])]
    target = write(tmp_path / "target", dict.fromkeys(kept, entry), {name: tree[name] for name in tree if name in kept})
    found = Beside(tmp_path, target, golden)
    assert [name for _, name in found.rows] == [*everything, "DefaultModel"]
    assert [name for name, _ in found.rows] == [None, names[1], other, None, names[3], layer, "DefaultModel"]


@pytest.mark.parametrize(
    "name",
    ["</script><script>alert(1)</script>", "\"'&<!--", "x" * 10_000, "\u202eevil", "nul\0nul", "{{blocks}}", "\u2028"],
)
def test_a_hostile_name_or_path_comes_back_as_it_was_and_ends_no_element(name: str, tmp_path: Path) -> None:
    record = f"Functional.{name}.0.forward"
    stack = {"0": [[record], [f"File {name}, line 1, in {name}, \n {name}"]]}
    folder = tmp_path / "<script>alert(1)<" / "{{blocks}}"
    write(folder, {record: call(tensor(), output=tensor())}, {record: None}, stack)
    page = Beside(tmp_path, folder).page
    assert page.rows()[0] == (record, None) and page.stack(0) == stack["0"][1]
    assert page.manifest["comparisons"][0]["target"]["path"] == str(folder / "dump.json")
    # Nothing but our own elements.
    assert page.text.count("<script") == page.text.count("</script>") and "<script>alert(1)" not in page.text
    assert name not in page.text or name == "{{blocks}}"


# --- paths and code


def _run(folder: Path, secret: Path, norm: float, kind: str, names: list[str], rank: int) -> Path:
    """A run whose stacks, arguments and folder hold the path `secret`; one rank is in no other run."""
    own = f"File {secret}/train/model.py, line 3, in forward, \n hidden = linear(hidden)"
    frames = [LIBRARY, own, f"File {secret}/main.py, line 5, in main, \n z"]
    argument = {"type": "str", "value": f"{secret}/{kind}.bin"}
    records = dict.fromkeys(names, call(tensor(), argument, output=tensor(norm)))
    for each in (0, rank):
        write(folder / "step0" / f"rank{each}", records, None, {"0": [names, frames]})
    return folder


@pytest.mark.parametrize("kind", ["", "auto", "all", "prefix"])
def test_with_strip_paths_nothing_that_is_written_holds_the_path(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "someone's home"
    target = _run(secret / "target", secret, 9.0, "mine", [RELU, TANH], 1)
    golden = _run(secret / "golden", secret, 1.0, "other", [RELU], 2)
    out = tmp_path / "out"
    wanted = {"": [], "prefix": ["--strip_paths", secret]}.get(kind, ["--strip_paths", kind])
    formats = ("--format", "html,db,json,model-explorer")
    lines = shown(capsys, "-tp", target, "-gp", golden, "-o", out, *formats, *wanted)
    texts = []
    for path in out.iterdir():
        if path.suffix == ".html":
            page = WrittenPage(path)
            texts.append(everything(page))
        elif path.suffix == ".db":
            texts += _rows(path)
        else:
            texts.append(path.read_text(encoding="utf-8"))
    assert len(texts) >= 5
    text = "\n".join([*texts, *lines]).replace(f"{out}/", "").replace("\\/", "/").replace("\\u0027", "'")
    assert ("someone's home" in text) == (str(tmp_path) in text) == (not kind)
    # What is shown still tells the runs from each other; source lines are those of stacks.
    assert "target/step0/rank0" in text and "golden/step0/rank0" in text
    assert ("hidden = linear" in text) == (kind != "all")


def _rows(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    tables: list[Any] = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    found = [str(row) for (table,) in tables for row in connection.execute(f"SELECT * FROM {table}")]
    connection.close()
    return found


def test_of_paths_a_prefix_or_the_common_folders_are_cut(tmp_path: Path) -> None:
    frames = ["File /srv/team/secret/train/model.py, line 3, in forward, \n x", LIBRARY,
              "File /srv/team/secret/main.py, line 5, in main, \n z"]  # fmt: skip
    dump = write(tmp_path / "dump", {RELU: call(tensor())}, {RELU: None}, {"0": [[RELU], frames]})

    def stack(*prefixes: str) -> list[str]:
        return [line.split(",")[0] for line in Beside(tmp_path, dump, strip_paths=prefixes).page.stack(0)]

    assert stack() == [frame.split(",")[0] for frame in frames]
    assert stack("auto") == ["File train/model.py", "File torch/nn/functional.py", "File main.py"]
    assert stack("/srv/team") == ["File secret/train/model.py", LIBRARY.split(",")[0], "File secret/main.py"]
    assert stack("all") == []
    # Runs of one name stay apart.
    runs = [_run(tmp_path / place / "run", tmp_path, 1.0, "mine", [RELU], 0) for place in ("one", "two", "golden")]
    found = Beside(tmp_path, runs[:2], runs[2], strip_paths=("auto",))
    assert {each["run"] for each in found.manifest["comparisons"]} == {"run", "run (2)"}


def test_code_is_shown_of_a_file_that_still_has_the_line_there_and_of_no_other(tmp_path: Path) -> None:
    """The roots are what stands before the files that both checkouts have; one odd file changes nothing."""
    sides = []
    for side, norm in (("a/x", 1.5), ("b", 1.0)):
        repo = tmp_path / side / "repo"
        (repo / "net").mkdir(parents=True)
        for file, first in (("net/model.py", 1), ("moved.py", 101)):
            (repo / file).write_text("\n".join(f"{side}({number})" for number in range(first, first + 10)))
        frames = [
            LIBRARY,
            f"File {repo}/net/model.py, line 5, in forward, \n {side}(5)",
            f"File {repo}/moved.py, line 6, in forward, \n {side}(105)",
            f"File {tmp_path}/{side[0]}.py, line 1, in gone, \n gone()",
        ]
        records = {RELU: call(tensor(), output=tensor(norm))}
        sides.append(write(tmp_path / f"dump_{side[0]}", records, {RELU: None}, {"0": [[RELU], frames]}))
    found = Beside(tmp_path / "page", *sides)
    assert found.info["roots"] == [f"{tmp_path}/a/x/", f"{tmp_path}/b/"]
    text = everything(found.page)
    for side in ("a/x", "b"):
        assert all(f"{side}({number})" in text for number in range(2, 9)) and f"{side}(9)" not in text
        assert f"{side}(104)" not in text


# --- numbers


def test_of_float64_and_of_large_integers_every_digit_is_there(tmp_path: Path) -> None:
    for side, by in (("a", 0), ("b", 1)):
        double = {**tensor(dtype="torch.float64"), "Mean": 0.1 if by else 0.10000000149011612}
        whole = {**tensor(dtype="torch.int64"), "Max": 2**53 + by, "Min": 4294967296.0 + by}
        write(tmp_path / side, {"Torch.add.0.forward": call(double, output=whole)}, None)
    found = Beside(tmp_path, tmp_path / "a", tmp_path / "b")
    values = {item[0]: item[1:3] for detail in found.details for item in detail.get("i", ())}
    assert [side["mean"] for side in values["input.0"]] == [0.10000000149011612, 0.1]
    assert [side["min"] for side in values["output.0"]] == [4294967296, 4294967297]
    assert [side["max"] for side in values["output.0"]] == [str(2**53), str(2**53 + 1)]


@given(st.floats() | st.floats(width=32) | st.integers(-(2**80), 2**80))
def test_a_number_of_the_page_is_the_number_of_the_dump(number: float) -> None:
    """A float32 in nine digits, which are enough; an integer above the page's 53 bits as a text."""
    import numpy as np

    (found,) = numbers([number]).as_json()
    if isinstance(number, int):
        assert found == (str(number) if abs(number) >= 2**53 else number)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = np.float32(number)
    if number != number or number in (float("inf"), float("-inf")):
        assert found == str(number)
    elif float(narrow) == number:
        assert np.float32(found) == narrow and np.signbit(np.float32(found)) == np.signbit(narrow)
        digits = repr(float(found)).lstrip("-").split("e")[0].replace(".", "").strip("0")
        assert len(digits) <= 9 or float(found) == int(found)
    else:
        assert found == number


def test_a_type_that_another_framework_spells_otherwise_is_the_same(tmp_path: Path) -> None:
    for side, dtype, framework in (("a", "Float32", "mindspore"), ("b", "torch.float32", "pytorch")):
        record = call(tensor(dtype=dtype), output=tensor(dtype=dtype))
        write(tmp_path / side, {RELU: record}, {RELU: None}, framework=framework)
    found = Beside(tmp_path, tmp_path / "a", tmp_path / "b")
    keys = [status["key"] for status in found.manifest["statuses"]]
    assert {keys[item[5]] for detail in found.details for item in detail["i"]} == {"same"}


def test_arguments_have_the_names_of_the_signature(tmp_path: Path) -> None:
    found = Beside(tmp_path, LLAMA).manifest["arguments"]
    # As the documentation of PyTorch has them.
    assert found["Functional.linear"][:3] == ["input", "weight", "bias"]
    assert found["Functional.embedding"][:2] == ["input", "weight"]
    assert "Module.model.norm.LlamaRMSNorm" not in found


def test_a_value_that_is_not_finite_is_a_text_and_is_jumped_to(tmp_path: Path) -> None:
    found = Beside(tmp_path, DUMPS / "llama_nan", LLAMA)
    row = found.info["nonfinite"]
    items = found.details[row]["i"]
    assert any(mine is not None and mine["max"] in ("nan", "inf") for _, mine, *_ in items)
    assert found.manifest["levels"][found.page.column("level")[row]] in ("medium", "high", "critical")


def test_a_nan_that_a_dump_writes_as_text_is_found(tmp_path: Path) -> None:
    record = call(tensor(), output={**tensor(), "Max": "nan", "Min": "nan"})
    write(tmp_path / "run", {RELU: record}, {RELU: None})
    found = Beside(tmp_path, tmp_path / "run")
    assert found.info["nonfinite"] == 0 and found.info["verdict"] == [f"first NaN or infinity: {RELU}"]


@pytest.mark.parametrize("has_sketches", [True, False])
def test_a_page_has_measured_distances_and_who_feeds_whom(tmp_path: Path, has_sketches: bool) -> None:
    for side, constant, beta in (("target", 1.5, 2), ("golden", 1.0, 1)):
        records = divergence_runs.chain(at=3, constant=constant)
        records["Torch.tanh.5.forward"]["input_kwargs"] = {"beta": plain(beta)}
        divergence_runs.write(tmp_path / side, records, has_sketches=has_sketches)
    found = Beside(tmp_path, tmp_path / "target", tmp_path / "golden")
    rows = [target for target, _ in found.rows]

    assert found.info["measured"] is has_sketches
    assert [rows[row] for row in found.page.column("arguments")] == ["Torch.tanh.5.forward"]
    assert ("c0f" in found.page.packed) is has_sketches
    if not has_sketches:
        return
    faulty = rows.index("Functional.linear.3.forward")
    makers = found.page.block("c0f")[faulty]
    # The activation before it made its input; the weight is data of the first product, and what it returns is its own.
    assert rows[faulty - makers[0]] == "Torch.tanh.2.forward"
    assert found.page.names[-1 - makers[1]] == "data:Functional.linear.0.forward.input.1" and makers[2] == 0
    given, _, returned = found.details[faulty]["i"]
    assert given[3] == 0 and 0 <= returned[7] < returned[3]


def test_a_damaged_file_of_sketches_costs_one_run_its_makers_alone(tmp_path: Path) -> None:
    folder = divergence_runs.write(tmp_path / "run", divergence_runs.chain())
    (folder / "sketch.npz").write_bytes(b"no archive")
    found = Beside(tmp_path / "page", folder).page

    assert "c0f" not in found.packed
    assert [note for note in found.manifest["comparisons"][0]["notes"] if "sketch.npz is damaged" in note]


# --- from Python


def test_two_graphs_from_python(tmp_path: Path) -> None:
    view = probe.graph_diff(WEIGHT, LLAMA)
    assert view.first == (FIRST, FIRST) and view.divergence is not None and view.divergence.record == FIRST
    assert "303 nodes" in repr(view) and FIRST in repr(view)
    with pytest.raises(MsprobeException, match=r"a\.txt.*\.html"):
        view.to_html(tmp_path / "a.txt")


def test_a_notebook_shows_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    view = probe.graph_diff(WEIGHT, LLAMA)
    cell = view._repr_html_()
    (page,) = re.findall(r'srcdoc="([^"]*)"', cell)
    assert 'id="manifest"' in html.unescape(page) and "allow-same-origin" not in cell
    monkeypatch.setattr("probe.graph.in_python._SHOWN_MEGABYTES", 0.001)
    cell = view._repr_html_()
    assert "<iframe" not in cell and FIRST in cell and "to_html" in cell


def test_processes_without_a_rank_have_the_names_of_their_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("step0/proc7", "step0/proc12", "step1/rank0"):
        write(tmp_path / "a" / place, {RELU: call(tensor())}, None)
    of_one_run(tmp_path / "a")
    shown(capsys, "-tp", tmp_path / "a", "-o", tmp_path / "out")
    places = [(one["step"], one["rank"], one["place"]) for one in page_in(tmp_path / "out").manifest["comparisons"]]
    assert places == [(0, None, "proc7"), (0, None, "proc12"), (1, 0, "")]
