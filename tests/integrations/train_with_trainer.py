"""A training with ``transformers.Trainer``, started by the tests: ``train_with_trainer.py FOLDER NAME OPTIONS``.

OPTIONS is a JSON object, see below; what is left of it goes to `TrainingArguments`. The losses and parameters go to
``FOLDER/NAME.<rank>.pt``, the dump to ``FOLDER/NAME``. As one of two processes it is told its rank and a free port.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch.integrations import MsprobeTrainerCallback

folder, name = sys.argv[1:3]
options: dict[str, Any] = json.loads(sys.argv[3])
with_callback, level = options.pop("callback", True), options.pop("level", "L0")
actions, stop_after = options.pop("do", ["train"]), options.pop("stop_after", None)

if len(sys.argv) > 4:
    rank, port = sys.argv[4:]
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)

torch.set_num_threads(1)
logging.disable(logging.INFO)
set_seed(3)
VOCABULARY = 32


class Batches(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, length: int) -> None:
        self.ids = torch.randint(0, VOCABULARY, (length, 6))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


class Generate(TrainerCallback):
    """Generates after every step and every evaluation, as callbacks do that print samples."""

    def generate(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        model.generate(torch.ones(1, 2, dtype=torch.long), max_new_tokens=2, do_sample=False)

    on_step_end = on_evaluate = generate


class StopEarly(TrainerCallback):
    """Ends the training in the midst of an accumulation, or with an error."""

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if stop_after == "substep" and state.global_step == 1:
            control.should_training_stop = True
        if stop_after == "error" and state.global_step == 1:
            raise KeyError("stopped by the test")


def make_trainer(**more: Any) -> Trainer:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        attention_dropout=0.1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    arguments = {
        "output_dir": os.path.join(folder, name + "-checkpoints"), "max_steps": 3, "per_device_train_batch_size": 2,
        "use_cpu": True, "report_to": [], "logging_steps": 1, "disable_tqdm": True, "save_strategy": "no",
        "dataloader_pin_memory": False, **options, **more,
    }  # fmt: skip
    callbacks: list[TrainerCallback] = [Generate(), StopEarly()]
    if with_callback:
        callbacks.append(MsprobeTrainerCallback(debugger))
    return Trainer(
        LlamaForCausalLM(config), TrainingArguments(**arguments), train_dataset=Batches(24), eval_dataset=Batches(4),
        callbacks=callbacks,
    )  # fmt: skip


if with_callback:
    debugger = PrecisionDebugger(dump_path=os.path.join(folder, name), level=level)
trainer = make_trainer()
for action in actions:
    if action == "train":
        try:
            trainer.train()
        except KeyError:
            stop_after = None
    elif action == "evaluate":
        trainer.evaluate()
    elif action == "predict":
        trainer.predict(Batches(2))
    elif action == "resume":
        trainer = make_trainer(max_steps=5)
        trainer.train(resume_from_checkpoint=True)
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
result = {"losses": losses, "parameters": trainer.model.state_dict(), "random": torch.get_rng_state()}
torch.save(result, os.path.join(folder, f"{name}.{trainer.args.process_index}.pt"))
if torch.distributed.is_initialized():
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
