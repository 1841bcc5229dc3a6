"""Numbers of a mismatch, under the names that verl, ms-swift and TRL log.

``ratio`` is the probability that the training gives a token, divided by that of the rollout: the weight of importance
sampling. The logarithm of a ratio is held between -20 and 20 before it is raised, as verl does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.rollout.tokens import Tokens

Array = NDArray[Any]
_BOUND = 20.0
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
    found.update(_of_sequences(tokens, signed))
    if tokens.current is not None:
        found.update(_update(tokens.current - tokens.training))
    return found


def _of_sequences(tokens: Tokens, signed: Array) -> dict[str, float]:
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
