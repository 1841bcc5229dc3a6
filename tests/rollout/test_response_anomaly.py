"""Ill responses: what is found, where, and that sound ones are not accused."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

import probe
from probe.api.cli import main
from probe.common.errors import MsprobeException
from probe.rollout.response_anomaly import ResponseAnomaly, anomaly_column, categories_of

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


def test_one_sign_alone_needs_many_windows() -> None:
    # 40 distinct tokens in a loop: a third of the 3-grams of a window are distinct, and the lag of 40 shows.
    found = []
    for windows in (13, 14):
        length = 128 + 64 * (windows - 1)
        sample = Sample(1, length)
        sample.repeat(0, 0, length, 40)
        found.append([anomaly.windows for anomaly in sample.found()])
    assert found == [[], [14]]


def test_a_repetition_that_the_model_is_not_sure_of_is_none() -> None:
    sample = Sample(1, 1000)
    sample.repeat(0, 0, 1000, 3)
    sample.logprobs[0, :, 0] = -0.3
    assert sample.found() == []


def test_repetition_needs_no_candidates() -> None:
    sample = Sample(2, 600)
    sample.repeat(0, 0, 600, 3)
    (anomaly,) = probe.response_anomaly(sample.logprobs[:, :, 0], sample.tokens)
    assert anomaly == ResponseAnomaly(0, "repetition", (0, 128), 9)


def test_garbled_text_is_found() -> None:
    sample = Sample(3, 1000)
    sample.garble(2, 512, 800)
    (anomaly,) = sample.found()
    assert (anomaly.sequence, anomaly.kind, anomaly.window) == (2, "garbled", (448, 576))


def test_an_open_choice_within_one_script_is_not_garbled() -> None:
    sample = Sample(1, 1000)
    sample.logprobs[0, 200:600] = np.log(0.05)
    assert sample.found() == []
    # Far below, it is garbled without categories too.
    sample.logprobs[0, 200:600] = -5.5
    assert [anomaly.kind for anomaly in probe.response_anomaly(sample.logprobs, sample.tokens)] == ["garbled"]


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


def test_the_column_has_a_cell_for_each_sequence() -> None:
    found = [ResponseAnomaly(1, "garbled", (448, 576), 4)]
    assert anomaly_column(found, 3) == ["", "garbled, tokens 448 to 575", ""]


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


def test_log_probabilities_may_be_whole_numbers() -> None:
    assert probe.response_anomaly([[-1, -2]]) == probe.response_anomaly([[0] * 40]) == []


def test_scripts_digits_and_punctuation_are_categories() -> None:
    latin, cyrillic, chinese, digit, sign, space = categories_of(["\u0120word", "\u0434", "\u4e2d", "7", "!", " "])
    assert len({latin, cyrillic, chinese, digit, sign, space}) == 6
    assert categories_of([" abc", "\u00e9"]).tolist() == [latin, latin]


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
