"""Dumps of ten real models, for what the pre-check makes of correct kernels: a training step of each, with its tensors.

    python benchmarks/precheck_models.py DIR                      # every model in float32 and bfloat16, a few minutes
    python benchmarks/precheck_models.py DIR --models llama mamba --dtypes bfloat16
    python benchmarks/precheck_models.py DIR --names              # and which functions of the dumps cannot be run alone

Below DIR every model and dtype has a folder, ``llama-bfloat16`` for example, with a dump of level L1; what is there
already is left as it is. It needs torch and transformers. Weights are random, of the sizes that training gives them.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from planted_faults.networks import draw_weights

from msprobe.pytorch import PrecisionDebugger
from probe.backends import loader
from probe.common.dump.naming import parse

LENGTH, VOCABULARY, IMAGE = 24, 96, 16
DECODER = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": VOCABULARY, "max_position_embeddings": 64,
}  # fmt: skip
ENCODER = {key: value for key, value in DECODER.items() if key != "num_key_value_heads"}
TOWER = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
DTYPES = ("float32", "bfloat16")


class Network(NamedTuple):
    """A model of Transformers and the arguments of a step, whose loss it computes itself."""

    model: str
    settings: dict[str, Any]
    inputs: Callable[[torch.dtype], dict[str, Any]]
    config: str = ""
    """The class of its configuration, where that is not called as the model is up to ``For``."""


def tokens() -> torch.Tensor:
    return torch.randint(4, VOCABULARY, (2, LENGTH))


def words(dtype: torch.dtype) -> dict[str, Any]:
    ids = tokens()
    return {"input_ids": ids, "labels": ids}


def padded_words(dtype: torch.dtype) -> dict[str, Any]:
    kept = torch.ones(2, LENGTH, dtype=torch.int64)
    kept[1, LENGTH - 5 :] = 0
    return {**words(dtype), "attention_mask": kept}


def images(dtype: torch.dtype) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, IMAGE, IMAGE).to(dtype), "labels": torch.tensor([1, 0])}


def speech(dtype: torch.dtype) -> dict[str, Any]:
    return {"input_features": torch.randn(2, 8, 2 * LENGTH).to(dtype), "labels": tokens()}


def pairs(dtype: torch.dtype) -> dict[str, Any]:
    return {"input_ids": tokens(), "pixel_values": images(dtype)["pixel_values"], "return_loss": True}


NETWORKS = {
    "llama": Network("LlamaForCausalLM", DECODER, padded_words),
    "qwen3": Network("Qwen3ForCausalLM", {**DECODER, "head_dim": 12}, words),
    "mixtral": Network(
        "MixtralForCausalLM",
        {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True},
        words,
    ),
    "gpt2": Network(
        "GPT2LMHeadModel",
        {"n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": 64},
        words,
        "GPT2Config",
    ),
    "bert": Network("BertForMaskedLM", ENCODER, padded_words),
    "t5": Network(
        "T5ForConditionalGeneration",
        {
            "d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY,
            "decoder_start_token_id": 0,
        },
        padded_words,
    ),
    "vit": Network("ViTForImageClassification", {**TOWER, "image_size": IMAGE, "patch_size": 4}, images),
    "whisper": Network(
        "WhisperForConditionalGeneration",
        {
            "d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
            "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": VOCABULARY,
            "num_mel_bins": 8, "max_source_positions": LENGTH, "max_target_positions": 64, "pad_token_id": 0,
            "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3,
        },
        speech,
    ),
    "mamba": Network(
        "MambaForCausalLM",
        {"hidden_size": 48, "state_size": 8, "num_hidden_layers": 2, "vocab_size": VOCABULARY, "use_mambapy": False},
        words,
    ),
    "clip": Network(
        "CLIPModel",
        {
            "text_config": {**ENCODER, "bos_token_id": 1, "eos_token_id": 2},
            "vision_config": {**TOWER, "image_size": IMAGE, "patch_size": 4},
            "projection_dim": 32,
        },
        pairs,
        "CLIPConfig",
    ),
}  # fmt: skip


def step(network: Network, dtype: torch.dtype) -> tuple[Any, Callable[[], Any]]:
    """The model, and what computes the loss of a step."""
    torch.manual_seed(0)
    config = getattr(transformers, network.config or f"{network.model.partition('For')[0]}Config")
    model = getattr(transformers, network.model)(config(**network.settings)).train()
    draw_weights(model)
    model.to(dtype)
    inputs = network.inputs(dtype)
    return model, lambda: model(**inputs).loss


def dump_all(folder: Path, models: list[str], dtypes: list[str]) -> list[Path]:
    """Dump what is not there yet; the folders of all that was asked for."""
    collected = folder / f".collecting-{os.getpid()}"
    folders = {(name, dtype): folder / f"{name}-{dtype}" for name in models for dtype in dtypes}
    missing = [key for key, path in folders.items() if not path.is_dir()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        # Also of functions that only hand on what they get, which a configuration without risk_level leaves out.
        settings = {"task": "tensor", "level": "L1", "risk_level": "ALL", "dump_path": str(collected)}
        configuration = folder / f".config-{os.getpid()}.json"
        configuration.write_text(json.dumps(settings), encoding="utf-8")
        debugger = PrecisionDebugger(config_path=str(configuration))
        configuration.unlink()
        for number, (name, dtype) in enumerate(missing):
            model, loss = step(NETWORKS[name], getattr(torch, dtype))
            debugger.start(model=model)
            value = loss()
            value.backward()
            debugger.stop()
            if not value.isfinite():
                raise ValueError(f"the loss of {name} in {dtype} is {value.item()}")
            debugger.step()
            (written,) = (collected / f"step{number}").iterdir()
            written.rename(folders[name, dtype])
        shutil.rmtree(collected)
    return list(folders.values())


def names_in(dump: Path) -> Iterator[str]:
    """``Prefix.api`` of each forward record."""
    with open(dump / "dump.json", encoding="utf-8") as stream:
        records = json.load(stream)["data"]
    for name in records:
        parsed = parse(name)
        if parsed is not None and not parsed.is_module and parsed.direction == "forward":
            yield parsed.base


def print_names(dumps: list[Path]) -> None:
    adapter = loader.load("torch")
    calls = collections.Counter(base for dump in dumps for base in names_in(dump))
    unknown = sorted(base for base in calls if adapter.execution.function(base) is None)
    print(f"{len(calls)} functions in {sum(calls.values())} calls; not found: {', '.join(unknown) or 'none'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the dumps go")
    parser.add_argument("--models", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--names", action="store_true", help="say which functions of the dumps cannot be found again")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dumps = dump_all(options.folder, options.models, options.dtypes)
    if options.names:
        print_names(dumps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
