"""A training with Lightning, started by the tests: ``train_with_lightning.py FOLDER NAME OPTIONS``.

OPTIONS is a JSON object, see below; what is left of it goes to the Trainer. The losses and parameters go to
``FOLDER/NAME.<rank>.pt``, the dump to ``FOLDER/NAME``. As one of two processes it is told its rank and a free port.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch.integrations import MsprobeLightningCallback

folder, name = sys.argv[1:3]
options: dict[str, Any] = json.loads(sys.argv[3])
with_callback, level = options.pop("callback", True), options.pop("level", "L0")
actions, kind = options.pop("do", ["fit"]), options.pop("module", "Automatic")
checkpoint_path = options.pop("checkpoint_path", None)
pl = importlib.import_module(options.pop("package", "lightning.pytorch"))
if len(sys.argv) > 4:
    rank, port = sys.argv[4:]
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    os.environ["TORCHELASTIC_RUN_ID"] = "by this Lightning knows that it has not to start the other process"

warnings.simplefilter("ignore")
torch.set_num_threads(1)
pl.seed_everything(3, verbose=False)
losses: list[torch.Tensor] = []


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.first, x, use_reentrant=False)
        return self.last(self.drop(torch.relu(hidden)))


class Automatic(pl.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = self.net(batch).square().mean()
        losses.append(loss.detach())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.log("validation", self.net(batch).mean())

    test_step = validation_step

    def predict_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return self.net(batch)

    def on_train_batch_end(self, *_: Any) -> None:
        self.net(torch.ones(1, 4))  # a sample, say

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 0.01)


class Adversarial(Automatic):
    """Two optimizers, stepped by hand: one at each batch, one at every second."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.other = nn.Linear(1, 1)

    def training_step(self, batch: torch.Tensor, index: int) -> None:
        first, second = self.optimizers()
        loss = self.other(self.net(batch)).square().mean()
        losses.append(loss.detach())
        first.zero_grad()
        second.zero_grad()
        self.manual_backward(loss)
        first.step()
        if index % 2:
            second.step()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), 0.01), torch.optim.SGD(self.other.parameters(), 0.01)


class Accumulating(Adversarial):
    """One optimizer, stepped by hand after every second batch."""

    def training_step(self, batch: torch.Tensor, index: int) -> None:
        optimizer = self.optimizers()
        loss = self.net(batch).square().mean()
        losses.append(loss.detach())
        self.manual_backward(loss)
        if index % 2:
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), 0.01)


class Uncounted(Adversarial):
    """One optimizer, stepped by hand behind Lightning's back."""

    def training_step(self, batch: torch.Tensor, index: int) -> None:
        self.manual_backward(self.net(batch).square().mean())
        self.optimizers(use_pl_optimizer=False).step()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), 0.01)


class Skipping(Automatic):
    """Ends each epoch before its third batch."""

    def on_train_batch_start(self, batch: Any, index: int) -> int | None:
        return -1 if index == 2 else None

    def on_train_epoch_end(self) -> None:
        self.net(torch.ones(1, 4))


class Failing(Automatic):
    """Fails in its second batch, once."""

    failed = False

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = super().training_step(batch, index)
        if index == 1 and not self.failed:
            self.failed = True
            raise KeyError("stopped by the test")
        return loss


def loader(length: int) -> Any:
    return torch.utils.data.DataLoader(torch.randn(length, 4), batch_size=2)


def make_trainer(**more: Any) -> Any:
    given = {"max_epochs": 1, "accelerator": "cpu", "logger": False, "enable_checkpointing": False, **options, **more}
    callbacks = [MsprobeLightningCallback(debugger)] if with_callback else []
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(default_root_dir=folder, callbacks=callbacks, **quiet, **given)


if with_callback:
    debugger = PrecisionDebugger(dump_path=os.path.join(folder, name), level=level)
module = globals()[kind]()
trainer = make_trainer()
for action in actions:
    if action == "fit":
        try:
            trainer.fit(module, loader(16), loader(4), ckpt_path=checkpoint_path)
        except KeyError:
            trainer = make_trainer()
    elif action == "save":
        trainer.save_checkpoint(os.path.join(folder, f"{name}.ckpt"))
    else:
        getattr(trainer, action)(module, loader(4))
result = {"losses": losses, "parameters": module.state_dict(), "random": torch.get_rng_state()}
torch.save(result, os.path.join(folder, f"{name}.{trainer.global_rank}.pt"))
if torch.distributed.is_initialized():
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
