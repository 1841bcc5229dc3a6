"""The rules over the files of a run: silent over healthy trainings; each fault has its row, step, rule and words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from monitor_rows import LAYERS, PARAMETERS, MadeTraining, changed, write_first_layout

from probe.api.cli import main
from probe.monitor.alerts.rows import FamilyRows

Steps = list[list[FamilyRows]]
Fault = Callable[[int, list[FamilyRows]], None]
FROM = 40


class Report:
    """``msprobe monitor report`` of made rows."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys

    def __call__(self, *of_ranks: Steps) -> dict[str, Any]:
        for rank, steps in enumerate(of_ranks):
            write_first_layout(self._folder, steps, rank)
        assert main(["monitor", "report", str(self._folder), "--json"]) in (0, 1)
        answer: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return answer

    def alerts(self, *of_ranks: Steps) -> list[tuple[str, str, str, int]]:
        """The rule, the family, the name and the step of each alert."""
        return [(each["rule"], each["family"], each["name"], each["step"]) for each in self(*of_ranks)["alerts"]]


@pytest.fixture
def report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Report:
    return Report(tmp_path, capsys)


def trained(
    fault: Fault | None, steps: int = 80, families: str = "", seed: int = 0, rank: int = 0, first: int = FROM
) -> Steps:
    """The rows of a training; `families` are those that are written, by default all."""
    training, found = MadeTraining(seed, rank), []
    for step in range(steps):
        rows = [each for each in training.step(step) if not families or each.family in families.split()]
        if fault is not None and step >= first:
            fault(step, rows)
        found.append(rows)
    return found


def settings(values_of: Callable[[int], Mapping[str, float]], steps: int = 60) -> Steps:
    found = []
    for step in range(steps):
        values = values_of(step)
        numbers = np.array([[float(each)] for each in values.values()])
        found.append([FamilyRows("settings", tuple(values), ("value",), numbers, step=step)])
    return found


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_training_of_200_steps_raises_nothing(seed: int, report: Report) -> None:
    assert report.alerts(trained(None, 200, seed=seed)) == []


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


def _without(rows: FamilyRows, row: int) -> FamilyRows:
    return rows.chosen([index for index in range(len(rows.names)) if index != row])


def _without_gradient(step: int, rows: list[FamilyRows]) -> None:
    at = next(at for at, each in enumerate(rows) if each.family == "grad_reduced")
    rows[at] = replace(_without(rows[at], rows[at].names.index("blocks.5.weight")), judged=None)


@pytest.mark.parametrize(
    ("fault", "families", "expected"),
    [
        (_spike, "actv_grad grad_reduced", ("spike", "actv_grad", "blocks.3.output", FROM)),
        (_nan, "actv grad_reduced", ("nonfinite", "actv", "blocks.2.output", FROM)),
        (_dead, "actv", ("dead", "actv", "blocks.4.output", FROM)),
        (_dead_gradient, "grad_reduced", ("dead", "grad_reduced", "blocks.1.weight", FROM)),
        (_frozen, "param_origin param_updated", ("unchanged", "param_updated", "blocks.5.weight", FROM)),
        (_without_gradient, "", ("unchanged", "grad_reduced", "blocks.5.weight", FROM)),
    ],
)
def test_a_fault_has_its_row_and_its_step_and_is_reported_once(
    fault: Fault, families: str, expected: tuple[str, str, str, int], report: Report
) -> None:
    answer = report(trained(fault, families=families))
    first = answer["first"]
    assert (first["rule"], first["family"], first["name"]) == expected[:3] and abs(first["step"] - expected[3]) <= 1
    assert first["why"] and first["expected"]
    rows = [(each["family"], each["name"]) for each in answer["alerts"]]
    assert len(rows) == len(set(rows))


def test_slow_growth_is_a_drift_and_growth_over_the_layers_is_exploding(report: Report) -> None:
    def drift(step: int, rows: list[FamilyRows]) -> None:
        changed(rows, "actv", "blocks.0.output", min(1.1 ** (step - 64), 1e4))
        if step >= 100:
            for layer in range(LAYERS):
                changed(rows, "grad_reduced", f"blocks.{layer}.weight", 3e-3 * 7.0 ** (LAYERS - 1 - layer))

    found = report.alerts(trained(drift, 121, "actv grad_reduced", first=64))
    # 1.1 ** 24 is ten times the size before.
    ((rule, *_, name, step),) = (each for each in found if each[1] == "actv")
    assert (rule, name) == ("drift", "blocks.0.output") and 86 <= step <= 92
    grown = [(rule, name, step) for rule, _, name, step in found if rule in ("exploding", "vanishing")]
    assert grown == [("exploding", "blocks.0.weight", 100)]


def test_masks_gaps_and_weights_that_begin_as_zero_are_no_fault(report: Report) -> None:
    """An expert without tokens has no gradient in every third step; its rows keep their histories."""

    def healthy(step: int, rows: list[FamilyRows]) -> None:
        changed(rows, "actv", "blocks.0.input", 1, min=-np.inf, norm=np.inf, mean=-np.inf)
        if step % 3:
            at = next(at for at, each in enumerate(rows) if each.family == "grad_reduced")
            rows[at] = _without(rows[at], 2)
        elif step == 60:
            changed(rows, "grad_reduced", "blocks.2.weight", 1000)
        update = np.array([[0.1, 0.0, np.inf]] if step else [[0.0, 0.0, np.nan]])
        rows.append(FamilyRows("update", ("norm.bias",), ("update_norm", "weight_norm", "ratio"), update, step=step))

    found = report.alerts(trained(healthy, families="actv grad_reduced", first=0))
    assert found == [("spike", "grad_reduced", "blocks.2.weight", 60)]


# --- several ranks


@pytest.mark.parametrize("ranks", [2, 4])
def test_replicas_that_part_are_reported_with_their_rank(ranks: int, report: Report) -> None:
    def part(step: int, rows: list[FamilyRows]) -> None:
        changed(rows, "grad_reduced", "blocks.2.weight", 1.01)

    answer = report(*(trained(part if rank == 1 else None, 60, rank=rank) for rank in range(ranks)))
    assert [(each["rule"], each["name"], each["step"], each["rank"]) for each in answer["alerts"]] == [
        ("rank_divergence", "blocks.2.weight", FROM, 1)
    ]


def test_ranks_of_a_split_model_are_not_compared(report: Report) -> None:
    def scaled(rank: int) -> Fault:
        def change(step: int, rows: list[FamilyRows]) -> None:
            for name in PARAMETERS:
                for family in ("param_origin", "param_updated"):
                    changed(rows, family, name, 1 + 0.01 * rank)

        return change

    families = "grad_reduced param_origin param_updated"
    assert report.alerts(*(trained(scaled(rank), 30, families, rank, rank, 0) for rank in range(4))) == []


@pytest.mark.parametrize("synchronised", [(), (3,), (0,), (2, 4)])
@pytest.mark.parametrize("has_weights", [True, False])
def test_gradients_that_are_never_reduced_are_one_finding(
    synchronised: Sequence[int], has_weights: bool, report: Report
) -> None:
    """A step between that is reduced does not make a module of it."""
    runs = [trained(None, 8, seed=rank, rank=rank) for rank in range(2)]
    for step, (ours, theirs) in enumerate(zip(*runs)):
        for one, other in zip(ours, theirs):
            if step in synchronised and one.family == "grad_reduced":
                other.values[:] = one.values
    if not has_weights:
        # The weights of the first step are always there.
        runs = [
            [
                [
                    replace(each, family="param_start") if each.family == "param_origin" else each
                    for each in rows if each.family != "param_updated" and (step == 0 or each.family != "param_origin")
                ]
                for step, rows in enumerate(run)
            ]
            for run in runs
        ]  # fmt: skip
    (only,) = report(*runs)["alerts"]
    since = 1 if 0 in synchronised else 0
    assert (only["rule"], only["name"], only["step"]) == ("not_reduced", "all parameters", since)
    assert f"from step {since} on" in only["why"] and "not reduced" in only["why"]


# --- the course of hyper-parameters, the optimizer and the loss scale


@pytest.mark.parametrize(
    ("name", "before", "after", "words"),
    [
        ("group0.beta2", 0.999, 0.5, "beta2 changes from 0.999 to 0.5"),
        ("group1.weight_decay", 0.01, 100.0, "weight_decay changes from 0.01 to 100"),
        ("group0.weight_decay", 0.1, 0.0, "weight_decay changes from 0.1 to 0"),
        ("group0.lr", 1e-3, 0.1, "lr changes from 0.001 to 0.1"),
        ("group0.momentum", 0.9, 0.0, "momentum changes from 0.9 to 0"),
        ("state.parameters", 12.0, 0.0, "state starts anew"),
        ("tied: tok.weight = head.weight", 1.0, 0.0, "part: tok.weight = head.weight"),
        ("loss_scale", 65536.0, 1.0, "falls from 65536 to 1"),
    ],
)
def test_a_number_that_jumps_is_named(name: str, before: float, after: float, words: str, report: Report) -> None:
    (found,) = report(settings(lambda step: {name: before if step < 30 else after}))["alerts"]
    assert (found["step"], found["name"], found["family"]) == (30, name, "settings")
    assert words in found["why"]


def test_a_counter_that_falls_is_a_state_that_starts_anew_and_a_collapse_is_told_to_its_end(report: Report) -> None:
    def numbers(step: int) -> dict[str, float]:
        scale, skipped = {60: (2.0**-8, 19), 61: (2.0**-38, 30)}.get(step, (1024.0, 0))
        counted = {"state.step": float(step % 30 if step < 60 else step), "state.parameters": 3.0}
        return {**counted, "loss_scale": scale, "loss_scale.skipped_steps": float(skipped)}

    found = {each["rule"]: each for each in report(settings(numbers, 62))["alerts"]}
    assert found["optimizer_state"]["step"] == 30
    collapse = next(each for rule, each in found.items() if "scale" in rule)
    assert all(part in collapse["why"] for part in ("1024", "3.64e-12", "49 steps"))


def test_a_schedule_raises_nothing(report: Report) -> None:
    schedules: list[Callable[[int], float]] = [
        lambda step: min(1.0, step / 20),
        lambda step: 0.1 * 0.1 ** (step // 20),
        lambda step: 0.5 * (1 + np.cos(np.pi * (step % 15) / 15)) + 1e-9,
        lambda step: 0.0 if step < 30 else 1e-3,
    ]

    def values(step: int) -> dict[str, float]:
        rates = {f"group{number}.lr": rate(step) for number, rate in enumerate(schedules)}
        return {
            **rates,
            "group4.momentum": 0.95 - 0.1 * abs(step / 60 - 0.5),
            "group5.weight_decay": 0.04 * 1.05**step,
            "state.step": step,
            "state.parameters": float(min(step, 9)),
            "tied: a = b": 1.0,
        }

    assert report.alerts(settings(values)) == []


@pytest.mark.parametrize(
    "scale", [lambda step: 2.0**16 * 2 ** (step // 9 % 3), lambda step: 2.0 ** (24 - step) if step < 4 else 2.0**20]
)
def test_a_loss_scale_that_is_looked_for_raises_nothing(scale: Callable[[int], float], report: Report) -> None:
    assert report.alerts(settings(lambda step: {"loss_scale": scale(step)})) == []


def test_moments_of_a_first_update_are_a_state_that_starts_anew(report: Report) -> None:
    """The first layout has the moments before a step, which are zero at the first."""
    draws, again, names, steps = np.random.default_rng(0), np.random.default_rng(1), ("a", "b", "c", "d"), []
    for step in range(40):
        gradients = draws.uniform(1, 2, (4, 1))
        factors = np.zeros(4) if step in (0, 30) else again.uniform(0.3, 0.6, 4)
        states = FamilyRows("exp_avg", names, ("norm",), gradients * factors[:, None], step=step)
        steps.append([FamilyRows("grad_reduced", names, ("norm",), gradients, step=step), states])
    found = [each for each in report(steps)["alerts"] if each["rule"] == "optimizer_state"]
    assert [(each["step"], "starts anew" in each["why"]) for each in found] == [(30, True)]


# --- experts, and gradients that fall at once


def gradients(size_of: Callable[[int, str], float], names: Sequence[str], absent: bool = False) -> Steps:
    """Gradients of these sizes with some noise; with `absent` those of size 0 have no row."""
    draws, found = np.random.default_rng(0), []
    for step in range(80):
        sizes = {name: size_of(step, name) for name in names}
        shown = {name: size for name, size in sizes.items() if size or not absent}
        values = np.array(list(shown.values()))[:, None] * draws.uniform(0.8, 1.2, (len(shown), 1))
        found.append([FamilyRows("grad_reduced", tuple(shown), ("norm",), values, step=step)])
    return found


EXPERTS = ["head.weight", *(f"layers.1.experts.{each}.up.weight" for each in range(6))]


@pytest.mark.parametrize("absent", [True, False])
@pytest.mark.parametrize("collapses", [True, False])
def test_a_router_that_goes_to_one_expert_is_named_and_experts_that_starve_are_not(
    collapses: bool, absent: bool, report: Report
) -> None:
    def size(step: int, name: str) -> float:
        before = {step % 6, (step + 2) % 6, (step + 3) % 6} if collapses else {*range(6)}
        active = before if step < 30 else {4} if collapses else {1, 4}
        return float(name == "head.weight" or int(name.split(".")[3]) in active)

    answer = report(gradients(size, EXPERTS, absent))
    if not collapses:
        assert answer["alerts"] == []
        return
    first = answer["first"]
    assert (first["rule"], first["step"]) == ("router_collapse", 30) and "layers.1.experts.4" in first["why"]


@pytest.mark.parametrize(
    ("size_of", "falls"),
    [
        (lambda step, row: (row + 1) * (1e-6 if step >= 30 else 1.0), True),
        (lambda step, row: 10 ** (-0.5 * step), False),
        (lambda step, row: 1e-6 if step == 30 else 1.0, False),
        (lambda step, row: 1e-6 if step >= 30 and row else 1.0, False),
        (lambda step, row: 0.0 if step >= 30 else 1.0, False),
        (lambda step, row: 1e-6 if step >= 30 or step % 9 == 0 else 1.0, False),
    ],
    ids=["a fall", "convergence", "one batch", "some parameters", "no gradients", "as often before"],
)
def test_gradients_that_all_fall_in_one_step_are_reported(
    size_of: Callable[[int, int], float], falls: bool, report: Report
) -> None:
    names = ["a.weight", "a.bias", "b.weight"]
    found = report.alerts(gradients(lambda step, name: size_of(step, names.index(name)), names))
    assert [step for rule, _, _, step in found if rule == "gradient_fall"] == ([30] if falls else [])


# --- incidents


def test_an_alert_that_is_no_fault_does_not_hide_a_fault_behind_it(report: Report) -> None:
    def faults(step: int, rows: list[FamilyRows]) -> None:
        for family in ("param_origin", "param_updated"):
            changed(rows, family, "blocks.0.weight", 0, norm=8.5, min=-1.0, max=1.0)
        if step >= FROM + 25:
            changed(rows, "actv", "blocks.3.output", 1, norm=np.nan)
            changed(rows, "grad_reduced", "head.weight", 1, norm=np.nan)
        if step >= FROM + 26:
            changed(rows, "actv", "blocks.0.input", 1, norm=np.nan)

    answer = report(trained(faults))
    assert [each["alerts"] for each in answer["incidents"]] == [1, 3]
    assert (answer["first"]["name"], answer["first"]["step"]) == ("blocks.3.output", FROM + 25)


def test_what_follows_another_hyper_parameter_is_its_consequence(report: Report) -> None:
    """Another batch is none."""

    def faults(step: int, rows: list[FamilyRows], batch: bool = False) -> None:
        rate = 1e-3 if step < FROM else 0.5
        rows.append(FamilyRows("settings", ("group0.lr",), ("value",), np.array([[rate]]), step=step))
        if step > FROM:
            changed(rows, "actv", "blocks.3.output", 100.0)
        if batch and step == FROM + 30:
            changed(rows, "actv", "blocks.0.input", 1e4)

    (one,) = report(trained(faults, families="actv", first=0))["incidents"]
    assert (one["first"]["rule"], one["first"]["step"]) == ("hyper_parameter", FROM) and one["alerts"] > 1
    more = report(trained(lambda step, rows: faults(step, rows, True), families="actv", first=0))["incidents"]
    assert [each["first"]["name"] for each in more] == ["group0.lr", "blocks.0.input"]
