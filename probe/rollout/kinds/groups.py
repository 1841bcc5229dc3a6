"""Groups of tokens that differ from the others: sequences, positions, special tokens, steps.

All tests compare means of the logarithm of relative differences. Of one population of normal errors that logarithm has
a variance of 1.23 whatever their size, so a factor of 3 between two groups of twenty tokens is six standard errors, and
a few tokens that are far off decide nothing. A group counts if its mean is larger by log 3, and if the sum of squares
between it and the other tokens is at least `CERTAIN` times the variance that is left: 6.3 standard errors, which
independent errors reach once in 10^9 sets. Where a group is the best one of many, twice the logarithm of their number
is subtracted first, times that variance, which is what the best one has by chance; so the number of ways to choose it
does not raise the rate of errors, and of two groups that explain as much the simpler one is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.rollout.kinds.differences import NORMAL, Differences, middle_of
from probe.rollout.kinds.finding import LARGEST_ID, MOST_IDS, POSITION, SEQUENCES, SPECIAL, STALE, Finding

Array = NDArray[Any]
CERTAIN = 40.0
"""Explained variance to what is left: 6.3 standard errors, see the text above."""
FACTOR = math.log(3.0)
"""The smallest difference of means that counts: a factor of three."""
OF_NORMAL = 1.23
"""The variance of the logarithm of the absolute value of a normal number (pi^2 / 8)."""
_MOST = 0.45
"""The share of the tokens of a group that must differ themselves: one in nine does by chance, and half do of errors
that are three times as large."""
_FEWEST_OF_ID = 3
"""Tokens of an id; fewer may be where a router took another expert."""
_FEWEST_BEFORE = 8
"""Tokens before a position, from which it can be told that they do not differ."""
_LARGEST_SHARE = 1 / 3
"""Largest share of all tokens that special tokens have."""


@dataclass(frozen=True)
class Means:
    """The logarithms of relative differences, summed by groups."""

    counts: Array
    sums: Array
    squares: float
    """The sum of squares of all of them about their mean."""
    between: float
    """The variance of the means of most sequences beyond what their tokens give."""

    @cached_property
    def means(self) -> Array:
        return self.sums / np.maximum(self.counts, 1)

    @cached_property
    def count(self) -> float:
        return float(self.counts.sum())

    @cached_property
    def total(self) -> float:
        return float(self.sums.sum())

    def contrast(self, picked: Array) -> tuple[float, float]:
        """The mean of some groups less that of the others, and the sum of squares between both."""
        count, total = self.count, self.total
        inside, of_inside = float(self.counts[picked].sum()), float(self.sums[picked].sum())
        if not 0 < inside < count:
            return 0.0, 0.0
        difference = of_inside / inside - (total - of_inside) / (count - inside)
        return difference, difference * difference * inside * (count - inside) / count

    def strength(self, difference: float, squares: float, ways: float) -> float:
        """The sum of squares beyond chance; 0 if it is not certain.

        Args:
            difference: Of the means, in natural logarithms.
            squares: The sum of squares between both groups.
            ways: The natural logarithm of the number of groups of which this is the best one.
        """
        left = max((self.squares - squares) / max(self.count - 2, 1), OF_NORMAL)
        beyond = squares - 2 * ways * left
        return beyond if difference >= FACTOR and beyond >= CERTAIN * left else 0.0

    def outliers(self) -> Array:
        """The groups whose mean is farther above the middle one than chance and the others explain."""
        return self.above(_median(self.means, self.counts), len(self.counts))

    def above(self, middle: float, number: int) -> Array:
        """The groups, of `number` ones, whose mean is so far above `middle`."""
        errors = np.sqrt(OF_NORMAL / np.maximum(self.counts, 1) + self.between)
        limit = 3.0 + math.sqrt(2 * math.log(max(number, 2)))
        return np.asarray((self.means - middle > np.maximum(limit * errors, FACTOR)) & (self.counts > 0))

    def upper(self) -> Array:
        """The upper one of the two parts into which the means of the groups fall best."""
        order = np.argsort(self.means)
        cut, _ = best_cut(self.counts[order], self.sums[order])
        picked = np.zeros(len(order), np.bool_)
        picked[order[cut:]] = True
        return picked


def _choices(picked: Array) -> float:
    """The natural logarithm of the number of ways to pick as many groups."""
    number, count = int(np.count_nonzero(picked)), len(picked)
    return math.lgamma(count + 1) - math.lgamma(number + 1) - math.lgamma(count - number + 1)


def best_cut(counts: Array, sums: Array) -> tuple[int, float]:
    """The number of groups before the cut behind which means are most certainly larger, and the sum of squares between
    both sides; 0 where no cut has larger means behind it."""
    inside, of_inside = np.cumsum(counts)[:-1], np.cumsum(sums)[:-1]
    count, total = float(counts.sum()), float(sums.sum())
    if not len(inside):
        return 0, 0.0
    # A side without tokens has no mean, and the factor that is 0 for it.
    outside = count - inside
    difference = (total - of_inside) / np.maximum(outside, 1) - of_inside / np.maximum(inside, 1)
    squares = difference * np.abs(difference) * inside * outside / count
    cut = int(np.argmax(squares))
    return cut + 1, max(float(squares[cut]), 0.0)


def _median(values: Array, weights: Array) -> float:
    order = np.argsort(values)
    whole = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(whole, whole[-1] / 2)])


class Groups:
    """The tests of groups over one set of differences."""

    def __init__(self, differences: Differences) -> None:
        self.differences, self.tokens = differences, differences.tokens
        logs, tokens = differences.logs, self.tokens
        self.sums, counts = tokens.by_sequence(logs), tokens.lengths
        total = float(self.sums.sum())
        self.squares = float(np.sum(np.square(logs - logs.dtype.type(total / len(logs))), dtype=np.float64))
        means = self.sums / counts
        # Of most sequences, so that a few wrong ones do not hide themselves.
        spread = (middle_of(np.abs(means - middle_of(means))) / NORMAL) ** 2
        self.between = max(spread - OF_NORMAL / middle_of(counts), 0.0)

    def _means(self, counts: Array, sums: Array) -> Means:
        return Means(np.asarray(counts, np.float64), sums, self.squares, self.between)

    def findings(self) -> Iterator[Finding]:
        """Certain findings, in no order."""
        for test in (self._sequences, self._steps, self._positions, self._special):
            yield from test()

    def _far(self, means: Means, picked: Array) -> Array:
        """The tokens that differ by a factor of three more than those of the groups that are not picked in the mean."""
        others = means.sums[~picked].sum() / max(float(means.counts[~picked].sum()), 1.0)
        return np.asarray(self.differences.logs > others + FACTOR)

    # --- sequences

    def _sequences(self) -> Iterator[Finding]:
        tokens = self.tokens
        of_sequences, count = self._means(tokens.lengths, self.sums), len(tokens.lengths)
        if count < 2 or float(of_sequences.means.max() - of_sequences.means.min()) < FACTOR:
            return
        best, picked = 0.0, np.zeros(count, np.bool_)
        for groups in (of_sequences.outliers(), of_sequences.upper()):
            if not groups.any():
                continue
            some = groups & (tokens.by_sequence(self._far(of_sequences, groups)) >= _MOST * tokens.lengths)
            strength = of_sequences.strength(*of_sequences.contrast(some), _choices(some))
            if strength > best:
                best, picked = strength, some
        if not best:
            return
        wrong = np.flatnonzero(picked)
        worst = int(wrong[np.argmax(of_sequences.means[wrong])])
        numbers = {"sequences": [tokens.names[number] for number in wrong.tolist()], "worst": tokens.names[worst]}
        text = (
            f"{len(wrong)} of {count} sequences differ in most of their tokens, the others do not; "
            f"sequence {tokens.names[worst]} differs most"
        )
        of_tokens = tokens.expanded(picked)
        yield Finding(SEQUENCES, text, numbers, best, picked=of_tokens)
        yield from self._late_in(of_tokens, _choices(picked), len(wrong), numbers)

    def _late_in(self, of_tokens: Array, ways: float, number: int, numbers: dict[str, Any]) -> Iterator[Finding]:
        """The picked sequences from a position on, where this tells more of them."""
        positions, logs = self.tokens.positions, self.differences.logs
        of_some = positions[of_tokens]
        counts = np.bincount(of_some)
        cut, squares = best_cut(counts, np.bincount(of_some, logs[of_tokens]))
        if not squares or counts[:cut].sum() < _FEWEST_BEFORE:
            return
        late = of_tokens & (positions >= cut)
        means = self._means(np.bincount(late, minlength=2), np.bincount(late, logs, 2))
        strength = means.strength(*means.contrast(np.array([False, True])), ways + math.log(len(counts)))
        if strength:
            text = f"{number} of {len(self.tokens.lengths)} sequences differ from position {cut} of the response on"
            yield Finding(POSITION, text, {"position": cut, "of": "of the response", **numbers}, strength, picked=late)

    # --- steps

    def _steps(self) -> Iterator[Finding]:
        for name, values in (("step", self.tokens.steps), ("rank", self.tokens.ranks)):
            found = None if values is None else self._weights(name, *np.unique(values, return_inverse=True))
            if found is not None:
                yield found

    def _weights(self, name: str, values: Array, of_each: Array) -> Finding | None:
        """Steps or ranks that differ from the others."""
        if len(values) < 2:
            return None
        means = self._means(np.bincount(of_each, self.tokens.lengths), np.bincount(of_each, self.sums))
        stale = means.upper()
        strength, rise = means.strength(*means.contrast(stale), _choices(stale)), 0.0
        if name == "step":
            # A difference that grows from step to step has no step at which it starts.
            rise, squares = _line(means)
            of_line = means.strength(rise, squares, 1.0)
            rise, strength = (rise, of_line) if of_line > strength else (0.0, strength)
        if not strength or not stale.any():
            return None
        energy = np.bincount(of_each, self.tokens.by_sequence(self.differences.energy))
        if rise:
            apart = rise, _log_rms(energy[-1:], means.counts[-1:]) - _log_rms(energy[:1], means.counts[:1])
        else:
            apart = means.contrast(stale)[0], (
                _log_rms(energy[stale], means.counts[stale]) - _log_rms(energy[~stale], means.counts[~stale])
            )  # fmt: skip
        # Tokens that are equal on both sides decide the mean of logarithms, and one that is far off that of squares.
        factor = math.exp(min(*apart, 50.0))
        differ = int(np.count_nonzero(stale))
        text = (
            f"the difference depends on the {name}: {name}{'s' * (differ > 1)} {_ranges(values, stale)} "
            f"differ{'s' * (differ == 1)} from the others"
        )
        if rise:
            text = (
                f"the difference grows from {name} {values[0]} to {name} {values[-1]}, by a factor of {factor:.0f}, as "
                "with weights that are synchronised seldom"
            )
        found = {f"{name}s": values[stale].tolist(), "synchronised": values[~stale].tolist()}
        return Finding(STALE, text, found, strength, factor, self.tokens.expanded(stale[of_each]))

    # --- positions

    def _positions(self) -> Iterator[Finding]:
        tokens, logs = self.tokens, self.differences.logs
        ways: list[tuple[str, Callable[[], Array] | None, Array, Array]] = [
            ("of the response", None, tokens.at_position, tokens.by_position(logs))
        ]
        if tokens.prompt_lengths is not None and len(np.unique(tokens.prompt_lengths)) > 1:
            whole = tokens.positions + tokens.expanded(tokens.prompt_lengths).astype(np.int64)
            ways.append(("of prompt and response", lambda: whole, np.bincount(whole), np.bincount(whole, logs)))
        found = [
            finding for way, positions, counts, sums in ways if (finding := self._cut(way, positions, counts, sums))
        ]
        if found:
            yield max(found, key=lambda finding: finding.strength)

    def _cut(self, way: str, of_tokens: Callable[[], Array] | None, counts: Array, sums: Array) -> Finding | None:
        means = self._means(counts, sums)
        cut, squares = best_cut(means.counts, means.sums)
        if not squares:
            return None
        ways, strength = math.log(len(counts)), 0.0
        if means.strength(math.inf, squares, ways):
            strength = means.strength(*means.contrast(np.arange(len(counts)) >= cut), ways)
        rise, squares = _line(means)
        of_line = means.strength(rise, squares, ways)
        if not max(strength, of_line):
            return None
        grows = of_line > strength
        of_tokens_ = self.tokens.positions if of_tokens is None else of_tokens()
        text = f"tokens differ from position {cut} {way}; those before do not"
        if grows:
            text = f"the difference grows with the position {way}, by a factor of {math.exp(min(rise, 50)):.0f}"
        return Finding(
            POSITION, text, {"position": cut, "of": way, "grows": grows}, max(strength, of_line),
            math.exp(min(rise, 50)) if of_line else 0.0, of_tokens_ >= cut,
        )  # fmt: skip

    # --- special tokens

    def _special(self) -> Iterator[Finding]:
        tokens, logs = self.tokens, self.differences.logs
        total, count = float(self.sums.sum()), float(len(tokens))
        ends = tokens.starts + tokens.lengths - 1
        found = []
        for name, indices in (("first", tokens.starts), ("last", ends)):
            of_each, sums = float(len(indices)), float(logs[indices].sum(dtype=np.float64))
            means = self._means(np.array([count - of_each, of_each]), np.array([total - sums, sums]))
            strength = means.strength(*means.contrast(np.array([False, True])), 1.0)
            if of_each <= count * _LARGEST_SHARE and strength:
                picked = np.zeros(len(tokens), np.bool_)
                picked[indices] = True
                found.append(Finding(SPECIAL, f"the {name} tokens of sequences differ, the others do not",
                                     {"tokens": name}, strength, picked=picked))  # fmt: skip
        of_ids = self._ids()
        # All that have this id may be last ones; the other way to say it is kept where it says less.
        if of_ids is not None and all(of_ids.strength >= 1.05 * each.strength for each in found):
            found = [of_ids]
        yield from sorted(found, key=lambda each: -each.strength)[:1]

    def _ids(self) -> Finding | None:
        ids = self.tokens.ids
        if ids is None or not len(ids) or int(ids.min()) < 0 or int(ids.max()) > LARGEST_ID:
            return None
        counts, sums = np.bincount(ids), np.bincount(ids, self.differences.logs)
        number, frequent = int(np.count_nonzero(counts)), np.flatnonzero(counts >= _FEWEST_OF_ID)
        # The middle mean, each as often as it has tokens, without sorting a vocabulary.
        some = ids[self.differences.sampled]
        of_some, half = sums.take(some) / counts.take(some), (len(some) - 1) // 2
        middle = float(np.partition(of_some, half)[half])
        above = frequent[self._means(counts[frequent], sums[frequent]).above(middle, number)]
        if not len(above):
            return None
        # A vocabulary is larger than what a batch has of it.
        present = np.flatnonzero(counts)
        means, picked = self._means(counts[present], sums[present]), np.isin(present, above, assume_unique=True)
        picked &= np.bincount(ids, self._far(means, picked))[present] >= _MOST * means.counts
        strength = means.strength(*means.contrast(picked), _choices(picked))
        share = float(means.counts[picked].sum()) / len(ids)
        if not strength or share > _LARGEST_SHARE:
            return None
        order = np.flatnonzero(picked)
        order = order[np.argsort(-means.counts[order])]
        if len(order) > MOST_IDS:
            return None
        found = present[order].tolist()
        text = f"the tokens of id {', '.join(map(str, found))} differ, the others do not"
        of_ids = np.zeros(len(counts), np.bool_)
        of_ids[found] = True
        return Finding(SPECIAL, text, {"ids": found}, strength, picked=of_ids[ids])


def _log_rms(energy: Array, counts: Array) -> float:
    """The logarithm of the root mean square of some groups."""
    return math.log(max(float(energy.sum()) / max(float(counts.sum()), 1.0), 1e-300)) / 2


def _ranges(values: Array, picked: Array) -> str:
    """The picked ones of some values, neighbours as ranges: ``2, 5 to 7``."""
    runs = np.split(values[picked], np.flatnonzero(np.diff(np.flatnonzero(picked)) > 1) + 1)
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _line(means: Means) -> tuple[float, float]:
    """Rise of means over the logarithm of their numbers, and the sum of squares that it explains; 0 if they fall."""
    counts, count = means.counts, means.count
    numbers = np.log1p(np.arange(len(counts), dtype=np.float64))
    middle, of_all = float((counts * numbers).sum() / count), float(means.sums.sum() / count)
    spread = float((counts * (numbers - middle) ** 2).sum())
    if not spread:
        return 0.0, 0.0
    slope = float(((numbers - middle) * (means.sums - counts * of_all)).sum()) / spread
    there = numbers[counts > 0]
    return slope * float(there[-1] - there[0]), (slope * slope * spread if slope > 0 else 0.0)
