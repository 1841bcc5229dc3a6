"""A training with accelerate, started by the tests: ``train_with_accelerate.py FOLDER NAME OPTIONS``.

OPTIONS is a JSON object, see below; what is left of it goes to the Accelerator. The losses and parameters go to
``FOLDER/NAME.<rank>.pt``, the dump to ``FOLDER/NAME``. As one of two processes it is told its rank and a free port.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from msprobe.pytorch import PrecisionDebugger

folder, name = sys.argv[1:3]
options: dict[str, Any] = json.loads(sys.argv[3])
with_debugger, level = options.pop("debugger", True), options.pop("level", "L0")
if len(sys.argv) > 4:
    rank, port = sys.argv[4:]
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.first, x, use_reentrant=False)
        return self.last(self.drop(torch.relu(hidden)))


torch.set_num_threads(1)
torch.manual_seed(3)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, **options)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
# Three batches for each of two processes: the last one is a step of its own.
batches, held_out = DataLoader(torch.randn(12, 4), batch_size=2), DataLoader(torch.randn(4, 4), batch_size=2)
model, optimizer, batches, held_out = accelerator.prepare(model, optimizer, batches, held_out)
losses: list[torch.Tensor] = []

debugger = PrecisionDebugger(dump_path=os.path.join(folder, name), level=level) if with_debugger else None


@contextlib.contextmanager
def collected() -> Iterator[None]:
    """What the recipe of docs/recipes/accelerate.md puts around each batch."""
    if debugger is None:
        yield
        return
    debugger.start(accelerator.unwrap_model(model))
    yield
    debugger.stop()
    if accelerator.sync_gradients:
        debugger.step()


for batch in batches:
    with collected(), accelerator.accumulate(model):
        loss = model(batch).square().mean()
        losses.append(loss.detach())
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        for batch_held_out in held_out:
            accelerator.gather_for_metrics(model(batch_held_out))
result = {"losses": losses, "parameters": accelerator.unwrap_model(model).state_dict(), "random": torch.get_rng_state()}
torch.save(result, os.path.join(folder, f"{name}.{accelerator.process_index}.pt"))
accelerator.end_training()
# Threads of torch.distributed abort one process in ten while the interpreter ends, with the debugger and without it.
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
