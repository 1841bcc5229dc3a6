"""Pairs of checkpoints with what has to be answered: those that are right, and those with a fault of each kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from checkpoint_pairs import families as f
from checkpoint_pairs import writers as w
from checkpoint_pairs.families import Model

Write = Callable[[Path, Model], Path]


class Pair(NamedTuple):
    """A target, a golden checkpoint, and the right answer.

    Args:
        answer: ``identical``, ``rounding``, ``different`` or ``refused``.
        names: Pattern of the names that differ, each of which has to match; those that are required are in `all_of`.
        words: A pattern in what is said of the first of them, or anywhere in the answer.
    """

    name: str
    target: Model
    write_target: Write
    golden: Model
    write_golden: Write
    answer: str
    names: str = ""
    words: str = ""
    held_out: bool = False


def changed(model: Model, changes: dict[str, Any]) -> Model:
    """A model with some other arrays."""
    assert set(changes) <= set(model.weights), set(changes) - set(model.weights)
    return model._replace(weights={**model.weights, **changes})


def without(model: Model, pattern: str) -> Model:
    """A model that lacks some parameters."""
    return model._replace(weights={name: each for name, each in model.weights.items() if not re.search(pattern, name)})


def _noise(array: Any, size: float, seed: int = 1) -> Any:
    random = np.random.default_rng(seed)
    return (array * (1 + size * random.standard_normal(array.shape))).astype(array.dtype)


def trained(model: Model, size: float = 0.05) -> Model:
    """A model after other steps of training."""
    return model._replace(
        weights={name: _noise(each, size, index) for index, (name, each) in enumerate(model.weights.items())}
    )


def all_rounded(model: Model, stored: bool = True) -> Model:
    """All numbers in bfloat16, or in float32 with the values of it."""
    how = w.bfloat16_bits if stored else w.rounded
    return model._replace(weights={name: how(each) for name, each in model.weights.items()})


def right(held_out: bool = False) -> Iterator[Pair]:
    """Pairs that hold the same weights."""
    for seed in range(4):
        base, bias = f.llama(seed), f.llama(seed + 20, bias=True, model_type="qwen2")
        many: list[tuple[str, Model, Write, Model, Write]] = [
            ("meta", f.meta(base), w.pth, base, w.safetensors),
            ("meta one file", f.meta(base), w.single, base, w.single),
            ("fused blocks", f.fused(base), w.safetensors, base, w.safetensors),
            ("fused groups", f.fused(base, base.groups), w.pth, base, w.safetensors),
            ("megatron", f.megatron(base), w.megatron_ranks(1), base, w.safetensors),
            ("megatron tp 2", f.megatron(base), w.megatron_ranks(2), base, w.sharded),
            ("megatron against meta", f.megatron(base), w.megatron_ranks(2), f.meta(base), w.pth),
            ("nobody's names", f.renamed(base, f.NOBODY), w.npz, base, w.safetensors),
            ("nobody's names, both", f.renamed(base, f.NOBODY), w.npz, f.renamed(base, f.NOBODY), w.pth),
            ("flat names", f.flat(base), w.npz, base, w.safetensors),
            ("qwen", bias, w.legacy, bias, w.sharded),
            ("qwen fused", f.fused(bias), w.safetensors, bias, w.safetensors),
            ("training", base, w.training, base, w.safetensors),
            ("gpt2 linear", f.gpt2(seed, True), w.pth, f.gpt2(seed), w.safetensors),
            ("neox split", f.split_neox(f.neox(seed)), w.safetensors, f.neox(seed), w.safetensors),
            ("experts", f.stacked(f.mixtral(seed)), w.safetensors, f.mixtral(seed), w.safetensors),
            ("vit", f.timm(f.vit(seed)), w.pth, f.vit(seed), w.safetensors),
            ("consolidated, embedding by columns", f.meta(base), w.consolidated(1), base, w.safetensors),
            ("consolidated, embedding by rows", f.meta(base), w.consolidated(0), base, w.safetensors),
        ]
        for name, target, one, golden, other in many:
            yield Pair(f"{name} {seed}", target, one, golden, other, "identical")
            if seed % 2:
                yield Pair(f"{name} {seed}, turned round", golden, other, target, one, "identical")
        yield Pair(f"bf16 {seed}", all_rounded(base), w.safetensors, base, w.safetensors, "rounding")
        yield Pair(f"meta bf16 {seed}", all_rounded(f.meta(base)), w.pth, base, w.safetensors, "rounding")
        yield Pair(f"bf16 in float32 {seed}", all_rounded(base, False), w.pth, base, w.pth, "rounding")
        bare = {name.removesuffix(".weight"): each for name, each in base.weights.items()}
        yield Pair(f"without .weight {seed}", base._replace(weights=bare), w.npz, base, w.npz, "identical")
        bare = {name.removesuffix(".weight"): each for name, each in f.fused(base).weights.items()}
        yield Pair(f"fused without .weight {seed}", base._replace(weights=bare), w.npz, base, w.npz, "identical")
        tied = f.llama(seed, tied=True)
        head = tied._replace(weights={**tied.weights, "lm_head.weight": tied.weights["model.embed_tokens.weight"]})
        yield Pair(f"tied {seed}", tied, w.safetensors, head, w.pth, "identical")
        steps = base._replace(weights={**base.weights, "global_step": np.array(5 + seed), "iteration": np.array([9])})
        yield Pair(f"step counter {seed}", steps, w.npz, base, w.safetensors, "identical")
        base_norms = base._replace(
            weights={name: np.ones_like(each) if "norm" in name else each for name, each in base.weights.items()}
        )
        yield Pair(f"new norms {seed}", f.renamed(base_norms, f.NOBODY), w.npz, base_norms, w.safetensors, "identical")
        extra = base.weights["model.embed_tokens.weight"]
        filled = np.concatenate([extra, np.zeros((-len(extra) % 64, extra.shape[1]), np.float32)])
        yield Pair(
            f"padded {seed}",
            changed(f.megatron(base), {"embedding.word_embeddings.weight": filled}),
            w.megatron_ranks(2),
            base,
            w.safetensors,
            "identical",
        )


LAYER = "model.layers.{}."


def faults() -> Iterator[Pair]:
    """Pairs with one fault each."""
    for seed in range(3):
        yield from _llama_faults(seed)
        yield from _family_faults(seed)


def _llama_faults(seed: int) -> Iterator[Pair]:
    base = f.llama(seed + 4)
    of = base.weights
    at = 1 + seed % (base.layers - 2)
    layer = LAYER.format(at)
    q, k, o = (f"{layer}self_attn.{letter}_proj.weight" for letter in "qko")
    gate, up, down = (f"{layer}mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
    embed, head = "model.embed_tokens.weight", "lm_head.weight"
    writers = ((w.safetensors, w.safetensors), (w.sharded, w.safetensors), (w.pth, w.pth))[seed]

    def pair(name: str, target: Model, names: str, words: str = "", golden: Model = base) -> Pair:
        return Pair(f"{name} {seed}", target, writers[0], golden, writers[1], "different", names, words)

    def only(name: str) -> str:
        return f"^{re.escape(name)}$"

    def pairs_of(each: Any, heads: int) -> Any:
        return f.as_pairs(each, heads)

    permuted = {
        n: pairs_of(e, base.heads if ".q_proj" in n else base.groups)
        for n, e in of.items()
        if re.search(r"\.[qk]_proj", n)
    }
    rotary = "rotary|halves|pairs"
    yield pair("q and k permuted", changed(base, permuted), r"[qk]_proj", rotary)
    yield pair("q alone permuted", changed(base, {n: e for n, e in permuted.items() if ".q_" in n}), "q_proj", rotary)
    yield pair("layer permuted", changed(base, {n: e for n, e in permuted.items() if layer in n}), layer, rotary)
    if base.heads != base.groups and len(of[k]) % (2 * base.heads) == 0:
        wrong = {n: pairs_of(of[n], base.heads) for n in permuted if ".k_" in n}
        yield pair("k permuted for q's heads", changed(base, wrong), "k_proj", rotary)
    yield pair("transposed alone", changed(base, {o: np.ascontiguousarray(of[o].T)}), only(o), "transposed")
    turned = {n: np.ascontiguousarray(e.T) for n, e in of.items() if ".layers." in n and e.ndim == 2}
    yield pair("all transposed, one family", changed(base, turned), "layers", "transposed")
    yield pair(
        "o transposed everywhere",
        changed(base, {n: e for n, e in turned.items() if "o_proj" in n}),
        "o_proj",
        "transposed",
    )
    first, last = LAYER.format(0), LAYER.format(base.layers - 1)
    swap = {n: of[n.replace(layer, last)] for n in of if layer in n}
    swap.update({n: of[n.replace(last, layer)] for n in of if last in n})
    yield pair("two layers exchanged", changed(base, swap), "layers", f"layers? {at} and {base.layers - 1} are exchang")
    one = {n: e for n, e in swap.items() if "up_proj" in n}
    yield pair("one weight of two layers exchanged", changed(base, one), "up_proj", f"layer {base.layers - 1}")
    yield pair(
        "layer copied", changed(base, {n.replace(first, layer): of[n] for n in of if first in n}), layer, "layer 0"
    )
    yield pair(
        "gate for up",
        changed(base, {gate: of[up], up: of[gate]}),
        "gate_proj|up_proj",
        "holds the golden `(up|gate)_proj` of the same layer",
    )
    one_norm, other_norm = f"{layer}input_layernorm.weight", f"{layer}post_attention_layernorm.weight"
    yield pair(
        "one norm for the other",
        changed(base, {one_norm: of[other_norm]}),
        only(one_norm),
        "holds the golden `post_attention_layernorm` of the same layer",
    )
    yield pair(
        "norms exchanged",
        changed(base, {one_norm: of[other_norm], other_norm: of[one_norm]}),
        "layernorm",
        "holds the golden `(post_attention|input)_layernorm` of the same layer",
    )
    yield pair("q for k", changed(base, {k: of[q][: len(of[k])]}), only(k))
    yield pair("head is the embedding", changed(base, {head: of[embed]}), only(head), "holds the golden `embed_tokens`")
    yield pair("head missing, not tied", without(base, "lm_head"), only(head), "missing")
    yield pair("one rounded", changed(base, {up: w.rounded(of[up])}), only(up), "bfloat16")
    yield pair("one stored in bfloat16", changed(base, {up: w.bfloat16_bits(of[up])}), only(up), "bfloat16")
    yield pair(
        "layer rounded", changed(base, {n: w.rounded(e) for n, e in of.items() if layer in n}), layer, "bfloat16"
    )
    yield pair("head rounded", changed(base, {head: w.rounded(of[head])}), only(head), "bfloat16")
    row = np.concatenate([of[embed], _noise(of[embed][:1], 0.5)])
    yield pair(
        "row more", changed(base, {embed: row}), only(embed), f"1 row more.*first {len(of[embed])} rows are identical"
    )
    yield pair(
        "row fewer",
        changed(base, {embed: of[embed][:-1]}),
        only(embed),
        f"1 row (fewer|less).*first {len(of[embed]) - 1} rows are identical",
    )
    nan = of[up].copy()
    nan[3, 4] = np.nan
    yield pair("NaN", changed(base, {up: nan}), only(up), "NaN")
    yield pair("all NaN", changed(base, {up: np.full_like(of[up], np.nan)}), only(up), "NaN")
    yield pair(
        "infinity",
        changed(
            base, {up: np.where(np.arange(of[up].size).reshape(of[up].shape) == 5, np.inf, of[up]).astype(np.float32)}
        ),
        only(up),
        "infinit",
    )
    yield pair("zero", changed(base, {down: np.zeros_like(of[down])}), only(down), "zero")
    yield pair("factor", changed(base, {up: of[up] * np.float32(1.5)}), only(up), "1.5")
    yield pair("sign", changed(base, {up: -of[up]}), only(up), "-1|sign")
    yield pair("trained", trained(base), ".")
    yield pair("one trained", changed(base, {k: _noise(of[k], 1e-3)}), only(k))
    yield pair("missing", without(base, re.escape(down)), only(down), "missing")
    yield pair("extra", base, only(down), "missing", without(base, re.escape(down)))
    yield pair("layer missing", without(base, re.escape(last)), re.escape(last), "missing")
    yield pair("rolled", changed(base, {down: np.roll(of[down], 1, 0)}), only(down), "rolled|rows in another order")
    yield pair("halves swapped", changed(base, {o: np.roll(of[o], len(of[o]) // 2, 0)}), only(o), "halves|rolled")
    yield pair("columns rolled", changed(base, {down: np.roll(of[down], 3, 1)}), only(down), "column")
    rows = of[embed].copy()
    rows[[3, 9]] = rows[[9, 3]]
    yield pair("two rows exchanged", changed(base, {embed: rows}), only(embed), "rows? 3 and 9")
    bit = of[up].copy()
    bit.view(np.uint32)[2, 2] ^= 1 << 22
    yield pair("flipped bit", changed(base, {up: bit}), only(up))
    swapped = {n: np.roll(e, len(e) // 2, 0) for n, e in f.fused(base).weights.items() if "gate_up" in n}
    yield pair(
        "up before gate",
        changed(f.fused(base), swapped),
        "gate_up|gate_proj|up_proj",
        "order|up_proj|halves",
        f.fused(base),
    )
    yield pair("up before gate, against split", changed(f.fused(base), swapped), "gate|up", "")
    fused_one = f.fused(base)
    name = f"{layer}self_attn.qkv_proj.weight"
    parts = [of[f"{layer}self_attn.{letter}_proj.weight"] for letter in "qkv"]
    yield pair(
        "one layer interleaved", changed(fused_one, {name: f.interleave(parts, base.groups)}), layer, "interleaved"
    )
    yield pair(
        "one layer interleaved, one family",
        changed(fused_one, {name: f.interleave(parts, base.groups)}),
        re.escape(name),
        "interleaved",
        fused_one,
    )
    yield pair("all interleaved, one family", f.fused(base, base.groups), "qkv", "interleaved", fused_one)
    wrong_order = [parts[0], parts[2], parts[1]]
    yield pair(
        "value before key",
        changed(fused_one, {name: np.concatenate(wrong_order)}),
        layer + ".*([kv]_proj|qkv)",
        "holds the golden `[kv]_proj` of the same layer",
    )


def _family_faults(seed: int) -> Iterator[Pair]:
    def pair(
        name: str,
        target: Model,
        golden: Model,
        names: str,
        words: str = "",
        one: Write = w.safetensors,
        other: Write = w.safetensors,
    ) -> Pair:
        return Pair(f"{name} {seed}", target, one, golden, other, "different", names, words)

    base = f.llama(seed + 9)
    of, at = base.weights, base.layers - 2
    # Names that nobody knows.
    hidden = f.renamed(base, f.NOBODY)
    name = f"stage.{at}.right.weight"
    other = "stage.0.right.weight"
    swap = {name: hidden.weights[other], other: hidden.weights[name]}
    both = f"^model.layers.(0|{at}).mlp.up_proj.weight$"
    yield pair(
        "nobody's names, a weight exchanged", changed(hidden, swap), base, r"right|up_proj", f"layer (0|{at})", w.npz
    )
    yield pair(
        "nobody's names, turned",
        base,
        changed(hidden, swap),
        both,
        f"stage.(0|{at})|layer (0|{at})",
        w.safetensors,
        w.npz,
    )
    whole = {n: hidden.weights[n.replace(f"stage.{at}.", "stage.0.")] for n in hidden.weights if f"stage.{at}." in n}
    whole.update({n: hidden.weights[n.replace("stage.0.", f"stage.{at}.")] for n in hidden.weights if "stage.0." in n})
    yield pair(
        "nobody's names, layers exchanged", changed(hidden, whole), base, "stage|layers", "exchanged|layer 0", w.npz
    )
    yield pair(
        "nobody's names on both sides", changed(hidden, whole), hidden, f"stage.(0|{at})", "stage.0|layer 0", w.npz
    )
    left = {f"stage.{at}.left.weight": hidden.weights[name], name: hidden.weights[f"stage.{at}.left.weight"]}
    yield pair(
        "nobody's names, gate for up",
        changed(hidden, left),
        base,
        "left|right",
        "holds the golden `(up|gate)_proj` of the same layer",
        w.npz,
    )
    one = f"stage.{at}.omega.weight"
    yield pair(
        "nobody's names, transposed",
        changed(hidden, {one: np.ascontiguousarray(hidden.weights[one].T)}),
        base,
        "omega",
        "transposed",
        w.npz,
    )
    yield pair(
        "nobody's names, missing", without(hidden, f"stage.{at}.below"), base, "below|down_proj", "missing", w.npz
    )
    yield pair("nobody's names, factor", changed(hidden, {one: hidden.weights[one] * 2}), base, "omega", "2", w.npz)
    numbers = f.flat(base)
    index = {n: f"tensor_{number}" for number, n in enumerate(of)}
    ups = [index[f"model.layers.{number}.mlp.up_proj.weight"] for number in (0, at)]
    swap = {ups[0]: numbers.weights[ups[1]], ups[1]: numbers.weights[ups[0]]}
    yield pair(
        "flat names, a weight exchanged", changed(numbers, swap), base, "^tensor|up_proj", f"layer (0|{at})", w.npz
    )
    # Meta's names.
    meta = f.meta(base)
    wq = {
        n: of[n.replace("attention.wq", "self_attn.q_proj").replace("layers", "model.layers", 1)]
        for n in meta.weights
        if "wq" in n
    }
    yield pair("meta, q not permuted", changed(meta, wq), base, "wq|wk", "rotary|halves|pairs", w.pth)
    yield pair(
        "meta, q of a layer not permuted",
        changed(meta, {n: e for n, e in wq.items() if f".{at}." in n}),
        base,
        f"layers.{at}.attention.wq",
        "rotary|halves|pairs|unlike",
        w.pth,
    )
    one, two = f"layers.{at}.feed_forward.w1.weight", f"layers.{at}.feed_forward.w3.weight"
    yield pair(
        "meta, w1 for w3",
        changed(meta, {one: meta.weights[two], two: meta.weights[one]}),
        base,
        "w[13]",
        "holds the golden `(up|gate)_proj` of the same layer",
        w.pth,
    )
    yield pair(
        "meta, transposed",
        changed(
            meta,
            {
                f"layers.{at}.attention.wo.weight": np.ascontiguousarray(
                    meta.weights[f"layers.{at}.attention.wo.weight"].T
                )
            },
        ),
        base,
        "wo",
        "transposed",
        w.pth,
    )
    # Megatron.
    mega = f.megatron(base)
    fc1 = f"decoder.layers.{at}.mlp.linear_fc1.weight"
    halves = np.roll(mega.weights[fc1], len(mega.weights[fc1]) // 2, 0)
    yield pair(
        "megatron, up before gate",
        changed(mega, {fc1: halves}),
        base,
        "fc1|gate|up",
        "holds the golden `(up|gate)_proj` of the same layer|other order",
        w.megatron_ranks(2),
    )
    qkv = f"decoder.layers.{at}.self_attention.linear_qkv.weight"
    blocks = np.concatenate([of[f"model.layers.{at}.self_attn.{letter}_proj.weight"] for letter in "qkv"])
    yield pair("megatron, a layer in blocks", changed(mega, {qkv: blocks}), base, "qkv|_proj", "", w.megatron_ranks(1))
    # Experts.
    listed = f.mixtral(seed + 2)
    stack = f.stacked(listed)
    gu = f"model.layers.{at if at < listed.layers else 1}.mlp.experts.gate_up_proj"
    order = np.array([2, 0, 1, 3])
    yield pair(
        "experts in another order",
        changed(stack, {gu: stack.weights[gu][order]}),
        stack,
        re.escape(gu),
        "expert 0 is the golden expert 2|experts in another order",
    )
    path = gu.split(".mlp.")[0] + ".block_sparse_moe.experts."
    down = gu.replace("gate_up", "down")
    yield pair(
        "experts in another order, against listed",
        changed(stack, {down: stack.weights[down][order]}),
        listed,
        "down_proj|w2",
        "expert",
    )
    yield pair(
        "expert copied",
        changed(listed, {f"{path}2.{x}.weight": listed.weights[f"{path}1.{x}.weight"] for x in ("w1", "w2", "w3")}),
        listed,
        re.escape(path) + "2",
        r"holds the golden `.*1\..*` of the same layer|expert 1",
    )
    yield pair(
        "experts exchanged",
        changed(listed, {f"{path}{a}.w1.weight": listed.weights[f"{path}{b}.w1.weight"] for a, b in ((0, 3), (3, 0))}),
        listed,
        re.escape(path) + r"[03]\.w1",
        "expert|experts.[03]",
    )
    yield pair(
        "expert, gate for up",
        changed(listed, {f"{path}1.w1.weight": listed.weights[f"{path}1.w3.weight"]}),
        listed,
        re.escape(path) + r"1\.w1",
        "holds the golden `.*w3` of the same",
    )
    yield pair("expert missing", without(listed, re.escape(path) + "3"), listed, re.escape(path) + "3", "missing")
    yield pair(
        "stack transposed once",
        changed(stack, {down: np.ascontiguousarray(stack.weights[down].swapaxes(1, 2))}),
        stack,
        re.escape(down),
        "transposed|shape",
    )
    # GPT-2, NeoX, ViT, BERT, Qwen.
    gpt = f.gpt2(seed + 3)
    name = f"transformer.h.{at}.attn.c_proj.weight" if at < gpt.layers else "transformer.h.1.attn.c_proj.weight"
    yield pair(
        "gpt2, one transposed",
        changed(gpt, {name: np.ascontiguousarray(gpt.weights[name].T)}),
        gpt,
        re.escape(name),
        "transposed",
    )
    line = f.gpt2(seed + 3, True)
    yield pair(
        "gpt2 linear, one not",
        changed(line, {name: gpt.weights[name]}),
        gpt,
        re.escape(name),
        "transposed|unlike",
        w.pth,
    )
    untied = np.asarray(_noise(gpt.weights["lm_head.weight"], 0.1))
    yield pair("gpt2, head untied", changed(gpt, {"lm_head.weight": untied}), gpt, "lm_head")
    nx = f.neox(seed)
    name = "gpt_neox.layers.1.attention.query_key_value.weight"
    three = nx.weights[name].reshape(nx.heads, 3, -1, nx.weights[name].shape[1]).swapaxes(0, 1)
    three = np.ascontiguousarray(three.reshape(nx.weights[name].shape))
    yield pair("neox, a layer in blocks", changed(nx, {name: three}), nx, re.escape(name), "interleaved|blocks|groups")
    yield pair(
        "neox, a layer in blocks, split", changed(nx, {name: three}), f.split_neox(nx), "query_key_value|_proj", ""
    )
    v = f.vit(seed)
    timm = f.timm(v)
    name = f"blocks.{1 + seed}.attn.qkv.weight"
    yield pair(
        "vit, qkv rolled",
        changed(timm, {name: np.roll(timm.weights[name], len(timm.weights[name]) // 3, 0)}),
        v,
        "qkv|query|key|value",
        "holds the golden `.*(query|key|value)",
        w.pth,
    )
    name = "blocks.2.norm1.weight"
    yield pair(
        "vit, norms",
        changed(timm, {name: timm.weights["blocks.2.norm2.weight"]}),
        v,
        "norm1|before",
        "holds the golden `layernorm_after` of the same layer",
        w.pth,
    )
    b = f.bert(seed)
    name = "bert.encoder.layer.2.attention.self.query.bias"
    yield pair(
        "bert, bias of key",
        changed(b, {name: b.weights[name.replace("query", "key")]}),
        b,
        re.escape(name),
        "holds the golden `.*key.*` of the same layer",
    )
    yield pair("bert, zero bias", changed(b, {name: np.zeros_like(b.weights[name])}), b, re.escape(name), "zero")
    qwen = f.llama(seed + 30, bias=True, model_type="qwen2")
    yield pair("qwen, biases missing", without(qwen, "q_proj.bias"), qwen, "q_proj.bias", "missing")
    bias = {n: f.as_pairs(e, qwen.heads) for n, e in qwen.weights.items() if n.endswith("q_proj.bias")}
    yield pair("qwen, bias permuted", changed(qwen, bias), qwen, "q_proj.bias", "rotary|halves|pairs")


def held_out() -> Iterator[Pair]:
    """Families, and kinds, that the rules were not made with."""

    def pair(
        name: str,
        target: Model,
        golden: Model,
        names: str,
        words: str = "",
        one: Write = w.safetensors,
        other: Write = w.safetensors,
        answer: str = "different",
    ) -> Pair:
        return Pair(f"{name} {seed}", target, one, golden, other, answer, names, words, held_out=True)

    for seed in range(3):
        t, o, d, r = f.t5(seed), f.opt(seed + 5), f.deepseek(seed), f.resnet(seed)
        for name, model in (("t5", t), ("opt", o), ("deepseek", d), ("resnet", r)):
            yield pair(f"{name} itself", model, model, "", "", w.pth, w.safetensors, "identical")
            yield pair(
                f"{name} bf16",
                model._replace(
                    weights={n: w.bfloat16_bits(e) if e.dtype == np.float32 else e for n, e in model.weights.items()}
                ),
                model,
                "",
                "",
                w.safetensors,
                w.safetensors,
                "rounding",
            )
        counted = {n: np.array(7, np.int64) for n in r.weights if "tracked" in n}
        yield pair("resnet, other counters", changed(r, counted), r, "", "", w.pth, w.pth, "identical")
        name = "layer2.1.bn1.running_var"
        yield pair(
            "resnet, statistics", changed(r, {name: r.weights["layer2.1.bn2.running_var"]}), r, re.escape(name), "bn2"
        )
        kernel = "layer3.0.conv1.weight"
        yield pair(
            "resnet, kernel turned",
            changed(r, {kernel: np.ascontiguousarray(r.weights[kernel].swapaxes(2, 3))}),
            r,
            re.escape(kernel),
            "transposed",
        )
        name = "decoder.block.1.layer.1.EncDecAttention.k.weight"
        own = name.replace("layer.1.EncDec", "layer.0.Self")
        yield pair("t5, cross for self", changed(t, {name: t.weights[own]}), t, re.escape(name), "SelfAttention.k")
        two = {name: t.weights[name.replace("block.1", "block.3")], name.replace("block.1", "block.3"): t.weights[name]}
        yield pair("t5, blocks exchanged", changed(t, two), t, "EncDecAttention.k", "block.[13]|layer [13]")
        wi = "encoder.block.2.layer.1.DenseReluDense.wi_0.weight"
        yield pair(
            "t5, wi_0 for wi_1", changed(t, {wi: t.weights[wi.replace("wi_0", "wi_1")]}), t, re.escape(wi), "wi_1"
        )
        name = "model.decoder.layers.2.fc1.weight"
        yield pair(
            "opt, transposed",
            changed(o, {name: np.ascontiguousarray(o.weights[name].T)}),
            o,
            re.escape(name),
            "transposed",
        )
        short = {
            "self_attn_layer_norm": "n_a",
            "final_layer_norm": "n_b",
            "self_attn.": "at_",
            "fc1": "one",
            "fc2": "two",
            "model.decoder.layers.": "trunk/",
            "model.decoder.": "",
        }
        mine = f.renamed(o, short)
        yield pair("opt renamed", mine, o, "", "", w.npz, w.safetensors, "identical")
        last = o.layers - 1
        swap = {f"trunk/{a}.two.weight": mine.weights[f"trunk/{b}.two.weight"] for a, b in ((1, last), (last, 1))}
        yield pair("opt renamed, exchanged", changed(mine, swap), o, r"two|fc2", f"layer (1|{last})", w.npz)
        yield pair(
            "opt, position rows",
            changed(o, {"model.decoder.embed_positions.weight": o.weights["model.decoder.embed_positions.weight"][2:]}),
            o,
            "embed_positions",
            "2 rows (fewer|less)",
        )
        path = "model.layers.1.mlp."
        shared = {f"{path}shared_experts.up_proj.weight": d.weights[f"{path}experts.4.up_proj.weight"]}
        yield pair(
            "deepseek, shared is expert", changed(d, shared), d, "shared_experts.up_proj", "expert.* ?4|experts.4"
        )
        router = d.weights[f"{path}gate.weight"]
        yield pair(
            "deepseek, router rows",
            changed(d, {f"{path}gate.weight": router[[1, 0, 2, 3, 4, 5]]}),
            d,
            "mlp.gate",
            "rows? 0 and 1",
        )
        upto = {n: d.weights[n.replace("experts.0.", "experts.5.")] for n in d.weights if f"{path}experts.0." in n}
        yield pair(
            "deepseek, expert copied", changed(d, upto), d, re.escape(path) + "experts.0", "expert.* ?5|experts.5"
        )
        base = f.llama(seed + 13)
        yield pair("flax", f.flax(base), base, "", "", w.npz, w.safetensors, "identical")
        kernel = "params/model/layers/1/self_attn/o_proj/kernel"
        fx = f.flax(base)
        yield pair(
            "flax, one not turned",
            changed(fx, {kernel: np.ascontiguousarray(fx.weights[kernel].T)}),
            base,
            "o_proj",
            "transposed|unlike",
            w.npz,
        )
        first = {n: np.concatenate([e[1:], e[:1]]) for n, e in base.weights.items() if "v_proj" in n}
        yield pair("v rolled everywhere", changed(base, first), base, "v_proj", "rolled|another order")
        bare = base._replace(weights={n.removesuffix(".weight"): e for n, e in base.weights.items()})
        layer = {n: bare.weights[n.replace("layers.2", "layers.0")] for n in bare.weights if "layers.2.mlp.down" in n}
        yield pair(
            "without .weight, a copy", changed(bare, layer), base, r"layers\.2\.mlp\.down", "layer 0", w.npz, w.npz
        )
        half = {n: e.astype(np.float16) for n, e in base.weights.items() if "lm_head" not in n}
        yield pair("fp16 but one", changed(base, half), base, "", "", w.pth, w.pth, "rounding")
        name = "model.layers.0.mlp.down_proj.weight"
        cut = base.weights[name].copy()
        cut[len(cut) // 2 :] = 0
        yield pair("half is zero", changed(base, {name: cut}), base, re.escape(name), "")
        words = {
            "self_attn": "mixer",
            "_proj": "",
            "model.layers": "net.tower",
            "mlp.": "",
            "input_layernorm": "pre",
            "post_attention_layernorm": "post",
        }
        tower = f.renamed(base, words)
        yield pair("tower", tower, base, "", "", w.pth, w.safetensors, "identical")
        swap = {
            f"net.tower.{x}.mixer.{y}.weight": tower.weights[f"net.tower.{x}.mixer.{z}.weight"]
            for x in (1,)
            for y, z in (("q", "o"), ("o", "q"))
        }
        yield pair(
            "tower, q for o",
            changed(tower, swap),
            base,
            r"mixer\.[qo]|[qo]_proj",
            "holds the golden `[qo]_proj` of the same layer",
            w.pth,
        )
        reverse = {
            n: tower.weights[re.sub(r"tower\.(\d+)", lambda m, last=base.layers - 1: f"tower.{last - int(m[1])}", n)]
            for n in tower.weights
            if ".tower." in n
        }
        yield pair("tower, layers reversed", changed(tower, reverse), base, "tower", "layer", w.pth)
        odd = {"opt_state/count": np.array(4), "step": np.array(4, np.int32), "rng": np.arange(2, dtype=np.int64)}
        yield pair(
            "state beside", base._replace(weights={**base.weights, **odd}), base, "", "", w.npz, w.npz, "identical"
        )
