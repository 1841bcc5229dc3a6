"""How much was compared stands in the first line, so that silence about little is not taken for agreement."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from divergence_runs import Run, W, X, call, chain, tensor, whole, write

from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps
from probe.compare.coverage import Coverage
from probe.compare.output import summary_text
from probe.compare.output.summary import Summary, fails, is_unjudged, summarise

Tree = dict[str, "str | None"]


def summary(folder: Path, target: Run, golden: Run, trees: tuple[Tree, Tree] = ({}, {})) -> Summary:
    paths = write(folder / "target", target, trees[0]), write(folder / "golden", golden, trees[1])
    return summarise(compare_dumps(read(paths[0]), read(paths[1])))


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


def test_functions_inside_a_module_with_a_counterpart_are_judged_at_its_border(tmp_path: Path) -> None:
    """One side computes in three calls what the other does in one."""
    block, weight = "Module.block.Block.forward.0", tensor(W)
    runs: list[Run] = []
    trees: list[Tree] = []
    for names in (["Torch.mul", "Torch.sum", "Torch.div"], ["Torch.baddbmm"]):
        calls = {f"{name}.0.forward": call([tensor(X)], tensor(X * 2)) for name in names}
        runs.append({**calls, block: call([tensor(X)], tensor(X @ W), weight=weight)})
        trees.append({**dict.fromkeys(calls, block), block: None})
    found = summary(tmp_path, runs[0], runs[1], (trees[0], trees[1]))
    assert found.coverage == Coverage(6, 6, 2, 2)
    assert first_line(found) == "no divergence: all differences are within rounding error"


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
