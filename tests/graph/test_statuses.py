"""Two dumps beside each other: the status of each node with its reason, and which nodes are a pair."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from graph_commands import DUMPS, LLAMA, WEIGHT, Beside
from graph_dumps import CASES, call, expected, recorded, tensor
from made_dumps import write

import probe
from probe.common.errors import MsprobeException
from probe.compare.options import Options

COMPARE = CASES.parents[1] / "compare"
GOALS = expected("goals")
SIN, COS = "Torch.sin.0.forward", "Torch.cos.0.forward"


def two(folder: Path, target: dict[str, Any], golden: dict[str, Any], **options: Any) -> Beside:
    """Two dumps of these records without a tree of modules."""
    sides = [write(folder / side, each, dict.fromkeys(each)) for side, each in (("a", target), ("b", golden))]
    return Beside(folder, *sides, **options)


def by_hand(folder: Path, *pairs: dict[str, Any]) -> Path:
    path = folder / "pairs.json"
    path.write_text(json.dumps(pairs), encoding="utf-8")
    return path


# --- the goals of the recorded dumps


@pytest.mark.parametrize("case", ["weight", "nan"])
def test_the_planted_fault_is_the_first_divergence(case: str, tmp_path: Path) -> None:
    goal, found = GOALS[case], Beside(tmp_path, DUMPS / f"llama_{case}", LLAMA)
    assert found.view.first == (goal["first_divergence"],) * 2
    divergence, origin = found.view.divergence, found.diff.origin
    assert divergence is not None and origin is not None
    assert divergence.first.cause.startswith("parameter model.layers.1.mlp.up_proj.weight has a relative error of")
    assert divergence.first.module == goal["module"] == found.diff.target.names[origin.module]
    assert (origin.kind, f"parameters.{origin.parameter}") == (goal["origin"], goal["item"])
    assert origin.is_nonfinite == (goal.get("kind") == "non-finite")


def test_a_layer_more_or_less_is_on_one_side_and_nothing_else_is(tmp_path: Path) -> None:
    goal = GOALS["three_layers"]
    found = Beside(tmp_path / "more", DUMPS / "llama_three_layers", LLAMA)
    assert found.counts["one side only"] == len(found.alone) == goal["target_only"]
    below = tuple(goal["target_only_modules_below"])
    assert all(name.startswith(below) for name in found.alone if name.startswith("Module."))
    assert {found.reason(name) for name in found.pairs} == {"exact", "aligned"}
    less = Beside(tmp_path / "less", LLAMA, DUMPS / "llama_three_layers")
    assert less.alone == [] and less.pairs == {golden: target for target, golden in found.pairs.items()}


def test_another_precision_is_a_design_and_no_red_nodes(tmp_path: Path) -> None:
    found = Beside(tmp_path, DUMPS / "bert_bf16", DUMPS / "bert")
    assert found.view.first is None
    assert not any(found.counts[status] for status in ("diverged", "suspect", "one side only"))
    assert found.counts["explained"] > found.counts["structure"]
    assert any("bfloat16" in note and "float32" in note for note in found.info["notes"])


def test_what_frameworks_and_levels_make_of_other_calls_is_no_problem(tmp_path: Path) -> None:
    pairs = COMPARE / "pairs"
    found = Beside(tmp_path / "a", pairs / "transformer" / "mindspore_mix", pairs / "transformer" / "torch_mix")
    around = sum("is judged instead" in found.why(name) for name in found.alone)
    assert around > len(found.alone) / 2
    levels = Beside(tmp_path / "b", pairs / "small_network" / "torch_mix", pairs / "small_network" / "torch_L0")
    assert {levels.status(name) for name in levels.alone} == {"no data"}
    assert any("L0" in levels.why(name) for name in levels.alone)
    assert any('"L0"' in note for note in levels.info["notes"])
    cells = Beside(tmp_path / "c", pairs / "small_network" / "mindspore_L0", pairs / "small_network" / "torch_L0")
    assert cells.alone == []
    for mine, theirs in cells.pairs.items():
        # The classes differ in their names too: Dense and Linear.
        assert mine.split(".")[1:-3] == theirs.split(".")[1:-3]
        assert mine.split(".")[-2:] == theirs.split(".")[-2:]


# --- statuses


def test_a_difference_without_effect_is_structure_and_a_call_of_one_side_stands_alone(tmp_path: Path) -> None:
    first, second = "Torch.sum.0.forward", "Torch.exp.0.forward"
    same = call(tensor(2.0), output=tensor(2.0))

    def sum_over(dimension: int) -> dict[str, Any]:
        return call(tensor(), {"type": "int", "value": dimension}, output=tensor(3.0))

    found = two(
        tmp_path, {first: sum_over(1), second: same, COS: same}, {first: sum_over(0), second: same}
    )  # fmt: skip
    assert (found.status(first), found.status(second), found.status(COS)) == ("structure", "same", "one side only")
    assert all(part in found.why(first) for part in ("dim = 1", "golden: 0")) and found.why(COS)


def test_what_rounding_explains_says_its_numbers(tmp_path: Path) -> None:
    found = two(tmp_path, {SIN: call(tensor(), output=tensor(1 + 1e-7))}, {SIN: call(tensor(), output=tensor())})
    assert found.status(SIN) == "explained" and "1.0e-07" in found.why(SIN)
    row = found.row[SIN]
    assert found.page.column("in")[row] == 0 and found.page.column("out")[row] == pytest.approx(1e-7, rel=1e-2)


def test_what_gets_a_value_that_is_not_finite_follows_the_call_that_made_it(tmp_path: Path) -> None:
    names = [f"Torch.sin.{n}.forward" for n in range(3)]
    bad = tensor(math.nan)
    target = {names[0]: call(tensor(), output=bad), names[1]: call(bad, output=bad), names[2]: call(bad)}
    found = two(tmp_path, target, {name: call(tensor(), output=tensor()) for name in names})
    assert [found.status(name) for name in names] == ["diverged", "follows", "follows"]
    assert found.view.first == (names[0], names[0]) and found.page.column("out")[0] == "inf"
    assert found.diff.origin is not None
    assert (found.diff.origin.kind, found.diff.origin.is_nonfinite) == ("compute", True)


def test_a_saved_value_that_is_not_finite_on_one_side_cannot_be_told(tmp_path: Path) -> None:
    for side, norm in (("a", 1.0), ("b", math.nan)):
        (tmp_path / side).mkdir()
        head = {"task": "statistics", "level": "debug", "framework": "pytorch"}
        content = {**head, "data": {"loss.0.debug": tensor(norm), "logits.0.debug": tensor(1.0)}}
        (tmp_path / side / "debug.json").write_text(json.dumps(content), encoding="utf-8")
    found = Beside(tmp_path, tmp_path / "a", tmp_path / "b")
    # A dump does not record which saved value is computed from which.
    assert found.status("loss.0.debug") == "structure" and found.view.first is None
    assert "NaN" in found.why("loss.0.debug") and found.status("logits.0.debug") == "same"


def test_dumps_without_values_are_compared_by_their_calls(tmp_path: Path) -> None:
    module = "Module.m.M.forward.0"
    tree: dict[str, str | None] = {module: None, **{f"Torch.sin.{n}.forward": module for n in range(3)}}
    target = write(tmp_path / "a", {}, {**tree, COS: module}, task="structure")
    found = Beside(tmp_path, target, write(tmp_path / "b", {}, tree, task="structure"))
    assert found.info["mode"] == "structure" and found.status(COS) == "one side only"
    assert found.counts["same"] == len(found.rows) - 1


# --- pairs


def _layers(*calls: str, first: int = 0) -> tuple[dict[str, Any], dict[str, str | None]]:
    """A module with one call of ``linear`` in each of its parts; their numbers begin at `first`."""
    records: dict[str, Any] = {}
    tree: dict[str, str | None] = {"Module.m.M.forward.0": None}
    for number, name in enumerate(calls):
        linear, weight = f"Functional.linear.{first + number}.forward", tensor(1.0 + number)
        records[linear] = call(tensor(), weight, output=weight)
        records[name] = call(tensor(), output=weight, parameters={"weight": weight})
        tree.update({name: "Module.m.M.forward.0", linear: name})
    records["Module.m.M.forward.0"] = call(tensor(), output=tensor(9.0))
    return records, tree


@pytest.mark.parametrize("below", [False, True])
def test_renumbered_calls_and_renamed_classes_are_pairs_without_a_flag(below: bool, tmp_path: Path) -> None:
    old = [f"Module.m.{part}.Linear.forward.0" for part in "abcdefgh"]
    new = [name.replace("Linear", "FusedLinear") if ".c." in name else name for name in old]
    sides = []
    for side, (records, tree) in (("a", _layers(*new, first=3)), ("b", _layers(*old))):
        # With `below`, calls inside of the modules have no records.
        kept = {name: each for name, each in records.items() if not (below and name.startswith("Functional"))}
        sides.append(write(tmp_path / side, kept, tree))
    found = Beside(tmp_path, *sides)
    assert found.alone == [] and len(found.pairs) == len(found.rows)
    assert found.pairs["Functional.linear.3.forward"] == "Functional.linear.0.forward"
    assert found.status("Functional.linear.3.forward") == ("no data" if below else "same")
    assert found.pairs[new[2]] == old[2]
    assert (found.reason(new[2]), found.reason(new[0])) == ("aligned", "exact")


def test_a_module_without_values_is_a_pair_with_the_one_around_its_calls(tmp_path: Path) -> None:
    names = [f"Torch.sin.{n}.forward" for n in range(4)]
    records = {name: call(tensor(), output=tensor()) for name in names}
    modules = "Module.a.New.forward.0", "Module.b.Old.forward.0"
    sides = [write(tmp_path / each, records, {each: None, **dict.fromkeys(names, each)}) for each in modules]
    assert Beside(tmp_path, *sides).pairs[modules[0]] == modules[1]


def test_flags_and_files_give_the_pairs_their_reasons(tmp_path: Path) -> None:
    fuzzy = Beside(tmp_path / "a", DUMPS / "llama_three_layers", LLAMA, options=Options(fuzzy=True))
    assert "fuzzy" in map(fuzzy.reason, fuzzy.pairs)
    folder = COMPARE / "cases" / "cross_ms_pt"
    options = Options(cell_mapping=str(folder / "cell_mapping.yaml"), api_mapping=str(folder / "api_mapping.yaml"))
    mapped = Beside(tmp_path / "b", folder / "target", folder / "golden", options=options)
    assert "mapping" in map(mapped.reason, mapped.pairs)


# --- pairs made by hand


def test_a_pair_made_by_hand_wins_and_the_judgement_is_made_with_it(tmp_path: Path) -> None:
    layers = [name for name in recorded("llama_three_layers").tree or {} if ".layers.2.Llama" in name]
    entries = [
        {"target": name, "golden": name.replace("layers.2.", "layers.1."), "descendants": True} for name in layers
    ]
    file = by_hand(tmp_path, *entries)
    found = Beside(tmp_path, DUMPS / "llama_three_layers", LLAMA, pairs=file)
    assert len(found.alone) == 125
    assert all(name.startswith("Module.model.layers.1.") for name in found.alone if name.startswith("Module."))
    assert sum(found.reason(name) == "manual" for name in found.pairs) == 125
    gate = "Module.model.layers.2.mlp.gate_proj.Linear.forward.0"
    assert {row.golden_record for row in found.diff.items[found.diff.target.index[gate]]} == {
        gate.replace("layers.2", "layers.1")
    }


def test_two_calls_exchanged_by_hand_are_judged_as_exchanged(tmp_path: Path) -> None:
    one, other = call(tensor(1.0), output=tensor(2.0)), call(tensor(3.0), output=tensor(4.0))
    entries = ({"target": SIN, "golden": COS}, {"target": COS, "golden": SIN})
    found = two(tmp_path, {SIN: one, COS: other}, {SIN: other, COS: one}, pairs=by_hand(tmp_path, *entries))
    assert found.view.first is None and found.pairs[SIN] == COS
    assert [found.status(name) for name in (SIN, COS)] == ["same", "same"]
    assert [found.reason(name) for name in (SIN, COS)] == ["manual", "manual"]


def test_what_is_inside_is_paired_in_its_order_and_named_pairs_come_first(tmp_path: Path) -> None:
    def made(side: str, part: str, numbers: range) -> Path:
        around = f"Module.{part}.Block.forward.0"
        names = [f"Module.{part}.act.ReLU.forward.0", *(f"Torch.sin.{number}.forward" for number in numbers)]
        return write(
            tmp_path / side, {name: call(tensor()) for name in names}, {around: None, **dict.fromkeys(names, around)}
        )

    mine, theirs = made("a", "new", range(3)), made("b", "old", range(5, 8))
    block = {"target": "Module.new.Block.forward.0", "golden": "Module.old.Block.forward.0", "descendants": True}
    file = by_hand(tmp_path, block, {"target": SIN, "golden": "Torch.sin.7.forward"})
    found = Beside(tmp_path, mine, theirs, pairs=file)
    assert {name: golden for name, golden in found.pairs.items() if found.reason(name) == "manual"} == {
        "Module.new.Block.forward.0": "Module.old.Block.forward.0",
        "Module.new.act.ReLU.forward.0": "Module.old.act.ReLU.forward.0",
        SIN: "Torch.sin.7.forward",
        "Torch.sin.1.forward": "Torch.sin.5.forward",
        "Torch.sin.2.forward": "Torch.sin.6.forward",
    }


def test_yaml_is_read_and_a_pair_for_another_rank_is_none_of_this_one(tmp_path: Path) -> None:
    yaml = tmp_path / "pairs.yaml"
    embedding, linear = "Functional.embedding.0.forward", "Functional.linear.0.forward"
    yaml.write_text(
        f"- {{target: {embedding}, golden: Module.gone.X.forward.0, rank: 3}}\n"
        f"- target: {linear}\n  golden: {linear}\n"
    )  # fmt: skip
    found = Beside(tmp_path, WEIGHT, LLAMA, pairs=yaml)
    assert (found.reason(embedding), found.reason(linear)) == ("exact", "manual")


_TWELVE = "Functional.linear.12.forward"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("target: A", ["expected a list of pairs"]),
        ("", ["expected a list of pairs"]),
        ("[A]", ["entry 0", '"A"', "target, golden, descendants"]),
        ("[{target: A, golden: B}, {target: A}]", ["entry 1", "golden is null"]),
        ("[{target: 3, golden: B}]", ["entry 0", "target is 3"]),
        ("[{target: A, golden: B, inside: true}]", ["entry 0", '"inside"', "allowed: target, golden, desc"]),
        ("[{target: A, golden: B, descendants: 1}]", ["entry 0", "descendants is 1", "allowed: true, false"]),
        ("[{target: A, golden: B, rank: -1}]", ["entry 0", "rank is -1", "0 and above"]),
        ("[{target: A, golden: B, step: true}]", ["entry 0", "step is true", "0 and above"]),
        ("[{target: A, golden: B, run: 1}]", ["entry 0", "run is 1", "a path"]),
        (f"[{{target: {_TWELVE}s, golden: {_TWELVE}}}]", ["llama_weight", f'no node "{_TWELVE}s"', f": {_TWELVE}"]),
        (f"[{{target: {_TWELVE}, golden: nothing}}]", ["llama/dump.json", 'no node "nothing"']),
        (
            f"[{{target: {_TWELVE}, golden: {_TWELVE}}}, {{target: Functional.linear.11.forward, golden: {_TWELVE}}}]",
            [f"{_TWELVE} is in another pair already"],
        ),
    ],
)
def test_what_is_no_pair_is_an_error_that_names_the_entry(tmp_path: Path, text: str, says: list[str]) -> None:
    path = tmp_path / "pairs.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MsprobeException, match=re.escape(str(path))) as error:
        probe.graph_diff(WEIGHT, LLAMA, pairs=path)
    assert all(part in str(error.value) for part in says), error.value
