"""The learned rules: silent over a healthy training, and each fault has its row, its step and its rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from monitor_rows import LAYERS, PARAMETERS, MadeTraining, changed

from probe.monitor.alerts.learned import LearnedRules
from probe.monitor.alerts.ranks import RankRules
from probe.monitor.alerts.rows import FamilyRows, Finding

Fault = Callable[[int, list[FamilyRows]], None]
FROM = 40


def judged(fault: Fault | None, steps: int = 120, seed: int = 0) -> list[Finding]:
    training, rules, found = MadeTraining(seed), LearnedRules(), []
    for step in range(steps):
        rows = training.step(step)
        if fault is not None and step >= FROM:
            fault(step, rows)
        found += rules.judge(rows)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_training_of_200_steps_raises_nothing(seed: int) -> None:
    assert judged(None, 200, seed) == []


@pytest.mark.parametrize(
    ("update", "expected"), [((0.1, 0.0, np.inf), []), ((0.0, 0.0, np.nan), []), ((np.inf, 1.0, np.inf), ["nonfinite"])]
)
def test_the_update_of_a_weight_that_begins_as_zero_is_healthy(
    update: tuple[float, float, float], expected: list[str]
) -> None:
    row = FamilyRows("update", ("norm.bias",), ("update_norm", "weight_norm", "ratio"), np.array([update]))
    assert [each.rule for each in LearnedRules().judge([row])] == expected


def _spike(step: int, rows: list[FamilyRows]) -> None:
    if step == FROM:
        changed(rows, "actv_grad", "blocks.3.output", 100)
        changed(rows, "grad_reduced", "blocks.3.weight", 100)


def _nan(step: int, rows: list[FamilyRows]) -> None:
    changed(rows, "actv", "blocks.2.output", 1, norm=np.nan)
    changed(rows, "grad_reduced", "head.weight", 1, max=np.inf)


def _dead(step: int, rows: list[FamilyRows]) -> None:
    changed(rows, "actv", "blocks.4.output", 0, zeros=1.0)


def _dead_gradient(step: int, rows: list[FamilyRows]) -> None:
    changed(rows, "grad_reduced", "blocks.1.weight", 0)


def _frozen(step: int, rows: list[FamilyRows]) -> None:
    for family in ("param_origin", "param_updated"):
        changed(rows, family, "blocks.5.weight", 0, norm=8.5, min=-1.0, max=1.0)


def _drift(step: int, rows: list[FamilyRows]) -> None:
    if step >= 64:
        changed(rows, "actv", "blocks.0.output", min(1.1 ** (step - 64), 1e4))


def _exploding(step: int, rows: list[FamilyRows]) -> None:
    for layer in range(LAYERS):
        changed(rows, "grad_reduced", f"blocks.{layer}.weight", 3e-3 * 7.0 ** (LAYERS - 1 - layer))


@pytest.mark.parametrize(
    ("fault", "rule", "family", "name", "step"),
    [
        (_spike, "spike", "actv_grad", "blocks.3.output", FROM),
        (_nan, "nonfinite", "actv", "blocks.2.output", FROM),
        (_dead, "dead", "actv", "blocks.4.output", FROM),
        (_dead_gradient, "dead", "grad_reduced", "blocks.1.weight", FROM),
        (_frozen, "unchanged", "param_updated", "blocks.5.weight", FROM + 1),
    ],
)
def test_a_fault_has_its_row_and_its_step(fault: Fault, rule: str, family: str, name: str, step: int) -> None:
    first, *_ = judged(fault)
    assert (first.rule, first.family, first.name) == (rule, family, name)
    assert abs(first.step - step) <= 1
    assert first.why and first.expected


def test_slow_growth_is_a_drift() -> None:
    first, *others = judged(_drift, 150)
    assert (first.rule, first.name, others) == ("drift", "blocks.0.output", [])
    # 1.1 ** 24 is ten times the size before.
    assert 86 <= first.step <= 92


def test_gradients_that_grow_over_the_layers_are_exploding() -> None:
    found = [each for each in judged(_exploding) if each.rule in ("exploding", "vanishing")]
    assert [(each.rule, each.name, each.step) for each in found] == [("exploding", "blocks.0.weight", FROM)]


def test_a_row_that_stays_abnormal_is_reported_once() -> None:
    assert len([each for each in judged(_nan) if each.name == "blocks.2.output"]) == 1


def test_a_mask_and_a_missing_gradient_are_not_reported() -> None:
    def mask(step: int, rows: list[FamilyRows]) -> None:
        changed(rows, "actv", "blocks.0.input", 1, min=-np.inf, norm=np.inf, mean=-np.inf)
        for each in rows:
            if each.family == "actv_grad":
                each.values[0] = np.nan
                assert each.judged is not None
                each.judged[0] = False

    assert judged(mask) == []


def test_rows_that_come_and_go_keep_their_histories() -> None:
    """An expert without tokens has no gradient in every third step."""
    training, rules, found = MadeTraining(), LearnedRules(), []
    for step in range(90):
        rows = training.step(step)
        if step % 3:
            rows = [each if each.family != "grad_reduced" else _without(each, 2) for each in rows]
        elif step == 60:
            changed(rows, "grad_reduced", "blocks.2.weight", 1000)
        found += rules.judge(rows)
    assert [(each.name, each.step) for each in found] == [("blocks.2.weight", 60)]


def _without(rows: FamilyRows, row: int) -> FamilyRows:
    return rows.chosen([index for index in range(len(rows.names)) if index != row])


@pytest.mark.parametrize("ranks", [2, 4])
def test_replicas_that_part_are_reported_with_their_rank(ranks: int) -> None:
    trainings = {rank: MadeTraining(0, rank) for rank in range(ranks)}
    rules, found = RankRules(), []
    for step in range(60):
        rows_of = {rank: training.step(step) for rank, training in trainings.items()}
        if step >= FROM:
            changed(rows_of[1], "grad_reduced", "blocks.2.weight", 1.01)
        found += rules.judge([each for rows in rows_of.values() for each in rows])
    assert [(each.rule, each.name, each.step, each.rank) for each in found] == [
        ("rank_divergence", "blocks.2.weight", FROM, 1)
    ]


def test_ranks_of_a_split_model_are_not_compared() -> None:
    trainings = {rank: MadeTraining(rank, rank) for rank in range(4)}
    rules, found = RankRules(), []
    for step in range(60):
        rows_of = {rank: training.step(step) for rank, training in trainings.items()}
        for rank, rows in rows_of.items():
            for name in PARAMETERS:
                for family in ("param_origin", "param_updated"):
                    changed(rows, family, name, 1 + 0.01 * rank)
        found += rules.judge([each for rows in rows_of.values() for each in rows])
    assert found == []


@pytest.mark.parametrize("synchronised", [(), (3,), (0,), (2, 4)])
@pytest.mark.parametrize("has_weights", [True, False])
def test_gradients_that_are_never_reduced_are_one_finding(synchronised: tuple[int, ...], has_weights: bool) -> None:
    """A step between that is reduced does not make a module of it."""
    apart = {rank: MadeTraining(rank, rank) for rank in range(2)}
    rules, found = RankRules(), []
    for step in range(8):
        rows_of = {rank: training.step(step) for rank, training in apart.items()}
        if step in synchronised:
            for one, other in zip(rows_of[0], rows_of[1]):
                if one.family == "grad_reduced":
                    other.values[:] = one.values
        if not has_weights:
            # The weights of the first step are always there.
            rows_of = {
                rank: [
                    replace(each, family="param_start") if each.family == "param_origin" else each
                    for each in rows if each.family != "param_updated" and (step == 0 or each.family != "param_origin")
                ]
                for rank, rows in rows_of.items()
            }  # fmt: skip
        found += rules.judge([each for rows in rows_of.values() for each in rows])
    (only,) = found
    since = 1 if 0 in synchronised else 0
    assert (only.rule, only.name, only.step) == ("not_reduced", "all parameters", since)
    assert f"gradients of replicas differ after the reduction from step {since} on" in only.why
    assert "not reduced" in only.why


def _without_gradient(name: str, rows: list[FamilyRows]) -> None:
    """Take the row of a gradient away, as where nothing uses a parameter any more."""
    at = next(at for at, each in enumerate(rows) if each.family == "grad_reduced")
    rows[at] = replace(_without(rows[at], rows[at].names.index(name)), judged=None)


def test_a_parameter_that_has_no_gradient_any_more_is_named_with_the_step() -> None:
    found = judged(lambda step, rows: _without_gradient("blocks.5.weight", rows))
    assert [(each.rule, each.family, each.name, each.step) for each in found] == [
        ("unchanged", "grad_reduced", "blocks.5.weight", FROM)
    ]


def test_a_gradient_that_is_missing_now_and_then_is_none() -> None:
    assert judged(lambda step, rows: _without_gradient("blocks.5.weight", rows) if step % 12 else None) == []
