"""A decoder of numpy with a cache, whose every operation rounds to a dtype, as two programs that differ in kernels.

The rollout decodes token by token and rounds where fused kernels do; the training runs whole sequences and rounds after
each operation. Their results differ by real rounding: nothing here assumes how large it is or how it is distributed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def round_to(values: Array, dtype: str) -> Array:
    """`values` (float32) rounded to the nearest numbers of a dtype, held in float32."""
    if dtype == "float32":
        return values
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float32)
    bits = {"bfloat16": 16, "float8_e4m3": 20, "float8_e5m2": 21}[dtype]
    whole = np.ascontiguousarray(values, np.float32).view(np.uint32)
    half = np.uint32((1 << (bits - 1)) - 1)
    odd = (whole >> np.uint32(bits)) & np.uint32(1)
    return ((whole + half + odd) & np.uint32(0xFFFFFFFF << bits & 0xFFFFFFFF)).view(np.float32)


@dataclass(frozen=True)
class Shape:
    """The size of a model."""

    vocabulary: int = 256
    width: int = 48
    layers: int = 2
    sharpness: float = 3.0
    """The standard deviation of its logits over the vocabulary; the distributions are flat below 1."""
    experts: int = 0
    """With experts the second half of each layer is a mixture of them, of which the router takes one."""


@dataclass(frozen=True)
class Program:
    """One way to run a model; the defaults are those of the training."""

    dtype: str = "float32"
    is_fused: bool = False
    """True if results are rounded at the end of a part only, and sums are made in blocks."""
    part_dtype: str = ""
    """The dtype of the part named by `part`, where it is another one."""
    part: int = -1
    """A layer."""
    cache_dtype: str = ""
    window: int = 0
    """Tokens that attention looks back to; 0 for all."""
    offset_after_prompt: int = 0
    """Added to the position of each token after the prompt."""
    forgets_at: int = -1
    """The position of the response at which the cache loses the prompt."""
    stretch: float = 1.0
    """Positions are multiplied by it."""
    router_noise: float = 0.0
    """The relative error of the router's input."""


@dataclass
class Model:
    """Weights, made of a seed."""

    shape: Shape
    seed: int
    weights: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.weights:
            return
        random = np.random.default_rng(self.seed)
        size, width = self.shape.vocabulary, self.shape.width

        def matrix(rows: int, columns: int) -> Array:
            return (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

        weights = {"embed": random.standard_normal((size, width)).astype(np.float32)}
        for layer in range(self.shape.layers):
            for name in ("q", "k", "v", "o"):
                weights[f"{name}{layer}"] = matrix(width, width)
            for expert in range(max(self.shape.experts, 1)):
                weights[f"up{layer}.{expert}"] = matrix(width, 2 * width)
                weights[f"down{layer}.{expert}"] = matrix(2 * width, width)
            if self.shape.experts:
                weights[f"router{layer}"] = matrix(width, self.shape.experts)
        weights["head"] = (random.standard_normal((width, size)) * self.shape.sharpness / np.sqrt(width)).astype(
            np.float32
        )
        self.weights = weights

    def moved(self, amount: float, seed: int) -> Model:
        """The model after an update of weights by this part of their size."""
        random = np.random.default_rng(seed)
        weights = {
            name: (value + amount * np.std(value) * random.standard_normal(value.shape)).astype(np.float32)
            for name, value in self.weights.items()
        }
        return Model(self.shape, self.seed, weights)


class Run:
    """A model run as a program over a batch; each call of `logits` continues it by some tokens.

    Args:
        prompt_lengths: of each sequence; prompts are padded on the left to the longest.
    """

    def __init__(self, model: Model, program: Program, prompt_lengths: Array) -> None:
        self.model, self.program, self.prompts = model, program, prompt_lengths
        self.longest = int(prompt_lengths.max())
        self.done = 0
        self.cache: list[tuple[Array, Array]] = []
        self._rounded: dict[str, Array] = {}

    def logits(self, tokens: Array, masks_padding: bool = True) -> Array:
        """The logits after each of `tokens`, of shape [sequences, tokens, vocabulary], in float32."""
        program, count = self.program, tokens.shape[1]
        columns = np.arange(self.done, self.done + count)
        pad = self.longest - self.prompts
        if not masks_padding:
            pad = np.zeros_like(pad)
        positions = columns[None, :] - pad[:, None]
        after = columns[None, :] >= self.longest
        positions = (positions + program.offset_after_prompt * after) * program.stretch
        keys = np.arange(self.done + count)
        seen = (keys[None, None, :] <= columns[None, :, None]) & (keys[None, None, :] >= pad[:, None, None])
        if program.window:
            seen &= keys[None, None, :] > columns[None, :, None] - program.window
        if program.forgets_at >= 0:
            late = columns[None, :, None] >= self.longest + program.forgets_at
            seen &= ~(late & (keys[None, None, :] < self.longest // 2))
        # A padded token sees itself, so that no row is empty.
        seen |= keys[None, None, :] == columns[None, :, None]
        hidden = self._as("embed")[tokens]
        for layer in range(self.model.shape.layers):
            hidden = self._layer(hidden, layer, positions, seen)
        self.done += count
        return self._product(self._norm(hidden, program.dtype), "head", program.dtype)

    def _layer(self, hidden: Array, layer: int, positions: Array, seen: Array) -> Array:
        program = self.program
        dtype = program.part_dtype if layer == program.part and program.part_dtype else program.dtype
        # Kernels that are fused keep what is between their parts.
        inner = "float32" if program.is_fused and dtype == program.dtype else dtype
        normed = self._norm(hidden, inner)
        queries = _rotated(self._product(normed, f"q{layer}", inner), positions, inner)
        keys = _rotated(self._product(normed, f"k{layer}", inner), positions, inner)
        values = self._product(normed, f"v{layer}", inner)
        stored = program.cache_dtype or (program.dtype if dtype == program.dtype else dtype)
        keys, values = round_to(keys, stored), round_to(values, stored)
        if len(self.cache) > layer:
            before = self.cache[layer]
            keys, values = np.concatenate([before[0], keys], 1), np.concatenate([before[1], values], 1)
            self.cache[layer] = keys, values
        else:
            self.cache.append((keys, values))
        scores = round_to(queries @ keys.transpose(0, 2, 1) * np.float32(2 / np.sqrt(keys.shape[-1])), inner)
        scores = np.where(seen, scores, np.float32(-1e30))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = round_to(weights / weights.sum(-1, keepdims=True), inner)
        hidden = round_to(hidden + self._product(round_to(weights @ values, dtype), f"o{layer}", inner), dtype)
        return round_to(hidden + self._second_half(self._norm(hidden, inner), layer, inner, dtype), dtype)

    def _second_half(self, normed: Array, layer: int, inner: str, dtype: str) -> Array:
        if not self.model.shape.experts:
            return self._expert(normed, f"{layer}.0", inner, dtype)
        routed = normed
        if self.program.router_noise:
            noise = np.random.default_rng(layer).standard_normal(normed.shape)
            routed = (normed * (1 + self.program.router_noise * noise)).astype(np.float32)
        chosen = self._product(routed, f"router{layer}", inner).argmax(-1)
        result = np.zeros_like(normed)
        for expert in range(self.model.shape.experts):
            picked = chosen == expert
            if picked.any():
                result[picked] = self._expert(normed[picked], f"{layer}.{expert}", inner, dtype)
        return result

    def _expert(self, normed: Array, name: str, inner: str, dtype: str) -> Array:
        up = self._product(normed, f"up{name}", inner)
        active = round_to(up / (1 + np.exp(-np.clip(up, -30, 30))), dtype)
        return self._product(active, f"down{name}", dtype)

    def _norm(self, hidden: Array, dtype: str) -> Array:
        scale = 1 / np.sqrt(np.mean(hidden * hidden, -1, keepdims=True) + np.float32(1e-6))
        return round_to(hidden * scale, dtype)

    def _as(self, name: str, dtype: str = "") -> Array:
        dtype = dtype or self.program.dtype
        key = f"{name} {dtype}"
        if key not in self._rounded:
            self._rounded[key] = round_to(self.model.weights[name], dtype)
        return self._rounded[key]

    def _product(self, left: Array, name: str, dtype: str) -> Array:
        stored = self.program.dtype if dtype == "float32" else dtype
        right = self._as(name, stored)
        if not self.program.is_fused:
            return round_to(left @ right, dtype)
        half = right.shape[0] // 2
        return round_to(left[..., :half] @ right[:half] + left[..., half:] @ right[half:], dtype)


def _rotated(values: Array, positions: Array, dtype: str) -> Array:
    """`values` with their pairs rotated by the position."""
    half = values.shape[-1] // 2
    angles = positions[..., None] / 1000.0 ** (np.arange(half) / half)
    cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    first, second = values[..., :half], values[..., half:]
    return round_to(np.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1), dtype)


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True, dtype=np.float32)))


def other_part(program: Program, **changes: Any) -> Program:
    """The program with other settings."""
    return replace(program, **changes)
