"""One run of a pair: two steps of training with the debugger on, from the saved weights and a fixed batch per step."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from pairs import models
from pairs.cases import Run
from pairs.faults import FAULTS

STEPS = 2
_BATCH, _LENGTH = 4, 16
_SHORTER = (0, 3, 5, 2)
"""How many tokens of each sample are padding."""
_IGNORED = -100


def _batch(model: str, run: Run, step: int) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(1000 + step + (500 if run.data == "other" else 0))
    vocabulary = models.VOCABULARY
    if model.startswith("vit"):
        pixels = torch.randn(_BATCH, 3, 32, 32, generator=generator)
        given = {"pixel_values": pixels, "labels": torch.randint(10, (_BATCH,), generator=generator)}
    elif model == "whisper":
        features = torch.randn(_BATCH, 16, 40, generator=generator)
        labels = torch.randint(5, vocabulary, (_BATCH, _LENGTH), generator=generator)
        given = {"input_features": features, "labels": labels}
    else:
        given = _tokens(model, run, generator)
    return given


def _tokens(model: str, run: Run, generator: Any) -> dict[str, Any]:
    import torch

    tokens = torch.randint(5, models.VOCABULARY, (_BATCH, _LENGTH), generator=generator)
    mask = torch.ones_like(tokens)
    for sample, shorter in enumerate(_SHORTER if run.padded else ()):
        if not shorter:
            continue
        if run.data == "left":
            padding = torch.zeros(shorter, dtype=torch.long)
            tokens[sample] = torch.cat([padding, tokens[sample, : _LENGTH - shorter]])
            mask[sample, :shorter] = 0
        else:
            tokens[sample, _LENGTH - shorter :] = 0
            mask[sample, _LENGTH - shorter :] = 0
    labels = tokens.masked_fill(mask == 0, _IGNORED)
    if model.startswith("bert"):
        labels = labels.masked_fill(torch.rand(tokens.shape, generator=generator) > 0.4, _IGNORED)
    if model == "t5":
        labels = torch.randint(5, models.VOCABULARY, (_BATCH, _LENGTH - 4), generator=generator)
    if run.data == "shifted-labels":
        labels = torch.cat([labels[:, 1:], torch.full((_BATCH, 1), _IGNORED)], 1)
    given = {"input_ids": tokens, "labels": labels}
    return {**given, "attention_mask": mask} if run.padded else given


def train(model: str, run: Run, weights: Path, level: str, task: str, output: Path, rank: int | None) -> None:
    """Train and dump both steps under `output`; the losses go to a file beside it.

    Args:
        rank: the number of this process where the run has several.
    """
    import torch

    from msprobe.pytorch import PrecisionDebugger

    torch.set_num_threads(run.threads)
    if run.ranks:
        rendezvous = f"file://{output}.rendezvous"
        torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=run.ranks)
    network = models.load(model, weights, run.configuration, run.dropout, run.attention)
    if run.fault_rank is None:
        _plant(run.fault, network)
    network.train()
    if run.dtype:
        network = network.to(getattr(torch, run.dtype))
    if run.checkpointing:
        network.gradient_checkpointing_enable({"use_reentrant": run.checkpointing == "reentrant"})
        if run.checkpointing == "reentrant":
            network.enable_input_require_grads()
    called = network
    if run.ranks:
        called = torch.nn.parallel.DistributedDataParallel(network)
        if rank == run.fault_rank:
            # After the first rank has sent its weights to all.
            _plant(run.fault, network)
    more = {} if run.weight_decay is None else {"weight_decay": run.weight_decay}
    optimizer = getattr(torch.optim, run.optimizer)(network.parameters(), lr=run.learning_rate, **more)
    debugger = PrecisionDebugger(config_path=_configuration(level, task, output))
    torch.manual_seed(0)
    losses = []
    for step in range(STEPS):
        given = _batch(model, run, step)
        if run.dtype:
            given = {
                name: value.to(getattr(torch, run.dtype)) if value.is_floating_point() else value
                for name, value in given.items()
            }
        if run.ranks and not run.whole_batch:
            given = {name: value.chunk(run.ranks)[rank or 0].contiguous() for name, value in given.items()}
        debugger.start(model=called)
        losses.append(_forward_backward(called, run, given))
        if run.clip:
            torch.nn.utils.clip_grad_norm_(network.parameters(), run.clip)
        debugger.stop()
        debugger.step()
        optimizer.step()
        if not run.keeps_gradients:
            optimizer.zero_grad()
    Path(f"{output}.losses{'' if rank is None else rank}.json").write_text(json.dumps(losses), encoding="utf-8")
    if run.ranks:
        torch.distributed.destroy_process_group()


def _plant(fault: str, network: Any) -> None:
    import torch

    if fault:
        with torch.no_grad():
            FAULTS[fault](network)


def _forward_backward(network: Any, run: Run, given: dict[str, Any]) -> float:
    import torch

    total = 0.0
    for part in range(run.backwards):
        chosen = given
        if run.backwards > 1:
            chosen = {name: value.chunk(run.backwards)[part].contiguous() for name, value in given.items()}
        in_type: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if run.autocast:
            in_type = torch.autocast("cpu", dtype=getattr(torch, run.autocast))
        with in_type:
            loss = network(**chosen).loss / run.backwards
        if run.loss_factor != 1.0:
            loss = loss * run.loss_factor
        loss.backward()
        total += float(loss.detach())
    return total


def _configuration(level: str, task: str, output: Path) -> str:
    output.mkdir(parents=True, exist_ok=True)
    path = Path(f"{output}.config.json")
    of_task = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    content = {
        "task": task, "dump_path": str(output), "rank": [], "step": [], "level": level, "risk_level": "ALL",
        "extra_info": True, task: of_task,
    }  # fmt: skip
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)
