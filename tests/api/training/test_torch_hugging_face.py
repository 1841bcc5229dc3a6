"""Two training steps of real Hugging Face models, built from a config with random weights, at level mix.

What is collected is complete, and losses, gradients, parameters and random numbers are bitwise those of a run without
the tool. Each model runs in a process of its own, because there is one debugger per process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forks
import pytest

jsonschema = pytest.importorskip("jsonschema")

MODELS = ("llama", "gpt2", "bert", "mixtral", "vit", "t5", "whisper", "mamba")
STEPS = 2

SCRIPT = """
import sys
import torch
import transformers as hf
from msprobe.pytorch import PrecisionDebugger, seed_all

name, mode, folder = sys.argv[1:]
torch.set_num_threads(1)
seed_all(3)
SMALL = dict(vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)


def text(*shape):
    return torch.randint(0, 99, shape or (2, 12))


def labelled(ids):
    return dict(input_ids=ids, labels=ids)


def build():
    if name == "llama":
        return hf.LlamaForCausalLM(hf.LlamaConfig(num_key_value_heads=2, **SMALL)), labelled(text())
    if name == "gpt2":
        return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4)), labelled(text())
    if name == "bert":
        ids = text()
        return hf.BertForMaskedLM(hf.BertConfig(**SMALL)), dict(labelled(ids), attention_mask=torch.ones_like(ids))
    if name == "mixtral":
        config = hf.MixtralConfig(num_key_value_heads=2, num_local_experts=4, output_router_logits=True, **SMALL)
        return hf.MixtralForCausalLM(config), labelled(text())
    if name == "vit":
        sizes = {key: value for key, value in SMALL.items() if key != "vocab_size"}
        config = hf.ViTConfig(image_size=32, patch_size=8, num_labels=5, **sizes)
        return hf.ViTForImageClassification(config), dict(pixel_values=torch.randn(2, 3, 32, 32), labels=text(2) % 5)
    if name == "t5":
        sizes = dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
        config = hf.T5Config(vocab_size=99, decoder_start_token_id=0, **sizes)
        return hf.T5ForConditionalGeneration(config), labelled(text())
    if name == "whisper":
        config = hf.WhisperConfig(
            vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=16, max_source_positions=20,
            max_target_positions=20, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        )
        batch = dict(input_features=torch.randn(2, 16, 40), labels=text(2, 8))
        return hf.WhisperForConditionalGeneration(config), batch
    config = hf.MambaConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, state_size=4)
    return hf.MambaForCausalLM(config), labelled(text())


model, batch = build()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
debugger = PrecisionDebugger(dump_path=folder + "/dump", level="mix") if mode == "with" else None
losses, gradients = [], []
for step in range(2):
    if debugger:
        debugger.start(model)
    loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if debugger:
        debugger.stop()
        debugger.step()
    losses.append(loss.detach())
    gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    optimizer.zero_grad()
state = {"losses": losses, "gradients": gradients, "state": model.state_dict(), "random": torch.get_rng_state()}
torch.save(state, folder + f"/{mode}.pt")
"""


def run(name: str, mode: str, folder: Path) -> None:
    done = forks.run_python("transformers", folder / "program.py", name, mode, str(folder), code=SCRIPT)
    assert done.returncode == 0, done.stdout + done.stderr


def wants_gradient(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get("requires_grad") is True or any(map(wants_gradient, value.values()))
    return isinstance(value, list) and any(map(wants_gradient, value))


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("name", MODELS)
def test_a_real_model_is_collected_completely_and_not_disturbed(name: str, tmp_path: Path) -> None:
    import torch

    from probe.common.dump import schema

    run(name, "with", tmp_path)
    run(name, "without", tmp_path)
    ours, bare = (torch.load(tmp_path / f"{mode}.pt", weights_only=True) for mode in ("with", "without"))
    assert all(map(torch.equal, ours["losses"], bare["losses"]))
    assert torch.equal(ours["random"], bare["random"])
    for with_tool, without in [*zip(ours["gradients"], bare["gradients"]), (ours["state"], bare["state"])]:
        assert list(with_tool) == list(without)
        assert [n for n in with_tool if not torch.equal(with_tool[n], without[n])] == []

    for step in range(STEPS):
        (folder,) = (tmp_path / "dump" / f"step{step}").iterdir()
        archives = ["sketch.npz", "updates.npz"]
        assert sorted(path.name for path in folder.iterdir() if path.name not in archives) == [
            "construct.json", "dump.json", "stack.json",
        ]  # fmt: skip
        assert all((folder / name).exists() for name in archives)
        content = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
        for kind, value in content.items():
            jsonschema.Draft202012Validator(schema.load(kind)).validate(value)
        data, tree = content["dump"]["data"], content["construct"]
        modules = [n for n in data if n.startswith("Module.") and ".forward." in n]
        assert len(modules) > 10
        took_part = [n for n in modules if wants_gradient(data[n]["output"])]
        assert [n for n in took_part if n.replace(".forward.", ".backward.") not in data] == []
        recorded = [n for n in data if ".parameters_grad." not in n]
        assert set(recorded) <= set(tree)
        assert {parent for parent in tree.values() if parent is not None} <= set(tree)
