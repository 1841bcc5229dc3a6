"""Pairs that were written when the rules were done, and by which nothing was changed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from checkpoint_pairs import families as f
from checkpoint_pairs import writers as w
from checkpoint_pairs.families import Model
from checkpoint_pairs.pairs import Pair, Write, changed, without


def whisper(seed: int) -> Model:
    """An encoder and a decoder with attention across."""
    base = f.opt(seed)
    found = {}
    for name, each in base.weights.items():
        for stack, factor in (("encoder", 1.0), ("decoder", -0.5)):
            found[name.replace("model.decoder", f"model.{stack}")] = np.asarray(each * np.float32(factor))
            if stack == "decoder" and ".self_attn." in name:
                found[name.replace(".self_attn.", ".encoder_attn.")] = np.roll(each, 1, 0) * np.float32(0.25)
    return base._replace(weights=found, config={})


def bloom(seed: int) -> Model:
    """BLOOM, from NeoX."""
    words = {
        "gpt_neox.embed_in": "transformer.word_embeddings",
        "gpt_neox.layers": "transformer.h",
        "attention.": "self_attention.",
        "post_self_attention.": "post_attention",
        "gpt_neox.final_layer_norm": "transformer.ln_f",
        "embed_out": "lm_head",
    }
    return f.renamed(f.neox(seed), words)


def unseen() -> Iterator[Pair]:
    """Pairs of each kind."""

    def pair(
        name: str,
        target: Model,
        golden: Model,
        names: str = "",
        words: str = "",
        one: Write = w.safetensors,
        other: Write = w.safetensors,
        answer: str = "different",
    ) -> Pair:
        return Pair(f"{name} {seed}", target, one, golden, other, answer, names, words, held_out=True)

    for seed in range(40, 43):
        base, moe = f.llama(seed), f.mixtral(seed)
        of, at = base.weights, base.layers - 1
        layer = f"model.layers.{at}."
        stack = f.stacked(moe, turned=True)
        yield pair("turned stacks", stack, moe, answer="identical")
        listed = moe.weights
        copied = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
        yield pair(
            "turned stacks, expert copied",
            stack,
            changed(moe, {copied: listed[copied.replace(".3.", ".0.")]}),
            "down_proj|w2",
            "",
        )
        wide = whisper(seed)
        yield pair("whisper", wide, wide, one=w.legacy, answer="identical")
        name = "model.decoder.layers.1.encoder_attn.k_proj.weight"
        yield pair(
            "whisper, self for cross",
            changed(wide, {name: wide.weights[name.replace("encoder", "self")]}),
            wide,
            re.escape(name),
            "self_attn.k_proj` of the same layer",
        )
        name = "model.encoder.layers.2.fc2.weight"
        yield pair(
            "whisper, a decoder's layer",
            changed(wide, {name: wide.weights[name.replace("encoder", "decoder")]}),
            wide,
            re.escape(name),
            "layer 2",
        )
        bl = bloom(seed)
        yield pair("bloom against neox", bl, f.neox(seed), one=w.pth, answer="identical")
        name = "transformer.h.1.self_attention.query_key_value.weight"
        yield pair(
            "bloom, heads rolled",
            changed(bl, {name: np.roll(bl.weights[name], len(bl.weights[name]) // bl.heads, 0)}),
            bl,
            re.escape(name),
            "rolled",
        )
        name = "transformer.h.2.mlp.dense_4h_to_h.weight"
        yield pair(
            "bloom, times 0.1",
            changed(bl, {name: bl.weights[name] * np.float32(0.1)}),
            f.neox(seed),
            "dense_4h_to_h",
            "0.1",
            w.pth,
        )
        phi = f.fused(base)
        twisted = {
            n: np.concatenate(
                [
                    f.as_pairs(e[: len(of[layer + "self_attn.q_proj.weight"])], base.heads),
                    e[len(of[layer + "self_attn.q_proj.weight"]) :],
                ]
            )
            for n, e in phi.weights.items()
            if "qkv" in n
        }
        yield pair("fused, q in pairs", changed(phi, twisted), base, "qkv|q_proj", "rotary|pairs")
        one = f.renamed(
            base, {"model.layers.": "body/blk", **{k: v for k, v in f.NOBODY.items() if k != "model.layers."}}
        )
        later = one._replace(
            weights={re.sub(r"blk(\d+)", lambda m: f"blk{int(m[1]) + 1}", n): e for n, e in one.weights.items()}
        )
        yield pair("counted from 1", later, base, one=w.npz, answer="identical")
        swap = {f"body/blk{a}.omega.weight": later.weights[f"body/blk{b}.omega.weight"] for a, b in ((1, 2), (2, 1))}
        yield pair("counted from 1, exchanged", changed(later, swap), base, "omega|o_proj", "layer [01]", w.npz)
        yield pair("a layer fewer, nobody's names", without(later, "blk2"), base, r"layers\.1|blk2", "missing", w.npz)
        meta = f.meta(base)
        name = "layers.1.feed_forward.w2.weight"
        yield pair(
            "ranks, one rounded",
            changed(meta, {name: w.rounded(meta.weights[name])}),
            base,
            "w2",
            "bfloat16",
            w.consolidated(1),
        )
        yield pair(
            "ranks, norms exchanged",
            changed(meta, {"layers.0.ffn_norm.weight": meta.weights["layers.0.attention_norm.weight"]}),
            base,
            "ffn_norm",
            "holds the golden `input_layernorm` of the same layer",
            w.consolidated(0),
        )
        experts = f.renamed(
            moe,
            {
                "model.layers.": "tower.",
                "block_sparse_moe.experts.": "crew.",
                "block_sparse_moe.gate": "pick",
                "w1": "in_a",
                "w2": "out",
                "w3": "in_b",
                "self_attn.": "at_",
            },
        )
        yield pair("nobody's experts", experts, moe, one=w.npz, answer="identical")
        swap = {
            f"tower.1.crew.{a}.out.weight": experts.weights[f"tower.1.crew.{b}.out.weight"] for a, b in ((0, 2), (2, 0))
        }
        yield pair(
            "nobody's experts, exchanged", changed(experts, swap), moe, r"crew\.[02]\.out", "experts.[02]", w.npz
        )
        name = layer + "self_attn.v_proj.weight"
        bits = of[name].copy()
        bits.view(np.uint32)[:, 0] ^= 1
        yield pair("last bits", changed(base, {name: bits}), base, "v_proj", "units in the last place")
        vit = f.vit(seed)
        token = "vit.embeddings.cls_token"
        yield pair("vit, class token", changed(vit, {token: -vit.weights[token]}), vit, "cls_token", "-1 times", w.pth)
        name = f"vit.encoder.layer.{vit.layers - 1}.attention.attention.key.weight"
        yield pair(
            "vit, key transposed",
            changed(vit, {name: np.ascontiguousarray(vit.weights[name].T)}),
            f.timm(vit),
            "key|qkv",
            "transposed",
            w.safetensors,
            w.pth,
        )
        half = base._replace(weights={n: e.astype(np.float16) for n, e in of.items()})
        yield pair("fp16 of ranks", half, f.megatron(base), other=w.megatron_ranks(2), answer="rounding")
        yield pair(
            "megatron, two stages",
            f.megatron(f.llama(seed + seed % 3, tied=False)) if base.layers % 2 else f.megatron(base),
            f.llama(seed + seed % 3) if base.layers % 2 else base,
            one=w.megatron_ranks(2, 1),
            answer="identical",
        )
