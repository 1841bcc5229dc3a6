"""Two programs that are not the same program: what is computed in another place, and whose code is to blame."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import Run, W, X, backward, call, compared, named, result_of, rounded, tensor
from made_dumps import plain
from numpy.typing import NDArray

from probe.common.align.row import Row
from probe.common.dump.reading.records import Record
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.differences import of_hidden
from probe.compare.divergence.two_programs.following import Outcome
from probe.compare.divergence.two_programs.graph import Graph
from probe.compare.divergence.two_programs.regions import Regions

EMBED, NORM = "Module.embed.Embedding.forward.0", "Module.norm.LayerNorm.forward.0"
HEAD = "Module.head.Linear.forward.0"
SCALED = "Tensor.__mul__.0.forward"


def scaled_in(place: str, factor: float = 8.0) -> Run:
    """An embedding that is scaled inside of its module or right behind it, and two layers on it."""
    inside = factor if place == "inside" else 1.0
    x = X * factor
    normed = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) + x[0, 0]
    return {
        EMBED: call([tensor(np.abs(X))], tensor(X * inside)),
        NORM: call([tensor(x)], tensor(normed)),
        HEAD: call([tensor(normed)], tensor(normed @ W)),
        EMBED.replace("forward", "backward"): backward([tensor(W * 8.0 / inside)], None),
    }


@pytest.mark.parametrize("sides", [("inside", "behind"), ("behind", "inside")])
def test_what_one_side_computes_in_the_next_place_is_no_divergence(tmp_path: Path, sides: tuple[str, str]) -> None:
    result = result_of(tmp_path, scaled_in(sides[0]), scaled_in(sides[1]), level="L0")
    assert result.divergence is None and result.without_effect


def test_it_is_one_where_what_is_computed_from_it_differs(tmp_path: Path) -> None:
    target, golden = scaled_in("inside", 8.0), scaled_in("behind", 16.0)
    assert named(compared(tmp_path, target, golden, level="L0")) == EMBED


def tensor_in(dtype: str, array: NDArray[np.float32]) -> dict[str, Any]:
    """The entry of a tensor, whose statistics are numbers of its type."""
    entry: dict[str, Any] = tensor(array, dtype)
    if dtype == "torch.bfloat16":
        for each in ("Max", "Min", "Mean", "Norm"):
            entry[each] = float(rounded([entry[each]], "bfloat16")[0])
    return entry


def scaled_in_two_precisions(factor: float, of_golden: float) -> tuple[Run, Run]:
    """An embedding scaled behind its module in bfloat16, and inside in float32, a norm in float32, and a product."""
    sides: list[Run] = []
    for is_short in (True, False):
        kind = "bfloat16" if is_short else "float32"
        kept, dtype = partial(rounded, kind=kind), f"torch.{kind}"
        table, weight, scale = kept(X), kept(W), factor if is_short else of_golden
        x = kept(table * np.float32(scale))
        normed = x / np.sqrt(np.square(x).mean(-1, keepdims=True))
        returned = x if not is_short else table
        data = {
            EMBED: call(
                [tensor(np.arange(16), "torch.int64")], tensor_in(dtype, returned), weight=tensor_in(dtype, table)
            )
        }
        if is_short:
            data[SCALED] = call([tensor_in(dtype, table), plain(scale)], tensor_in(dtype, x))
        # A cast that is not recorded brings what bfloat16 rounded into a tensor of float32.
        data["Functional.rms_norm.0.forward"] = call([tensor(x)], tensor(normed))
        total = kept(x + normed)
        data["Tensor.__add__.0.forward"] = call(
            [tensor_in(dtype, x), tensor_in(dtype, kept(normed))], tensor_in(dtype, total)
        )
        for layer in range(4):
            before, total = total, kept(total @ weight)
            taken = [tensor_in(dtype, before), tensor_in(dtype, weight)]
            data[f"Functional.linear.{layer}.forward"] = call(taken, tensor_in(dtype, total))
        sides.append(data)
    return sides[0], sides[1]


def regions_of(target: Run, golden: Run) -> tuple[Regions, AlignedCall]:
    """The regions of two runs, and the first call of both."""
    rows = [row for name in target if name in golden for row in of_both(name, target, golden).rows]
    if SCALED in target:
        rows += [Row(SCALED, item, None) for item in Record(SCALED, target[SCALED], "dump.json").items()]
    tree: dict[str, str | None] = dict.fromkeys(target)
    order = {name: place for place, name in enumerate(target)}
    rows.sort(key=lambda row: order[row.record])
    first = next(name for name in target if name in golden)
    return Regions(rows, list(golden), (tree, dict.fromkeys(golden))), of_both(first, target, golden)


@pytest.mark.parametrize("factor", [8.0, 64.0])
def test_a_factor_that_the_other_program_applies_right_behind_is_no_divergence_in_two_precisions(factor: float) -> None:
    """The product is large beside what is multiplied, which would hide a difference of a part of a sum."""
    regions, embedding = regions_of(*scaled_in_two_precisions(factor, factor))
    assert regions.outcome(embedding, f"{EMBED}.output.0", 1.0 - 1.0 / factor).outcome is Outcome.AGREES
    assert not regions.is_factor_left(embedding, f"{EMBED}.output.0")


def test_another_factor_is_left_in_two_precisions() -> None:
    regions, embedding = regions_of(*scaled_in_two_precisions(8.8, 8.0))
    assert regions.outcome(embedding, f"{EMBED}.output.0", 0.875).outcome is not Outcome.AGREES
    assert regions.is_factor_left(embedding, f"{EMBED}.output.0")


def test_a_tensor_of_float32_holds_what_a_short_type_rounded_before_a_cast() -> None:
    target, golden = scaled_in_two_precisions(8.0, 8.0)
    regions, _ = regions_of(target, golden)
    norm = of_both("Functional.rms_norm.0.forward", target, golden)
    assert [regions.usual_before(EMBED, row) for row in norm.rows] == [2.0**-8] * 2


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_a_parameter_in_another_form_is_one_whose_layer_returns_the_same(factor: float) -> None:
    """One program holds a scale, the other its distance from 1."""
    weight = np.linspace(-0.5, 0.5, 64, dtype=np.float32)
    target = {NORM: call([tensor(X)], tensor(X * (1.0 + weight)), weight=tensor(weight))}
    golden = {NORM: call([tensor(X)], tensor(X * (1.0 + weight) * factor), weight=tensor(weight + 1.0))}
    regions, _ = regions_of(target, golden)
    assert regions.returns_the_same(of_both(NORM, target, golden), 0.9) is (factor == 1.0)


def of_both(record: str, target: Run, golden: Run) -> AlignedCall:
    """A call of both sides, item by item."""
    items = [Record(record, side[record], "dump.json").items() for side in (target, golden)]
    return AlignedCall(record, record, [Row(record, one, other, record) for one, other in zip(*items)])


@pytest.mark.parametrize("in_both", [True, False])
def test_a_sum_with_zeros_is_no_evidence_that_they_agree(in_both: bool) -> None:
    """The sum is its other part, which the other side holds too, before its own sum."""
    branch, zeros = X @ W, X * 0.0

    def run(added: NDArray[np.float32]) -> Run:
        total = X + (zeros if in_both else added)
        return {
            EMBED: call([tensor(np.abs(X))], tensor(X)),
            "Module.branch.Linear.forward.0": call([tensor(X)], tensor(branch)),
            "Module.drop.Dropout.forward.0": call([tensor(branch)], tensor(added)),
            "Tensor.__add__.0.forward": call([tensor(X), tensor(zeros if in_both else added)], tensor(total)),
            NORM: call([tensor(total)], tensor(np.tanh(total))),
        }

    target, golden = run(zeros), run(branch)
    calls = [of_both(record, target, golden) for record in target]
    tree: dict[str, str | None] = dict.fromkeys(target)
    regions = Regions([row for each in calls for row in each.rows], list(golden), (tree, tree))
    outcome = regions.outcome(calls[2], "Module.drop.Dropout.forward.0.output.0", 1.0).outcome
    assert outcome is (Outcome.AGREES if in_both else Outcome.PARTS)


def test_a_difference_that_a_sum_hides_has_numbers() -> None:
    """A branch that is a ten-thousandth of the sum is 1 % off; the sum agrees, and would in any case."""
    branch, share = X @ W, 1e-4
    branch = branch * np.float32(share * np.linalg.norm(X) / np.linalg.norm(branch))

    def run(factor: float) -> Run:
        return {
            EMBED: call([tensor(np.abs(X))], tensor(X)),
            "Module.drop.Dropout.forward.0": call([tensor(np.abs(branch))], tensor(branch * factor)),
            "Tensor.__add__.0.forward": call([tensor(X), tensor(branch * factor)], tensor(X + branch)),
            NORM: call([tensor(X + branch)], tensor(np.tanh(X + branch))),
        }

    target, golden = run(1.01), run(1.0)
    calls = [of_both(record, target, golden) for record in target]
    tree: dict[str, str | None] = dict.fromkeys(target)
    regions = Regions([row for each in calls for row in each.rows], list(golden), (tree, tree))
    outcome, hidden = regions.outcome(calls[1], "Module.drop.Dropout.forward.0.output.0", 0.01)
    assert outcome is Outcome.HIDDEN and hidden is not None
    assert hidden.size == pytest.approx(0.01 * share, rel=0.02)
    assert hidden.shows_from == pytest.approx(min(regions.shows_from * 32, (2 * regions.shows_from) ** 0.5))
    told = "its relative error there is at most 1.0e-06, and would show from "
    assert told in of_hidden(*hidden)


@pytest.mark.parametrize(("kind", "standardises"), [
    ("InstanceNorm2d", True), ("SyncBatchNorm", True), ("BatchNormAct2d", True), ("BatchNorm1d", True),
    ("LayerNorm", False),
])  # fmt: skip
def test_what_standardises_shows_nothing_by_agreeing(kind: str, standardises: bool) -> None:
    """The statistics behind such a layer are the same of any input; what is made of its result tells."""
    norm = f"Module.norm.{kind}.forward.0"

    def run(seed: int) -> Run:
        random = np.random.default_rng(seed)
        x: NDArray[np.float32] = X if seed == 0 else random.normal(3.0, 2.0, size=X.shape).astype(np.float32)
        end = X @ W if seed == 0 else np.abs(X) @ W
        return {
            EMBED: call([tensor(np.abs(X))], tensor(x)),
            norm: call([tensor(x)], tensor(np.tanh(X))),
            HEAD: call([tensor(np.tanh(X))], tensor(end)),
        }

    target, golden = run(1), run(0)
    calls = [of_both(record, target, golden) for record in target]
    tree: dict[str, str | None] = dict.fromkeys(target)
    regions = Regions([row for each in calls for row in each.rows], list(golden), (tree, tree))
    outcome = regions.outcome(calls[0], f"{EMBED}.output.0", 1.0).outcome
    assert outcome is (Outcome.PARTS if standardises else Outcome.AGREES)


@pytest.mark.parametrize("has_equal_weights", [True, False])
def test_a_module_that_ends_with_the_next_layer_is_judged_there(has_equal_weights: bool) -> None:
    """On one side the norm is behind the block, on the other one inside; a fault in it is no fault of the block."""
    block, dense, x = "Module.block.Block.forward.0", X @ W, tensor(X)
    weight = np.linspace(0.5, 1.5, 64, dtype=np.float32)
    normed = np.tanh(dense), np.tanh(1.5 * dense)
    sides: list[Run] = []
    for number, found in enumerate(normed):
        own = weight if has_equal_weights or not number else weight * 2
        given = [tensor(np.abs(X)), tensor(dense)]
        sides.append({
            EMBED: call(given[:1], x),
            HEAD: call([x], given[1], weight=tensor(W)),
            NORM: call([given[1]], tensor(found), weight=tensor(own)),
            block: call([x], tensor(found) if number else given[1]),
            "Module.end.Linear.forward.0": call([tensor(found)], tensor(found @ W)),
        })  # fmt: skip
    calls = [of_both(record, *sides) for record in sides[0]]
    tree: dict[str, str | None] = dict.fromkeys(sides[0])
    regions = Regions([row for each in calls for row in each.rows], list(sides[1]), (tree, {**tree, NORM: block}))
    outcome = regions.outcome(calls[3], f"{block}.output.0", 1.0).outcome
    assert outcome is (Outcome.AGREES if has_equal_weights else Outcome.PARTS)


def test_at_l0_the_module_is_named_whose_own_code_made_what_differs(tmp_path: Path) -> None:
    """A block norms by functions and calls the attention, which calls its projection."""
    names = "h.Block", "h.attn.Attention", "h.attn.o.Linear"
    block, attention, projection = (f"Module.{name}.forward.0" for name in names)
    tree = {projection: attention, attention: block, block: None}

    def run(epsilon: float) -> Run:
        x = X / np.sqrt(np.square(X).mean(-1, keepdims=True) + epsilon)
        return {
            projection: call([tensor(x * 2)], tensor(x @ W)),
            attention: call([tensor(x)], tensor(x @ W)),
            block: call([tensor(X)], tensor(X + x @ W)),
        }

    assert named(compared(tmp_path, run(0.1), run(1e-6), tree, level="L0")) == block


def test_a_backward_of_a_module_with_forward_in_its_name_takes_nothing_of_the_forward() -> None:
    name, order = "Module.h.post_feedforward_layernorm.Norm.backward.0", dict.fromkeys(("x",), 0)
    graph = Graph({}, order)
    for item in Record(name, backward([tensor(X)], tensor(W)), "dump.json").items():
        graph.add(name, item)
    graph.complete()
    assert not graph.takers and not graph.makers
