"""The kind of a mismatch of generated log-probabilities; `benchmarks/rollout_kinds.py` does this at length."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from rollout_mismatch import cases, drawn
from rollout_mismatch.asking import answer

import probe
from probe.rollout.gathering import gather, named
from probe.rollout.kinds.differences import Differences
from probe.rollout.kinds.judge import judge
from probe.rollout.sources.rows import rows_of

SMALL = cases.Setting(vocabulary=128, sequences=16, longest=40)


def setting(dtype: str, seed: int, **changes: object) -> cases.Setting:
    given = {"dtype": dtype, "lengths": "uniform", "vocabulary": 128, "sequences": 16, "longest": 40, "seed": seed}
    return cases.Setting(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("make", cases.CLEAN, ids=lambda make: make.__name__)
def test_clean_sets_are_not_accused(make: cases.Make, dtype: str) -> None:
    chosen = setting(dtype, 11)
    case = make(chosen)
    for with_layers in (True, False):
        report = answer(case, chosen, with_layers)
        assert not report.found, report.line


@pytest.mark.sampled(least=12)
@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("make", cases.PLANTED, ids=lambda make: make.__name__)
def test_planted_mismatches_are_named(make: cases.Make, dtype: str) -> None:
    # Lengths are equal, so that a position has as many tokens in so few sequences.
    chosen = setting(dtype, 12, lengths="equal", sequences=24)
    report = answer(make(chosen), chosen)
    assert report.kind == cases.PLANTED[make], report.line
    assert report.found


@pytest.mark.parametrize("make", drawn.RIGHT, ids=lambda make: make.__name__)
def test_errors_of_right_runs_are_rounding(make: drawn.Make) -> None:
    report = drawn.made(make, 21, is_small=True).report()
    assert not report.found, report.line


@pytest.mark.parametrize("make", drawn.FAULTS, ids=lambda make: make.__name__)
def test_slow_faults_penalties_and_other_tokens_are_named(make: drawn.Make) -> None:
    report = drawn.made(make, 21, is_small=True).report()
    assert report.kind in drawn.FAULTS[make], report.line


def test_a_temperature_has_an_interval() -> None:
    for seed in range(5):
        made = drawn.Drawn(seed, is_small=True)
        value = 1.05 + 0.1 * seed
        report = made.of(process=lambda logits, by=value: logits / by).report()
        assert report.kind == "temperature", (seed, report.line)
        low, high = report.findings[0].numbers["interval"]
        assert low - 0.02 <= value <= high + 0.02 and high - low < 0.3, (seed, value, low, high)


def test_no_temperature_is_estimated_where_tokens_are_certain() -> None:
    report = drawn.made(drawn.temperature_on_certain, 21, is_small=True).report()
    assert "temperature" not in report.findings[0].numbers
    assert any("a temperature cannot be told" in each for each in report.remarks)


def test_an_interval_of_a_temperature_near_one_does_not_contain_one() -> None:
    for value in (0.99, 1.005):
        made = drawn.Drawn(4, is_small=True)
        line = made.of(process=lambda logits, by=value: logits / by).report().line
        low, high = map(float, re.findall(r"interval ([\d.]+) to ([\d.]+)", line)[0])
        assert low < high and (low > 1) == (high > 1) == (value > 1), line


def test_the_line_of_stale_names_the_steps_that_differ() -> None:
    made = drawn.Drawn(3, is_small=True)
    by = np.where(np.isin(made.of_steps, (1, 4)), 30.0, 1.0)
    line = made.of(np.repeat(by[:, None], made.length, 1)).report().line
    assert "steps 1, 4 differ from the others" in line and "seldom" not in line
    assert "grows from step 0 to step 5" in drawn.made(drawn.stale_ten, 21, is_small=True).report().line


def test_a_rank_that_is_far_from_the_others_is_stale() -> None:
    made = drawn.Drawn(3, is_small=True)
    ranks = np.arange(made.shape[0]) % 4
    pair = made.of(np.repeat(np.where(ranks == 2, 30.0, 1.0)[:, None], made.length, 1))
    tokens = gather(named({name: rows_of(value, name) for name, value in pair.sources.items() if name != "step"}))
    found = judge(Differences(replace(tokens, ranks=ranks), made.dtype, made.vocabulary, made.layers)).findings[0]
    assert (found.kind, found.numbers["ranks"]) == ("stale", [2])


def test_repeats_are_counted_in_the_prompt_that_a_mask_leaves_out() -> None:
    tokens = np.array([[7, 8, 7, 8, 9], [9, 9, 9, 7, 9]])
    report = probe.rollout_check(-np.ones((2, 5)), -np.ones((2, 5)), tokens=tokens, mask=[[0, 0, 1, 1, 1]] * 2)
    assert report.tokens.repeats is not None
    assert report.tokens.repeats.tolist() == [1, 1, 0, 2, 0, 3]


def test_equal_log_probabilities_are_no_mismatch() -> None:
    case = cases.clean(SMALL)
    case.training = case.rollout
    report = answer(case, SMALL)
    assert (report.kind, report.kinds, report.found) == ("none", ["none"], False)


def test_two_mismatches_are_both_named() -> None:
    case = cases.template(setting("float32", 13, lengths="equal"))
    case.training[case.mask & (np.arange(40) == 0)] -= 1.0
    kinds = answer(case, SMALL).kinds
    assert {"sequences", "special_tokens"} <= set(kinds)


def test_noise_with_heavy_tails_is_rounding() -> None:
    """Another process than that of the other tests: errors of logits with tails, whose size differs by sequence."""
    random, accused = np.random.default_rng(0), []
    for number in range(100):
        logits = random.standard_normal((24 * 30, 50)) * random.choice([0.5, 2.0, 5.0])
        unit = random.choice([2.0**-8, 2.0**-11, 2.0**-24])
        by_sequence = np.repeat(random.lognormal(0, 0.3, 24), 30)[:, None]
        sides = [logits + unit * by_sequence * random.standard_t(8, logits.shape) for _ in range(2)]
        exact = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        tokens = np.argmax(exact + random.gumbel(size=exact.shape), 1)
        logps = [each - np.log(np.exp(each).sum(1, keepdims=True)) for each in sides]
        taken = [np.take_along_axis(each, tokens[:, None], 1).reshape(24, 30).astype(np.float32) for each in logps]
        report = probe.rollout_check(taken[0], taken[1], tokens=tokens.reshape(24, 30), vocabulary=50)
        if report.found:
            accused.append((number, report.line))
    assert not accused
