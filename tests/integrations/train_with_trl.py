"""GRPO of TRL on a CPU with a small model of random weights, as docs/recipes/rollout.md has it.

usage: train_with_trl.py FOLDER [TEMPERATURE]

Both sets of log-probabilities of each batch go to FOLDER. TEMPERATURE is that of the engine's log-probabilities; that
of the trainer is 0.9.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from msprobe.core import SingleSave

TEMPERATURE = 0.9
folder, engine_temperature = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else TEMPERATURE
words = ["<pad>", "</s>", *(f"w{number}" for number in range(62))]
plain = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<pad>"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="</s>")
torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        pad_token_id=0, eos_token_id=1, bos_token_id=None, initializer_range=0.3,
    )
)  # fmt: skip


def sample(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
    """The engine: tokens of `generate`, and their log-probabilities."""
    given = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    with torch.no_grad():
        found = trainer.model.generate(
            input_ids=given.input_ids, attention_mask=given.attention_mask, max_new_tokens=12, do_sample=True,
            temperature=TEMPERATURE, top_k=0, return_dict_in_generate=True, output_logits=True, use_cache=True,
        )  # fmt: skip
    tokens = found.sequences[:, given.input_ids.shape[1] :]
    logits = torch.stack(found.logits, dim=1)
    of_tokens = (logits / engine_temperature).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    lengths = [row.index(1) + 1 if 1 in row else len(row) for row in tokens.tolist()]
    return {
        "prompt_ids": [ids[mask.bool()].tolist() for ids, mask in zip(given.input_ids, given.attention_mask)],
        "completion_ids": [row[:length].tolist() for row, length in zip(tokens, lengths)],
        "logprobs": [row[:length].tolist() for row, length in zip(of_tokens, lengths)],
    }


class Saving(GRPOTrainer):
    """Saves both sets of log-probabilities of each batch."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        batch = super()._generate_and_score_completions(inputs)
        SingleSave.save(
            {
                "rollout": batch["sampling_per_token_logps"],
                "training": batch["old_per_token_logps"],
                "mask": batch["completion_mask"],
                "tokens": batch["completion_ids"],
            }
        )
        SingleSave.step()
        return batch


def main() -> None:
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    SingleSave(folder)
    with tempfile.TemporaryDirectory() as output:
        arguments = GRPOConfig(
            output_dir=output, max_steps=4, per_device_train_batch_size=4, num_generations=4, max_completion_length=12,
            temperature=TEMPERATURE, num_iterations=2, use_cpu=True, bf16=False, report_to="none", save_strategy="no",
            disable_tqdm=True, learning_rate=1e-3, gradient_checkpointing=False,
        )  # fmt: skip
        prompts = Dataset.from_dict({"prompt": [f"w{number} w{number + 1} w{number % 7}" for number in range(8)]})
        Saving(
            model=model, reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
            args=arguments, train_dataset=prompts, processing_class=tokenizer, rollout_func=sample,
        ).train()  # fmt: skip


if __name__ == "__main__":
    main()
