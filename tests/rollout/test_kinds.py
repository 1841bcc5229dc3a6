"""The kind of a mismatch of generated log-probabilities; `benchmarks/rollout_kinds.py` does this at length."""

from __future__ import annotations

import numpy as np
import pytest
from rollout_mismatch import cases
from rollout_mismatch.asking import answer

import probe

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
