"""The tokens of some responses, one after the other, with what is known of each and of each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Tokens:
    """Log-probabilities of the same tokens, without those that a mask leaves out; sequences lie end to end."""

    rollout: Array
    training: Array
    lengths: Array
    """The number of tokens of each sequence, each at least 1."""
    names: Sequence[Any]
    """Names of sequences: the ids that were given, or their numbers in the order of the source."""
    steps: Array | None = None
    """Step of each sequence, like the rank."""
    ranks: Array | None = None
    prompt_lengths: Array | None = None
    ids: Array | None = None
    """Value of each token, like the entropies (in nats) and the log-probabilities after the update."""
    entropy: Array | None = None
    current: Array | None = None
    top: Array | None = None
    """Log-probabilities of the likeliest tokens at each position: [tokens, candidates]."""
    dtype: str = ""
    """The dtype in which a source says that it was computed; empty if none does."""
    masked_out: int = 0
    """The number of tokens that the mask leaves out."""
    whole: Tokens | None = None
    """The tokens of which `only` made these, with those that a mask leaves out."""
    kept: Array | None = None
    """True for each token of `whole` that is one of these."""

    @cached_property
    def repeats(self) -> Array | None:
        """The number of times that the sequence had the id of each token before it, masked tokens included."""
        if self.ids is None or not len(self):
            return None
        if self.whole is not None and self.kept is not None:
            of_whole = self.whole.repeats
            return None if of_whole is None else of_whole[self.kept]
        count, least = len(self), int(self.ids.min())
        width = int(self.ids.max()) - least + 1
        if len(self.lengths) * width * count >= 1 << 63:
            return None
        keys = self.expanded(np.arange(len(self.lengths), dtype=np.int64) * width) + (self.ids - least)
        # Numbers that hold the place of each token are sorted several times as fast as places by numbers.
        keys, order = np.divmod(np.sort(keys * count + np.arange(count)), count)
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        found = np.empty(count, np.int64)
        found[order] = np.arange(count) - np.repeat(starts, np.diff(np.append(starts, count)))
        return found

    def __len__(self) -> int:
        return len(self.rollout)

    @cached_property
    def starts(self) -> Array:
        """The index of the first token of each sequence."""
        ends = np.cumsum(self.lengths)
        return np.asarray(ends - self.lengths)

    @cached_property
    def width(self) -> int:
        """The length of all sequences where it is the same; 0 where they differ."""
        lengths = self.lengths
        return int(lengths[0]) if len(lengths) and (lengths == lengths[0]).all() else 0

    @cached_property
    def positions(self) -> Array:
        """The index of each token in its response."""
        if self.width:
            return np.tile(np.arange(self.width, dtype=np.int32), len(self.lengths))
        return np.arange(len(self), dtype=np.int32) - np.repeat(self.starts, self.lengths).astype(np.int32)

    def by_sequence(self, values: Array) -> Array:
        """The sum of `values` over each sequence, in float64."""
        if self.width:
            return np.asarray(values.reshape(-1, self.width).sum(1, dtype=np.float64))
        return np.asarray(np.add.reduceat(values, self.starts, dtype=np.float64))

    def most_by_sequence(self, values: Array) -> Array:
        """The largest of `values` in each sequence."""
        if self.width:
            return np.asarray(values.reshape(-1, self.width).max(1))
        return np.asarray(np.maximum.reduceat(values, self.starts))

    def by_position(self, values: Array) -> Array:
        """The sum of `values` over the tokens of each position, in float64."""
        if self.width:
            return np.asarray(values.reshape(-1, self.width).sum(0, dtype=np.float64))
        return np.bincount(self.positions, values)

    @cached_property
    def at_position(self) -> Array:
        """The number of sequences that have each position."""
        if self.width:
            return np.full(self.width, len(self.lengths))
        return len(self.lengths) - np.searchsorted(np.sort(self.lengths), np.arange(int(self.lengths.max())), "right")

    def sequence_of(self, index: int) -> int:
        """The number of the sequence that holds a token."""
        return int(np.searchsorted(self.starts, index, "right")) - 1

    def expanded(self, values: Array) -> Array:
        """Values of sequences, repeated for each of their tokens."""
        return np.repeat(values, self.lengths)

    def only(self, kept: Array) -> Tokens:
        """The tokens for which `kept` is true; sequences without any are gone."""
        if kept.all():
            return self
        lengths = self.by_sequence(kept).astype(np.int64)
        left = np.flatnonzero(lengths)

        def tokens(values: Array | None) -> Array | None:
            return None if values is None else values[kept]

        def rows(values: Array | None) -> Array | None:
            return None if values is None else values[left]

        of_whole = kept
        if self.kept is not None:
            of_whole = self.kept.copy()
            of_whole[self.kept] = kept
        return replace(
            self, rollout=self.rollout[kept], training=self.training[kept], lengths=lengths[left],
            names=[self.names[number] for number in left.tolist()], steps=rows(self.steps), ranks=rows(self.ranks),
            prompt_lengths=rows(self.prompt_lengths), ids=tokens(self.ids), entropy=tokens(self.entropy),
            current=tokens(self.current), top=tokens(self.top), kept=of_whole,
            whole=self if self.whole is None else self.whole,
        )  # fmt: skip
