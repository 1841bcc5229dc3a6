"""The three answers: a divergence, none, and that nobody can tell; and what a divergence has reached."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import divergence_runs
import numpy as np
import pytest
from divergence_runs import Run, W, X, call, chain, rounded, tensor, write

from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps
from probe.compare.followers import Followers
from probe.compare.output.summary import Summary, summarise
from probe.compare.output.summary_text import headline
from probe.compare.result import Carried, Origin

Tree = dict[str, "str | None"]


def summary(folder: Path, target: Run, golden: Run, trees: tuple[Tree, Tree] = ({}, {})) -> Summary:
    paths = write(folder / "target", target, trees[0]), write(folder / "golden", golden, trees[1])
    return summarise(compare_dumps(read(paths[0]), read(paths[1])))


def layers() -> tuple[Run, Tree]:
    """Layers of a product with a residual, in a model."""
    model = "Module.model.Model.forward.0"
    data: Run = {}
    tree: Tree = {model: None}
    x = X
    for number in range(4):
        layer = f"Module.model.layers.{number}.Layer.forward.0"
        linear, add = f"Module.model.layers.{number}.fc.Linear.forward.0", f"Tensor.__add__.{number}.forward"
        y = x @ W
        data[linear] = call([tensor(x)], tensor(y), weight=tensor(W))
        data[add] = call([tensor(x), tensor(y)], tensor(x + y))
        data[layer] = call([tensor(x)], tensor(x + y))
        tree.update({linear: layer, add: layer, layer: model})
        x = x + y
    data[model] = call([tensor(X)], tensor(x))
    return data, tree


def test_an_argument_is_without_effect_only_where_its_effect_would_have_shown(tmp_path: Path) -> None:
    target, golden = chain(), chain()
    for run, value in ((target, 0.5), (golden, 0.1)):
        run["Torch.tanh.3.forward"]["input_kwargs"] = {"p": {"type": "float", "value": value}}
    found = summary(tmp_path, target, golden)
    assert found.answer == "none"
    (difference,) = found.without_effect
    assert difference.shows_from == pytest.approx(2.0**-22)
    visible = "an effect of 2.4e-07 or more would be visible"
    assert headline([found])[1][0] == f"  1 difference without effect on any value; {visible}"


def test_another_way_to_compute_a_function_cannot_be_told_in_a_short_type(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    answers = []
    for dtype in ("torch.bfloat16", "torch.float32"):
        exact = {"Functional.gelu.0.forward": call([tensor(values, dtype)], tensor(values, dtype))}
        by_tanh = {"Functional.gelu.0.forward": call([tensor(values, dtype)], tensor(values, dtype))}
        by_tanh["Functional.gelu.0.forward"]["input_kwargs"] = {"approximate": {"type": "str", "value": "tanh"}}
        answers.append(summary(tmp_path / dtype, by_tanh, exact).answer)
    assert answers == ["cannot_tell", "none"]


def test_what_a_call_keeps_for_the_next_step_cannot_be_told_from_this_one(tmp_path: Path) -> None:
    def run(momentum: float) -> Run:
        record = call([tensor(X), tensor(W[0]), tensor(W[1])], tensor(np.tanh(X)))
        record["input_kwargs"] = {"momentum": {"type": "float", "value": momentum}}
        return {**chain(), "Functional.batch_norm.0.forward": record}

    found = summary(tmp_path, run(0.2), run(0.1))
    assert found.answer == "cannot_tell" and "momentum" in found.why


@pytest.mark.parametrize(("argument", "expected"), [("inplace", "none"), ("negative_slope", "cannot_tell")])
def test_where_a_result_is_put_decides_no_value(tmp_path: Path, argument: str, expected: str) -> None:
    """Neither its effect nor that of the other argument would have shown: nothing is compared but a short type."""
    x = rounded(X, "bfloat16")

    def run(value: bool) -> Run:
        entry = call([tensor(x, "torch.bfloat16")], tensor(x, "torch.bfloat16"))
        entry["input_kwargs"] = {argument: {"type": "bool", "value": value}}
        return {"Functional.leaky_relu.0.forward": entry}

    assert summary(tmp_path, run(True), run(False)).answer == expected


def test_a_layer_with_parameters_on_one_side_is_without_effect_where_the_module_around_it_agrees(
    tmp_path: Path,
) -> None:
    (target, tree), (golden, other) = layers(), layers()
    extra = "Module.model.layers.1.adapter.Linear.forward.0"
    more = {extra: call([tensor(X)], tensor(X @ W * np.float32(2)), weight=tensor(W * np.float32(2)))}
    found = summary(
        tmp_path, {**more, **target}, golden, ({**tree, extra: "Module.model.layers.1.Layer.forward.0"}, other)
    )
    assert found.answer == "none" and "has this module with parameters" in found.without_effect[-1].reason
    assert found.without_effect[-1].shows_from is not None
    nowhere = summary(tmp_path / "alone", {**more, **target}, golden, (tree, other))
    assert nowhere.answer == "cannot_tell" and "none of these shows or excludes one" in nowhere.why


@pytest.mark.parametrize(("scale", "expected"), [(1.0, "none"), (1.01, "cannot_tell")])
def test_a_layer_on_one_side_is_without_effect_where_the_other_side_has_its_result_elsewhere(
    tmp_path: Path, scale: float, expected: str
) -> None:
    """Nothing around it is compared, and nothing takes its result."""
    data, tree = layers()
    result = np.tanh(X @ W)
    alone, elsewhere = "Module.pool.Linear.forward.0", "Functional.pooled.0.forward"
    target = {**data, alone: call([tensor(X)], tensor(result), weight=tensor(W))}
    golden = {**data, elsewhere: call([tensor(X)], tensor(np.float32(scale) * result))}
    found = summary(tmp_path, target, golden, ({**tree, alone: None}, {**tree, elsewhere: None}))
    assert found.answer == expected


def test_values_of_another_number_count_as_not_compared(tmp_path: Path) -> None:
    def run(rows: int) -> Run:
        pairs = {name: record for name, record in chain().items() if "linear" in name}
        for record in pairs.values():
            record["input_args"], record["output"] = [tensor(X[:rows])], [tensor(X[:rows])]
        return pairs

    found = summary(tmp_path, run(8), run(16))
    assert found.answer != "none" and found.coverage.compared_records == 0


# --- what a divergence has reached


def of_step(
    folder: Path, step: str, label: str = "rank0", carried: Carried | None = None, is_bad: bool = False
) -> Summary:
    found = summary(folder / f"{step}{label}", chain(at=2, constant=1.5 if is_bad else 1.0), chain())
    return replace(found, step=step, label=label, carried=carried)


SAME, APART, APART_LATER = Carried(1, 1, False), Carried(2, 3, True), Carried(4, 5, True)


def test_a_step_follows_the_one_that_diverged_through_its_parameters(tmp_path: Path) -> None:
    followers = Followers()
    (bad,) = followers.add_step([of_step(tmp_path, "step0", carried=SAME, is_bad=True)])
    (next_one,) = followers.add_step([of_step(tmp_path, "step1", carried=APART)])
    assert bad.answer == "divergence" and bad.follows is None
    assert next_one.follows == Origin("step0", "rank0") and next_one.answer == "cannot_tell"
    assert next_one.why == "step 1, rank 0 follows step 0, rank 0"
    assert next_one.as_json()["divergence"]["follows"] == {"step": "step0", "label": "rank0"}
    lines = [text for text, _ in headline([bad, next_one])]
    assert (
        lines[0].startswith("first divergence: step 0, rank 0: ") and "  step 1, rank 0 follows step 0, rank 0" in lines
    )


def test_another_rank_follows_where_its_parameters_part(tmp_path: Path) -> None:
    followers = Followers()
    ranks = [of_step(tmp_path, "step0", "rank0", SAME, True), of_step(tmp_path, "step0", "rank1", SAME)]
    assert [each.answer for each in followers.add_step(ranks)] == ["divergence", "none"]
    later = [of_step(tmp_path, "step1", label, APART) for label in ("rank0", "rank1")]
    assert [each.follows for each in followers.add_step(later)] == [Origin("step0", "rank0")] * 2


@pytest.mark.parametrize("carried", [SAME, Carried(7, 7, False)])
def test_a_step_with_equal_parameters_is_judged_for_itself(tmp_path: Path, carried: Carried) -> None:
    followers = Followers()
    followers.add_step([of_step(tmp_path, "step0", carried=SAME, is_bad=True)])
    (good,) = followers.add_step([of_step(tmp_path, "step1", carried=carried)])
    (bad,) = followers.add_step([of_step(tmp_path, "step2", carried=carried, is_bad=True)])
    assert (good.answer, bad.answer, bad.follows) == ("none", "divergence", None)


def test_batches_of_an_evaluation_do_not_follow_each_other(tmp_path: Path) -> None:
    # Its parameters differ by their types, and neither run changes them.
    followers = Followers()
    followers.add_step([of_step(tmp_path, "step0", carried=APART, is_bad=True)])
    (found,) = followers.add_step([of_step(tmp_path, "step1", carried=APART)])
    assert found.follows is None and found.answer == "none"


def test_what_arrives_by_a_communication_follows_the_rank_that_sent_it(tmp_path: Path) -> None:
    sender, receiver = (of_step(tmp_path, "step0", label, SAME, True) for label in ("rank0", "rank1"))
    assert receiver.divergence is not None
    first = replace(receiver.divergence.first, communicates=True)
    receiver = replace(receiver, divergence=replace(receiver.divergence, first=first))
    found = Followers().add_step([sender, receiver])
    assert [each.answer for each in found] == ["divergence", "cannot_tell"]
    assert found[1].follows == Origin("step0", "rank0")


def test_other_data_of_a_step_that_follows_is_still_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followers = Followers()
    followers.add_step([of_step(tmp_path, "step0", carried=SAME, is_bad=True)])
    golden = chain()
    monkeypatch.setattr(divergence_runs, "X", X * 2)
    later = replace(summary(tmp_path / "later", chain(), golden), step="step1", label="rank0", carried=APART_LATER)
    assert later.divergence is not None and ".input." in later.divergence.first.item
    (found,) = followers.add_step([later])
    assert found.divergence is None and "input.0" in found.with_effect[-1].reason
