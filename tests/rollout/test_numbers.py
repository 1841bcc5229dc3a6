"""Numbers against their definitions, written out in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

import probe


@pytest.fixture(name="sides")
def _sides() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(4)
    rollout = -random.exponential(1.0, (5, 12))
    training = np.minimum(rollout + 0.1 * random.standard_normal((5, 12)), 0)
    mask = np.arange(12)[None, :] < np.array([12, 3, 1, 7, 9])[:, None]
    return rollout, training, mask


def test_numbers_are_those_that_frameworks_define(sides: tuple[np.ndarray, ...]) -> None:
    rollout, training, mask = sides
    found = probe.rollout_check(rollout, training, mask).numbers
    apart, ratio = (rollout - training)[mask], np.exp(training - rollout)[mask]
    means = [(rollout[row][kept].mean(), training[row][kept].mean()) for row, kept in enumerate(mask)]
    sums = [(training - rollout)[row][kept].sum() for row, kept in enumerate(mask)]
    expected = {
        "tokens": mask.sum(),
        "sampling_logp_difference/mean": np.abs(apart).mean(),
        "sampling_logp_difference/max": np.abs(apart).max(),
        "kl": apart.mean(),
        "k3_kl": (ratio - 1 - np.log(ratio)).mean(),
        "chi2_token": (ratio**2).mean() - 1,
        "chi2_seq": np.mean([math.exp(2 * each) for each in sums]) - 1,
        "rollout_is_eff_sample_size": ratio.mean() ** 2 / (ratio**2).mean(),
        "log_ppl_diff": np.mean([one - other for one, other in means]),
        "ppl_ratio": np.mean([math.exp(one - other) for one, other in means]),
        "training_ppl": np.mean([math.exp(-other) for _, other in means]),
        "ratio_outside_0.8_1.25": np.mean((ratio < 0.8) | (ratio > 1.25)),
        "rollout_actor_probs_pearson_corr": np.corrcoef(np.exp(rollout[mask]), np.exp(training[mask]))[0, 1],
        "rollout_probs_diff_max": np.abs(np.exp(rollout) - np.exp(training))[mask].max(),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9)


def test_groups_hold_the_numbers_of_their_tokens(sides: tuple[np.ndarray, ...]) -> None:
    rollout, training, mask = sides
    report = probe.rollout_check(rollout, training, mask, step=np.array([0, 0, 1, 1, 1]))
    size = np.abs(rollout - training)
    name = "sampling_logp_difference/mean"
    assert report.by_sequence[name] == pytest.approx([size[row][kept].mean() for row, kept in enumerate(mask)])
    by_position = [size[mask[:, column], column].mean() for column in range(12)]
    assert report.by_position[name] == pytest.approx(by_position)
    assert report.by_step is not None
    steps, columns = report.by_step
    assert steps.tolist() == [0, 1]
    assert columns[name] == pytest.approx([size[:2][mask[:2]].mean(), size[2:][mask[2:]].mean()])
    most = [size[:2][mask[:2]].max(), size[2:][mask[2:]].max()]
    assert columns["sampling_logp_difference/max"] == pytest.approx(most)


def test_the_update_is_told_from_the_engine(sides: tuple[np.ndarray, ...]) -> None:
    rollout, training, mask = sides
    found = probe.rollout_check(rollout, training, mask, current=training - 0.25).numbers
    assert found["update/kl"] == pytest.approx(0.25)
    assert found["kl"] == pytest.approx((rollout - training)[mask].mean())


def test_the_worst_tokens_are_in_order_and_in_their_context() -> None:
    rollout = np.full((3, 6), -1.0)
    training = rollout.copy()
    training[1, 4] = -9.0
    training[2, 0] = -4.0
    report = probe.rollout_check(rollout, training, tokens=np.arange(18).reshape(3, 6))
    first, second = report.worst
    assert (first.sequence, first.position, first.token, first.training) == (1, 4, 10, -9.0)
    assert first.context == (6, 7, 8, 9, 10, 11) and first.context[first.at] == 10
    assert (second.sequence, second.position) == (2, 0)


def test_what_is_not_finite_is_counted_and_the_first_one_named() -> None:
    rollout = np.full((4, 8), -1.0)
    training = rollout.copy()
    training[2, 5] = np.nan
    rollout[3, 1] = -np.inf
    report = probe.rollout_check(rollout, training)
    assert report.kind == "nonfinite"
    found = report.findings[0].numbers
    assert (found["training_nan"], found["rollout_infinite"], found["sequence"], found["position"]) == (1, 1, 2, 5)
    assert report.numbers["tokens"] == 30
    assert "token 5 of sequence 2" in report.line


def test_the_sequence_to_look_at_is_that_with_the_nan() -> None:
    rollout = np.full((4, 6), -1.0)
    training = rollout.copy()
    training[0] -= 1e-6
    training[2, 5] = np.nan
    assert probe.rollout_check(rollout, training).sequence == 2
    training[2] = np.nan
    assert probe.rollout_check(rollout, training).sequence == 0, "none of the tokens of sequence 2 has a difference"


def test_nothing_but_nan_is_answered() -> None:
    report = probe.rollout_check(np.full(5, np.nan), np.full(5, -1.0))
    assert (report.kind, report.numbers) == ("nonfinite", {})
