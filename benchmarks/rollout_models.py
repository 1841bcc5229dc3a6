"""The kinds that `rollout_check` names for models of transformers, clean and with a fault in one side.

usage: python benchmarks/rollout_models.py [--models NAME ...] [--dtypes NAME ...] [--steps N ...] [--seeds N]

Small GPT-2, Llama, Qwen2 and Mixtral with random weights, or trained for some steps on made-up text. The rollout is a
decode loop with the cache of the model, which returns the log-probability of each token that it samples; the training
is one forward over prompt and response. Both have the same weights and positions in a clean case, so that only the
order of sums differs. Each case is judged with the dtype and the number of layers, and without. Prints a row of
Markdown for each fault, with the models and dtypes in which the kind was another one. A fault whose differences are
less than twice those of the clean case is below rounding and counted apart. ROLLOUT_KINDS.md has the results.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))
from probe.rollout.check import check
from probe.rollout.report import RolloutReport

VOCABULARY, LAYERS, WIDTH, HEADS = 200, 4, 64, 4
END = 3
"""The id of the end token, which the made-up text has now and then."""
SEQUENCES, PROMPT, RESPONSE = 24, 12, 48
SHORTER = {"float32": torch.bfloat16, "bfloat16": torch.float8_e4m3fn}
"""The next shorter dtype, in which one layer or all weights are rounded."""
_SIZES = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
MODELS: dict[str, Callable[[], Any]] = {
    "GPT-2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=256, attn_pdrop=0,
            resid_pdrop=0, embd_pdrop=0,
        )
    ),
    "Llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SIZES, intermediate_size=128)),
    "Qwen2": lambda: transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(**_SIZES, intermediate_size=128, num_key_value_heads=2)
    ),
    "Mixtral": lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**_SIZES, intermediate_size=64, num_key_value_heads=2, num_local_experts=8)
    ),
}  # fmt: skip


def text(count: int, length: int, seed: int) -> torch.Tensor:
    """Sequences in which the last token, and sometimes that before it, tells the next one."""
    following = np.random.default_rng(5).integers(4, VOCABULARY, (VOCABULARY, 3))
    random = np.random.default_rng(seed)
    found = np.zeros((count, length), np.int64)
    found[:, :2] = random.integers(4, VOCABULARY, (count, 2))
    for at in range(2, length):
        way = random.choice(3, count, p=[0.8, 0.15, 0.05])
        found[:, at] = following[(found[:, at - 1] + found[:, at - 2] * (way == 2)) % VOCABULARY, way]
        found[random.random(count) < 0.05, at] = END
    return torch.tensor(found)


def train(model: Any, steps: int, seed: int, rate: float = 3e-3) -> Any:
    """The same model after some steps of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    for step in range(steps):
        batch = text(16, 48, 100 * seed + step)
        optimizer.zero_grad()
        model(batch, labels=batch).loss.backward()
        optimizer.step()
    return model


class Batch(NamedTuple):
    """Prompts with their padding on the left, and what a decode loop sampled after them."""

    prompts: torch.Tensor
    mask: torch.Tensor
    tokens: torch.Tensor
    logps: torch.Tensor


@torch.no_grad()
def decode(
    model: Any, prompts: torch.Tensor, mask: torch.Tensor, seed: int, offset: int = 0,
    process: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits,
    punish: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda logits, counts: logits,
) -> Batch:  # fmt: skip
    """Sample a token after the other, with the cache.

    Args:
        model: In the dtype in which it computes.
        prompts: Their ids, and `mask` is 0 for padding.
        mask: As above.
        seed: Of the samples.
        offset: Added to the positions of tokens after the prompt.
        process: What sampling does to logits; log-probabilities are those after it.
        punish: The same with the number of times that the response has each token.
    """
    counts = torch.zeros(len(prompts), VOCABULARY)
    generator = torch.Generator().manual_seed(seed)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    found = model(prompts, attention_mask=mask, position_ids=positions, use_cache=True)
    last, tokens, logps, seen = positions[:, -1:], [], [], mask
    for _ in range(RESPONSE):
        logp = torch.log_softmax(punish(process(found.logits[:, -1].float()), counts), -1)
        tokens.append(torch.multinomial(logp.exp(), 1, generator=generator))
        counts.scatter_add_(1, tokens[-1], torch.ones(len(prompts), 1))
        logps.append(logp.gather(1, tokens[-1]))
        last, seen = last + 1, torch.cat([seen, torch.ones_like(last)], 1)
        found = model(
            tokens[-1], attention_mask=seen, position_ids=last + offset, past_key_values=found.past_key_values,
            use_cache=True,
        )  # fmt: skip
    return Batch(prompts, mask, torch.cat(tokens, 1), torch.cat(logps, 1))


@torch.no_grad()
def score(
    model: Any, batch: Batch, is_masked: bool = True,
    process: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits, ahead: int = 0,
) -> torch.Tensor:  # fmt: skip
    """The log-probabilities of the same tokens in one forward; without the mask padding is a part of the prompt."""
    whole = torch.cat([batch.prompts, batch.tokens], 1)
    mask = torch.cat([batch.mask, torch.ones_like(batch.tokens)], 1) if is_masked else torch.ones_like(whole)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(whole, attention_mask=mask, position_ids=positions).logits[:, PROMPT - 1 : -1]
    # Each token's logits, or those of a token before.
    logits = logits.roll(ahead, 1)
    return torch.log_softmax(process(logits.float()), -1).gather(2, batch.tokens[..., None])[..., 0]


class Case(NamedTuple):
    """Two sets of log-probabilities, and the kind that is right."""

    name: str
    kind: str
    rollout: torch.Tensor
    training: torch.Tensor
    known: dict[str, Any]
    dtype: str = ""
    """The dtype that is given to the check, where it is not that of the models."""


PENALTIES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "repetition penalty 1.2": lambda logits, n: torch.where(
        n > 0, torch.where(logits > 0, logits / 1.2, logits * 1.2), logits
    ),
    "presence penalty 0.8": lambda logits, n: logits - 0.8 * (n > 0),
    "frequency penalty 0.3": lambda logits, n: logits - 0.3 * n,
}


def cases(exact: Any, dtype: str, seed: int) -> Iterator[Case]:
    """All faults in one model and dtype."""
    model = copy.deepcopy(exact).to(getattr(torch, dtype)).eval()
    prompts = text(SEQUENCES, PROMPT, 900 + seed)
    full = torch.ones_like(prompts)
    # A third of the prompts is as long as the batch.
    lengths = torch.tensor(np.random.default_rng(seed).integers(3, PROMPT + 1, SEQUENCES))
    lengths[: SEQUENCES // 3] = PROMPT
    padded = (torch.arange(PROMPT)[None] >= PROMPT - lengths[:, None]).long()

    batch = decode(model, prompts, full, seed)
    known = {"tokens": batch.tokens}
    scored = score(model, batch)
    yield Case("clean", "rounding", batch.logps, scored, known)
    of_padded = decode(model, prompts, padded, seed)
    known_padded = {"tokens": of_padded.tokens, "prompt_lengths": lengths}
    yield Case("clean, padded", "rounding", of_padded.logps, score(model, of_padded), known_padded)
    yield Case("padding not masked", "sequences", of_padded.logps, score(model, of_padded, False), known_padded)
    other = batch._replace(prompts=prompts.clone())
    other.prompts[:4, -3:] = 5
    wrong = scored.clone()
    wrong[:4] = score(model, other)[:4]
    yield Case("template", "sequences", batch.logps, wrong, known)
    moved = decode(model, prompts, full, seed, offset=1)
    yield Case("position off by one", "position", moved.logps, score(model, moved), {"tokens": moved.tokens})
    yield Case("shifted", "shifted", batch.logps[:, :-1], scored[:, 1:], {"tokens": batch.tokens[:, :-1]})
    one_by_one = scored.clone()
    for row in range(0, SEQUENCES, 2):
        one_by_one[row] = score(model, Batch(*(each[row : row + 1] for each in batch)))[0]
    by_batch = torch.arange(SEQUENCES) % 2
    yield Case("clean, batches of one", "rounding", batch.logps, one_by_one, {**known, "step": by_batch})
    if dtype == "float32":
        engine = decode(copy.deepcopy(exact).bfloat16().eval(), prompts, full, seed)
        yield Case("clean, bfloat16 engine", "rounding", engine.logps, score(model, engine), {"tokens": engine.tokens},
                   "bfloat16")  # fmt: skip
    yield Case("rows in another order", "unrelated", batch.logps, scored.roll(1, 0), known)
    yield Case("labels one off", "unrelated", batch.logps[:, 1:], score(model, batch, ahead=1)[:, 1:],
               {"tokens": batch.tokens[:, 1:]})  # fmt: skip
    order = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(seed))
    yield Case("ids of another tokenizer", "unrelated", batch.logps,
               score(model, batch, process=lambda logits: logits[..., order]), known)  # fmt: skip
    for name, change in PENALTIES.items():
        punished = decode(model, prompts, full, seed, punish=change)
        yield Case(name, "penalty", punished.logps, score(model, punished), {"tokens": punished.tokens})
    for value in (0.7, 0.9, 0.98, 1.02, 1.3):
        warm = decode(model, prompts, full, seed, process=lambda logits, by=value: logits / by)
        yield Case(f"temperature {value}", "temperature", warm.logps, score(model, warm), {"tokens": warm.tokens})
    kept = decode(model, prompts, full, seed, process=top_p)
    yield Case("top-p 0.9", "temperature", kept.logps, score(model, kept), {"tokens": kept.tokens})
    # A penalty that the engine applies before it takes log-probabilities.
    ended = decode(model, prompts, full, seed, process=lambda logits: with_end(logits, 2.0))
    yield Case("end logit processed", "special_tokens", ended.logps, score(model, ended), {"tokens": ended.tokens})
    yield stale("stale weights", exact, dtype, seed, 1e-3)
    yield stale("stale weights, small updates", exact, dtype, seed, 3e-5)
    first = rounded(model, SHORTER[dtype], ".1.")
    yield Case("one layer rounded", "precision", batch.logps, score(first, batch), known)
    yield Case("all weights rounded", "precision", batch.logps, score(rounded(model, SHORTER[dtype]), batch), known)


def top_p(logits: torch.Tensor, share: float = 0.9) -> torch.Tensor:
    ordered, order = logits.softmax(-1).sort(-1, descending=True)
    dropped = (ordered.cumsum(-1) - ordered) > share
    return logits.masked_fill(torch.zeros_like(dropped).scatter(-1, order, dropped), -1e30)


def with_end(logits: torch.Tensor, by: float) -> torch.Tensor:
    changed = logits.clone()
    changed[..., END] += by
    return changed


def rounded(model: Any, dtype: torch.dtype, layer: str = "") -> Any:
    """The same model with the weights of a layer, or all, in another dtype."""
    found = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in found.named_parameters():
            if layer in name and weight.ndim > 1:
                weight.copy_(weight.to(dtype).to(weight.dtype))
    return found


def stale(name: str, exact: Any, dtype: str, seed: int, rate: float) -> Case:
    """The rollout gets the weights in steps 0 and 3 of six."""
    training, rollout = copy.deepcopy(exact), exact
    sides: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    count = 8
    for step in range(6):
        if step % 3 == 0:
            rollout = copy.deepcopy(training).to(getattr(torch, dtype)).eval()
        prompts = text(count, PROMPT, 700 + step)
        batch = decode(rollout, prompts, torch.ones_like(prompts), seed + step)
        scored = score(copy.deepcopy(training).to(getattr(torch, dtype)).eval(), batch)
        sides.append((batch.logps, scored, batch.tokens))
        train(training, 2, 50 + step, rate)
    logps, scores, tokens = (torch.cat(side) for side in zip(*sides))
    known = {"tokens": tokens, "step": torch.arange(6).repeat_interleave(count)}
    return Case(name, "stale", logps, scores, known)


def size(case: Case) -> float:
    """The root mean square of the differences, in nats."""
    return float((case.rollout - case.training).double().square().mean().sqrt())


def judged(case: Case, dtype: str, knows: bool) -> RolloutReport:
    sources = {"rollout": case.rollout, "training": case.training, **case.known}
    return check(sources, case.dtype or dtype if knows else "", VOCABULARY, LAYERS if knows else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--dtypes", nargs="+", choices=tuple(SHORTER), default=list(SHORTER))
    parser.add_argument("--steps", nargs="+", type=int, default=[0, 120])
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    found: dict[tuple[str, str], dict[bool, list[str]]] = {}
    below: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for name, steps, seed in itertools.product(args.models, args.steps, range(args.seeds)):
        torch.manual_seed(seed)
        model = train(MODELS[name](), steps, seed)
        for dtype in args.dtypes:
            where = f"{name} {'trained' if steps else 'random'} {dtype}"
            clean = 0.0
            for case in cases(model, dtype, seed):
                clean = clean or size(case)
                if case.kind != "rounding" and size(case) < 2 * clean:
                    below[case.name] += 1
                    continue
                total[case.name] += 1
                rows = found.setdefault((case.name, case.kind), {True: [], False: []})
                for knows in (True, False):
                    report = judged(case, dtype, knows)
                    if report.kind != case.kind and not (case.kind == "rounding" and report.kind == "none"):
                        rows[knows].append(f"{where}: {report.kind}")
                        named = f"{case.name}, {where}, {knows}: {report.kinds}: {report.line}"
                        print(named, file=sys.stderr, flush=True)
    print("| fault | kind | with --dtype and --layers | otherwise named | without |\n|---|---|---|---|---|")
    for (name, kind), rows in found.items():
        count = total[name]
        right = [f"{count - len(rows[knows])} of {count}" for knows in (True, False)]
        print(f"| {name} | {kind} | {right[0]} | {'; '.join(rows[True])} | {right[1]} |")
    print("\nbelow rounding:", ", ".join(f"{name} {count}" for name, count in below.items()) or "none")


if __name__ == "__main__":
    main()
