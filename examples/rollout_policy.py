"""A small policy of a language, its trainer, and an engine that samples from it with a cache of keys and values.

The engine can have one of the faults that real ones have had: see `FAULTS`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, WIDTH, HEADS, LAYERS, EXPERTS = 256, 64, 4, 3, 4
PADDING = 0
FAULTS = {
    "none": "the engine computes what the trainer computes",
    "position": "the position is off by one after the prompt",
    "temperature": "log-probabilities are those of temperature 1.25, and the trainer's of 1",
    "stale": "the weights are those before the last updates",
    "template": "the trainer is given another last token of every fourth prompt",
    "left_padding": "the padding on the left of shorter prompts is not masked",
    "routing": "the logits of the router have noise, so that some tokens go to another expert",
}


@dataclass
class Memory:
    """Keys and values of one layer, the position of each column, and the columns that are padding."""

    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)


@dataclass
class Run:
    """The circumstances of a forward pass."""

    positions: torch.Tensor
    """By sequence and token."""
    is_token: torch.Tensor
    """False for padding, by sequence and column."""
    memories: list[Memory] | None = None
    noise: float = 0.0
    """Of the logits of routers."""


class Rotary(nn.Module):
    """Turns pairs of features by angles that grow with the position."""

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        rates = 100.0 ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = positions[:, None, :, None].float() * rates
        a, b = x.float().chunk(2, dim=-1)
        turned = torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), dim=-1)
        return turned.to(x.dtype)


class Attention(nn.Module):
    """Causal attention, over the cache if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.rotary = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), Rotary()

    def forward(self, x: torch.Tensor, run: Run, memory: Memory | None = None) -> torch.Tensor:
        batch, length, _ = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key = self.rotary(query, run.positions), self.rotary(key, run.positions)
        if memory is not None:
            memory.keys.append(key)
            memory.values.append(value)
            key, value = torch.cat(memory.keys, dim=2), torch.cat(memory.values, dim=2)
        columns = key.shape[2]
        may_see = torch.ones(length, columns, dtype=torch.bool).tril(columns - length)
        may_see = may_see & run.is_token[:, None, None, :columns]
        # A row of padding sees itself, so that no row is empty.
        may_see = may_see | torch.eye(length, columns, dtype=torch.bool).roll(columns - length, 1)
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=may_see)
        return self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))


class Experts(nn.Module):
    """One expert for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x: torch.Tensor, run: Run) -> torch.Tensor:
        logits = self.router(x)
        if run.noise:
            logits = logits + run.noise * torch.randn_like(logits)
        weight, chosen = logits.softmax(-1).max(-1)
        found = torch.stack([expert(x) for expert in self.experts], dim=-2)
        index = chosen[..., None, None].expand(*chosen.shape, 1, WIDTH)
        return F.gelu(found.gather(-2, index)[..., 0, :]) * weight[..., None]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.experts = nn.LayerNorm(WIDTH), Experts()

    def forward(self, x: torch.Tensor, run: Run, memory: Memory | None = None) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), run, memory)
        return x + self.experts(self.norm2(x), run)


class Policy(nn.Module):
    """Logits of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        with torch.no_grad():
            # So that a policy without training prefers some tokens, and looks at some more than at others.
            self.head.weight.mul_(2)
            for block in self.blocks:
                block.attention.qkv.weight.mul_(2)

    def forward(self, tokens: torch.Tensor, run: Run) -> torch.Tensor:
        x = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            x = block(x, run, None if run.memories is None else run.memories[number])
        return self.head(self.norm(x))


def of_tokens(logits: torch.Tensor, tokens: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of `tokens`, in float32."""
    return (logits.float() / temperature).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


@dataclass
class Batch:
    """Prompts, padded on the left, and what an engine has sampled."""

    prompts: torch.Tensor
    prompt_is_token: torch.Tensor
    responses: torch.Tensor
    rollout: torch.Tensor
    """The engine's log-probabilities of the responses."""

    @property
    def prompt_lengths(self) -> torch.Tensor:
        return self.prompt_is_token.sum(1)


def prompts(sequences: int, longest: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts of half of `longest` tokens to all, padded on the left; and where their tokens are."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(longest // 2, longest + 1, (sequences, 1), generator=generator)
    lengths[0] = longest
    is_token = torch.arange(longest) >= longest - lengths
    tokens = torch.randint(1, VOCABULARY, (sequences, longest), generator=generator)
    return tokens.where(is_token, PADDING), is_token


class Engine:
    """Samples with a cache, a token of all sequences at a time.

    Args:
        policy: Its weights are copied.
        fault: A key of `FAULTS`.
        dtype: That of the weights.
    """

    def __init__(self, policy: Policy, fault: str = "none", dtype: torch.dtype = torch.float32) -> None:
        self.policy = copy.deepcopy(policy).to(dtype).eval()
        self.fault = fault
        self.temperature = 1.25 if fault == "temperature" else 1.0
        self.noise = 0.03 if fault == "routing" else 0.0

    def _run(self, is_token: torch.Tensor, prompt_columns: int, begin: int = 0, memories: Any = None) -> Run:
        positions = (is_token.cumsum(1) - 1).clamp(min=0)
        if self.fault == "position":
            positions[:, prompt_columns:] += 1
        seen = torch.ones_like(is_token) if self.fault == "left_padding" else is_token
        return Run(positions[:, begin:], seen, memories, self.noise)

    @torch.no_grad()
    def sample(self, tokens: torch.Tensor, is_token: torch.Tensor, length: int, seed: int) -> Batch:
        """Sample responses of `length` tokens."""
        generator = torch.Generator().manual_seed(seed)
        memories, begin, columns = [Memory() for _ in range(LAYERS)], 0, tokens.shape[1]
        given, known = tokens, is_token
        found, logprobs = [], []
        for _ in range(length):
            run = self._run(known, columns, begin, memories)
            logits = self.policy(given, run)[:, -1]
            chosen = torch.multinomial((logits.float()).softmax(-1), 1, generator=generator)
            logprobs.append(of_tokens(logits, chosen[:, 0], self.temperature))
            found.append(chosen[:, 0])
            begin, given = known.shape[1], chosen
            known = torch.cat((known, torch.ones_like(known[:, :1])), dim=1)
        return Batch(tokens, is_token, torch.stack(found, 1), torch.stack(logprobs, 1))

    @torch.no_grad()
    def prefill(self, batch: Batch, sequence: int) -> torch.Tensor:
        """Prompt and response of one sequence as one prompt, padded as in its batch; logits."""
        tokens, is_token, columns = _whole(batch, slice(sequence, sequence + 1))
        return self.policy(tokens, self._run(is_token, columns))


class Trainer:
    """Computes log-probabilities of what was sampled, in one forward pass.

    Args:
        policy: The policy.
        fault: A key of `FAULTS`; that of the template is the trainer's.
        dtype: In which it computes.
    """

    def __init__(self, policy: Policy, fault: str = "none", dtype: torch.dtype = torch.float32) -> None:
        self.policy = copy.deepcopy(policy).to(dtype).eval()
        self.fault = fault

    def _tokens(self, batch: Batch, which: slice) -> tuple[torch.Tensor, torch.Tensor, int]:
        tokens, is_token, columns = _whole(batch, which)
        if self.fault == "template":
            is_changed = torch.arange(len(batch.prompts))[which] % 4 == 1
            tokens = tokens.clone()
            tokens[is_changed, columns - 1] = tokens[is_changed, columns - 1] % (VOCABULARY - 1) + 1
        return tokens, is_token, columns

    def _run(self, is_token: torch.Tensor) -> Run:
        return Run((is_token.cumsum(1) - 1).clamp(min=0), is_token)

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> torch.Tensor:
        """Log-probabilities of the responses."""
        tokens, is_token, columns = self._tokens(batch, slice(None))
        logits = self.policy(tokens, self._run(is_token))[:, columns - 1 : -1]
        return of_tokens(logits, batch.responses)

    @torch.no_grad()
    def forward(self, batch: Batch, sequence: int) -> torch.Tensor:
        """One sequence, padded as in its batch; logits."""
        tokens, is_token, _ = self._tokens(batch, slice(sequence, sequence + 1))
        return self.policy(tokens, self._run(is_token))


def _whole(batch: Batch, which: slice) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Prompts and responses, which of it are tokens, and the columns of prompts."""
    tokens = torch.cat((batch.prompts[which], batch.responses[which]), dim=1)
    of_responses = torch.ones_like(batch.responses[which], dtype=torch.bool)
    return tokens, torch.cat((batch.prompt_is_token[which], of_responses), dim=1), batch.prompts.shape[1]


def update(policy: Policy, steps: int, seed: int) -> Policy:
    """The policy after some updates on random tokens."""
    torch.manual_seed(seed)
    policy = copy.deepcopy(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-4)
    for _ in range(steps):
        tokens = torch.randint(1, VOCABULARY, (4, 32))
        is_token = torch.ones_like(tokens, dtype=torch.bool)
        logits = policy(tokens[:, :-1], Run((is_token.cumsum(1) - 1)[:, :-1], is_token[:, :-1]))
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return policy
