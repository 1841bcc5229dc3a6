"""Small models of Transformers train to the same bits with the tool on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="models of Transformers are needed")

SMALL = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 40,
    "max_position_embeddings": 32,
}  # fmt: skip


def build(name: str) -> Any:
    torch.manual_seed(0)
    if name == "Llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, num_key_value_heads=1))
    if name == "GPT2":
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=40, n_positions=32)
        )
    return transformers.BertForMaskedLM(transformers.BertConfig(**SMALL))


def train(model: Any, around: Callable[[Callable[[], Any]], Any]) -> list[bytes]:
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    torch.manual_seed(1)
    model.train()
    losses = []
    for step in range(2):
        tokens = torch.randint(0, 40, (2, 9), generator=torch.Generator().manual_seed(step))

        def one(tokens: Any = tokens) -> Any:
            optimizer.zero_grad()
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        losses.append(around(one))
    values = [*losses, *model.parameters(), *(p.grad for p in model.parameters()), torch.get_rng_state()]
    return [value.detach().numpy().tobytes() for value in values]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "level"), [("Llama", "L0"), ("Llama", "L1"), ("Llama", "mix"), ("GPT2", "L0"), ("Bert", "mix")]
)
def test_training_gives_the_same_bits(runs: Any, name: str, level: str) -> None:
    expected = train(build(name), lambda one: one())
    model, debugger = build(name), runs.new(level=level, summary_mode="md5" if level == "mix" else "statistics")

    def collected(one: Callable[[], Any]) -> Any:
        debugger.start(model)
        loss = one()
        debugger.stop()
        debugger.step()
        return loss

    assert train(model, collected) == expected
    dump = runs.read(1)
    assert len(dump.names) > 40
    assert all(parent is None or parent in dump.tree for parent in dump.tree.values())
    if level != "L1":
        called = {name.rsplit(".forward", 1)[0] for name in dump.forward if name.startswith("Module")}
        backward = {name.rsplit(".backward", 1)[0] for name in dump.backward if name.startswith("Module")}
        # Rotary embeddings and the like return nothing that takes a gradient.
        assert {name for name in called - backward if "otary" not in name} == set()
