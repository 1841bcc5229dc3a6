"""Healthy trainings of programs that others wrote: models and loops of packages, with what their recipes do.

They need `pip install transformers accelerate timm torchvision`; one whose package is missing is left out, and said. No
rule was chosen by them.
"""

from __future__ import annotations

import importlib
import tempfile
from typing import Any

import torch
from monitor_trainings.healthy import Record, Training
from torch.nn import functional as F


def _text(vocabulary: int, batch: int, length: int) -> torch.Tensor:
    """Sequences that go up in steps of one to three."""
    start = torch.randint(0, vocabulary, (batch, 1))
    return (start + torch.arange(length) * torch.randint(1, 4, (batch, 1))) % vocabulary


def _image(batch: int, classes: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures with a stripe where the class says."""
    label = torch.randint(0, classes, (batch,))
    image = torch.randn(batch, 3, size, size) * 0.5
    image[torch.arange(batch), 0, label * (size // classes)] += 2
    return image, label


def trainer_gpt2(record: Record, steps: int) -> None:
    """Transformers' Trainer: warm-up, linear decay, weight decay, dropout, clipping, two micro batches."""
    transformers: Any = importlib.import_module("transformers")
    importlib.import_module("accelerate")
    config = transformers.GPT2Config(vocab_size=64, n_positions=32, n_embd=48, n_layer=3, n_head=4)
    model = transformers.GPT2LMHeadModel(config)
    ids = _text(64, 16 * steps, 24)

    class Begin(transformers.TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            record(given["model"], given["optimizer"])

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=8, gradient_accumulation_steps=2, learning_rate=2e-3,
            warmup_steps=steps // 10, weight_decay=0.1, max_grad_norm=1.0, lr_scheduler_type="linear",
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        data = [{"input_ids": each, "labels": each} for each in ids]
        transformers.Trainer(model, arguments, train_dataset=data, callbacks=[Begin()]).train()


def bert_thawed(record: Record, steps: int) -> None:
    """A BERT classifier that is thawed from the head down, one layer after the other, with a cosine schedule."""
    transformers: Any = importlib.import_module("transformers")
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, num_labels=4
    )
    model = transformers.BertForSequenceClassification(config)
    groups = [model.bert.embeddings, *model.bert.encoder.layer]
    for group in groups:
        group.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, steps // 10, steps)
    record(model, optimizer)
    model.train()
    for step in range(steps):
        if groups and step and step % (steps // 6) == 0:
            groups.pop().requires_grad_(True)
        ids = _text(64, 8, 16)
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids[:, 0] // 16).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def t5_adafactor(record: Record, steps: int) -> None:
    """A T5 with dropout and Transformers' own Adafactor, which sets its learning rate itself."""
    transformers: Any = importlib.import_module("transformers")
    config = transformers.T5Config(
        vocab_size=64, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config)
    optimizer = transformers.Adafactor(model.parameters(), relative_step=True, scale_parameter=True, warmup_init=True)
    record(model, optimizer)
    model.train()
    for _ in range(steps):
        ids = _text(64, 8, 12)
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids.flip(1)).loss.backward()
        optimizer.step()


def timm_vit(record: Record, steps: int) -> None:
    """timm: a vision transformer with drop path, parameter groups, scheduler with warm-up, and label smoothing."""
    timm: Any = importlib.import_module("timm")
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, num_classes=4, embed_dim=48, depth=3, num_heads=4,
        drop_path_rate=0.1, drop_rate=0.1,
    )  # fmt: skip
    optimizer = importlib.import_module("timm.optim").create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.05)
    schedule, _ = importlib.import_module("timm.scheduler").create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=10, warmup_epochs=1, warmup_lr=1e-5, step_on_epochs=False,
        updates_per_epoch=max(steps // 10, 1),
    )  # fmt: skip
    loss_of = importlib.import_module("timm.loss").LabelSmoothingCrossEntropy(0.1)
    record(model, optimizer)
    model.train()
    for step in range(steps):
        image, label = _image(8, 4, 32)
        optimizer.zero_grad()
        loss_of(model(image), label).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step_update(step + 1)


def resnet_frozen_stem(record: Record, steps: int) -> None:
    """torchvision: a ResNet-18 with SGD and step decay, whose stem and first stage are frozen half-way."""
    models: Any = importlib.import_module("torchvision.models")
    model = models.resnet18(num_classes=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, max(steps // 3, 1), 0.1)
    record(model, optimizer)
    model.train()
    for step in range(steps):
        if step == steps // 2:
            for part in (model.conv1, model.bn1, model.layer1):
                part.requires_grad_(False)
        image, label = _image(8, 4, 32)
        optimizer.zero_grad()
        F.cross_entropy(model(image), label).backward()
        optimizer.step()
        schedule.step()


FOREIGN: dict[str, Training] = {
    each.__name__: each for each in (trainer_gpt2, bert_thawed, t5_adafactor, timm_vit, resnet_frozen_stem)
}
