"""The data of the page say what the comparison says: every node once, in order, with its values."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_dumps import CASES, call, tensor
from hypothesis import given
from hypothesis import strategies as st
from made_dumps import written
from written_pages import WrittenPage, page_in

from probe.api.cli import main
from probe.common.dump.reading.items import Item, shape_text
from probe.graph.diff import GraphDiff
from probe.graph.graph import Graph
from probe.graph.in_python import graph_diff
from probe.graph.page.numbers import numbers, rounded, shortest, significant
from probe.graph.page.order import merged_order, parent_offsets
from probe.graph.status import ONE_SIDE

DUMPS = CASES / "dumps"
COMPARE = Path(__file__).parents[1] / "compare"
PAIRS: dict[str, tuple[Path, Path | None]] = {
    "weight": (DUMPS / "llama_weight", DUMPS / "llama"),
    "nan": (DUMPS / "llama_nan", DUMPS / "llama"),
    "bf16": (DUMPS / "bert_bf16", DUMPS / "bert"),
    "three layers": (DUMPS / "llama_three_layers", DUMPS / "llama"),
    "two layers of three": (DUMPS / "llama", DUMPS / "llama_three_layers"),
    "one graph": (DUMPS / "bert", None),
    "checksums": (COMPARE / "cases" / "md5" / "target", COMPARE / "cases" / "md5" / "golden"),
    "missing": tuple(COMPARE / "cases" / "missing_apis_stat" / side for side in ("target", "golden")),  # type: ignore[dict-item]
    "frameworks": tuple(COMPARE / "cases" / "cross_ms_pt" / side for side in ("target", "golden")),  # type: ignore[dict-item]
}
EVERY_PAIR = pytest.mark.parametrize("pair", PAIRS)


def page_of(pair: str, folder: Path) -> tuple[GraphDiff, WrittenPage]:
    view = graph_diff(*PAIRS[pair])
    (diff,) = view.diffs
    return diff, WrittenPage(Path(view.to_html(folder / "page.html")))


@EVERY_PAIR
def test_every_node_of_both_sides_is_in_one_row_beside_its_partner(pair: str, tmp_path: Path) -> None:
    diff, page = page_of(pair, tmp_path)
    rows = page.rows()
    assert [target for target, _ in rows if target is not None] == diff.target.names
    golden = diff.golden
    if golden is None:
        assert page.column("golden") == 0
        return
    assert Counter(name for _, name in rows if name is not None) == Counter(golden.names)
    partners = {diff.target.names[node]: golden.names[other] for node, other in enumerate(diff.pairs) if other >= 0}
    assert {target: name for target, name in rows if target and name} == partners
    assert rows[-1] == (diff.target.names[-1], golden.names[-1])


@EVERY_PAIR
def test_a_row_stands_behind_everything_inside_of_it(pair: str, tmp_path: Path) -> None:
    diff, page = page_of(pair, tmp_path)
    rows, offsets = page.rows(), page.column("parent")
    parents = [row + offset for row, offset in enumerate(offsets)]
    assert offsets[-1] == 0 and all(offset > 0 for offset in offsets[:-1])
    _assert_is_post_order(parents)
    row_of = {target: row for row, (target, _) in enumerate(rows) if target}
    row_of_golden = {golden: row for row, (_, golden) in enumerate(rows) if golden}
    for row, (target, golden) in enumerate(rows[:-1]):
        if target is not None:
            assert parents[row] == row_of[diff.target.names[diff.target.parents[diff.target.index[target]]]]
        else:
            assert diff.golden is not None and golden is not None
            assert parents[row] == row_of_golden[diff.golden.names[diff.golden.parents[diff.golden.index[golden]]]]


def _assert_is_post_order(parents: list[int]) -> None:
    """What is inside of a row stands directly before it, without a gap."""
    first = list(range(len(parents)))
    for row, parent in enumerate(parents[:-1]):
        first[parent] = min(first[parent], first[row])
    for row, parent in enumerate(parents[:-1]):
        assert first[parent] <= row < parent
        # The rows of two subtrees never mix.
        assert all(first[row] <= parents[inside] <= row for inside in range(first[row], row))


@EVERY_PAIR
def test_every_item_has_the_values_of_the_dump(pair: str, tmp_path: Path) -> None:
    diff, page = page_of(pair, tmp_path)
    for (target, golden), detail in zip(page.rows(), page.details()):
        if target is not None:
            rows = diff.items.get(diff.target.index[target], [])
        else:
            assert diff.golden is not None and golden is not None
            rows = diff.golden_items.get(diff.golden.index[golden], [])
        assert len(rows) == len(detail["i"])
        for row, (name, mine, theirs, difference, *_) in zip(rows, detail["i"]):
            item = row.target or row.golden
            assert item is not None and item.name.endswith(name)
            _assert_says(row.target, mine)
            _assert_says(row.golden, theirs)
            if row.relative_difference is None or math.isnan(row.relative_difference):
                assert difference is None
            elif math.isinf(row.relative_difference):
                assert difference == "inf"
            else:
                assert difference == pytest.approx(row.relative_difference, rel=5.01e-3)


def _assert_says(item: Item | None, found: dict[str, Any] | None) -> None:
    assert (item is None) == (found is None)
    if item is None or found is None:
        return
    assert found["dtype"] == (item.dtype or "")
    assert found["shape"] == ("" if item.shape is None else shape_text(item.shape))
    assert found["grad"] == {None: -1, False: 0, True: 1}[item.requires_grad]
    assert found.get("sum") == item.md5
    if item.value is not None:
        assert found["value"] == (item.value if isinstance(item.value, str) else repr(item.value))
        return
    assert found["value"] is None
    for key, value in (("max", item.max), ("min", item.min), ("mean", item.mean), ("norm", item.norm)):
        shown = found[key]
        if type(value) is not float:
            assert shown == (str(value) if isinstance(value, int) and abs(value) >= 2**53 else value)
        elif "float32" not in (item.dtype or "").lower() and "64" in (item.dtype or ""):
            assert shown == (value if math.isfinite(value) else str(value))
        elif math.isfinite(value):
            same = np.float32(shown) == np.float32(value) if np.float32(value) == value else shown == value
            assert same, (key, shown, value)
        else:
            assert shown == str(value)


@EVERY_PAIR
def test_statuses_errors_and_reasons_are_those_of_the_comparison(pair: str, tmp_path: Path) -> None:
    diff, page = page_of(pair, tmp_path)
    manifest = page.manifest["comparisons"][0]
    statuses, before, after = page.column("status"), page.column("in"), page.column("out")
    details = page.details()
    for row, (target, golden) in enumerate(page.rows()):
        if target is None:
            assert diff.golden is not None and golden is not None
            assert statuses[row] == diff.golden_statuses[diff.golden.index[golden]]
            assert before[row] is None and after[row] is None
            continue
        node = diff.target.index[target]
        assert statuses[row] == diff.statuses[node]
        assert page.column("reason")[row] == diff.reasons[node] if row % 50 == 0 else True
        for shown, value in ((before[row], diff.in_errors[node]), (after[row], diff.out_errors[node])):
            assert shown is None if math.isnan(value) else float(shown) == pytest.approx(value, rel=5.01e-3)
        assert details[row].get("why") == diff.why.get(node)
        assert details[row].get("cause") == diff.cause.get(node)
    assert manifest["counts"] == [statuses.count(status) for status in range(len(page.manifest["statuses"]))]
    assert manifest["worst"] == max(statuses)
    if diff.first is not None:
        assert diff.golden is not None
        names = tuple(
            graph.names[node] if node >= 0 else None for graph, node in zip((diff.target, diff.golden), diff.first)
        )
        shown = page.rows()[manifest["first"]]
        assert all(name is None or name == there for name, there in zip(names, shown))
    else:
        assert manifest["first"] is None


@EVERY_PAIR
def test_stacks_are_those_of_the_dumps(pair: str, tmp_path: Path) -> None:
    diff, page = page_of(pair, tmp_path)
    rows = page.rows()
    for row in range(0, len(rows), 17):
        target, golden = rows[row]
        if target is not None:
            assert page.stack(row) == (diff.stacks or {}).get(target, [])
        if golden is not None:
            assert page.stack(row, of_golden=True) == (diff.golden_stacks or {}).get(golden, [])


@EVERY_PAIR
def test_the_same_comparison_gives_the_same_bytes(pair: str, tmp_path: Path) -> None:
    first = graph_diff(*PAIRS[pair]).to_html(tmp_path / "first.html")
    second = graph_diff(*PAIRS[pair]).to_html(tmp_path / "second.html")
    assert Path(first).read_bytes() == Path(second).read_bytes()


def test_a_tensor_is_written_once_and_texts_too(tmp_path: Path) -> None:
    _, page = page_of("weight", tmp_path)
    tensors = [tuple(sorted((key, str(value)) for key, value in each.items())) for each in page.tensors()]
    assert len(tensors) == len(set(tensors))
    for table in ("names", "frames", "stacks"):
        entries = [str(entry) for entry in page.block(table)]
        assert len(entries) == len(set(entries))


def test_a_page_in_a_folder_has_the_same_blocks(tmp_path: Path) -> None:
    view = graph_diff(*PAIRS["weight"])
    whole = WrittenPage(Path(view.to_html(tmp_path / "whole.html")))
    parts = WrittenPage(Path(view.to_html(tmp_path / "parts.html", max_megabytes=0)))
    assert parts.path == tmp_path / "parts" / "index.html"
    assert parts.packed == whole.packed
    assert len(parts.text) < len(whole.text)
    assert sorted(path.name for path in parts.path.parent.iterdir()) == ["block0.js", "index.html"]
    assert parts.manifest["files"] == 1
    assert {key: value for key, value in parts.manifest.items() if key not in ("files", "blocks")} == {
        key: value for key, value in whole.manifest.items() if key not in ("files", "blocks")
    }


def test_a_golden_node_stands_where_it_would_be(tmp_path: Path) -> None:
    layer, other = "Module.net.Net.forward.0", "Module.net.a.A.forward.0"
    names = [f"Functional.{name}.0.forward" for name in ("relu", "tanh", "gelu", "silu")]
    tree = {layer: None, other: layer, names[0]: other, names[1]: other, names[2]: layer, names[3]: layer}
    entry = call(tensor(), output=tensor())
    everything = [names[0], names[1], other, names[2], names[3], layer]
    golden = written(tmp_path / "golden", dict.fromkeys(everything, entry), tree)
    without = [name for name in everything if name not in (names[0], names[2])]
    target = written(
        tmp_path / "target",
        dict.fromkeys(without, entry),
        {name: parent for name, parent in tree.items() if name in without},
    )
    view = graph_diff(tmp_path / "target", tmp_path / "golden")
    page = WrittenPage(Path(view.to_html(tmp_path / "page.html")))
    assert len(target) == 4 and len(golden) == 6
    assert [name for _, name in page.rows()] == [*everything, "DefaultModel"]
    assert [name for name, _ in page.rows()] == [None, names[1], other, None, names[3], layer, "DefaultModel"]


def test_a_value_that_is_not_finite_is_a_text_and_is_jumped_to(tmp_path: Path) -> None:
    _, page = page_of("nan", tmp_path)
    row = page.manifest["comparisons"][0]["nonfinite"]
    items = page.details()[row]["i"]
    assert any(mine is not None and mine["max"] in ("nan", "inf") for _, mine, *_ in items)
    assert page.manifest["levels"][page.column("level")[row]] in ("medium", "high", "critical")


@EVERY_PAIR
def test_a_row_names_the_dtypes_and_shapes_of_its_items(pair: str, tmp_path: Path) -> None:
    _, page = page_of(pair, tmp_path)
    types = page.column("types")
    for detail, place in zip(page.details(), page.column("tensors")):
        tensors = [tensor for _, *both, _, _, _, _ in detail["i"] for tensor in both if tensor is not None]
        said = {(page.names[dtype], page.names[shape]) for dtype, shape in types[place]}
        assert said == {(tensor["dtype"], tensor["shape"]) for tensor in tensors}
    assert len({str(each) for each in types}) == len(types) > 1


@pytest.mark.parametrize(
    "name",
    ["</script><script>alert(1)</script>", "\"'&<!--", "x" * 10_000, "\u202eevil", "nul\0nul", "{{blocks}}", "\u2028"],
)
def test_a_hostile_name_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    record = f"Functional.{name}.0.forward"
    stack = {"0": [[record], [f"File {name}, line 1, in {name}, \n {name}"]]}
    written(tmp_path / "dump", {record: call(tensor(), output=tensor())}, {record: None}, stack)
    page = WrittenPage(Path(graph_diff(tmp_path / "dump").to_html(tmp_path / "page.html")))
    assert page.rows()[0] == (record, None)
    assert page.stack(0) == stack["0"][1]
    assert page.manifest["comparisons"][0]["target"]["path"].endswith("dump.json")
    # Nothing but our own elements.
    assert page.text.count("<script") == page.text.count("</script>")
    assert name not in page.text or name == "{{blocks}}"


def test_a_hostile_path_ends_no_element(tmp_path: Path) -> None:
    folder = tmp_path / "<script>alert(1)<" / "{{blocks}}"
    written(folder, {"Functional.relu.0.forward": call(tensor())}, {"Functional.relu.0.forward": None})
    page = WrittenPage(Path(graph_diff(folder).to_html(tmp_path / "page.html")))
    assert page.manifest["comparisons"][0]["target"]["path"] == str(folder / "dump.json")
    assert "<script>alert(1)" not in page.text


def test_paths_are_cut_where_that_is_wanted(tmp_path: Path) -> None:
    names = ["Functional.relu.0.forward", "Functional.tanh.0.forward"]
    frames = [
        "File /srv/team/secret/train/model.py, line 3, in forward, \n x",
        "File /opt/env/lib/python3.11/site-packages/torch/nn/functional.py, line 4, in relu, \n y",
        "File /srv/team/secret/main.py, line 5, in main, \n z",
    ]
    records = dict.fromkeys(names, call(tensor()))
    written(tmp_path / "dump", records, dict.fromkeys(names), {"0": [names, frames]})

    def stack(*prefixes: str) -> list[str]:
        view = graph_diff(tmp_path / "dump", strip_paths=prefixes)
        page = WrittenPage(Path(view.to_html(tmp_path / "page.html")))
        return [line.split(",")[0] for line in page.stack(0)]

    assert stack() == [frame.split(",")[0] for frame in frames]
    assert stack("auto") == ["File train/model.py", "File torch/nn/functional.py", "File main.py"]
    assert stack("/srv/team") == ["File secret/train/model.py", frames[1].split(",")[0], "File secret/main.py"]
    assert stack("all") == []


# --- order


def _random_tree(generator: random.Random, size: int) -> Graph:
    """A graph of `size` nodes at most, whose names say nothing."""
    from array import array

    parents: list[int] = [-1]
    for _ in range(generator.randrange(size)):
        parents.append(generator.randrange(len(parents)))
    order: list[int] = []
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(node)

    def visit(node: int) -> None:
        for child in children[node]:
            visit(child)
        order.append(node)

    visit(0)
    place = {node: index for index, node in enumerate(order)}
    above = array("i", [place[parents[node]] if parents[node] >= 0 else -1 for node in order])
    firsts, depths = array("i", range(len(order))), array("i", [0] * len(order))
    for node, parent in enumerate(above):
        if parent >= 0:
            firsts[parent] = min(firsts[parent], firsts[node])
    for node in range(len(order) - 2, -1, -1):
        depths[node] = depths[above[node]] + 1
    names = [str(node) for node in range(len(order))]
    size = len(order)
    return Graph("", names, above, firsts, depths, bytearray(size), bytearray(size), array("i", [0] * size))


@given(st.integers(0, 2**32), st.integers(1, 30))
def test_any_two_trees_become_one_in_which_every_node_is_once(seed: int, size: int) -> None:
    generator = random.Random(seed)
    target, golden = _random_tree(generator, size), _random_tree(generator, size)
    pairs = [-1] * len(target)
    others = list(range(len(golden) - 1))
    generator.shuffle(others)
    for node in range(len(target) - 1):
        if others and generator.random() < 0.6:
            pairs[node] = others.pop()
    pairs[-1] = len(golden) - 1
    targets, goldens = merged_order(target, golden, pairs)
    assert [node for node in targets.tolist() if node >= 0] == list(range(len(target)))
    assert sorted(node for node in goldens.tolist() if node >= 0) == list(range(len(golden)))
    assert all(pairs[node] == other for node, other in zip(targets.tolist(), goldens.tolist()) if node >= 0)
    parents = np.arange(len(targets)) + parent_offsets(target, golden, targets, goldens)
    _assert_is_post_order(parents.tolist())


# --- numbers


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float32_stays_the_same_float32_in_nine_digits(number: float) -> None:
    (shown,) = numbers([number]).as_json()
    assert np.float32(shown) == np.float32(number) and math.copysign(1, shown) == math.copysign(1, number)
    assert len(f"{shown:.17g}".replace(".", "")) < 40
    digits = repr(float(shown)).lstrip("-").split("e")[0].replace(".", "").strip("0")
    assert len(digits) <= 9 or float(shown) == int(shown)


def test_of_float64_and_of_large_integers_every_digit_is_there(tmp_path: Path) -> None:
    for side, by in (("a", 0), ("b", 1)):
        double = {**tensor(dtype="torch.float64"), "Mean": 0.1 if by else 0.10000000149011612}
        whole = {**tensor(dtype="torch.int64"), "Max": 2**53 + by, "Min": 4294967296.0 + by}
        written(tmp_path / side, {"Torch.add.0.forward": call(double, output=whole)}, None)
    diff = graph_diff(tmp_path / "a", tmp_path / "b")
    page = WrittenPage(Path(diff.to_html(tmp_path / "page.html")))
    items = [item for detail in page.details() for item in detail.get("i", ())]
    values = {item[0]: item[1:3] for item in items}
    assert [side["mean"] for side in values["input.0"]] == [0.10000000149011612, 0.1]
    assert [side["min"] for side in values["output.0"]] == [4294967296, 4294967297]
    assert [side["max"] for side in values["output.0"]] == [str(2**53), str(2**53 + 1)]


@given(st.floats())
def test_a_number_that_is_no_float32_stays_itself(number: float) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        is_narrow = float(np.float32(number)) == number
    (shown,) = numbers([number]).as_json()
    if not math.isfinite(number):
        assert shown == str(number)
    elif not is_narrow:
        assert shown == number


def test_what_is_no_float_stays_what_it_is() -> None:
    given = [1, None, True, "text", 2**70, -(2**52), 2**53 + 1, -0.0, 3.0, 1e300]
    assert numbers(given).as_json() == [1, None, 1, "text", str(2**70), -(2**52), str(2**53 + 1), -0.0, 3, 1e300]
    assert str(numbers([-0.0]).as_json()[0]) == "-0.0"


@given(st.lists(st.floats(min_value=1e-300, max_value=9e29), min_size=1))
def test_differences_have_three_digits(values: list[float]) -> None:
    for value, shown in zip(values, rounded(np.array(values))):
        assert shown == pytest.approx(value, rel=5.01e-3)
        assert float(f"{shown:.2e}") == shown


def test_a_difference_without_a_size_is_no_number() -> None:
    assert rounded(np.array([1e30, 2e30, 0.25, np.inf])) == ["differs", "differs", 0.25, "inf"]


def test_digits_are_those_of_the_decimal_number() -> None:
    assert significant(np.array([1.23456e-40, 9.9996, 123456.0, -0.00123449]), 4).tolist() == [
        1.235e-40, 10.0, 123500.0, -0.001234,
    ]  # fmt: skip
    assert shortest(np.array([np.float32(0.1), np.float32(1e-45), 0.1])).tolist()[::2] == [0.1, 0.1]


@EVERY_PAIR
def test_no_item_is_worse_than_the_node_that_it_belongs_to(pair: str, tmp_path: Path) -> None:
    _, page = page_of(pair, tmp_path)
    for status, detail in zip(page.column("status"), page.details()):
        for item in detail["i"]:
            _, target, golden, _, _, of_item, _ = item
            assert of_item <= status or (of_item == ONE_SIDE and None in (target, golden)), (status, item)


def test_a_type_that_another_framework_spells_otherwise_is_the_same(tmp_path: Path) -> None:
    name = "Functional.relu.0.forward"
    for side, dtype, framework in (("a", "Float32", "mindspore"), ("b", "torch.float32", "pytorch")):
        record = call(tensor(dtype=dtype), output=tensor(dtype=dtype))
        written(tmp_path / side, {name: record}, {name: None}, framework=framework)
    graph_diff(tmp_path / "a", tmp_path / "b").to_html(tmp_path / "page.html")
    page = WrittenPage(tmp_path / "page.html")
    keys = [status["key"] for status in page.manifest["statuses"]]
    assert {keys[item[5]] for detail in page.details() for item in detail["i"]} == {"same"}


def test_arguments_have_the_names_of_the_signature(tmp_path: Path) -> None:
    main(["graph_visualize", "-tp", str(CASES / "dumps" / "llama"), "-o", str(tmp_path)])
    found = page_in(tmp_path).manifest["arguments"]
    # As the documentation of PyTorch has them.
    assert found["Functional.linear"][:3] == ["input", "weight", "bias"]
    assert found["Functional.embedding"][:2] == ["input", "weight"]
    assert "Module.model.norm.LlamaRMSNorm" not in found
