"""Training style against inference style: transformers' Llama and Qwen2 and the same networks with fused projections.

    run.py OUT      makes the dumps that OUT does not have yet

Forward only, statistics, both sides in float32 and both in bfloat16.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers

from msprobe.pytorch import PrecisionDebugger
from verdicts.fused.fused_networks import Engine, Shape, load

NETWORKS = ("llama", "qwen2")
LEVELS = ("mix", "L0")
FLOAT32 = "float32"
TYPES = (FLOAT32, "bfloat16")
_ATTENTION = r"layers\.1\.self_attn|blocks\.1\.attn"


def _swap_keys_and_values(engine: Engine) -> None:
    shape, weight = engine.blocks[1].attn.shape, engine.blocks[1].attn.qkv_proj.weight.data
    start, size = shape.heads * shape.head, shape.key_heads * shape.head
    weight[start:] = torch.cat([weight[start + size :], weight[start : start + size]])


def _swap_gate_and_up(engine: Engine) -> None:
    weight = engine.blocks[1].ffn.gate_up_proj.weight.data
    weight.copy_(torch.cat(weight.chunk(2)[::-1]))


def _rotary_base(engine: Engine) -> None:
    for block in engine.blocks:
        block.attn.rotary_base = 500.0


def _epsilon(engine: Engine) -> None:
    engine.blocks[1].norm_2.epsilon = 1e-3


def _head_order(engine: Engine) -> None:
    engine.blocks[1].attn.reorder_heads = True


def _scale(engine: Engine) -> None:
    engine.blocks[1].attn.scale *= 1.1


def _residual(engine: Engine) -> None:
    engine.blocks[1].drops_residual = True


FAULTS: dict[str, tuple[str | None, Callable[[Engine], None]]] = {
    "right": (None, lambda engine: None),
    "keys and values swapped": (_ATTENTION, _swap_keys_and_values),
    "gate and up swapped": (r"layers\.1\.mlp|blocks\.1\.ffn", _swap_gate_and_up),
    "rotary base": (r"layers\.0\.self_attn|blocks\.0\.attn|rotary", _rotary_base),
    "epsilon": (r"layers\.1\.post_attention_layernorm|blocks\.1\.norm_2", _epsilon),
    "head order": (_ATTENTION, _head_order),
    "scale": (_ATTENTION, _scale),
    "missing residual": (r"(layers|blocks)\.1\.(post_attention_layernorm|norm_2|\w+\.forward)", _residual),
}


def _golden(name: str) -> torch.nn.Module:
    kind = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[name]
    config = kind(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
        num_hidden_layers=3, max_position_embeddings=64, use_cache=False, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(1)
    model = {"llama": transformers.LlamaForCausalLM, "qwen2": transformers.Qwen2ForCausalLM}[name](config)
    for key, value in model.state_dict().items():
        if "norm" in key:
            value.copy_(1 + 0.2 * torch.randn_like(value))
        elif value.dim() == 1:
            value.copy_(0.2 * torch.randn_like(value))
        else:
            value.copy_(torch.randn_like(value) / value.shape[-1] ** 0.5)
    return model.eval()


def _dump(model: torch.nn.Module, level: str, path: Path, ids: torch.Tensor) -> Any:
    # A process has one debugger; here each run is to have its own.
    PrecisionDebugger._instance = None
    debugger = PrecisionDebugger(task="statistics", level=level, dump_path=str(path))
    debugger.start(model)
    with torch.no_grad():
        result = model(ids)
    debugger.stop()
    debugger.step()
    PrecisionDebugger._instance = None
    return result


def make(
    out: Path,
    networks: Iterable[str] = NETWORKS,
    levels: Iterable[str] = LEVELS,
    faults: Iterable[str] = tuple(FAULTS),
    dtype: str = FLOAT32,
) -> None:
    """Write the dumps that are not there yet: golden runs and, of each network, the port with each fault."""
    faults = list(faults)
    ids = torch.randint(0, 97, (3, 12), generator=torch.Generator().manual_seed(5))
    for name, level in product(networks, levels):
        marker = out / name / f"{level}.done"
        made = marker.read_text(encoding="utf-8").splitlines() if marker.exists() else []
        if set(faults) <= set(made):
            continue
        shutil.rmtree(out / name / level, ignore_errors=True)
        marker.unlink(missing_ok=True)
        golden = _golden(name).to(getattr(torch, dtype))
        expected = _dump(golden, level, out / name / level / "golden", ids).logits
        for fault in faults:
            engine = _engine(golden).to(getattr(torch, dtype)).eval()
            FAULTS[fault][1](engine)
            found = _dump(engine, level, out / name / level / _folder(fault), ids)
            if fault == "right" and dtype == FLOAT32:
                torch.testing.assert_close(found.view_as(expected), expected)
        marker.write_text("\n".join(faults), encoding="utf-8")


def folder_of(out: Path, dtype: str, network: str, level: str, run: str) -> Path:
    """Where the dump of a run is: ``golden``, or the name of a fault."""
    return out / dtype / network / level / _folder(run)


def _folder(fault: str) -> str:
    return fault.replace(" ", "_")


def _engine(golden: torch.nn.Module) -> Engine:
    config = golden.config
    weights = golden.state_dict()
    shape = Shape(
        config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.intermediate_size,
        config.num_hidden_layers, config.vocab_size, config.rms_norm_eps,
        config.rope_parameters["rope_theta"], "model.layers.0.self_attn.q_proj.bias" in weights,
    )  # fmt: skip
    engine = Engine(shape)
    load(engine, weights)
    return engine


if __name__ == "__main__":
    for each in TYPES:
        make(Path(sys.argv[1]) / each, dtype=each)
