"""The three answers, how much was compared, and what a divergence has reached."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from divergence_runs import Run, W, X, call, chain, tensor, whole, write
from msgspec.structs import replace

from probe.common.dump.journal import REPLACE, Header, JournalWriter
from probe.common.dump.layout import JOURNAL_FILE
from probe.common.dump.reading.dump import read
from probe.compare import summary_text
from probe.compare.comparison import compare_dumps
from probe.compare.result import Carried, Coverage, Origin
from probe.compare.runner import Followers
from probe.compare.summary import Summary, fails, is_unjudged, summarise
from probe.compare.summary_text import headline

# --- the three answers: a divergence, none, and that nobody can tell; and what a divergence has reached

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


@pytest.mark.parametrize(
    ("times", "ratio"), [(1024, "; its norm is 1,024 times that"), (1 / 8, "; its norm is 1/8 of that"), (1.5, "")]
)
def test_a_relative_error_of_one_has_the_ratio_of_the_norms(times: float, ratio: str, tmp_path: Path) -> None:
    y = X @ W
    name = "Functional.linear.0.forward"
    wrong, right = ({name: call([tensor(X), tensor(W)], tensor(factor * y))} for factor in (np.float32(times), 1))
    (effect,) = [text for text, _ in headline([summary(tmp_path, wrong, right)]) if text.startswith("  effect: ")]
    assert effect.endswith(f"(identical inputs){ratio} of the golden run" if ratio else "(identical inputs)")


def test_steps_that_agree_are_named_as_those_that_were_compared(tmp_path: Path) -> None:
    found = summary(tmp_path, chain(), chain())
    said = headline([replace(found, step=f"step{number}", label="rank0") for number in (0, 1, 2, 5)])
    assert [text.partition(";")[0] for text, _ in said] == [
        "no divergence: nothing differs", "  steps 0-2, 5 compared"
    ]  # fmt: skip
    assert len(headline([found])) == 1


def test_inputs_of_another_form_are_not_called_identical(tmp_path: Path) -> None:
    name, y = "Functional.linear.0.forward", X @ W
    right = {name: call([tensor(X), tensor(W)], tensor(y))}
    shorter = {name: call([tensor(X, "torch.bfloat16"), tensor(W)], tensor(y * np.float32(1.5)))}
    parts = {name: call([tensor(X[:-1]), tensor(W)], tensor(y * np.float32(1.5)))}
    for number, (wrong, words) in enumerate(((shorter, "inputs of another dtype"), (parts, "inputs of another shape"))):
        said = [text for text, _ in headline([summary(tmp_path / str(number), wrong, right)])]
        assert any(text.startswith("  effect: ") and text.endswith(f"({words})") for text in said), said


def test_another_way_to_compute_a_function_cannot_be_told_in_a_short_type(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    answers = []
    for dtype in ("torch.bfloat16", "torch.float32"):
        exact = {"Functional.gelu.0.forward": call([tensor(values, dtype)], tensor(values, dtype))}
        by_tanh = {"Functional.gelu.0.forward": call([tensor(values, dtype)], tensor(values, dtype))}
        by_tanh["Functional.gelu.0.forward"]["input_kwargs"] = {"approximate": {"type": "str", "value": "tanh"}}
        answers.append(summary(tmp_path / dtype, by_tanh, exact).answer)
    assert answers == ["cannot_tell", "none"]


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


def test_what_a_call_keeps_for_the_next_step_cannot_be_told_from_this_one(tmp_path: Path) -> None:
    def run(momentum: float) -> Run:
        record = call([tensor(X), tensor(W[0]), tensor(W[1])], tensor(np.tanh(X)))
        record["input_kwargs"] = {"momentum": {"type": "float", "value": momentum}}
        return {**chain(), "Functional.batch_norm.0.forward": record}

    found = summary(tmp_path, run(0.2), run(0.1))
    assert found.answer == "cannot_tell" and "momentum" in found.why


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
    assert next_one.why == "step 1, rank 0 is not judged: step 0, rank 0 diverges before it"
    assert next_one.as_json()["divergence"]["follows"] == {"step": "step0", "label": "rank0"}
    lines = [text for text, _ in headline([bad, next_one])]
    assert (
        lines[0].startswith("first divergence: step 0, rank 0: ")
        and "  step 1, rank 0 is not judged: step 0, rank 0 diverges before it" in lines
    )


def test_what_arrives_by_a_communication_follows_the_rank_that_sent_it(tmp_path: Path) -> None:
    sender, receiver = (of_step(tmp_path, "step0", label, SAME, True) for label in ("rank0", "rank1"))
    assert receiver.divergence is not None
    first = replace(receiver.divergence.first, communicates=True)
    receiver = replace(receiver, divergence=replace(receiver.divergence, first=first))
    found = Followers().add_step([sender, receiver])
    assert [each.answer for each in found] == ["divergence", "cannot_tell"]
    assert found[1].follows == Origin("step0", "rank0")


def test_batches_of_an_evaluation_do_not_follow_each_other(tmp_path: Path) -> None:
    # Its parameters differ by their types, and neither run changes them.
    followers = Followers()
    followers.add_step([of_step(tmp_path, "step0", carried=APART, is_bad=True)])
    (found,) = followers.add_step([of_step(tmp_path, "step1", carried=APART)])
    assert found.follows is None and found.answer == "none"


# --- how much was compared stands in the first line, so that silence about little is not taken for agreement


def first_line(found: Summary) -> str:
    return summary_text.headline([found])[0][0]


def named_otherwise(run: Run, calls: int) -> Run:
    """The run, with other names for its last calls."""
    names = list(run)
    return {name.replace("Torch", "Other").replace("Functional", "Other") if name in names[-calls:] else name: record
            for name, record in run.items()}  # fmt: skip


@pytest.mark.parametrize(("others", "compared", "expected"), [
    (0, 24, "no divergence: nothing differs"),
    (1, 22, "no divergence: all differences are within rounding error; 22 of 24 records compared"),
    (6, 12, "cannot be told: not enough in common: only 12 of 24 records match (50 %)"),
])  # fmt: skip
def test_the_compared_share_stands_in_the_first_line_and_too_little_proves_nothing(
    tmp_path: Path, others: int, compared: int, expected: str
) -> None:
    found = summary(tmp_path, named_otherwise(chain(), others) if others else chain(), chain())
    assert found.coverage == Coverage(compared, 24, 0, 0) and first_line(found) == expected
    assert is_unjudged([found]) == (others == 6) and not fails([found], "divergence")


def test_json_has_the_coverage_and_every_difference_without_effect(tmp_path: Path) -> None:
    target = chain()
    for record in target.values():
        record["input_kwargs"] = {"out": {"type": "int", "value": 1}}
    found = summary(tmp_path, target, chain())
    assert [text for text, _ in summary_text.headline([found])] == [
        "no divergence: all differences are within rounding error",
        "  12 differences without effect on any value; an effect of 2.4e-07 or more would be visible",
        "  without effect: Functional.linear.0.forward and 11 more: argument out = 1 in the target only",
    ]
    said = json.loads(json.dumps(found.as_json()))
    assert said["coverage"]["compared_records"] == said["coverage"]["records"] == 24
    assert len(said["without_effect"]) == 12
    assert said["without_effect"][0]["reason"] == "out is 1 in the target only"


def test_two_models_that_share_a_loss_alone_have_no_first_divergence(tmp_path: Path) -> None:
    def model(class_name: str, number: int, rows: int, size: float) -> Run:
        layers = {}
        for n in range(number):
            result = tensor(np.tanh(X[:rows, :rows] + n * size))
            record = call([tensor(X[:rows])], result, weight=tensor(W[:rows] + n * size))
            layers[f"Module.{class_name.lower()}{n}.{class_name}.forward.0"] = record
        return {**layers, "Functional.cross_entropy.0.forward": call([tensor(X)], tensor(X * size))}

    found = summary(tmp_path / "two", model("Linear", 6, 3, 1.0), model("LayerNorm", 5, 2, 3.0))
    assert first_line(found) == "cannot be told: not enough in common: only 2 of 13 records match (15 %)"
    found = summary(tmp_path / "one", model("Linear", 6, 3, 1.0), model("Linear", 6, 3, 3.0))
    assert first_line(found).startswith("first divergence: ")


def test_batches_of_other_shapes_are_the_advice_where_too_little_is_in_common(tmp_path: Path) -> None:
    """Tokens of a padded batch in one run, and of a packed one in the other: the first thing to make alike."""
    sides = []
    for side, rows in (("target", 11), ("golden", 16)):
        embed = {"Module.embed.Embedding.forward.0": call([whole(np.arange(4 * rows).reshape(rows, 4))], tensor(X))}
        folder = tmp_path / side / "step0" / "rank0"
        write(folder, {**embed, **(chain() if side == "golden" else named_otherwise(chain(), 11))})
        (tmp_path / side / "environment_rank0.json").write_text(json.dumps({"format": 1}))
        sides.append(read(folder))
    lines = [text for text, _ in summary_text.headline([summarise(compare_dumps(*sides))])]
    assert lines[0].startswith("cannot be told: not enough in common") and "[11, 4]" in lines[1]
    assert lines[2].startswith("  next:   give both runs batches of one shape")


# --- runs of which one ends early, and runs of other levels: what they have in common is compared, and the rest is told

NONE = "no divergence in what both runs have"


def cut(run: Run, calls: int) -> Run:
    return dict(list(run.items())[:calls])


def died(folder: Path, run: Run) -> Path:
    """The folder of a process that was killed after these calls."""
    folder.mkdir(parents=True)
    writer = JournalWriter(str(folder / JOURNAL_FILE), Header("statistics", "mix", "pytorch", None))
    for number, (name, fields) in enumerate(run.items()):
        writer.record(name, number, -1, None, number, REPLACE, fields)
    writer.close()
    return folder


def summary_of(target: Path, golden: Path) -> Summary:
    return summarise(compare_dumps(read(target), read(golden)))


def said(found: Summary) -> list[str]:
    return [text.strip() for text, _ in [*summary_text.headline([found]), *summary_text.lines(found)]]


@pytest.mark.parametrize(("calls", "of_golden", "journal", "expected"), [
    (7, 12, False, "the target ends at Functional.linear.3.forward; the golden run has 5 more records"),
    (12, 11, False, "the golden run ends at Functional.linear.5.forward; the target has 1 more record"),
    (7, 12, True, "the target is the journal of a run that died; it ends at Functional.linear.3.forward; "
                  "the golden run has 5 more records"),
    (12, 12, True, "the target is the journal of a run that died; it ends at Torch.tanh.5.forward"),
])  # fmt: skip
def test_a_run_that_ends_early_is_reported_and_no_divergence(
    tmp_path: Path, calls: int, of_golden: int, journal: bool, expected: str
) -> None:
    target = (died if journal else write)(tmp_path / "a", cut(chain(), calls))
    found = summary_of(target, write(tmp_path / "b", cut(chain(), of_golden)))
    text = said(found)
    assert text[0] == (NONE if calls != of_golden else "no divergence: nothing differs") and text[2] == expected
    (ending,) = found.as_json()["endings"]
    assert ending["died"] == journal and ending["cut_at"] is None
    assert calls == of_golden or f"{ending['more']} more record" in expected


def test_a_fault_before_the_end_is_named_all_the_same(tmp_path: Path) -> None:
    found = summary_of(write(tmp_path / "a", cut(chain(constant=2, at=1), 7)), write(tmp_path / "b", chain()))
    assert found.divergence is not None and found.divergence.record == "Functional.linear.1.forward"
    assert len(found.truncations) == 1


# --- levels

AROUND = "Module.{}.Block.forward.0"


def leveled(folder: Path, level: str, constant: float = 1.0) -> Path:
    """Three blocks of one function each, as a run records them at `level`."""
    data: Run = {}
    tree: dict[str, str | None] = {}
    x = X
    for number in range(3):
        function, block = f"Functional.relu.{number}.forward", AROUND.format(number)
        y = x * (constant if number == 1 else 1.0)
        if level != "L0":
            data[function] = call([tensor(x)], tensor(y))
        if level != "L1":
            data[block] = call([tensor(x)], tensor(y))
            tree[block] = None
        if level != "L1" and level != "L0":
            tree[function] = block
        x = y
    write(folder, data, tree, level)
    if level == "L1":
        (folder / "construct.json").write_text(json.dumps({}))
    return folder


@pytest.mark.parametrize(
    ("target", "golden", "both"),
    [
        ("L0", "mix", "only modules are"),
        ("mix", "L0", "only modules are"),
        ("L1", "mix", "only functions are"),
        ("mix", "L1", "only functions are"),
        ("L0", "L1", "nothing is"),
    ],
)
def test_two_levels_are_reported_and_what_one_does_not_record_is_no_divergence(
    tmp_path: Path, target: str, golden: str, both: str
) -> None:
    found = summary_of(leveled(tmp_path / "a", target), leveled(tmp_path / "b", golden))
    text = said(found)
    assert text[2] == f'the target has level "{target}" and the golden run "{golden}": {both} in both'
    assert found.divergence is None and found.as_json()["levels"] == (target, golden)
    assert text[0] == (
        NONE if found.has_matches else "cannot be told: no record of one dump matches a record of the other"
    )


@pytest.mark.parametrize("level", ["L0", "L1"])
@pytest.mark.parametrize("turned", [False, True])
def test_between_two_levels_the_fault_is_named_in_what_both_record(tmp_path: Path, level: str, turned: bool) -> None:
    paths = leveled(tmp_path / "a", level, 2.0), leveled(tmp_path / "b", "mix")
    target, golden = paths[::-1] if turned else paths
    divergence = summary_of(target, golden).divergence
    expected = AROUND.format(1) if level == "L0" else "Functional.relu.1.forward"
    assert divergence is not None and divergence.record == expected
    assert divergence.first.reason.startswith("output.0 differs by 5.0e-01 of its size")
