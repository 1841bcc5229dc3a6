"""Pairs of log-probabilities of drawn distributions: right ones, slow faults, penalties, and tokens that do not fit.

Each position has logits of its own, and both sides add errors to them whose size is a share of what rounding to the
dtype is expected to give. Real kernels are often far more exact than that, so that a fault is small and still plain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.rollout.check import check
from probe.rollout.kinds.differences import level_of
from probe.rollout.report import RolloutReport

Array = NDArray[Any]
DTYPES = ("float32", "bfloat16", "float16")
FAMILIES, HELD_OUT_FAMILIES = ("normal", "zipf", "peaked"), ("laplace", "mixed")
VOCABULARIES, HELD_OUT_VOCABULARIES = (150, 800), (97, 1300)
SHARES = (0.03, 0.1, 0.3)
"""The size of right errors, relative to what rounding explains."""


@dataclass
class Pair:
    """Sources of a check, by their names, and what else is known."""

    sources: dict[str, Any]
    dtype: str
    layers: int
    vocabulary: int
    clean: float
    """The root mean square of the differences of right errors."""

    def report(self, knows: bool = True) -> RolloutReport:
        return check(self.sources, self.dtype if knows else "", self.vocabulary, self.layers if knows else 0)

    @property
    def is_told(self) -> bool:
        """True if the differences are at least twice as large as those of right errors."""
        apart = np.asarray(self.sources["rollout"], np.float64) - self.sources["training"]
        return bool(np.sqrt(np.mean(apart**2)) >= 2 * self.clean)


def log_softmax(logits: Array) -> Array:
    moved = logits - logits.max(-1, keepdims=True)
    return np.asarray(moved - np.log(np.exp(moved).sum(-1, keepdims=True)))


class Drawn:
    """Logits of responses, both sides' errors, and the tokens that are sampled."""

    def __init__(self, seed: int, is_held_out: bool = False, name: str = "", is_small: bool = False) -> None:
        random = self.random = np.random.default_rng([seed, *name.encode()])
        self.dtype = str(random.choice(DTYPES))
        self.family = str(random.choice(HELD_OUT_FAMILIES if is_held_out else FAMILIES))
        self.vocabulary = int(random.choice(HELD_OUT_VOCABULARIES if is_held_out else VOCABULARIES))
        self.layers = int(random.choice([12, 24, 36, 64]))
        self.steps, self.count, self.length = 6, 4, int(random.choice([32, 48]))
        if is_small:
            self.vocabulary, self.length = min(VOCABULARIES), 32
        self.shape = (self.steps * self.count, self.length)
        self.share = float(random.choice(SHARES))
        self.logits = self._logits()
        entropy = -float((np.exp(log_softmax(self.logits)) * log_softmax(self.logits)).sum(-1).mean())
        self.size = self.share * level_of(self.dtype, self.vocabulary, entropy, self.layers).size / np.sqrt(2)
        self.prompt = random.integers(0, self.vocabulary, (self.shape[0], 12))
        self.of_steps = np.repeat(np.arange(self.steps), self.count)

    def _logits(self) -> Array:
        random, shape = self.random, (*self.shape, self.vocabulary)
        normal = random.standard_normal(shape)
        if self.family == "normal":
            found = normal * random.choice([1.0, 2.5, 4.0])
        elif self.family == "zipf":
            ranks = np.log1p(np.arange(self.vocabulary))
            found = -random.choice([0.8, 1.3]) * ranks + normal * random.choice([0.7, 1.5])
        elif self.family == "peaked":
            found = normal * 2
            sure = random.random(self.shape) < random.choice([0.4, 0.8])
            best = random.integers(0, self.vocabulary, self.shape)
            found[sure, best[sure]] += random.uniform(8, 18, int(sure.sum()))
        elif self.family == "laplace":
            found = random.laplace(size=shape) * random.choice([0.6, 1.2])
        else:
            found = normal * random.choice([0.5, 2, 4, 6], self.shape)[..., None]
        # Ten words of its own have a part of the probability in each sequence, so that tokens repeat as in text.
        share = random.choice([0.2, 0.5])
        for row, words in zip(found, random.integers(0, self.vocabulary, (self.shape[0], 10))):
            of_words = np.exp(log_softmax(row))[:, words].sum(-1, keepdims=True)
            row[:, words] += np.log(np.maximum(share * (1 - of_words) / of_words / (1 - share), 1))
        return np.asarray(found + random.choice([-4.0, 0.0, 4.0]))

    def errors(self, by: Any = 1.0) -> Array:
        """Errors of logits of one side, times a factor for each token."""
        shape = (*self.shape, self.vocabulary)
        of_rows = self.random.lognormal(0, 0.2, (self.shape[0], 1))
        return np.asarray(self.random.standard_t(8, shape) / 1.15 * (self.size * of_rows * by)[..., None])

    def sample(self, logits: Array) -> Array:
        return np.asarray(np.argmax(log_softmax(logits) + self.random.gumbel(size=logits.shape), -1))

    def pair(self, rollout: Array, training: Array, tokens: Array | None = None, **sources: Any) -> Pair:
        """The pair of two sets of logits; the tokens are sampled from those of the rollout."""
        tokens = self.sample(rollout) if tokens is None else tokens
        sides = [np.take_along_axis(log_softmax(side), tokens[..., None], -1)[..., 0] for side in (rollout, training)]
        # log_softmax is computed in float32, in another order on each side.
        sides = [side * (1 + self.random.uniform(-1, 1, side.shape) * 2.0**-23) for side in sides]
        noise = log_softmax(self.logits + self.errors()) - log_softmax(self.logits + self.errors())
        clean = float(np.sqrt(np.mean(np.take_along_axis(noise, tokens[..., None], -1) ** 2)))
        given = {"rollout": sides[0].astype(np.float32), "training": sides[1].astype(np.float32), "tokens": tokens,
                 "step": self.of_steps, **sources}  # fmt: skip
        return Pair(given, self.dtype, self.layers, self.vocabulary, clean)

    def of(self, by: Any = 1.0, process: Callable[[Array], Array] = lambda logits: logits) -> Pair:
        """A pair whose rollout has other errors, or processes its logits."""
        return self.pair(process(self.logits + self.errors(by)), self.logits + self.errors())

    def ramp(self, name: str) -> Array:
        """From 0 to 1 with the position or the step, for each token."""
        steps = np.repeat(self.of_steps[:, None], self.length, 1) / (self.steps - 1)
        return steps if name == "step" else np.broadcast_to(np.arange(self.length) / (self.length - 1), self.shape)


# --- right ones


def right(drawn: Drawn) -> Pair:
    return drawn.of()


def right_grows(drawn: Drawn) -> Pair:
    """Errors that grow with the root of the position, as sums over a longer context do."""
    return drawn.of(np.sqrt(1 + 8 * drawn.ramp("position")))


def right_batches(drawn: Drawn) -> Pair:
    """A kernel that depends on the size of the batch: some steps have no error at all, one has more."""
    by = np.zeros(drawn.shape)
    by[drawn.of_steps >= 3] = 1.0
    by[drawn.of_steps == 5] = 2.5
    errors = drawn.errors(by)
    return drawn.pair(drawn.logits + errors, drawn.logits)


def right_prefill(drawn: Drawn) -> Pair:
    """The first chunk comes from one kernel on both sides."""
    return drawn.pair(drawn.logits + drawn.errors((drawn.ramp("position") > 0.3) * 1.0), drawn.logits)


def right_first(drawn: Drawn) -> Pair:
    """The first token comes from the prefill, which has no cache of a shorter dtype."""
    by = np.where(drawn.ramp("position") == 0, 1 / 40, 1.0)
    return drawn.pair(drawn.logits + drawn.errors(by), drawn.logits + drawn.errors(by))


def right_stored(drawn: Drawn) -> Pair:
    """Log-probabilities that the engine stores in bfloat16."""
    drawn.dtype = "bfloat16"
    pair = drawn.of()
    bits = pair.sources["rollout"].view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    pair.sources["rollout"] = rounded.view(np.float32)
    return pair


def right_rows(drawn: Drawn) -> Pair:
    """Sequences whose errors differ in size, as of prompts of other lengths."""
    return drawn.of(np.repeat(drawn.random.lognormal(0, 0.5, (drawn.shape[0], 1)), drawn.length, 1))


def right_equal(drawn: Drawn) -> Pair:
    """A part of the tokens is equal on both sides, a larger one in each step."""
    errors, share = drawn.errors(), np.linspace(0.05, 0.45, drawn.steps)[drawn.of_steps][:, None]
    errors[drawn.random.random(drawn.shape) < share] = 0
    return drawn.pair(drawn.logits + errors, drawn.logits)


# --- slow faults


def temperature_small(drawn: Drawn) -> Pair:
    value = 1 + drawn.random.choice([-1, 1]) * drawn.random.uniform(0.01, 0.1)
    return drawn.of(process=lambda logits: logits / value)


def temperature_by_step(drawn: Drawn) -> Pair:
    value = 1 + drawn.random.uniform(0.05, 0.3) * drawn.ramp("step")
    return drawn.of(process=lambda logits: logits / value[..., None])


def temperature_by_position(drawn: Drawn) -> Pair:
    value = 1 + drawn.random.uniform(0.05, 0.3) * drawn.ramp("position")
    return drawn.of(process=lambda logits: logits / value[..., None])


def temperature_on_certain(drawn: Drawn) -> Pair:
    """Nearly all tokens are certain."""
    best = drawn.random.integers(0, drawn.vocabulary, drawn.shape)
    np.put_along_axis(drawn.logits, best[..., None], drawn.logits.max() + drawn.random.uniform(8, 14), -1)
    return drawn.of(process=lambda logits: logits / np.float64(0.8))


def position_slow(drawn: Drawn) -> Pair:
    """Errors that grow evenly from the first token to the last one, to some 30 to 100 times."""
    return drawn.of(drawn.random.uniform(30, 100) ** drawn.ramp("position"))


def position_late(drawn: Drawn) -> Pair:
    ramp = np.clip(drawn.ramp("position") - drawn.random.uniform(0.2, 0.6), 0, None)
    return drawn.of(1 + drawn.random.uniform(80, 200) * ramp)


def stale_slow(drawn: Drawn) -> Pair:
    """Errors that grow with the steps since the last synchronisation."""
    return drawn.of(1 + drawn.random.uniform(30, 80) * drawn.ramp("step"))


def stale_doubles(drawn: Drawn) -> Pair:
    return drawn.of(drawn.random.uniform(30, 80) ** drawn.ramp("step"))


def stale_group(drawn: Drawn) -> Pair:
    """One step is 22 to 40 times its neighbours."""
    step = drawn.random.integers(1, drawn.steps)
    by = np.where(drawn.of_steps == step, drawn.random.uniform(22, 40), 1.0)
    return drawn.of(np.repeat(by[:, None], drawn.length, 1))


def stale_ten(drawn: Drawn) -> Pair:
    """Errors that grow over the steps to some ten times."""
    return drawn.of(np.sqrt(1 + (drawn.random.uniform(9, 14) * drawn.ramp("step")) ** 2))


# --- a few tokens


def _lower(pair: Pair, picked: Array) -> Pair:
    training, by = pair.sources["training"], max(30 * pair.clean, 1.0)
    pair.sources["training"] = np.where(picked, training - by, training).astype(np.float32)
    return pair


def special_first(drawn: Drawn) -> Pair:
    return _lower(drawn.of(), drawn.ramp("position") == 0)


def special_id(drawn: Drawn) -> Pair:
    pair = drawn.of()
    counts = np.bincount(pair.sources["tokens"].ravel())
    frequent = np.argsort(-np.where(counts * 5 > counts.sum(), 0, counts))
    return _lower(pair, pair.sources["tokens"] == frequent[drawn.random.integers(3)])


# --- penalties


def _penalised(drawn: Drawn, change: Callable[[Array, Array], Array], of_prompt: bool) -> Pair:
    """A rollout whose sampler changes logits by the counts of the tokens before."""
    counts = np.zeros((drawn.shape[0], drawn.vocabulary))
    rows = np.arange(drawn.shape[0])
    if of_prompt:
        np.add.at(counts, (rows[:, None], drawn.prompt), 1)
    errors, raised, tokens = drawn.errors(), [], []
    for at in range(drawn.length):
        raised.append(change(drawn.logits[:, at] + errors[:, at], counts))
        tokens.append(drawn.sample(raised[-1]))
        counts[rows, tokens[-1]] += 1
    return drawn.pair(np.stack(raised, 1), drawn.logits + drawn.errors(), np.stack(tokens, 1))


def repetition(drawn: Drawn) -> Pair:
    value = drawn.random.uniform(1.05, 1.4)
    return _penalised(
        drawn, lambda logits, n: np.where(n > 0, np.where(logits > 0, logits / value, logits * value), logits),
        bool(drawn.random.random() < 0.5),
    )  # fmt: skip


def presence(drawn: Drawn) -> Pair:
    value = drawn.random.uniform(0.2, 1.5)
    return _penalised(drawn, lambda logits, n: logits - value * (n > 0), False)


def frequency(drawn: Drawn) -> Pair:
    value = drawn.random.uniform(0.1, 0.7)
    return _penalised(drawn, lambda logits, n: logits - value * n, False)


# --- not the same tokens or logits


def other_position(drawn: Drawn) -> Pair:
    """The training takes the logits of the next position for each token."""
    return drawn.pair(drawn.logits + drawn.errors(), np.roll(drawn.logits, -1, 1) + drawn.errors())


def other_ids(drawn: Drawn) -> Pair:
    """The ids of another tokenizer on one side."""
    order = drawn.random.permutation(drawn.vocabulary)
    return drawn.pair(drawn.logits + drawn.errors(), drawn.logits[..., order] + drawn.errors())


def other_sequences(drawn: Drawn) -> Pair:
    """The rows of one side lie in another order."""
    pair = drawn.of()
    pair.sources["training"] = np.roll(pair.sources["training"], drawn.random.integers(1, drawn.shape[0]), 0)
    return pair


# --- kinds that must not become one of these


def top_p(drawn: Drawn) -> Pair:
    value = drawn.random.choice([0.8, 0.9, 0.95])

    def process(logits: Array) -> Array:
        order = np.argsort(-logits, -1)
        ordered = np.take_along_axis(np.exp(log_softmax(logits)), order, -1)
        kept = np.where(np.cumsum(ordered, -1) - ordered > value, -1e30, np.take_along_axis(logits, order, -1))
        result = np.empty_like(logits)
        np.put_along_axis(result, order, kept, -1)
        return result

    return drawn.of(process=process)


def other_weights(drawn: Drawn) -> Pair:
    """Errors of logits several times as large as rounding, everywhere."""
    drawn.size /= drawn.share
    return drawn.pair(drawn.logits + drawn.errors(6.0), drawn.logits + drawn.errors())


Make = Callable[[Drawn], Pair]
RIGHT: tuple[Make, ...] = (right, right_grows, right_batches, right_prefill, right_first, right_stored, right_rows,
                           right_equal)  # fmt: skip
FAULTS: dict[Make, tuple[str, ...]] = {
    temperature_small: ("temperature",), temperature_by_step: ("temperature",),
    temperature_by_position: ("temperature",), temperature_on_certain: ("temperature", "rounding"),
    top_p: ("temperature",),
    position_slow: ("position",), position_late: ("position",), stale_slow: ("stale",), stale_doubles: ("stale",),
    stale_group: ("stale",), stale_ten: ("stale",), special_first: ("special_tokens",),
    special_id: ("special_tokens",), repetition: ("penalty",), presence: ("penalty",), frequency: ("penalty",),
    other_position: ("unrelated",), other_ids: ("unrelated",), other_sequences: ("unrelated",),
    other_weights: ("precision",),
}  # fmt: skip
"""The functions, and the kinds that are right."""


def made(make: Make, seed: int, is_held_out: bool = False, is_small: bool = False) -> Pair:
    return make(Drawn(seed, is_held_out, make.__name__, is_small))
