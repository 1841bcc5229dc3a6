"""The answer of a check: the kind, the numbers, the sequence to look at and the worst tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.rollout.kinds.finding import FINE, NONFINITE, UNTOLD, Finding
from probe.rollout.kinds.judge import Judgement
from probe.rollout.response_anomaly import ResponseAnomaly, anomaly_column, flat_response_anomaly
from probe.rollout.tokens import Tokens

# --- report


Array = NDArray[Any]
_BOUND = 20.0
"""Logarithms of ratios are cut here, as verl does."""
_QUANTILES = (50.0, 99.0, 99.9)


def over_all(tokens: Tokens) -> dict[str, float]:
    """All numbers, over all tokens; every value is finite."""
    signed = tokens.rollout - tokens.training
    size = np.abs(signed)
    count = len(signed)
    logs = np.clip(-signed, -_BOUND, _BOUND)
    beyond = np.expm1(logs)
    ratios = beyond + 1
    of_rollout, of_training = np.exp(tokens.rollout), np.exp(tokens.training)
    apart = np.abs(of_rollout - of_training)
    kl, squares = _mean(signed), _mean(ratios * ratios)
    ratio = _mean(ratios)
    found = {
        "tokens": float(count),
        "sequences": float(len(tokens.lengths)),
        # TRL: sampling/...
        "sampling_logp_difference/mean": _mean(size),
        "sampling_logp_difference/max": float(size.max()),
        **dict(zip(("logp_difference/p50", "logp_difference/p99", "logp_difference/p99.9"), _quantiles(size))),
        "importance_sampling_ratio/mean": ratio,
        "importance_sampling_ratio/min": float(ratios.min()),
        "importance_sampling_ratio/max": float(ratios.max()),
        # verl and ms-swift: rollout_corr/...
        "kl": kl,
        "k3_kl": _mean(beyond - logs),
        "chi2_token": squares - 1,
        "rollout_is_eff_sample_size": ratio * ratio / squares if squares else 0.0,
        # verl: training/...
        "rollout_probs_diff_mean": _mean(apart),
        "rollout_probs_diff_max": float(apart.max()),
        "rollout_probs_diff_std": float(np.std(apart, dtype=np.float64)),
        "rollout_actor_probs_pearson_corr": _correlation(of_rollout, of_training),
        "ratio_outside_0.8_1.25": _outside(size, math.log(1.25)),
        "ratio_outside_0.5_2": _outside(size, math.log(2.0)),
    }
    found.update(_sequence_means(tokens, signed))
    if tokens.current is not None:
        found.update(_update(tokens.current - tokens.training))
    return found


def _sequence_means(tokens: Tokens, signed: Array) -> dict[str, float]:
    """The numbers that are means over sequences."""
    rollout = tokens.by_sequence(tokens.rollout) / tokens.lengths
    training = tokens.by_sequence(tokens.training) / tokens.lengths
    apart = rollout - training
    whole = np.clip(-tokens.by_sequence(signed), -_BOUND, _BOUND)
    return {
        "rollout_log_ppl": -float(rollout.mean()),
        "training_log_ppl": -float(training.mean()),
        "rollout_ppl": float(np.exp(-rollout).mean()),
        "training_ppl": float(np.exp(-training).mean()),
        "log_ppl_diff": float(apart.mean()),
        "log_ppl_abs_diff": float(np.abs(apart).mean()),
        "log_ppl_diff_max": float(apart.max()),
        "log_ppl_diff_min": float(apart.min()),
        "ppl_ratio": float(np.exp(apart).mean()),
        "chi2_seq": float(np.exp(2 * whole).mean()) - 1,
    }


def _update(signed: Array) -> dict[str, float]:
    """Effect of the update of the weights: the log-probabilities after it minus those at sampling time."""
    logs = np.clip(signed, -_BOUND, _BOUND)
    return {
        "update/logp_difference/mean": _mean(np.abs(signed)),
        "update/logp_difference/max": float(np.abs(signed).max()),
        "update/kl": -_mean(signed),
        "update/k3_kl": _mean(np.expm1(logs) - logs),
    }


GROUPED = ("tokens", "sampling_logp_difference/mean", "sampling_logp_difference/max", "kl", "k3_kl")
"""The numbers of a group."""


def by_sequence(tokens: Tokens) -> dict[str, Array]:
    """The numbers of each sequence, as columns."""
    signed = tokens.rollout - tokens.training
    size, logs = np.abs(signed), np.clip(-signed, -_BOUND, _BOUND)
    counts = tokens.lengths
    columns = (
        counts, tokens.by_sequence(size) / counts, tokens.most_by_sequence(size), tokens.by_sequence(signed) / counts,
        tokens.by_sequence(np.expm1(logs) - logs) / counts,
    )  # fmt: skip
    return dict(zip(GROUPED, columns))


def by_position(tokens: Tokens) -> dict[str, Array]:
    """The numbers of each position in the response, as columns."""
    signed = tokens.rollout - tokens.training
    size, logs = np.abs(signed), np.clip(-signed, -_BOUND, _BOUND)
    counts = tokens.at_position
    most = np.zeros(len(counts), size.dtype)
    if tokens.width:
        most = size.reshape(-1, tokens.width).max(0)
    else:
        np.maximum.at(most, tokens.positions, size)
    columns = (
        counts, tokens.by_position(size) / counts, most, tokens.by_position(signed) / counts,
        tokens.by_position(np.expm1(logs) - logs) / counts,
    )  # fmt: skip
    return dict(zip(GROUPED, columns))


def by_group(of_sequences: dict[str, Array], groups: Array) -> tuple[Array, dict[str, Array]]:
    """The numbers of sequences put together by steps or ranks: the numbers of these, and the columns."""
    names, of_each = np.unique(groups, return_inverse=True)
    counts = of_sequences["tokens"]
    whole = np.bincount(of_each, counts)
    found: dict[str, Array] = {"tokens": whole.astype(np.int64)}
    for name in GROUPED[1:]:
        column = of_sequences[name]
        if name.endswith("max"):
            most = np.zeros(len(names))
            np.maximum.at(most, of_each, column)
            found[name] = most
        else:
            found[name] = np.bincount(of_each, column * counts) / whole
    return names, found


def _mean(values: Array) -> float:
    return float(np.mean(values, dtype=np.float64))


def _quantiles(size: Array) -> list[float]:
    """Quantiles without interpolation: each is the difference of a token."""
    indices = [min(len(size) - 1, math.ceil(each / 100 * len(size)) - 1) for each in _QUANTILES]
    ordered = np.partition(size, indices)
    return [float(ordered[index]) for index in indices]


def _outside(size: Array, limit: float) -> float:
    return float(np.count_nonzero(size > limit)) / len(size)


def _correlation(one: Array, other: Array) -> float:
    """Pearson's, of probabilities; NaN where one side is constant."""
    first, second = one - one.dtype.type(_mean(one)), other - other.dtype.type(_mean(other))
    scale = math.sqrt(_mean(first * first) * _mean(second * second))
    return _mean(first * second) / scale if scale else math.nan


WORST = 10
"""Tokens that the report lists; a guess."""
_AROUND = 4
"""Tokens before and after a worst one, that show where it is."""


@dataclass(frozen=True)
class WorstToken:
    """A token with a large difference."""

    sequence: Any
    position: int
    """In the response, from 0."""
    step: int | None
    rank: int | str | None
    """A process without a rank has a name."""
    token: int | None
    """The id of the token."""
    rollout: float
    training: float
    context: tuple[int, ...]
    """The ids around it, if ids were given; it stands at `at`."""
    at: int


@dataclass(frozen=True)
class RolloutReport:
    """Findings of a check; tables are made when they are asked for."""

    tokens: Tokens
    """The tokens that are finite on both sides."""
    judgement: Judgement
    findings: tuple[Finding, ...]
    """With what is not finite; the strongest first."""
    remarks: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The strongest kind: one of `probe.rollout.kinds.finding.KINDS`."""
        return self.findings[0].kind

    @property
    def kinds(self) -> list[str]:
        """All kinds, the strongest first."""
        return list(dict.fromkeys(each.kind for each in self.findings))

    @property
    def found(self) -> bool:
        """True if there is more than the rounding of a dtype, or may be."""
        return self.kind not in FINE

    @cached_property
    def line(self) -> str:
        """The answer in a sentence."""
        first = self.findings[0]
        if not self.found:
            return f"no mismatch beyond rounding ({first.kind}): {first.sentence}"
        if first.kind == UNTOLD:
            return f"cannot be told whether the engine has the trained weights ({first.kind}): {first.sentence}"
        return f"mismatch of rollout and training ({first.kind}): {first.sentence}"

    @cached_property
    def numbers(self) -> Mapping[str, float]:
        """Numbers over all tokens, under the names that frameworks log."""
        return over_all(self.tokens) if len(self.tokens) else {}

    @cached_property
    def by_sequence(self) -> Mapping[str, Array]:
        return by_sequence(self.tokens)

    @cached_property
    def by_position(self) -> Mapping[str, Array]:
        return by_position(self.tokens)

    @cached_property
    def by_step(self) -> tuple[Array, Mapping[str, Array]] | None:
        """The numbers of steps, with these; ``None`` where they are not known."""
        steps = self.tokens.steps
        return None if steps is None else by_group(dict(self.by_sequence), steps)

    @cached_property
    def by_rank(self) -> tuple[Array, Mapping[str, Array]] | None:
        ranks = self.tokens.ranks
        return None if ranks is None else by_group(dict(self.by_sequence), ranks)

    @cached_property
    def anomalies(self) -> list[ResponseAnomaly]:
        """Responses that repeat themselves, are garbled or have rare characters; `sequence` is their number.

        Repetition is judged by token ids, the others by the candidates of each token; empty without both.
        """
        tokens = self.tokens
        if not len(tokens) or (tokens.ids is None and tokens.top is None):
            return []
        logprobs = tokens.rollout if tokens.top is None else tokens.top
        return flat_response_anomaly(tokens.lengths, logprobs, tokens.ids)

    @cached_property
    def anomaly_of(self) -> Mapping[Any, str]:
        """The cell of each ill response, by the name of its sequence."""
        names = self.tokens.names
        cells = anomaly_column(self.anomalies, len(names))
        return {names[each.sequence]: cells[each.sequence] for each in self.anomalies}

    @cached_property
    def sequence(self) -> int:
        """The number of the sequence to look at: that with the largest mean difference among those concerned.

        With values that are not finite it is the first sequence that has one, unless none of its tokens is finite.
        """
        means = self.by_sequence["sampling_logp_difference/mean"]
        first = self.findings[0]
        picked = first.numbers.get("sequence" if first.kind == NONFINITE else "worst")
        names = list(self.tokens.names)
        return names.index(picked) if picked in names else int(np.argmax(means))

    @cached_property
    def worst(self) -> list[WorstToken]:
        """The tokens with the largest differences, the largest first."""
        tokens = self.tokens
        size = np.abs(tokens.rollout - tokens.training)
        count = min(WORST, len(size))
        indices = np.argpartition(size, len(size) - count)[len(size) - count :]
        ordered = sorted(indices.tolist(), key=lambda index: (-float(size[index]), index))
        return [self._worst(index) for index in ordered if size[index] > 0]

    def _worst(self, index: int) -> WorstToken:
        tokens = self.tokens
        sequence = tokens.sequence_of(index)
        start, length = int(tokens.starts[sequence]), int(tokens.lengths[sequence])
        first, last = max(start, index - _AROUND), min(start + length, index + _AROUND + 1)
        ids = tokens.ids
        return WorstToken(
            tokens.names[sequence], index - start, _number(tokens.steps, sequence), _number(tokens.ranks, sequence),
            _number(ids, index), float(tokens.rollout[index]), float(tokens.training[index]),
            () if ids is None else tuple(ids[first:last].tolist()), index - first,
        )  # fmt: skip


def _number(values: Array | None, index: int) -> Any:
    return None if values is None else values[index].item()
