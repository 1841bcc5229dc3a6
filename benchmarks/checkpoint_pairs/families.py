"""Small checkpoints of many families, made from seeds: names, arrays, and the configuration that lies beside them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Weights = dict[str, Any]


class Model(NamedTuple):
    """Arrays by name, and a ``config.json``; its numbers are those that a converter needs."""

    weights: Weights
    config: dict[str, Any]
    layers: int
    heads: int
    groups: int


def _draw(seed: int) -> Any:
    random = np.random.default_rng(seed)

    def matrix(*shape: int) -> Any:
        mean = 1.0 if len(shape) == 1 else 0.0
        return (mean + 0.1 * random.standard_normal(shape)).astype(np.float32)

    return matrix


def _sizes(seed: int) -> tuple[int, int, int, int, int, int]:
    """Layers, hidden, heads, groups, the width of the MLP, words."""
    heads, groups = ((4, 2), (4, 4), (6, 2), (8, 4))[seed % 4]
    size = (8, 16)[seed // 4 % 2]
    hidden = heads * size
    return 4 + seed % 3, hidden, heads, groups, 2 * hidden + 12, 52 + 2 * (seed % 7)


def llama(seed: int = 0, bias: bool = False, tied: bool = False, model_type: str = "llama") -> Model:
    """Names of Transformers' Llama; with `bias` those of Qwen 2."""
    layers, hidden, heads, groups, ffn, words = _sizes(seed)
    m, key = _draw(seed), hidden // heads * groups
    found = {"model.embed_tokens.weight": m(words, hidden)}
    for number in range(layers):
        path = f"model.layers.{number}"
        for name, rows in (("q", hidden), ("k", key), ("v", key)):
            found[f"{path}.self_attn.{name}_proj.weight"] = m(rows, hidden)
            if bias:
                found[f"{path}.self_attn.{name}_proj.bias"] = m(rows)
        found[f"{path}.self_attn.o_proj.weight"] = m(hidden, hidden)
        found[f"{path}.mlp.gate_proj.weight"] = m(ffn, hidden)
        found[f"{path}.mlp.up_proj.weight"] = m(ffn, hidden)
        found[f"{path}.mlp.down_proj.weight"] = m(hidden, ffn)
        found[f"{path}.input_layernorm.weight"] = m(hidden)
        found[f"{path}.post_attention_layernorm.weight"] = m(hidden)
    found["model.norm.weight"] = m(hidden)
    if not tied:
        found["lm_head.weight"] = m(words, hidden)
    config = {
        "model_type": model_type, "num_attention_heads": heads, "num_key_value_heads": groups, "hidden_size": hidden,
        "num_hidden_layers": layers, "vocab_size": words, "tie_word_embeddings": tied,
    }  # fmt: skip
    return Model(found, config, layers, heads, groups)


def as_pairs(array: Any, heads: int) -> Any:
    """Rows of a query or a key for neighbours that are rotated together, from those for two halves of a head."""
    rows = array.shape[0] // heads
    return np.ascontiguousarray(
        array.reshape(heads, 2, rows // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
    )


def meta(model: Model) -> Model:
    """Names and rows of Meta's own files, from those of Transformers."""
    short = {
        "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
        "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
        "mlp.up_proj": "feed_forward.w3", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
        "model.embed_tokens": "tok_embeddings", "lm_head": "output", "model.": "",
    }  # fmt: skip
    found = {}
    for name, each in model.weights.items():
        if ".q_proj." in name or ".k_proj." in name:
            each = as_pairs(each, model.heads if ".q_proj." in name else model.groups)
        found[replaced(name, short)] = each
    hidden = model.config["hidden_size"]
    config = {"dim": hidden, "n_layers": model.layers, "n_heads": model.heads, "n_kv_heads": model.groups}
    return model._replace(weights=found, config=config)


def replaced(name: str, words: dict[str, str]) -> str:
    """The name with every old word replaced."""
    for old, new in words.items():
        name = name.replace(old, new)
    return name


def renamed(model: Model, words: dict[str, str]) -> Model:
    """Other names for all parameters, and no configuration."""
    return model._replace(weights={replaced(name, words): each for name, each in model.weights.items()}, config={})


def fused(model: Model, groups: int = 0, qkv: str = "qkv_proj", gate_up: str = "gate_up_proj") -> Model:
    """Query, key and value as one, by groups of heads or one after the other, and gate and up as one."""
    found: Weights = {}
    for name, each in model.weights.items():
        if ".q_proj." in name:
            parts = [model.weights[name.replace(".q_proj.", f".{letter}_proj.")] for letter in "qkv"]
            found[name.replace("q_proj", qkv)] = interleave(parts, groups)
        elif ".gate_proj." in name and gate_up:
            up = model.weights[name.replace("gate_proj", "up_proj")]
            found[name.replace("gate_proj", gate_up)] = np.concatenate([each, up])
        elif not any(part in name for part in (".k_proj.", ".v_proj.")) and not (gate_up and ".up_proj." in name):
            found[name] = each
    return model._replace(weights=found)


def interleave(parts: list[Any], groups: int) -> Any:
    """Three arrays one after the other, or group by group."""
    if groups:
        split = [np.split(part, groups) for part in parts]
        parts = [piece for group in range(groups) for piece in (side[group] for side in split)]
    return np.concatenate(parts)


def megatron(model: Model) -> Model:
    """Names and layout of Megatron core with TransformerEngine, from Transformers' Llama."""
    whole = fused(model, model.groups, "linear_qkv", "linear_fc1")
    words = {
        "model.embed_tokens": "embedding.word_embeddings", "model.norm": "decoder.final_layernorm",
        "lm_head": "output_layer", "model.layers": "decoder.layers", "mlp.down_proj": "mlp.linear_fc2",
        "self_attn.linear_qkv": "self_attention.linear_qkv", "self_attn.o_proj": "self_attention.linear_proj",
        "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
        "post_attention_layernorm.weight": "mlp.linear_fc1.layer_norm_weight",
    }  # fmt: skip
    return renamed(whole, words)


def gpt2(seed: int = 0, linear: bool = False) -> Model:
    """Transformers' GPT-2, whose linear layers are stored transposed (Conv1D), or its like of `nn.Linear`."""
    layers, hidden, heads, _, _, words = _sizes(seed)
    m = _draw(seed)
    found = {"transformer.wte.weight": m(words, hidden), "transformer.wpe.weight": m(24, hidden)}
    for number in range(layers):
        path = f"transformer.h.{number}"
        for name, rows, columns in (
            ("attn.c_attn", 3 * hidden, hidden), ("attn.c_proj", hidden, hidden), ("mlp.c_fc", 4 * hidden, hidden),
            ("mlp.c_proj", hidden, 4 * hidden),
        ):  # fmt: skip
            weight = m(rows, columns)
            found[f"{path}.{name}.weight"] = weight if linear else np.ascontiguousarray(weight.T)
            found[f"{path}.{name}.bias"] = m(rows)
        for name in ("ln_1", "ln_2"):
            found[f"{path}.{name}.weight"], found[f"{path}.{name}.bias"] = m(hidden), m(hidden)
    found["transformer.ln_f.weight"], found["transformer.ln_f.bias"] = m(hidden), m(hidden)
    found["lm_head.weight"] = found["transformer.wte.weight"]
    config = {"model_type": "gpt2", "n_head": heads, "n_embd": hidden, "n_layer": layers}
    return Model(found, config, layers, heads, heads)


def neox(seed: int = 0) -> Model:
    """GPT-NeoX: query, key and value of each head beside each other."""
    layers, hidden, heads, _, _, words = _sizes(seed)
    m = _draw(seed)
    found = {"gpt_neox.embed_in.weight": m(words, hidden)}
    for number in range(layers):
        path = f"gpt_neox.layers.{number}"
        for name, rows, columns in (
            ("attention.query_key_value", 3 * hidden, hidden), ("attention.dense", hidden, hidden),
            ("mlp.dense_h_to_4h", 4 * hidden, hidden), ("mlp.dense_4h_to_h", hidden, 4 * hidden),
        ):  # fmt: skip
            found[f"{path}.{name}.weight"], found[f"{path}.{name}.bias"] = m(rows, columns), m(rows)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{path}.{name}.weight"], found[f"{path}.{name}.bias"] = m(hidden), m(hidden)
    found["gpt_neox.final_layer_norm.weight"], found["gpt_neox.final_layer_norm.bias"] = m(hidden), m(hidden)
    found["embed_out.weight"] = m(words, hidden)
    config = {"model_type": "gpt_neox", "num_attention_heads": heads, "hidden_size": hidden}
    return Model(found, config, layers, heads, heads)


def split_neox(model: Model) -> Model:
    """NeoX with query, key and value apart."""
    found: Weights = {}
    for name, each in model.weights.items():
        if "query_key_value" in name:
            size = each.shape[0] // 3 // model.heads
            three = each.reshape(model.heads, 3, size, *each.shape[1:])
            for index, part in enumerate(("q_proj", "k_proj", "v_proj")):
                whole = np.ascontiguousarray(three[:, index]).reshape(-1, *each.shape[1:])
                found[name.replace("query_key_value", part)] = whole
        else:
            found[name] = each
    return model._replace(weights=found)


def mixtral(seed: int = 0, experts: int = 4, path: str = "block_sparse_moe") -> Model:
    """Llama with experts that are listed."""
    model = llama(seed, model_type="mixtral")
    m, hidden, ffn = _draw(seed + 1000), model.config["hidden_size"], 20
    found: Weights = {}
    for name, each in model.weights.items():
        if ".mlp." not in name:
            found[name] = each
        elif ".gate_proj." in name:
            layer = name.split(".mlp.")[0]
            found[f"{layer}.{path}.gate.weight"] = m(experts, hidden)
            for number in range(experts):
                for short, shape in (("w1", (ffn, hidden)), ("w2", (hidden, ffn)), ("w3", (ffn, hidden))):
                    found[f"{layer}.{path}.experts.{number}.{short}.weight"] = m(*shape)
    return model._replace(weights=found)


def stacked(model: Model, experts: int = 4, path: str = "block_sparse_moe", turned: bool = False) -> Model:
    """Experts as stacks of ``mlp.experts``."""
    found: Weights = {}
    for name, each in model.weights.items():
        if ".experts." not in name:
            found[name.replace(f".{path}.", ".mlp.")] = each
        elif ".experts.0.w1." in name:
            layer = name.split(f".{path}.")[0]
            one, two, three = (
                np.stack([model.weights[name.replace(".0.w1", f".{e}.{w}")] for e in range(experts)])
                for w in ("w1", "w2", "w3")
            )
            both = np.concatenate([one, three], 1)
            found[f"{layer}.mlp.experts.gate_up_proj"] = np.ascontiguousarray(both.swapaxes(1, 2)) if turned else both
            found[f"{layer}.mlp.experts.down_proj"] = np.ascontiguousarray(two.swapaxes(1, 2)) if turned else two
    return model._replace(weights=found)


def vit(seed: int = 0) -> Model:
    """Transformers' ViT."""
    layers, hidden, heads, _, _, _ = _sizes(seed)
    m = _draw(seed)
    found = {
        "vit.embeddings.cls_token": m(1, 1, hidden), "vit.embeddings.position_embeddings": m(1, 17, hidden),
        "vit.embeddings.patch_embeddings.projection.weight": m(hidden, 3, 4, 4),
        "vit.embeddings.patch_embeddings.projection.bias": m(hidden),
    }  # fmt: skip
    for number in range(layers):
        path = f"vit.encoder.layer.{number}"
        for name, rows, columns in (
            ("attention.attention.query", hidden, hidden), ("attention.attention.key", hidden, hidden),
            ("attention.attention.value", hidden, hidden), ("attention.output.dense", hidden, hidden),
            ("intermediate.dense", 4 * hidden, hidden), ("output.dense", hidden, 4 * hidden),
        ):  # fmt: skip
            found[f"{path}.{name}.weight"], found[f"{path}.{name}.bias"] = m(rows, columns), m(rows)
        for name in ("layernorm_before", "layernorm_after"):
            found[f"{path}.{name}.weight"], found[f"{path}.{name}.bias"] = m(hidden), m(hidden)
    found["vit.layernorm.weight"], found["vit.layernorm.bias"] = m(hidden), m(hidden)
    found["classifier.weight"], found["classifier.bias"] = m(10, hidden), m(10)
    return Model(found, {"model_type": "vit", "num_attention_heads": heads}, layers, heads, heads)


def timm(model: Model) -> Model:
    """ViT with timm's names and fused attention."""
    words = {
        "vit.embeddings.patch_embeddings.projection": "patch_embed.proj", "vit.embeddings.cls_token": "cls_token",
        "vit.embeddings.position_embeddings": "pos_embed", "vit.encoder.layer": "blocks", "layernorm_before": "norm1",
        "layernorm_after": "norm2", "attention.output.dense": "attn.proj", "intermediate.dense": "mlp.fc1",
        "output.dense": "mlp.fc2", "vit.layernorm": "norm", "classifier": "head",
    }  # fmt: skip
    found: Weights = {}
    for name, each in model.weights.items():
        if ".query." in name:
            parts = [model.weights[name.replace("query", part)] for part in ("query", "key", "value")]
            name, each = name.replace("attention.attention.query", "attn.qkv"), np.concatenate(parts)
        elif ".key." in name or ".value." in name:
            continue
        found[replaced(name, words)] = each
    return model._replace(weights=found, config={})


def bert(seed: int = 0) -> Model:
    """Transformers' BERT."""
    layers, hidden, heads, _, _, words = _sizes(seed)
    m = _draw(seed)
    found = {
        "bert.embeddings.word_embeddings.weight": m(words, hidden),
        "bert.embeddings.position_embeddings.weight": m(24, hidden),
        "bert.embeddings.token_type_embeddings.weight": m(2, hidden),
        "bert.embeddings.LayerNorm.weight": m(hidden), "bert.embeddings.LayerNorm.bias": m(hidden),
    }  # fmt: skip
    for number in range(layers):
        path = f"bert.encoder.layer.{number}"
        for name, rows, columns in (
            ("attention.self.query", hidden, hidden), ("attention.self.key", hidden, hidden),
            ("attention.self.value", hidden, hidden), ("attention.output.dense", hidden, hidden),
            ("intermediate.dense", 4 * hidden, hidden), ("output.dense", hidden, 4 * hidden),
        ):  # fmt: skip
            found[f"{path}.{name}.weight"], found[f"{path}.{name}.bias"] = m(rows, columns), m(rows)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            found[f"{path}.{name}.weight"], found[f"{path}.{name}.bias"] = m(hidden), m(hidden)
    found["bert.pooler.dense.weight"], found["bert.pooler.dense.bias"] = m(hidden, hidden), m(hidden)
    return Model(found, {"model_type": "bert", "num_attention_heads": heads}, layers, heads, heads)


NOBODY = {
    "model.layers.": "stage.", "self_attn.q_proj": "alpha", "self_attn.k_proj": "beta_", "self_attn.v_proj": "kappa",
    "self_attn.o_proj": "omega", "mlp.gate_proj": "left", "mlp.up_proj": "right", "mlp.down_proj": "below",
    "input_layernorm": "scale_one", "post_attention_layernorm": "scale_two", "model.embed_tokens": "table",
    "model.norm": "last", "lm_head": "speak",
}  # fmt: skip
"""Names of Transformers' Llama, and those that nobody knows."""


def flat(model: Model, stem: str = "tensor") -> Model:
    """Parameters that have numbers alone."""
    values = model.weights.values()
    return model._replace(weights={f"{stem}_{number}": each for number, each in enumerate(values)}, config={})


# --- families that the rules were not made with


def opt(seed: int = 0) -> Model:
    """OPT."""
    layers, hidden, heads, _, _, words = _sizes(seed)
    m, path = _draw(seed), "model.decoder"
    found = {f"{path}.embed_tokens.weight": m(words, hidden), f"{path}.embed_positions.weight": m(26, hidden)}
    for number in range(layers):
        for name, rows, columns in (
            ("self_attn.k_proj", hidden, hidden), ("self_attn.v_proj", hidden, hidden),
            ("self_attn.q_proj", hidden, hidden), ("self_attn.out_proj", hidden, hidden), ("fc1", 4 * hidden, hidden),
            ("fc2", hidden, 4 * hidden),
        ):  # fmt: skip
            one = f"{path}.layers.{number}.{name}"
            found[f"{one}.weight"], found[f"{one}.bias"] = m(rows, columns), m(rows)
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            one = f"{path}.layers.{number}.{name}"
            found[f"{one}.weight"], found[f"{one}.bias"] = m(hidden), m(hidden)
    return Model(found, {"model_type": "opt", "num_attention_heads": heads}, layers, heads, heads)


def t5(seed: int = 0) -> Model:
    """T5: two stacks of layers, numbers within numbers."""
    layers, hidden, heads, _, ffn, words = _sizes(seed)
    m = _draw(seed)
    found = {"shared.weight": m(words, hidden)}
    for stack, blocks in (("encoder", ("SelfAttention",)), ("decoder", ("SelfAttention", "EncDecAttention"))):
        for number in range(layers):
            for index, name in enumerate(blocks):
                path = f"{stack}.block.{number}.layer.{index}"
                for part in "qkvo":
                    found[f"{path}.{name}.{part}.weight"] = m(hidden, hidden)
                found[f"{path}.layer_norm.weight"] = m(hidden)
            path = f"{stack}.block.{number}.layer.{len(blocks)}"
            found[f"{path}.DenseReluDense.wi_0.weight"], found[f"{path}.DenseReluDense.wi_1.weight"] = (
                m(ffn, hidden), m(ffn, hidden),
            )  # fmt: skip
            found[f"{path}.DenseReluDense.wo.weight"] = m(hidden, ffn)
            found[f"{path}.layer_norm.weight"] = m(hidden)
        found[f"{stack}.final_layer_norm.weight"] = m(hidden)
    found["lm_head.weight"] = m(words, hidden)
    return Model(found, {"model_type": "t5", "num_heads": heads}, layers, heads, heads)


def deepseek(seed: int = 0, experts: int = 6) -> Model:
    """Experts that are routed and shared, low-rank attention."""
    layers, hidden, heads, _, _, words = _sizes(seed)
    m = _draw(seed)
    found = {"model.embed_tokens.weight": m(words, hidden)}
    for number in range(layers):
        path = f"model.layers.{number}"
        found[f"{path}.self_attn.q_proj.weight"] = m(hidden, hidden)
        found[f"{path}.self_attn.kv_a_proj_with_mqa.weight"] = m(12, hidden)
        found[f"{path}.self_attn.kv_a_layernorm.weight"] = m(8)
        found[f"{path}.self_attn.kv_b_proj.weight"] = m(2 * hidden, 8)
        found[f"{path}.self_attn.o_proj.weight"] = m(hidden, hidden)
        found[f"{path}.mlp.gate.weight"] = m(experts, hidden)
        for one in [*(f"experts.{each}" for each in range(experts)), "shared_experts"]:
            for name, shape in (("gate", (20, hidden)), ("up", (20, hidden)), ("down", (hidden, 20))):
                found[f"{path}.mlp.{one}.{name}_proj.weight"] = m(*shape)
        found[f"{path}.input_layernorm.weight"], found[f"{path}.post_attention_layernorm.weight"] = m(hidden), m(hidden)
    found["model.norm.weight"], found["lm_head.weight"] = m(hidden), m(words, hidden)
    return Model(found, {"model_type": "deepseek_v2", "num_attention_heads": heads}, layers, heads, heads)


def resnet(seed: int = 0) -> Model:
    """Convolutions with batch norms."""
    m = _draw(seed)
    found = {"conv1.weight": m(8, 3, 3, 3)}
    for stage in range(1, 4):
        for block in range(2):
            path = f"layer{stage}.{block}"
            for index in (1, 2):
                found[f"{path}.conv{index}.weight"] = m(8, 8, 3, 3)
                for name in ("weight", "bias", "running_mean", "running_var"):
                    found[f"{path}.bn{index}.{name}"] = m(8)
                found[f"{path}.bn{index}.num_batches_tracked"] = np.array(100 + seed, np.int64)
    found["fc.weight"], found["fc.bias"] = m(10, 8), m(10)
    return Model(found, {}, 3, 1, 1)


def flax(model: Model) -> Model:
    """Llama under names of Flax, linear layers transposed as its kernels are."""
    found: Weights = {}
    for name, each in model.weights.items():
        if name.startswith("model.embed_tokens"):
            found["params/model/embed_tokens/embedding"] = each
        elif "norm" in name:
            found["params/" + name.removesuffix(".weight").replace(".", "/") + "/scale"] = each
        else:
            found["params/" + name.removesuffix(".weight").replace(".", "/") + "/kernel"] = np.ascontiguousarray(each.T)
    return model._replace(weights=found, config={})
