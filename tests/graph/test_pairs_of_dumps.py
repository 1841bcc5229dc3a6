"""Over recorded pairs of dumps: graph and page say what ``compare`` says, with every node once and all its values."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_commands import Beside
from graph_dumps import CASES, expected

import probe
from probe.common.dump.reading.items import Item, shape_text

DUMPS, COMPARE = CASES / "dumps", CASES.parents[1] / "compare"


def _pairs() -> dict[str, tuple[Path, ...]]:
    pairs: dict[str, tuple[Path, ...]] = {
        case: (DUMPS / expected(case)["target"], DUMPS / expected(case)["golden"])
        for case in ("weight", "three_layers", "nan", "bf16")
    }
    pairs["two layers of three"] = pairs["three_layers"][::-1]
    pairs["one graph"] = (DUMPS / "bert",)
    for case in (
        "md5", "inf_stat", "missing_apis_stat", "perturbed_weights_stat", "requires_grad_stat", "shape_mismatch_stat",
        "identical_stat", "cross_ms_pt", "debug_save",
    ):  # fmt: skip
        pairs[case] = COMPARE / "cases" / case / "target", COMPARE / "cases" / case / "golden"
    small, transformer = COMPARE / "pairs" / "small_network", COMPARE / "pairs" / "transformer"
    for level in ("L0", "L1", "mix"):
        pairs[f"MindSpore and PyTorch at {level}"] = small / f"mindspore_{level}", small / f"torch_{level}"
    pairs["two levels"] = small / "torch_mix", small / "torch_L0"
    pairs["transformer"] = transformer / "mindspore_mix", transformer / "torch_mix"
    return pairs


PAIRS = _pairs()
LONG = os.environ.get("PROBE_TEST_LONG") == "1"
DRAWN = list(PAIRS) if LONG else random.Random(os.environ["PROBE_TEST_SEED"]).sample(list(PAIRS), 10)
"""Half of the pairs in a run of all tests, drawn from the seed that it prints."""
# So that `make reliability`, which takes all, runs it.
pytestmark = pytest.mark.sampled()


@pytest.fixture(scope="module", params=DRAWN)
def pair(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def shown(pair: str, tmp_path_factory: pytest.TempPathFactory) -> Beside:
    return Beside(tmp_path_factory.mktemp("page"), *PAIRS[pair])


def test_the_judgement_is_that_of_compare(pair: str, shown: Beside) -> None:
    problems = ("suspect", "diverged")
    if len(PAIRS[pair]) == 1:
        assert shown.view.first is None and shown.counts["no data"] == len(shown.rows)
        return
    verdict = probe.verdict(*PAIRS[pair])
    assert shown.view.answer == shown.info["verdict"][: len(verdict.answer)] == verdict.answer
    summary = shown.diff.summary
    assert summary is not None and str(verdict) == str(probe.Verdict([summary]))
    divergence = verdict.divergence
    if divergence is None:
        assert (shown.view.first, shown.diff.suspects, shown.info["first"]) == (None, [], None)
        assert not any(shown.counts[status] for status in problems)
        return
    first = divergence.first
    assert shown.view.first == (first.record or None, first.golden_record or None)
    at = shown.rows[shown.info["first"]]
    assert all(name in (None, there) for name, there in zip(shown.view.first, at))
    for each in (first, *divergence.suspects):
        if each.record in shown.row:
            status = shown.status(each.record)
            assert status == "diverged" if each is first else status in problems
            assert shown.why(each.record) == each.shown_reason
            assert shown.details[shown.row[each.record]].get("cause", "") == each.shown_cause
    assert shown.counts["suspect"] <= len(divergence.suspects)


def test_a_node_has_the_status_of_its_rows(shown: Beside) -> None:
    diff = shown.diff
    divergence = None if diff.summary is None else diff.summary.divergence
    told = [] if divergence is None else [divergence.first, *divergence.suspects]
    elsewhere = {each.item for each in told if not each.item.startswith(f"{each.record}.")}
    severe = [status["name"] for status in shown.manifest["statuses"]]
    for name in shown.row:
        node, status = diff.target.index[name], shown.status(name)
        rows = diff.items.get(node, [])
        assert diff.target.has_record[node] or not rows
        if diff.golden is None:
            continue
        both = [row for row in rows if row.target is not None and row.golden is not None]
        results = {row.result for row in both if row.target is not None and row.target.name not in elsewhere}
        assert ("error" in results) <= (status in ("suspect", "diverged")), (name, status)
        assert ("warning" in results) <= (severe.index(status) >= severe.index("follows")), (name, status)
        assert (status in ("same", "explained")) <= (results <= {"pass"}), (name, status)
        assert (status in ("explained", "structure", "suspect", "diverged")) <= bool(shown.why(name)), (name, status)
        assert (shown.reason(name) == "") == (name not in shown.pairs)
        assert status != "one side only" or name not in shown.pairs
        differs = diff.in_errors[node] > 0 or diff.out_errors[node] > 0
        assert not differs or status not in ("no data", "same")
        if name in shown.pairs and rows:
            assert diff.out_errors[node] >= 0
            assert not any(_differs(row.target, row.golden) for row in both) or differs
    for row, (name, _) in enumerate(shown.rows):
        if name is None:
            status = severe[shown.page.column("status")[row]]
            assert status in ("one side only", "no data", "suspect", "diverged")


def _differs(one: Item | None, other: Item | None) -> bool:
    if one is None or other is None or not one.is_tensor or one.shape != other.shape:
        return False
    return (one.max, one.norm, one.md5) != (other.max, other.norm, other.md5)


def test_every_node_is_in_one_row_behind_all_that_is_inside_of_it(shown: Beside) -> None:
    diff, rows, offsets = shown.diff, shown.rows, shown.page.column("parent")
    assert [target for target, _ in rows if target is not None] == diff.target.names
    golden = diff.golden
    assert Counter(name for _, name in rows if name is not None) == Counter([] if golden is None else golden.names)
    assert offsets[-1] == 0 and all(offset > 0 for offset in offsets[:-1])
    parents = [row + offset for row, offset in enumerate(offsets)]
    row_of_golden = {name: row for row, (_, name) in enumerate(rows) if name}
    first = list(range(len(rows)))
    for row, (target, name) in enumerate(rows[:-1]):
        graph, at, place = (
            (diff.target, target, shown.row) if target is not None else (golden, name, row_of_golden)
        )  # fmt: skip
        assert graph is not None and at is not None
        assert parents[row] == place[graph.names[graph.parents[graph.index[at]]]]
        first[parents[row]] = min(first[parents[row]], first[row])
    # The rows of two subtrees never mix.
    for row in range(len(rows) - 1):
        assert all(first[row] <= parents[inside] <= row for inside in range(first[row], row))


def test_every_item_has_the_values_of_the_dump(shown: Beside) -> None:
    diff, statuses, types = shown.diff, shown.page.column("status"), shown.page.column("types")
    alone = [status["name"] for status in shown.manifest["statuses"]].index("one side only")
    for row, ((target, golden), detail) in enumerate(zip(shown.rows, shown.details)):
        if target is not None:
            items = diff.items.get(diff.target.index[target], [])
        else:
            assert diff.golden is not None and golden is not None
            items = diff.golden_items.get(diff.golden.index[golden], [])
        assert len(items) == len(detail["i"])
        for item, (name, mine, theirs, difference, _, status, _, explained) in zip(items, detail["i"]):
            either = item.target or item.golden
            assert either is not None and either.name.endswith(name)
            _assert_says(item.target, mine)
            _assert_says(item.golden, theirs)
            _assert_is(difference, item.relative_difference)
            _assert_is(explained, item.explained if item.relative_difference else None)
            assert status <= statuses[row] or (status == alone and None in (mine, theirs))
        tensors = [(name, tensor) for name, *both in detail["i"] for tensor in both[:2] if tensor is not None]
        said = {tuple(shown.page.names[at] for at in each) for each in types[shown.page.column("tensors")[row]]}
        assert said == {(name, tensor["dtype"], tensor["shape"]) for name, tensor in tensors}
        if target is not None:
            node = diff.target.index[target]
            for column, error in (("in", diff.in_errors[node]), ("out", diff.out_errors[node])):
                _assert_is(shown.page.column(column)[row], error)
            if row % 17 == 0:
                assert shown.page.stack(row) == (diff.stacks or {}).get(target, [])
        if golden is not None and row % 17 == 0:
            assert shown.page.stack(row, of_golden=True) == (diff.golden_stacks or {}).get(golden, [])


def _assert_is(shown: Any, value: float | None) -> None:
    """A relative difference stands on the page in three digits."""
    if value is None or math.isnan(value):
        assert shown is None
    elif shown == "differs":
        # Of different checksums there is no size.
        assert value >= 1e29
    else:
        assert float(shown) == pytest.approx(value, rel=5.01e-3)


def _assert_says(item: Item | None, shown: dict[str, Any] | None) -> None:
    assert (item is None) == (shown is None)
    if item is None or shown is None:
        return
    assert shown["dtype"] == (item.dtype or "") and shown.get("sum") == item.md5
    assert shown["shape"] == ("" if item.shape is None else shape_text(item.shape))
    assert shown["grad"] == {None: -1, False: 0, True: 1}[item.requires_grad]
    if item.value is not None:
        assert shown["value"] == (item.value if isinstance(item.value, str) else repr(item.value))
        return
    assert shown["value"] is None
    for key, value in (("max", item.max), ("min", item.min), ("mean", item.mean), ("norm", item.norm)):
        if type(value) is not float:
            assert shown[key] == (str(value) if isinstance(value, int) and abs(value) >= 2**53 else value)
        elif not math.isfinite(value):
            assert shown[key] == str(value)
        else:
            is_narrow = "float64" not in (item.dtype or "").lower() and np.float32(value) == value
            assert np.float32(shown[key]) == np.float32(value) if is_narrow else shown[key] == value, (key, value)


def test_the_page_is_the_same_again_and_writes_nothing_twice(pair: str, shown: Beside, tmp_path: Path) -> None:
    again = probe.graph_diff(*PAIRS[pair]).to_html(tmp_path / "again.html")
    assert Path(again).read_bytes() == shown.page.path.read_bytes()
    tables = [str(entry) for entry in shown.page.tensors()], *(shown.page.block(name) for name in ("names", "frames"))
    assert all(len(set(map(str, entries))) == len(entries) for entries in tables)
