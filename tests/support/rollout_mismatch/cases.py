"""Pairs of log-probabilities: clean ones, and ones with a planted mismatch of a kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_mismatch.model import Model, Program, Run, Shape, log_softmax

Array = NDArray[Any]
DTYPES = ("float32", "bfloat16", "float16")
LENGTHS = ("equal", "uniform", "long tail")
VOCABULARIES = (64, 512, 8192)
SHARPNESS = (0.5, 3.0, 6.0)
"""From flat distributions to such in which most tokens have a probability near one."""
END = 1
"""The id of the token that ends a sequence."""


@dataclass(frozen=True)
class Setting:
    """The sizes of a case."""

    dtype: str = "float32"
    lengths: str = "equal"
    vocabulary: int = 512
    sharpness: float = 3.0
    seed: int = 0
    sequences: int = 32
    longest: int = 64
    layers: int = 2


@dataclass
class Case:
    """What the two sides give, padded on the right, and what is known of it."""

    rollout: Array
    training: Array
    mask: Array
    tokens: Array
    prompt_lengths: Array
    steps: Array | None = None
    entropy: Array | None = None


class Sampled:
    """A batch of prompts and responses that a program sampled, with the log-probabilities it had.

    Args:
        ends: The last token of each response is that which ends it, however probable it is.
        process: What sampling does to logits.
    """

    def __init__(self, setting: Setting, model: Model, program: Program, seed: int, ends: bool = False,
                 process: Callable[[Array], Array] | None = None) -> None:  # fmt: skip
        self.setting, self.model, self.ends = setting, model, ends
        random = np.random.default_rng([seed, 7])
        count = setting.sequences
        self.prompts = random.integers(4, 17, count)
        self.longest = int(self.prompts.max())
        self.prompt = random.integers(2, setting.vocabulary, (count, self.longest))
        self.lengths = _lengths(setting, random)
        self.tokens, self.logps, self.entropy = self._decode(program, random, process)
        self.mask = np.arange(self.tokens.shape[1])[None, :] < self.lengths[:, None]

    def _decode(
        self, program: Program, random: np.random.Generator, process: Callable[[Array], Array] | None = None
    ) -> tuple[Array, Array, Array]:
        run = Run(self.model, program, self.prompts)
        logits = run.logits(self.prompt)[:, -1]
        tokens, logps, entropies = [], [], []
        for position in range(int(self.lengths.max())):
            shown = logits if process is None else process(logits)
            logp = log_softmax(shown)
            noise = random.gumbel(size=logp.shape)
            token = np.argmax(logp + noise, -1)
            if self.ends:
                token = np.where(position == self.lengths - 1, END, token)
            tokens.append(token)
            logps.append(np.take_along_axis(logp, token[:, None], 1)[:, 0])
            exact = log_softmax(logits)
            entropies.append(-(np.exp(exact) * exact).sum(-1))
            logits = run.logits(token[:, None])[:, 0]
        return np.stack(tokens, 1), np.stack(logps, 1), np.stack(entropies, 1)

    def scored(self, program: Program, model: Model | None = None, prompt: Array | None = None,
               prompts: Array | None = None, masks_padding: bool = True,
               process: Callable[[Array], Array] | None = None) -> Array:  # fmt: skip
        """The log-probabilities of the responses in one forward over prompt and response."""
        prompt = self.prompt if prompt is None else prompt
        run = Run(model or self.model, program, self.prompts if prompts is None else prompts)
        whole = np.concatenate([prompt, self.tokens], 1)
        logits = run.logits(whole, masks_padding)[:, prompt.shape[1] - 1 : -1]
        if process is not None:
            logits = process(logits)
        return np.asarray(np.take_along_axis(log_softmax(logits), self.tokens[..., None], 2)[..., 0])

    def case(self, training: Array, rollout: Array | None = None) -> Case:
        shown = self.logps if rollout is None else rollout
        return Case(
            np.where(self.mask, shown, 0).astype(np.float32), np.where(self.mask, training, 0).astype(np.float32),
            self.mask, self.tokens, self.prompts, entropy=self.entropy,
        )  # fmt: skip


def _lengths(setting: Setting, random: np.random.Generator) -> Array:
    count, longest = setting.sequences, setting.longest
    if setting.lengths == "equal":
        return np.full(count, longest)
    if setting.lengths == "uniform":
        return random.integers(4, longest + 1, count)
    return np.clip((random.pareto(1.2, count) * 12 + 4).astype(int), 4, longest)


def _model(setting: Setting, experts: int = 0) -> Model:
    shape = Shape(setting.vocabulary, sharpness=setting.sharpness, experts=experts, layers=setting.layers)
    return Model(shape, setting.seed + 1000)


def _programs(setting: Setting) -> tuple[Program, Program]:
    return Program(setting.dtype, is_fused=True), Program(setting.dtype)


def _sampled(setting: Setting, experts: int = 0, **sampling: Any) -> Sampled:
    return Sampled(setting, _model(setting, experts), _programs(setting)[0], setting.seed, **sampling)


def clean(setting: Setting) -> Case:
    sampled = _sampled(setting)
    return sampled.case(sampled.scored(_programs(setting)[1]))


def clean_steps(setting: Setting) -> Case:
    """Several steps of a training whose rollout has the weights of each."""
    return _steps(setting, lambda step: step, 6)


# --- one function for each way to be wrong


def temperature(setting: Setting) -> Case:
    """The log-probabilities of the rollout are those after its temperature."""
    value = np.float32(np.random.default_rng(setting.seed).choice([0.6, 0.8, 0.9, 1.2, 1.5]))
    sampled = _sampled(setting, process=lambda logits: logits / value)
    return sampled.case(sampled.scored(_programs(setting)[1]))


def top_p(setting: Setting) -> Case:
    """They are those of the tokens that top-p leaves."""
    value = float(np.random.default_rng(setting.seed).choice([0.8, 0.9, 0.95]))

    def process(logits: Array) -> Array:
        order = np.argsort(-logits, -1)
        ordered = np.take_along_axis(np.exp(log_softmax(logits)), order, -1)
        dropped = np.cumsum(ordered, -1) - ordered > value
        result = logits.copy()
        np.put_along_axis(result, order, np.where(dropped, -1e30, np.take_along_axis(logits, order, -1)), -1)
        return result

    sampled = _sampled(setting, process=process)
    return sampled.case(sampled.scored(_programs(setting)[1]))


def top_k(setting: Setting) -> Case:
    """They are those of the tokens that top-k leaves."""
    value = max(4, setting.vocabulary // int(np.random.default_rng(setting.seed).choice([3, 8])))

    def process(logits: Array) -> Array:
        least = np.partition(logits, -value, -1)[..., -value, None]
        return np.where(logits < least, np.float32(-1e30), logits)

    sampled = _sampled(setting, process=process)
    return sampled.case(sampled.scored(_programs(setting)[1]))


def shifted(setting: Setting) -> Case:
    """The training's are one token early or late."""
    sampled = _sampled(setting)
    by = 1 if setting.seed % 2 else -1
    return sampled.case(np.roll(sampled.scored(_programs(setting)[1]), by, 1))


def template(setting: Setting) -> Case:
    """Some sequences have another beginning of their prompt."""
    sampled, training = _sampled(setting), _programs(setting)[1]
    right, prompt = sampled.scored(training), sampled.prompt.copy()
    prompt[:, -3:] = (prompt[:, -3:] + 1) % setting.vocabulary
    return sampled.case(_in_some(setting, right, sampled.scored(training, prompt=prompt)))


def truncated(setting: Setting) -> Case:
    """Some sequences lose the beginning of their prompt."""
    sampled, training = _sampled(setting), _programs(setting)[1]
    shorter = np.maximum(sampled.prompts // 3, 1)
    return sampled.case(_in_some(setting, sampled.scored(training), sampled.scored(training, prompts=shorter)))


def padding(setting: Setting) -> Case:
    """The padding on the left is not masked: all sequences but the longest are wrong."""
    sampled, training = _sampled(setting), _programs(setting)[1]
    sampled.prompts[: setting.sequences // 3] = sampled.longest
    sampled.__dict__.update(zip(("tokens", "logps", "entropy"), sampled._decode(
        _programs(setting)[0], np.random.default_rng(setting.seed))))  # fmt: skip
    return sampled.case(sampled.scored(training, masks_padding=False))


def _in_some(setting: Setting, right: Array, wrong: Array) -> Array:
    random = np.random.default_rng(setting.seed)
    chosen = random.permutation(setting.sequences)[: random.integers(2, max(3, setting.sequences // 4))]
    result = right.copy()
    result[chosen] = wrong[chosen]
    return result


def offset(setting: Setting) -> Case:
    """The positions after the prompt are off by one in the decode loop."""
    program = replace(_programs(setting)[0], offset_after_prompt=1)
    sampled = Sampled(setting, _model(setting), program, setting.seed)
    return sampled.case(sampled.scored(_programs(setting)[1]))


def forgets(setting: Setting) -> Case:
    """The cache loses a part of the prompt at some position of the response."""
    at = int(np.random.default_rng(setting.seed).integers(3, setting.longest // 2))
    program = replace(_programs(setting)[0], forgets_at=at)
    sampled = Sampled(setting, _model(setting), program, setting.seed)
    return sampled.case(sampled.scored(_programs(setting)[1]))


def window(setting: Setting) -> Case:
    """One side looks back to fewer tokens than the context has from some position on."""
    program = replace(_programs(setting)[1], window=setting.longest // 2)
    sampled = _sampled(setting)
    return sampled.case(sampled.scored(program))


def stretch(setting: Setting) -> Case:
    """The positions of one side are a little wider, so that the error grows with them."""
    sampled = _sampled(setting)
    return sampled.case(sampled.scored(replace(_programs(setting)[1], stretch=1.01)))


def end_token(setting: Setting) -> Case:
    """The logit of the token that ends a sequence is another one, as with a penalty."""
    sampled = _sampled(setting, ends=True)

    def process(logits: Array) -> Array:
        changed = logits.copy()
        changed[..., END] += np.float32(1.5)
        return changed

    return sampled.case(sampled.scored(_programs(setting)[1], process=process))


def first_token(setting: Setting) -> Case:
    """The first token is sampled from another distribution, as after a prefill without its last token."""
    sampled = _sampled(setting)
    training = sampled.scored(_programs(setting)[1])
    prompt = sampled.prompt.copy()
    prompt[:, -1] = prompt[:, 0]
    training[:, 0] = sampled.scored(_programs(setting)[1], prompt=prompt)[:, 0]
    return sampled.case(training)


def stale(setting: Setting) -> Case:
    """The rollout gets the weights every third step."""
    return _steps(setting, lambda step: step - step % 3, 6)


def _steps(setting: Setting, version: Callable[[int], int], count: int) -> Case:
    models = [_model(setting)]
    for step in range(1, count):
        models.append(models[-1].moved(0.02, setting.seed + step))
    each = replace(setting, sequences=max(4, setting.sequences // 4))
    rollout, training = _programs(setting)
    cases = []
    for step in range(count):
        sampled = Sampled(each, models[version(step)], rollout, setting.seed * 100 + step)
        cases.append(sampled.case(sampled.scored(training, models[step])))
    return _joined(cases)


def _joined(cases: list[Case]) -> Case:
    widest = max(case.mask.shape[1] for case in cases)

    def joined(name: str) -> Array:
        arrays = [getattr(case, name) for case in cases]
        return np.concatenate([np.pad(each, ((0, 0), (0, widest - each.shape[1]))) for each in arrays])

    steps = np.concatenate([np.full(len(case.mask), number) for number, case in enumerate(cases)])
    prompts = np.concatenate([case.prompt_lengths for case in cases])
    return Case(joined("rollout"), joined("training"), joined("mask"), joined("tokens"), prompts, steps,
                joined("entropy"))  # fmt: skip


def routing(setting: Setting) -> Case:
    """The router of one side is noisy, so that tokens near a tie go to another expert."""
    noise = {"float32": 1e-2, "bfloat16": 3e-2, "float16": 1e-2}[setting.dtype]
    sampled = _sampled(replace(setting, layers=1), experts=8)
    return sampled.case(sampled.scored(replace(_programs(setting)[1], router_noise=noise)))


def part(setting: Setting) -> Case:
    """A layer of one side is computed in a shorter dtype."""
    dtype = "bfloat16" if setting.dtype == "float32" else "float8_e5m2"
    sampled = _sampled(setting)
    return sampled.case(sampled.scored(replace(_programs(setting)[1], part_dtype=dtype, part=0)))


def cache(setting: Setting) -> Case:
    """The cache of the rollout has a shorter dtype."""
    dtype = "bfloat16" if setting.dtype == "float32" else "float8_e5m2"
    sampled = Sampled(setting, _model(setting), replace(_programs(setting)[0], cache_dtype=dtype), setting.seed)
    return sampled.case(sampled.scored(_programs(setting)[1]))


def not_finite(setting: Setting) -> Case:
    """A few log-probabilities are NaN or infinite."""
    found = clean(setting)
    rows, columns = np.nonzero(found.mask)
    chosen = np.random.default_rng(setting.seed).permutation(len(rows))[:3]
    found.training[rows[chosen], columns[chosen]] = [np.nan, -np.inf, np.nan]
    return found


Make = Callable[[Setting], Case]
CLEAN: tuple[Make, ...] = (clean, clean_steps)
PLANTED: dict[Make, str] = {
    temperature: "temperature", top_p: "temperature", top_k: "temperature", shifted: "shifted",
    template: "sequences", truncated: "sequences", padding: "sequences", offset: "position", forgets: "position",
    window: "position", stretch: "position", end_token: "special_tokens", first_token: "special_tokens",
    stale: "stale", routing: "routing", part: "precision", cache: "precision", not_finite: "nonfinite",
}  # fmt: skip
"""The functions, and the kind that each plants."""
