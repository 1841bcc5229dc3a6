"""Rules over the course of a training and over experts: each fault in its words, and schedules raise nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from probe.monitor.alerts.families import execution_order
from probe.monitor.alerts.learned import LearnedRules
from probe.monitor.alerts.rows import FamilyRows, Finding
from probe.monitor.report.incidents import incidents_of, worst_of

STEPS, FROM = 60, 30


def judged(values_of: Callable[[int], Mapping[str, float]]) -> list[Finding]:
    rules, found = LearnedRules(), []
    for step in range(STEPS):
        values = values_of(step)
        numbers = np.array([[each] for each in values.values()])
        found += rules.judge([FamilyRows("settings", tuple(values), ("value",), numbers, step=step)])
    return found


@pytest.mark.parametrize(
    ("name", "before", "after", "words"),
    [
        ("group0.beta2", 0.999, 0.5, "hyper-parameter beta2 changes from 0.999 to 0.5"),
        ("group1.weight_decay", 0.01, 100.0, "hyper-parameter weight_decay changes from 0.01 to 100"),
        ("group0.weight_decay", 0.1, 0.0, "hyper-parameter weight_decay changes from 0.1 to 0"),
        ("group0.lr", 1e-3, 0.1, "hyper-parameter lr changes from 0.001 to 0.1"),
        ("group0.momentum", 0.9, 0.0, "hyper-parameter momentum changes from 0.9 to 0"),
        ("state.parameters", 12.0, 0.0, "optimizer state starts anew"),
        ("tied: tok.weight = head.weight", 1.0, 0.0, "tied weights part: tok.weight = head.weight"),
        ("loss_scale", 65536.0, 1.0, "loss scale collapses: it falls from 65536 to 1"),
    ],
)
def test_a_number_that_jumps_is_named(name: str, before: float, after: float, words: str) -> None:
    (found,) = judged(lambda step: {name: before if step < FROM else after})
    assert (found.step, found.name, found.family) == (FROM, name, "settings")
    assert words in found.text()


def test_a_counter_of_updates_that_falls_is_a_state_that_starts_anew() -> None:
    (found,) = judged(lambda step: {"state.step": float(step % FROM), "state.parameters": 3.0})
    assert (found.rule, found.step) == ("optimizer_state", FROM)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda step: {"group0.lr": min(1.0, step / 20)},
        lambda step: {"group0.lr": 0.1 * 0.1 ** (step // 20)},
        lambda step: {"group0.lr": 0.5 * (1 + np.cos(np.pi * (step % 15) / 15)) + 1e-9},
        lambda step: {"group0.lr": 0.0 if step < FROM else 1e-3},
        lambda step: {"group0.momentum": 0.95 - 0.1 * abs(step / STEPS - 0.5), "group0.lr": 0.1},
        lambda step: {"group0.weight_decay": 0.04 * 1.05**step},
        lambda step: {"loss_scale": 2.0**16 * 2 ** (step // 9 % 3)},
        lambda step: {"loss_scale": 2.0 ** (24 - step) if step < 4 else 2.0**20},
        lambda step: {"state.step": step, "state.parameters": float(min(step, 9))},
        lambda step: {"tied: a = b": 1.0},
    ],
)
def test_a_schedule_raises_nothing(schedule: Callable[[int], Mapping[str, float]]) -> None:
    assert judged(schedule) == []


# --- moments


def moments(states_after: bool, factors: Callable[[int], np.ndarray]) -> list[Finding]:
    numbers, rules, found = np.random.default_rng(0), LearnedRules(), []
    names = ("a", "b", "c", "d")
    for step in range(40):
        gradients = numbers.uniform(1, 2, (4, 1))
        states = gradients * factors(step)[:, None]
        found += rules.judge([
            FamilyRows("grad_reduced", names, ("norm",), gradients, step=step),
            FamilyRows("exp_avg", names, ("norm",), states, states_after=states_after, step=step),
        ])  # fmt: skip
    return found


@pytest.mark.parametrize("states_after", [True, False])
def test_moments_of_a_first_update_are_a_state_that_starts_anew(states_after: bool) -> None:
    numbers = np.random.default_rng(1)

    def factors(step: int) -> np.ndarray:
        if step in (0, 30):
            return np.full(4, 0.1 if states_after else 0.0)
        return numbers.uniform(0.3, 0.6, 4)

    found = [each for each in moments(states_after, factors) if each.rule == "optimizer_state"]
    assert [(each.step, "starts anew" in each.why) for each in found] == [(30, True)]


# --- experts


def mixture(active_of: Callable[[int], tuple[int, ...]], absent: bool) -> list[Finding]:
    """Gradients of six experts of which some have tokens; those of the others are zero, or absent."""
    numbers, rules, found = np.random.default_rng(0), LearnedRules(), []
    for step in range(80):
        active = active_of(step)
        shown = active if absent else tuple(range(6))
        names = ("head.weight", *(f"layers.1.experts.{each}.up.weight" for each in shown))
        sizes = [1.0, *(1.0 if each in active else 0.0 for each in shown)]
        values = np.array(sizes)[:, None] * numbers.uniform(0.8, 1.2, (len(names), 1))
        found += rules.judge([FamilyRows("grad_reduced", names, ("norm",), values, step=step)])
    return found


@pytest.mark.parametrize("absent", [True, False])
def test_a_router_that_goes_to_one_expert_is_named(absent: bool) -> None:
    found = mixture(lambda step: (step % 6, (step + 2) % 6, (step + 3) % 6) if step < FROM else (4,), absent)
    (collapse,) = (each for each in found if each.rule == "router_collapse")
    assert collapse.step == FROM and "the router goes to one expert: layers.1.experts.4" in collapse.why
    worst = worst_of(incidents_of(found))
    assert worst is not None and worst.first.rule == "router_collapse"


@pytest.mark.parametrize("absent", [True, False])
def test_experts_that_starve_beside_others_raise_nothing(absent: bool) -> None:
    assert mixture(lambda step: tuple(range(6)) if step < FROM else (1, 4), absent) == []


# --- incidents


def made(step: int, name: str, family: str = "actv", rule: str = "spike", rank: int = 0, call: int = 1) -> Finding:
    return Finding(name, family, step, rank, rule, "norm", 1.0, "", "", call=call)


def test_an_alert_that_is_no_fault_does_not_hide_a_fault_behind_it() -> None:
    harmless = [made(20, "blocks.0.bias", "grad_reduced", "unchanged")]
    fault = [made(60, "blocks.3.output", rule="nonfinite"), made(60, "head.weight", "grad_reduced", "nonfinite")]
    incidents = incidents_of([*harmless, *fault, made(61, "blocks.0.input", rule="nonfinite")])
    assert [len(each.findings) for each in incidents] == [1, 3]
    worst = worst_of(incidents)
    assert worst is not None and worst.first.name == "blocks.3.output"


def test_a_slow_finding_elsewhere_is_an_incident_of_its_own() -> None:
    findings = [made(60, "a.output", rule="dead"), made(60, "c.weight", "param_updated", "unchanged")]
    assert len(incidents_of(findings)) == 2
    # A weight belongs to the module that it is in.
    findings[1] = made(61, "a.weight", "param_updated", "unchanged")
    assert len(incidents_of(findings)) == 1


def test_what_follows_another_hyper_parameter_is_its_consequence() -> None:
    findings = [
        made(60, "group0.lr", "settings", "hyper_parameter"),
        made(61, "3.output"),
        made(75, "0.output", rule="drift"),
        made(75, "1.input", rule="drift"),
        *(made(step, "3.output", rule="dead") for step in (85, 92, 110, 116)),
    ]
    assert len(incidents_of(findings)) == 1
    # Another batch, another fault of the program, and rows that had time to take another level are no consequences.
    others = made(90, "0.input", call=0), made(100, "group0.lr", "settings", "hyper_parameter"), made(160, "9.output")
    assert [len(incidents_of(sorted([*findings, each], key=lambda it: it.step))) for each in others] == [2, 2, 2]


def test_rows_that_turn_in_one_step_or_again_are_one_incident() -> None:
    again = [made(60, "0.output", rule="drift"), made(60, "1.input", rule="drift"), made(80, "1.input", rule="drift")]
    assert len(incidents_of(again)) == 1
    assert len(incidents_of([*again, made(130, "1.input", rule="drift")])) == 2


def test_rows_before_a_collapse_of_the_router_belong_to_it() -> None:
    early = made(60, "router.output"), made(60, "router.weight", "grad_reduced", "dead")
    (one,) = incidents_of([*early, made(60, "experts.2.weight", "grad_reduced", "router_collapse")])
    assert one.first.rule == "router_collapse"


def test_what_a_router_gives_comes_after_the_activations_of_its_pass() -> None:
    families = "exp_avg", "actv", "moe_router_logit_hook", "actv_grad", "grad_reduced"
    findings = [made(3, "router", family) for family in reversed(families)]
    assert [each.family for each in sorted(findings, key=execution_order)] == list(families)


# --- gradients that fall at once


def falling(size_of: Callable[[int, int], float]) -> list[Finding]:
    rules, found = LearnedRules(), []
    names = "a.weight", "a.bias", "b.weight"
    for step in range(STEPS):
        values = np.array([[size_of(step, row)] for row in range(3)])
        found += rules.judge([FamilyRows("grad_reduced", names, ("norm",), values, step=step)])
    return [each for each in found if each.rule == "gradient_fall"]


def test_gradients_that_all_fall_in_one_step_are_reported() -> None:
    (fall,) = falling(lambda step, row: (row + 1) * (1e-6 if step >= FROM else 1.0))
    assert fall.step == FROM and "by 1e+06 times" in fall.why


@pytest.mark.parametrize(
    "size_of",
    [
        lambda step, row: 10 ** (-0.5 * step),
        lambda step, row: 1e-6 if step == FROM else 1.0,
        lambda step, row: 1e-6 if step >= FROM and row else 1.0,
        lambda step, row: 0.0 if step >= FROM else 1.0,
        lambda step, row: 1e-6 if step >= FROM or step % 9 == 0 else 1.0,
    ],
    ids=["convergence", "one batch", "some parameters", "no gradients", "as often before"],
)
def test_other_gradients_that_become_small_are_no_fall(size_of: Callable[[int, int], float]) -> None:
    assert falling(size_of) == []


def test_a_collapse_of_the_loss_scale_is_told_to_its_end() -> None:
    rules, found = LearnedRules(), []
    for step, (scale, skipped) in enumerate([*[(1024.0, 0)] * FROM, (2.0**-8, 19), (2.0**-38, 30)]):
        names = "loss_scale", "loss_scale.skipped_steps"
        values = np.array([[scale], [float(skipped)]])
        found += rules.judge([FamilyRows("settings", names, ("value",), values, step=step)])
    end = rules.finished(found[0])
    assert "from 1024 to 3.64e-12 by the last row; 49 steps were passed over" in end.why and end.value == 2.0**-38
