"""The training of seven recorded cases, a one-layer GPT with AdamW: ``recorded_training.py CASE [RANK]``."""

import sys
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from msprobe.core.monitor_v2.trainer import TrainerMonitorV2
from msprobe.pytorch import TrainerMon


class Case(NamedTuple):
    steps: int
    micro_batches: int = 1
    parallel: str = ""


CASES = {
    "v1_full": Case(3),
    "v1_struct": Case(2),
    "v1_alert": Case(6),
    "v1_steps_micro": Case(10, 2),
    "v1_ddp": Case(2, parallel="ddp"),
    "v1_fsdp2": Case(2, parallel="fsdp2"),
    "v2_full": Case(2, 2),
}


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ln1, self.qkv, self.proj = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ln2, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        q, k, v = self.qkv(self.ln1(x)).chunk(3, -1)
        att = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
        x = x + self.proj(att @ v)
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, d=16, layers=1, vocab=20, seq=8):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Parameter(torch.randn(seq, d) * 0.02)
        self.blocks = nn.ModuleList([Block(d) for _ in range(layers)])
        self.ln, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def main(name, rank=0):
    case = CASES[name]
    torch.set_num_threads(1)
    if case.parallel:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = GPT()
    if case.parallel == "ddp":
        model = DistributedDataParallel(model)
    elif case.parallel == "fsdp2":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if name == "v2_full":
        monitor = TrainerMonitorV2("config.json", fr="pytorch")
        monitor.start(model=model, optimizer=optimizer, grad_acc_steps=case.micro_batches)
    else:
        monitor = TrainerMon("config.json", params_have_main_grad=False)
        monitor.set_monitor(model, grad_acc_steps=case.micro_batches, optimizer=optimizer)
    generator = torch.Generator().manual_seed(rank + 1)
    for step in range(case.steps):
        for _ in range(case.micro_batches):
            ids = torch.randint(0, 20, (2, 9), generator=generator)
            loss = F.cross_entropy(model(ids[:, :-1]).reshape(-1, 20), ids[:, 1:].reshape(-1)) / case.micro_batches
            if name == "v1_alert":
                loss = loss * {3: 1e4, 5: float("nan")}.get(step, 1.0)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if name == "v2_full":
        monitor.stop()
    if case.parallel:
        dist.destroy_process_group()


main(sys.argv[1], int(sys.argv[2]))
