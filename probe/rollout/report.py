"""The answer of a check: the kind, the numbers, the sequence to look at and the worst tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.rollout import numbers
from probe.rollout.kinds.finding import FINE, NONFINITE, Finding
from probe.rollout.kinds.judge import Judgement
from probe.rollout.response_anomaly import ResponseAnomaly, anomaly_column, flat_response_anomaly
from probe.rollout.tokens import Tokens

Array = NDArray[Any]
WORST = 10
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
        """True if there is more than the rounding of a dtype."""
        return self.kind not in FINE

    @cached_property
    def line(self) -> str:
        """The answer in a sentence."""
        first = self.findings[0]
        if not self.found:
            return f"no mismatch beyond rounding ({first.kind}): {first.sentence}"
        return f"mismatch of rollout and training ({first.kind}): {first.sentence}"

    @cached_property
    def numbers(self) -> Mapping[str, float]:
        """Numbers over all tokens, under the names that frameworks log."""
        return numbers.over_all(self.tokens) if len(self.tokens) else {}

    @cached_property
    def by_sequence(self) -> Mapping[str, Array]:
        return numbers.by_sequence(self.tokens)

    @cached_property
    def by_position(self) -> Mapping[str, Array]:
        return numbers.by_position(self.tokens)

    @cached_property
    def by_step(self) -> tuple[Array, Mapping[str, Array]] | None:
        """The numbers of steps, with these; ``None`` where they are not known."""
        steps = self.tokens.steps
        return None if steps is None else numbers.by_group(dict(self.by_sequence), steps)

    @cached_property
    def by_rank(self) -> tuple[Array, Mapping[str, Array]] | None:
        ranks = self.tokens.ranks
        return None if ranks is None else numbers.by_group(dict(self.by_sequence), ranks)

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
