"""Two dumps beside each other: the judgement is that of ``compare``, and every node says what came of it."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from graph_dumps import call, expected, recorded, tensor
from made_dumps import written

from probe.common.dump.reading.dump import Dump, read
from probe.common.errors import MsprobeException
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options
from probe.compare.output.summary import summarise
from probe.compare.output.summary_text import headline, lines
from probe.compare.result import Unexplained
from probe.graph.diff import GraphDiff, diff_of
from probe.graph.manual_pairs import ManualPair
from probe.graph.status import (
    DIVERGED,
    EXPLAINED,
    FOLLOWS,
    NO_DATA,
    ONE_SIDE,
    REASONS,
    SAME,
    STATUSES,
    STRUCTURE,
    SUSPECT,
)

COMPARE = Path(__file__).parent.parent / "compare"
GOALS = expected("goals")


def _pairs() -> dict[str, tuple[Path, Path]]:
    dumps = Path(__file__).parent / "cases" / "dumps"
    found = {
        case: (dumps / expected(case)["target"], dumps / expected(case)["golden"])
        for case in ("weight", "three_layers", "nan", "bf16")
    }
    found["two layers of three"] = found["three_layers"][::-1]
    for case in ("md5", "inf_stat", "missing_apis_stat", "perturbed_weights_stat", "requires_grad_stat"):
        found[case] = COMPARE / "cases" / case / "target", COMPARE / "cases" / case / "golden"
    for case in ("shape_mismatch_stat", "identical_stat", "cross_ms_pt", "debug_save"):
        found[case] = COMPARE / "cases" / case / "target", COMPARE / "cases" / case / "golden"
    small, transformer = COMPARE / "pairs" / "small_network", COMPARE / "pairs" / "transformer"
    for level in ("L0", "L1", "mix"):
        found[f"MindSpore and PyTorch at {level}"] = small / f"mindspore_{level}", small / f"torch_{level}"
    found["two levels"] = small / "torch_mix", small / "torch_L0"
    found["transformer"] = transformer / "mindspore_mix", transformer / "torch_mix"
    return found


PAIRS = _pairs()
EVERY_PAIR = pytest.mark.parametrize("pair", PAIRS)


def diff(pair: str, **more: Any) -> GraphDiff:
    target, golden = PAIRS[pair]
    return diff_of(read(target), read(golden), **more)


def names(found: GraphDiff, nodes: tuple[int, int] | None) -> tuple[str, str] | None:
    """The names of a pair of nodes; empty where a side has none."""
    if nodes is None:
        return None
    assert found.golden is not None
    return (found.target.names[nodes[0]] if nodes[0] >= 0 else ""), (
        found.golden.names[nodes[1]] if nodes[1] >= 0 else ""
    )


def _called(each: Unexplained) -> tuple[str, str]:
    return each.record, each.golden_record


# --- one judgement


@EVERY_PAIR
def test_the_first_divergence_and_the_suspects_are_those_of_compare(pair: str) -> None:
    target, golden = PAIRS[pair]
    result = compare_dumps(read(target), read(golden))
    found = diff(pair)
    divergence = result.divergence
    if divergence is None:
        assert (found.first, found.suspects, found.origin) == (None, [], None)
        assert not {SUSPECT, DIVERGED} & {*found.statuses, *found.golden_statuses}
        return
    assert names(found, found.first) == _called(divergence.first)
    assert [names(found, each) for each in found.suspects] == list(map(_called, divergence.suspects))
    for each in (divergence.first, *divergence.suspects):
        node = found.target.index.get(each.record, -1)
        if node >= 0:
            assert found.statuses[node] == DIVERGED if each is divergence.first else found.statuses[node] >= SUSPECT
            assert found.why[node] == each.shown_reason
            assert found.cause.get(node, "") == each.shown_cause
    assert sum(status == SUSPECT for status in found.statuses) <= len(divergence.suspects)


@EVERY_PAIR
def test_a_node_has_the_status_of_the_rows_of_the_table(pair: str) -> None:
    found = diff(pair)
    divergence = None if found.summary is None else found.summary.divergence
    told = [] if divergence is None else [divergence.first, *divergence.suspects]
    elsewhere = {each.item for each in told if not each.item.startswith(f"{each.record}.")}
    for node, rows in found.items.items():
        pairs = ((row.target, row) for row in rows if row.golden is not None)
        of_both = {row.result for target, row in pairs if target is not None and target.name not in elsewhere}
        status = found.statuses[node]
        assert ("error" in of_both) <= (status >= SUSPECT), (found.target.names[node], STATUSES[status])
        assert ("warning" in of_both) <= (status >= FOLLOWS), (found.target.names[node], STATUSES[status])
        assert (status in (SAME, EXPLAINED)) <= (of_both <= {"pass"})


@EVERY_PAIR
def test_page_and_terminal_say_the_same_sentences(pair: str) -> None:
    target, golden = PAIRS[pair]
    summary = summarise(compare_dumps(read(target), read(golden)))
    found = diff(pair)
    assert found.summary is not None
    assert headline([found.summary]) == headline([summary])
    assert lines(found.summary) == lines(summary)
    # Without all divergences the first one is the same, and so is what is said of it.
    first_only = summarise(compare_dumps(read(target), read(golden)))
    assert headline([found.summary]) == headline([first_only])


@EVERY_PAIR
def test_calls_are_paired_as_compare_pairs_them(pair: str) -> None:
    target, golden = PAIRS[pair]
    result = compare_dumps(read(target), read(golden))
    if result.debug:
        return
    found = diff(pair)
    assert found.golden is not None
    paired = {
        found.target.names[node]: found.golden.names[other] for node, other in enumerate(found.pairs) if other >= 0
    }
    assert {name: paired[name] for name in result.pairing.renamed} == result.pairing.renamed
    assert not paired.keys() & set(result.pairing.target_only)
    assert not set(paired.values()) & set(result.pairing.golden_only)


@EVERY_PAIR
def test_every_node_has_a_status_that_its_pair_and_its_sentence_agree_with(pair: str) -> None:
    found = diff(pair)
    assert found.golden is not None
    taken = [other for other in found.pairs if other >= 0]
    assert len(set(taken)) == len(taken)
    for node, other in enumerate(found.pairs):
        status = found.statuses[node]
        assert (REASONS[found.reasons[node]] == "") == (other < 0)
        assert other < 0 or found.golden_statuses[other] == status
        assert status != ONE_SIDE or other < 0
        assert (status in (EXPLAINED, STRUCTURE, SUSPECT, DIVERGED)) <= bool(found.why.get(node)), STATUSES[status]
        differs = max(found.in_errors[node], found.out_errors[node]) > 0
        assert not (differs and status in (NO_DATA, SAME))
        assert status != SAME or found.in_errors[node] == 0 == found.out_errors[node] or not found.in_errors[node] >= 0
        rows = found.items.get(node, [])
        assert found.target.has_record[node] or not rows
    for node in set(range(len(found.golden))) - set(taken):
        assert found.golden_statuses[node] in (ONE_SIDE, NO_DATA, SUSPECT, DIVERGED)
        assert all(row.target is None for row in found.golden_items.get(node, []))


@EVERY_PAIR
def test_what_has_a_pair_and_differs_in_a_tensor_has_an_error(pair: str) -> None:
    found = diff(pair)
    for node, rows in found.items.items():
        differs = [
            row
            for row in rows
            if row.target is not None
            and row.golden is not None
            and row.target.is_tensor
            and row.target.shape == row.golden.shape
            and (row.target.max, row.target.norm, row.target.md5) != (row.golden.max, row.golden.norm, row.golden.md5)
        ]
        if found.pairs[node] >= 0:
            assert found.out_errors[node] >= 0
            assert not differs or found.in_errors[node] > 0 or found.out_errors[node] > 0


# --- goals


@pytest.mark.parametrize("case", ["weight", "nan"])
def test_the_planted_fault_is_the_first_divergence(case: str) -> None:
    goal, found = GOALS[case], diff(case)
    assert names(found, found.first) == (goal["first_divergence"], goal["first_divergence"])
    origin = found.origin
    assert origin is not None
    assert origin.kind == goal["origin"]
    assert f"parameters.{origin.parameter}" == goal["item"]
    assert found.target.names[origin.module] == goal["module"]
    assert origin.is_nonfinite == (goal.get("kind") == "non-finite")


def test_an_extra_layer_is_on_one_side_and_nothing_else_is() -> None:
    goal, found = GOALS["three_layers"], diff("three_layers")
    alone = [found.target.names[node] for node, other in enumerate(found.pairs) if other < 0]
    assert found.golden is not None
    assert (len(alone), len(found.golden) - sum(other >= 0 for other in found.pairs)) == (
        goal["target_only"],
        goal["golden_only"],
    )
    below = tuple(goal["target_only_modules_below"])
    assert all(name.startswith(below) for name in alone if name.startswith("Module."))
    assert Counter(found.statuses)[ONE_SIDE] == goal["target_only"]
    assert {REASONS[reason] for reason in found.reasons} == {"", "exact", "aligned"}


def test_a_layer_less_is_the_same_from_the_other_side() -> None:
    found, other = diff("two layers of three"), diff("three_layers")
    assert found.golden is not None
    assert min(found.pairs) >= 0
    back = {theirs: mine for mine, theirs in enumerate(other.pairs) if theirs >= 0}
    assert list(found.pairs) == [back[node] for node in range(len(found.target))]


def test_another_precision_is_a_design_and_no_red_nodes() -> None:
    found = diff("bf16")
    assert found.first is None
    counts = Counter(found.statuses)
    assert counts[DIVERGED] == counts[SUSPECT] == counts[ONE_SIDE] == 0
    assert counts[EXPLAINED] > counts[STRUCTURE]
    assert GOALS["bf16"]["first_divergence_kind"] == "dtype"
    assert any("bfloat16 is compared with float32" in note for note in found.notes)
    assert diff("weight").notes == []


def test_what_two_frameworks_make_of_other_calls_is_judged_around_them() -> None:
    found = diff("transformer")
    sentences = [found.why[node] for node, other in enumerate(found.pairs) if other < 0]
    assert sum("is judged in its place" in text for text in sentences) > len(sentences) / 2


# --- statuses


def _two(tmp_path: Path, target: dict[str, Any], golden: dict[str, Any], **more: Any) -> GraphDiff:
    dumps = [
        written(tmp_path / side, records, dict.fromkeys(records))
        for side, records in (("target", target), ("golden", golden))
    ]
    return diff_of(*dumps, **more)


def _at(found: GraphDiff, name: str) -> str:
    return STATUSES[found.statuses[found.target.index[name]]]


def _sum_over(dimension: int) -> dict[str, Any]:
    return call(tensor(), {"type": "int", "value": dimension}, output=tensor(3.0))


def test_a_difference_without_effect_is_structure_and_a_value_on_one_side_stands_alone(tmp_path: Path) -> None:
    first, second = "Torch.sum.0.forward", "Torch.exp.0.forward"
    same = call(tensor(2.0), output=tensor(2.0))
    found = _two(
        tmp_path,
        {first: _sum_over(1), second: same, "Torch.cos.0.forward": same},
        {first: _sum_over(0), second: same},
    )
    assert _at(found, first) == "structure"
    assert found.why[found.target.index[first]].startswith("argument dim = 1 (golden: 0); no value differs")
    assert _at(found, second) == "same"
    assert _at(found, "Torch.cos.0.forward") == "one side only"
    assert found.why[found.target.index["Torch.cos.0.forward"]]


def test_what_rounding_explains_says_the_rule_and_its_numbers(tmp_path: Path) -> None:
    name = "Torch.sum.0.forward"
    found = _two(tmp_path, {name: call(tensor(), output=tensor(1 + 1e-7))}, {name: call(tensor(), output=tensor())})
    node = found.target.index[name]
    assert _at(found, name) == "explained"
    assert found.why[node].startswith("output 0 has a relative error of 1.0e-07; expected at most")
    assert found.in_errors[node] == 0
    assert found.out_errors[node] == pytest.approx(1e-7, rel=1e-3)


def test_what_gets_a_value_that_is_not_finite_follows_the_call_that_made_it(tmp_path: Path) -> None:
    records = [f"Torch.sin.{n}.forward" for n in range(3)]
    bad = tensor(math.nan)
    target = {records[0]: call(tensor(), output=bad), records[1]: call(bad, output=bad), records[2]: call(bad)}
    found = _two(tmp_path, target, {name: call(tensor(), output=tensor()) for name in records})
    assert [_at(found, name) for name in records] == ["diverged", "follows", "follows"]
    assert names(found, found.first) == (records[0], records[0])
    assert found.origin is not None
    assert (found.origin.kind, found.origin.is_nonfinite) == ("compute", True)
    assert found.out_errors[0] == math.inf


def test_a_level_that_leaves_calls_out_makes_no_problem_of_them() -> None:
    found = diff("two levels")
    left_out = [node for node, other in enumerate(found.pairs) if other < 0]
    assert {found.statuses[node] for node in left_out} == {NO_DATA}
    assert any("level L0" in found.why.get(node, "") for node in left_out)
    assert any('"L0"' in note for note in found.notes)


def test_a_saved_value_that_is_not_finite_on_one_side_says_so(tmp_path: Path) -> None:
    runs = []
    for side, norm in (("a", 1.0), ("b", math.nan)):
        (tmp_path / side).mkdir()
        head = {"task": "statistics", "level": "debug", "framework": "pytorch"}
        content = {**head, "data": {"loss.0.debug": tensor(norm), "logits.0.debug": tensor(1.0)}}
        (tmp_path / side / "debug.json").write_text(json.dumps(content), encoding="utf-8")
        runs.append(read(tmp_path / side))
    found = diff_of(*runs)
    loss = found.target.index["loss.0.debug"]
    # "cannot be told": a dump does not record which saved value is computed from which.
    assert found.statuses[loss] == STRUCTURE and found.first is None
    assert found.why[loss] == "it has a NaN or an infinity on one side only"
    assert found.statuses[found.target.index["logits.0.debug"]] == SAME


def test_one_dump_alone_is_a_graph_without_statuses() -> None:
    found = diff_of(recorded("llama"))
    assert found.golden is None
    assert set(found.statuses) == {NO_DATA}
    assert len(found.items) == len(recorded("llama"))
    assert (found.first, found.summary) == (None, None)


def test_dumps_without_values_are_compared_by_their_calls(tmp_path: Path) -> None:
    tree: dict[str, str | None] = {
        "Module.m.M.forward.0": None,
        **{f"Torch.sin.{n}.forward": "Module.m.M.forward.0" for n in range(3)},
    }
    more = {**tree, "Torch.cos.0.forward": "Module.m.M.forward.0"}
    target = written(tmp_path / "target", {}, more, task="structure")
    found = diff_of(target, written(tmp_path / "golden", {}, tree, task="structure"))
    assert found.mode == "structure"
    assert _at(found, "Torch.cos.0.forward") == "one side only"
    assert Counter(found.statuses)[SAME] == len(found.target) - 1


# --- pairs


def _layers(*calls: str, first: int = 0) -> tuple[dict[str, Any], dict[str, str | None]]:
    """A module with one call of ``linear`` in each of its parts; their numbers begin at `first`."""
    records: dict[str, Any] = {}
    tree: dict[str, str | None] = {"Module.m.M.forward.0": None}
    for number, (name, weight) in enumerate((each, 1.0 + place) for place, each in enumerate(calls)):
        linear = f"Functional.linear.{first + number}.forward"
        records[linear] = call(tensor(), tensor(weight), output=tensor(weight))
        records[name] = call(tensor(), output=tensor(weight), parameters={"weight": tensor(weight)})
        tree.update({name: "Module.m.M.forward.0", linear: name})
    records["Module.m.M.forward.0"] = call(tensor(), output=tensor(9.0))
    return records, tree


def _paired(found: GraphDiff) -> dict[str, str]:
    assert found.golden is not None
    return {found.target.names[node]: found.golden.names[other] for node, other in enumerate(found.pairs) if other >= 0}


def test_renumbered_calls_and_renamed_classes_are_pairs_without_a_flag(tmp_path: Path) -> None:
    old = [f"Module.m.{part}.Linear.forward.0" for part in "abcdefgh"]
    new = [name.replace("Linear", "FusedLinear") if ".c." in name else name for name in old]
    target, golden = written(tmp_path / "new", *_layers(*new, first=3)), written(tmp_path / "old", *_layers(*old))
    found = diff_of(target, golden)
    assert found.golden is not None
    assert len(_paired(found)) == len(found.target) == len(found.golden)
    assert _paired(found)["Functional.linear.3.forward"] == "Functional.linear.0.forward"
    assert _paired(found)[new[2]] == old[2]
    assert REASONS[found.reasons[found.target.index[new[2]]]] == "aligned"
    assert REASONS[found.reasons[found.target.index[new[0]]]] == "exact"
    assert set(found.statuses) == {NO_DATA, SAME}


def test_the_frameworks_call_modules_differently_and_they_are_pairs() -> None:
    found = diff("MindSpore and PyTorch at L0")
    assert found.golden is not None
    assert len(_paired(found)) == len(found.target) == len(found.golden)
    for mine, theirs in _paired(found).items():
        # The classes differ in their names too: Dense and Linear.
        assert mine.split(".")[1:-3] == theirs.split(".")[1:-3]
        assert mine.split(".")[-2:] == theirs.split(".")[-2:]


def test_calls_below_the_chosen_level_are_paired_inside_of_their_modules(tmp_path: Path) -> None:
    parts = [f"Module.m.{part}.Linear.forward.0" for part in "abcd"]
    records, tree = _layers(*parts)
    other_records, other_tree = _layers(*parts, first=5)
    for each in (records, other_records):
        for name in list(each):
            if name.startswith("Functional"):
                del each[name]
    found = diff_of(
        written(tmp_path / "target", records, tree), written(tmp_path / "golden", other_records, other_tree)
    )
    assert _paired(found)["Functional.linear.2.forward"] == "Functional.linear.7.forward"
    assert _at(found, "Functional.linear.2.forward") == "no data"


def test_a_module_without_values_is_a_pair_with_the_one_around_its_calls(tmp_path: Path) -> None:
    dumps: list[Dump] = []
    for side, around in (("target", "Module.a.New.forward.0"), ("golden", "Module.b.Old.forward.0")):
        names = [f"Torch.sin.{n}.forward" for n in range(4)]
        tree: dict[str, str | None] = {around: None, **dict.fromkeys(names, around)}
        dumps.append(written(tmp_path / side, {name: call(tensor(), output=tensor()) for name in names}, tree))
    assert _paired(diff_of(*dumps))["Module.a.New.forward.0"] == "Module.b.Old.forward.0"


def test_flags_and_files_give_the_pairs_their_reasons(tmp_path: Path) -> None:
    fuzzy = diff("three_layers", options=Options(fuzzy=True))
    assert "fuzzy" in {REASONS[reason] for reason in fuzzy.reasons}
    folder = COMPARE / "cases" / "cross_ms_pt"
    options = Options(cell_mapping=str(folder / "cell_mapping.yaml"), api_mapping=str(folder / "api_mapping.yaml"))
    mapped = diff("cross_ms_pt", options=options)
    assert "mapping" in {REASONS[reason] for reason in mapped.reasons}


# --- pairs made by hand


def test_a_pair_made_by_hand_wins_and_the_judgement_is_made_with_it() -> None:
    layers = [
        name for name in recorded("llama_three_layers").tree or {} if name.startswith("Module.model.layers.2.Llama")
    ]
    pairs = [ManualPair(name, name.replace("layers.2.", "layers.1."), descendants=True) for name in layers]
    found = diff("three_layers", pairs=pairs)
    alone = [found.target.names[node] for node, other in enumerate(found.pairs) if other < 0]
    assert len(alone) == 125
    assert all(name.startswith("Module.model.layers.1.") for name in alone if name.startswith("Module."))
    assert sum(REASONS[reason] == "manual" for reason in found.reasons) == 125
    gate = found.target.index["Module.model.layers.2.mlp.gate_proj.Linear.forward.0"]
    rows = found.items[gate]
    assert {row.golden_record for row in rows} == {"Module.model.layers.1.mlp.gate_proj.Linear.forward.0"}
    assert found.statuses[gate] in (SAME, EXPLAINED, SUSPECT)


def test_two_calls_exchanged_by_hand_are_judged_as_exchanged(tmp_path: Path) -> None:
    first, second = "Torch.sin.0.forward", "Torch.sin.1.forward"
    one, other = call(tensor(1.0), output=tensor(2.0)), call(tensor(3.0), output=tensor(4.0))
    dumps = {first: one, second: other}, {first: other, second: one}
    found = _two(tmp_path / "pairs", *dumps, pairs=[ManualPair(first, second), ManualPair(second, first)])
    assert found.first is None
    assert _paired(found)[first] == second
    assert [_at(found, name) for name in (first, second)] == ["same", "same"]


def test_a_pair_for_another_rank_is_none_of_this_one() -> None:
    embedding = "Functional.embedding.0.forward"
    found = diff("weight", pairs=[ManualPair(embedding, "Module.gone.X.forward.0", rank=3)])
    assert REASONS[found.reasons[found.target.index[embedding]]] == "exact"


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (
            [ManualPair("Functional.linear.12.forwards", "Functional.linear.12.forward")],
            r"llama_weight.*has no node \"Functional.linear.12.forwards\"; nearest names: Functional.linear.12.forward",
        ),
        ([ManualPair("Functional.linear.12.forward", "nothing")], 'llama.dump.json has no node "nothing"'),
        (
            [
                ManualPair("Functional.linear.12.forward", "Functional.linear.12.forward"),
                ManualPair("Functional.linear.11.forward", "Functional.linear.12.forward"),
            ],
            "Functional.linear.12.forward is in another pair already",
        ),
    ],
)
def test_pairs_that_cannot_be_are_errors_with_names(pairs: list[ManualPair], message: str) -> None:
    with pytest.raises(MsprobeException, match=message):
        diff("weight", pairs=pairs)


def test_memory_that_is_given_back_changes_nothing() -> None:
    kept, released = diff("weight"), diff("weight", release=True)
    assert released.statuses == kept.statuses
    assert released.why == kept.why
    assert released.in_errors.tobytes() == kept.in_errors.tobytes()
