"""Which mismatch is named, the numbers behind it, and ill responses."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
from rollout_mismatch import cases, drawn
from rollout_mismatch.asking import answer

import probe
from probe.api.cli import main
from probe.common.errors import MsprobeException
from probe.rollout.response_anomaly import ResponseAnomaly, categories_of

# --- the kind of a mismatch of generated log-probabilities; `benchmarks/rollout_kinds.py` does this at length

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


def test_two_mismatches_are_both_named() -> None:
    case = cases.template(setting("float32", 13, lengths="equal"))
    case.training[case.mask & (np.arange(40) == 0)] -= 1.0
    kinds = answer(case, SMALL).kinds
    assert {"sequences", "special_tokens"} <= set(kinds)


def test_noise_with_heavy_tails_is_rounding() -> None:
    """Another process than that of the other tests: errors of logits with tails, whose size differs by sequence."""
    random, accused = np.random.default_rng(0), []
    for number in range(30):
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


# --- numbers against their definitions, written out in float64


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


# --- ill responses: what is found, where, and that sound ones are not accused

VOCABULARY = 1000
# Three scripts, as the vocabulary of a model mixes them.
CATEGORIES = categories_of([("a", "\u4e2d", "\u0414")[number % 3] * 2 for number in range(VOCABULARY)])


class Sample:
    """Responses as a model gives them: most tokens are sure, and ids are spread as those of a language are."""

    def __init__(self, sequences: int, length: int, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.random = random
        self.tokens = np.minimum(random.zipf(1.3, (sequences, length)), VOCABULARY) - 1
        best = -np.minimum(random.exponential(0.5, (sequences, length)), 4)
        rest = np.log1p(-np.exp(best) + 1e-9)[..., None] + np.log([0.5, 0.2, 0.1, 0.05])
        self.logprobs = np.concatenate([best[..., None], np.minimum(rest, best[..., None])], axis=2)
        self.candidates = random.integers(0, VOCABULARY // 3, (*self.logprobs.shape,)) * 3  # of one script

    def found(self, **more: object) -> list[ResponseAnomaly]:
        return probe.response_anomaly(
            self.logprobs, self.tokens, candidates=self.candidates, categories=CATEGORIES, **more
        )

    def repeat(self, row: int, begin: int, end: int, period: int) -> None:
        self.tokens[row, begin:end] = np.resize(np.arange(period), end - begin)
        self.logprobs[row, begin:end, 0] = -0.01

    def garble(self, row: int, begin: int, end: int) -> None:
        self.logprobs[row, begin:end] = np.log(0.05)
        self.candidates[row, begin:end] = np.arange(5)


def test_sound_responses_are_not_accused() -> None:
    assert Sample(300, 1000).found() == []


@pytest.mark.parametrize("period", [1, 2, 7, 20])
def test_a_loop_is_found_where_it_begins(period: int) -> None:
    sample = Sample(3, 1000)
    sample.repeat(1, 256, 1000, period)
    (anomaly,) = sample.found()
    assert (anomaly.sequence, anomaly.kind) == (1, "repetition")
    # 3-grams are few, or the tokens agree with those a period before, once most of a window is in the loop.
    assert anomaly.window in [(192, 320), (256, 384)]


def test_garbled_text_is_found() -> None:
    sample = Sample(3, 1000)
    sample.garble(2, 512, 800)
    (anomaly,) = sample.found()
    assert (anomaly.sequence, anomaly.kind, anomaly.window) == (2, "garbled", (448, 576))


def test_one_rare_character_is_found() -> None:
    sample = Sample(3, 400)
    sample.garble(0, 77, 78)
    sample.logprobs[1, 399] = -7
    assert sample.found() == [
        ResponseAnomaly(0, "rare_character", (77, 78), 1),
        ResponseAnomaly(1, "rare_character", (399, 400), 1),
    ]


@pytest.mark.parametrize("by", ["lengths", "mask", "rows"])
def test_padding_is_not_judged(by: str) -> None:
    sample = Sample(2, 600)
    sample.repeat(0, 40, 600, 1)
    lengths = [40, 600]
    if by == "rows":
        rows = [sample.logprobs[row, :length, 0] for row, length in enumerate(lengths)]
        tokens = [sample.tokens[row, :length] for row, length in enumerate(lengths)]
        assert probe.response_anomaly(rows, tokens) == []
    elif by == "mask":
        assert sample.found(mask=np.arange(600) < np.array(lengths)[:, None]) == []
    else:
        assert sample.found(lengths=lengths) == []


@pytest.mark.parametrize("length", [0, 1, 31, 32, 127, 128, 129, 191, 192, 193])
def test_responses_of_any_length(length: int) -> None:
    sample = Sample(1, 200)
    sample.repeat(0, 0, 200, 1)
    found = sample.found(lengths=[length])
    # Two windows show it from 129 tokens on; they end where the response does.
    assert [anomaly.window for anomaly in found] == ([(0, 128)] if length > 128 else [])


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"logprobs": np.zeros((2, 3, 4, 5))}, r"rows of shape \[3, 4, 5\]"),
        ({"logprobs": np.zeros((2, 3)), "tokens": np.zeros((1, 3))}, "tokens has 1 rows"),
        ({"logprobs": np.zeros((2, 3)), "lengths": [3, 4]}, r"lengths is \[3, 4\]; allowed: 2 numbers"),
        ({"logprobs": np.zeros((1, 3)), "lengths": [3], "mask": [[1, 1, 1]]}, "lengths and mask are both given"),
        ({"logprobs": np.zeros((1, 3)), "mask": [[1, 0, 1]]}, "mask has gaps"),
        ({"logprobs": np.zeros((1, 3, 0))}, r"rows of shape \[3, 0\]"),
        ({"logprobs": None}, "logprobs is of type NoneType"),
        ({"logprobs": [["a", "b"]]}, "logprobs has elements of type <U1"),
        ({"logprobs": [[-1.0, -2.0]], "tokens": 3}, "tokens is of type int"),
        ({"logprobs": [[-1.0, 2.0]]}, "logprobs has 2 in sequence 0; allowed: log-probabilities, at most 0"),
        ({"logprobs": [[[1.0], [1.0, 2.0]]]}, "logprobs is of type list"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(MsprobeException, match=text):
        probe.response_anomaly(**arguments)


def test_a_million_tokens_take_seconds() -> None:
    sample = Sample(250, 4000)
    begin = time.process_time()
    assert sample.found() == []
    # About 1.5 s on one core; a loop over tokens takes a minute.
    assert time.process_time() - begin < 15


def test_a_check_has_a_column_of_ill_responses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    rollout = np.full((4, 300), -0.01, np.float32)
    tokens = random.integers(0, 1000, (4, 300))
    tokens[2] = np.resize([7, 8, 9], 300)
    # The candidates of sequence 1 have less than 0.4 of the probability, and the best one less than exp(-5).
    top = np.tile(np.array([-0.01, -6.0], np.float32), (4, 300, 1))
    top[1] = -5.5
    np.savez(tmp_path / "x.npz", a=rollout, t=tokens, top=top)
    source = str(tmp_path / "x.npz")
    command = ["rollout_check", f"{source}:a", f"{source}:a", "--tokens", f"{source}:t", "-o", str(tmp_path / "out")]
    assert main([*command, "--top-logprobs", f"{source}:top", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(each["sequence"], each["kind"]) for each in answer["anomalies"]] == [(1, "garbled"), (2, "repetition")]
    lines = (tmp_path / "out" / "rollout_sequences.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0].endswith(",anomaly") and "repetition, tokens 0 to 127" in lines[3] and lines[1].endswith(",")
    assert main(command) == 0
    assert "1 of 4 responses are ill: sequence 2: repetition, tokens 0 to 127" in capsys.readouterr().out
    assert main([*command, "--top-logprobs", f"{source}:t"]) == 2
    assert "top_logprobs has 4 rows of candidates; allowed: one for each of the 1200 tokens" in capsys.readouterr().err


def test_one_sign_alone_needs_many_windows() -> None:
    # 40 distinct tokens in a loop: a third of the 3-grams of a window are distinct, and the lag of 40 shows.
    found = []
    for windows in (13, 14):
        length = 128 + 64 * (windows - 1)
        sample = Sample(1, length)
        sample.repeat(0, 0, length, 40)
        found.append([anomaly.windows for anomaly in sample.found()])
    assert found == [[], [14]]
