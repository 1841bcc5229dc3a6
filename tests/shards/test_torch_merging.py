"""Dumps of a split model as one: the merged records, and comparisons with other splits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from split_runs import CASES
from written_pages import WrittenPage, page_in

from probe.api.cli import main
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.items import Item
from probe.shards.merge import Merged, merged

# --- A transformer that is trained whole and split over ranks, as Megatron splits it, and merged again

STATISTICS = ("max", "min", "mean", "norm")


SPLIT = ["tensor", "pipeline", "both", "virtual", "sequence"]


@pytest.fixture(scope="module")
def whole(runs: Path) -> Dump:
    (folder,) = (runs / "whole" / "step0").iterdir()
    return read(str(folder))


@pytest.fixture(scope="module")
def copies(runs: Path) -> dict[str, list[Merged]]:
    found = {}
    for name in (*SPLIT, "copies_split"):
        step, split = runs / name / "step0", CASES[name].split
        dumps = {rank: read(str(step / f"rank{rank}")) for rank in range(split.rank_size)}
        found[name] = merged(dumps, split, str(step))
    return found


class Pages(dict[str, WrittenPage]):
    """Each split run beside the one of one process, or of as many as it has copies; made when it is asked for."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs

    def __missing__(self, name: str) -> WrittenPage:
        golden, output = "copies" if CASES[name].dp > 1 else "whole", self.runs / f"{name}_page"
        paths = ["-tp", str(self.runs / name), "-gp", str(self.runs / golden), "-o", str(output)]
        assert main(["graph_visualize", *paths, *CASES[name].flags(CASES[golden])]) == 0
        return self.setdefault(name, page_in(output))


@pytest.fixture(scope="module")
def pages(runs: Path) -> Pages:
    return Pages(runs)


def items_of(dump: Dump) -> dict[str, Item]:
    return {item.name: item for record in dump for item in dump.items(record)}


def is_lookup(name: str) -> bool:
    """Whether it is of a call that looks up the words of one rank alone, the others replaced by one of these."""
    return name.startswith("Functional.embedding.")


def close(one: Any, other: Any) -> bool:
    if not isinstance(one, float) or not isinstance(other, float):
        return bool(one == other)
    return math.isclose(one, other, rel_tol=2e-5, abs_tol=2e-6)


@pytest.mark.parametrize("name", SPLIT)
def test_merged_statistics_and_shapes_are_those_of_the_whole(
    name: str, copies: dict[str, list[Merged]], whole: Dump
) -> None:
    (copy,) = copies[name]
    wanted, found = items_of(whole), items_of(copy.dump)
    assert len(wanted) > 1200 and wanted.keys() <= found.keys()
    # Of parameters that every rank has each computes a part of the gradient, where it has some rows of activations.
    left_out = {item for item, how in copy.items.items() if "are left out" in how.sentences[0]}
    assert all("norm" in item or ".bias" in item or "__add__" in item for item in left_out)
    assert len(left_out) == (78 if name == "sequence" else 0)
    wrong = [
        (item, found[item], one)
        for item, one in wanted.items()
        if not is_lookup(item)
        and item not in left_out
        and not (
            one.dtype == found[item].dtype
            and one.shape == found[item].shape
            and all(close(getattr(one, key), getattr(found[item], key)) for key in STATISTICS)
        )
    ]
    assert wrong == []
    # Most of what a tensor parallel run records is pieces or summands, and all of a pipeline's is whole.
    kinds = {how.how for how in copy.items.values()}
    assert kinds == ({"split", "sum"} if CASES[name].tp > 1 else set())
    assert sum(item in copy.items for item in wanted) > (400 if CASES[name].tp > 1 else -1)


@pytest.mark.parametrize("name", SPLIT)
def test_calls_stand_in_the_order_of_one_process_with_its_numbers(
    name: str, copies: dict[str, list[Merged]], whole: Dump
) -> None:
    (copy,) = copies[name]
    names, wanted = [record.name for record in copy.dump], [record.name for record in whole]
    assert [each for each in names if each in set(wanted)] == wanted
    tree, tree_of_one = copy.dump.tree, whole.tree
    assert tree is not None and tree_of_one is not None
    assert {each: tree[each] for each in tree_of_one} == tree_of_one
    # Of a pipeline nothing else is there than what its stages say to each other.
    more = set(names) - set(wanted)
    assert CASES[name].tp > 1 or all(each.startswith("Distributed.") for each in more)
    stacks = copy.dump.stacks
    assert stacks is not None and "split_training.py" in "".join(stacks["Functional.gelu.7.forward"])


def test_how_each_value_was_made_is_said_with_its_numbers(copies: dict[str, list[Merged]], runs: Path) -> None:
    (copy,) = copies["tensor"]
    ranks = [items_of(read(str(runs / "tensor" / "step0" / f"rank{rank}"))) for rank in (0, 1)]
    gelu = "Functional.gelu.0.forward"
    item, parts = items_of(copy.dump)[f"{gelu}.output.0"], [of_rank[f"{gelu}.output.0"] for of_rank in ranks]
    assert item.max == max(part.max for part in parts) and item.min == min(part.min for part in parts)
    assert item.mean == sum(part.mean for part in parts) / 2
    assert item.norm == math.sqrt(sum(part.norm**2 for part in parts))
    said = copy.sentences[gelu]
    assert "Merged of ranks 0, 1." in said
    assert f"output.0: Max is the largest of {parts[0].max!r}, {parts[1].max!r}, {item.max!r}." in said
    assert f"output.0: Mean is the mean of {parts[0].mean!r}, {parts[1].mean!r}, {item.mean!r}." in said
    assert "output.0: pieces [2, 5, 8], [2, 5, 8] along dimension 2 are [2, 5, 16]." in said
    # The second linear layer of the block has a summand on each rank, in whose statistics that of the sum is not.
    linear = next(name for name in copy.items if copy.items[name].how == "sum" and "linear" in name)
    assert "which Distributed.all_reduce." in copy.items[linear].sentences[0]
    assert [part.rank for part in copy.items[linear].parts] == [0, 1]


@pytest.mark.sampled(least=2, each=False)
@pytest.mark.parametrize("name", SPLIT)
def test_pairs_with_the_run_of_one_process_are_by_name(name: str, pages: dict[str, WrittenPage], whole: Dump) -> None:
    page = pages[name]
    comparison = page.manifest["comparisons"][0]
    assert comparison["first"] is None and comparison["verdict"][0].startswith("no divergence")
    recorded = {record.name for record in whole}
    pairs = {golden: target for target, golden in page.rows() if golden in recorded}
    assert pairs == {each: each for each in recorded}
    keys = [status["key"] for status in page.manifest["statuses"]]
    odd = {
        target
        for (target, golden), status in zip(page.rows(), page.column("status"))
        if golden and keys[status] not in ("none", "same", "explained")
    }
    said = {target: str(detail.get("merged")) for (target, _), detail in zip(page.rows(), page.details())}
    assert all(is_lookup(str(each)) or "are left out" in said[each] for each in odd)
    assert any("Merged of ranks 0" in note for note in comparison["notes"])


@pytest.mark.sampled(least=2, each=False)
@pytest.mark.parametrize("name", [*SPLIT, "copies_split"])
def test_every_merged_call_opens_to_its_parts(
    name: str, pages: dict[str, WrittenPage], copies: dict[str, list[Merged]]
) -> None:
    page, case = pages[name], CASES[name]
    comparisons = page.manifest["comparisons"]
    rows = [page.rows(number) for number in range(len(comparisons))]
    assert [each["run"] for each in comparisons[case.dp :]] == [f"rank {rank}" for rank in range(case.split.rank_size)]
    for number, copy in enumerate(copies[name]):
        checked = 0
        origins, recorded = copy.origins, {record.name for record in copy.dump}
        details = page.details(number)
        for (target, _), detail in zip(rows[number], details):
            if target not in recorded:
                continue
            shown = [
                (int(label.removeprefix("rank ")), rows[comparison][row][0])
                for label, comparison, row in detail["parts"]
                if comparisons[comparison]["run"] == label
            ]
            assert shown == [(rank, there) for rank, there in origins[target]]
            checked += 1
        assert checked == len(recorded)
        said = sum("merged" in detail for detail in details)
        assert said > (200 if case.tp > 1 else 1)


def test_copies_of_a_model_are_compared_one_by_one(
    runs: Path, pages: dict[str, WrittenPage], copies: dict[str, list[Merged]]
) -> None:
    page = pages["copies_split"]
    assert [copy.ranks for copy in copies["copies_split"]] == [[0, 2], [1, 3]]
    for number, copy in enumerate(copies["copies_split"]):
        comparison = page.manifest["comparisons"][number]
        assert comparison["verdict"][0].startswith("no divergence"), comparison["verdict"]
        wanted = items_of(read(str(runs / "copies" / "step0" / f"rank{number}")))
        found = items_of(copy.dump)
        for item, one in wanted.items():
            if not is_lookup(item) and not item.startswith("Distributed."):
                assert close(one.norm, found[item].norm) and one.shape == found[item].shape, item
    loss = "Functional.cross_entropy.0.forward.output.0"
    losses = {items_of(copy.dump)[loss].mean for copy in copies["copies_split"]}
    assert len(losses) == 2, "each copy has data of its own"


def test_a_wrong_piece_of_a_weight_is_the_first_divergence(pages: dict[str, WrittenPage]) -> None:
    page = pages["faulty_tensor"]
    comparison = page.manifest["comparisons"][0]
    fault = "Module.0.decoder.layers.2.mlp.fc1.ColumnParallelLinear.forward.0"
    assert page.rows()[comparison["first"]] == (fault, fault)
    assert comparison["origin"]["kind"] == "parameter"
    parts = page.details()[comparison["first"]]["parts"]
    assert [(label, page.rows(number)[row][0]) for label, number, row in parts] == [
        ("rank 0", fault), ("rank 1", fault),
    ]  # fmt: skip


# --- communication


@pytest.fixture(scope="module")
def rank_pages(runs: Path) -> dict[str, WrittenPage]:
    """The ranks of a run as they are, side by side."""
    found = {}
    for name in ("both", "virtual"):
        output = runs / f"{name}_ranks"
        assert main(["graph_visualize", "-tp", str(runs / name), "-o", str(output)]) == 0
        found[name] = page_in(output)
    return found


def linked(page: WrittenPage) -> Iterator[tuple[int, str, dict[str, Any], list[tuple[int, str, str, dict[str, Any]]]]]:
    """Rank, name and details of each call that communicates, and the same of its partners."""
    comparisons = page.manifest["comparisons"]
    rows = [page.rows(number) for number in range(len(comparisons))]
    details = [page.details(number) for number in range(len(comparisons))]
    for number, comparison in enumerate(comparisons):
        for (name, _), detail in zip(rows[number], details[number]):
            if name and name.startswith("Distributed."):
                partners = [
                    (comparisons[other]["rank"], rows[other][row][0], text, details[other][row])
                    for other, row, text in detail.get("partners", ())
                ]
                yield comparison["rank"], name, detail, partners


def value(detail: dict[str, Any], item: str) -> tuple[Any, ...]:
    (found,) = (target for name, target, *_ in detail["i"] if name == item)
    return tuple(found[key] for key in ("max", "min", "mean", "norm", "shape"))


@pytest.mark.parametrize("name", ["both", "virtual"])
def test_what_one_rank_sends_is_what_its_partner_receives(name: str, rank_pages: dict[str, WrittenPage]) -> None:
    sends, seen = [], {}
    for rank, call, detail, partners in linked(rank_pages[name]):
        seen[rank, call] = [(each[0], each[1]) for each in partners]
        if "send" not in call and "recv" not in call:
            continue
        # The other run has batches of one send or receive.
        item = "0.0" if "batch" in call else "0"
        ((peer, other, text, there),) = partners
        assert ("batch" in call) == ("batch" in other) == (name == "both")
        if text == f"send to rank {peer}":
            assert value(detail, f"input.{item}") == value(there, f"output.{item}")
            sends.append(value(detail, f"input.{item}"))
        else:
            assert text == f"receive from rank {peer}"
    # Of two ranks that share the layers of a stage both send the same.
    assert (len(sends), len(set(sends))) == {"both": (8, 4), "virtual": (12, 12)}[name]
    for (rank, call), partners in seen.items():
        assert all((rank, call) in seen[partner] for partner in partners)


# --- ``msprobe compare`` of split runs: the ranks are merged before they are compared

FAULT = "0.decoder.layers.2.mlp.fc1"


def compare(runs: Path, target: str, golden: str, output: Path, *more: str) -> int:
    paths = ["-tp", str(runs / target), "-gp", str(runs / golden), "-o", str(output)]
    return main(["compare", *paths, *CASES[target].flags(CASES[golden]), "--fail-on", "divergence", *more])


@pytest.mark.parametrize(
    ("target", "golden"),
    [
        ("both", "whole"),
        ("virtual", "whole"),
        ("whole", "tensor"),
        ("both", "virtual"),
        ("copies_split", "copies"),
        ("tensor_short", "whole"),
    ],
)
def test_a_split_run_and_one_that_is_split_otherwise_do_not_diverge(
    target: str, golden: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(runs, target, golden, tmp_path) == 0
    assert capsys.readouterr().out.startswith("no divergence")
    names = [path.name.rpartition("_")[0] for path in sorted(tmp_path.rglob("*.csv"))]
    copies = CASES[target].dp
    assert names == (["compare_result"] if copies == 1 else [f"compare_result_copy{each}" for each in range(copies)])


@pytest.mark.parametrize(
    ("target", "golden", "line"),
    [
        ("faulty_tensor", "tensor", "rank 1, whose part differs; ranks 0, 1 make"),
        ("faulty_tensor", "whole", "rank 1, whose part differs; ranks 0, 1 make"),
        ("faulty_short", "whole", "rank 1, whose part differs; ranks 0, 1 make"),
        ("faulty_pipeline", "whole", "ranks:  rank 1"),
        ("faulty_both", "both", "rank 3, whose part differs; ranks 2, 3 make"),
    ],
)
def test_a_fault_in_one_rank_is_named_with_its_rank(
    target: str, golden: str, line: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(runs, target, golden, tmp_path) == 1
    said = capsys.readouterr().out
    # Where both runs have its function, which takes the parameter before the module ends, that is the call.
    named = said.partition("\n")[0].removeprefix("first divergence: ")
    assert named == f"Module.{FAULT}.ColumnParallelLinear.forward.0" or named.startswith(f"{FAULT} ("), said
    assert line in said
    assert "parameter" in said


def test_json_has_the_ranks_of_the_divergence(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(runs, "faulty_both", "both", tmp_path, "--json") == 1
    (summary,) = json.loads(capsys.readouterr().out)
    assert summary["divergence"]["merged"] == {"ranks": [2, 3], "differing": [3]}


REFUSED: list[tuple[Sequence[str], str]] = [
    (["--tp", "2", "1"], "--rank_size is missing; merging needs --rank_size, --tp and --pp."),
    (["--rank_size", "2", "--tp", "2", "--pp", "1"], "--rank_size has 1 values, 2; allowed: two values"),
    (["--rank_size", "4", "1", "--tp", "2", "1", "--pp", "1", "1"], "dp = rank_size / (tp * pp) is 2 and 1; allowed"),
    (["--order", "foo"], '--order is "foo"; allowed: tp, dp and pp once each'),
    (["--rank_size", "3", "1", "--tp", "3", "1", "--pp", "1", "1"], "--rank_size is 3, but"),
    (["--rank_size", "2", "1", "--tp", "2", "1", "--pp", "1", "1", "-da"], "--diff_analyze compares rank with rank"),
    (["--rank_size", "2", "1", "--tp", "2", "1", "--pp", "1", "1", "--html"], "--html shows no merged ranks"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_what_does_not_fit_is_refused_as_by_graph_visualize(
    given: Sequence[str], message: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ["-tp", str(runs / "tensor"), "-gp", str(runs / "whole"), "-o", str(tmp_path)]
    assert main(["compare", *paths, *given]) != 0
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    if not {"-da", "--html"} & set(given):
        assert main(["graph_visualize", *paths, *given]) != 0
        assert message in capsys.readouterr().err
